"""The settings table as flags, for all commands that take settings, and `topics settings`, which prints them."""

import argparse
import os
import sys

from topics.cli.options import add_parser, option
from topics.cli.output.failures import EXIT_USAGE
from topics.cli.output.screen import Screen
from topics.cli.tree import Subparsers
from topics.config import FLAG, SETTINGS, BadSettings, Settings
from topics.plurals import counted

DEST = "setting_"


def register(subparsers: Subparsers) -> None:
    parser = add_parser(
        subparsers, "settings", "", option("--json", "print one JSON object; secrets are hidden"), add_flags,
        description="Print the settings of `topics serve` that are in force. The configuration of a topic is `topics "
        "config TOPIC`.",
        usage="%(prog)s [-h] [--json] [--SETTING VALUE ...]",
    )  # fmt: skip
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    try:
        settings = Settings.load(os.environ, chosen_flags(args))
    except BadSettings as bad:
        return report(bad)
    shown = {row.variable: row.shown(getattr(settings, row.name)) for row in SETTINGS}
    if args.json:
        Screen(as_json=True).json(shown)
    else:
        print("\n".join(f"{variable}={text}" for variable, text in shown.items()))
    return 0


# --- flags


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting. Values stay text: `Settings.load` parses them and reports all problems at once."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for row in SETTINGS:
        group = groups.get(row.group) or groups.setdefault(row.group, parser.add_argument_group(row.group))
        metavar = row.kind.name.replace(" ", "") if "|" in row.kind.name else row.kind.name.split()[-1].upper()
        shape = {"metavar": "BOOL", "nargs": "?", "const": "true"} if row.kind is FLAG else {"metavar": metavar}
        default = row.kind.show(row.default) if row.default not in (None, ()) else "unset"
        help = f"{row.help} [{row.variable}, default {default}]".replace("%", "%%")
        group.add_argument(row.flag, dest=DEST + row.name, help=help, **shape)  # type: ignore[arg-type]


def chosen_flags(args: argparse.Namespace) -> dict[str, str]:
    """Return the flags of the command line, by field name."""
    given = {row.name: getattr(args, DEST + row.name) for row in SETTINGS}
    return {name: text for name, text in given.items() if text is not None}


def serve_flags(args: argparse.Namespace) -> dict[str, str]:
    """Return the flags of a server. `--json` implies the log format. Raise `BadSettings` if the two contradict."""
    flags = chosen_flags(args)
    if args.json and flags.setdefault("log_format", "json") != "json":
        raise BadSettings(
            [f"--log-format {flags['log_format']}: --json prints JSON lines only; leave out one of the two"]
        )
    return flags


def report(bad: BadSettings) -> int:
    print(f"topics: {counted(len(bad.problems), 'invalid setting')}", file=sys.stderr)
    for problem in bad.problems:
        print(f"  {problem}", file=sys.stderr)
    return EXIT_USAGE
