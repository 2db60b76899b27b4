"""The interface of the threads that run blocking calls for the owner of the state, and pauses in long work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Worker(Protocol):
    """Runs blocking calls on another thread in order, and calls back on the owner's thread."""

    def submit(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None: ...

    def rest(self) -> None:
        """Let the owner's thread run, if work has run for long. Long work calls this often."""


class InlineWorker:
    """Runs each call at once. For offline commands and tests."""

    def submit(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        try:
            work()
        except Exception as error:
            done(error)
        else:
            done(None)

    def rest(self) -> None:
        pass


INLINE = InlineWorker()


def rested(worker: Worker, items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and let the worker rest after each."""
    for item in items:
        yield item
        worker.rest()
