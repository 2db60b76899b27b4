"""Faults on a schedule: each in turn, at equal distances over the run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator

from tests.faults.kills.logs import clock
from tests.faults.soak.alerts import Fault
from tests.faults.soak.target import HOLD_S, LATE_S, Target

UNREAD = 500  # connections that ask and do not read
SHARE = 0.6  # of the distance to the next fault, at most


class Faults:
    """Injects the faults of `names`. `done` has those that are over."""

    def __init__(self, target: Target, *, names: str) -> None:
        self._target = target
        known = {
            "full": self._full, "slow": self._slow, "kill": target.restart, "stop": self._stop, "clock": self._clock,
            "unread": self._unread,
        }  # fmt: skip
        if unknown := set(filter(None, names.split(","))) - known.keys():
            raise ValueError(f"unknown faults {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        self._schedule = [(name, known[name]) for name in names.split(",") if name]
        self.done: list[Fault] = []

    async def run(self, seconds: float) -> None:
        """Share the time among the faults by how long they want to last, with calm before and after each."""
        wanted_s = sum(HOLD_S[name] for name, _ in self._schedule)
        scale = min(1.0, SHARE * seconds / wanted_s) if wanted_s else 0.0
        calm_s = (seconds - scale * wanted_s) / (len(self._schedule) + 1)
        began = time.monotonic()
        for name, inject in self._schedule:
            await asyncio.sleep(calm_s)
            if self._target.over:
                return
            self._target.tally[f"fault {name}"] += 1
            fault = Fault(name, time.monotonic() - began, float("inf"))
            self.done.append(fault)
            self._target.fault = name
            try:
                await inject(HOLD_S[name] * scale)
            finally:
                self._target.fault, self._target.last_fault = "", (name, time.monotonic() + LATE_S)
                fault.ended_s = time.monotonic() - began

    async def _full(self, hold_s: float) -> None:
        """Let every write to a file fail, as on a full disk."""
        with self._flag("full"):
            await asyncio.sleep(hold_s)

    async def _slow(self, hold_s: float) -> None:
        """Let each sync take longer."""
        with self._flag("slow"):
            await asyncio.sleep(hold_s)

    async def _stop(self, hold_s: float) -> None:
        """Stop the process as a debugger or a host without memory does, and let it go on."""
        os.kill(self._target.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(hold_s)
        finally:
            os.kill(self._target.pid, signal.SIGCONT)

    async def _clock(self, hold_s: float) -> None:
        """Set the wall clock of the server ahead, and back. Its time follows both at a limited speed."""
        step_ms = int(hold_s / 8 * 1000)
        clock.doubt_ms = step_ms
        with self._flag("clock", str(step_ms)):
            await asyncio.sleep(hold_s / 2)
        # At half its speed, its time needs twice the step. The server looks at the wall clock once a second.
        await asyncio.sleep(hold_s / 2 + 1.5)
        clock.doubt_ms = 0

    async def _unread(self, hold_s: float) -> None:
        """Open connections that ask for much and read nothing."""
        request = b"GET /v0/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 5
        opened = [await asyncio.open_connection("127.0.0.1", self._target.port) for _ in range(UNREAD)]
        try:
            for reader, writer in opened:
                reader._transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(request)
            await asyncio.sleep(hold_s)
        finally:
            for _, writer in opened:
                writer.transport.abort()

    @contextlib.contextmanager
    def _flag(self, name: str, content: str = "") -> Iterator[None]:
        """Switch a fault of the server on, and off."""
        flag, before = self._target.directory / name, self._target.directory / f"{name}.new"
        before.write_text(content)
        before.rename(flag)
        try:
            yield
        finally:
            flag.unlink()
