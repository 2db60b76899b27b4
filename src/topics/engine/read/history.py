"""The history of a topic: its head at given times, and the bytes that were written between them.

It comes from the commit times in the log, so it needs no memory and is there after a restart. It reads no disk: records
of a segment whose columns are not in memory count as evenly spread over the time of the segment.
"""

from __future__ import annotations

import numpy as np

from topics.engine.state.topic import Topic
from topics.storage.segments.segment import Segment

Row = list[float]  # time, head, bytes


def at_times(topic: Topic, from_ts: int, to_ts: int, points: int) -> list[Row]:
    """Return a row for each of `points` + 1 times from `from_ts` to `to_ts`. Bytes count from the first row on.

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
    rows: list[Row] = np.rint(found).astype(np.int64).tolist()
    return rows
