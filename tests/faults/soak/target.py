"""The server under test: it is started, killed, sampled and reached over connections that count answers."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from tests.conftest import ServerProcess
from tests.faults.kills.logs import Tally
from tests.faults.kills.server import ANSWER_S, Connection, Request, Violation, free_port, require

RETRYABLE = ("not_ready", "shutting_down", "read_only")  # the errors with status 503 that the API documents
SETTINGS = {
    # Small, so that the log rotates, segments are sealed and checkpoints run all the time.
    "wal_file_bytes": 1 << 20,
    "checkpoint_wal_bytes": 1 << 20,
    "checkpoint_interval_ms": 500,
    "segment_max_events": 256,
    "segment_max_age_ms": 2000,
    "sync_interval_ms": 20,
    "idle_timeout_ms": 86_400_000,
    # Topics come and go: series for all of them would be a load for Prometheus, not for the server.
    "metrics_max_topics": 100,
}
# What the server logs as an error while a fault lasts, and rightly.
LOGGED = {"full": {"log_read_only", "checkpoint_failed", "seal_failed", "ledger_failed"}}
LATE_S = 5.0  # after a fault: a thread may log late what failed before its end
# How long each fault lasts if the run is long enough: most must fire an alert, which waits for a minute or ten.
HOLD_S = {"full": 100.0, "slow": 540.0, "kill": 100.0, "stop": 20.0, "clock": 40.0, "unread": 30.0}
MIN_GROWTH_BYTES = 24 << 20  # an allocator keeps this much more or less, whatever the server does
MAX_GROWTH = 1.10
QUARTERS = 4


@dataclass
class Sample:
    """The server process at one moment."""

    rss_bytes: int
    descriptors: int
    minute: int = 0


class Target:
    """One server after the other on the same data directory."""

    def __init__(self, directory: Path, *, sync_ms: float) -> None:
        self.directory = directory
        self.tally: Tally = Counter()
        self.errors: Counter[str] = Counter()  # answers that are errors, by code
        self.logged: Counter[str] = Counter()  # lines of the server's log that are errors, by event
        self.samples: list[Sample] = []
        self.over = False
        self.up = asyncio.Event()
        self.port = 0
        self.generation = 0  # how many servers were started
        self._restarting = asyncio.Lock()
        self.fault = ""  # the one that lasts
        self.last_fault = "", 0.0  # the one before, and until when what it has broken may be logged
        self._variables = {
            "SLOW_SYNC_MS": str(sync_ms), "FAULT_DIR": str(directory), "FIXED_PORT": str(free_port()),
        }  # fmt: skip
        self.times_ms: defaultdict[int, list[float]] = defaultdict(list)  # of requests, by minute of the run
        self.minute_errors: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.minute_cpu_s: defaultdict[int, float] = defaultdict(float)
        self.minute_mib: dict[int, float] = {}  # of the data directory
        self._cpu_s: dict[int, float] = {}  # by process
        self._began = time.monotonic()
        self._server: ServerProcess | None = None
        self._log_at = 0

    async def start(self) -> None:
        settings = SETTINGS | {"data_dir": self.directory / "data"}
        program = ("-m", "tests.faults.soak.faulty_server")

        def start() -> ServerProcess:
            return ServerProcess(self.directory, settings, program=program, variables=self._variables)

        self._server = await asyncio.to_thread(start)
        self.port = self._server.port
        self.generation += 1
        self.up.set()

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.process.pid

    @property
    def minute(self) -> int:
        return int((time.monotonic() - self._began) / 60)

    @property
    def cpu_s(self) -> float:
        """The processor time of all servers up to their last samples."""
        return sum(self._cpu_s.values())

    async def restart(self, down_s: float = 0.0) -> None:
        """Kill the server and start the next one, after some time."""
        async with self._restarting:  # a fault and `--restart` may kill at the same time
            assert self._server is not None
            self.up.clear()
            await asyncio.to_thread(self._server.kill)
            self.tally["kills"] += 1
            await asyncio.sleep(down_s)
            await self.start()

    async def stop(self) -> None:
        """Stop the server in order. Raise `Violation` unless it ends with status 0."""
        assert self._server is not None
        self._server.terminate()
        try:
            status = await asyncio.to_thread(self._server.process.wait, ANSWER_S)
        finally:
            self.kill()
        self.read_log()
        require(status == 0, f"the server ended with status {status}")

    def kill(self) -> None:
        """Kill the server if it runs."""
        if self._server is not None:
            self._server.kill()

    def take_sample(self) -> Sample | None:
        """Sample the process. Return None if it does not run."""
        if self._server is None or not self.up.is_set():
            return None
        process = Path("/proc") / str(self._server.process.pid)
        try:
            pages = int((process / "statm").read_text().split()[1])
            sample = Sample(pages * 4096, len(os.listdir(process / "fd")), self.minute)
            ticks = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
            cpu_s = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        except OSError:
            require(not self.up.is_set(), "the server has ended by itself")
            return None
        self.minute_cpu_s[self.minute] += cpu_s - self._cpu_s.get(self.pid, 0.0)
        self._cpu_s[self.pid] = cpu_s
        self.samples.append(sample)
        return sample

    def read_log(self) -> None:
        """Count the errors that the server has logged since the last call."""
        with (self.directory / "log").open("rb") as file:
            file.seek(self._log_at)
            lines = file.read().split(b"\n")
        self._log_at += sum(len(line) + 1 for line in lines[:-1])
        last, until = self.last_fault
        fault = self.fault or (last if time.monotonic() < until else "")
        for line in filter(None, lines[:-1]):
            event = _error(line)
            if event in LOGGED.get(fault, ()):
                self.tally[f"expected_{event}"] += 1
            elif event is not None:
                self.logged[event] += 1

    async def eventually(self, look: Callable[[], Any], *, seconds: float = ANSWER_S) -> None:
        """Call `look` until it raises no `Violation`. Raise the last one after `seconds` without a fault."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                await look()
            except Violation:
                if self.fault:
                    deadline = time.monotonic() + seconds
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
            else:
                return

    def growth(self) -> str:
        """Return what is wrong with the memory of the server, or nothing.

        Compare the second quarter of the samples with the last: in the first quarter topics fill up to their caps.
        """
        quarter = len(self.samples) // QUARTERS
        if not quarter:
            return ""
        sizes = [sample.rss_bytes for sample in self.samples]
        early = statistics.median(sizes[quarter : 2 * quarter])
        late = statistics.median(sizes[-quarter:])
        if late <= max(early * MAX_GROWTH, early + MIN_GROWTH_BYTES):
            return ""
        return f"memory grew from {early / 2**20:.0f} to {late / 2**20:.0f} MiB between the second and the last quarter"


