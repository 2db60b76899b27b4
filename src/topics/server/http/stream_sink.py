"""The end of a connection that a stream, or the protocol of an upgrade, writes to."""

from typing import TYPE_CHECKING

from topics.server.http.pipeline_state import STREAMING

if TYPE_CHECKING:
    from topics.server.http.connection import Connection
    from topics.server.limits.budget import MemoryBudget


class StreamSink:
    """The `Sink` of one connection, while a stream owns it."""

    __slots__ = ("_budget", "_connection", "_pipeline", "_transport", "held")

    def __init__(self, connection: "Connection", budget: "MemoryBudget") -> None:
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
