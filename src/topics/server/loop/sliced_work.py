"""Long work in slices: generators of steps that run for a slice at a time, with other requests in between.

All such work together gets `TURN_NS` per turn of the loop. One piece of work runs for `SLICE_NS` at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, Generic, TypeVar

from topics import logs
from topics.clock import Clock
from topics.engine.steps import Steps
from topics.errors import Code, TopicsError
from topics.server.http.messages import Answer, Deferred, Request, Response, body_bytes, error_response
from topics.server.limits.budget import MemoryBudget
from topics.server.limits.loop_holds import Cause, LoopHolds
from topics.server.loop.answer import forward
from topics.server.loop.runtime import NOT_LOADING, Loading, Loads, unreadable
from topics.storage.segments.cold import Cold

log = logs.Log("app")
T = TypeVar("T")
Fail = Callable[[TopicsError], None]

TURN_NS = 2_000_000
SLICE_NS = 500_000


class Slices:
    def __init__(self, loads: Loads, clock: Clock, budget: MemoryBudget, holds: LoopHolds) -> None:
        self.loop = loads.loop
        self.holds = holds
        self._loads = loads
        self.tick_ns = clock.monotonic_ns
        self._budget = budget
        self._waiting: deque[_Sliced[Any]] = deque()
        self._scheduled = False

    def answer(self, request: Request, steps: Steps[Answer], cause: Cause = Cause.REQUEST) -> Answer:
        """Run one slice now. Return the answer of the steps if they ended, else a `Deferred`.

        Raise what the first slice raises. The time that each slice takes is noted under `cause`.
        """
        try:
            cold = self.run_slice(steps, cause)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        deferred = Deferred()
        sliced = self._answering(deferred, request, steps, cause)
        if cold is None:
            self.enqueue(sliced)
        else:
            sliced.loading = self._loads.load(cold, sliced.run_slice, sliced.unreadable)
        return deferred

    def resolve(self, deferred: Deferred, request: Request, steps: Steps[Answer]) -> None:
        """Resolve `deferred` with the answer of the steps, which run from the next turn on."""
        self.enqueue(self._answering(deferred, request, steps, Cause.REQUEST))

    def _answering(self, deferred: Deferred, request: Request, steps: Steps[Answer], cause: Cause) -> _Sliced[Answer]:
        def finish(answer: Answer) -> None:
            if isinstance(answer, Response):
                try:
                    self._budget.check_answer(body_bytes(answer.body))
                except TopicsError as error:
                    answer = error_response(error, request)
            forward(answer, deferred)

        def fail(error: TopicsError) -> None:
            deferred.resolve(error_response(error, request))

        sliced = _Sliced(self, steps, finish, fail, cause)
        deferred.on_cancel = sliced.cancel
        return sliced

    def run(self, steps: Steps[T], finish: Callable[[T], None], fail: Fail, cause: Cause = Cause.REQUEST) -> None:
        """Run the steps, from the next turn on. Call `finish` with their result, or `fail` with their error.

        Call neither if the steps were closed meanwhile.
        """
        self.enqueue(_Sliced(self, steps, finish, fail, cause))

    def run_slice(self, steps: Steps[Any], cause: Cause) -> Cold | None:
        """Run steps until the slice ends or a step needs the disk. Raise `StopIteration` with the result."""
        tick_ns = self.tick_ns
        ends_ns = tick_ns() + SLICE_NS
        try:
            cold = next(steps)
            while cold is None and tick_ns() < ends_ns:
                cold = next(steps)
        finally:
            self.holds.note(cause, tick_ns() - ends_ns + SLICE_NS)
        return cold

    def enqueue(self, sliced: _Sliced[Any]) -> None:
        self._waiting.append(sliced)
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        ends_ns = self.tick_ns() + TURN_NS
        for _ in range(len(self._waiting)):
            sliced = self._waiting.popleft()
            sliced.loading = self._loads.attempt(sliced.run_slice, sliced.unreadable)
            if self.tick_ns() > ends_ns:
                break
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._turn)


@dataclass(slots=True, eq=False)
class _Sliced(Generic[T]):
    slices: Slices
    steps: Steps[T]
    finish: Callable[[T], None]
    fail: Fail
    cause: Cause
    loading: Loading = NOT_LOADING

    def cancel(self) -> None:
        """Run no more steps, and fetch nothing more for them: the client has left."""
        self.steps.close()
        self.loading.cancel()

    def run_slice(self) -> None:
        """Run one slice. Raise `Cold` if a step needs the disk."""
        if self._is_closed():
            return
        try:
            cold = self.slices.run_slice(self.steps, self.cause)
        except StopIteration as end:
            self.finish(end.value)
        except TopicsError as error:
            self.fail(error)
        except OSError as error:
            self.fail(unreadable(error))
        except Exception as error:
            log.failure("handler_failed", error)
            self.fail(TopicsError(Code.INTERNAL, "internal error"))
        else:
            if cold is not None:
                raise cold
            self.slices.enqueue(self)

    def unreadable(self, failure: BaseException) -> None:
        if not self._is_closed():
            self.fail(unreadable(failure))

    def _is_closed(self) -> bool:
        return getgeneratorstate(self.steps) == GEN_CLOSED


class SharedAnswers:
    """Answers by key. Requests with equal keys get the same answer."""

    def __init__(self, slices: Slices, budget: MemoryBudget) -> None:
        self._slices = slices
        self._budget = budget
        self._waiting: dict[Hashable, deque[tuple[Request, Deferred]]] = {}  # by key, in order of arrival

    def answer(
        self, key: Hashable, request: Request, make: Callable[[], Steps[Response]], cause: Cause = Cause.REQUEST
    ) -> Deferred:
        """Return the answer that `make` renders in steps, for this request and all others with the key."""
        deferred = Deferred()
        if key in self._waiting:
            self._waiting[key].append((request, deferred))
            return deferred
        self._waiting[key] = deque([(request, deferred)])

        def fail(error: TopicsError) -> None:
            for request, deferred in self._waiting.pop(key):
                deferred.resolve(error_response(error, request))

        self._slices.run(self._answer_all(key, make), lambda _: None, fail, cause)
        return deferred

    def _answer_all(self, key: Hashable, make: Callable[[], Steps[Response]]) -> Steps[None]:
        """Answer one request per step: an answer may be large, and the requests of one connection each write."""
        waiting, count = self._waiting[key], 1
        # Bound: each round answers the requests that arrived before it began.
        while count:
            made = yield from make()
            for _ in range(count):
                request, deferred = waiting.popleft()
                try:
                    self._budget.check_answer(body_bytes(made.body))
                    # A copy: the transport and the caller's quota note in it when it was sent.
                    deferred.resolve(Response(made.status, made.body, made.content_type, made.headers))
                except TopicsError as error:
                    deferred.resolve(error_response(error, request))
                yield None
            count = len(waiting)
        del self._waiting[key]
