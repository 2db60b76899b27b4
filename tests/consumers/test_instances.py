"""Two instances of one consumer with compare-and-set, through kills of the server and of the instances."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import ServerProcess
from tests.consumers import instance
from tests.consumers.instance import Lost, call
from tests.sampling import SEED, amount

TOPIC, NAME = "orders", "billing"
WAIT_S = 60


class Shift:
    """A server that is killed and restarted, two instances that are killed and replaced, and one writer."""

    def __init__(self, directory: Path, durability: str) -> None:
        self.directory = directory
        self.port_file = directory / "port"
        self.server = self._start()
        assert call(self.port_file, "PUT", f"/v0/topics/{TOPIC}", {"durability": durability})[0] == 201
        self.instances = [self._instance(at) for at in range(2)]
        self.written = 0
        self.positions: list[int] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._write, self._observe)]
        for thread in self._threads:
            thread.start()

    def _start(self) -> ServerProcess:
        return ServerProcess(self.directory, {"data_dir": self.directory / "data"})

    def _instance(self, at: int) -> subprocess.Popen[bytes]:
        out = self.directory / f"processed{at}"
        command = [sys.executable, instance.__file__, str(self.port_file), TOPIC, NAME, str(out)]
        return subprocess.Popen(command)

    def _write(self) -> None:
        while not self._stop.is_set():
            body = {"records": [{"data": 1}] * 5, "idempotency_key": f"k{self.written}"}
            try:
                status, _ = call(self.port_file, "POST", f"/v0/topics/{TOPIC}", body)
                assert status == 200
                self.written += 5
            except Lost:
                time.sleep(0.01)

    def _observe(self) -> None:
        while not self._stop.is_set():
            try:
                status, found = call(self.port_file, "GET", f"/v0/topics/{TOPIC}/consumers/{NAME}")
                if status == 200:
                    self.positions.append(found["seq"])
            except Lost:
                pass
            time.sleep(0.002)

    def kill_server(self) -> None:
        self.server.kill()
        self.server = self._start()

    def kill_instance(self, at: int) -> None:
        self.instances[at].send_signal(signal.SIGKILL)
        self.instances[at].wait()
        self.instances[at] = self._instance(at)

    def progress(self) -> None:
        """Wait until the consumer has moved."""
        self._wait(self.position() + 20)

    def finish(self) -> int:
        """Stop the writer, let the instances come to the end, and return how many records there are."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        head = int(call(self.port_file, "GET", f"/v0/topics/{TOPIC}")[1]["head_seq"])
        self._wait(head)
        for one in self.instances:
            one.kill()
            one.wait()
        self.server.stop()
        return head

    def position(self) -> int:
        try:
            return int(call(self.port_file, "GET", f"/v0/topics/{TOPIC}/consumers/{NAME}")[1].get("seq", 0))
        except Lost:
            return 0

    def _wait(self, seq: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.position() < seq:
            assert time.monotonic() < deadline, "the consumer does not move"
            assert all(one.poll() is None for one in self.instances), "an instance has failed"
            time.sleep(0.01)

    def processed(self) -> set[int]:
        lines = [(self.directory / f"processed{at}").read_text().splitlines() for at in range(2)]
        return {int(line) for line in [*lines[0], *lines[1]]}


@pytest.mark.parametrize("rounds", [2, pytest.param(amount(20, 100), marks=pytest.mark.torture)])
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_two_instances_process_every_record_through_kills(tmp_path: Path, durability: str, rounds: int):
    shift, chance = Shift(tmp_path, durability), random.Random(SEED)
    for _ in range(rounds):
        shift.progress()
        shift.kill_server()
        shift.progress()
        shift.kill_instance(chance.randrange(2))
    head = shift.finish()
    assert head >= shift.written
    assert shift.processed() >= set(range(1, head + 1)), "a record was acknowledged and never processed"
    assert shift.positions == sorted(shift.positions), "the position moved back"
    assert len(set(shift.positions)) > rounds
