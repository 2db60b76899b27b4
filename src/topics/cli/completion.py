"""Shell completion: `topics completion SHELL` prints the script that a shell loads.

The scripts in `shells/` are short: they pass the line up to the cursor to `topics complete-line`, which prints the
candidates: commands, options, choices, and names that the server knows.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from topics.cli import connect as target
from topics.cli import tree
from topics.cli.connect import Server, get
from topics.cli.options import add_parser, option
from topics.cli.output.failures import Failure
from topics.cli.output.screen import Screen
from topics.cli.tree import Subparsers
from topics.errors import TopicsError

SCRIPTS = {shell: Path(__file__).with_name("shells") / f"topics.{shell}" for shell in ("bash", "zsh", "fish")}


def register(subparsers: Subparsers) -> None:
    parser = add_parser(
        subparsers, "completion", "",
        option("SHELL", "bash, zsh or fish", choices=SCRIPTS),
        option("--json", "print the script as a member of one JSON object"),
        details="It completes commands, options and topic names.",
        epilog="load it now, or in the start file of the shell:\n"
        "  source <(topics completion bash)        # ~/.bashrc\n"
        "  source <(topics completion zsh)         # ~/.zshrc, after compinit\n"
        "  topics completion fish | source         # ~/.config/fish/config.fish",
    )  # fmt: skip
    parser.set_defaults(execute=_print)


def _print(args: argparse.Namespace) -> int:
    script = SCRIPTS[args.shell].read_text(encoding="utf-8")
    if args.json:
        Screen(as_json=True).json({"shell": args.shell, "script": script})
    else:
        sys.stdout.write(script)
    return 0


# --- candidates


BREAKS = ":="  # bash replaces only what follows the last of these in a word
MAX_NAMES = 1000
TIMEOUT_S = 2.0

BuildParser = Callable[[list[str]], argparse.ArgumentParser]


def print_candidates(shell: str, line: str, build_parser: BuildParser) -> int:
    """Print the words that can complete a line. Print nothing if anything is wrong: a shell waits.

    `build_parser` returns the parser of a command line that begins with the given words.
    """
    words = _split(line)
    if len(words) < 2:
        return 0
    current = words[-1]
    found = sorted({one for one in _candidates(words[1:], build_parser) if one.startswith(current)})
    cut = max(current.rfind(sign) for sign in BREAKS) + 1 if shell == "bash" else 0
    # One candidate is complete: bash then adds a space by itself.
    sys.stdout.write("".join(f"{one[cut:]}\n" for one in found))
    return 0


def _split(line: str) -> list[str]:
    """Split a line as a shell would. The last word is the one to complete; it may be empty or have an open quote."""
    for closing in ("", '"', "'"):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        if not closing and (not line or line[-1].isspace()):
            words.append("")
        return words
    return []


def _candidates(words: Sequence[str], build_parser: BuildParser) -> Iterator[str]:
    """Yield what can replace the last word."""
    *before, current = words
    if not before:
        yield from (["--help", "--version"] if current.startswith("-") else tree.ROWS)
        return
    if before[0] not in tree.ROWS:
        return
    parser, rest = build_parser([before[0]]), list(before)
    while groups := [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]:
        group = groups[0]
        if not rest:
            yield from group.choices
            return
        if rest[0] not in group.choices:
            return
        parser = group.choices[rest.pop(0)]
    yield from _arguments(parser, rest, current)


def _arguments(parser: argparse.ArgumentParser, before: list[str], current: str) -> Iterator[str]:
    """Yield options, or the values of the option or argument that comes next."""
    waiting, place, options = None, 0, dict[str, str]()
    for word in before:
        flag, sign, value = word.partition("=")
        action = parser._option_string_actions.get(flag)
        if waiting is not None:
            options[waiting.dest], waiting = word, None
        elif not word.startswith("-") or len(word) == 1:
            place += 1
        elif action is not None and action.nargs != 0:
            if sign:
                options[action.dest] = value
            else:
                waiting = action
    if waiting is None and current.startswith("-"):
        yield from (flag for flag in parser._option_string_actions if len(flag) > 2 or len(current) < 2)
        return
    actions = [waiting] if waiting is not None else parser._get_positional_actions()[place:]
    if not actions:  # the last argument may repeat
        actions = [action for action in parser._get_positional_actions()[-1:] if action.nargs in ("+", "*")]
    for action in actions[:1]:
        if action.choices is not None:
            yield from map(str, action.choices)
        if (kind := getattr(action, "completes", None)) is not None:
            yield from _names(kind, options)


def _names(kind: str, options: Mapping[str, str]) -> list[str]:
    """Return names of that kind. Empty if the server does not answer: a shell shows no errors."""
    try:
        if kind == "contexts":
            return list(target.read_contexts(os.environ).by_name)
        args = argparse.Namespace(**{name: options.get(name) for name in ("url", "context", "token", "token_file")})
        with Server(target.resolve(args, os.environ), timeout_s=TIMEOUT_S) as server:
            if kind in ("routers", "schedules"):
                return [row[kind[:-1]] for row in server.json(get(f"/v0/{kind}", page_size=MAX_NAMES))[kind]]
            rows = server.json(get("/v0/topics", page_size=MAX_NAMES))["topics"]
    except (Failure, TopicsError, OSError):
        return []
    return [row["topic"] for row in rows if kind != "queues" or row["type"] == "queue"]
