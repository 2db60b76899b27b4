"""Declarations of options: a row for each, as a usage line shows it; and the parser of a command line.

A row is a function that adds its option to a parser or to a group of options.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from topics.cli import tree
from topics.cli.output.failures import EXIT_DONE, EXIT_USAGE
from topics.cli.output.screen import Screen, pretty_json
from topics.cli.output.units import parse_count, parse_duration, parse_positive, parse_size
from topics.cli.tree import Subparsers
from topics.errors import TopicsError

Row = Callable[[Any], object]

# How the value of an option is parsed, by its placeholder. Other values stay text.
PARSERS = {"DURATION": parse_duration, "SIZE": parse_size, "SEQ": parse_count, "N": parse_positive}
# How each shell completes the name of a file, as shtab takes it: any text may be one.
FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "fish": "(__fish_complete_path (commandline -ct))"}
SHAPES = {"?": "[{}]", "+": "{}…", "*": "[{}…]"}  # of arguments, by `nargs`


def option(usage: str, help: str = "", *, completes: str = "", env: str = "", **keywords: Any) -> Row:
    """Declare an option (`-n --limit N`), a switch (`--follow`) or an argument (`TOPIC`, `[PREFIX]`, `SEQ…`).

    `completes` is the kind of the names with which a shell completes the value. `env` is the variable that has its
    default. The keywords are those of argparse.
    """
    *names, last = usage.split()
    if last.startswith("-"):
        names.append(last)
        if not {"action", "choices"} & keywords.keys():
            keywords["action"] = "store_true"
    else:
        word = last.strip("[]…")
        nargs = next((nargs for nargs, shape in SHAPES.items() if shape.format(word) == last), None)
        keywords = {"metavar": word, **({"nargs": nargs} if nargs else {}), **keywords}
        if word in PARSERS:
            keywords.setdefault("type", PARSERS[word])
        if not names:
            names = [keywords.pop("dest", word.lower())]

    def add(to: argparse._ActionsContainer) -> None:
        more: dict[str, Any] = {"default": os.environ.get(env) or None} if env else {}
        action = to.add_argument(*names, help=help or None, **keywords, **more)
        if completes:
            action.complete = _names_of(completes)  # type: ignore[attr-defined]
        elif action.nargs != 0 and action.choices is None and action.type is None:
            action.complete = FILES  # type: ignore[attr-defined]

    return add


def _names_of(kind: str) -> dict[str, Any]:
    """Return how each shell completes names of a kind, as shtab takes it."""
    command, function = f"topics complete-names {kind}", f"_topics_{kind}"
    # Without this, bash takes what follows a colon for a word of its own, and names have colons.
    bash = f'COMP_WORDBREAKS=${{COMP_WORDBREAKS//:/}}\n{function}() {{ compgen -W "$({command})" -- "$1"; }}'
    zsh = f'{function}() {{ compadd -- ${{(f)"$({command})"}} }}'
    return {"bash": function, "zsh": function, "fish": f"({command})", "preamble": {"bash": bash, "zsh": zsh}}


def one_of(*rows: Row, required: bool = False) -> Row:
    return lambda to: _add_all(to.add_mutually_exclusive_group(required=required), rows)


def section(title: str, *rows: Row) -> Row:
    """Declare options that `--help` lists under a title of their own."""
    return lambda to: _add_all(to.add_argument_group(title), rows)


def _add_all(to: argparse._ActionsContainer, rows: Iterable[Row]) -> None:
    for row in rows:
        row(to)


def add_parser(
    subparsers: Subparsers,
    name: str,
    text: str = "",
    *rows: Row,
    details: str = "",
    examples: str = "",
    **keywords: Any,
) -> argparse.ArgumentParser:
    """Add the parser of a command. `text` is its line of help: that of the tree for a command of the first level."""
    line = text or tree.ROWS[name].help
    described: dict[str, Any] = {
        "description": f"{line[:1].upper()}{line[1:]}. {details}".rstrip(),
        "epilog": f"examples:\n{examples.rstrip()}" if examples else None,
    }
    parser = subparsers.add_parser(
        name,
        help=line,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **described | keywords,
    )
    _add_all(parser, rows)
    return parser


def add_group(parser: argparse.ArgumentParser, title: str = "commands", metavar: str = "COMMAND") -> Subparsers:
    """Let a parser have commands. Without one it prints them."""

    def show(args: argparse.Namespace) -> int:
        parser.print_help()
        return EXIT_DONE

    parser.set_defaults(execute=show)
    return parser.add_subparsers(title=title, metavar=metavar)


JSON_LINES = option("--json", "print JSON lines, also on a terminal")
TOPIC = option("TOPIC", "the topic", completes="topics")
QUEUE = option("QUEUE", "the queue", completes="queues")


# --- which records a command reads, watches or copies


def _where(text: str) -> str:
    """Return the text of a filter. Point at the place of an error."""
    from topics.model.filters import parse_filter  # only this option needs it

    try:
        parse_filter(["Where", text], field="--where")
    except TopicsError as error:
        at = (error.detail or {}).get("position", 1)
        what = error.message.removeprefix("--where[1]: ")
        raise argparse.ArgumentTypeError(f"{what}\n  {text}\n  {'^':>{at}}") from None
    return text


FILTERS = (
    option("--tag TAG", "only this tag; a trailing * matches the beginning"),
    option("--where FILTER", "only where this holds, such as 'customer.id = 7 and total > 100'", type=_where),
    option("--grep TEXT", "only records with this text in their data"),
)


def filter_text(filter: list[Any]) -> str:
    """Return a filter of a router for a person."""
    tagged = len(filter) == 3 and filter[0] == "tag" and isinstance(filter[2], str)
    return f"tag {filter[2]}" if tagged else filter[1] if filter[0] == "Where" else json.dumps(filter)


# --- the parser of a command line, and its failures

CORRECT = "correct the command; --help lists its options"
AGAIN = "run the same command again: it continues where this run stopped"


def print_failure(pipeline: str, kind: str, message: str, next: str, *, as_json: bool, dry_run: bool) -> None:
    """Print why a pipeline did not start: to standard error, and as a report on standard output with `--json`."""
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


def build_parser(words: list[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser for a command line, with only the command that it names; without words, with all commands."""
    Parser.words = words or ()
    parser = Parser(prog="topics", allow_abbrev=False)
    parser.is_first = True
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    named = [tree.ROWS[words[0]]] if words and words[0] in tree.ROWS else tree.ROWS.values()
    for module in dict.fromkeys(row.module for row in named):
        importlib.import_module(f"topics.cli.{module}").register(subparsers)
    return parser


def _near(message: str, parser: argparse.ArgumentParser) -> str:
    """Return the option that an unknown one was probably meant to be, as the start of a next step."""
    from difflib import get_close_matches

    _, _, unknown = message.partition("unrecognized arguments: ")
    names = [name for name in parser._option_string_actions if name.startswith("--")]
    near = get_close_matches(unknown.split(" ")[0].partition("=")[0], names, n=1, cutoff=0.75)
    return f"did you mean {near[0]}? " if near else ""
