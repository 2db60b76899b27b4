"""Pipelines that are killed with `kill -9` and started again: nothing is lost and nothing comes twice."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.spark.processes import Process, Server, slim_home, wait_for
from topics.client import Client
from topics.client.request import Record
from topics.spark.pipelines.mirror_task import hops_of

SEED = 20
MINUTE = 60_000
BASE = 1_700_000_040_000  # on a full minute


def pipeline(log: Path, *arguments: object) -> Process:
    """`topics pipeline …`, in a process of its own."""
    command = [sys.executable, "-m", "topics", "pipeline", *map(str, arguments), "--master", "local[2]"]
    return Process(command, log, SPARK_HOME=slim_home())


def run_to_its_end(log: Path, *arguments: object) -> str:
    """Return the output of this run and of the runs before it."""
    running = pipeline(log, *arguments)
    try:
        running.succeed()
    finally:
        running.kill()
    return running.log()


def kill_driver(process: Process) -> None:
    """Kill only the driver: its tasks may run for a moment and still write, as on a cluster."""
    os.kill(process.pid, signal.SIGKILL)
    process.process.wait()


@pytest.fixture
def two_servers(tmp_path: Path) -> Iterator[list[Server]]:
    servers = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        servers.append(Server(tmp_path / name))
    yield servers
    for server in servers:
        server.kill()


def local_and_copied(client: Client, topic: str) -> tuple[list[int], list[int]]:
    """Return the seqs of records written here, and the original seqs of copied records."""
    own, copied = [], []
    for item in client.read(topic):
        assert isinstance(item, Record)
        hops = hops_of(bytes(item.meta)) if item.meta else []
        if hops:
            assert len(hops) == 1, "no record comes back"
            copied.append(hops[0].seq)
        else:
            own.append(item.seq)
    return own, copied


def check_converged(servers: list[Server], topic: str) -> None:
    with Client(servers[0].url) as one, Client(servers[1].url) as other:
        (own, copied), (other_own, other_copied) = local_and_copied(one, topic), local_and_copied(other, topic)
    for written, arrived in ((own, other_copied), (other_own, copied)):
        assert sorted(set(written) - set(arrived)) == [], "lost"
        assert [seq for seq, times in Counter(arrived).items() if times > 1] == [], "doubled"
        assert arrived == written, "in the order of their source"


def head(server: Server, topic: str) -> int:
    with Client(server.url) as client:
        return next((row.head_seq for row in client.topics(topic)), 0)


@pytest.mark.torture
def test_killed_mirror_copies_every_record_once(two_servers: list[Server], tmp_path: Path):
    one, other = two_servers
    count = 48_000  # one step: it takes a while
    for server in two_servers:
        with Client(server.url) as client:
            for at in range(0, count, 4000):
                client.append("t", [{"data": {"n": at + n}} for n in range(4000)])
    where = ("mirror", "--from", one.url, "--to", other.url, "--prefix", "t", "--both-ways")
    driver = pipeline(tmp_path / "driver.log", *where)
    try:
        wait_for(lambda: head(other, "t") > count + 1000, "the mirror", every_s=0.002)
        assert head(other, "t") < 2 * count
    finally:
        kill_driver(driver)

    try:
        printed = run_to_its_end(tmp_path / "driver.log", *where, "--json")
    finally:
        driver.kill()
    check_converged(two_servers, "t")
    assert '"repeated"' in printed, "the report counts the records of an earlier run"


# --- the long runs


def output(table: Path | None, topic: str) -> tuple[str, str]:
    return ("--into", topic) if table is None else ("--table", str(table))


class Load:
    """Writes records continuously."""

    def __init__(self, write: Callable[[int], None]) -> None:
        self.stopping = threading.Event()
        self.count = 0
        self._write = write
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self.stopping.wait(0.02):
            self._write(self.count)
            self.count += 1

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join()


def kill_now_and_then(
    chance: random.Random, start: Callable[[], Process], position: Callable[[], int], times: int
) -> None:
    """Lets it work until it has moved its position some times, kills it at any point of the next step, and repeats."""
    for _ in range(times):
        running = start()
        try:
            _let_work(running, position, steps=chance.randrange(2, 9))
            time.sleep(chance.uniform(0, 0.4))  # a random moment
        finally:
            (kill_driver if chance.random() < 0.7 else Process.kill)(running)


def _let_work(running: Process, position: Callable[[], int], *, steps: int) -> None:
    until = position() + steps

    def look() -> bool:
        assert running.is_alive(), running.log()[-4000:]
        return position() > until

    wait_for(look, "the pipeline", every_s=0.005)


def positions_of(server: Server, table: Path | None = None) -> Callable[[], int]:
    """Return a function that counts the saved positions: in the table if there is one, else on the server."""
    if table is None:
        return lambda: head(server, "sys:positions")
    return lambda: max((int(path.stem) for path in (table / "_delta_log").glob("[0-9]*.json")), default=0)


@pytest.mark.torture
def test_two_servers_under_load_converge_after_kills(two_servers: list[Server], tmp_path: Path):
    chance = random.Random(SEED)
    one, other = two_servers
    clients = [Client(server.url, retries=30) for server in two_servers]

    def write(number: int) -> None:
        side = number % 2
        records: list[dict[str, Any]] = [{"data": {"n": number, "at": at}} for at in range(chance.randrange(1, 120))]
        if number % 3:
            records = [{**record, "node": f"node-{side}", "tag": f"t{number % 5}"} for record in records]
        clients[side].append("t", records, idempotency_key=f"load-{number}")

    load = Load(write)
    where = ("mirror", "--from", one.url, "--to", other.url, "--prefix", "t", "--both-ways")
    try:

        def start() -> Process:
            return pipeline(tmp_path / "driver.log", *where, "--follow")

        kill_now_and_then(chance, start, positions_of(other), 6)
        other.kill()
        other.start()
        kill_now_and_then(chance, start, positions_of(other), 2)
    finally:
        load.stop()
        for client in clients:
            client.close()
    run_to_its_end(tmp_path / "driver.log", *where)
    check_converged(two_servers, "t")
    assert load.count > 100


@pytest.mark.torture
@pytest.mark.parametrize("kind", ["topic", "table"])
def test_killed_rollup_writes_every_window_once(two_servers: list[Server], tmp_path: Path, kind: str):
    table = tmp_path / "sums" if kind == "table" else None
    chance = random.Random(SEED)
    server = two_servers[0]
    client = Client(server.url, retries=30)
    model: Counter[int] = Counter()

    def write(number: int) -> None:
        minutes = [number // 5 + chance.randrange(3) for _ in range(chance.randrange(1, 60))]
        records = [{"data": {"at": BASE + minute * MINUTE}} for minute in minutes]
        client.append("t", records, idempotency_key=f"load-{number}")
        model.update(minutes)

    load = Load(write)
    where = (
        "rollup", "--url", server.url, "--topic", "t", *output(table, "sums"), "--window", "1 minute",
        "--time", "timestamp_millis(value:at::bigint)", "--watermark", "5 minutes",
    )  # fmt: skip
    try:

        def start() -> Process:
            return pipeline(tmp_path / "driver.log", *where, "--follow", "--every", "0.1")

        kill_now_and_then(chance, start, positions_of(server, table), 5)
    finally:
        load.stop()
    last = max(model)
    client.append("t", [{"data": {"at": BASE + (last + 100) * MINUTE}}])
    printed = run_to_its_end(tmp_path / "driver.log", *where, "--json")
    if table is None:
        found = [item.value for item in client.read("sums") if isinstance(item, Record)]
    else:
        found = pl.read_delta(str(table)).to_dicts()
    client.close()
    assert len({str(row["window"]["start"]) for row in found}) == len(found), "doubled"
    assert sorted(row["count"] for row in found) == sorted(model.values())
    assert '"late": 0' in printed


@pytest.mark.torture
@pytest.mark.parametrize("kind", ["topic", "table"])
def test_killed_compaction_holds_the_latest_of_every_key(two_servers: list[Server], tmp_path: Path, kind: str):
    table = tmp_path / "latest" if kind == "table" else None
    chance = random.Random(SEED)
    server = two_servers[0]
    client = Client(server.url, retries=30)
    model: dict[str, int] = {}

    def write(number: int) -> None:
        tags = [f"k{chance.randrange(300)}" for _ in range(chance.randrange(1, 60))]
        client.append("t", [{"data": number, "tag": tag} for tag in tags], idempotency_key=f"load-{number}")
        model.update(dict.fromkeys(tags, number))

    load = Load(write)
    where = ("compact", "--url", server.url, "--topic", "t", *output(table, "latest"))
    try:

        def start() -> Process:
            return pipeline(tmp_path / "driver.log", *where, "--follow", "--every", "0.1")

        kill_now_and_then(chance, start, positions_of(server, table), 5)
    finally:
        load.stop()
    run_to_its_end(tmp_path / "driver.log", *where)
    if table is None:
        records = [item for item in client.read("latest", include_tags=True) if isinstance(item, Record)]
        found = [(record.tag, record.value) for record in records]
    else:
        found = [(key, int(data)) for key, data in pl.read_delta(str(table)).select("key", "data").iter_rows()]
    client.close()
    assert len({key for key, _ in found}) == len(found), "one record a key"
    assert dict(found) == model
