"""The timeline of a topic: what has become of each seq. It draws what `Topic` states: live, deleted, or lost.

A window of seqs is described by at most a given number of ranges. If the ranges are few, they are exact. Otherwise the
window is cut into cells of `resolution` seqs, and cells with more than one state are reported as `merged`, with the
numbers of seqs that are live, deleted and lost. A smaller window has smaller cells.

Work is bounded: at most `MAX_LOOKS` segments are searched for deleted records. The records that were deleted in other
segments are known by number, and are spread evenly over their segment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from topics.engine import retention
from topics.engine.state.topic import Topic
from topics.engine.steps import Steps, once_loaded
from topics.model.inspection import TimelineRange
from topics.storage.segments.cold import Cold, Needs
from topics.storage.segments.segment import Segment

LIVE, DELETED, ARCHIVED, MERGED = "live", "deleted", "archived", "merged"
MAX_LOOKS = 16
RANGES_PER_STEP = 250

Run = tuple[int, int, str]  # first seq, last seq, state: one of the above, or the reason of a loss


class Timeline(Struct):
    """The ranges of a window, in order. `resolution` is 1 if they are exact."""

    from_seq: int
    to_seq: int
    resolution: int
    ranges: list[TimelineRange]


def build(topic: Topic, from_seq: int, to_seq: int, most: int) -> Steps[Timeline]:
    """Return the timeline of the seqs [from_seq, to_seq], with about `most` ranges.

    The window is cut to the seqs that were given out. One step looks at the topic, so the state is consistent; further
    ones make ranges of what it saw. Raise `Cold` through the step if marks must be loaded.
    """

    def look() -> _Seen:
        low, high = max(from_seq, 1), min(to_seq, topic.head)
        size = max(-(-(high - low + 1) // most), 1)
        return _Seen(low, high, size, topic.trimmed, _parts(topic, low, high, size) if low <= high else [])

    seen = yield from once_loaded(lambda: retention.read_past(topic, look))
    yield None
    if seen.low > seen.high:
        return Timeline(seen.low, seen.high, 1, [])
    exact = len(seen.parts) + sum(len(part.edges) for part in seen.parts if isinstance(part, _Marked))
    if seen.size == 1 or (exact <= most and not any(isinstance(part, _Partly) for part in seen.parts)):
        runs = _joined(run for part in seen.parts for run in _exact(seen.trimmed, part))
        ranges = yield from _listed(TimelineRange(first, last, state) for first, last, state in runs)
        return Timeline(seen.low, seen.high, 1, ranges)
    ranges = yield from _listed(_cells(seen, (yield from _sums(seen))))
    return Timeline(seen.low, seen.high, seen.size, ranges)


def _listed(ranges: Iterable[TimelineRange]) -> Steps[list[TimelineRange]]:
    found = []
    for number, one in enumerate(ranges, 1):
        found.append(one)
        if not number % RANGES_PER_STEP:
            yield None
    return found


class _Partly(Struct, frozen=True):
    """A part of a segment of which some records were deleted: how many is known, but not which."""

    first: int
    last: int
    live: int


class _Marked(Struct, frozen=True):
    """A part of a segment of which some records were deleted: `dead` says which, `edges` where that changes."""

    first: int
    dead: npt.NDArray[np.bool_]
    edges: npt.NDArray[np.intp]


Part = Run | _Partly | _Marked


class _Seen(Struct, frozen=True):
    """What one look at a topic found in the window: nothing in it changes with the topic. `size` is that of a cell."""

    low: int
    high: int
    size: int
    trimmed: int
    parts: list[Part]


def _parts(topic: Topic, low: int, high: int, coarse: int) -> list[Part]:
    """Return what is known of the window, in order. Raise `Cold` for marks that are not in memory."""
    needs = Needs()
    found: list[Part] = []
    looks = MAX_LOOKS
    for first, last, reason in _losses(topic, low, high):
        if reason:
            found.append((first, last, reason))
            continue
        if first < topic.earliest:
            end = min(last, topic.earliest - 1)
            found += _deleted(topic.trimmed, first, end)
            first = end + 1
        for segment, start, stop in _pieces(topic, first, last):
            if segment is None or not segment.live:
                found += _deleted(topic.trimmed, start, stop)
            elif segment.live == segment.end - max(segment.first, topic.earliest):
                found.append((start, stop, LIVE))
            elif (
                coarse > 1
                and (looks <= 0 or stop - start < coarse)
                # The part has all live records of the segment, so that their number is known.
                and (start <= max(segment.first, topic.earliest) and stop == segment.end - 1)
            ):
                found.append(_Partly(start, stop, segment.live))
            else:
                looks -= 1
                try:
                    found.append(_look(segment, start, stop))
                except Cold as cold:
                    needs.add(cold)
    needs.check()
    return found


def _losses(topic: Topic, low: int, high: int) -> Iterator[Run]:
    """Yield the lost runs of the window, and the stretches between them with an empty reason."""
    runs = topic.losses.runs
    at = bisect_left(runs, low, key=lambda run: run[1])
    while at < len(runs) and runs[at][0] <= high:
        first, last, reason = runs[at]
        if low < first:
            yield low, first - 1, ""
        yield max(first, low), min(last, high), reason
        low = last + 1
        at += 1
    if low <= high:
        yield low, high, ""


def _deleted(trimmed: int, first: int, last: int) -> list[Run]:
    """Return the range as deleted. Up to `trimmed`, an archive deleted the records after it had stored them."""
    if first > last:
        return []
    if last <= trimmed or first > trimmed:
        return [(first, last, ARCHIVED if last <= trimmed else DELETED)]
    return [(first, trimmed, ARCHIVED), (trimmed + 1, last, DELETED)]


def _pieces(topic: Topic, first: int, last: int) -> Iterator[tuple[Segment | None, int, int]]:
    """Yield the parts of [first, last] by segment; None where a segment was released because all was deleted."""
    for segment, start, stop in topic.spans(first, last + 1):
        if first < segment.first + start:
            yield None, first, segment.first + start - 1
        yield segment, segment.first + start, segment.first + stop - 1
        first = segment.first + stop
    if first <= last:
        yield None, first, last


def _look(segment: Segment, start: int, stop: int) -> Part:
    marks = segment.marks
    if marks is None:
        return start, stop, LIVE
    dead = np.frombuffer(marks, np.uint8)[start - segment.first : stop - segment.first + 1] != 0
    return _Marked(start, dead, np.flatnonzero(dead[1:] != dead[:-1]) + 1)


def _exact(trimmed: int, part: Part) -> Iterator[Run]:
    """Yield the runs of a part whose runs are known."""
    assert not isinstance(part, _Partly)
    if isinstance(part, tuple):
        yield part
        return
    for begin, end in pairwise([0, *part.edges.tolist(), len(part.dead)]):
        first, last = part.first + begin, part.first + end - 1
        if part.dead[begin]:
            yield from _deleted(trimmed, first, last)
        else:
            yield first, last, LIVE


def _joined(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield the runs, with neighbours of the same state as one."""
    for state, neighbours in groupby(runs, key=itemgetter(2)):
        same = list(neighbours)
        yield same[0][0], same[-1][1], state


