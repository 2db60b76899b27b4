"""One data directory: a server on it is started, checked, loaded and killed, again and again."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

from tests.conftest import SMALL_PARTS
from tests.faults.kills.jobs import Jobs
from tests.faults.kills.logs import REFUSED, TAGS, Churn, Copy, Log, Sieve, Tally, now_ms, read
from tests.faults.kills.rising import Rising
from tests.faults.kills.server import ANSWER_S, LOST, Connection, Request, Spawner, Violation, require
from tests.faults.test_sigkill import SETTINGS as MEDIUM_PARTS

Load = Callable[[Connection, Random], Awaitable[None]]
PARTS: list[dict[str, object]] = [dict(SMALL_PARTS), dict(MEDIUM_PARTS), {"sync_interval_ms": 5}]
STARTING, UNCHECKED = 0.25, 0.15  # shares of kills during the start, and of loads that begin without a check
FRESH = 0.02  # share of starts in a new interpreter


class World:
    """All topics on one data directory and the clients that use them."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        keep = [Log(name, tally, durability=name) for name in ("fsync", "disk", "memory")]
        self.plain = keep
        self.capped = Log("capped", tally, durability="fsync", cap_records=40)
        self.expiring = Log("expiring", tally, durability="disk", ttl_ms=400)
        self.pruned = Log("pruned", tally, durability="fsync")
        self.full = Log("full", tally, durability="disk", cap_records=80, discard="reject")
        self.turning = Log("turning", tally, durability="disk")
        self.passing = Log("ephemeral", tally, durability="ephemeral")
        self.logs = [*keep, self.capped, self.expiring, self.pruned, self.full, self.turning, self.passing]
        self.rising = Rising("rising", tally)
        self.queues = [
            Jobs("work", tally, durability="fsync", leases_durable=True),
            Jobs("tasks", tally, durability="disk", leases_durable=False),
        ]
        copies = [Copy(f"copy-{log.name}", log, tally) for log in keep]
        again = Copy("copy-again", keep[0], tally)
        only = Copy("copy-red", keep[1], tally, only="red")
        window = Copy("copy-window", keep[0], tally)
        window.capped = True
        self.copies = [*copies, again, only, window]
        self.sieves = [Sieve("copy-small", keep[1], tally), Sieve("copy-small-again", keep[1], tally)]
        self.churns = [Churn(f"churn-{number}", tally) for number in range(3)]

    async def create(self, connection: Connection) -> None:
        for topic in (*self.logs, self.rising, *self.queues):
            await connection.must("PUT", f"/v0/topics/{topic.name}", topic.config)
        await connection.must("PUT", "/v0/topics/copy-window", {"durability": "disk", "cap_records": 30})
        for name in ("fsync", "disk", "memory"):
            await self._route(connection, name, f"copy-{name}")
        await self._route(connection, "copy-fsync", "copy-again", guarantee="exactly_once")
        await self._route(connection, "disk", "copy-red", filter=["tag", "Eq", "red"])
        await self._route(connection, "copy-fsync", "copy-window")
        # Smaller than some records: their copies can never be held.
        await connection.must("PUT", "/v0/topics/copy-small", {"durability": "disk", "cap_bytes": 1200})
        await self._route(connection, "copy-disk", "copy-small")
        await self._route(connection, "copy-small", "copy-small-again")

    async def _route(self, connection: Connection, source: str, dest: str, **fields: object) -> None:
        body = {"source": source, "dest": dest, **fields}
        await connection.must("PUT", f"/v0/routers/{source}-to-{dest}", body)

    def loads(self) -> list[Load]:
        return [
            self._write,
            self._write,
            self._prune,
            *(self._worker(f"worker-{number}") for number in range(2)),
            self._churn,
            self._look,
            self._rise,
        ]

    async def _write(self, connection: Connection, rng: Random) -> None:
        requests = []
        for _ in range(rng.choice((1, 1, 3, 8))):
            log = rng.choice((*self.plain, *self.plain, self.capped, self.expiring, self.turning, self.passing))
            keyed = log in self.plain and rng.random() < 0.3
            requests.append(log.write(rng, n=rng.choice((1, 1, 3, 20)), tag=rng.choice(TAGS), keyed=keyed))
        await connection.send(requests)

    async def _prune(self, connection: Connection, rng: Random) -> None:
        if rng.random() < 0.05:
            await connection.send([self.turning.turn(rng)])
            return
        log = rng.choice((self.pruned, self.full))
        request = log.delete(rng) if rng.random() < 0.25 else log.write(rng, n=rng.choice((1, 7)), tag=rng.choice(TAGS))
        await connection.send([request])

    def _worker(self, node: str) -> Load:
        async def work(connection: Connection, rng: Random) -> None:
            await connection.send(rng.choice(self.queues).next(rng, node))

        return work

    async def _churn(self, connection: Connection, rng: Random) -> None:
        await connection.send(rng.choice(self.churns).next(rng))

    async def _rise(self, connection: Connection, rng: Random) -> None:
        log = self.rising
        await connection.send([log.turn(rng) if rng.random() < 0.2 else log.write(rng, n=rng.choice((1, 5)))])

    async def _look(self, connection: Connection, rng: Random) -> None:
        """What a monitoring system does all the time, and during the start."""
        path = rng.choice(("/v0/metrics", "/v0/metrics", "/v0/topics?page_size=1000", "/v0/routers", "/v0/ready"))

        def done(status: int, answer: object) -> None:
            fine = (200,) if path == "/v0/metrics" else (200, *REFUSED)
            require(status in fine, f"GET {path}: {status} {answer}")
            self.tally["scrapes"] += path == "/v0/metrics"

        await connection.send([Request("GET", path, None, done)])
        await asyncio.sleep(0.003)

    def killed(self) -> None:
        self.rising.killed()
        for queue in self.queues:
            queue.killed()

    async def check(self, connection: Connection, *, everything: bool) -> None:
        """Compare the server's answers with all promises; `everything` reads from the first record on."""
        for log in self.logs:
            page = await read(connection, log.name, 0 if everything else log.unchecked)
            log.check(page)
            if everything and log is not self.expiring:
                state = await connection.must("GET", f"/v0/topics/{log.name}?touch=false")
                require(state["count"] == len(page.rows), f"{log.name}: counts {state['count']}, has {len(page.rows)}")
        state = await connection.must("GET", f"/v0/topics/{self.rising.name}?touch=false")
        page = await read(connection, self.rising.name, 0 if everything else self.rising.unchecked)
        self.rising.check_class(page, state["config"]["durability"])
        if everything:
            await self._wait_until_forwarded(connection)
        for copy in self.copies:
            copy.check(await read(connection, copy.name, 0 if everything else copy.checked))
            behind = everything and copy.only is None and copy.checked != copy.source.checked
            require(not behind, f"{copy.name}: ends at {copy.checked}, its source at {copy.source.checked}")
        for sieve in self.sieves:
            sieve.check(await read(connection, sieve.name, 0 if everything else sieve.checked))
        for queue in self.queues:
            await queue.check(connection)
        for churn in self.churns:
            await churn.check(connection)
        self.tally["checks"] += 1
        self.tally["full_checks"] += everything

    async def _wait_until_forwarded(self, connection: Connection) -> None:
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = await connection.must("GET", "/v0/routers?page_size=100")
            lags = {router["router"]: router["lag"] for router in answer["routers"] if router["lag"]}
            if not lags:
                return
            require(time.monotonic() < deadline, f"routers do not catch up: {lags}")
            await asyncio.sleep(0.005)


