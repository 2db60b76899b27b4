"""The timeline of a topic: what has become of each seq. It draws what `Topic` states: live, deleted, or lost.

A window of seqs is described by at most a given number of ranges. If the ranges are few, they are exact. Otherwise the
window is cut into cells of `resolution` seqs, and cells with more than one state are reported as `merged`, with the
numbers of seqs that are live, deleted and lost. A smaller window has smaller cells.

Work is bounded: at most `MAX_LOOKS` segments are searched for deleted records. The records that were deleted in other
segments are known by number, and are spread evenly over their segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby, pairwise
from operator import itemgetter

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from topics.engine import past_damage
from topics.engine.state.topic import Topic
from topics.engine.steps import Steps, once_loaded
from topics.model.inspection import TimelineRange
from topics.storage.segments.cold import Cold, Needs
from topics.storage.segments.segment import Segment

STATES = ["live", "deleted", "archived"]  # the states behind these are reasons of losses
LIVE, DELETED, ARCHIVED = range(3)
MERGED = "merged"
MAX_LOOKS = 16
RANGES_PER_STEP = 250


class Timeline(Struct):
    """The ranges of a window, in order. `resolution` is 1 if they are exact."""

    from_seq: int
    to_seq: int
    resolution: int
    ranges: list[TimelineRange]


class _Runs(Struct, frozen=True):
    """Neighbouring runs of seqs: the first seq and the state of each. Each ends where the next one begins.

    Of a live run with a share below 1, so many seqs are live and the others deleted, but it is unknown which.
    """

    starts: npt.NDArray[np.int64]
    states: npt.NDArray[np.int64]
    shares: npt.NDArray[np.float64]


class _Seen(Struct, frozen=True):
    """What one look at a topic found in the window: nothing in it changes with the topic. `size` is that of a cell."""

    low: int
    high: int
    size: int
    states: list[str]
    runs: list[_Runs]


def build(topic: Topic, from_seq: int, to_seq: int, most: int) -> Steps[Timeline]:
    """Return the timeline of the seqs [from_seq, to_seq], with about `most` ranges.

    The window is cut to the seqs that were given out. One step looks at the topic, so the state is consistent; further
    ones make ranges of what it saw. Raise `Cold` through the step if marks must be loaded.
    """

    def look() -> _Seen:
        low, high = max(from_seq, 1), min(to_seq, topic.head)
        return _look_at(topic, low, high, max(-(-(high - low + 1) // most), 1))

    seen = yield from once_loaded(lambda: past_damage.read(topic, look))
    yield None
    exact = sum(len(runs.starts) for runs in seen.runs)
    if seen.size == 1 or (exact <= most and all((runs.shares == 1).all() for runs in seen.runs)):
        return Timeline(seen.low, seen.high, 1, (yield from _listed(_exact(seen))))
    ranges = yield from _listed(_cells(seen, (yield from _sums(seen))))
    return Timeline(seen.low, seen.high, seen.size, ranges)


def _listed(ranges: Iterable[TimelineRange]) -> Steps[list[TimelineRange]]:
    found = []
    for number, one in enumerate(ranges, 1):
        found.append(one)
        if not number % RANGES_PER_STEP:
            yield None
    return found


def _look_at(topic: Topic, low: int, high: int, coarse: int) -> _Seen:
    """Return what is known of the window. Raise `Cold` for marks that are not in memory."""
    needs, looks, states = Needs(), MAX_LOOKS, [*STATES]
    found: list[_Runs] = []
    rows: list[tuple[int, int, float]] = []  # runs behind those of `found`

    def close() -> None:
        if rows:
            starts, codes, shares = zip(*rows, strict=True)
            found.append(_Runs(np.array(starts, np.int64), np.array(codes, np.int64), np.array(shares, np.float64)))
            rows.clear()

    for first, last, reason in topic.losses.stretches(low, high):
        if reason:
            states += [] if reason in states else [reason]
            rows.append((first, states.index(reason), 1))
            continue
        for segment, start, stop in _pieces(topic, first, last):
            if segment is None or not segment.live:
                rows += ((at, ARCHIVED if at <= topic.trimmed else DELETED, 1) for at in _cuts(topic, start, stop))
                continue
            whole = segment.end - max(segment.first, topic.earliest)
            # Whether the part has all records of the segment, so that it is known how many of them are live.
            is_known = start <= max(segment.first, topic.earliest) and stop == segment.end - 1
            if segment.live == whole:
                rows.append((start, LIVE, 1))
            elif coarse > 1 and (looks <= 0 or stop - start < coarse) and is_known:
                rows.append((start, LIVE, segment.live / whole))
            else:
                looks -= 1
                close()
                try:
                    found.append(_look(topic, segment, start, stop))
                except Cold as cold:
                    needs.add(cold)
    close()
    needs.check()
    return _Seen(low, high, coarse, states, found)


def _pieces(topic: Topic, first: int, last: int) -> Iterator[tuple[Segment | None, int, int]]:
    """Yield the parts of [first, last] by segment; None where no segment has live records any more."""
    for segment, start, stop in topic.spans(max(first, topic.earliest), last + 1):
        if first < segment.first + start:
            yield None, first, segment.first + start - 1
        yield segment, segment.first + start, segment.first + stop - 1
        first = segment.first + stop
    if first <= last:
        yield None, first, last


def _cuts(topic: Topic, start: int, stop: int) -> list[int]:
    """Return where a part begins, and where its deleted records begin that no archive had stored before."""
    return [start, topic.trimmed + 1] if start <= topic.trimmed < stop else [start]


def _look(topic: Topic, segment: Segment, start: int, stop: int) -> _Runs:
    marks = segment.marks or bytes(segment.count)
    dead = np.frombuffer(marks, np.uint8)[start - segment.first : stop - segment.first + 1] != 0
    starts = np.union1d(np.flatnonzero(dead[1:] != dead[:-1]) + 1 + start, _cuts(topic, start, stop))
    gone = np.where(starts <= topic.trimmed, ARCHIVED, DELETED)
    return _Runs(starts, np.where(dead[starts - start], gone, LIVE), np.ones(len(starts)))


def _exact(seen: _Seen) -> Iterator[TimelineRange]:
    """Yield the runs, with neighbours of the same state as one."""
    rows = chain.from_iterable(zip(one.starts.tolist(), one.states.tolist(), strict=True) for one in seen.runs)
    joined = (next(same) for _, same in groupby(rows, key=itemgetter(1)))
    for (first, state), (end, _) in pairwise(chain(joined, [(seen.high + 1, LIVE)])):
        yield TimelineRange(first, end - 1, seen.states[state])


def _sums(seen: _Seen) -> Steps[npt.NDArray[np.float64]]:
    """Return how many seqs of each cell have each state: a row for each state."""
    low, size = seen.low, seen.size
    sums = np.zeros((len(seen.states), (seen.high - low) // size + 1))
    for runs, end in zip(seen.runs, [*(one.starts[0] for one in seen.runs[1:]), seen.high + 1], strict=True):
        bounds = np.append(runs.starts, end)
        start, stop = (bounds[0] - low) // size, (end - 1 - low) // size + 1
        edges = low + np.arange(start, stop + 1) * size
        for state in range(len(seen.states)):
            share = np.where(runs.states == state, runs.shares, 1 - runs.shares if state == DELETED else 0)
            upto = np.concatenate(([0], np.cumsum(np.diff(bounds) * share)))
            sums[state, start:stop] += np.diff(np.interp(edges, bounds, upto))
        yield None
    return sums


def _cells(seen: _Seen, sums: npt.NDArray[np.float64]) -> Iterator[TimelineRange]:
    """Yield the window in cells. Neighbouring cells with one and the same state form one range."""
    low, size, count = seen.low, seen.size, sums.shape[1]
    single = np.count_nonzero(sums > 0.5, axis=0) == 1
    main = sums.argmax(axis=0)
    groups = np.flatnonzero(np.diff(np.where(single, main, -1 - np.arange(count)))) + 1
    removed = np.rint(sums[DELETED] + sums[ARCHIVED]).astype(np.int64).tolist()
    alive = np.rint(sums[LIVE]).astype(np.int64).tolist()
    is_single, states_of = single.tolist(), main.tolist()  # lists: numpy takes a microsecond for each item
    for begin, end in pairwise([0, *groups.tolist(), count]):
        first, last = low + begin * size, min(low + end * size - 1, seen.high)
        if is_single[begin]:
            yield TimelineRange(first, last, seen.states[states_of[begin]])
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
