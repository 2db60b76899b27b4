"""Work in steps: a verb that may take long is a generator, so that its caller can serve other requests in between.

A step takes about a millisecond. The topic may change between two steps; each such verb says how it deals with that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from topics.storage.segments.cold import Cold, Hold, Needs

T = TypeVar("T")
TOGETHER = 64  # pieces of work that one trip to the disk serves

# Yields None after a step, or `Cold` if the next step needs the disk. Returns the result of the verb.
Steps = Generator[Cold | None, None, T]


def once_loaded(work: Callable[[], T]) -> Steps[T]:
    """Run `work` as one step, and again with everything in memory that it asked for whenever it raises `Cold`."""
    # Bound: what was fetched is held until the next step has ended, so every round gets further than the one before.
    while True:
        try:
            return work()
        except Cold as cold:
            missing = cold
        yield missing


def each_loaded(works: Iterable[Callable[[], object]]) -> Steps[None]:
    """Run each piece of work as one step. Those that raise `Cold` are run again together, after one trip to the disk.

    The second run should be cheap: one step runs up to `TOGETHER` pieces of work again.
    """
    cold: list[Callable[[], object]] = []
    needs = Needs()
    for work in works:
        if not needs.run(work):
            cold.append(work)
        if needs.full or len(cold) >= TOGETHER:
            yield from _run_cold(cold, needs)
            cold, needs = [], Needs()
        yield None
    yield from _run_cold(cold, needs)


def _run_cold(works: list[Callable[[], object]], needs: Needs) -> Steps[None]:
    # Bound: see `once_loaded`.
    while works:
        yield Cold(needs.found, more=needs.more)
        needs = Needs()
        works = [work for work in works if not needs.run(work)]


def run_all(steps: Steps[T]) -> T:
    """Run all steps at once, and wait for the disk: for callers outside of the event loop."""
    hold = Hold()
    try:
        # Bound: the number of steps.
        while True:
            cold = next(steps)
            if cold is not None:
                hold.load(cold)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        hold.release()
