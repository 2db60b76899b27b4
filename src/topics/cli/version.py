"""`topics version`: print the version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics import __version__

if TYPE_CHECKING:
    import argparse


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "version", help="print the version", description="Print the version.", allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=lambda args: print_version(as_json=args.json))


def print_version(*, as_json: bool = False) -> int:
    print(f'{{"version":"{__version__}"}}' if as_json else __version__)
    return 0
