"""The involuntary losses of a topic: runs of seqs with a reason, so that a tombstone can be exact."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any

Run = tuple[int, int, str]  # first seq, last seq, reason

MAX_RUNS = 4096
MAX_TIMES = 1024
NOTHING: Any = ()  # in place of lists that most topics do not need: an append to it fails

_first_of = itemgetter(0)


class LossSums:
    """Sums over all topics: the seqs that were lost since the start, by reason, and those in the runs of all topics."""

    __slots__ = ("by_reason", "total")

    def __init__(self) -> None:
        self.by_reason: dict[str, int] = {}
        self.total = 0


class Losses:
    """Runs in seq order, disjoint. `compact` bounds them.

    `total` is the number of seqs in all runs; a run that `compact` joined has the seqs between them, too. `sums` is
    shared by all topics.
    `times` has commit times and seqs of records that were lost at the front, ascending: of the last ones all, of others
    some. A restart begins a new list.
    """

    __slots__ = ("runs", "sums", "times", "total")

    def __init__(self, runs: list[Run] | None = None, *, sums: LossSums | None = None) -> None:
        self.runs: list[Run] = runs or NOTHING
        self.sums = sums or LossSums()
        self.total = 0
        self._count(sum(high - low + 1 for low, high, _ in self.runs))
        self.times: list[tuple[int, int]] = NOTHING

    def add(self, low: int, high: int, reason: str) -> None:
        """Add the lost range [low, high], of which no part is in a run. Join it with neighbours of the same reason.

        Else a topic that loses its records one by one in front of a gap would keep a run for each of them.
        """
        runs, size = self.runs or [], high - low + 1
        self.runs = runs
        self._count(size)
        self.sums.by_reason[reason] = self.sums.by_reason.get(reason, 0) + size
        start = end = bisect_left(runs, low, key=_first_of)
        if start and runs[start - 1][1] + 1 == low and runs[start - 1][2] == reason:
            start -= 1
            low = runs[start][0]
        if end < len(runs) and runs[end][0] == high + 1 and runs[end][2] == reason:
            high = runs[end][1]
            end += 1
        runs[start:end] = [(low, high, reason)]

    def end(self) -> None:
        """Take the runs out of the sums: their topic is dropped."""
        self._count(-self.total)

    def _count(self, seqs: int) -> None:
        self.total += seqs
        self.sums.total += seqs

    def add_rest(self, low: int, high: int, reason: str) -> None:
        """Add the parts of [low, high] that are not in a run yet."""
        for first, last, known in list(self.stretches(low, high)):
            if not known:
                self.add(first, last, reason)

    def compact(self, floor: int) -> None:
        """Keep at most `MAX_RUNS` runs below `floor`: join the oldest two, and what lies between them.

        Runs above `floor` are gaps between live records and stay as they are.
        """
        runs = self.runs
        while len(runs) > MAX_RUNS and runs[1][1] < floor:
            (first, end, why), (start, last, other) = runs[0], runs[1]
            self._count(start - end - 1)
            runs[:2] = [(first, last, why if why == other else "mixed")]

    def add_times(self, first: int, ts: Sequence[int]) -> None:
        """Remember when records from seq `first` on, lost at the front, were committed: of a long run some times."""
        times, last = self.times or [], len(ts) - 1
        self.times = times
        step = last // MAX_TIMES + 1
        for at in range(last % step, last + 1, step):
            if times and times[-1][0] == ts[at]:
                times[-1] = ts[at], first + at
            else:
                times.append((ts[at], first + at))
        while len(times) > MAX_TIMES:
            del times[: MAX_TIMES // 2 : 2]

    def last_before(self, ts: int) -> int:
        """Return the last seq that is known to be lost at the front and older than `ts`; 0 if there is none."""
        at = bisect_left(self.times, ts, key=_first_of)
        return self.times[at - 1][1] if at else 0

    def by_reason(self) -> dict[str, int]:
        """Return how many seqs of all runs were lost for each reason."""
        sums: dict[str, int] = {}
        for first, last, reason in self.runs:
            sums[reason] = sums.get(reason, 0) + last - first + 1
        return sums

    def stretches(self, low: int, high: int) -> Iterator[Run]:
        """Yield the parts of [low, high] that are lost, and those between them with an empty reason, in order."""
        for first, last, reason in self.runs[bisect_left(self.runs, low, key=lambda run: run[1]) :]:
            if first > high:
                break
            if low < first:
                yield low, first - 1, ""
            yield max(first, low), min(last, high), reason
            low = last + 1
        if low <= high:
            yield low, high, ""

    def lost_in(self, low: int, high: int) -> list[Run]:
        """Return the parts of [low, high] that are lost."""
        return [run for run in self.stretches(low, high) if run[2]]

    def within(self, low: int, high: int) -> tuple[int, str]:
        """Return how many seqs of [low, high] were lost, and the reason, or "mixed"."""
        lost = self.lost_in(low, high)
        reasons = {reason for _, _, reason in lost} or {"cap"}
        return sum(last - first + 1 for first, last, _ in lost), "mixed" if len(reasons) > 1 else reasons.pop()

    def covering(self, seq: int) -> Run | None:
        """Return the run that has `seq`, if there is one."""
        at = bisect_left(self.runs, seq, key=lambda run: run[1])
        if at < len(self.runs) and self.runs[at][0] <= seq:
            return self.runs[at]
        return None

    def next_from(self, seq: int) -> int | None:
        """Return the first seq of the first run that begins at or after `seq`."""
        at = bisect_left(self.runs, seq, key=_first_of)
        return self.runs[at][0] if at < len(self.runs) else None


NO_LOSSES = Losses()  # of all topics without any
NO_LOSSES.sums.by_reason = MappingProxyType({})  # type: ignore[assignment]  # to add one fails
