"""The thread that syncs the log of a simulated server, quick or slow."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulated.harness import DeferredWorker


class Syncs(DeferredWorker):
    """The thread that syncs the log. It syncs at once, or is slow: requests then arrive while tickets are pending."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False

    def submit(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        super().submit(work, done)
        if not self.slow:
            self.run_all()

    def release(self) -> None:
        """Finish the pending syncs, and hold no more."""
        self.slow = False
        self.run_all()
