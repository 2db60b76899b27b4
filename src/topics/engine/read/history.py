"""The history of a topic: its head, and the bytes up to it, at given times.

It comes from the commit times in the log, so it needs no memory and is there after a restart. It reads no disk: records
of a segment whose columns are not in memory count as evenly spread over the time of the segment.
"""

from __future__ import annotations

import numpy as np

from topics.engine.state.topic import Topic
from topics.storage.segments.segment import Segment

Row = list[float]  # time, head, bytes


def at_times(topic: Topic, from_ts: int, to_ts: int, points: int) -> list[Row]:
    """Return a row for each of `points` + 1 times from `from_ts` to `to_ts`. Bytes of lost records do not count."""
    times = np.linspace(from_ts, to_ts, points + 1)
    knots: list[tuple[int, int, int]] = [(ts, seq, 0) for ts, seq in topic.losses.times]
    exact: list[tuple[Segment, int]] = []
    size = 0
    for segment in topic.segments:
        if not segment.count:
            continue
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
    rows: list[Row] = np.rint(found).astype(np.int64).tolist()
    return rows
