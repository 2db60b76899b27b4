"""Unique jobs: the keys that a second job must not have, while the first one is pending or for a time."""

from __future__ import annotations

from collections.abc import Collection
from heapq import heappop, heappush

TIMED_MAX = 1_000_000  # keys that are kept for a time; the one that would be forgotten next makes room

SavedUnique = tuple[str, int, int]  # the key, the seq of its job, and the time at which it ends or 0


class UniqueJobs:
    __slots__ = ("_by_key", "ends", "pending")

    def __init__(self) -> None:
        self._by_key: dict[str, tuple[int, int]] = {}  # the seq, and the time at which the key ends or 0
        self.pending: dict[int, str] = {}  # by seq, the keys of jobs that end with them
        self.ends: list[tuple[int, str]] = []  # a heap of the others

    def add(self, key: str, seq: int, ends_ms: int) -> None:
        self._by_key[key] = seq, ends_ms
        if not ends_ms:
            self.pending[seq] = key
            return
        heappush(self.ends, (ends_ms, key))
        if len(self.ends) > TIMED_MAX:
            self.expire(self.ends[0][0] + 1)

    def find(self, key: str, now_ms: int) -> tuple[int, int]:
        """Return the seq of the job with this key, and the time at which the key ends or 0; (0, 0) without a job."""
        seq, ends_ms = self._by_key.get(key, (0, 0))
        return (0, 0) if 0 < ends_ms < now_ms else (seq, ends_ms)

    def left(self, seqs: Collection[int]) -> None:
        for seq in seqs:
            key = self.pending.pop(seq, None)
            if key is not None and self._by_key.get(key) == (seq, 0):
                del self._by_key[key]

    def expire(self, now_ms: int) -> None:
        while self.ends and self.ends[0][0] < now_ms:
            ends_ms, key = heappop(self.ends)
            if self._by_key.get(key, (0, 0))[1] == ends_ms:
                del self._by_key[key]

    def save(self) -> list[SavedUnique]:
        return [(key, seq, ends_ms) for key, (seq, ends_ms) in self._by_key.items()]
