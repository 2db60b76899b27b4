"""How each log entry changes the state: the same functions for a live write and for a replay."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from topics.engine import retention
from topics.engine.state import idempotency
from topics.engine.state.jobs.leases import left_range, left_taken
from topics.engine.state.jobs.saved import undelivered
from topics.engine.state.topic import Remembered, Topic
from topics.engine.state.topics import State
from topics.engine.write.removal import Chosen, choose_by_tag
from topics.model.records import TagMatch
from topics.model.topic import TopicConfig
from topics.storage.log import entry as entries
from topics.storage.segments.columns import extend, extend_plain
from topics.storage.segments.marks import DELETED
from topics.storage.segments.segment import MemorySegment, Segment

ALONE_BYTES = 8 << 20  # a write of this size has a segment of its own, which takes its bytes without a copy

NOTHING: Mapping[int, Chosen] = MappingProxyType({})


class OutOfOrder(Exception):
    """An entry does not begin at the next seq of its topic: the state differs from the log."""

    def __init__(self, topic: Topic, first: int) -> None:
        super().__init__(f"{topic.name}: an entry begins at seq {first}, the head is {topic.head}")


def create(state: State, entry: entries.Create) -> Topic:
    config = state.shared(entry.config)
    topic = Topic(entry.name, topic_id=entry.topic_id, epoch=entry.epoch, config=config, totals=state.totals)
    topic.segments.append(MemorySegment(1, opened_ms=entry.at_ms))
    state.add(topic)
    state.next_topic_id = max(state.next_topic_id, entry.topic_id + 1)
    state.last_epoch = max(state.last_epoch, entry.epoch)
    for notify in state.created:
        notify(topic)
    return topic


def note(state: State, topic: Topic) -> None:
    """Write to the ledger what it has to know of the topic."""
    if state.ledger is not None:
        state.ledger.note_topic(topic.topic_id, topic.name, topic.epoch, topic.config, topic.ceiling_staged)


def configure(state: State, topic: Topic, entry: entries.Configure) -> None:
    """Change the configuration. Expire records by the old one first, then evict what the new one does not keep."""
    config, at_ms = entry.config, entry.at_ms
    retention.expire(topic, at_ms)
    state.count_class(topic.config, -1)
    state.count_class(config, 1)
    if config.durability == "ephemeral":
        topic.needs_snapshot = 0
    elif entry.head is not None and promises_more(topic.config, config):
        state.needed_snapshots += 1
        topic.needs_snapshot = state.needed_snapshots
    if not (topic.config.idempotency_window_ms and config.idempotency_window_ms):
        idempotency.forget_all(state, topic)
    topic.config = config
    topic.front_ts = 0
    if topic.queue is not None:
        topic.queue.config_changed()
    retention.expire(topic, at_ms)
    retention.enforce_caps(topic)
    note(state, topic)


def promises_more(old: TopicConfig, new: TopicConfig) -> bool:
    """Return whether a restart must find more under the new configuration than was logged under the old one.

    A change between `memory`, `disk` and `fsync` is no such change: they log the same, and it is synced.
    """
    return old.durability == "ephemeral" or (new.type == "queue" and new.leases_durable > old.leases_durable)


def drop(state: State, topic: Topic) -> None:
    if state.ledger is not None:
        state.ledger.note_gone(topic.topic_id)
    if state.routers is not None:
        state.routers.drop_topic(topic)
    topic.removed(topic.count, topic.bytes)
    topic.losses.end()
    state.remove(topic)
    for segment in topic.segments:
        segment.release()
    topic.segments = []
    topic.queue = None
    if topic.consumers is not None:
        topic.consumers = None
        state.note_consumers(topic)
    idempotency.forget_all(state, topic)
    topic.gone = True


def append_plain(state: State, topic: Topic, entry: entries.Append) -> None:
    """Append one plain record. Without caps and TTL, in a segment that has room, this takes the fast path.

    Every other case is left to `append`.
    """
    segment, config, limits = topic.segments[-1], topic.config, state.segment_limits
    count, ts, blob = segment.count, entry.ts, entry.blob
    size_bytes = len(blob)
    if not count:
        segment.opened_ms = ts  # type: ignore[attr-defined]
    if (
        count >= limits.max_events
        or segment.columns.offsets[-1] + size_bytes > limits.max_bytes
        or ts - segment.opened_ms > limits.max_age_ms  # type: ignore[attr-defined]
        or config.ttl_ms
        or config.cap_records
        or config.cap_bytes
        or not extend_plain(segment.columns, ts, size_bytes, entry.tags, entry.nodes)  # type: ignore[arg-type]  # one name
    ):
        append(state, topic, entry)
        return
    if entry.first != topic.head + 1:
        raise OutOfOrder(topic, entry.first)
    segment.grew(blob, 1, ts)  # type: ignore[attr-defined]
    topic.head = head = entry.first
    if topic.next_seq <= head:  # as in `append`
        topic.pass_head()
    topic.count += 1
    topic.bytes += size_bytes
    totals = topic.totals
    totals.records += 1
    totals.bytes += size_bytes
    topic.last_ts = topic.last_write_ts = ts
    if state.written is not None:
        state.note_write(topic)


def append(state: State, topic: Topic, entry: entries.Append) -> None:
    """Append records that begin at the topic's next seq, then enforce the TTL and the caps."""
    first, sizes, ts, blob = entry.first, entry.sizes, entry.ts, entry.blob
    n, size_bytes = len(sizes), len(blob)
    if first != topic.head + 1:
        raise OutOfOrder(topic, first)
    segment = topic.segments[-1]
    limits = state.segment_limits
    alone = size_bytes >= ALONE_BYTES
    if segment.count and (
        alone
        or segment.count >= limits.max_events
        or segment.count + n > limits.max_events * 2
        or segment.columns.offsets[-1] + size_bytes > limits.max_bytes
        or ts - segment.opened_ms > limits.max_age_ms  # type: ignore[attr-defined]
    ):
        segment = state.roll(topic, opened_ms=ts)
    assert isinstance(segment, MemorySegment)
    if not segment.count:
        segment.opened_ms = ts
    columns = segment.columns
    if entry.extras:
        columns.extras = columns.extras or {}
        columns.extras.update({segment.count + at: extra for at, extra in entry.extras.items()})
        if topic.queue is not None:
            topic.queue.arrived(first, n, ts, entry.extras)
    extend(columns, ts, sizes, entry.tags, entry.nodes, entry.metas)
    if alone:
        segment.holds_alone(blob, n, ts)
    else:
        segment.grew(blob, n, ts)
    topic.head = head = topic.head + n
    if topic.next_seq <= head:  # a copy, or a replay: a direct write has moved it already
        topic.pass_head()
    topic.count += n
    topic.bytes += size_bytes
    totals = topic.totals
    totals.records += n
    totals.bytes += size_bytes
    topic.last_ts = topic.last_write_ts = ts
    if state.written is not None:
        state.note_write(topic)
    if alone:
        state.roll(topic, opened_ms=ts)
    if entry.key is not None:
        idempotency.remember(state, topic, entry.key, Remembered(first, topic.head, ts))
    config = topic.config
    if config.ttl_ms:
        retention.expire(topic, ts)
    if (config.cap_records and topic.count > config.cap_records) or (
        config.cap_bytes and topic.bytes > config.cap_bytes
    ):
        retention.enforce_caps(topic)


