"""The requests of one connection in the order in which they came, until their answers have gone out. Pure.

parked   the request is whole but not begun: too much is in progress, or the client does not read its answers
running  the application has the request and will answer later, or a thread compresses its answer
ready    the answer is there, and goes out when the answers before it have

A request that comes whole and small, and whose answer the operating system takes at once, is covered by the flat
charge of the connection: `Charges` is not called for it.
"""

import msgspec

from topics.server.http.messages import Deferred, Response, Stream
from topics.server.http.request.gunzip import Gunzip
from topics.server.http.request.head import RequestHead
from topics.server.limits.budget import ANSWERS, BODIES, EXCHANGE_BYTES, SMALL_BYTES, STREAMS, MemoryBudget, Receiver


class Exchange(msgspec.Struct, eq=False):
    """A request and its answer, until the answer has gone out."""

    head: RequestHead
    answer: Response | Stream | None = None
    vary: bytes = b""
    deferred: Deferred | None = None
    held_bytes: int = 0  # size of an answer that waits for the answers before it
    input_bytes: int = 0  # size of the request, charged to the memory budget until the answer is there
    unpacking: bool = False  # a thread unpacks the body
    dropped: bool = False  # no client waits for the answer


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


class ExchangeQueue:
    """Exchanges in order. The first `begun` of them are running or ready, the others are parked."""

    __slots__ = ("begun", "charges", "exchanges", "held_bytes", "packed")

    def __init__(self, budget: MemoryBudget) -> None:
        self.exchanges: list[Exchange] = []
        self.begun = 0
        self.held_bytes = 0  # of answers that wait for the answers before them
        self.packed: list[tuple[Exchange, Gunzip]] = []  # parked, with a body that takes too long to unpack here
        self.charges = Charges(budget)

    def park(self, exchange: Exchange) -> None:
        """Add a request that is not begun."""
        self.exchanges.append(exchange)
        self.charges.park(exchange, len(exchange.head.request.body))

    def begin(self, exchange: Exchange) -> None:
        """Begin the first parked exchange, which is `exchange`."""
        self.begun += 1
        self.charges.begin(exchange)

    def remove_first(self, exchange: Exchange) -> None:
        """Remove the first exchange, which is `exchange` and ready."""
        del self.exchanges[0]
        self.begun -= 1
        if exchange.held_bytes:
            self.hold(exchange, 0)
        if exchange.input_bytes:
            self.charges.finish(exchange)

    def make_ready(self, exchange: Exchange, answer: Response, size_bytes: int) -> None:
        """Take an answer whose body has `size_bytes`."""
        exchange.answer = answer
        if self.exchanges and self.exchanges[0] is not exchange:
            self.hold(exchange, size_bytes)
        elif exchange.held_bytes:
            self.hold(exchange, 0)

    def hold(self, exchange: Exchange, size_bytes: int) -> None:
        """Count an answer that cannot be written yet."""
        self.held_bytes += size_bytes - exchange.held_bytes
        exchange.held_bytes = size_bytes

    def drop_last(self) -> Exchange:
        """Remove and return the last exchange, which was begun."""
        exchange = self.exchanges.pop()
        exchange.dropped = True
        self.begun -= 1
        self.hold(exchange, 0)
        return exchange

    def drop_parked(self) -> list[Exchange]:
        """Remove and return the parked exchanges."""
        parked = self.exchanges[self.begun :]
        del self.exchanges[self.begun :]
        self.packed.clear()
        self.charges.drop_parked()
        for exchange in parked:
            exchange.dropped = True
        return parked

    def drop_begun(self) -> list[Exchange]:
        """Remove and return the exchanges that were begun. Call it after `drop_parked`."""
        begun = self.exchanges[:]
        self.exchanges.clear()
        self.begun = self.held_bytes = 0
        self.charges.drop_all()
        for exchange in begun:
            exchange.dropped = True
        return begun
