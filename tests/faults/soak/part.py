"""One part of the load: it creates its topics, uses them, and checks them, until the run is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from random import Random

from tests.faults.kills.server import ANSWER_S, LOST, require
from tests.faults.soak.target import HOLD_S, Client, Target


class Part:
    """A part in rounds. No request of the part is in flight between two rounds: then its ledger is exact."""

    name = ""

    def __init__(self, target: Target, rng: Random) -> None:
        self.target, self.rng = target, rng
        self.client = Client(target)
        self._generation = 0  # of the server that the client is connected to

    async def begin(self) -> None:
        """Create the topics of an empty ledger."""
        raise NotImplementedError

    async def round(self) -> None:
        """Send some requests. Raise one of `LOST` if the server ends meanwhile."""
        raise NotImplementedError

    async def check(self) -> None:
        """Compare what the server answers with the ledger."""
        raise NotImplementedError

    def killed(self) -> None:
        """Note in the ledger that the server was killed."""

    async def run(self) -> None:
        """Work until the run is over. Each round ends with a check."""
        self._generation = self.target.generation
        try:
            await self._surviving(self.begin)
            while not self.target.over:
                await self._surviving(self.round)
                await self._surviving(self.check)
        finally:
            self.client.close()

    def steps(self, low: int, high: int) -> Iterator[None]:
        """Yield a random number of times. End early if the run is over."""
        for _ in range(self.rng.randint(low, high)):
            if self.target.over:
                return
            yield

    async def _surviving(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do some work. If the server is killed meanwhile, wait for the next one and check what it kept."""
        while True:
            try:
                await work()
            except LOST as lost:
                await self._follow(lost)
            else:
                return
            if work != self.begin:
                work = self.check

    async def _follow(self, lost: BaseException) -> None:
        """Connect to the server that follows. A connection that ends without a kill is a failure."""
        expected = not self.target.up.is_set() or self.target.generation > self._generation
        require(expected, f"{self.name}: the server closed a connection: {lost!r}")
        self.client.close()
        async with asyncio.timeout(ANSWER_S + HOLD_S["kill"]):
            await self.target.up.wait()
        self.client, self._generation = Client(self.target), self.target.generation
        self.killed()
