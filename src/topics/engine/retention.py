"""Involuntary loss: caps, TTL, damage. Exact to the record; a segment is released once no record in it is live.

Every function that shortens a topic from the front ends in `advance`, and every loss is recorded in `topic.losses`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from topics import logs
from topics.engine.state.jobs.leases import left_range
from topics.engine.state.topic import Topic
from topics.storage.segments.cold import Cold, Needs, waiting
from topics.storage.segments.columns import runs
from topics.storage.segments.marks import LOST
from topics.storage.segments.segment import Damaged, MemorySegment, Segment

log = logs.Log("engine")


def ready(topic: Topic, segment: Segment) -> bool:
    """Load the segment's columns, waiting for the disk. Return False if they are damaged: then the records are lost."""
    try:
        waiting(segment.check_loaded)
    except Damaged as damage:
        lose_segment(topic, segment, damage)
        return False
    return True


def cutoff_ms(topic: Topic, now_ms: int) -> int:
    """Return the time before which records are expired. A record exactly as old as the TTL is kept.

    While a delete, a move or a change of the topic waits for the log, no record expires that had not expired when it
    was decided. Otherwise a record that a client removes would be reported as lost, until a replay finds the delete.
    """
    staged = topic.staged_times
    return (min(now_ms, staged[0]) if staged else now_ms) - topic.config.ttl_ms


def expire(topic: Topic, now_ms: int, *, reads: bool = True) -> None:
    """Expire every record that is older than the TTL, if there is one, see `cutoff_ms`.

    Without `reads`, only those for which nothing has to be read from the disk. Not for a topic that holds.
    """
    cutoff = cutoff_ms(topic, now_ms)
    if topic.front_ts >= cutoff or not topic.count or not topic.config.ttl_ms:
        return
    holds = topic.config.archive is not None and topic.holds
    if holds and topic.earliest > topic.archived:
        return  # the archive does not have the first record yet
    try:
        upto = expired_before(topic, cutoff, exact=reads)
        if holds:
            upto = min(upto, topic.archived + 1)
        if upto > topic.earliest:
            evict(topic, upto, "ttl", reads=reads)
        # The age of the first live record: with it, most calls of this function end after one comparison.
        segment = topic.segment_of(topic.earliest) if topic.count else None
        if segment is None:
            topic.front_ts = 0
        elif not reads and not segment.in_memory:
            topic.front_ts = segment.min_ts
        elif ready(topic, segment):
            topic.front_ts = segment.columns.ts[topic.earliest - segment.first]
    except OSError as error:  # a write must not fail because of it; a reader gets the error for the same bytes
        log.error("expiry_put_off", topic=topic.name, reason=str(error))


def expire_loaded(topic: Topic, now_ms: int) -> None:
    """Expire as `expire` does. Raise `Cold` for columns that it would have to wait for.

    If these are more than one load may ask for, expire the records whose columns are loaded so far.
    """
    cutoff = cutoff_ms(topic, now_ms)
    if not topic.config.ttl_ms or topic.front_ts >= cutoff or not topic.count:
        return
    if topic.holds and topic.earliest > topic.archived:
        return  # the archive does not have the first record yet
    needs, ready_upto = Needs(), [topic.earliest]
    for segment in topic.segments:
        reaches = segment.count and segment.max_ts >= cutoff
        if segment.live and (reaches or segment.live != segment.count):
            with suppress(Damaged):  # `expire` takes care of it
                needs.run(segment.check_loaded)
        if not needs.found:
            ready_upto.append(segment.end)
        if reaches or needs.full:
            break
    if needs.found and len(ready_upto) > 2:  # the last one stays, so that the first live record is in memory
        upto = min(ready_upto[-2], topic.archived + 1) if topic.holds else ready_upto[-2]
        if upto > topic.earliest:
            evict(topic, upto, "ttl")
    needs.check()
    expire(topic, now_ms)


def expired_before(topic: Topic, cutoff: int, *, exact: bool = True) -> int:
    """Return the seq below which every record is older than `cutoff`. If not `exact`, use what is in memory.

    The first live record of a segment with deleted records is unknown then, so the segment before it counts as younger.
    """
    upto = before = topic.earliest
    for segment in list(topic.segments):
        if not exact and not segment.in_memory and segment.live < segment.count:
            return before
        if not segment.count or segment.max_ts < cutoff:
            before, upto = upto, max(upto, segment.end)
            continue
        if segment.in_memory or (exact and ready(topic, segment)):
            at = bisect_left(segment.columns.ts, cutoff)
            upto = max(upto, segment.first + at)
        break
    return upto


