"""Work that may take long: its steps run a slice at a time, and requests come in between.

All such work together gets `TURN_NS` of a turn of the loop and is done in turns of `SLICE_NS`.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Generic, TypeVar

from topics import logs
from topics.clock import Clock
from topics.engine.steps import Steps
from topics.errors import Code, TopicsError
from topics.server.http.messages import Answer, Deferred, Request, Response, body_bytes
from topics.server.limits.budget import MemoryBudget
from topics.server.loop.answer import error_answer
from topics.server.loop.loads import Loads, unreadable
from topics.storage.segments.cold import Cold

log = logs.Log("app")
T = TypeVar("T")

TURN_NS = 2_000_000
SLICE_NS = 500_000


class Slices:
    """The work under way that one slice was not enough for."""

    def __init__(self, loop: AbstractEventLoop, loads: Loads, clock: Clock, budget: MemoryBudget) -> None:
        self.loop = loop
        self.loads = loads
        self.tick_ns = clock.monotonic_ns
        self._budget = budget
        self._waiting: deque[_Sliced[Any]] = deque()  # for their next slice
        self._scheduled = False

    def answer(self, request: Request, steps: Steps[Answer]) -> Answer:
        """Return the answer that the steps end with: at once if one slice is enough, else later.

        The first slice runs here, and raises what the steps raise.
        """
        deferred = Deferred(on_cancel=steps.close)

        def finish(answer: Answer) -> None:
            if isinstance(answer, Deferred):
                deferred.on_cancel, deferred.on_hurry = answer.cancel, answer.hurry
                answer.then(deferred.resolve)
            else:
                assert isinstance(answer, Response)
                try:
                    self._budget.check_answer(body_bytes(answer.body))
                except TopicsError as error:
                    answer = error_answer(error, request)
                deferred.resolve(answer)

        def fail(error: TopicsError) -> None:
            deferred.resolve(error_answer(error, request))

        sliced = _Sliced(self, steps, finish, fail)
        try:
            cold = sliced.run(self.tick_ns() + SLICE_NS)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        sliced.go_on(cold)
        return deferred

    def run(self, steps: Steps[T], finish: Callable[[T], None], fail: Callable[[TopicsError], None]) -> None:
        """Run the steps, from the next turn on, and call `finish` with what they end with, or `fail`.

        Neither is called once the steps were closed.
        """
        _Sliced(self, steps, finish, fail).go_on(None)

    def wait(self, sliced: _Sliced[Any]) -> None:
        """Give the work a slice in a later turn."""
        self._waiting.append(sliced)
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        ends_ns = self.tick_ns() + TURN_NS
        for _ in range(len(self._waiting)):
            self._waiting.popleft().slice(self.tick_ns() + SLICE_NS)
            if self.tick_ns() > ends_ns:
                break
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._turn)


class _Sliced(Generic[T]):
    """One piece of work."""

    __slots__ = ("_fail", "_finish", "_slices", "_steps")

    def __init__(
        self, slices: Slices, steps: Steps[T], finish: Callable[[T], None], fail: Callable[[TopicsError], None]
    ) -> None:
        self._slices = slices
        self._steps = steps
        self._finish = finish
        self._fail = fail

    def run(self, ends_ns: int) -> Cold | None:
        """Run steps until the slice is over or one of them needs the disk. Raises `StopIteration` with the result."""
        cold = next(self._steps)
        while cold is None and self._slices.tick_ns() < ends_ns:
            cold = next(self._steps)
        return cold

    def go_on(self, cold: Cold | None) -> None:
        """Wait for the next slice, or for the disk: then that slice comes as soon as this has answered."""
        if cold is None:
            self._slices.wait(self)
        else:
            self._slices.loads.load(cold, self._loaded)

    def slice(self, ends_ns: int) -> None:
        try:
            self._go(ends_ns)
        except Cold as cold:
            self.go_on(cold)

    def _go(self, ends_ns: int) -> None:
        """Run one slice. Raises `Cold` if a step needs the disk."""
        if self._is_closed():
            return
        try:
            cold = self.run(ends_ns)
        except StopIteration as end:
            self._finish(end.value)
        except TopicsError as error:
            self._fail(error)
        except Exception as error:
            log.failure("handler_failed", error)
            self._fail(TopicsError(Code.INTERNAL, "internal error"))
        else:
            if cold is not None:
                raise cold
            self.go_on(None)

    def _loaded(self, failure: BaseException | None) -> None:
        if failure is None:
            self._go(self._slices.tick_ns() + SLICE_NS)
        elif not self._is_closed():
            self._fail(unreadable(failure))

    def _is_closed(self) -> bool:
        """Whether nobody waits for the result any more: its client has left."""
        return getgeneratorstate(self._steps) == GEN_CLOSED
