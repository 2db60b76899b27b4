"""A server on a manual loop and a simulated clock, for counting the work of one turn."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from tests.simulated.clock import SimClock
from topics.clock import Clock
from topics.config import Settings
from topics.engine.state.topics import State
from topics.server.app import TopicsApp


class TickingClock(SimClock):
    """A clock that advances by one millisecond per reading."""

    def monotonic_ns(self) -> int:
        self.advance(ms=1)
        return super().monotonic_ns()


class ManualTimer:
    """A scheduled callback, which runs when the test says so, unless it is cancelled."""

    def __init__(self, delay_s: float, call: Callable[..., object]) -> None:
        self.delay_s = delay_s
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualLoop:
    """Runs scheduled callbacks when the test calls `turn`, and timers when it calls `fire`."""

    def __init__(self) -> None:
        self.soon: list[ManualTimer] = []
        self.timers: list[ManualTimer] = []

    def call_soon(self, call: Callable[..., object], *arguments: Any) -> ManualTimer:
        handle = ManualTimer(0.0, lambda: call(*arguments))
        self.soon.append(handle)
        return handle

    def call_later(self, delay_s: float, call: Callable[..., object]) -> ManualTimer:
        timer = ManualTimer(delay_s, call)
        self.timers.append(timer)
        return timer

    def fire(self, delay_s: float) -> int:
        """Run the timers with this delay that are not cancelled. Return how many these were."""
        due = [timer for timer in self.timers if timer.delay_s == delay_s and not timer.cancelled]
        self.timers = [timer for timer in self.timers if timer.delay_s != delay_s]
        for timer in due:
            timer.call()
        return len(due)

    def run_in_executor(self, pool: Executor, work: Callable[[], object]) -> "Future[object]":
        """Run the work now, on this thread, and return a resolved future."""
        done: Future[object] = Future()
        try:
            done.set_result(work())
        except BaseException as failure:
            done.set_exception(failure)
        return done

    def time(self) -> float:
        return 0.0

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for handle in soon:
            if not handle.cancelled:
                handle.call()


def manual_app(clock: Clock | None = None, state: State | None = None, **settings: Any) -> tuple[TopicsApp, ManualLoop]:
    loop = ManualLoop()
    app = TopicsApp(Settings(**settings), clock or SimClock(), loop)  # type: ignore[arg-type]
    app.serve(state or State())
    return app, loop


def create(app: TopicsApp, loop: ManualLoop, names: list[str]) -> None:
    """Create these topics."""
    from topics.model.topic import ConfigPatch

    for name in names:
        app.services.engine.put_topic(name, ConfigPatch())
    app.services.engine.flush()
    loop.turn()
