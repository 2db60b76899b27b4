"""`topics spark start | stop | status`: a local Spark that stays in memory, for all pipelines and SQL of this user."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.cli.options import Row, add_group, add_parser, option
from topics.cli.output.failures import Failure
from topics.cli.output.screen import Screen
from topics.cli.output.units import duration
from topics.cli.tree import Subparsers
from topics.installation import install_command, is_installed
from topics.plurals import counted

if TYPE_CHECKING:
    from topics.spark.warm import State

IDLE = option("--idle DURATION", "end after so long without a command [30m]", dest="idle_ms", default=30 * 60_000)
MASTER = option("--master MASTER", "how much of this machine it uses, such as local[4] [local[*]]", default="local[*]")
JSON = option("--json", "print JSON, also on a terminal")


def register(subparsers: Subparsers) -> None:
    details = "`topics pipeline` and `topics sql` use it while it runs; else each of them starts a Spark of its own."
    examples = "  topics spark start --idle 2h\n  topics spark status\n"
    verbs = add_group(add_parser(subparsers, "spark", details=details, examples=examples))
    _add(verbs, "start", _start, "start Spark in the background, unless it runs", IDLE, MASTER)
    _add(verbs, "stop", _stop, "end it; jobs that use it fail, and continue with their next run")
    _add(verbs, "status", _status, "say whether it runs, since when, and how many commands use it")


def _add(verbs: Subparsers, name: str, execute: Callable[[argparse.Namespace], int], text: str, *rows: Row) -> None:
    parser = add_parser(verbs, name, text, *rows, JSON)
    parser.set_defaults(execute=lambda args: _guarded(execute, args))


def _guarded(execute: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    if not is_installed("pyspark"):
        raise Failure("Spark is not installed", next_step=install_command("spark"))
    from topics.spark.failures import Failed
    from topics.spark.jvm import NoJava

    try:
        return execute(args)
    except (NoJava, Failed) as error:
        raise Failure(str(error), next_step=getattr(error, "next", None) or "") from error


def _start(args: argparse.Namespace) -> int:
    from topics.spark import warm

    screen = Screen(as_json=args.json)
    was = warm.running()
    state = warm.start(idle_s=args.idle_ms / 1000, master=args.master, step=screen.note)
    screen.result(_shown(state), f"Spark {'runs already' if was else 'has started'}: {_described(state)}")
    return 0


def _stop(args: argparse.Namespace) -> int:
    from topics.spark import warm

    state = warm.stop()
    Screen(as_json=args.json).result({"was_running": state is not None}, "ended" if state else "Spark does not run")
    return 0


def _status(args: argparse.Namespace) -> int:
    from topics.spark import warm

    state = warm.running()
    if state is None:
        text = "Spark does not run; `topics spark start` starts it"
        Screen(as_json=args.json).result({"running": False}, text)
        return 1
    text = f"Spark runs: {_described(state)}"
    if not state.is_ours:
        text += "\nit belongs to another installation: commands of this one do not use it; `topics spark stop` ends it"
    elif not state.has_our_stores:
        text += "\nit has other settings for object stores than this shell, so commands of this shell do not use it"
    Screen(as_json=args.json).result(_shown(state), text)
    return 0


def _shown(state: State) -> dict[str, object]:
    from topics.spark import warm

    return {
        "running": True, "pid": state.pid, "port": state.port, "master": state.master, "idle_s": state.idle_s,
        "started_ms": state.started_ms, "commands": warm.sessions_in_use(), "usable": warm.usable() is not None,
    }  # fmt: skip


def _described(state: State) -> str:
    from topics.spark import warm

    age = duration(max(time.time() * 1000 - state.started_ms, 0))
    used = counted(warm.sessions_in_use(), "command")
    idle = duration(state.idle_s * 1000)
    return f"process {state.pid}, {state.master}, for {age}, {used} now; it ends after {idle} without a command"