class Rounds:
    """The servers of one data directory, one after the other."""

    def __init__(self, directory: Path, spawner: Spawner, port: int, rng: Random, tally: Tally) -> None:
        self.world = World(tally)
        self._directory, self._spawner, self._port, self._rng, self._tally = directory, spawner, port, rng, tally
        self._settings = {
            **rng.choice(PARTS), "data_dir": directory / "data", "port": port, "log_format": "json",
        }  # fmt: skip
        self._pid = 0
        self._start_s = 0.1  # how long a start takes, roughly
        directory.mkdir(parents=True)

    async def first(self) -> None:
        """Create the topics."""
        await self._start()
        with contextlib.closing(Connection(self._port)) as connection:
            await self._ready(connection)
            await self.world.create(connection)
        self._kill()

    async def one(self, *, everything: bool = False) -> None:
        """Start a server, check it, load it, kill it at a random moment."""
        rng = self._rng
        await self._start()
        if not everything and rng.random() < STARTING:
            await self._load(rng.uniform(0, 1.2 * self._start_s))
            self._tally["kills_during_start"] += 1
            return
        with contextlib.closing(Connection(self._port)) as connection:
            await self._ready(connection)
            if everything or rng.random() >= UNCHECKED:
                await self.world.check(connection, everything=everything)
        await self._load(min(0.15, 0.005 + rng.expovariate(1 / 0.03)))

    def kill(self) -> None:
        """Kill a server that still runs."""
        if self._pid:
            self._kill()

    async def _start(self) -> None:
        before = self._directory / "before"
        shutil.rmtree(before, ignore_errors=True)
        if (self._directory / "data").exists():
            shutil.copytree(self._directory / "data", before)
        fresh = self._rng.random() < FRESH
        self._pid = self._spawner.start(self._settings, self._directory / "log", fresh=fresh)
        self._started = time.monotonic()

    async def _ready(self, connection: Connection) -> None:
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                status, _ = await connection.ask("GET", "/v0/ready")
                if status == 200:
                    self._start_s = 0.8 * self._start_s + 0.2 * (time.monotonic() - self._started)
                    return
            require(time.monotonic() - self._started < ANSWER_S, "the server does not become ready")
            await asyncio.sleep(0.004)

    async def _load(self, seconds: float) -> None:
        self._over = False
        tasks = [asyncio.create_task(self._client(load, at)) for at, load in enumerate(self.world.loads())]
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        self._over = True
        self._kill()
        await asyncio.gather(*tasks)
        self.world.killed()

    async def _client(self, load: Load, at: int) -> None:
        rng = Random(f"{self._rng.random()} {at}")
        connection = Connection(self._port)
        try:
            while not self._over:
                try:
                    await connection.open()
                except ConnectionRefusedError:  # it does not listen yet
                    await asyncio.sleep(0.004)
                else:
                    await load(connection, rng)
        except LOST:
            pass
        finally:
            connection.close()

    def _kill(self) -> None:
        pid, self._pid = self._pid, 0
        status = self._spawner.kill(pid)
        self._tally["kills"] += 1
        require(status == 9, f"the server ended by itself before it was killed (wait status {status}) at {now_ms()}")


__all__ = ["Rounds", "Violation", "World"]
