"""Declarations of options: a row for each, as a usage line shows it.

A row is a function that adds its option to a parser or to a group of options.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from typing import Any

from topics.cli import tree
from topics.cli.output.failures import EXIT_DONE
from topics.cli.output.units import parse_count, parse_duration, parse_positive, parse_size
from topics.cli.tree import Subparsers
from topics.errors import TopicsError

Row = Callable[[Any], object]

# How the value of an option is parsed, by its placeholder. Other values stay text.
PARSERS = {"DURATION": parse_duration, "SIZE": parse_size, "SEQ": parse_count, "N": parse_positive}
# How each shell completes the name of a file, as shtab takes it: any text may be one.
FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "fish": "(__fish_complete_path (commandline -ct))"}
SHAPES = {"?": "[{}]", "+": "{}…", "*": "[{}…]"}  # of arguments, by `nargs`


def option(usage: str, help: str = "", *, completes: str = "", **keywords: Any) -> Row:
    """Declare an option (`-n --limit N`), a switch (`--follow`) or an argument (`TOPIC`, `[PREFIX]`, `SEQ…`).

    `completes` is the kind of the names with which a shell completes the value. The keywords are those of argparse.
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
        action = to.add_argument(*names, help=help or None, **keywords)
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
