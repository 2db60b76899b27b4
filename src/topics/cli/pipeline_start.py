"""Option parsing, signal handling and failure reports of `topics pipeline` before a pipeline starts.

Imports little, so that `main` handles signals before any slow import.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

EXIT_USAGE = 2
CORRECT = "correct the command; --help lists its options"
AGAIN = "run the same command again: it continues where this run stopped"


def is_pipeline(words: Sequence[str]) -> bool:
    return words[:1] == ["pipeline"]


def print_failure(pipeline: str, kind: str, message: str, next: str, *, as_json: bool, dry_run: bool) -> None:
    """Print why a pipeline did not start: to standard error, and as a report on standard output with `--json`."""
    from topics.cli.output.screen import Screen, pretty_json

    if as_json:
        from topics.spark.pipelines.run.report import RunProblem, RunReport

        report = RunReport(pipeline=pipeline, run_id="", dry_run=dry_run)
        report.fail(RunProblem(kind=kind, message=message, next=next))
        print(pretty_json(report), flush=True)
    Screen().fail(message, next)


def print_failure_of(words: Sequence[str], kind: str, message: str, next: str) -> None:
    """Print the failure of a command line that was not parsed."""
    name = words[1] if len(words) > 1 and not words[1].startswith("-") else ""
    print_failure(name, kind, message, next, as_json="--json" in words, dry_run="--dry-run" in words)


@contextmanager
def interruptible(words: Sequence[str]) -> Iterator[None]:
    """Let SIGTERM interrupt a pipeline as SIGINT does, until the pipeline installs its own handlers."""
    if not is_pipeline(words) or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class Parser(argparse.ArgumentParser):
    """Parser that reports invalid options of a pipeline in the form of its report.

    The parser of a subcommand raises, and the top-level parser, which has all words, prints.
    """

    _is_intermixed = False

    def error(self, message: str) -> NoReturn:
        raise _Mistake(self, message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Take options before, between and after the arguments of a list: `append orders --tag a hello`.

        Without this, argparse ends the list at the first option. After `--` there are no options.
        """
        words = list(sys.argv[1:] if args is None else args)
        shapes = [action.nargs for action in self._get_positional_actions()]
        has_list = any(shape in ("*", "+") for shape in shapes) and argparse.PARSER not in shapes
        if self._is_intermixed or not has_list or "--" in words:
            return super().parse_known_args(words, namespace)
        self._is_intermixed = True
        try:
            return self.parse_known_intermixed_args(words, namespace)
        finally:
            self._is_intermixed = False

    def parse_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        try:
            return super().parse_args(words, namespace)
        except _Mistake as mistake:
            parser = self._command_of(words) if mistake.parser is self else mistake.parser
            parser.print_usage(sys.stderr)
            if is_pipeline(words):
                print_failure_of(words, "usage", str(mistake), CORRECT)
            else:
                from topics.cli.output.screen import Screen

                Screen().fail(str(mistake), f"`{parser.prog} --help` explains the arguments")
        raise SystemExit(EXIT_USAGE)

    def _command_of(self, words: Sequence[str]) -> argparse.ArgumentParser:
        """Return the parser of the command that the words name. argparse reports an unknown option for all of them."""
        parser: argparse.ArgumentParser = self
        for word in words:
            groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
            if not groups or word not in groups[0].choices:
                break
            parser = groups[0].choices[word]
        return parser


class _Mistake(Exception):
    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(message)
        self.parser = parser
