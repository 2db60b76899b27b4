"""Garbage collection without long pauses.

A full collection of the interpreter looks at every object that it tracks, and nothing else runs meanwhile: with 99,000
topics, for 200 to 500 ms. Topics and their parts live long and are freed by reference counting, so looking at them
again finds nothing. `Garbage` therefore freezes what has survived a full collection that took too long: the interpreter
never looks at those objects again, and the next full collection only has the objects that came after.

A frozen object is still freed when its last reference goes. Only a cycle of frozen objects would stay for ever, so
objects with a shorter life, connections above all, break their cycles when they end (`tests/security/test_leaks.py`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable

FULL = 2  # the generation that a full collection collects
MAX_PAUSE_NS = 2_000_000
# With these, a full collection comes after some 10,000 new objects, which take about 2 ms; with those of the
# interpreter (700, 10, 10), after 85,000.
THRESHOLDS = (700, 4, 2)


class Garbage:
    """Collects nothing until `begin`, then watches full collections."""

    def __init__(
        self,
        tick_ns: Callable[[], int],
        *,
        freeze: Callable[[], None] = gc.freeze,
        note: Callable[[int], None] | None = None,
    ) -> None:
        """`note` is called with the length of every collection in nanoseconds."""
        self._tick_ns = tick_ns
        self._note = note
        self._freeze = freeze
        self._began_ns = 0
        self._thresholds = gc.get_threshold()
        gc.disable()  # what a start makes is there to stay

    def begin(self) -> None:
        """Freeze everything that there is by now, then collect and watch."""
        self._freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self.watch)
        gc.enable()

    def end(self) -> None:
        """Have the interpreter collect as it did before. For tests: a process that ends needs no collection."""
        gc.set_threshold(*self._thresholds)
        gc.callbacks.remove(self.watch)
        gc.unfreeze()

    def watch(self, phase: str, info: dict[str, int]) -> None:
        """Freeze the survivors of a full collection that took too long. The interpreter calls this."""
        if phase == "start":
            self._began_ns = self._tick_ns()
            return
        took_ns = self._tick_ns() - self._began_ns
        if self._note is not None:
            self._note(took_ns)
        if info["generation"] == FULL and took_ns > MAX_PAUSE_NS:
            self._freeze()