def expiring_before(topic: Topic, now_ms: int) -> int:
    """Return the seq below which records expire as soon as the entries that wait have taken effect; 0 if none waits.

    A move must not take these records: the log has it behind those entries, and a replay expires them first.
    """
    if not topic.config.ttl_ms or not topic.staged_times:
        return 0
    upto = expired_before(topic, now_ms - topic.config.ttl_ms)
    return min(upto, topic.archived + 1) if topic.holds else upto


def enforce_caps(topic: Topic) -> None:
    """Evict the oldest live records until both caps hold.

    A topic that rejects evicts only if it holds records for its archive, and then only archived records: see `spare`.
    Records that a consumer holds stay: see `released`.
    """
    config = topic.config
    take: Callable[[Topic, int, str], None] = evict
    if config.archive is not None and topic.holds:
        take = _evict_archived_first
    elif config.discard == "reject":
        return
    try:
        if config.cap_records and topic.count > config.cap_records:
            if (upto := released(topic, after_oldest(topic, topic.count - config.cap_records))) > topic.earliest:
                take(topic, upto, "cap")
        if config.cap_bytes and topic.bytes > config.cap_bytes:
            past = after_oldest(topic, topic.bytes - config.cap_bytes, in_bytes=True)
            if (upto := released(topic, past)) > topic.earliest:
                take(topic, upto, "cap")
    except OSError as error:  # the write that came before must not fail
        log.error("eviction_put_off", topic=topic.name, reason=str(error))


def released(topic: Topic, upto: int) -> int:
    """Return the seq below which a cap may evict records: `upto`, or less if consumers hold records below it.

    A consumer with `hold` holds every record that it has not read. Once the topic has more than `max_hold_bytes`, a
    topic that discards old records evicts the oldest ones all the same. A topic that rejects evicts none of them.
    """
    own = topic.consumers
    if own is None or not own.holders:
        return upto
    for consumer in own.holders:
        if consumer.seq + 1 < upto:
            excess = topic.bytes - consumer.max_hold_bytes
            past = after_oldest(topic, excess, in_bytes=True) if excess > 0 and topic.config.discard == "old" else 0
            upto = min(upto, max(consumer.seq + 1, past))
    return max(upto, topic.earliest)


def _evict_archived_first(topic: Topic, upto: int, reason: str) -> None:
    """Evict archived records. A topic that does not reject evicts others, too, and counts these."""
    archived = min(upto, topic.archived + 1)
    if makes_room(topic) or topic.config.discard == "old":
        if archived > topic.earliest:
            evict(topic, archived, reason)
    if archived < upto and topic.config.discard == "old":
        before = topic.count
        evict(topic, upto, reason)
        topic.evicted_unarchived += before - topic.count


def makes_room(topic: Topic) -> bool:
    """Return whether a full topic evicts archived records instead of rejecting. A queue does not: jobs must be done."""
    return topic.holds and topic.queue is None


def spare(topic: Topic) -> tuple[int, int]:
    """Return how many live records a topic that rejects may evict to make room, and their bytes: the archived ones."""
    if not makes_room(topic):
        return 0, 0
    return live_between(topic, topic.earliest, released(topic, topic.archived + 1))


def live_between(topic: Topic, low_seq: int, high_seq: int, *, exact: bool = True) -> tuple[int, int]:
    """Return how many records with seqs [low, high) are live, and their bytes. Whole segments count by their sums.

    If not `exact`, deleted records of segments that are not in memory may count, and these have no bytes.
    """
    count = size_bytes = 0
    for segment, low, high in list(topic.spans(max(low_seq, topic.earliest), high_seq)):
        first_live = max(topic.earliest - segment.first, 0)  # nothing before the topic's first live record is live
        if low <= first_live and high == segment.count:
            count += segment.live
            size_bytes += segment.live_bytes
        elif not exact and not segment.in_memory:
            count += min(high - max(low, first_live), segment.live)
        elif segment.live and ready(topic, segment):
            n, used = segment.live_within(low, high)
            count += n
            size_bytes += used
    return count, size_bytes


def reach(topic: Topic, *, first: int, sizes: Sequence[int], ts: int, before_bytes: int = 0) -> int:
    """Return the seq below which all records are evicted once records of these sizes are appended at `ts`.

    This may include some of the appended records. Pending records before them have `before_bytes`, and
    are evicted first.
    """
    config, expired, upto, end = topic.config, topic.earliest, topic.earliest, first + len(sizes)
    if config.ttl_ms and topic.front_ts < ts - config.ttl_ms:
        expired = expired_before(topic, ts - config.ttl_ms)
        expired = min(expired, topic.archived + 1) if topic.holds else expired
    if config.cap_records and (excess := topic.count + end - topic.head - 1 - config.cap_records) > 0:
        upto = max(upto, after_oldest(topic, excess) if excess <= topic.count else end - config.cap_records)
    if config.cap_bytes and (excess := topic.bytes + before_bytes + sum(sizes) - config.cap_bytes) > 0:
        if excess <= topic.bytes:
            upto = max(upto, after_oldest(topic, excess, in_bytes=True))
        else:
            rest, at = excess - topic.bytes - before_bytes, 0
            while rest > 0 and at < len(sizes):
                rest -= sizes[at]
                at += 1
            upto = max(upto, first + at)
    return max(topic.earliest, expired, released(topic, upto))


