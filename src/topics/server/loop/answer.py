"""Answers to clients, made from the results and errors of the engine."""

import time
from collections.abc import Callable, Collection
from typing import Any, ClassVar

import msgspec

from topics.engine.write.commit import Ticket
from topics.model.wire import Performance
from topics.server.http.messages import Answer, Deferred, Request, Response, error_response

_encode = msgspec.json.encode
_MILLIS = [f"{us / 1000:.3f}" for us in range(10_000)]


def json_answer(status: int, answer: Any) -> Response:
    return Response(status, _encode(answer) + b"\n")


def elapsed_ms(request: Request) -> float:
    return round((time.perf_counter_ns() - request.started_ns) / 1e6, 3)


def shown_ms(ns: int) -> str:
    """Return milliseconds with three decimals, from a table: formatting floats took a tenth of an append."""
    us = ns // 1000
    return _MILLIS[us] if us < len(_MILLIS) else f"{us / 1000:.3f}"


def performance(request: Request, ticket: Ticket | None = None) -> Performance:
    """Return the `performance` field: total time, and the time in the log where a ticket was written."""
    if ticket is None:
        return Performance(elapsed_ms(request))
    return Performance(
        elapsed_ms(request),
        wal_append_ms=round(ticket.wal_ns / 1e6, 3),
        fsync_ms=round(ticket.sync_ns / 1e6, 3),
    )


class TicketAnswer(Deferred):
    """The answer to a write, deferred until its commit."""

    keeps_request: ClassVar[bool] = False

    request: Request | None = None
    encode: Callable[[Ticket, Request], Response] | None = None

    def finish(self, ticket: Ticket) -> None:
        request, encode = self.request, self.encode
        assert request is not None
        assert encode is not None
        self.resolve(encode(ticket, request) if ticket.error is None else error_response(ticket.error, request))


def when_done(ticket: Ticket, request: Request, encode: Callable[[Ticket, Request], Response]) -> Answer:
    """Return the answer to a write: now if the ticket is resolved, else when it is committed or refused."""
    if ticket.done:
        return error_response(ticket.error, request) if ticket.error is not None else encode(ticket, request)
    answer = TicketAnswer()
    answer.request, answer.encode = request, encode
    ticket.then = answer.finish
    return answer


def json_when_done(ticket: Ticket, request: Request, make: Callable[[Any, Performance], Any]) -> Answer:
    """Return `when_done` with what `make` returns for the result of the ticket, as JSON. What was created gets 201."""

    def encode(ticket: Ticket, request: Request) -> Response:
        answer = make(ticket.result, performance(request, ticket))
        return json_answer(201 if getattr(answer, "created", False) else 200, answer)

    return when_done(ticket, request, encode)


def when_all_done(tickets: Collection[Ticket], then: Callable[[], None]) -> None:
    """Call `then` once all tickets are resolved: now if there is none."""
    waiting = len(tickets)

    def done(_: Ticket) -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            then()

    if not tickets:
        then()
    for ticket in list(tickets):
        ticket.on_done(done)


def forward(answer: Answer, deferred: Deferred) -> None:
    """Resolve `deferred` with `answer`, now or when it is there. A cancellation is forwarded to `answer`."""
    if isinstance(answer, Deferred):
        deferred.on_cancel, deferred.on_hurry = answer.cancel, answer.hurry
        answer.then(deferred.resolve)
    else:
        assert isinstance(answer, Response), "a stream cannot be deferred"
        deferred.resolve(answer)
