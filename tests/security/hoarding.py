"""A server that clients hoard on, and what each way of doing so costs it.

`python -m tests.security.hoarding BUDGET_MIB [NAME...]` prints the figures of the ways in `ways.py`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.conftest import ServerProcess
from tests.security.hoard import BIG, CAPPED, KEYED, MIB, QUEUE, QUIET, Hoard, charged, send
from tests.security.ways import WAYS

RECORD_BYTES = 512 << 10
RELEASE_S = 150  # until the server has noticed that clients are gone, and has given memory back
LEFT_BYTES = 64 << 10  # connections that were not noticed to be closed yet
SLACK_BYTES, SLACK_SHARE = 32 * MIB, 16  # of resident memory: allocations do not fit each other


class Target:
    """A server with a budget and something to read, and what it holds."""

    def __init__(self, directory: Path, budget_bytes: int, *, ulimit: str = "") -> None:
        self.budget_bytes = budget_bytes
        self.slack_bytes = SLACK_BYTES + budget_bytes // SLACK_SHARE
        keep_ms = 3000 if budget_bytes <= 64 * MIB else 60_000  # until the last of many was made
        settings = {
            "data_dir": directory / "data", "memory_budget_bytes": budget_bytes, "session_ttl_ms": keep_ms,
            "max_body_bytes": 63 * MIB, "pressure_lag_ms": 0, "header_timeout_ms": 60_000,
        }  # fmt: skip
        self.server = ServerProcess(directory, settings, ulimit=ulimit)
        self.send("PUT", f"/v0/topics/{QUIET}", {})
        self.send("PUT", f"/v0/topics/{QUEUE}", {"type": "queue"})
        self.send("PUT", f"/v0/topics/{CAPPED}", {"cap_records": 10})
        self.send("PUT", f"/v0/topics/{KEYED}", {"cap_records": 10, "idempotency_window_ms": 3_600_000})
        text = "x" * RECORD_BYTES
        for _ in range(16):
            self.send("POST", f"/v0/topics/{BIG}", {"records": [{"data": text, "tag": "t"}]})
        for _ in range(hoarded_jobs(budget_bytes)):
            self.send("POST", f"/v0/topics/{QUEUE}", {"records": [{"data": text}]})
        self.hoard("unread_answers", few=True)  # whatever is made once is made by now

    def hoard(self, name: str, *, few: bool = False) -> Hoard:
        hoard = Hoard(self.server.port, MIB if few else self.budget_bytes)
        if few:
            hoard.most = 2
        try:
            WAYS[name](hoard)
        except BaseException:
            hoard.close()
            raise
        if few:
            hoard.close()
        return hoard

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return send(self.server.port, method, path, body)

    def charged(self) -> dict[str, int]:
        return charged(self.server.port)

    def memory_bytes(self, row: str) -> int:
        """`VmRSS`, or `VmHWM` for the peak."""
        text = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(text.partition(f"{row}:")[2].split()[0]) * 1024

    def wait_for_release(self) -> int:
        """Return what is still charged once that is next to nothing, or a deadline has passed."""
        deadline = time.monotonic() + RELEASE_S
        while (left := sum(self.charged().values())) > LEFT_BYTES and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def wait_for_memory(self, most_bytes: int) -> int:
        deadline = time.monotonic() + RELEASE_S
        while (now := self.memory_bytes("VmRSS")) > most_bytes and time.monotonic() < deadline:
            time.sleep(0.02)
        return now

    def forget_peak(self) -> None:
        Path(f"/proc/{self.server.process.pid}/clear_refs").write_text("5")


def hoarded_jobs(budget_bytes: int) -> int:
    return min(2 * budget_bytes // RECORD_BYTES, 256)


class Figures:
    """What one way cost the server, in bytes of memory; and what was charged when the server refused."""

    def __init__(self, target: Target, name: str) -> None:
        target.forget_peak()
        self.base = target.memory_bytes("VmRSS")
        hoard = target.hoard(name)
        self.refusals = hoard.refusals
        self.held = target.memory_bytes("VmRSS")
        self.charged = target.charged()
        self.small = [
            target.send("POST", f"/v0/topics/{CAPPED}", {"records": [{"data": 1}]})[0],
            target.send("POST", f"/v0/topics/{CAPPED}/diff", {})[0],
            target.send("GET", "/v0/health")[0],
        ]
        hoard.close()
        for topic in (QUIET, BIG):  # answers polls, so that closed connections are detected
            target.send("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]})
        target.send("DELETE", f"/v0/topics/{KEYED}")  # with its keys, which would be kept for an hour
        self.left = target.wait_for_release()
        self.after = target.wait_for_memory(self.base + target.slack_bytes)
        self.peak = target.memory_bytes("VmHWM")

    def __str__(self) -> str:
        sizes = " ".join(f"{size / MIB:6.0f}" for size in (self.base, self.peak, self.held, self.after))
        shown = {account: size // MIB for account, size in self.charged.items() if size >= MIB}
        return f"{sizes}  {self.refusals} refused, small requests {self.small}, charged {shown}"


def main() -> None:
    with TemporaryDirectory(prefix="hoarding") as directory:
        target = Target(Path(directory), int(sys.argv[1]) * MIB)
        print(f"{'MiB':26} {'base':>6} {'peak':>6} {'held':>6} {'after':>6}")
        for name in sys.argv[2:] or WAYS:
            began = time.monotonic()
            print(f"{name:26} {Figures(target, name)}, {time.monotonic() - began:.0f} s", flush=True)
        target.server.stop()


if __name__ == "__main__":
    main()
