"""A real server under mixed load: `make soak`, or `python -m tests.faults.soak DIRECTORY --seconds 3600`.

Topics with caps and TTLs, queues with durable leases and claims that time out, failing workers, routers, consumers,
watchers that come and go, deletes, scans, scrapes and config changes run side by side, each with a ledger of what was
acknowledged. The run ends by itself, or with its last checks on SIGINT and SIGTERM. It exits with 0 if no answer was
wrong, the server logged no error, and its memory stayed flat.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import uvloop

from tests.faults.soak.soak import MEMORY_S, Soak


async def _run(soak: Soak) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, soak.stop)
    await soak.run()


def main(words: list[str] | None = None) -> int:
    """Return 0 if everything was right, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="soak", description="Load a real server and check all its answers.")
    parser.add_argument("directory", type=Path, help="for the data of the server; kept only after a failure")
    parser.add_argument("--seconds", type=float, default=3600, help="how long the load lasts (default 3600)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000, help="for the random load")
    parser.add_argument("--sync-ms", type=float, default=60, help="a sync takes up to this much longer (default 60)")
    parser.add_argument(
        "--restart", type=float, default=0, help="kill -9 the server every so many seconds (default never)"
    )
    parser.add_argument("--only", default="", help="parts of the load, such as work,flow,live (default all)")
    parser.add_argument(
        "--faults", default="", help="faults in turn, such as full,slow,kill,stop,clock,unread (default none)"
    )
    parser.add_argument("--idle", type=int, default=0, help="connections that stay open and idle (default none)")
    parser.add_argument(
        "--topics-per-s", type=float, default=50, help="topics that are created and deleted per second (default 50)"
    )
    args = parser.parse_args(words)
    work = args.directory / f"soak-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    work.mkdir(parents=True)
    soak = Soak(
        work, seconds=args.seconds, seed=args.seed, sync_ms=args.sync_ms, restart_s=args.restart, only=args.only,
        faults=args.faults, idle=args.idle, topics_per_s=args.topics_per_s,
    )  # fmt: skip
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(soak))
    print(soak.table())
    print(soak.line())
    print(soak.counts())
    if args.seconds < MEMORY_S:
        print(f"memory is not judged in less than {MEMORY_S:.0f} s")
    if not soak.problems:
        print("soak: PASSED")
        shutil.rmtree(work)
        return 0
    for problem in soak.problems:
        print(f"soak: FAILED: {problem}")
    print(
        f"Next: read the server's log in {work / 'log'} around the last lines, then repeat with\n"
        f"  python -m tests.faults.soak {args.directory} --seed {args.seed} --seconds {args.seconds:.0f} "
        f"--sync-ms {args.sync_ms:g} --restart {args.restart:g}"
        f"{' --only ' + args.only if args.only else ''}{' --faults ' + args.faults if args.faults else ''}\n"
        f"The load is random and the timing is not: a failure may take several runs. The data is in {work / 'data'}."
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
