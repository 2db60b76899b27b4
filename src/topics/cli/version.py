"""`topics version`: print the version."""

from __future__ import annotations

from topics import __version__
from topics.cli.tree import Subparsers, add_parser


def register(subparsers: Subparsers) -> None:
    parser = add_parser(subparsers, "version")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(execute=lambda args: print_version(as_json=args.json))


def print_version(*, as_json: bool = False) -> int:
    print(f'{{"version":"{__version__}"}}' if as_json else __version__)
    return 0
