"""Commands that work on files or a replica without a server: their exit statuses, and how they report failures."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from topics.cli.output.screen import Screen

EXIT_CLEAN, EXIT_DAMAGED, EXIT_USAGE = 0, 1, 2
NAME_DIRECTORY = "name the directory that the server has as --data-dir or TOPICS_DATA_DIR, or a backup of it"

Execute = Callable[[argparse.Namespace], int]


def guarded(execute: Execute, args: argparse.Namespace) -> int:
    """Run a command. Print an expected failure in one line and return its exit status."""
    from topics.storage.backup_target import CopyError
    from topics.storage.datadir import DataDirError
    from topics.storage.fs import next_step

    logging.getLogger("topics").addHandler(logging.NullHandler())  # the report has all findings
    try:
        return execute(args)
    except DataDirError as error:
        return fail(str(error), EXIT_USAGE)
    except CopyError as error:
        advice = str(error).partition("; ")[2]
        about_arguments = any(words in advice for words in ("--", "choose another"))
        return fail(str(error), EXIT_USAGE if about_arguments else EXIT_DAMAGED)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return fail(f"{error.strerror or error}{where}; {next_step(error)}", EXIT_DAMAGED)


def fail(text: str, status: int) -> int:
    """Print an error and return the status. The part after `; ` is the next step."""
    message, _, advice = text.partition("; ")
    Screen().fail(message, advice or NAME_DIRECTORY)
    return status


def aside_of(directory: str) -> str:
    """Return the path to which an existing directory moves before a restore."""
    return f"{directory}.before-restore-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
