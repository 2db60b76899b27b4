"""The topics that have their own metrics: a bounded number of them. The others are summed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from heapq import nlargest
from itertools import islice
from operator import attrgetter, itemgetter
from typing import TypeVar

from topics.engine.engine import Engine
from topics.engine.state.name_index import NameIndex
from topics.engine.state.topic import Topic
from topics.keys import END
from topics.model.names import AUDIT
from topics.server.api.exposition import ROWS_PER_STEP, batches
from topics.server.api.services import Services

Row = TypeVar("Row")
ColumnOf = tuple[str, str, Callable[[Row], float | None]]  # name, help, and the value of a row

KEEPS_MS = 3_600_000
SPARE = 250  # topics that may be dropped before all others have to be looked at again
# Metrics of topics that can be added up.
SUMMED: list[ColumnOf[Topic]] = [
    ("topics_topic_records_live", "Live records per topic.", attrgetter("count")),
    ("topics_topic_bytes_live", "Bytes of the live records per topic.", attrgetter("bytes")),
    ("topics_topic_lost", "Seqs per topic that a cap, a TTL, a restart or damage removed.", attrgetter("losses.total")),
    ("topics_topic_queue_ready", "Claimable jobs per queue.",
     lambda topic: None if topic.queue is None else topic.queue.ready),
    ("topics_topic_queue_in_flight", "Leased jobs per queue.",
     lambda topic: None if topic.queue is None else topic.queue.in_flight),
]  # fmt: skip

Seen = tuple[list[Topic], int, list[float]]  # topics that may be named, the number of all topics, and their sums


def choose(
    services: Services, prefixes: tuple[str, ...], limit: int
) -> Generator[None, None, tuple[list[Topic], int, dict[str, float]]]:
    """Return the topics to name, in order of their names, the number of all others, and their sums of `SUMMED`.

    Those of the setting come first, then those that were written last. A topic that was named before keeps its place
    for an hour longer, so that its series has no holes. Only the first scrape, and one with prefixes, looks at every
    topic.
    """
    topics, state = services.engine.topics, services.engine.state
    written = state.written if state.written is not None else dict[Topic, None]()
    if prefixes or len(written) < min(limit, len(state.names)):
        latest, seen, sums = yield from _look_at_all(services, prefixes, limit + SPARE)
    else:
        latest, seen, sums = [*reversed(written)], len(state.names), (yield from _sum_up(services.engine))
    before = services.named_topics.get(prefixes, frozenset[str]())
    always = yield from _always_named(services, prefixes)
    candidates = dict.fromkeys([*always, *latest, *(topics[name] for name in before if name in topics)])
    ranked: list[tuple[tuple[bool, int], Topic]] = []
    for some in batches(candidates):
        for topic in some:
            rank = topic in always, (topic.last_write_ts or 0) + KEEPS_MS * (topic.name in before)
            ranked.append((rank, topic))
        yield None
    best = nlargest(limit, ranked, key=itemgetter(0))
    chosen = sorted((topic for _, topic in best if not topic.gone), key=attrgetter("name"))
    services.named_topics[prefixes] = frozenset(topic.name for topic in chosen)
    others = [max(total - one, 0) for total, one in zip(sums, _sums(chosen), strict=True)]
    return chosen, max(seen - len(chosen), 0), {row[0]: one for row, one in zip(SUMMED, others, strict=True)}


def _look_at_all(services: Services, prefixes: tuple[str, ...], limit: int) -> Generator[None, None, Seen]:
    """Find the topics that were written last. Without prefixes, keep them up to date from now on."""
    topics, state = services.engine.topics, services.engine.state
    if not prefixes:
        state.keep_written(limit)
    latest: list[Topic] = []
    lowest, seen, sums = -1, 0, [0.0] * len(SUMMED)
    for names in pages(state.names, prefixes, len(topics)):
        some = [topics[name] for name in names]
        seen, sums = seen + len(some), [total + one for total, one in zip(sums, _sums(some), strict=True)]
        latest += [topic for topic in some if len(latest) < limit or _written_ms(topic) > lowest]
        if len(latest) > limit:
            latest = nlargest(limit, latest, key=_written_ms)
            lowest = _written_ms(latest[-1])
        yield None
    latest = sorted((topic for topic in latest if not topic.gone), key=_written_ms, reverse=True)
    if not prefixes:
        state.add_written(latest)
    return latest, seen, sums


def _sum_up(engine: Engine) -> Generator[None, None, list[float]]:
    """Return the sums of all topics with names."""
    totals, ready, in_flight = engine.state.totals, 0, 0
    for some in batches(engine.state.queues.values()):
        for topic in some:
            if topic.queue is not None:
                ready, in_flight = ready + topic.queue.ready, in_flight + topic.queue.in_flight
        yield None
    hidden = [engine.topics[AUDIT]] if AUDIT in engine.topics else []
    found = [totals.records, totals.bytes, totals.lost.total, ready, in_flight]
    return [total - one for total, one in zip(found, _sums(hidden), strict=True)]


def _always_named(services: Services, prefixes: tuple[str, ...]) -> Generator[None, None, dict[Topic, None]]:
    """Return the topics of the setting that the prefixes cover."""
    topics, found = services.engine.topics, dict[Topic, None]()
    wanted = [name[:-1] if name.endswith("*") else name + END for name in services.runtime.settings.metrics_topics]
    for names in pages(services.engine.state.names, tuple(wanted), len(topics)) if wanted else ():
        found.update((topics[name], None) for name in names if not prefixes or (name + END).startswith(prefixes))
        yield None
    return found


def pages(names: NameIndex, prefixes: tuple[str, ...], limit: int) -> Iterator[list[str]]:
    """Return up to `limit` visible names in pages. Names may be added and removed between two pages."""
    after = ""
    # Bound: each round returns names behind those of the round before.
    while limit > 0 and (page := list(islice(names.visible(prefixes, after=after), min(limit, ROWS_PER_STEP)))):
        after, limit = page[-1], limit - len(page)
        yield page


def _sums(topics: list[Topic]) -> list[float]:
    return [sum(filter(None, map(value, topics))) for _, _, value in SUMMED]


def _written_ms(topic: Topic) -> int:
    return topic.last_write_ts or 0
