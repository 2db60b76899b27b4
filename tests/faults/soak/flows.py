"""Routers in a chain and a fan-out, and named consumers that commit."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from tests.faults.kills.logs import TAGS, Copy, Log, read
from tests.faults.kills.server import require
from tests.faults.soak.part import Part
from tests.faults.soak.target import Target

MAX_RECORDS = 3_000
ROUTES: dict[str, dict[str, Any]] = {
    "flow-1": {"source": "flow"},
    "flow-2": {"source": "flow-1", "guarantee": "exactly_once"},
    "flow-red": {"source": "flow", "filter": ["tag", "Eq", "red"]},
    "flow-window": {"source": "flow-1"},
}
CAPS = {"flow-window": 100}


class RouterPart(Part):
    """A source with four destinations: each has every record of the source once, in order."""

    name = "flow"

    def __init__(self, target: Target, rng: Random) -> None:
        super().__init__(target, rng)
        self._start_over()

    def _start_over(self) -> None:
        self.log = Log("flow", self.target.tally, durability="fsync")
        self.copies = []
        for name, route in ROUTES.items():
            copy = Copy(name, self.log, self.target.tally, only="red" if "filter" in route else None)
            copy.capped = name in CAPS
            self.copies.append(copy)

    async def begin(self) -> None:
        for name in ROUTES:
            await self.client.ask("DELETE", f"/v0/routers/to-{name}")
        for name in ("flow", *ROUTES):
            await self.client.ask("DELETE", f"/v0/topics/{name}")
            # A write may be repeated long after it was sent, because each round waits for a slow disk.
            config = {**self.log.config, "cap_records": CAPS.get(name, 0)}
            await self.client.must("PUT", f"/v0/topics/{name}", config)
        for name, route in ROUTES.items():
            await self.client.must("PUT", f"/v0/routers/to-{name}", {"dest": name, **route})

    async def round(self) -> None:
        for _ in self.steps(5, 25):
            n, tag, keyed = self.rng.choice((1, 1, 3, 20)), self.rng.choice(TAGS), self.rng.random() < 0.3
            await self.client.send([self.log.write(self.rng, n=n, tag=tag, keyed=keyed)])
            await asyncio.sleep(self.rng.expovariate(1 / 0.03))

    async def check(self) -> None:
        self.log.check(await read(self.client, "flow", 0))
        await self.target.eventually(self._forwarded)
        for copy in self.copies:
            page = await read(self.client, copy.name, 0)
            copy.check(page)
            behind = copy.only is None and copy.checked != self.log.checked
            require(not behind, f"{copy.name}: ends at {copy.checked}, its source at {self.log.checked}")
            if copy.capped:
                earliest = max(1, page.head - CAPS[copy.name] + 1)
                require(page.earliest == earliest, f"{copy.name}: has {page.earliest} to {page.head}")
        if self.log.checked > MAX_RECORDS:
            self._start_over()
            self.target.tally["recreated"] += 1
            await self.begin()

    async def _forwarded(self) -> None:
        answer = await self.client.must("GET", "/v0/routers?page_size=100")
        behind = {one["router"]: one for one in answer["routers"] if one["lag"]}
        require(not behind, f"routers do not catch up: {behind}")


class Reader:
    """One named consumer as its instance knows it."""

    def __init__(self, name: str, *, hold: bool) -> None:
        self.name, self.hold = name, hold
        self.seq = 0  # acknowledged, and answered
        self.wanted: int | None = None  # a commit that has no answer
        self.delivered: int | None = None  # the end of the last answer; None if the server does not know it

    def killed(self) -> None:
        self.delivered = None


class ConsumerPart(Part):
    """A capped topic with three consumers: each reads every record in order, or gets an exact tombstone."""

    name = "reads"

    def __init__(self, target: Target, rng: Random) -> None:
        super().__init__(target, rng)
        self.log = Log("reads", target.tally, durability="fsync", cap_records=200)
        self._readers = [Reader("true", hold=False), Reader("by-seq", hold=False), Reader("holds", hold=True)]
        self._head = 0

    async def begin(self) -> None:
        await self.client.must("PUT", "/v0/topics/reads", self.log.config)
        for reader in self._readers:
            fields = {"hold": True, "max_hold_bytes": 1 << 26} if reader.hold else {}
            await self.client.must("PUT", self._path(reader), fields)

    def _path(self, reader: Reader) -> str:
        return f"/v0/topics/reads/consumers/{reader.name}"

    def killed(self) -> None:
        for reader in self._readers:
            reader.killed()

    async def round(self) -> None:
        rng = self.rng
        for _ in self.steps(5, 25):
            roll = rng.random()
            if roll < 0.4:
                await self.client.send([self.log.write(rng, n=rng.choice((1, 3, 20)), keyed=rng.random() < 0.3)])
            elif roll < 0.45:  # concerns neither the position nor what was delivered
                await self.client.must("PUT", self._path(rng.choice(self._readers)), {"meta": {"number": rng.random()}})
            else:
                await self._read(rng.choice(self._readers))
            await asyncio.sleep(rng.expovariate(1 / 0.03))
        for _ in range(20):  # a consumer that holds records back must not fall behind for good
            reader = self._readers[-1]
            await self._read(reader)

    async def _read(self, reader: Reader) -> None:
        commit: bool | int = reader.delivered is not None and self.rng.random() < 0.8
        expected = reader.seq
        if commit:
            assert reader.delivered is not None
            expected = reader.wanted = reader.delivered
            commit = expected if reader.name == "by-seq" else True
        body = {"consumer": reader.name, "limit": self.rng.choice((1, 10, 100)), "commit": commit}
        answer = await self.client.must("POST", "/v0/topics/reads/diff", body)
        committed = answer["committed_seq"]
        require(committed == expected, f"reads: {reader.name} committed {expected} with {body}, is at {committed}")
        reader.seq, reader.wanted, reader.delivered = committed, None, answer["next_from_seq"]
        self._check_answer(reader, answer)
        self.target.tally["consumed"] += len(answer["records"])

    def _check_answer(self, reader: Reader, answer: dict[str, Any]) -> None:
        at, gap = reader.seq, answer["tombstone"]
        if gap is not None:
            exact = gap["gap_from"] == at + 1 and gap["gap_to"] == answer["earliest_seq"] - 1 and gap["reason"] == "cap"
            require(exact and not reader.hold, f"reads: {reader.name} at {at} got {gap}")
            at = gap["gap_to"]
        for row in answer["records"]:
            require(row["$seq"] == at + 1, f"reads: {reader.name} got {row['$seq']} after {at}")
            at = row["$seq"]
            known = self.log.known.get(at, row["data"])
            require(known == row["data"], f"reads: {reader.name} got {row['data'][:40]} at {at}, not {known[:40]}")
        require(answer["next_from_seq"] == at, f"reads: {reader.name} ends at {at}, not {answer['next_from_seq']}")

    async def check(self) -> None:
        page = await read(self.client, "reads", 0)
        self.log._evicts = ""  # a hold keeps records past the cap: what is evicted is checked below
        held = self._readers[-1]
        lost = page.gaps[-1]["gap_to"] if page.gaps else 0
        self._check_rows(page.rows, lost)
        for reader in self._readers:
            await self._check_consumer(reader, page.head, page.earliest)
        latest = max(1, min(page.head - 200 + 1, held.seq + 1))
        require(page.earliest <= latest, f"reads: evicted up to {page.earliest}, {held.name} is at {held.seq}")
        self._head = page.head
        self.log.forget(min(page.earliest, page.head))

    def _check_rows(self, rows: dict[int, Any], lost: int) -> None:
        log = self.log
        missing = [seq for seq in log.known if seq > lost and seq not in rows]
        require(not missing, f"reads: {missing[:5]} were acknowledged and are lost")
        wrong = [seq for seq, row in rows.items() if log.known.get(seq, row["data"]) != row["data"]]
        require(not wrong, f"reads: {wrong[:5]} have changed")
        for write, sent_ms in list(log._open):
            for seq, row in rows.items():
                if row["data"] in write.payloads:
                    log._learn(seq, row["data"], write.tag, sent_ms)
        log._open.clear()

    async def _check_consumer(self, reader: Reader, head: int, earliest: int) -> None:
        found = await self.client.must("GET", self._path(reader))
        allowed = {reader.seq} if reader.wanted is None else {reader.seq, reader.wanted}
        require(found["seq"] in allowed, f"reads: {reader.name} is at {found['seq']}, acknowledged were {allowed}")
        reader.seq, reader.wanted = found["seq"], None
        lag = head - max(reader.seq, earliest - 1)
        require(found["lag_records"] == lag, f"reads: {reader.name} has a lag of {found['lag_records']}, not {lag}")
