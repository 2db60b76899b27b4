"""Questions before a command destroys something."""

from __future__ import annotations

import sys

from topics.cli.output.failures import usage


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal. Return if the answer is yes or `--yes` was given; raise `Failure` otherwise."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage(f"{question.rstrip('?')} needs a confirmation", "pass --yes, since standard input is no terminal")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise usage("nothing was changed")
