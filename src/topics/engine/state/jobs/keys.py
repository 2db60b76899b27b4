"""Jobs with keys: which of them may be delivered.

A job with a key is open or blocked. Of each key, at most `max_in_flight_per_key` jobs are open: the first of the log.
An open job is in one of the places of `Leases` and keeps its turn until it leaves the queue, whatever becomes of its
leases and delays; then the next one opens. So a claim does not look at keys, and takes no time for blocked jobs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping
from sys import byteorder

from msgspec import Struct, field

from topics.model.topic import U64_MAX

Opened = tuple[int, int]  # the seq of a job that opens later than it arrives, and its terms as in `Leases.later`
SavedLine = tuple[str, bytes, bytes]  # the key, the seqs that are open, and `KeyLine.waiting`


class KeyLine(Struct, eq=False):
    """The jobs of one key: how many are open, and those that wait for these."""

    key: str
    open: int = 0
    # Pairs of a seq and its terms as in `Leases.later`; some jobs may have left.
    waiting: array[int] = field(default_factory=lambda: array("Q"))
    at: int = 0  # where the next pair is


class Keys:
    __slots__ = ("_lines", "_most", "blocked", "open")

    def __init__(self, per_key: int) -> None:
        self._most = per_key or U64_MAX
        self._lines: dict[str, KeyLine] = {}  # those with open jobs
        self.open: dict[int, KeyLine] = {}  # by seq
        self.blocked: set[int] = set()

    def opens(self, seq: int, terms: int, key: str) -> bool:
        """Return whether a job that arrives is open, or else block it."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = KeyLine(key)
        if line.open < self._most:
            line.open += 1
            self.open[seq] = line
            return True
        self.blocked.add(seq)
        line.waiting.extend((seq, terms))
        return False

    def left(self, seqs: Collection[int]) -> list[Opened]:
        """Forget jobs, and open the next ones of their keys. Return these."""
        self.blocked.difference_update(seqs)
        lines = [line for seq in seqs if (line := self.open.pop(seq, None)) is not None]
        for line in lines:
            line.open -= 1
        return [one for line in lines for one in self._open_next(line)]

    def _open_next(self, line: KeyLine) -> list[Opened]:
        waiting = line.waiting
        opened: list[Opened] = []
        while line.open < self._most and line.at < len(waiting):
            seq, terms = waiting[line.at], waiting[line.at + 1]
            line.at += 2
            if seq in self.blocked:
                self.blocked.remove(seq)
                line.open += 1
                self.open[seq] = line
                opened.append((seq, terms))
        if line.at > 1024 and line.at * 2 > len(waiting):
            del waiting[: line.at]
            line.at = 0
        if not line.open:
            self._lines.pop(line.key, None)
        return opened

    def open_leased(self, seqs: list[int]) -> None:
        """Open blocked jobs that the log leases: one before them had expired, and no entry says so."""
        taken = self.blocked.intersection(seqs)
        for line in self._lines.values() if taken else ():
            mine = taken.intersection(line.waiting[line.at :: 2])
            line.open += len(mine)
            self.open.update(dict.fromkeys(mine, line))
        self.blocked -= taken

    def limit(self, per_key: int, undelivered: Callable[[], Mapping[int, int]]) -> list[Opened]:
        """Change how many jobs of a key may be open. Jobs that were delivered stay open; `undelivered` has the terms
        of the others. Return the jobs that open.
        """
        before, self._most = self._most, per_key or U64_MAX
        lines = list(self._lines.values()) if self._most > before else []
        opened = [one for line in lines for one in self._open_next(line)]
        fresh = undelivered() if self._most < before else {}
        returned: dict[KeyLine, array[int]] = {}
        for seq in sorted(self.open.keys() & fresh.keys(), reverse=True):
            line = self.open[seq]
            if line.open > self._most:
                line.open -= 1
                del self.open[seq]
                self.blocked.add(seq)
                returned.setdefault(line, array("Q")).extend((fresh[seq], seq))
        for line, pairs in returned.items():
            pairs.reverse()
            line.waiting, line.at = pairs + line.waiting[line.at :], 0
        return opened

    def save(self) -> list[SavedLine]:
        saved: list[SavedLine] = []
        opened: dict[KeyLine, array[int]] = {}
        for seq, line in self.open.items():
            if line.open == 1 and line.at == len(line.waiting):  # most of many keys have one job
                saved.append((line.key, seq.to_bytes(8, byteorder), b""))
            else:
                opened.setdefault(line, array("Q")).append(seq)
        for line, seqs in opened.items():
            pairs = zip(line.waiting[line.at :: 2], line.waiting[line.at + 1 :: 2], strict=True)
            waiting = array("Q", [part for pair in pairs if pair[0] in self.blocked for part in pair])
            saved.append((line.key, seqs.tobytes(), waiting.tobytes()))
        return saved

    def load(self, saved: list[SavedLine]) -> None:
        for key, opened, waiting in saved:
            line = self._lines[key] = KeyLine(key)
            if waiting:
                line.waiting.frombytes(waiting)
                self.blocked.update(line.waiting[::2])
            seqs = array("Q", opened)
            line.open = len(seqs)
            self.open.update(dict.fromkeys(seqs, line))