def delete(topic: Topic, entry: entries.Delete, chosen: Mapping[int, Chosen] = NOTHING) -> int:
    """Delete the records that the entry names; return how many these were.

    `chosen` has what was found beforehand, see `removal`; with it, a delete by tag takes some 50 µs per segment. A
    segment for which there is nothing is looked at now, and the disk waited for if its columns are not in memory.
    """
    if topic.links is not None:
        topic.links.table.hooks.deleting(topic.links)
    if topic.config.ttl_ms:
        retention.expire(topic, entry.at_ms)
    before = topic.count
    if entry.seqs is not None:
        _delete_seqs(topic, entry.seqs, chosen)
    elif entry.op is None:
        _delete_prefix(topic, min(entry.before_seq, topic.head + 1))
    else:
        match = TagMatch("Eq" if entry.op == "Eq" else "Glob", entry.text)
        parts = []
        for segment, known in tagged(topic, match, entry.before_seq, chosen):
            if known.count:
                parts.append((segment.first + known.low, _delete_chosen(topic, segment, known)))
        if topic.queue is not None:
            left_taken(topic.queue, parts)
    retention.advance(topic)
    return before - topic.count


def replay_delete(state: State, topic: Topic, entry: entries.Delete) -> None:
    if entry.done and entry.seqs is not None and topic.queue is not None:
        topic.queue.take_out(topic.queue.leased(entry.seqs))  # no worker learns that these jobs were cancelled
    delete(topic, entry)


