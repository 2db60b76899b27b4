"""A real day: worker processes of which a third die without a word, and a server that is killed in the middle of it."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.conftest import ServerProcess
from tests.queues.worker import LEASE_MS

WORKER = Path(__file__).with_name("worker.py")
SLACK_MS = 5  # between the server's clock reading and the worker's, on one machine


@dataclass
class Ledger:
    """What one worker wrote down."""

    killed: bool
    got: list[tuple[int, int, int, int]] = field(default_factory=list)  # when granted, seq, deliveries, deadline
    acked: dict[int, int] = field(default_factory=dict)  # seq → ms
    doubted: set[int] = field(default_factory=set)
    ended: bool = False

    @classmethod
    def read(cls, path: Path, *, killed: bool) -> Ledger:
        ledger = cls(killed)
        for line in path.read_text().splitlines() if path.exists() else ():
            word, ms, seq, *rest = line.split()
            match word:
                case "got":
                    # The server's own time: a slow worker may read the answer long after the server was killed.
                    granted_ms = int(rest[1]) - LEASE_MS
                    assert granted_ms <= int(ms) + SLACK_MS
                    ledger.got.append((granted_ms, int(seq), int(rest[0]), int(rest[1])))
                case "ack":
                    assert int(seq) not in ledger.acked
                    ledger.acked[int(seq)] = int(ms)
                case "doubt":
                    ledger.doubted.add(int(seq))
                case "end":
                    ledger.ended = True
        return ledger


def run_day(tmp_path: Path, *, workers: int, jobs: int, takes_s: float, seed: int) -> tuple[list[Ledger], list[int]]:
    """The workers' ledgers, and the moments at which the server was killed."""
    rng = Random(seed)
    settings: dict[str, object] = {"data_dir": tmp_path / "data", "segment_max_events": 512}
    server = ServerProcess(tmp_path / "server", settings)
    kills: list[int] = []
    crew: list[subprocess.Popen[bytes]] = []
    try:
        with httpx.Client(base_url=server.url, trust_env=False, verify=False, timeout=30) as http:
            http.put("/v0/topics/jobs", json={"type": "queue", "durability": "fsync"}).raise_for_status()
            for start in range(0, jobs, 1000):
                records = [{"data": number} for number in range(start, min(start + 1000, jobs))]
                http.post("/v0/topics/jobs", json={"records": records}).raise_for_status()
        for number in range(workers):
            command = [sys.executable, "-S", str(WORKER), str(tmp_path / "server" / "port")]
            command += [str(tmp_path / f"ledger{number}"), f"worker-{number}", str(takes_s)]
            crew.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        doomed = rng.sample(range(workers), workers // 3)
        for at, number in enumerate(doomed):
            _wait_for_progress(tmp_path, workers, jobs * (at + 1) // (len(doomed) + 2))
            crew[number].kill()
            if at == len(doomed) // 2:
                server.kill()
                kills.append(time.time_ns() // 1_000_000)  # between the last grant before the kill and the next one
                server = ServerProcess(tmp_path / "server", settings)
        for number, worker in enumerate(crew):
            status = worker.wait(180)
            assert status == (-9 if number in doomed else 0)
        with httpx.Client(base_url=server.url, trust_env=False, verify=False) as http:
            state = http.get("/v0/topics/jobs").json()
        assert (state["count"], state["queue"]["in_flight"], state["queue"]["ready"]) == (0, 0, 0)
        return [Ledger.read(tmp_path / f"ledger{n}", killed=n in doomed) for n in range(workers)], kills
    finally:
        for worker in crew:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
        server.stop()


def _wait_for_progress(tmp_path: Path, workers: int, wanted: int) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        paths = [tmp_path / f"ledger{number}" for number in range(workers)]
        if sum(path.read_bytes().count(b"ack ") for path in paths if path.exists()) >= wanted:
            return
        time.sleep(0.05)
    raise AssertionError("the workers do not get on")


def check(ledgers: list[Ledger], kills: list[int], jobs: int) -> dict[str, int]:
    acked: dict[int, int] = {}
    for ledger in ledgers:
        assert not acked.keys() & ledger.acked.keys(), "acked twice"
        acked |= ledger.acked
        assert ledger.ended != ledger.killed
    everything = set(range(1, jobs + 1))
    assert acked.keys() <= everything
    unsure = {seq for ledger in ledgers for seq in ledger.doubted}
    unsure |= {seq for ledger in ledgers if ledger.killed for _, seq, _, _ in ledger.got}
    assert everything - acked.keys() <= unsure, "deleted without an acknowledged ack"
    got = sorted(entry for ledger in ledgers for entry in ledger.got)
    last: dict[int, tuple[int, int]] = {}  # seq → when it went out, until when
    again = 0
    for granted_ms, seq, deliveries, deadline in got:
        assert seq not in acked or granted_ms <= acked[seq] + SLACK_MS, "delivered after it was acked"
        if seq in last:
            again += 1
            before_ms, before_deadline = last[seq]
            forgotten = any(before_ms <= kill <= granted_ms for kill in kills)
            assert forgotten or granted_ms + SLACK_MS > before_deadline, "two workers held it at once"
            assert forgotten or deliveries > 1
        last[seq] = granted_ms, deadline
    return {"jobs": jobs, "acked": len(acked), "unsure": len(everything - acked.keys()), "redelivered": again}


@pytest.mark.torture
def test_workers_finish_all_jobs_although_a_third_of_them_dies(tmp_path: Path):
    ledgers, kills = run_day(tmp_path, workers=9, jobs=1500, takes_s=0.02, seed=7)
    check(ledgers, kills, 1500)


@pytest.mark.torture
def test_fifty_workers_finish_twenty_thousand_jobs(tmp_path: Path):
    ledgers, kills = run_day(tmp_path, workers=50, jobs=20_000, takes_s=0.05, seed=11)
    print(check(ledgers, kills, 20_000))
