"""Work in steps: a verb that may take long is a generator, so that its caller can give others the thread in between.

A step takes about a millisecond at most. What the verb looks at may change between two steps; each such verb says how
it deals with that.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from topics.storage.segments.cold import Cold, Hold

T = TypeVar("T")

# Yields None after a step, or `Cold` where the disk has to be asked before the next one. Returns the verb's result.
Steps = Generator[Cold | None, None, T]


def run_all(steps: Steps[T]) -> T:
    """Run all steps in one go, waiting for the disk: for callers that hold up nobody."""
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
