"""Topics with caps and TTLs: writes, idempotent retries, deletes, config changes, scans, deletion and creation."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from tests.faults.kills.logs import TAGS, Churn, Log, Page, read
from tests.faults.kills.server import require
from tests.faults.soak.part import Part
from tests.faults.soak.target import Target, scan

MAX_RECORDS = 20_000  # then the topic is deleted and created again, so that nothing grows without end


class LogPart(Part):
    """One topic with one writer. After each round the topic is read from its first record on."""

    def __init__(self, target: Target, rng: Random, name: str, **config: Any) -> None:
        super().__init__(target, rng)
        self.name = name
        self._config = config
        self._epoch = 0
        self._evicts = "cap_records" in config and config.get("discard") != "reject"
        self._deletes = not self._evicts and "ttl_ms" not in config
        self._cap = config.get("cap_records", 0)
        self._earliest = 1  # the first record that the cap has kept
        self._exact = True  # every write and change of the cap was answered
        self.log = Log(name, target.tally, **config)

    async def begin(self) -> None:
        await self.client.ask("DELETE", f"/v0/topics/{self.name}")
        answer = await self.client.must("PUT", f"/v0/topics/{self.name}", self.log.config)
        require(answer["epoch"] >= self._epoch, f"{self.name}: epoch {answer['epoch']} after {self._epoch}")
        self._epoch = answer["epoch"]

    async def round(self) -> None:
        rng, log = self.rng, self.log
        for _ in self.steps(5, 25):
            roll = rng.random()
            if self._deletes and roll < 0.15:
                await self.client.send([log.delete(rng)])
            elif roll < 0.2:
                await self.client.send([log.turn(rng)])
            else:
                if self._evicts and roll < 0.25:
                    await self._change_cap(rng.choice((100, 400)))
                n, tag, keyed = rng.choice((1, 1, 3, 20)), rng.choice(TAGS), rng.random() < 0.3
                await self.client.send([log.write(rng, n=n, tag=tag, keyed=keyed)])
                self._evict()
            await asyncio.sleep(rng.expovariate(1 / 0.03))

    async def _change_cap(self, cap: int) -> None:
        self._exact = False
        await self.client.must("PUT", f"/v0/topics/{self.name}", {"cap_records": cap})
        self._cap, self._exact = cap, True
        self._evict()

    def _evict(self) -> None:
        if self._evicts:
            self._earliest = max(self._earliest, max(self.log.known, default=0) - self._cap + 1)

    def killed(self) -> None:
        self._exact = False

    async def check(self) -> None:
        log, name = self.log, self.name
        page = await read(self.client, name, 0)
        log.check(page)
        state = await self.client.must("GET", f"/v0/topics/{name}?touch=false")
        require(state["head_seq"] == page.head, f"{name}: the state shows head {state['head_seq']}, diff {page.head}")
        if "ttl_ms" not in log.config:
            require(state["count"] == len(page.rows), f"{name}: counts {state['count']}, has {len(page.rows)}")
            self._check_cap(page, state["config"]["cap_records"])
            await self._check_scan(page)
        log.forget(min(page.earliest, page.head))
        if page.head > MAX_RECORDS:
            await self._again()

    def _check_cap(self, page: Page, cap: int) -> None:
        """A cap that evicts keeps exactly its number of records, and the tombstone covers exactly the others."""
        if not self._evicts:
            return
        self._cap = cap
        if self._exact:
            have = f"{self.name}: has {page.earliest} to {page.head}, not from {self._earliest} on"
            require(page.earliest == self._earliest, have)
        self._earliest, self._exact = page.earliest, True
        gaps = [(gap["gap_from"], gap["gap_to"]) for gap in page.gaps]
        exact = [(1, page.earliest - 1)] if page.earliest > 1 else []
        require(gaps == exact, f"{self.name}: tombstones {gaps}, not {exact}")

    async def _check_scan(self, page: Page) -> None:
        lines = await scan(self.target, self.name)
        if not lines or "end" not in lines[-1]:
            raise ConnectionResetError(f"{self.name}: a scan ends with {lines[-1:]}")
        rows = {line["$seq"]: line["data"] for line in lines if "$seq" in line}
        require(rows == {seq: row["data"] for seq, row in page.rows.items()}, f"{self.name}: scan and diff differ")
        self.target.tally["scans"] += 1

    async def _again(self) -> None:
        self.log = Log(self.name, self.target.tally, **self._config)
        self._cap, self._earliest = self._config.get("cap_records", 0), 1
        self.target.tally["recreated"] += 1
        await self.begin()


class ChurnPart(Part):
    """Topics that are deleted and created all the time."""

    name = "churn"

    def __init__(self, target: Target, rng: Random) -> None:
        super().__init__(target, rng)
        self._churns = [Churn(f"churn-{number}", target.tally) for number in range(3)]

    async def begin(self) -> None:
        pass

    async def round(self) -> None:
        for _ in self.steps(5, 25):
            await self.client.send(self.rng.choice(self._churns).next(self.rng))
            await asyncio.sleep(self.rng.expovariate(1 / 0.03))

    async def check(self) -> None:
        for churn in self._churns:
            await churn.check(self.client)


class LookPart(Part):
    """A monitoring system: scrapes and lists. A scrape is answered, quickly, whatever the topics do."""

    name = "look"

    async def begin(self) -> None:
        pass

    async def round(self) -> None:
        for path in ("/v0/metrics", "/v0/topics?page_size=1000", "/v0/routers", "/v0/consumers", "/v0/ready?for=read"):
            status, answer = await self.client.ask("GET", path)
            require(status == 200, f"GET {path}: {status} {answer}")
            await asyncio.sleep(self.rng.uniform(0, 0.1))
        self.target.tally["scrapes"] += 1

    async def check(self) -> None:
        pass


def log_parts(target: Target, seed: int) -> list[Part]:
    kinds: dict[str, dict[str, Any]] = {
        "capped": {"durability": "fsync", "cap_records": 100},
        "expiring": {"durability": "disk", "ttl_ms": 1500},
        "pruned": {"durability": "fsync"},
        "full": {"durability": "disk", "cap_records": 300, "discard": "reject"},
    }
    parts: list[Part] = [LogPart(target, Random(f"{seed} {name}"), name, **config) for name, config in kinds.items()]
    return [*parts, ChurnPart(target, Random(f"{seed} churn")), LookPart(target, Random(f"{seed} look"))]