def tagged(
    topic: Topic, match: TagMatch, before_seq: int, chosen: Mapping[int, Chosen]
) -> Iterator[tuple[Segment, Chosen]]:
    """Yield what a delete by tag takes from each segment: as it was found beforehand, or else by a look."""
    for segment, low, high in list(topic.spans(topic.earliest, min(before_seq, topic.head + 1))):
        known = chosen.get(segment.first)
        if known is not None and known.fits(segment, low, high):
            yield segment, known
        elif segment.live and retention.ready(topic, segment):
            yield segment, choose_by_tag(segment, match, low, high)


def _delete_chosen(topic: Topic, segment: Segment, chosen: Chosen) -> npt.NDArray[np.uint8]:
    taken = chosen.taken
    segment.mark_deleted(chosen.low, taken, count=chosen.count, size_bytes=chosen.size_bytes)
    topic.removed(chosen.count, chosen.size_bytes)
    return taken


def _delete_prefix(topic: Topic, before: int) -> None:
    """Delete all records below `before`. Only the segment that `before` cuts is looked into."""
    for segment, low, high in list(topic.spans(topic.earliest, before)):
        if not segment.live:
            continue
        if high == segment.count:
            n, size_bytes = segment.live, segment.live_bytes
        elif segment.in_memory or retention.ready(topic, segment):
            n, size_bytes = segment.live_within(low, high)
        else:
            continue
        segment.live -= n
        segment.live_bytes -= size_bytes
        topic.removed(n, size_bytes)
    if topic.queue is not None:
        left_range(topic.queue, topic.earliest, before)
    topic.earliest = max(topic.earliest, before)


def _delete_seqs(topic: Topic, seqs: list[int], chosen: Mapping[int, Chosen]) -> None:
    """Delete records one by one; `seqs` ascend."""
    at = 0
    while at < len(seqs):
        if seqs[at] < topic.earliest or seqs[at] > topic.head:
            at += 1
            continue
        segment = topic.segment_of(seqs[at])
        first, end = segment.first, segment.end
        stop = max(bisect_left(seqs, end, at), at + 1)
        run = [seq - first for seq in seqs[at:stop] if first <= seq < end]
        at = stop
        known = chosen.get(segment.first)
        if run and known is not None and known.fits(segment, run[0], run[-1] + 1, len(run)):
            _delete_chosen(topic, segment, known)
        elif run and (segment.in_memory or retention.ready(topic, segment)):  # no run: all seqs lie in a gap before it
            topic.removed(*segment.mark(run, DELETED))
    if topic.queue is not None:
        topic.queue.left(seqs)


# --- replay: `durable.entry_kinds` has a row for each


def replay_create(state: State, entry: entries.Create) -> None:
    if entry.topic_id not in state.by_id:
        create(state, entry)


def skip_to(state: State, topic: Topic, next_seq: int, reason: str) -> None:
    """Record the seqs before `next_seq` that the log lacks as lost, except for copies that a router can make again."""
    if topic.links is not None:
        topic.links.table.hooks.fill(topic, next_seq - 1)
    retention.skip_to(topic, next_seq, reason)


def replay_append(state: State, topic: Topic, entry: entries.Append) -> None:
    if entry.first > topic.head + 1:
        skip_to(state, topic, entry.first, "corrupt")
    if entry.first == topic.head + 1:
        is_plain = entry.metas is None and entry.key is None and entry.extras is None
        if is_plain and len(entry.sizes) == 1 and not isinstance(entry.nodes, list):
            append_plain(state, topic, entry)  # half the time, and most entries are of this kind
        else:
            append(state, topic, entry)


def replay_configure(state: State, topic: Topic, entry: entries.Configure) -> None:
    if entry.head is not None and topic.config.durability == "ephemeral" != entry.config.durability:
        # The topic was in memory alone. The snapshot that has its records was written later, and is lost.
        retention.lose_all(topic, "restart")
        retention.skip_to(topic, entry.head + 1, "restart")
        state.left_ephemeral.add(topic.topic_id)
        topic.consumers = None
        state.note_consumers(topic)
    if topic.queue is not None and topic.config.leases_durable > entry.config.leases_durable:
        # What became of these leases from here on is not in the log.
        topic.queue = undelivered(topic.queue, topic)
    configure(state, topic, entry)


def replay_ceiling(state: State, topic: Topic, entry: entries.Ceiling) -> None:
    topic.ceiling = topic.ceiling_staged = max(topic.ceiling, entry.ceiling)
