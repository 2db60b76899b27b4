"""Load generators: run wrk against HTTP and redis-benchmark against Redis, and parse their output."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

from plan import HERE

GRACE_S = 30.0
CALIBRATION_REQUESTS = 3_000
TIME_UNIT_MS = {"us": 0.001, "ms": 1.0, "s": 1_000.0, "m": 60_000.0}


@dataclass(frozen=True, kw_only=True)
class Load:
    """The result of a generator: requests per second and two latencies."""

    per_s: float
    p50_ms: float
    p99_ms: float


def wrk(
    port: int, script: str, path: str, *, connections: int, seconds: float, args: tuple[str, ...] = (), key: str = ""
) -> Load:
    """Run wrk with one thread. Raise if a request fails, because the figure would be meaningless."""
    # wrk only takes whole seconds; a shorter round is a quick look and gets one second.
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(round(seconds), 1)}s", "--latency", "--timeout", "10s"]
    command += ["-s", str(HERE / "lua" / script)]
    if key:
        command += ["-H", f"authorization: Bearer {key}"]
    command += [f"http://127.0.0.1:{port}{path}", "--", *args]
    return parse_wrk(_run(command, seconds))


def parse_wrk(text: str) -> Load:
    for trouble in ("Non-2xx", "Socket errors"):
        if trouble in text:
            line = next(line for line in text.splitlines() if trouble in line)
            raise RuntimeError(f"wrk: {line.strip()}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    if rate is None:
        raise RuntimeError(f"wrk printed no rate:\n{text[-400:]}")
    return Load(per_s=float(rate[1]), p50_ms=_percentile(text, 50), p99_ms=_percentile(text, 99))


def _percentile(text: str, percent: int) -> float:
    found = re.search(rf"^\s+{percent}%\s+([\d.]+)(us|ms|s|m)", text, re.MULTILINE)
    return float(found[1]) * TIME_UNIT_MS[found[2]] if found else 0.0


class RedisBenchmark:
    """Run redis-benchmark with one command. It runs for a count, not for a time: a short run before the rounds
    finds the count that takes about `seconds`."""

    def __init__(
        self, port: int, *words: str, clients: int, seconds: float, pipeline: int = 1, random_below: int = 0
    ) -> None:
        self.base = ["redis-benchmark", "-p", str(port), "-c", str(clients), "-P", str(pipeline), "--csv"]
        if random_below:
            self.base += ["-r", str(random_below)]
        self.words = words
        self.seconds = seconds
        first = self._run(CALIBRATION_REQUESTS)
        self.count = max(int(first.per_s * seconds), CALIBRATION_REQUESTS)

    def run(self) -> Load:
        return self._run(self.count)

    def _run(self, count: int) -> Load:
        return parse_redis_benchmark(_run([*self.base, "-n", str(count), *self.words], self.seconds))


def parse_redis_benchmark(text: str) -> Load:
    """Parse the last line: the name, which may contain quotes and commas, and seven figures."""
    columns = text.strip().splitlines()[-1].strip('"').rsplit('","', 7)
    if len(columns) != 8:
        raise RuntimeError(f"redis-benchmark printed no figures:\n{text[-400:]}")
    return Load(per_s=float(columns[1]), p50_ms=float(columns[4]), p99_ms=float(columns[6]))


def _run(command: list[str], seconds: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds * 10 + GRACE_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout)[-400:]}")
    return done.stdout
