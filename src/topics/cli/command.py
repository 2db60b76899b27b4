"""The frame of every command that talks to a server: one declaration, and the options that all of them share.

A `Command` says which request it sends (`request`) and how a person sees the answer (`show`). From that alone come
`--curl`, which prints the request instead of sending it (`curl_notes` says what else the command does), `--json`, the
choice between a table and JSON lines, the errors and the exit status. A command that does more than send one request
has `run`; its `request` is then the first one that it sends.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from topics.cli.connect import target as targets
from topics.cli.connect.server import Server, as_curl
from topics.cli.output.failures import EXIT_DONE, EXIT_USAGE, Failure
from topics.cli.output.screen import Screen
from topics.cli.tree import Subparsers, add_parser
from topics.client.call import Request
from topics.errors import TopicsError

Args = argparse.Namespace
Curl = Callable[[Request], str]  # a request as a `curl` command


@dataclass(frozen=True)
class Call:
    """One execution of a command: its arguments, the server, and the output."""

    args: Args
    server: Server
    screen: Screen


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command."""

    name: str
    request: Callable[[Args], Request]
    help: str = ""  # that of the tree for a command of the first level
    arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    show: Callable[[Call, Any], None] = lambda call, answer: call.screen.json(answer)
    run: Callable[[Call], int] | None = None
    examples: str = ""
    details: str = ""
    curl_notes: Callable[[Args, Curl], list[str]] = lambda args, curl: []  # what `--curl` prints as comments
    usage: str = ""  # of the arguments; from their names if it is empty
    asks: bool = False  # before it destroys something, unless `--yes` is given


def add(subparsers: Subparsers, command: Command) -> argparse.ArgumentParser:
    """Add a command to the parser."""
    parser = add_parser(subparsers, command.name, command.help, details=command.details, examples=command.examples)
    parser.description = _wrapped(parser.description or "")
    command.arguments(parser)
    if command.asks:
        parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON lines, also on a terminal")
    output.add_argument("--curl", action="store_true", help="print the request as a curl command, and do not send it")
    targets.add_options(parser)
    parser.usage = f"%(prog)s [options] {command.usage or _names_of_arguments(parser)}".rstrip()
    parser.set_defaults(execute=lambda args: execute(command, args))
    return parser


def registering(*commands: Command) -> Callable[[Subparsers], None]:
    """Return the function `register` of a module with these commands."""

    def register(subparsers: Subparsers) -> None:
        for command in commands:
            add(subparsers, command)

    return register


def add_group(subparsers: Subparsers, name: str, commands: Sequence[Command], *, examples: str) -> None:
    """Add a command that consists of commands."""
    parser = add_parser(subparsers, name, examples=examples)
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in commands:
        add(verbs, command)


def _wrapped(text: str) -> str:
    from shutil import get_terminal_size
    from textwrap import fill

    return fill(text, width=min(get_terminal_size().columns - 2, 100))


def _names_of_arguments(parser: argparse.ArgumentParser) -> str:
    """Return the arguments and required options as a usage line shows them: `TOPIC DATA…`, `ROUTER --from TOPIC`."""
    shapes = {"?": "[{}]", "+": "{}…", "*": "[{}…]"}
    names = [
        shapes.get(str(action.nargs), "{}").format(action.metavar or action.dest)
        for action in parser._get_positional_actions()
    ]
    required = [action for action in parser._get_optional_actions() if action.required]
    return " ".join(names + [f"{action.option_strings[-1]} {action.metavar}" for action in required])


def execute(command: Command, args: Args) -> int:
    """Run a command and return its exit status. Print an expected failure in one line, with the next step."""
    screen = Screen(as_json=args.json)
    try:
        target = targets.resolve(args, os.environ)
        if args.token is not None:
            screen.warn("other users of this machine can see --token in the process list; use --token-file")
        if args.curl:
            request = command.request(args)
            for note in command.curl_notes(args, lambda other: as_curl(other, target)):
                screen.line(f"# {note}")
            screen.line(as_curl(request, target))
            return EXIT_DONE
        with Server(target) as server:
            call = Call(args, server, screen)
            try:
                return command.run(call) if command.run is not None else _send(command, call)
            except TopicsError as error:
                raise server.failure(error) from error
    except Failure as failure:
        screen.fail(str(failure), failure.next_step)
        return failure.status
    except UnicodeEncodeError:
        screen.fail("an argument is not UTF-8 text", "pass other bytes as JSON lines on standard input")
        return EXIT_USAGE


def _send(command: Command, call: Call) -> int:
    """Send the request of the command and print the answer."""
    answer = call.server.json(command.request(call.args))
    if call.screen.is_human:
        command.show(call, answer)
    else:
        call.screen.json(answer)
    return EXIT_DONE


# --- arguments that several commands have


def topic_argument(parser: argparse.ArgumentParser, name: str = "topic", **options: Any) -> None:
    """Add the name of a topic. A shell completes it with the topics of the server."""
    action = parser.add_argument(name, **{"metavar": name.upper(), "help": "the topic", **options})
    action.completes = "queues" if name == "queue" else "topics"  # type: ignore[attr-defined]
