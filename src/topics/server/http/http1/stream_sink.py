"""The end of a connection that a stream, or the protocol of an upgrade, writes to."""

import asyncio
from typing import Protocol

from topics.server.http.http1.pipeline import Pipeline
from topics.server.http.http1.pipeline_state import STREAMING
from topics.server.limits.budget import MemoryBudget


class StreamOwner(Protocol):
    """The connection of a stream, as its sink uses it."""

    transport: asyncio.Transport
    pipeline: Pipeline

    def pace_reading(self) -> None: ...
    def unsent_bytes(self) -> int: ...
    def note_written(self, size_bytes: int) -> None: ...
    def stream_drained(self) -> None: ...
    def block(self, sink: "StreamSink") -> None: ...
    def close(self) -> None: ...


class StreamSink:
    """The `Sink` of one connection, while a stream owns it."""

    __slots__ = ("_budget", "_connection", "_pipeline", "_transport", "held")

    def __init__(self, connection: StreamOwner, budget: MemoryBudget) -> None:
        self._connection = connection
        self._pipeline = connection.pipeline
        self._transport = connection.transport
        self._budget = budget
        self.held = False

    def write(self, data: bytes) -> bool:
        pipeline = self._pipeline
        if pipeline.state is not STREAMING:
            return False
        short = self._budget.full and not pipeline.paused and self._is_short_of_memory()
        self._transport.write(data)
        if pipeline.paused:
            self._connection.note_written(len(data))
            return False
        return not short

    def close(self) -> None:
        if self._pipeline.state is STREAMING:
            self._connection.close()

    def give_up(self) -> None:
        self._pipeline.give_up()

    def buffered(self) -> int:
        return self._connection.unsent_bytes()

    def hold(self, held: bool, /) -> None:
        self.held = held
        self._connection.pace_reading()

    def unblock(self) -> bool:
        """Let a stream go on that was short of memory; return False if it still is."""
        pipeline = self._pipeline
        if pipeline.state is not STREAMING or pipeline.paused:
            return True  # it has ended, or the connection calls `drained` when it may write again
        if self._budget.full and self._connection.unsent_bytes():
            return False
        self._connection.stream_drained()
        return True

    def _is_short_of_memory(self) -> bool:
        """Return whether the client has not taken what it was sent, while the budget is full. `unblock` follows."""
        if not self._connection.unsent_bytes():
            return False
        self._connection.block(self)
        return True