def _sums(seen: _Seen) -> Steps[dict[str, npt.NDArray[np.float64]]]:
    """Return how many seqs of each cell have each state."""
    low, size = seen.low, seen.size
    count = (seen.high - low) // size + 1
    sums: dict[str, npt.NDArray[np.float64]] = {}

    def add(first: int, last: int, state: str, share: float) -> None:
        cells = sums.setdefault(state, np.zeros(count))
        start, stop = (first - low) // size, (last - low) // size
        if start == stop:
            cells[start] += (last - first + 1) * share
            return
        cells[start] += (low + (start + 1) * size - first) * share
        cells[start + 1 : stop] += size * share
        cells[stop] += (last - low - stop * size + 1) * share

    def add_marked(first: int, dead: npt.NDArray[np.bool_], state: str) -> None:
        if not len(dead):
            return
        start, stop = (first - low) // size, (first + len(dead) - 1 - low) // size + 1
        edges = np.maximum(np.arange(start, stop) * size + low - first, 0)
        gone = np.add.reduceat(dead, edges, dtype=np.int64)
        sums.setdefault(state, np.zeros(count))[start:stop] += gone
        sums.setdefault(LIVE, np.zeros(count))[start:stop] += np.diff(np.append(edges, len(dead))) - gone

    for number, part in enumerate(seen.parts, 1):
        if isinstance(part, _Partly):
            share = part.live / (part.last - part.first + 1)
            add(part.first, part.last, LIVE, share)
            add(part.first, part.last, DELETED, 1 - share)
        elif isinstance(part, _Marked):
            at = min(max(seen.trimmed - part.first + 1, 0), len(part.dead))
            add_marked(part.first, part.dead[:at], ARCHIVED)
            add_marked(part.first + at, part.dead[at:], DELETED)
        else:
            add(*part, 1.0)
        if isinstance(part, _Marked) or not number % RANGES_PER_STEP:
            yield None
    return sums


