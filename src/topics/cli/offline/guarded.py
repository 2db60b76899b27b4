"""Commands that work on files or a replica without a server: their output, their failures, and how far they are."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple, TextIO

from topics.cli.output.failures import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, Failure
from topics.cli.output.screen import pretty_json
from topics.cli.output.units import size

NAME_DIRECTORY = "name the directory that the server has as --data-dir or TOPICS_DATA_DIR, or a backup of it"


class Outcome(NamedTuple):
    """What a command has done or found: for `--json`, and as lines for a person. `ok` decides the exit status."""

    result: object
    lines: Iterable[str]
    ok: bool = True


Execute = Callable[[argparse.Namespace], Outcome | None]  # None: everything was printed


def guarded(execute: Execute, args: argparse.Namespace) -> int:
    """Run a command, print what it returns, and return its exit status. Raise `Failure` for an expected failure."""
    from topics.storage.backup_files import CopyError
    from topics.storage.datadir import DataDirError
    from topics.storage.fs import next_step

    logging.getLogger("topics").addHandler(logging.NullHandler())  # the report has all findings
    try:
        done = execute(args)
        for line in () if done is None else [pretty_json(done.result)] if args.json else done.lines:
            print(line)
        return EXIT_DONE if done is None or done.ok else EXIT_FAILED
    except DataDirError as error:
        raise failure(str(error)) from None
    except CopyError as error:
        advice = str(error).partition("; ")[2]
        about_arguments = any(words in advice for words in ("--", "choose another"))
        raise failure(str(error), EXIT_USAGE if about_arguments else EXIT_FAILED) from None
    except BrokenPipeError:
        raise  # `main` ends quietly: nothing reads the output any more
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        raise failure(f"{error.strerror or error}{where}; {next_step(error)}", EXIT_FAILED) from None


def failure(text: str, status: int = EXIT_USAGE) -> Failure:
    """Return the failure of a text, whose part after `; ` is the next step."""
    message, _, advice = text.partition("; ")
    return Failure(message, status=status, next_step=advice or NAME_DIRECTORY)


def aside_of(directory: str) -> str:
    """Return the path to which an existing directory moves before a restore."""
    return f"{directory}.before-restore-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


class Meter:
    """Progress on standard error: a bar on a terminal, otherwise a line every few seconds."""

    WIDTH = 30
    LINE_EVERY_S = 5.0
    BAR_EVERY_S = 0.1

    def __init__(self, verb: str, out: TextIO | None = None) -> None:
        self._verb = verb
        self._out = out or sys.stderr
        self._bar = self._out.isatty()
        self._last = time.monotonic()
        self._drawn = False

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._drawn and self._bar:
            with suppress(OSError):
                print("\r\x1b[K", end="", file=self._out, flush=True)

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < (self.BAR_EVERY_S if self._bar else self.LINE_EVERY_S):
            return
        self._last, self._drawn = now, True
        share = min(done / total, 1.0) if total else 1.0
        text = f"{self._verb} {size(done)} of {size(max(done, total))}"
        if self._bar:
            filled = round(share * self.WIDTH)
            bar = "#" * filled + "." * (self.WIDTH - filled)
            print(f"\r\x1b[K[{bar}] {share:4.0%}  {text}", end="", file=self._out, flush=True)
        else:
            print(f"{text} ({share:.0%})", file=self._out, flush=True)
