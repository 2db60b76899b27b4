"""The loads of `topics bench`: each runs for some seconds on one topic and returns rates and times."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from topics.cli.connect.request import Request, post, topic_path
from topics.cli.connect.server import Server
from topics.cli.looking.percentiles import percentiles
from topics.cli.looking.ping import Listener
from topics.cli.output.failures import Failure
from topics.errors import TopicsError

PAGE_RECORDS = 1000
CLAIM_JOBS = 10


@dataclass(frozen=True, kw_only=True)
class Load:
    """What to do: where, for how long, on how many connections, with which records."""

    server: Server
    topic: str
    seconds: float
    connections: int
    batch: int
    size: int
    durability: str

    def create(self, **config: object) -> None:
        body = {"durability": self.durability, **config}
        self.server.send(Request(method="PUT", path=topic_path(self.topic), body=body))

    def write(self, batch: int) -> Request:
        """Return an append of `batch` records, encoded once."""
        record = json.dumps({"data": payload(self.size)}).encode()
        body = b'{"records":[' + b",".join([record] * batch) + b"]}"
        return Request(method="POST", path=topic_path(self.topic, return_seqs=False), body=body, safe=False)


@dataclass(kw_only=True)
class Result:
    """What a load did. `of` says what the times are the times of."""

    name: str
    of: str
    took_s: float = 0.0
    records: int = 0
    times_ms: list[float] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return len(self.times_ms)

    @property
    def records_per_s(self) -> float:
        return self.records / max(self.took_s, 1e-6)

    @property
    def requests_per_s(self) -> float:
        return self.requests / max(self.took_s, 1e-6)

    @property
    def percentiles(self) -> dict[str, float]:
        return percentiles(self.times_ms)

    def as_json(self) -> dict[str, object]:
        return {
            "records_per_s": round(self.records_per_s, 1), "requests_per_s": round(self.requests_per_s, 1),
            "records": self.records, "requests": self.requests, "seconds": round(self.took_s, 3), **self.percentiles,
        }  # fmt: skip


def payload(size: int) -> str:
    return "x" * max(size - 2, 0)


Step = Callable[[Server], int]  # one measured request; returns its number of records


def _repeat(load: Load, result: Result, make: Callable[[], Step]) -> Result:
    """Repeat a step on every connection until the time is up. Raise what a step raised."""
    began = time.perf_counter()
    deadline = began + load.seconds
    lock, problems = threading.Lock(), []

    def work() -> None:
        step = make()
        times_ms: list[float] = []
        records = 0
        try:
            with load.server.again() as server:
                while (start := time.perf_counter()) < deadline or not times_ms:
                    records += step(server)
                    times_ms.append((time.perf_counter() - start) * 1000)
        except (Failure, TopicsError) as error:
            problems.append(error)
        with lock:
            result.records += records
            result.times_ms += times_ms

    threads = [threading.Thread(target=work) for _ in range(load.connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    result.took_s = time.perf_counter() - began
    return result


def append(load: Load) -> Result:
    """Append batches on all connections."""
    load.create()
    request = load.write(load.batch)

    def step(server: Server) -> int:
        server.send(request)
        return load.batch

    return _repeat(load, Result(name="append", of="an append"), lambda: step)


def read(load: Load) -> Result:
    """Read pages of 1,000 records from random places."""
    load.create()
    filled, request = 0, load.write(PAGE_RECORDS)
    while filled < 20 * PAGE_RECORDS:
        load.server.send(request)
        filled += PAGE_RECORDS

    def step(server: Server) -> int:
        at = random.randrange(filled - PAGE_RECORDS)
        server.send(post(topic_path(load.topic, "diff"), {"from_seq": at, "limit": PAGE_RECORDS}))
        return PAGE_RECORDS

    return _repeat(load, Result(name="read", of="a page of 1,000"), lambda: step)


def fan_out(load: Load) -> Result:
    """Append single records one after the other, and measure when every watcher has each."""
    load.create()
    result = Result(name="fan-out", of=f"a delivery to {load.connections} watchers")
    listeners = [Listener(load.server.again(), load.topic) for _ in range(load.connections)]
    for listener in listeners:
        listener.start()
    for listener in listeners:
        listener.ready.wait(10)
        if listener.problem is not None:
            raise listener.problem
    request, began = load.write(1), time.perf_counter()
    while (start := time.perf_counter()) < began + load.seconds or not result.times_ms:
        seq = json.loads(load.server.send(request))["last_seq"]
        result.times_ms.append((max(listener.arrival(seq) for listener in listeners) - start) * 1000)
        result.records += len(listeners)
    result.took_s = time.perf_counter() - began
    return result


def queue(load: Load) -> Result:
    """Append, claim and ack jobs, ten at a time."""
    load.create(type="queue")
    request, numbers = load.write(CLAIM_JOBS), iter(range(load.connections))

    def make() -> Step:
        node = f"bench-{next(numbers)}"

        def step(server: Server) -> int:
            server.send(request)
            body = {"node": node, "max": CLAIM_JOBS}
            claimed = server.json(post(topic_path(load.topic, "claim"), body, safe=False))["claimed"]
            if claimed:
                seqs = [job["$seq"] for job in claimed]
                server.send(post(topic_path(load.topic, "ack"), {"node": node, "seqs": seqs}))
            return len(claimed)

        return step

    return _repeat(load, Result(name="queue", of=f"append, claim, ack of {CLAIM_JOBS}"), make)
