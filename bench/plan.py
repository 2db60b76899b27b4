"""The scale of a run and the machine it runs on: read once, handed to every row."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
INSTALL_HINT = "apt-get install wrk redis-server"


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much work a row does. Ratios are what counts, so a round is short and there are several of them."""

    rounds: int = 3
    round_s: float = 2.0
    records: int = 1_000_000
    topics: int = 10_000
    growth: tuple[int, ...] = (10_000, 100_000, 1_000_000)


DEFAULT = Scale()
FULL = Scale(growth=(*DEFAULT.growth, 10_000_000))
QUICK = Scale(rounds=1, round_s=0.5, records=50_000, topics=1_000, growth=(10_000, 50_000))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every row needs: the scale, where files may go, how our server is started, and who runs on which core."""

    scale: Scale
    work_dir: Path
    server_command: tuple[str, ...]
    server_core: int | None
    load_core: int | None

    def pin_server(self, command: list[str]) -> list[str]:
        """The command under `taskset`, which replaces itself: the pid stays the server's own."""
        if self.server_core is None:
            return command
        return ["taskset", "-c", str(self.server_core), *command]

    def fresh_dir(self, name: str) -> Path:
        path = self.work_dir / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path


def choose_cores() -> tuple[int | None, int | None]:
    """A core for the servers and another for the load, so that neither steals the other's time, where there are two."""
    if shutil.which("taskset") is None or not hasattr(os, "sched_getaffinity"):
        return None, None
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[1]) if len(cores) > 1 else (None, None)


def installed(*programs: str) -> bool:
    return all(shutil.which(program) is not None for program in programs)
