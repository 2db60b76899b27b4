"""Reads of bytes that are not in memory: the exception `Cold`, and the `Hold` with which a caller repeats the read.

A read that would wait for a disk raises `Cold`, with everything that it needs (`Need`). A `Hold` fetches all of it and
keeps it in memory, and the caller runs the read again while the hold exists: see `waiting`.

Bounds: one `Cold` asks for `LOAD_BYTES` and one need more, and work that needs more than that in total must get on with
part of it. A hold that has grown past `HOLD_BYTES` gives up what it fetched first. Work that asks again for what was
given up does need everything at once: its hold grows as far as it must, because the read has to be answered.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeVar

LOAD_BYTES = 8 << 20
LOAD_PIECES = 1024
HOLD_BYTES = 32 << 20

T = TypeVar("T")


class Need(NamedTuple):
    """One thing that is not in memory.

    `load` fetches it, and may block or raise OSError. Readers find what it returns for as long as that is referenced;
    it returns None if there is nothing to keep. `trim` shrinks the caches that grew by the load.
    """

    key: Hashable
    size_bytes: int
    load: Callable[[], object]
    trim: Callable[[], None]


class Cold(Exception):
    """The answer needs bytes that are not in memory. `more` is True if it needs others than `needs` as well."""

    def __init__(self, needs: Iterable[Need], *, more: bool = False) -> None:
        super().__init__("needs the disk")
        self.needs = list(needs)
        self.more = more


class Needs:
    """Collects what several reads need, so that one trip to a thread fetches all of it."""

    __slots__ = ("found", "more", "size_bytes")

    def __init__(self) -> None:
        self.found: list[Need] = []
        self.size_bytes = 0
        self.more = False

    @property
    def full(self) -> bool:
        """Whether one `Cold` should not ask for more than this."""
        return self.size_bytes >= LOAD_BYTES or len(self.found) >= LOAD_PIECES

    def add(self, cold: Cold) -> None:
        """Take up the needs of `cold`, or only note that there are more if this is full."""
        if self.full:
            self.more = True
            return
        self.found += cold.needs
        self.size_bytes += sum(need.size_bytes for need in cold.needs)
        self.more = self.more or cold.more

    def run(self, work: Callable[[], object]) -> bool:
        """Run `work`. If it raises `Cold`, take up what it needs, and return False."""
        try:
            work()
        except Cold as cold:
            self.add(cold)
            return False
        return True

    def check(self) -> None:
        """Raise `Cold` if anything is needed."""
        if self.found:
            raise Cold(self.found, more=self.more)


class Hold:
    """The results of the fetches for one piece of work. They stay in memory until `release`."""

    __slots__ = ("_bounded", "_given_up", "_kept", "_trims", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self._bounded = True
        self._kept: dict[Hashable, tuple[object, int]] = {}
        self._given_up: set[Hashable] = set()
        self._trims: set[Callable[[], None]] = set()

    def load(self, cold: Cold) -> None:
        """Fetch everything that `cold` asks for. Blocks. Raises OSError if the disk does not give it."""
        asked = {need.key for need in cold.needs}
        self._bounded = self._bounded and self._given_up.isdisjoint(asked)
        before = list(self._kept)
        for need in cold.needs:
            self._trims.add(need.trim)
            kept = need.load()
            if kept is not None:
                self.size_bytes += need.size_bytes - self._kept.pop(need.key, (None, 0))[1]
                self._kept[need.key] = kept, need.size_bytes
        for key in before if self._bounded else ():
            if self.size_bytes <= HOLD_BYTES:
                break
            if key not in asked:
                self.size_bytes -= self._kept.pop(key)[1]
                self._given_up.add(key)

    def release(self) -> None:
        """Drop all results. Call this on the thread that reads: caches shrink here, never in the middle of a read."""
        self._kept.clear()
        self.size_bytes = 0
        for trim in self._trims:
            trim()
        self._trims.clear()


def waiting(work: Callable[[], T]) -> T:
    """Run `work` to its end, and wait for the disk on this thread whenever it asks for that."""
    try:
        return work()
    except Cold as first:
        cold = first
    hold = Hold()
    try:
        while True:
            hold.load(cold)
            try:
                return work()
            except Cold as again:
                cold = again
    finally:
        hold.release()