def _error(line: bytes) -> str | None:
    """Return the event of a log line that is an error. A line that is no JSON is one: it belongs to a traceback."""
    try:
        entry = json.loads(line)
    except ValueError:
        return "not a log line"
    return str(entry["event"]) if entry["level"] in ("error", "critical") else None


class Client(Connection):
    """A connection to the target. It counts answers, and refuses every 5xx that is not documented as retryable."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.port)
        self._target = target

    async def send(self, requests: Sequence[Request]) -> None:
        await super().send([replace(one, done=self._counted(one)) for one in requests])

    def _counted(self, request: Request) -> Callable[[int, Any], None]:
        began = time.monotonic()

        def done(status: int, answer: Any) -> None:
            self._target.times_ms[self._target.minute].append((time.monotonic() - began) * 1000)
            self._target.tally["requests"] += 1
            if status >= 400:
                code = answer["error"]["code"]
                self._target.errors[code] += 1
                self._target.minute_errors[self._target.minute][code] += 1
                failed = status >= 500 and code not in RETRYABLE
                require(not failed, f"{request.method} {request.path} {request.body}: {status} {answer}")
            request.done(status, answer)

        return done


async def scan(target: Target, name: str) -> list[dict[str, Any]]:
    """Return the lines of a scan of the whole topic."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port, limit=1 << 26)
    try:
        head = (
            f"POST /v0/topics/{name}/scan HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        )
        writer.write(head.encode())
        async with asyncio.timeout(ANSWER_S):
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = await reader.read()
    finally:
        writer.transport.abort()
    target.tally["requests"] += 1
    if b"transfer-encoding: chunked" in answer:
        if not body.endswith(b"0\r\n\r\n"):
            raise ConnectionResetError(f"the scan of {name} was cut off")
        body = _joined(body)
    require(answer[9:12] == b"200", f"scan of {name}: {answer!r} {body[:500]!r}")
    return [msgspec.json.decode(line) for line in body.split(b"\n") if line]


def _joined(chunks: bytes) -> bytes:
    """Return a body without its chunk sizes."""
    parts, at = [], 0
    while at < len(chunks):
        end = chunks.index(b"\r\n", at)
        size = int(chunks[at:end].split(b";")[0], 16)
        parts.append(chunks[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(parts)
