"""Shell completion: `topics completion SHELL` prints the script that a shell loads. shtab generates it.

The script has all commands, options and choices. For names that the server knows it calls `topics complete-names`.
"""

from __future__ import annotations

import argparse
import os
import sys

from topics.cli import connect
from topics.cli.connect import Server, get
from topics.cli.options import add_parser, build_parser, option
from topics.cli.output.failures import Failure
from topics.cli.output.screen import Screen
from topics.cli.tree import Subparsers
from topics.errors import TopicsError

MAX_NAMES = 1000
TIMEOUT_S = 2.0


def register(subparsers: Subparsers) -> None:
    parser = add_parser(
        subparsers, "completion", "",
        option("SHELL", "bash, zsh or fish", choices=("bash", "zsh", "fish")),
        option("--json", "print the script as a member of one JSON object"),
        details="It completes commands, options and names, such as those of topics.",
        epilog="load it now, or in the start file of the shell:\n"
        "  source <(topics completion bash)        # ~/.bashrc\n"
        '  eval "$(topics completion zsh)"         # ~/.zshrc, after compinit\n'
        "  topics completion fish | source         # ~/.config/fish/config.fish",
    )  # fmt: skip
    parser.set_defaults(execute=_print)


def _print(args: argparse.Namespace) -> int:
    import shtab

    script = shtab.complete(build_parser(), shell=args.shell)
    if args.json:
        Screen(as_json=True).json({"shell": args.shell, "script": script})
    else:
        sys.stdout.write(script)
    return 0


def print_names(kind: str) -> int:
    """Print the names of a kind, for a shell. Print none if anything is wrong: a shell waits, and shows no errors."""
    args = argparse.Namespace(url=None, context=None, token=None, token_file=None)
    try:
        if kind == "contexts":
            names = list(connect.read_contexts(os.environ).by_name)
        else:
            path = "topics" if kind == "queues" else kind
            with Server(connect.resolve(args, os.environ), timeout_s=TIMEOUT_S) as server:
                rows = server.json(get(f"/v0/{path}", page_size=MAX_NAMES))[path]
            names = [row[path[:-1]] for row in rows if kind != "queues" or row["type"] == "queue"]
    except (Failure, TopicsError, OSError, KeyError):
        names = []
    sys.stdout.write("".join(f"{name}\n" for name in names))
    return 0
