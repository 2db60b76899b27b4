"""One run: a server, all parts of the load, samples, a report every minute and a verdict."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from pathlib import Path
from random import Random

from tests.faults.kills.server import ANSWER_S, LOST, Violation
from tests.faults.soak.alerts import Prometheus, judge
from tests.faults.soak.faults import Faults
from tests.faults.soak.flows import ConsumerPart, RouterPart
from tests.faults.soak.logs import log_parts
from tests.faults.soak.masses import Crowd, mass_parts
from tests.faults.soak.part import Part
from tests.faults.soak.queues import queue_parts
from tests.faults.soak.table import directory_mib, table
from tests.faults.soak.target import Target
from tests.faults.soak.watchers import WatchPart

SAMPLE_S = 1.0
REPORT_S = 60.0
MEMORY_S = 120.0  # a shorter run says nothing about memory: its topics are still filling up
END_S = 2 * ANSWER_S  # a part that takes longer for its last check hangs


class Soak:
    """A run of some seconds. `problems` lists what was wrong."""

    def __init__(self, directory: Path, *, seconds: float, seed: int, sync_ms: float, restart_s: float,
                 only: str = "", faults: str = "", idle: int = 0, topics_per_s: float = 50.0) -> None:  # fmt: skip
        self.problems: list[str] = []
        self._only = only.split(",") if only else []
        self._seconds, self._restart_s = seconds, restart_s
        self._target = Target(directory, sync_ms=sync_ms)
        self._faults = Faults(self._target, names=faults)
        self._crowd = Crowd(self._target, size=idle)
        self._prometheus = Prometheus(directory / "prometheus")
        self._topics_per_s = topics_per_s
        self._seed = seed
        self._began = time.monotonic()

    def stop(self) -> None:
        """End the load. Each part ends its round and checks its topics."""
        self._target.over = True

    async def run(self) -> None:
        """Run to the end. A part with a wrong answer ends, and the others go on."""
        self._began = time.monotonic()
        try:
            await self._target.start()
            self._prometheus.start(self._target.port)
            await self._load()
            await self._target.stop()
        except Violation as error:
            self._found(str(error))
        except Exception:
            self._found(traceback.format_exc())
        finally:
            self._target.kill()
            self._prometheus.stop()
            self._judge()

    async def _load(self) -> None:
        tasks = [asyncio.create_task(self._guarded(part), name=part.name) for part in self._parts()]
        attendants = [
            asyncio.create_task(work())
            for work in (self._sample, self._restart, self._measure, self._crowd.run, self._prometheus.look)
        ]
        faults = asyncio.create_task(self._faults.run(self._seconds))
        await asyncio.wait([*tasks, *attendants], timeout=self._seconds, return_when=asyncio.FIRST_EXCEPTION)
        self.stop()
        faults.cancel()
        _, pending = await asyncio.wait(tasks, timeout=END_S)
        for attendant in attendants:
            attendant.cancel()
        if pending:
            names = ", ".join(sorted(task.get_name() for task in pending))
            raise Violation(f"the parts {names} do not end within {END_S:.0f} s")
        for error in await asyncio.gather(*attendants, return_exceptions=True):
            if error is not None and not isinstance(error, asyncio.CancelledError):
                raise error

    async def _guarded(self, part: Part) -> None:
        try:
            await part.run()
        except Violation as error:
            self._found(f"wrong answer: {error}")
        except (TimeoutError, *LOST) as error:
            self._found(f"{part.name}: no answer: {error!r}")
        except Exception:
            self._found(f"{part.name}: {traceback.format_exc()}")

    def _found(self, problem: str) -> None:
        print(f"{time.monotonic() - self._began:6.0f} s  {problem}", flush=True)
        self.problems.append(problem)

    def _parts(self) -> list[Part]:
        target, seed = self._target, self._seed
        parts = [
            *log_parts(target, seed),
            *queue_parts(target, seed),
            RouterPart(target, Random(f"{seed} routers")),
            ConsumerPart(target, Random(f"{seed} consumers")),
            WatchPart(target, Random(f"{seed} watchers")),
            *mass_parts(target, seed, per_s=self._topics_per_s),
        ]
        return [part for part in parts if not self._only or part.name in self._only]

    async def _sample(self) -> None:
        """Sample the process once a second, and report once a minute."""
        reported = time.monotonic()
        while True:
            await asyncio.sleep(SAMPLE_S)
            self._target.take_sample()
            self._target.read_log()
            if time.monotonic() - reported >= REPORT_S:
                reported = time.monotonic()
                print(self.line(), flush=True)

    async def _measure(self) -> None:
        """Measure the data directory every 20 seconds."""
        while True:
            self._target.minute_mib[self._target.minute] = await asyncio.to_thread(directory_mib, self._target)
            await asyncio.sleep(20)

    async def _restart(self) -> None:
        """Kill the server at intervals, until the load ends."""
        while self._restart_s:
            await asyncio.sleep(self._restart_s)
            if not self._target.over:
                await self._target.restart()

    def line(self) -> str:
        """Return one line of progress."""
        target, sizes = self._target, self._target.samples[-1:]
        rss = sizes[0].rss_bytes / 2**20 if sizes else 0
        descriptors = sizes[0].descriptors if sizes else 0
        errors = ", ".join(f"{count} {code}" for code, count in sorted(target.errors.items())) or "none"
        return (
            f"{time.monotonic() - self._began:6.0f} s  {target.tally['requests']} requests, {rss:.0f} MiB, "
            f"{descriptors} descriptors, refused: {errors}; {target.logged['loop_error']} loop_error"
        )

    def _judge(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._target.read_log()
        self.problems += [
            f"the server logged {count} x {event}" for event, count in sorted(self._target.logged.items())
        ]
        _, wrong, missing = judge(self._faults.done, self._prometheus.fired)
        self.problems += [f"an alert fired that should not have: {one}" for one in wrong]
        self.problems += [f"an alert did not fire that should have: {one}" for one in missing]
        if time.monotonic() - self._began >= MEMORY_S and (growth := self._target.growth()):
            self.problems.append(growth)

    def table(self) -> str:
        return table(self._target, self._faults.done, self._prometheus)

    def counts(self) -> str:
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(self._target.tally.items()))
