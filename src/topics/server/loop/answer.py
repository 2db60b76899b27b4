"""From what the engine says to what a client gets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from topics.engine.write.commit import Ticket
from topics.errors import Code, TopicsError
from topics.model.wire import Performance
from topics.server.http.messages import Answer, Deferred, Request, Response, error_response

_encode = msgspec.json.encode


def json_answer(status: int, answer: Any) -> Response:
    return Response(status, _encode(answer))


def elapsed_ms(request: Request) -> float:
    return round((time.perf_counter_ns() - request.started_ns) / 1e6, 3)


def performance(request: Request, ticket: Ticket | None = None) -> Performance:
    if ticket is None:
        return Performance(elapsed_ms(request))
    return Performance(
        elapsed_ms(request),
        wal_append_ms=round(ticket.wal_ns / 1e6, 3),
        fsync_ms=round(ticket.sync_ns / 1e6, 3),
    )


def error_answer(error: TopicsError, request: Request) -> Response:
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if error.code is Code.METHOD_NOT_ALLOWED and error.detail is not None:
        headers = ((b"allow", ", ".join(error.detail["allow"]).encode()),)
    elif error.code is Code.UNAUTHORIZED:
        headers = ((b"www-authenticate", b"Bearer"),)
    return error_response(error, started_ns=request.started_ns, headers=headers)


class TicketAnswer(Deferred):
    """The answer to a verb that waits for its commit."""

    keeps_request: ClassVar[bool] = False

    request: Request | None = None
    encode: Callable[[Ticket, Request], Response] | None = None

    def finish(self, ticket: Ticket) -> None:
        request, encode = self.request, self.encode
        assert request is not None
        assert encode is not None
        response = encode(ticket, request) if ticket.error is None else error_answer(ticket.error, request)
        callback = self._callback
        if callback is None or self._over is not None:
            self.resolve(response)
        else:  # the same without a call, as nearly all are
            self._response, self._callback = response, None
            callback(response)


def when_done(ticket: Ticket, request: Request, encode: Callable[[Ticket, Request], Response]) -> Answer:
    """The answer to a verb: at once if it needed no commit, else when it took effect or was refused."""
    if ticket.done:
        return error_answer(ticket.error, request) if ticket.error is not None else encode(ticket, request)
    answer = TicketAnswer()
    answer.request, answer.encode = request, encode
    ticket.then = answer.finish
    return answer
