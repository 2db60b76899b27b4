"""`topics bench`: measure a server from here: appends, reads, fan-out and queues."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Callable
from typing import Any

from topics.cli.command import Args, Call, Command, Subparsers, add
from topics.cli.connect.request import Request, post, topic_path
from topics.cli.looking import loads
from topics.cli.looking.loads import Load, Result
from topics.cli.output.failures import EXIT_DONE
from topics.cli.output.units import duration, parse_duration, parse_positive, parse_size, rate


def register(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    add(subparsers, BENCH)


LOADS: dict[str, Callable[[Load], Result]] = {
    "append": loads.append, "read": loads.read, "fan-out": loads.fan_out, "queue": loads.queue
}  # fmt: skip


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"{', '.join(LOADS)} [all]")
    parser.add_argument("--time", metavar="DURATION", type=parse_duration, default=2000, help="time of each [2s]")
    parser.add_argument("-j", "--connections", metavar="N", type=parse_positive, default=4, help="connections [4]")
    parser.add_argument("--batch", metavar="N", type=parse_positive, default=100, help="records per request [100]")
    parser.add_argument("--bytes", metavar="SIZE", type=parse_size, default=100, help="size of a record [100]")
    parser.add_argument(
        "--durability", choices=("ephemeral", "memory", "disk", "fsync"), default="disk", help="of the topics [disk]"
    )


def _request(args: Args) -> Request:
    _chosen(args)
    records = [{"data": loads.payload(args.bytes)}] * args.batch
    return post(topic_path("bench-example", return_seqs=False), {"records": records}, safe=False)


def _chosen(args: Args) -> list[str]:
    unknown = [name for name in args.what if name not in LOADS]
    if unknown:
        from topics.cli.output.failures import usage

        raise usage(f"there is no benchmark {unknown[0]!r}", f"there are {', '.join(LOADS)}")
    return args.what or list(LOADS)


def _run(call: Call) -> int:
    """Run each load on topics of its own, which are removed afterwards."""
    results = []
    for name in _chosen(call.args):
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        load = Load(
            server=call.server, topic=topic, seconds=call.args.time / 1000, connections=call.args.connections,
            batch=call.args.batch, size=call.args.bytes, durability=call.args.durability,
        )  # fmt: skip
        if call.screen.is_human:
            call.screen.note(f"{name} …")
        try:
            results.append(LOADS[name](load))
        finally:
            call.server.send(Request(method="DELETE", path=topic_path(topic)))
        if not call.screen.is_human:
            call.screen.json({"what": name, **results[-1].as_json()})
            call.screen.flush()
    if call.screen.is_human:
        _print(call, results)
    return EXIT_DONE


def _print(call: Call, results: list[Result]) -> None:
    columns = ("what", "records>", "requests>", "p50>", "p90>", "p99>", "max>", "time of")
    cells = []
    for result in results:
        times: dict[str, Any] = result.percentiles
        shown = [duration(times[name]) if name in times else "" for name in ("p50_ms", "p90_ms", "p99_ms", "max_ms")]
        cells.append((result.name, rate(result.records_per_s), rate(result.requests_per_s), *shown, result.of))
    call.screen.table(columns, cells)
    call.screen.note("this command uses one core and shares the machine with a local server")


BENCH = Command(
    name="bench",
    help="measure a server: appends, reads, fan-out, queues",
    arguments=_arguments,
    request=_request,
    run=_run,
    details="Uses topics of its own and removes them. `make bench` in the repository compares with other systems.",
    examples="  topics bench\n  topics bench append --batch 1 -j 16 --durability fsync\n  topics bench --json\n",
)
