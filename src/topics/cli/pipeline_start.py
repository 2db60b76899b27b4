"""Option parsing, signal handling and failure reports of `topics pipeline` before a pipeline starts.

Imports little, so that `main` handles signals before any slow import.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

EXIT_USAGE = 2
CORRECT = "correct the command; --help lists its options"
AGAIN = "run the same command again: it continues where this run stopped"


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


class Parser(argparse.ArgumentParser):
    """Parser that reports invalid options of a pipeline in the form of its report."""

    words: Sequence[str] = ()  # the whole command line
    is_first = False
    _is_intermixed = False

    def error(self, message: str) -> NoReturn:
        parser, words = self._command(), self.words
        parser.print_usage(sys.stderr)
        if words[:1] == ["pipeline"]:
            print_failure_of(words, "usage", message, _near(message, parser) + CORRECT)
        else:
            from topics.cli.output.screen import Screen

            Screen().fail(message, f"{_near(message, parser)}`{parser.prog} --help` explains the arguments")
        raise SystemExit(EXIT_USAGE)

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

    def _command(self) -> argparse.ArgumentParser:
        """Return the parser of the command: argparse reports an unknown option as an error of the first parser."""
        parser: argparse.ArgumentParser = self
        for word in self.words if self.is_first else ():
            groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
            if not groups or word not in groups[0].choices:
                break
            parser = groups[0].choices[word]
        return parser


def _near(message: str, parser: argparse.ArgumentParser) -> str:
    """Return the option that an unknown one was probably meant to be, as the start of a next step."""
    from difflib import get_close_matches

    _, _, unknown = message.partition("unrecognized arguments: ")
    names = [name for name in parser._option_string_actions if name.startswith("--")]
    near = get_close_matches(unknown.split(" ")[0].partition("=")[0], names, n=1, cutoff=0.75)
    return f"did you mean {near[0]}? " if near else ""
