"""The frame of every command that talks to a server: one declaration, and the options that all of them share.

`Command` declares the options of a command and the request that it sends, or the first one if it sends several. From
that alone come `--curl`, which prints the request instead of sending it,
`--json`, the choice between a table and JSON lines, the errors and the exit status.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, Self

from topics.cli import connect as targets
from topics.cli.connect import Server, as_curl, delete, get
from topics.cli.options import JSON_LINES, SHAPES, Row, add_group, add_parser, option, section
from topics.cli.output.failures import EXIT_DONE, EXIT_NOT_FOUND, usage
from topics.cli.output.screen import Screen, confirm
from topics.cli.tree import Subparsers
from topics.client.call import Request
from topics.errors import TopicsError

Args = argparse.Namespace


@dataclass(frozen=True)
class Call:
    """One execution of a command: its arguments, the server, and the output."""

    args: Args
    server: Server
    screen: Screen
    request: Callable[[Args], Request]

    def ask(self) -> Any:
        """Send the request of the command and return its decoded answer."""
        return self.server.json(self.request(self.args))

    def result(self, says: Callable[[Args, Any], str]) -> None:
        """Send the request of the command, and print its answer: as text for a person, otherwise as JSON."""
        answer = self.ask()
        self.screen.result(answer, says(self.args, answer))


Run = Callable[[Call], int | None]  # returns the exit status; None is 0


@dataclass
class Command:
    """The declaration of a command, as a decorator of the function that runs it."""

    name: str
    help: str = ""  # that of the tree for a command of the first level
    options: tuple[Row, ...] = ()
    _: KW_ONLY
    request: Callable[[Args], Request]
    examples: str
    details: str = ""
    usage: str = ""  # of the arguments; from their names if it is empty
    asks: bool = False  # before it destroys something, unless `--yes` is given
    says: Callable[[Args, Any], str] | None = None  # the answer for a person; such a command needs no function
    run: Run = field(init=False)

    def __post_init__(self) -> None:
        if (says := self.says) is not None:
            self.run = lambda call: call.result(says)

    def __call__(self, run: Run) -> Self:
        self.run = run
        return self

    def register(self, subparsers: Subparsers) -> None:
        yes = option("-y --yes", "do not ask")
        curl = option("--curl", "print the first request as a curl command, and do not send it")
        parser = add_parser(
            subparsers, self.name, self.help, *self.options, *([yes] if self.asks else []),
            section("output", JSON_LINES, curl), targets.add_options, details=self.details, examples=self.examples,
        )  # fmt: skip
        parser.description = fill(parser.description or "", width=min(get_terminal_size().columns - 2, 100))
        parser.usage = f"%(prog)s [options] {self.usage or _names_of_arguments(parser)}".rstrip()
        parser.set_defaults(execute=self.execute)

    def execute(self, args: Args) -> int:
        """Run the command and return its exit status. Raise `Failure` with the next step for an expected failure."""
        screen = Screen(as_json=args.json)
        try:
            target = targets.resolve(args, os.environ, lambda: self.request(args))
            if args.token is not None:
                screen.warn("other users of this machine can see --token in the process list; use --token-file")
            if args.curl:
                screen.line(as_curl(self.request(args), target))
                return EXIT_DONE
            with Server(target) as server:
                try:
                    return self.run(Call(args, server, screen, self.request)) or EXIT_DONE
                except TopicsError as error:
                    raise server.failure(error) from error
        except UnicodeEncodeError:
            what = "an argument is not UTF-8 text"
            raise usage(what, "pass other bytes as JSON lines on standard input") from None


def removal(
    kind: str, help: str, *arguments: Row, path: Callable[[Args], str], question: Callable[[Args, Any], str],
    examples: str, verbs: tuple[str, str] = ("rm", "removed"), looks: bool = True,
) -> Command:  # fmt: skip
    """Return the command `rm` for things of a kind, which is also the argument with the name of one.

    `question` gets the arguments, and with `looks` what the server returns for the path.
    """

    def run(call: Call) -> int:
        name = getattr(call.args, kind)
        if not call.args.yes:
            confirm(question(call.args, call.server.json(get(path(call.args))) if looks else None))
        answer = call.ask()
        call.screen.result(answer, f"{verbs[1]} {name}" if answer["deleted"] else f"{name} does not exist")
        return EXIT_DONE if answer["deleted"] else EXIT_NOT_FOUND

    request = lambda args: delete(path(args))  # noqa: E731
    return Command(verbs[0], help, arguments, request=request, asks=True, examples=examples)(run)


def group(name: str, *commands: Command) -> Callable[[Subparsers], None]:
    """Return the function that registers a command that consists of commands. It has the first example of each."""
    examples = "".join(one.examples.splitlines(keepends=True)[0] for one in commands)

    def register(subparsers: Subparsers) -> None:
        verbs = add_group(add_parser(subparsers, name, examples=examples))
        for one in commands:
            one.register(verbs)

    return register


def _names_of_arguments(parser: argparse.ArgumentParser) -> str:
    """Return the arguments and required options as a usage line shows them: `TOPIC DATA…`, `ROUTER --from TOPIC`."""
    names = [
        SHAPES.get(str(action.nargs), "{}").format(action.metavar or action.dest)
        for action in parser._get_positional_actions()
    ]
    required = [action for action in parser._get_optional_actions() if action.required]
    return " ".join(names + [f"{action.option_strings[-1]} {action.metavar}" for action in required])