def _cells(seen: _Seen, sums: dict[str, npt.NDArray[np.float64]]) -> Iterator[TimelineRange]:
    """Yield the window in cells. Neighbouring cells with one and the same state form one range."""
    low, size = seen.low, seen.size
    states = sorted(sums)
    table = np.stack([sums[state] for state in states])
    count = table.shape[1]
    single = np.count_nonzero(table > 0.5, axis=0) == 1
    main = table.argmax(axis=0)
    groups = np.flatnonzero(np.diff(np.where(single, main, -1 - np.arange(count)))) + 1
    kept = [sums[state] for state in (DELETED, ARCHIVED) if state in sums]
    removed = np.rint(sum(kept, np.zeros(count))).astype(np.int64).tolist()
    alive = np.rint(sums.get(LIVE, np.zeros(count))).astype(np.int64).tolist()
    is_single, states_of = single.tolist(), main.tolist()  # lists: numpy takes a microsecond for each item
    for begin, end in pairwise([0, *groups.tolist(), count]):
        first, last = low + begin * size, min(low + end * size - 1, seen.high)
        if is_single[begin]:
            yield TimelineRange(first, last, states[states_of[begin]])
        else:
            live = alive[begin]
            deleted = min(removed[begin], last - first + 1 - live)
            yield TimelineRange(first, last, MERGED, live, deleted, last - first + 1 - live - deleted)


# --- the head of a topic at given times, and the bytes that were written between them


def at_times(topic: Topic, from_ts: int, to_ts: int, points: int) -> list[list[float]]:
    """Return time, head and bytes for each of `points` + 1 times. Bytes count from the first row on.

    They come from the commit times in the log, so they need no memory and are there after a restart. Nothing is read
    from the disk: records of a segment whose columns are not in memory count as evenly spread over its time.
    Looks at no segment that ends before `from_ts`, but for the last one of these. Bytes of lost records do not count.
    """
    times = np.linspace(from_ts, to_ts, points + 1)
    knots: list[tuple[int, int, int]] = []
    segments: list[Segment] = []
    for segment in (one for one in reversed(topic.segments) if one.count):
        segments.append(segment)
        if segment.max_ts < from_ts:
            break
    else:
        oldest_ts = segments[-1].min_ts if segments else to_ts
        knots += ((ts, seq, 0) for ts, seq in topic.losses.times if ts < oldest_ts)
    exact: list[tuple[Segment, int]] = []
    size = 0
    for segment in reversed(segments):
        if segment.in_memory and segment.max_ts >= from_ts and segment.min_ts <= to_ts:
            exact.append((segment, size))
        knots.append((segment.min_ts, segment.first - 1, size))
        size += segment.columns.offsets[segment.count] if segment.in_memory else segment.live_bytes
        knots.append((segment.max_ts, segment.end - 1, size))
    if not knots:
        return [[int(ts), topic.head, 0] for ts in times]
    at, heads, sizes = (np.array(column, np.float64) for column in zip(*knots, strict=True))
    found = np.stack([times, np.interp(times, at, heads), np.interp(times, at, sizes)], axis=1)
    for segment, before in exact:
        inside = np.flatnonzero((times >= segment.min_ts) & (times <= segment.max_ts))
        counts = np.searchsorted(np.frombuffer(segment.columns.ts, np.uint64), times[inside].astype(np.uint64), "right")
        found[inside, 1] = segment.first - 1 + counts
        found[inside, 2] = before + np.frombuffer(segment.columns.offsets, np.uint32)[counts]
    found[:, 2] -= found[0, 2]
    rows: list[list[float]] = np.rint(found).astype(np.int64).tolist()
    return rows
