"""`topics version`: print the version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics import __version__

if TYPE_CHECKING:
    import argparse


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("version", help="print the version", description="Print the version.")
    parser.set_defaults(execute=print_version)


def print_version(args: argparse.Namespace | None = None) -> int:
    print(__version__)
    return 0
