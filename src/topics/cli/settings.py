"""The settings table as command-line flags, for every subcommand that takes settings."""

import argparse
import sys

from topics.config import FLAG, SETTINGS, BadSettings, Setting

EXIT_BAD_SETTINGS = 2
DEST = "setting_"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for each row. Values stay text: the table parses them, so that all problems can be told together."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for row in SETTINGS:
        group = groups.get(row.group) or groups.setdefault(row.group, parser.add_argument_group(row.group))
        if row.kind is FLAG:
            group.add_argument(row.flag, dest=DEST + row.name, nargs="?", const="true", metavar="BOOL", help=_help(row))
        else:
            group.add_argument(row.flag, dest=DEST + row.name, metavar=_metavar(row), help=_help(row))


def chosen_flags(args: argparse.Namespace) -> dict[str, str]:
    """The flags that were given, by field name."""
    given = {row.name: getattr(args, DEST + row.name) for row in SETTINGS}
    return {name: text for name, text in given.items() if text is not None}


def report(bad: BadSettings) -> int:
    """Tell every problem on standard error; the exit status to end with."""
    count = len(bad.problems)
    print(f"topics: {count} bad setting{'s' if count > 1 else ''}", file=sys.stderr)
    for problem in bad.problems:
        print(f"  {problem}", file=sys.stderr)
    return EXIT_BAD_SETTINGS


def _metavar(row: Setting) -> str:
    return row.kind.name.split()[-1].upper() if "|" not in row.kind.name else row.kind.name.replace(" ", "")


def _help(row: Setting) -> str:
    default = row.kind.show(row.default) if row.default not in (None, ()) else "unset"
    return f"{row.help} [{row.variable}, default {default}]".replace("%", "%%")
