"""The requests of one connection in the order in which they came, until their answers have gone out. Pure.

parked   the request is whole but not begun: too much is in progress, or the client does not read its answers
running  the application has the request and will answer later, or a thread compresses its answer
ready    the answer is there, and goes out when the answers before it have
"""

from topics.server.http.exchange import Charges, Exchange
from topics.server.http.messages import Response


class ExchangeQueue:
    """Exchanges in order. The first `begun` of them are running or ready, the others are parked."""

    __slots__ = ("_charges", "begun", "exchanges", "held_bytes")

    def __init__(self, charges: Charges) -> None:
        self.exchanges: list[Exchange] = []
        self.begun = 0
        self.held_bytes = 0  # of answers that wait for the answers before them
        self._charges = charges

    def park(self, exchange: Exchange) -> None:
        """Add a request that is not begun."""
        self.exchanges.append(exchange)
        self._charges.park(exchange, len(exchange.head.request.body))

    def begin(self, exchange: Exchange) -> None:
        """Begin the first parked exchange, which is `exchange`."""
        self.begun += 1
        self._charges.begin(exchange)

    def remove_first(self, exchange: Exchange) -> None:
        """Remove the first exchange, which is `exchange` and ready."""
        del self.exchanges[0]
        self.begun -= 1
        if exchange.held_bytes:
            self.hold(exchange, 0)
        if exchange.input_bytes:
            self._charges.finish(exchange)

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

    def drop_from(self, at: int) -> list[Exchange]:
        """Remove and return the exchanges from position `at` on. They are dropped."""
        dropped = self.exchanges[at:]
        del self.exchanges[at:]
        self.begun = min(self.begun, at)
        for exchange in dropped:
            exchange.dropped = True
            self.hold(exchange, 0)
            self._charges.release(exchange)
        return dropped
