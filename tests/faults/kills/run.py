"""Kill the real server under load: `make kills`, or `python -m tests.faults.kills.run STATE_DIR`.

A run is bounded by a number of kills and by a time, stops cleanly on SIGINT and SIGTERM, and adds its counts to
`STATE_DIR/kills.json`. Several runs may share a state directory, one after the other or side by side. A broken promise
is counted as a loss; its data directory (as it was before the last start, and after), server log and message are kept
in `STATE_DIR/loss-…`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import uvloop

from tests.faults.kills.rounds import Rounds
from tests.faults.kills.server import LOST, Spawner, Violation, free_port

SAVE_S, PRINT_S = 2.0, 10.0
ROUNDS = 24  # kills of one data directory
FULL_CHECK = 8  # every so many rounds, and in the last
MAX_LOSSES = 3  # of one run


class State:
    """The counts of all runs, in one file that runs side by side add to."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.path = directory / "kills.json"

    def add(self, counts: Counter[str], commit: str) -> dict[str, object]:
        """Add to the file, empty `counts`, return the new totals."""
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            totals = json.loads(self.path.read_text()) if self.path.exists() else {"losses": 0, "kills_by_commit": {}}
            for name, value in counts.items():
                totals[name] = totals.get(name, 0) + value
            by_commit = totals["kills_by_commit"]
            by_commit[commit] = by_commit.get(commit, 0) + counts["kills"]
            fresh = self.path.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(totals, indent=2) + "\n")
            fresh.replace(self.path)
        counts.clear()
        return dict(totals)


class Run:
    """One run of the command."""

    def __init__(self, state: State, work: Path, *, kills: int, seconds: float, seed: int) -> None:
        self._state, self._kills, self._seed = state, kills, seed
        self._work = work / f"work-{os.getpid()}"
        self._began = time.monotonic()
        self._deadline = self._began + seconds
        self._tally: Counter[str] = Counter()
        self._own: Counter[str] = Counter()
        self._commit = _commit()
        self._stopped = False
        self._saved = self._printed = 0.0

    def stop(self) -> None:
        """Finish the round that runs, check everything, end."""
        self._stopped = True

    @property
    def losses(self) -> int:
        return self._own["losses"] + self._tally["losses"]

    @property
    def _over(self) -> bool:
        return (
            self._stopped
            or time.monotonic() > self._deadline
            or self._own["kills"] + self._tally["kills"] >= self._kills
            or self.losses >= MAX_LOSSES
        )

    async def run(self) -> None:
        rng = Random(self._seed)
        spawner, port = Spawner(), free_port()
        work = self._work
        self._tally["runs"] += 1
        try:
            number = 0
            while not self._over:
                number += 1
                shutil.rmtree(work, ignore_errors=True)
                await self._one_directory(Rounds(work, spawner, port, rng, self._tally), work, number)
        finally:
            spawner.close()
            shutil.rmtree(work, ignore_errors=True)
            self._save(last=True)

    async def _one_directory(self, rounds: Rounds, work: Path, number: int) -> None:
        try:
            await rounds.first()
            at = 0
            while at < ROUNDS and not self._over:
                at += 1
                await rounds.one(everything=at % FULL_CHECK == 0)
                self._save(last=False)
            await rounds.one(everything=True)
        except (Violation, *LOST) as problem:  # a server that hangs up while it is checked has failed too
            reason = str(problem) if isinstance(problem, Violation) else f"the server hung up: {problem!r}"
            with contextlib.suppress(Violation):
                rounds.kill()
            self._keep(work, f"seed {self._seed}, directory {number}: {reason}")
        except BaseException:
            rounds.kill()
            raise

    def _keep(self, work: Path, message: str) -> None:
        self._tally["losses"] += 1
        kept = self._state.directory / f"loss-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{self.losses}"
        shutil.move(work, kept)
        (kept / "message").write_text(f"{message}\ncommit {self._commit}\n")
        print(f"LOSS: {message}\n  kept in {kept}", flush=True)

    def _save(self, *, last: bool) -> None:
        now = time.monotonic()
        if not last and now - self._saved < SAVE_S:
            return
        self._saved = now
        self._own += self._tally
        totals = self._state.add(self._tally, self._commit)
        if last or now - self._printed >= PRINT_S:
            self._printed = now
            own = self._own
            print(
                f"{now - self._began:6.0f} s  {own['kills']} kills ({own['kills_during_start']} during the start), "
                f"{own['acknowledged']} records acknowledged, {own['checked']} checked, {own['losses']} losses; "
                f"all runs: {totals.get('kills', 0)} kills, {totals['losses']} losses",
                flush=True,
            )


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


async def _run(run: Run) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, run.stop)
    await run.run()


def main(words: list[str] | None = None) -> int:
    """Return 0 if nothing was lost in this run, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="kills", description="Kill the real server under load and check it.")
    parser.add_argument("directory", type=Path, help="keeps the counts of all runs and what was found")
    parser.add_argument(
        "--data", type=Path, help="where data directories are made; memory (tmpfs) is several times faster"
    )
    parser.add_argument("--kills", type=int, default=1000, help="stop after this many kills (default 1000)")
    parser.add_argument("--seconds", type=float, default=3600, help="stop after this time (default 3600)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="for the random load")
    args = parser.parse_args(words)
    run = Run(
        State(args.directory), args.data or args.directory, kills=args.kills, seconds=args.seconds, seed=args.seed
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(run))
    return 1 if run.losses else 0


if __name__ == "__main__":
    sys.exit(main())
