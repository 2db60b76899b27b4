"""What the commands of `topics pipeline …` share: their options, their run, and the output of their reports.

`topics.cli.pipelines` declares each command. A pipeline is the function of its name in
`topics.spark.pipelines.NAME`, and is imported, with Arrow and Spark if it needs them, only when it runs.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from topics import early_signals
from topics.cli import connect as targets
from topics.cli.options import AGAIN, CORRECT, Row, add_parser, one_of, option, print_failure, section
from topics.cli.output.failures import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, Failure
from topics.cli.output.screen import Screen, pretty_json
from topics.cli.tree import Subparsers
from topics.clock import SystemClock
from topics.installation import install_command
from topics.plurals import counted

if TYPE_CHECKING:
    from topics.spark.pipelines.run.job import JobOptions
    from topics.spark.pipelines.run.report import RunReport, TopicReport

NOTHING_DONE = ": a dry run, nothing was changed"
TOPICS_SHOWN = 100
GAPS_SHOWN = 20
ECHO_S = 0.5
SHARED = frozenset({
    "token", "token_file", "master", "storage_option", "dry_run", "json", "spark", "context", "is_key_of_context",
    "stop", "started_ms", "execute", "extra",
})  # fmt: skip

Execute = Callable[[argparse.Namespace], "RunReport"]
Show = Callable[["RunReport"], str]


@dataclass(frozen=True)
class Pipeline:
    """The declaration of a pipeline: its own options, which have the names of the arguments of its function."""

    name: str
    help: str
    options: tuple[Row, ...]
    _: KW_ONLY
    arguments: Callable[[argparse.Namespace], dict[str, Any]] | None = None  # of the function, instead of the options
    epilog: str | None = None
    extra: str = "lake"  # the extra of the distribution that has the packages of the pipeline

    def register(self, subparsers: Subparsers) -> None:
        parser = add_parser(subparsers, self.name, self.help, SHARED_OPTIONS, *self.options, epilog=self.epilog)

        parser.set_defaults(execute=lambda args: run(self.name, self._execute, args, self._show), extra=self.extra)

    def _execute(self, args: argparse.Namespace) -> RunReport:
        function: Callable[..., RunReport] = getattr(self._module(), self.name)
        return function(**(self.arguments or own)(args), **shared(args))

    def _show(self, report: RunReport) -> str:
        show: Show = getattr(self._module(), "describe", describe)
        return show(report)

    def _module(self) -> Any:
        return importlib.import_module(f"topics.spark.pipelines.{self.name}")


def follow(every_s: float) -> Row:
    pause = option(
        "--every SECONDS", "pause between rounds of --follow [%(default)g]",
        dest="every_s", type=_seconds, default=every_s,
    )  # fmt: skip
    return lambda to: (FOLLOW(to), pause(to))


def setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError("a setting is KEY=VALUE, such as AWS_REGION=eu-central-1")
    return key, value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, such as 5 or 0.5")
    return seconds


FOLLOW = option("--follow", "keep running until SIGINT or SIGTERM")
SPARK = option(
    "--spark",
    "run the tasks on Spark, or in this process; default: on Spark if it is installed",
    action=argparse.BooleanOptionalAction,
)
LIMIT = option("--max-bytes-per-second N", "read at most this much from a server", type=int)
POSITIONS = option(
    "--positions TOPIC", "topic that stores the position [%(default)s]",
    dest="positions_topic", default="sys:positions",
)  # fmt: skip
TOKENS = one_of(
    option("--token KEY", "API key; visible to other users of this machine"),
    option("--token-file FILE", "file with the API key [TOPICS_TOKEN_FILE]"),
)
SHARED_OPTIONS = section(
    "options of all pipelines",
    TOKENS,
    option("--master M", "Spark master [local[*], or the choice of spark-submit]"),
    option(
        "--storage-option KEY=VALUE",
        "setting of the object store of a lake or table; repeatable. Better: the environment, such as AWS_REGION",
        action="append", type=setting, default=[],
    ),
    option("--dry-run", "report what would be done, and change nothing"),
    option("--json", "print the report as one JSON object"),
)  # fmt: skip


def shared(args: argparse.Namespace) -> JobOptions:
    """Return the shared options as arguments of a pipeline function."""
    from topics.spark.pipelines.run.report import progress_for

    token_file = args.token_file
    if args.token is None and token_file is None and not args.is_key_of_context:
        token_file = os.environ.get("TOPICS_TOKEN_FILE") or None
    return {
        "token": args.token,
        "token_file": token_file,
        "dry_run": args.dry_run,
        "master": args.master,
        "spark": getattr(args, "spark", None),
        "storage_options": dict(args.storage_option),
        "progress": progress_for(quiet=args.json),
        "stop": args.stop,
        "started_ms": args.started_ms,
    }


def own(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the pipeline itself, which have the names of its arguments."""
    return {name: value for name, value in vars(args).items() if name not in SHARED}


