"""What a pipeline's command says before the pipeline has begun: of a mistyped option, or of a signal during imports.

Imports next to nothing, so that `main` can take signals before anything else is imported.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

EXIT_USAGE, EXIT_INTERRUPTED = 2, 130
CORRECT = "correct the command; --help shows its options"
AGAIN = "run the same command again: it goes on where this run stopped"


def is_pipeline(words: Sequence[str]) -> bool:
    return words[:1] == ["pipeline"]


def report_by_hand(name: str, *, kind: str, message: str, next: str, dry_run: bool) -> str:
    """The report of a run that did nothing, where the real one cannot be imported."""
    problem = {"kind": kind, "message": message, "next": next}
    told = {"pipeline": name, "run_id": "", "state": "failed", "dry_run": dry_run, "ok": False}
    return json.dumps({**told, "topics": [], "error": problem, "next": next}, indent=2)


def tell(words: Sequence[str], *, kind: str, message: str, next: str) -> None:
    """With --json there is a report on standard output in any case."""
    if "--json" in words:
        name = words[1] if len(words) > 1 and not words[1].startswith("-") else ""
        print(report_by_hand(name, kind=kind, message=message, next=next, dry_run="--dry-run" in words), flush=True)
    print(f"topics: {message}\nnext: {next}", file=sys.stderr)


def tell_interrupted(words: Sequence[str]) -> int:
    tell(words, kind="interrupted", message="interrupted", next=AGAIN)
    return EXIT_INTERRUPTED


@contextmanager
def interruptible(words: Sequence[str]) -> Iterator[None]:
    """SIGTERM interrupts a pipeline as SIGINT does, until it takes both itself."""
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
    """Refuses options of a pipeline with its report; a subcommand's parser tells the top one, which has all words."""

    def error(self, message: str) -> NoReturn:
        raise _Mistake(self, message)

    def parse_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        try:
            return super().parse_args(words, namespace)
        except _Mistake as mistake:
            mistake.parser.print_usage(sys.stderr)
            if is_pipeline(words):
                tell(words, kind="usage", message=str(mistake), next=CORRECT)
            else:
                print(f"{mistake.parser.prog}: error: {mistake}", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)


class _Mistake(Exception):
    def __init__(self, parser: argparse.ArgumentParser, message: str) -> None:
        super().__init__(message)
        self.parser = parser
