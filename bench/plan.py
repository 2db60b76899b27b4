"""The scale of a run and the machine that it runs on. Every row gets both."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
INSTALL_HINT = "apt-get install wrk redis-server; go install github.com/nats-io/nats-server/v2@latest"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The amount of work of a row. Only ratios count, so rounds are short and there are several."""

    rounds: int = 3
    round_s: float = 2.0
    records: int = 1_000_000
    topics: int = 10_000
    growth: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    masses: tuple[int, int] = (10_000, 100_000)  # of topics


DEFAULT = Scale()
FULL = Scale(growth=(*DEFAULT.growth, 10_000_000), masses=(100_000, 1_000_000))
QUICK = Scale(rounds=1, round_s=0.5, records=50_000, topics=1_000, growth=(10_000, 50_000), masses=(1_000, 10_000))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The environment of every row: the scale, the working directory, the server command, and the cores."""

    scale: Scale
    work_dir: Path
    server_command: tuple[str, ...]
    server_core: int | None
    load_core: int | None

    def pin_server(self, command: list[str]) -> list[str]:
        """Return the command under `taskset`, which execs the command, so that the pid stays the same."""
        if self.server_core is None:
            return command
        return ["taskset", "-c", str(self.server_core), *command]

    def fresh_dir(self, name: str) -> Path:
        path = self.work_dir / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path


def choose_cores() -> tuple[int | None, int | None]:
    """Return one core for the servers and another for the load, if there are two."""
    if shutil.which("taskset") is None or not hasattr(os, "sched_getaffinity"):
        return None, None
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[1]) if len(cores) > 1 else (None, None)


def installed(*programs: str) -> bool:
    return all(shutil.which(program) is not None for program in programs)