def run(name: str, execute: Execute, args: argparse.Namespace, show: Show) -> int:
    """Run a pipeline, print its report, also of a failure, and return the exit status of its kind."""
    args.started_ms = SystemClock().now_ms()  # before the slow import of Spark
    with warnings.catch_warnings(), _stoppable(follows=bool(getattr(args, "follow", False))) as stop:
        warnings.simplefilter("ignore")  # pyspark warns about package versions newer than itself
        args.stop = stop
        try:
            args.is_key_of_context = False
            if hasattr(args, "url"):  # chosen as other commands choose it
                target = targets.choose(args, os.environ)
                args.url, args.token_file = target.url, target.token_file
                args.is_key_of_context = target.is_key_of_context
            report = execute(args)
        except Failure as failure:
            return _not_started(name, args, "usage", str(failure), failure.next_step or CORRECT)
        except (Exception, KeyboardInterrupt) as error:
            return _failed(name, stop.cause_of(error), args)
        print(pretty_json(report) if args.json else show(report), flush=True)
        return EXIT_DONE if report.ok else EXIT_FAILED


def _not_started(name: str, args: argparse.Namespace, kind: str, message: str, next: str) -> int:
    print_failure(name, kind, message, next, as_json=args.json, dry_run=args.dry_run)
    return {"usage": EXIT_USAGE, "interrupted": EXIT_INTERRUPTED}.get(kind, EXIT_FAILED)


def _failed(name: str, error: BaseException, args: argparse.Namespace) -> int:
    """Print a failure to standard error, and with `--json` its report to standard output."""
    if isinstance(error, ImportError):
        extra = "spark" if (error.name or "").partition(".")[0] in ("pyspark", "py4j") else args.extra
        kind, package = ("no_spark", "Spark") if extra == "spark" else ("not_installed", error.name)
        return _not_started(name, args, kind, f"{name} needs {package}: {error}", install_command(extra))
    if isinstance(error, KeyboardInterrupt) and "report" not in error.__dict__:
        return _not_started(name, args, "interrupted", "interrupted", AGAIN)
    from topics.spark.failures import explain, kind_of
    from topics.spark.pipelines.run.job import report_of

    report = report_of(error, pipeline=name, dry_run=args.dry_run)
    if args.json:
        print(pretty_json(report), flush=True)
    Screen().fail(explain(error), report.next or "")
    if os.environ.get("TOPICS_TRACEBACK"):
        raise error
    return kind_of(error).exit_status


class _Stop(threading.Event):
    """Event that the first signal sets. Remembers that the job was interrupted, whichever error it raises then."""

    def __init__(self) -> None:
        super().__init__()
        self.last_s = -math.inf
        self.interrupted = False

    def cause_of(self, error: BaseException) -> BaseException:
        """Return KeyboardInterrupt for any error of an interrupted job: an interrupted import can raise another one."""
        if self.interrupted and "report" not in error.__dict__:
            return KeyboardInterrupt()
        return error


