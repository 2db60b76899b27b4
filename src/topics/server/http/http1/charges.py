"""The charges of one connection to the memory budget. Pure.

A request that comes whole and small, and whose answer the operating system takes at once, is covered by the flat charge
of the connection: nothing here is called for it.
"""

from topics.server.http.http1.exchange import Exchange
from topics.server.limits.budget import ANSWERS, BODIES, EXCHANGE_BYTES, SMALL_BYTES, STREAMS, MemoryBudget, Receiver


class Charges:
    """The bytes that one connection holds. Input is parked until its request is begun, then running until answered."""

    __slots__ = (
        "_account", "_budget", "_parked_bytes", "_running_bytes", "_written_bytes",
        "input_bytes", "output_bytes",
    )  # fmt: skip

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._account = ANSWERS
        self.input_bytes = self.output_bytes = 0  # as charged
        self._parked_bytes = self._running_bytes = 0
        self._written_bytes = 0  # written while the transport was above its high-water mark

    # --- input

    def park(self, exchange: Exchange, body_bytes: int) -> None:
        """Count a parked request; count it again with its new size when its body is unpacked."""
        self._parked_bytes -= exchange.input_bytes
        exchange.input_bytes = EXCHANGE_BYTES + body_bytes
        self._parked_bytes += exchange.input_bytes

    def begin(self, exchange: Exchange) -> None:
        """Count a parked request as running."""
        self._parked_bytes -= exchange.input_bytes
        self._running_bytes += exchange.input_bytes

    def finish(self, exchange: Exchange) -> None:
        """Free the body of a running request: its answer does not need it any more."""
        self._running_bytes -= exchange.input_bytes
        exchange.input_bytes = 0
        exchange.head.request.body = b""

    def drop_parked(self) -> None:
        """Count no request as parked."""
        self._parked_bytes = 0

    def drop_all(self) -> None:
        """Count no request at all."""
        self._parked_bytes = self._running_bytes = 0

    def note_input(self, receiver: Receiver, unparsed_bytes: int) -> None:
        """Charge for input: queued requests, and bytes of requests that are not whole. `receiver` is the connection."""
        unhandled_bytes = self._parked_bytes + unparsed_bytes
        held_bytes = unhandled_bytes + self._running_bytes
        if held_bytes != self.input_bytes:
            self._budget.charge(BODIES, held_bytes - self.input_bytes)
            self.input_bytes = held_bytes
            self._budget.receive(receiver, unhandled_bytes)

    # --- output

    def note_written(self, size_bytes: int) -> None:
        """Count bytes that the transport could not pass on at once. It keeps a write until its last byte has left."""
        self._written_bytes += size_bytes

    def note_drained(self) -> None:
        """Note that the transport is below its high-water mark again."""
        self._written_bytes = 0

    def note_output(self, queued_bytes: int, unsent_bytes: int) -> None:
        """Charge for answers that the client has not taken: those still queued, and those in the transport."""
        held_bytes = queued_bytes + max(self._written_bytes, unsent_bytes)
        if held_bytes <= SMALL_BYTES:
            held_bytes = 0
        if held_bytes != self.output_bytes:
            self._charge_output(held_bytes)

    def _charge_output(self, held_bytes: int) -> None:
        self._budget.charge(self._account, held_bytes - self.output_bytes)
        self.output_bytes = held_bytes

    def become_stream(self) -> None:
        """Charge what is written from now on to the account of streams."""
        self._charge_output(0)
        self._account = STREAMS
