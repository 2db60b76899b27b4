"""One worker process: claims, does nothing for a moment, acks, and writes down what happened and when.

    python worker.py <port file> <ledger file> <node> <seconds a batch takes>

The port is read again for every connection: the server may restart on another one. A line of the ledger is whole
or not there: `got <ms> <seq> <deliveries> <deadline>`, `ack <ms> <seq>`, `doubt <ms> <seq>` (the answer never came),
`late <ms> <seq>` (another worker had the lease by then), `end <ms> 0`.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from typing import Any

BATCH = 8
LEASE_MS = 2500
IDLE_ROUNDS = 12


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Worker:
    def __init__(self, port_file: str, ledger: str, node: str, takes_s: float) -> None:
        self._port_file = port_file
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._node = node
        self._takes_s = takes_s
        self._link: http.client.HTTPConnection | None = None

    def note(self, *lines: str) -> None:
        os.write(self._ledger, "".join(f"{line}\n" for line in lines).encode())

    def ask(self, verb: str, **body: Any) -> Any:
        """The answer, or None if the server was not there to give one."""
        try:
            if self._link is None:
                with open(self._port_file) as file:
                    self._link = http.client.HTTPConnection("127.0.0.1", int(file.read()), timeout=10)
            text = json.dumps({"node": self._node} | body)
            self._link.request("POST", f"/v0/topics/jobs/{verb}", text, {"content-type": "application/json"})
            answer = self._link.getresponse()
            found = json.loads(answer.read())
            return found if answer.status == 200 else None
        except (OSError, ValueError, http.client.HTTPException):
            if self._link is not None:
                self._link.close()
            self._link = None
            time.sleep(0.05)
            return None

    def run(self) -> None:
        idle = 0
        while idle < IDLE_ROUNDS:
            claimed = self.ask("claim", max=BATCH, lease_ms=LEASE_MS, wait_ms=500)
            if claimed is None:
                continue
            jobs = claimed["claimed"]
            idle = 0 if jobs else idle + 1
            if jobs:
                self.work(jobs)
        self.note(f"end {now_ms()} 0")

    def work(self, jobs: list[Any]) -> None:
        at = now_ms()
        self.note(*(f"got {at} {job['$seq']} {job['deliveries']} {job['deadline']}" for job in jobs))
        time.sleep(self._takes_s)
        seqs = [job["$seq"] for job in jobs]
        done = self.ask("ack", seqs=seqs, lease_ids=[job["lease_id"] for job in jobs])
        at = now_ms()
        if done is None:
            self.note(*(f"doubt {at} {seq}" for seq in seqs))
        else:
            self.note(*(f"{'late' if seq in done['skipped'] else 'ack'} {at} {seq}" for seq in seqs))


if __name__ == "__main__":
    Worker(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])).run()
