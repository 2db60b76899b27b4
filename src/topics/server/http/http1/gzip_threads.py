"""Gzip bodies of requests that take too long to unpack on the event loop: threads unpack them."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from topics.server.http.http1.exchange_queue import Exchange
from topics.server.http.http1.pipeline import Pipeline
from topics.server.http.request.gunzip import Gunzip, WorkSlots
from topics.server.limits.budget import MemoryBudget

T = TypeVar("T")


class UnpackingOwner(Protocol):
    """The connection of a request, as the unpacking of its body uses it."""

    pipeline: Pipeline

    def run_in_thread(self, work: Callable[[], T], then: "Callable[[asyncio.Future[T]], None]") -> None: ...
    def note_unpacked(self, exchange: Exchange, size_bytes: int) -> None: ...
    def pump(self) -> None: ...


class Unpacking:
    """One body of a parked request. A thread unpacks some megabytes at a time."""

    __slots__ = ("_budget", "_connection", "_exchange", "_gunzip", "_slots")

    def __init__(
        self, connection: UnpackingOwner, exchange: Exchange, gunzip: Gunzip, *, budget: MemoryBudget, slots: WorkSlots
    ) -> None:
        self._connection = connection
        self._exchange = exchange
        self._gunzip = gunzip
        self._budget = budget
        self._slots = slots

    def begin(self) -> bool:
        """Begin to unpack; return False if there is nothing to do: the request was dropped, or has to be refused.

        While the memory budget is full every body is refused, because it may grow a thousandfold.
        """
        if self._exchange.dropped:
            return False
        if self._budget.full:
            self._connection.pipeline.unpack_failed(self._exchange, self._budget.error())
            # The connection may be in the middle of its work, which leads here when another body is done.
            asyncio.get_running_loop().call_soon(self._connection.pump)
            return False
        self._continue()
        return True

    def _continue(self) -> None:
        self._connection.run_in_thread(self._gunzip.advance, self._advanced)

    def _advanced(self, done: "asyncio.Future[bytes | None]") -> None:
        """Take what a thread has unpacked, and continue if that is not all and the budget has room for it."""
        connection, exchange = self._connection, self._exchange
        if done.cancelled() or exchange.dropped:
            self._slots.end()
            return
        error = done.exception()
        body = done.result() if error is None else None
        if error is None and body is None:
            connection.note_unpacked(exchange, self._gunzip.size_bytes)
            if exchange.dropped:
                self._slots.end()
            else:
                self._continue()
            return
        self._slots.end()
        if body is not None:
            connection.pipeline.unpacked(exchange, body)
        elif error is not None:
            connection.pipeline.unpack_failed(exchange, error)
        connection.pump()
