"""Masses: connections that are open and idle, and topics that are created and deleted without end."""

from __future__ import annotations

import asyncio
import resource
import time
from random import Random
from typing import cast

from tests.faults.kills.server import Request, require
from tests.faults.soak.part import Part
from tests.faults.soak.target import Target

SPARE_DESCRIPTORS = 1_500  # of both processes, for everything else
AT_ONCE = 50  # connections that are opened before the next wait
BATCH = 30  # topics that are created, written to and deleted together,
PARTS = 10  # over so many connections: each request waits for a sync
REFUSED = (429, 503)


def most_idle(wanted: int) -> int:
    """Return how many idle connections the limit of descriptors allows. The server has the same limit."""
    return max(0, min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_DESCRIPTORS))


class _Idle(asyncio.Protocol):
    """A connection that sends one request, and then nothing."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is no subclass
        self._crowd.members.add(self._transport)
        self._transport.write(b"GET /v0/health HTTP/1.1\r\nhost: localhost\r\n\r\n")

    def connection_lost(self, error: Exception | None) -> None:
        self._crowd.members.discard(self._transport)


class Crowd:
    """The idle connections. A connection that is lost is opened again."""

    def __init__(self, target: Target, *, size: int) -> None:
        self._target, self._size = target, most_idle(size)
        self.members: set[asyncio.Transport] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._target.up.wait()
                for _ in range(min(AT_ONCE, self._size - len(self.members))):
                    try:
                        await loop.create_connection(lambda: _Idle(self), "127.0.0.1", self._target.port)
                    except OSError:
                        break
                self._target.tally["idle_connections"] = max(self._target.tally["idle_connections"], len(self.members))
                await asyncio.sleep(0.05)
        finally:
            for member in list(self.members):
                member.abort()


class MassPart(Part):
    """Topics with names that are never used again: each is created, written to, and deleted."""

    name = "mass"

    def __init__(self, target: Target, rng: Random, prefix: str = "mass-", *, per_s: float) -> None:
        super().__init__(target, rng)
        self._prefix = prefix
        self._per_s = per_s
        self._number = 0
        self._there: set[str] = set()  # created, or perhaps created
        self._refused = False

    async def begin(self) -> None:
        pass

    async def round(self) -> None:
        for _ in self.steps(5, 10):
            began = time.monotonic()
            names = [f"{self._prefix}{self._number + at}" for at in range(BATCH)]
            self._number += BATCH
            self._there.update(names)
            self._refused = False
            writes = [
                Request("POST", f"/v0/topics/{name}", {"records": [{"data": name}]}, self._done) for name in names
            ]
            await self.client.send(writes)
            await self._delete(sorted(self._there))
            await asyncio.sleep(max(0.5 if self._refused else 0, began + BATCH / self._per_s - time.monotonic()))

    async def _delete(self, names: list[str]) -> None:
        for first in range(0, len(names), BATCH):
            some = names[first : first + BATCH]
            await self.client.send([self._deletion(name) for name in some])

    def _deletion(self, name: str) -> Request:
        def done(status: int, answer: object) -> None:
            require(status in (200, 404, *REFUSED), f"delete {name}: {status} {answer}")
            if status in (200, 404):
                self._there.discard(name)
                self.target.tally["mass_topics"] += status == 200
            else:
                self._refused = True

        return Request("DELETE", f"/v0/topics/{name}", None, done)

    def _done(self, status: int, answer: object) -> None:
        require(status in (200, 201, *REFUSED), f"write to a new topic: {status} {answer}")
        self._refused |= status in REFUSED

    async def check(self) -> None:
        """Only topics whose deletion was refused are there."""
        answer = await self.client.must("GET", f"/v0/topics?prefix={self._prefix}&page_size=1000")
        found = {one["topic"] for one in answer["topics"]}
        require(found <= self._there, f"deleted topics are there: {sorted(found - self._there)[:3]}")
        await self._delete(sorted(found))


def mass_parts(target: Target, seed: int, *, per_s: float) -> list[Part]:
    return [
        MassPart(target, Random(f"{seed} masses {number}"), f"mass-{number}-", per_s=per_s / PARTS)
        for number in range(PARTS)
    ]
