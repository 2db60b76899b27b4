"""Entry point of the `topics` command: find the subcommand and run it."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from topics import __version__
from topics.cli import pipeline_start

# Each module registers its subcommands and sets `args.execute`. They are imported by name, after `main` has installed
# its signal handlers.
COMMANDS = ("serve", "config", "data", "pipeline", "sql")


def build_parser() -> argparse.ArgumentParser:
    parser = pipeline_start.Parser(
        prog="topics", description="A persistent event engine for one machine, over HTTP.", allow_abbrev=False
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        importlib.import_module(f"topics.cli.{command}").register(subparsers)
    version = subparsers.add_parser("version", help="print the version")
    version.set_defaults(execute=_print_version)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with pipeline_start.interruptible(words):
            args = build_parser().parse_args(words)
            code: int = args.execute(args)
            sys.stdout.flush()
    except KeyboardInterrupt:
        if not pipeline_start.is_pipeline(words):
            raise
        return pipeline_start.print_interrupted(words)
    except BrokenPipeError:
        # The reader of the output closed its pipe (`topics config | head`). Python would print an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _print_version(args: argparse.Namespace) -> int:
    print(__version__)
    return 0