def evict(topic: Topic, upto: int, reason: str, *, reads: bool = True) -> None:
    """Evict every live record below `upto`, for `reason`. Do nothing while the disk cannot be read.

    Without `reads`, the caller has made sure that nothing has to be read from the disk.
    """
    try:  # before anything is changed
        for segment, _, high in list(topic.spans(topic.earliest, upto)):
            if segment.live and (high < segment.count or segment.live != segment.count):
                ready(topic, segment)
    except OSError as error:
        log.error("eviction_put_off", topic=topic.name, reason=str(error))
        return
    if topic.links is not None and topic.links.table.hooks.losing(topic.links, upto) is False:
        return  # the state follows that of another server, whose log says when
    start = topic.earliest
    for segment, low, high in list(topic.spans(start, upto)):
        if not segment.live:
            continue
        if high == segment.count and segment.live == segment.count:
            lost, n, size_bytes = [(low, high - 1)], segment.live, segment.live_bytes
        elif ready(topic, segment):
            lost, (n, size_bytes) = _live_runs(segment, low, high), segment.live_within(low, high)
        else:
            continue
        for first, last in lost:
            topic.own_losses().add(segment.first + first, segment.first + last, reason)
            ts: Sequence[int] = [segment.max_ts]
            if reads or segment.in_memory:
                with suppress(Cold, Damaged, OSError):  # times of other records are not worth a trip to the disk
                    ts = segment.columns.ts[first : last + 1]
            topic.own_losses().add_times(segment.first + last + 1 - len(ts), ts)
            topic.lost_ts = ts[-1]
        _lose(topic, segment, n, size_bytes)
    topic.earliest = max(topic.earliest, min(upto, topic.head + 1))
    if topic.queue is not None:
        left_range(topic.queue, start, topic.earliest)
    advance(topic)


def advance(topic: Topic) -> None:
    """Move `earliest` to the first live record and release the segments before it."""
    # Bound: a round that finds its segment unreadable removes the segment, and an empty topic has a first live seq.
    while (earliest := _first_live(topic)) is None:
        pass
    segments = topic.segments
    topic.earliest = earliest
    if topic.losses.runs:
        _raise_floor(topic)
    if segments[0].live:
        return
    dead = next((at for at, segment in enumerate(segments) if segment.live), len(segments))
    if dead == len(segments):
        dead -= 1  # the open one stays, or an empty one behind its end, to free its memory
        was = topic.open
        if was.count:
            segments[-1] = MemorySegment(was.end, opened_ms=was.opened_ms)
    for segment in segments[:dead]:
        segment.release()
    del segments[:dead]


def _first_live(topic: Topic) -> int | None:
    """Return the seq of the first live record, head + 1 if there is none; None if its segment turned out to be lost."""
    segment = topic.segments[0]
    if not segment.live:
        live = next((one for one in topic.segments if one.live), None)
        if live is None:
            return topic.head + 1
        segment = live
    low = max(topic.earliest - segment.first, 0)
    try:
        return segment.first + waiting(partial(segment.first_live, low))
    except Damaged as damage:
        _remove_damaged(topic, segment, damage)
        return None
    except OSError as error:  # deleted records at its beginning are skipped later
        log.error("columns_unreadable", topic=topic.name, reason=str(error))
        return segment.first + low


def lose_segment(topic: Topic, segment: Segment, damage: Exception) -> None:
    """Remove a segment that cannot be read, and record its live records as lost."""
    if _remove_damaged(topic, segment, damage):
        advance(topic)


def _remove_damaged(topic: Topic, segment: Segment, damage: Exception) -> bool:
    """Record the loss and remove the segment. Return whether `earliest` lay in it: `advance` has to follow then."""
    low = max(segment.first, topic.earliest)
    log.error("segment_damaged", topic=topic.name, first_seq=low, last_seq=segment.end - 1, damage=str(damage))
    if segment.live:
        topic.own_losses().add(low, segment.end - 1, "corrupt")
        _lose(topic, segment, segment.live, segment.live_bytes)
    if topic.queue is not None:
        left_range(topic.queue, low, segment.end)
    topic.segments.remove(segment)
    segment.release()
    if topic.earliest < low:
        return False
    topic.lost_ts = max(topic.lost_ts, segment.max_ts)
    topic.earliest = segment.end
    return True


