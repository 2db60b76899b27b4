"""The requests of one connection in the order in which they came, until their answers have gone out. Pure.

parked   the request is whole but not begun: too much is in progress, or the client does not read its answers
running  the application has the request and will answer later, or a thread compresses its answer
ready    the answer is there, and goes out when the answers before it have
"""

from topics.server.http.http1.charges import Charges
from topics.server.http.http1.exchange import Exchange
from topics.server.http.messages import Response
from topics.server.http.request.gunzip import Gunzip
from topics.server.limits.budget import MemoryBudget


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
