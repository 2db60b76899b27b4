"""`topics config`: what a server started here and now would run with, or the reference page of every setting."""

import argparse
import os
import sys

from topics.cli.settings import add_flags, chosen_flags, report
from topics.config import SETTINGS, BadSettings, Setting, Settings

INTRODUCTION = """\
# Configuration

Every setting of `topics serve` is a variable of the environment and a flag of the same name; the flag wins. This page
is made from the settings table by `make docs`.

- A **size** is a number of bytes, or a number with `KiB`, `MiB`, `GiB` or `TiB`, for short `k`, `M`, `G` or `T`.
- A **boolean** is `1`, `true`, `yes`, `on`, or `0`, `false`, `no`, `off`. A boolean flag without a value means yes.
- A duration ends in `_MS` and is a whole number of milliseconds.
- An empty value counts as unset.

A server that meets settings it cannot use names all of them and exits with status 2. A `TOPICS_*` variable that is no
setting is logged as a warning, with the name it may be a slip of. `topics config` prints what would be in force.
"""


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "config", help="print the settings in force, or their reference page", allow_abbrev=False
    )
    parser.add_argument("--markdown", action="store_true", help="print the reference page of every setting")
    add_flags(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    if args.markdown:
        sys.stdout.write(reference())
        return 0
    try:
        settings = Settings.load(os.environ, chosen_flags(args))
    except BadSettings as bad:
        return report(bad)
    for row in SETTINGS:
        print(f"{row.variable}={row.shown(getattr(settings, row.name))}")
    return 0


def reference() -> str:
    """docs/configuration.md, whole."""
    parts = [INTRODUCTION]
    for group in dict.fromkeys(row.group for row in SETTINGS):
        rows = [_line(row) for row in SETTINGS if row.group == group]
        head = "| variable | flag | type | default | bounds | meaning |\n|---|---|---|---|---|---|"
        parts.append("\n".join([f"## {group}", "", head, *rows]) + "\n")
    return "\n".join(parts)


def _line(row: Setting) -> str:
    default = row.kind.show(row.default) if row.default not in (None, ()) else ""
    cells = (
        f"`{row.variable}`",
        f"`{row.flag}`",
        row.kind.name.replace("|", "\\|"),
        f"`{default}`" if default else "unset",
        _bounds(row),
        row.help,
    )
    return "| " + " | ".join(cells) + " |"


def _bounds(row: Setting) -> str:
    if row.low is None or row.high is None:
        return ""
    low = row.kind.show(row.low)
    return f"{low} or more" if row.unbounded else f"{low} to {row.kind.show(row.high)}"