@contextmanager
def _stoppable(*, follows: bool) -> Iterator[_Stop]:
    """Handle SIGINT and SIGTERM. A job with `--follow` stops in order at the first signal and at once at the second;
    other jobs stop at once.
    """
    stop = _Stop()

    def asked(number: int, frame: FrameType | None) -> None:
        before, stop.last_s = stop.last_s, time.monotonic()
        if stop.last_s - before < ECHO_S:
            return  # `timeout` signals a process and then its group
        if stop.is_set() or not follows:
            logging.disable(logging.ERROR)  # py4j logs a long traceback for an interrupt
            stop.interrupted = True
            raise KeyboardInterrupt
        stop.set()

    try:
        with early_signals.handled(asked):
            yield stop
    finally:
        logging.disable(logging.NOTSET)


# --- output


def describe(report: RunReport) -> str:
    return "\n".join(_lines(report))


def _lines(report: RunReport) -> Iterator[str]:
    for row in report.topics[:TOPICS_SHOWN]:
        yield f"  {_topic_line(row, dry_run=report.dry_run)}"
        yield from (f"    would {text}" for text in row.would)
    if len(report.topics) > TOPICS_SHOWN:
        yield f"  {counted(len(report.topics) - TOPICS_SHOWN, 'more topic')}; --json has them all"
    gaps = [(row, gap) for row in report.topics for gap in row.gaps]
    word = "would record as lost" if report.dry_run else "lost"
    for row, gap in gaps[:GAPS_SHOWN]:
        yield f"  {word}: {row.topic} seqs {gap.from_seq} to {gap.to_seq} ({gap.reason})"
    if len(gaps) > GAPS_SHOWN:
        yield f"  {counted(len(gaps) - GAPS_SHOWN, 'more lost range')}; --json has them all"
    unfit = report.unfit_lines
    yield from (f"  {text}" for text in unfit[:GAPS_SHOWN])
    if len(unfit) > GAPS_SHOWN:
        yield f"  {counted(len(unfit) - GAPS_SHOWN, 'more column')} with values that do not fit; --json has them all"
    for text in report.warnings:
        yield f"  warning: {text}"
    known = {name.replace("_", " "): value for name, value in report.figures.items() if value is not None}
    figures = "".join(f", {name} {value}" for name, value in known.items())
    yield f"{report.pipeline}: {_summary(report)}{figures}, {report.took}{NOTHING_DONE if report.dry_run else ''}"
    if report.next is not None:
        yield f"next: {report.next}"


def _summary(report: RunReport) -> str:
    """Return what the run did; distinguish "nothing new" from new seqs without records."""
    looked_at = max(report.looked_at, len(report.names))
    if not any(row.to_seq or row.records or row.would for row in report.topics):
        return f"{'' if any(row.figures for row in report.topics) else 'nothing new in '}{counted(looked_at, 'topic')}"
    verb = "would write" if report.dry_run else "wrote"
    bound = " at most" if any(row.at_most for row in report.topics) else ""
    others = f" ({looked_at} looked at)" if looked_at > len(report.names) else ""
    return f"{verb}{bound} {counted(report.records, 'record')} of {counted(len(report.names), 'topic')}{others}"


def _topic_line(row: TopicReport, *, dry_run: bool) -> str:
    where = row.topic + (f" → {row.into}" if row.into else "")
    if not row.to_seq and not row.records:
        parts = [] if row.figures else ["nothing new"]
    else:
        bound = "at most " if row.at_most else ""
        parts = [f"seqs {row.from_seq} to {row.to_seq}"] if row.to_seq else []
        parts.append(f"{bound}{counted(row.records, 'record')}{' to write' if dry_run else ''}")
    if row.repeated:
        parts.append(f"{row.repeated} of them written before")
    if row.lag is not None:
        parts.append(f"lag {row.lag}")
    parts += [f"{name.replace('_', ' ')} {value}" for name, value in row.figures.items()]
    return f"{where}: {', '.join(parts)}"
