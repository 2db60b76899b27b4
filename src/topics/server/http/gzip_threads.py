"""Gzip bodies of requests that take too long to unpack on the event loop: threads unpack them."""

import asyncio
from typing import TYPE_CHECKING

from topics.server.http.exchange import Exchange
from topics.server.http.gzip_body import Gunzip, WorkSlots

if TYPE_CHECKING:
    from topics.server.http.connection import Connection
    from topics.server.limits.budget import MemoryBudget


class Unpacking:
    """One body of a parked request. A thread unpacks some megabytes at a time."""

    __slots__ = ("_budget", "_connection", "_exchange", "_gunzip", "_slots")

    def __init__(
        self, connection: "Connection", exchange: Exchange, gunzip: Gunzip, *, budget: "MemoryBudget", slots: WorkSlots
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
