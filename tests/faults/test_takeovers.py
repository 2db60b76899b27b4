"""Real servers: a standby takes over again and again, from a writer under load that is killed, stopped or cut off.

No write to a `replicated` topic that was acknowledged is lost, no seq is given out twice, and a former writer that goes
on acknowledges nothing. `TOPICS_TAKEOVERS=10 pytest -m torture tests/faults/test_takeovers.py` is a shorter run.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.conftest import ServerProcess
from tests.faults.test_replica_processes import append, call, read
from tests.faults.test_standby_processes import begin, running, takes_writes, wait_for

TAKEOVERS = int(os.environ.get("TOPICS_TAKEOVERS", "100"))
WAYS = ("kill", "stop", "cut")
AFTER_MS = 2_000


class Bucket:
    """One directory as a bucket. Each server reaches it through a directory of its own, which can be cut off."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._first: Path | None = None
        for folder in ("log", "files", "standbys"):
            (path / "replica" / folder).mkdir(parents=True)

    def url(self, name: str) -> str:
        own = self._path / f"by-{name}"
        own.mkdir()
        for folder in ("log", "files", "standbys"):
            (own / folder).symlink_to(self._path / "replica" / folder)
        if self._first is not None:
            shutil.copy(self._first / "replica", own / "replica")  # the identity is written once
        self._first = self._first or own
        return f"file://{own}"

    def cut(self, name: str) -> None:
        """Let every request of a server fail that concerns the sequence."""
        (self._path / "no-folder").write_text("")
        (self._path / "no-folder").rename(self._path / f"by-{name}" / "log")

    def heal(self, name: str) -> None:
        (self._path / "link").symlink_to(self._path / "replica" / "log")
        (self._path / "link").rename(self._path / f"by-{name}" / "log")


class Load:
    """Four clients that write to a `replicated` topic and to another one, until the writer refuses."""

    def __init__(self) -> None:
        self.acked: dict[str, dict[int, str]] = {"sure": {}, "plain": {}}
        self.twice: list[tuple[str, int]] = []
        self._clients: list[threading.Thread] = []

    def begin(self, server: ServerProcess, name: str, wanted: int) -> None:
        """Write, and return once so many replicated writes are acknowledged. The clients go on."""
        before = len(self.acked["sure"])
        self._clients = [
            threading.Thread(target=self._write, args=(server, f"{name}c{at}-"), daemon=True) for at in range(4)
        ]
        for client in self._clients:
            client.start()
        # They end early if a busy machine lets the writer stand still, and the standby takes over by itself.
        wait_for(lambda: len(self.acked["sure"]) >= before + wanted or not self._run(), 60)

    def _run(self) -> bool:
        return any(client.is_alive() for client in self._clients)

    def end(self) -> None:
        for client in self._clients:
            client.join(30)
        assert not self._run()

    def _write(self, server: ServerProcess, client: str) -> None:
        number = 0
        while True:
            number += 1
            for topic, acked in self.acked.items():
                data = f"{client}{number}"
                try:
                    seq = append(server, topic, data, idempotency_key=data)
                except (OSError, http.client.HTTPException, AssertionError):
                    return
                if acked.setdefault(seq, data) != data:
                    self.twice.append((topic, seq))

    def check(self, server: ServerProcess) -> None:
        """Compare what was acknowledged with what the last writer has."""
        assert self.twice == []
        records, gaps = read(server, "sure")
        assert gaps == []
        assert {seq: records.get(seq) for seq in self.acked["sure"]} == self.acked["sure"]
        records, gaps = read(server, "plain")
        for seq, data in self.acked["plain"].items():
            reported = any(low <= seq <= high and reason == "failover" for low, high, reason in gaps)
            assert seq not in records if reported else records.get(seq) == data, seq


def take_over(bucket: Bucket, load: Load, writer: ServerProcess, standby: ServerProcess, name: str, way: str) -> None:
    """End the writer in some way, wait for the standby, and let the former writer go on if it can."""
    if way == "kill":
        writer.kill()
    elif way == "stop":
        writer.process.send_signal(signal.SIGSTOP)
    else:
        bucket.cut(name)
    wait_for(lambda: takes_writes(standby), 60)
    if way == "stop":
        writer.process.send_signal(signal.SIGCONT)
    elif way == "cut":
        bucket.heal(name)
    if way != "kill":
        status, answer = call(writer, "POST", "topics/sure", {"records": [{"data": "late"}]})
        assert (status, answer["error"]["code"]) in ((503, "fenced"), (503, "replica_unavailable"))
    load.end()
    writer.kill()


def takeovers(running: list[ServerProcess], tmp_path: Path, count: int) -> Load:
    bucket, load, random = Bucket(tmp_path), Load(), Random(count)
    writer, name = begin(running, tmp_path, "n0", replica=bucket.url("n0"), takeover_after_ms=AFTER_MS), "n0"
    call(writer, "PUT", "topics/sure", {"durability": "replicated"})
    for number in range(1, count + 1):
        successor = f"n{number}"
        standby = begin(
            running, tmp_path, successor, replica=bucket.url(successor), standby=True, takeover_after_ms=AFTER_MS
        )
        load.begin(writer, f"r{number}", random.randrange(10, 80))
        take_over(bucket, load, writer, standby, name, WAYS[number % 3])
        shutil.rmtree(tmp_path / name)
        running.remove(writer)
        writer, name = standby, successor
    load.check(writer)
    return load


def test_takeovers_under_load_lose_and_repeat_nothing(running: list[ServerProcess], tmp_path: Path):
    assert len(takeovers(running, tmp_path, 3).acked["sure"]) > 0


@pytest.mark.torture
def test_many_takeovers_under_load_lose_and_repeat_nothing(
    running: list[ServerProcess], tmp_path: Path, counts: Callable[..., None]
):
    load = takeovers(running, tmp_path, TAKEOVERS)
    counts(takeovers=TAKEOVERS, replicated=len(load.acked["sure"]), others=len(load.acked["plain"]))


__all__ = ["running"]
