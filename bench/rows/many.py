"""w25: many topics of ten records each, against a tenth as many: memory, starts, checkpoints, lists and scrapes.

One data directory per number of topics: it is filled, killed, started, stopped and started again. Memory of a topic is
what the server needs beyond the data and tags of its records.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from api import Api
from fill import send_all
from payload import PAYLOAD_BYTES, batch, post
from peers import Server, cpu_s, disk_bytes, memory_at_rest, running, start_topics, waited_s
from plan import Plan
from row import Ask, Outcome, Reading, Row, Side, at_most
from rows.creation import CROWDED
from rows.pauses import HOLD

RECORDS = 10
SETTINGS = {"TOPICS_MAX_TOPICS": "0", "TOPICS_PRESSURE_LAG_MS": "0"}  # the fill may hold up the loop
CHANGED = 1_000  # topics that get a record before each checkpoint
PAGES, PAGE_SIZE = 10, 1_000
SCRAPES = 5
ASKED = 100_000  # the number of topics whose start has a bar
TIMEOUT_S = 600
LINEAR = at_most(1.1)  # times what the same number of topics takes among fewer of them
FLAT = at_most(1.2)


@dataclass(frozen=True, kw_only=True)
class Masses:
    """What a server with so many topics takes."""

    topics: int
    filled_bytes: float  # of memory per topic, beyond its payload, right after it was filled
    idle_bytes: float  # the same after a clean stop and a start
    disk_bytes: float  # per topic, after a clean stop
    killed_s: float
    killed_cpu_s: float
    stopped_s: tuple[float, ...]
    stopped_cpu_s: float
    checkpoint_s: tuple[float, ...]
    checkpoint_cpu_s: float
    page_s: tuple[float, ...]
    scrape_s: tuple[float, ...]
    holds_ms: dict[str, float]
    crowded: bool  # the server waited for its core


def fill(server: Server, topics: int) -> None:
    """Create the topics by their first appends. Few connections with many requests each keep a server busy."""
    body = batch(RECORDS)
    requests = (post(f"/v0/topics/topic-{number}?return_seqs=false", body) for number in range(topics))
    send_all(server.port, requests, connections=4, window=64)


def look_at(plan: Plan, topics: int) -> Masses:
    """Measure a server with so many topics. Raise if one is missing after a start."""
    data_dir = plan.fresh_dir("many")
    with running(start_topics(plan, data_dir, **SETTINGS)) as server:
        send_all(server.port, iter([post("/v0/topics/warm?return_seqs=false", batch(RECORDS))] * 200))
        empty = memory_at_rest(server.pid)[0]
        fill(server, topics)
        filled = memory_at_rest(server.pid)[0]
    with running(start_topics(plan, data_dir, **SETTINGS)) as server:
        killed_s, killed_cpu_s = server.ready_s, cpu_s(server.pid)
        _check(server, topics)
        checkpoints = [_checkpoint(server, data_dir, topics, number) for number in range(plan.scale.rounds)]
        pages, scrapes = _pages(Api(server.port)), _times(lambda: _scrape(server), SCRAPES)
        holds = {cause: float(text) for cause, text in HOLD.findall(_scrape(server))}
        crowded = waited_s(server.pid) > CROWDED * cpu_s(server.pid)
        server.stop()
    disk, stopped, used = disk_bytes(data_dir) / topics, list[float](), list[float]()
    for _ in range(plan.scale.rounds):
        with running(start_topics(plan, data_dir, **SETTINGS)) as server:
            stopped.append(server.ready_s)
            used.append(cpu_s(server.pid))
            _check(server, topics)
            idle = memory_at_rest(server.pid)[0]
            server.stop()
    return Masses(
        topics=topics,
        filled_bytes=(filled - empty) / topics - RECORDS * PAYLOAD_BYTES,
        idle_bytes=(idle - empty) / topics - RECORDS * PAYLOAD_BYTES,
        disk_bytes=disk,
        killed_s=killed_s,
        killed_cpu_s=killed_cpu_s,
        stopped_s=tuple(stopped),
        stopped_cpu_s=median(used),
        checkpoint_s=tuple(elapsed for elapsed, _ in checkpoints),
        checkpoint_cpu_s=median(used for _, used in checkpoints),
        page_s=pages,
        scrape_s=scrapes,
        holds_ms=holds,
        crowded=crowded,
    )


def _check(server: Server, topics: int) -> None:
    api = Api(server.port, timeout_s=TIMEOUT_S)
    last = api.count(f"topic-{topics - 1}")
    assert last >= RECORDS, f"{last} records in the last topic after a start"
    found = int(_scrape(server).split("\ntopics_topics ", 1)[1].split("\n", 1)[0])
    assert found >= topics, f"{found} of {topics} topics after a start"


def _checkpoint(server: Server, data_dir: Path, topics: int, number: int) -> tuple[float, float]:
    """Return how long a checkpoint takes after a few topics have changed, and its processor time.

    A topic that is changed from `ephemeral` to `disk` waits for one.
    """
    api = Api(server.port, timeout_s=TIMEOUT_S)
    api.create(f"probe-{number}", durability="ephemeral")
    changed = min(CHANGED, topics)
    names = [f"topic-{at * (topics // changed)}" for at in range(changed)]
    names.append(f"probe-{number}")
    send_all(server.port, (post(f"/v0/topics/{name}?return_seqs=false", batch(1)) for name in names))
    server.wait_until_idle()
    snapshots = set(data_dir.glob("snapshots/*.snap"))
    before, started = cpu_s(server.pid), time.perf_counter()
    api.create(f"probe-{number}", durability="disk")
    found = time.perf_counter() - started, cpu_s(server.pid) - before
    assert {*data_dir.glob("snapshots/*.snap")} - snapshots, "there was no checkpoint"
    return found


def _pages(api: Api) -> tuple[float, ...]:
    """Return how long each of some pages of a list of topics takes. They follow each other."""
    took, cursor = [], ""
    while cursor is not None and len(took) < PAGES:
        started = time.perf_counter()
        page = api.call("GET", f"/v0/topics?page_size={PAGE_SIZE}{cursor and f'&cursor={cursor}'}")
        took.append(time.perf_counter() - started)
        cursor = page.get("next_cursor")
    return tuple(took)


def _scrape(server: Server) -> str:
    return Api(server.port, timeout_s=TIMEOUT_S).raw("GET", "/v0/metrics")[1].decode()


def _times(run: Callable[[], object], count: int) -> tuple[float, ...]:
    took = []
    for _ in range(count):
        started = time.perf_counter()
        run()
        took.append(time.perf_counter() - started)
    return tuple(took)


def measure(plan: Plan) -> Outcome:
    few, many = (look_at(plan, topics) for topics in plan.scale.masses)
    asked = next((one for one in (few, many) if one.topics == ASKED), None)
    holds = sorted(many.holds_ms.items(), key=lambda item: -item[1])
    note = ", ".join(f"{cause} {ms:.1f}" for cause, ms in holds[:5])
    readings = [
        Reading(key="idle topic", value=many.idle_bytes, note=f"{many.topics:,} topics"),
        Reading(key="topic after its appends", value=many.filled_bytes),
        Reading(key="disk", value=many.disk_bytes),
        _start("start after a stop", asked and median(asked.stopped_s), asked and asked.stopped_cpu_s, asked),
        _start("start after a kill", asked and asked.killed_s, asked and asked.killed_cpu_s, asked),
        Reading(key="idle topic, growth", value=many.idle_bytes / few.idle_bytes),
        _growth("start after a stop", few, many, lambda one: (median(one.stopped_s), one.stopped_cpu_s)),
        _growth("start after a kill", few, many, lambda one: (one.killed_s, one.killed_cpu_s)),
        _growth("checkpoint", few, many, lambda one: (median(one.checkpoint_s), one.checkpoint_cpu_s)),
        _slower("list page", few, many, lambda one: one.page_s),
        _slower("scrape", few, many, lambda one: one.scrape_s),
        Reading(key="longest hold", value=holds[0][1], note=note, crowded=many.crowded),
    ]
    return Outcome(readings, [side for one in (few, many) for side in _sides(one)])


def _start(key: str, taken_s: float | None, used_s: float | None, asked: Masses | None) -> Reading:
    if taken_s is None or asked is None:
        return Reading(key=key, value=None, note=f"this run has not {ASKED:,} topics")
    return Reading(key=key, value=taken_s, note=f"processor time {used_s:.2f} s", crowded=asked.crowded)


def _growth(key: str, few: Masses, many: Masses, taken: Callable[[Masses], tuple[float, float]]) -> Reading:
    """Return how many times longer it takes for each topic if there are many."""
    (few_s, few_cpu_s), (many_s, many_cpu_s) = taken(few), taken(many)
    share = few.topics / many.topics
    note = f"processor time {many_cpu_s:.2f} s against {few_cpu_s:.2f} s: {many_cpu_s / few_cpu_s * share:.2f} ×"
    crowded = few.crowded or many.crowded
    return Reading(key=f"{key}, growth", value=many_s / few_s * share, note=note, crowded=crowded)


def _slower(key: str, few: Masses, many: Masses, taken: Callable[[Masses], tuple[float, ...]]) -> Reading:
    """Return how many times longer it takes among many topics."""
    slower = median(taken(many)) / median(taken(few))
    return Reading(key=f"{key}, slower", value=slower, crowded=few.crowded or many.crowded)


def _sides(one: Masses) -> list[Side]:
    taken = {
        "ready after a kill": (one.killed_s,),
        "ready after a stop": one.stopped_s,
        "checkpoint": one.checkpoint_s,
        f"list page of {PAGE_SIZE:,}": one.page_s,
        "scrape": one.scrape_s,
    }
    return [
        Side(name=f"{one.topics:,} topics, {name}", unit="s", rounds=rounds, median=median(rounds))
        for name, rounds in taken.items()
    ]


ROW = Row(
    id="w25",
    title="100,000 topics of 10 records (1 M with --full): memory beyond the payload, starts, checkpoints with 1,000 "
    "changed topics, list pages and scrapes",
    peer="a tenth as many topics",
    asks=(
        Ask(key="idle topic", unit="bytes", bar=at_most(2_048), goal=at_most(1_024)),
        Ask(key="topic after its appends", unit="bytes"),
        Ask(key="disk", unit="bytes"),
        Ask(key="start after a stop", unit="s", bar=at_most(2), goal=at_most(1)),
        Ask(key="start after a kill", unit="s"),
        Ask(key="idle topic, growth", bar=LINEAR),
        Ask(key="start after a stop, growth", bar=LINEAR),
        Ask(key="start after a kill, growth", bar=LINEAR),
        Ask(key="checkpoint, growth", bar=LINEAR),
        Ask(key="list page, slower", bar=FLAT),
        Ask(key="scrape, slower"),
        Ask(key="longest hold", unit="ms"),
    ),
    measure=measure,
    needs=(),
    time_limit_s=3_600,
)
