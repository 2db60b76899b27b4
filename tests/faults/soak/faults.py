"""Faults on a schedule, and the table of a run: requests, errors, latencies by minute, memory, descriptors, disk."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.faults.soak.target import Target

HOLD_S = 3.0  # how long a fault lasts
UNREAD = 500  # connections that ask and do not read


class Faults:
    """Each fault in turn, at equal distances over the run."""

    def __init__(self, target: Target, *, names: str) -> None:
        self._target = target
        known: dict[str, Callable[[], Awaitable[None]]] = {
            "slow": self._slow, "stop": self._stop, "unread": self._unread, "kill": target.restart,
        }  # fmt: skip
        if unknown := set(filter(None, names.split(","))) - known.keys():
            raise ValueError(f"unknown faults {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        self.schedule = [(name, known[name]) for name in names.split(",") if name]

    async def run(self, seconds: float) -> None:
        began = time.monotonic()
        for number, (name, inject) in enumerate(self.schedule, 1):
            await asyncio.sleep(max(0, began + seconds * number / (len(self.schedule) + 1) - time.monotonic()))
            if self._target.over:
                return
            self._target.tally[f"fault {name}"] += 1
            await inject()

    async def _slow(self) -> None:
        """Let each sync take half a second longer."""
        flag = self._target.directory / "slow"
        flag.touch()
        await asyncio.sleep(HOLD_S)
        flag.unlink()

    async def _stop(self) -> None:
        """Stop the process as a debugger or a host without memory does, and let it go on."""
        os.kill(self._target.pid, signal.SIGSTOP)
        await asyncio.sleep(HOLD_S)
        os.kill(self._target.pid, signal.SIGCONT)

    async def _unread(self) -> None:
        """Open connections that ask for much and read nothing."""
        request = b"GET /v0/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 5
        opened = [await asyncio.open_connection("127.0.0.1", self._target.port) for _ in range(UNREAD)]
        try:
            for reader, writer in opened:
                reader._transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(request)
            await asyncio.sleep(HOLD_S)
        finally:
            for _, writer in opened:
                writer.transport.abort()


def table(target: Target) -> str:
    """Return the table of the run: a line per minute, then sums."""
    lines = [f"{'minute':>6} {'requests':>9} {'p50 ms':>8} {'p99 ms':>8} {'RSS MiB':>8} {'descriptors':>11}"]
    for minute, times in sorted(target.times_ms.items()):
        ordered = sorted(times)
        p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
        samples = [one for one in target.samples if one.minute == minute]
        rss = max((one.rss_bytes for one in samples), default=0) / 2**20
        descriptors = max((one.descriptors for one in samples), default=0)
        lines.append(f"{minute:>6} {len(times):>9} {p50:>8.1f} {p99:>8.1f} {rss:>8.0f} {descriptors:>11}")
    requests = target.tally["requests"]
    cpu_s = target.cpu_s
    errors = ", ".join(f"{count} {code}" for code, count in sorted(target.errors.items())) or "none"
    faults = ", ".join(f"{count} {name[6:]}" for name, count in target.tally.items() if name.startswith("fault "))
    size_bytes = sum(path.stat().st_size for path in Path(target.directory, "data").rglob("*") if path.is_file())
    lines += [
        f"requests {requests}, errors: {errors}",
        f"processor time {cpu_s / max(requests, 1) * 1e6:.0f} µs per request, directory {size_bytes / 2**20:.1f} MiB",
        f"median RSS {statistics.median([one.rss_bytes for one in target.samples] or [0]) / 2**20:.0f} MiB",
        f"faults: {faults or 'none'}",
    ]
    return "\n".join(lines)
