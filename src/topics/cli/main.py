"""Entry point of the `topics` command: find the command, import its module, and run it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from topics import __version__
from topics.cli import tree

if TYPE_CHECKING:
    from topics.cli.tree import Subparsers

EXIT_USAGE, EXIT_INTERRUPTED = 2, 130
HELP_FLAGS = ("-h", "--help", "help")
# The options of all commands that talk to a server, and whether they take a value.
COMMON_OPTIONS = {
    "--url": True, "-c": True, "--context": True, "--token-file": True, "--token": True,
    "--json": False, "--curl": False,
}  # fmt: skip
# Their commands take these options.
HAS_COMMANDS = ("schema", "queue", "schedule", "router", "consumer", "key", "replica", "pipeline")
VERSION_FLAGS = ("-V", "--version", "version")


def main(argv: Sequence[str] | None = None) -> int:
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output closed its pipe (`topics config | head`). Python would print an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _dispatch(words: list[str]) -> int:
    if words[:1] and words[0] in VERSION_FLAGS:
        # Without a parser: scripts ask often, and an import costs more than the answer.
        if words[1:] in ([], ["--json"]):
            return print_version(as_json=len(words) > 1)
        words[0] = "version"
    if words[:1] == ["complete-names"] and len(words) == 2:  # called by the scripts of `topics completion`
        from topics.cli.completion import print_names

        return print_names(words[1])
    words = _with_options_last(words)
    if not words or words[0] in HELP_FLAGS or words[0] not in tree.ROWS:
        return _help(words)
    return _run(words)


def _run(words: list[str]) -> int:
    import signal
    from contextlib import nullcontext

    from topics import early_signals
    from topics.cli.output.failures import Failure

    is_pipeline = words[0] == "pipeline"
    try:
        # A pipeline can take seconds to start. It handles the signals itself then.
        with early_signals.handled(signal.default_int_handler) if is_pipeline else nullcontext():
            from topics.cli.options import build_parser

            args = build_parser(words).parse_args(words)
            code: int = args.execute(args)
            sys.stdout.flush()
    except Failure as failure:
        from topics.cli.output.screen import Screen

        Screen().fail(str(failure), failure.next_step)
        return failure.status
    except KeyboardInterrupt:
        if is_pipeline:
            from topics.cli.options import AGAIN, print_failure_of

            print_failure_of(words, "interrupted", "interrupted", AGAIN)
        return EXIT_INTERRUPTED
    return code


def _help(words: list[str]) -> int:
    """Print the commands. An unknown command is an error, with the closest known name."""
    known = words[:1] and words[0] in HELP_FLAGS
    if known and len(words) > 1 and words[1] in tree.ROWS:
        return _run([*words[1:], "--help"])
    if not words or known:
        print(_overview(), file=sys.stdout if known else sys.stderr)
        return 0 if known else EXIT_USAGE
    from difflib import get_close_matches

    near = tree.SYNONYMS.get(words[0]) or next(iter(get_close_matches(words[0], tree.ROWS, n=1)), None)
    hint = f"did you mean {near}? " if near else ""
    what = "option" if words[0].startswith("-") else "command"
    print(f"topics: there is no {what} {words[0]!r}\nnext: {hint}`topics --help` lists the commands", file=sys.stderr)
    return EXIT_USAGE


def _with_options_last(words: list[str]) -> list[str]:
    """Return the command line with the options of all commands behind the command: `topics --url X ls`."""
    at = 0
    while at < len(words) and (name := words[at].partition("=")[0]) in COMMON_OPTIONS:
        at += 2 if COMMON_OPTIONS[name] and "=" not in words[at] else 1
    if not at or at >= len(words) or words[at] not in tree.ROWS:
        return words
    behind = at + (2 if words[at] in HAS_COMMANDS else 1)
    return [*words[at:behind], *words[:at], *words[behind:]]


def _overview() -> str:
    bold = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else ("", "")
    lines = ["usage: topics COMMAND …", "", "A persistent event engine for one machine, over HTTP.", ""]
    lines += [*tree.EXAMPLES.splitlines(), ""]
    width = max(len(name) for name in tree.ROWS)
    for title, rows in tree.GROUPS.items():
        lines.append(f"{bold[0]}{title}{bold[1]}")
        lines += [f"  {row.name.ljust(width)}  {row.help}" for row in rows]
    lines += [
        "",
        "`topics COMMAND --help` explains a command. On a terminal, commands print tables; in a pipe, JSON lines.",
        "`settings`, `backup`, `restore` and `verify` print text in a pipe, too; with --json they print JSON.",
    ]
    return "\n".join(lines)


# --- the command `version`


def register(subparsers: Subparsers) -> None:
    from topics.cli.options import add_parser, option

    parser = add_parser(subparsers, "version", "", option("--json", "print one JSON object"))
    parser.set_defaults(execute=lambda args: print_version(as_json=args.json))


def print_version(*, as_json: bool = False) -> int:
    print(f'{{"version":"{__version__}"}}' if as_json else __version__)
    return 0
