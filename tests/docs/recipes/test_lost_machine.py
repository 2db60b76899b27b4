"""docs/recipes/lost-machine.md: programs with two addresses go on after a takeover, and read what was lost."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ServerProcess
from tests.docs.programs import Program, Programs
from tests.faults.test_replica_processes import topics as command

FAST = {"replica_interval_ms": 50, "takeover_after_ms": 900}


class Pair:
    """A writer and a standby of one replica, and the programs of the page with their addresses."""

    def __init__(self, directory: Path, settings: dict[str, object]) -> None:
        self.replica = f"file://{directory}/replica"
        self._directory, self._settings = directory, {"replica": self.replica, **settings}
        self.writer = self._start("one")
        self.standby = self._start("two", standby=True)
        shown = "http://127.0.0.1:4000,http://127.0.0.1:4001"
        addresses = f"{self.writer.url},{self.standby.url}"
        self.programs = Programs("recipes/lost-machine.md", directory, {shown: addresses})

    def _start(self, name: str, **settings: object) -> ServerProcess:
        known = {"data_dir": self._directory / name, **self._settings, **settings}
        return ServerProcess(self._directory / f"{name}-server", known)

    def end(self) -> None:
        for server in (self.writer, self.standby):
            if server.process.poll() is None:
                server.kill()


class Acks:
    """What the till printed: seqs by number, and how long each pair of writes took."""

    def __init__(self, till: Program) -> None:
        self._till = till
        self.orders: dict[int, int] = {}
        self.clicks: dict[int, int] = {}
        self.longest_s = 0.0

    def take(self) -> int:
        number, order, click, took_s = re.findall(r"[\d.]+", self._till.line())
        self.orders[int(number)], self.clicks[int(number)] = int(order), int(click)
        self.longest_s = max(self.longest_s, float(took_s))
        return int(number)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, FAST)
    yield made
    made.end()


def kill_under_load(pair: Pair) -> float:
    """Kill the writer while the till runs. Return the seconds from then to the next acknowledged write."""
    with pair.programs.start("till.py") as till:
        acks = Acks(till)
        while acks.take() < 60:
            pass
        pair.writer.kill()
        killed = time.monotonic()
        before = max(acks.orders)
        while acks.take() < before + 3 or acks.longest_s < 0.5:  # lines that were printed before, and the first after
            pass
        took_s = time.monotonic() - killed
        last = acks.take()
    lines = pair.programs.run("audit.py")
    assert not [line for line in lines if line.startswith("orders") and "lost" in line], "replicated: nothing is lost"
    printed = "\n".join(lines)
    assert int(re.findall(r"orders: (\d+) records", printed)[0]) >= last, "an acknowledged order is missing"
    assert list(acks.orders.values()) == list(acks.orders), "no order was written twice, although answers were lost"
    lost = [
        tuple(map(int, found)) for found in re.findall(r"clicks: (\d+) to (\d+) lost \(failover\)", "\n".join(lines))
    ]
    assert len(lost) == 1, lines
    [(first, end)] = lost
    clicks = sorted(acks.clicks.values())
    missing = [seq for seq in clicks if first <= seq <= end]
    kept = int(re.findall(r"clicks: (\d+) records", printed)[0])
    assert kept >= len(clicks) - len(missing), "a click that no gap names is missing"
    assert clicks[-1] > end, "no seq is given out twice"
    return took_s


def test_till_goes_on_after_the_writer_was_killed(pair: Pair) -> None:
    kill_under_load(pair)


@pytest.mark.torture
def test_till_goes_on_within_20_seconds_with_the_defaults(tmp_path: Path) -> None:
    pair = Pair(tmp_path, {})
    try:
        # A new standby waits twice as long before its first takeover, so that the writer has noticed it.
        time.sleep(16)
        took_s = kill_under_load(pair)
        print(f"{took_s:.1f} s from the kill to the first acknowledged write")
        assert took_s < 20
    finally:
        pair.end()


def test_promote_is_a_pause_without_an_error_or_a_loss(pair: Pair) -> None:
    with pair.programs.start("till.py") as till:
        acks = Acks(till)
        while acks.take() < 60:
            pass
        done = command("replica", "promote", pair.replica)
        assert done.returncode == 0, done.stderr
        assert pair.writer.process.wait(20) == 0
        ended = max(acks.orders)
        while acks.take() < ended + 100:
            pass
    lines = pair.programs.run("audit.py")
    assert not [line for line in lines if "lost" in line]
    assert list(acks.orders.values()) == list(acks.clicks.values()) == list(acks.orders)
    print(f"the longest write took {acks.longest_s:.1f} s")