def lose_range(topic: Topic, damage: Damaged) -> bool:
    """Record the live records of a damaged range as lost (`corrupt`). Return whether there were any."""
    segment = damage.segment
    if damage.whole:
        lose_segment(topic, segment, damage)
        return True
    low = max(damage.low, topic.earliest - segment.first)
    log.error(
        "data_damaged",
        topic=topic.name,
        first_seq=segment.first + low,
        last_seq=segment.first + damage.high - 1,
        file=damage.cause.path,
        offset=damage.cause.offset,
    )
    for first, last in _live_runs(segment, low, damage.high):
        topic.own_losses().add(segment.first + first, segment.first + last, "corrupt")
    lost, lost_bytes = segment.mark(range(low, damage.high), LOST)
    topic.removed(lost, lost_bytes)
    if topic.queue is not None:
        left_range(topic.queue, segment.first + low, segment.first + damage.high)
    advance(topic)
    return lost > 0


def skip_to(topic: Topic, next_seq: int, reason: str) -> None:
    """Record the seqs between the head and `next_seq` as lost: they may have been given out.

    If only the seqs of the records before them are known, as those of an ephemeral topic after a start, these are lost,
    too.
    """
    if next_seq <= topic.head + 1:
        return
    if not topic.count and topic.earliest <= topic.head:
        topic.own_losses().add_rest(topic.earliest, topic.head, reason)
    topic.own_losses().add(topic.head + 1, next_seq - 1, reason)
    topic.head = next_seq - 1
    topic.pass_head()  # unless later writes have their seqs already
    was = topic.open
    if was.count:
        topic.segments.append(MemorySegment(next_seq, opened_ms=was.opened_ms))
    else:
        topic.segments[-1] = MemorySegment(next_seq, opened_ms=was.opened_ms)
    if not topic.count:
        topic.earliest = next_seq
    _raise_floor(topic)


def lose_all(topic: Topic, reason: str) -> None:
    """Record every record as lost, even if only its seq is known, or the disk cannot be read now."""
    if topic.count:
        evict(topic, topic.head + 1, reason)
    if topic.earliest > topic.head:
        return
    if topic.queue is not None:
        left_range(topic.queue, topic.earliest, topic.head + 1)
    for segment in topic.segments:
        segment.release()
    topic.removed(topic.count, topic.bytes)
    topic.segments = [MemorySegment(topic.head + 1, opened_ms=topic.open.opened_ms)]
    topic.own_losses().add_rest(topic.earliest, topic.head, reason)
    topic.earliest = topic.head + 1
    _raise_floor(topic)


def lose_next(topic: Topic, n: int) -> None:
    """Give seqs to `n` records that are larger than the topic may ever hold, and record them as lost."""
    skip_to(topic, topic.head + 1 + n, "cap")
    if topic.holds:
        topic.evicted_unarchived += n


def _raise_floor(topic: Topic) -> None:
    """Count losses that `earliest` has passed as lost at the front."""
    for _, last, _ in reversed(topic.losses.runs):
        if last < topic.earliest:
            topic.evict_floor = max(topic.evict_floor, last + 1)
            break
    topic.losses.compact(topic.evict_floor)


def _lose(topic: Topic, segment: Segment, n: int, size_bytes: int) -> None:
    segment.live -= n
    segment.live_bytes -= size_bytes
    topic.removed(n, size_bytes)


def _live_runs(segment: Segment, low: int, high: int) -> list[tuple[int, int]]:
    """Return the contiguous runs of live positions in [low, high), both ends inclusive."""
    if segment.marks is None:
        return [(low, high - 1)] if low < high else []
    return runs(segment.live_positions(low, high))


def after_oldest(topic: Topic, n: int, *, in_bytes: bool = False) -> int:
    """Return the seq after the shortest run of oldest live records that has `n` records, or at least `n` bytes."""
    for segment in list(topic.segments):
        held = segment.live_bytes if in_bytes else segment.live
        if n >= held:
            n -= held
            if not n:
                return segment.end
            continue
        if not ready(topic, segment):
            continue
        low, offsets = max(topic.earliest - segment.first, 0), segment.columns.offsets
        if segment.marks is None:
            return segment.first + (bisect_left(offsets, offsets[low] + n, lo=low) if in_bytes else low + n)
        positions = segment.live_positions(low, segment.count)
        if not in_bytes:
            return segment.first + int(positions[n - 1]) + 1
        for at in positions:
            n -= offsets[at + 1] - offsets[at]
            if n <= 0:
                return segment.first + int(at) + 1
    return topic.head + 1
