"""Expensive answers that requests share: however many clients ask, one answer is made at a time.

A request that arrives while an answer is being made gets the next one, together with all others that arrive meanwhile.
So every answer is made after the request that it answers, and shows all earlier writes of its client.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from topics.engine.steps import Steps
from topics.errors import TopicsError
from topics.server.http.messages import Deferred, Request, Response, body_bytes
from topics.server.limits.budget import MemoryBudget
from topics.server.limits.loop_holds import Cause
from topics.server.loop.answer import error_answer
from topics.server.loop.sliced_work import Slices

Make = Callable[[], Steps[Response]]
Waiting = list[tuple[Request, Deferred]]


class SharedAnswers:
    """Answers by key. Requests with equal keys get the same answer."""

    def __init__(self, slices: Slices, budget: MemoryBudget) -> None:
        self._slices = slices
        self._budget = budget
        self._making: dict[Hashable, Waiting] = {}  # by key, the requests that wait for the answer after this one

    def answer(self, key: Hashable, request: Request, make: Make, cause: Cause = Cause.REQUEST) -> Deferred:
        """Return the answer that `make` renders in steps, for this request and all others with the key.

        The time that each slice takes is noted under `cause`.
        """
        deferred = Deferred()
        waiting = self._making.get(key)
        if waiting is None:
            self._making[key] = []
            self._make(key, make, [(request, deferred)], cause)
        else:
            waiting.append((request, deferred))
        return deferred

    def _make(self, key: Hashable, make: Make, waiting: Waiting, cause: Cause) -> None:
        def send(outcome: Response | TopicsError) -> None:
            sending = self._send(outcome, waiting)
            self._slices.run(sending, lambda _: self._made(key, make, cause), lambda error: None, cause)

        self._slices.run(make(), send, send, cause)

    def _send(self, outcome: Response | TopicsError, waiting: Waiting) -> Steps[None]:
        """Send the answer to one request per step: it may be large, and the requests of one connection each write."""
        for request, deferred in waiting:
            deferred.resolve(self._checked(outcome, request))
            yield None

    def _checked(self, outcome: Response | TopicsError, request: Request) -> Response:
        if isinstance(outcome, TopicsError):
            return error_answer(outcome, request)
        try:
            self._budget.check_answer(body_bytes(outcome.body))
        except TopicsError as error:
            return error_answer(error, request)
        # A copy: the transport and the caller's quota note in it when it was sent.
        return Response(outcome.status, outcome.body, outcome.content_type, outcome.headers)

    def _made(self, key: Hashable, make: Make, cause: Cause) -> None:
        waiting = self._making[key]
        if waiting:
            self._making[key] = []
            self._make(key, make, waiting, cause)
        else:
            del self._making[key]
