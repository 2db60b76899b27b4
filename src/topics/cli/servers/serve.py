"""`topics serve`: read the settings and run the server until a signal stops it; and `topics settings`."""

import argparse
import ctypes
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from topics import early_signals, logs
from topics.cli.options import add_parser, option
from topics.cli.output.failures import EXIT_USAGE
from topics.cli.output.screen import Screen
from topics.cli.tree import Subparsers
from topics.config import SETTINGS, BadSettings, Setting, Settings, unknown_variables
from topics.installation import is_installed
from topics.plurals import counted
from topics.setting_kinds import FLAG

if TYPE_CHECKING:
    from topics.server.run import Build

HIDDEN = "(hidden)"
DEST = "setting_"

log = logs.Log("serve")


def register(subparsers: Subparsers) -> None:
    parser = add_parser(
        subparsers, "serve", "",
        option("--dev", "for development: in memory, on a free port, with few log lines"),
        option("--json", "print only JSON lines, also on a terminal: implies --log-format json"),
        add_flags,
        usage="%(prog)s [-h] [--dev] [--json] [--SETTING VALUE ...]",
        description="Run the server. Each setting is a flag and a TOPICS_* variable; the flag wins. "
        "On SIGTERM or SIGINT, open requests finish and the server exits with status 0. SIGHUP reads the files of "
        "certificates and API keys again.",
    )  # fmt: skip
    parser.set_defaults(execute=execute)
    _register_settings(subparsers)


def execute(args: argparse.Namespace, *, build: "Build | None" = None) -> int:
    """Run the server and return its exit status. Tests pass `build` to run another application."""
    early_signals.handle()
    try:
        if args.dev:
            return _serve(_dev_settings(args, os.environ), args, build)
        return _serve(Settings.load(os.environ, serve_flags(args)), args, build)
    except BadSettings as bad:
        return report(bad)


def _dev_settings(args: argparse.Namespace, env: Mapping[str, str]) -> Settings:
    """Return the settings of a server for development. Raise `BadSettings` if they contradict."""
    flags = serve_flags(args)
    if "data_dir" in flags:
        raise BadSettings(["--data-dir: --dev keeps records in memory only; leave out one of the two"])
    env = {name: value for name, value in env.items() if name not in ("TOPICS_DATA_DIR", "TOPICS_PORT")}
    return Settings.load(env, {"port": "0", "log_level": "warning"} | flags)


def _serve(settings: Settings, args: argparse.Namespace, build: "Build | None") -> int:
    forget_secrets(args)
    logs.setup(level=settings.log_level, form=settings.log_format)
    if not args.dev:
        _warn(settings)
    # Imported here, because `topics version` and `--help` need no event loop.
    from topics.server.run import run

    if build is None and is_installed("mcp") and is_installed("httpx"):
        from topics.mcp.endpoint import build
    return run(settings, build=build)


def _warn(settings: Settings) -> None:
    for line in unknown_variables(os.environ):
        log.warning("unknown_variable", hint=line)
    if settings.data_dir is None:
        hint = "records are lost when the server stops; set TOPICS_DATA_DIR to keep them on disk"
        log.warning("memory_only", hint=hint)
    if not settings.key_rules():
        hint = "every client of this address has full access; set TOPICS_API_KEYS to require a key"
        log.warning("no_api_keys", hint=hint, host=settings.host)


# --- secrets


def forget_secrets(args: argparse.Namespace) -> None:
    """Remove the secrets from the environment, the arguments and the parsed options.

    Child processes do not inherit them, and `/proc/PID/environ` and core dumps do not show the variable. The kernel's
    copy of the arguments stays visible, so the help of these flags advises against them.
    """
    for row in SETTINGS:
        if row.secret:
            _forget_variable(row.variable)
            _forget_flag(row, args)


def _forget_variable(name: str) -> None:
    if name not in os.environ:
        return
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    where = getenv(name.encode())
    if where:
        # `del os.environ[name]` only unlinks the variable; its text stays in the initial stack of the process.
        ctypes.memset(where, 0, len(ctypes.string_at(where)))
    del os.environ[name]


def _forget_flag(row: Setting, args: argparse.Namespace) -> None:
    if getattr(args, DEST + row.name, None) is None:
        return
    setattr(args, DEST + row.name, HIDDEN)
    for words in (sys.argv, sys.orig_argv):
        for at, word in enumerate(words):
            if word.startswith(row.flag + "="):
                words[at] = f"{row.flag}={HIDDEN}"
            elif at and words[at - 1] == row.flag:
                words[at] = HIDDEN


# --- `topics settings`, and the settings table as flags


def _register_settings(subparsers: Subparsers) -> None:
    parser = add_parser(
        subparsers, "settings", "", option("--json", "print one JSON object; secrets are hidden"), add_flags,
        description="Print the settings of `topics serve` that are in force. The configuration of a topic is `topics "
        "config TOPIC`.",
        usage="%(prog)s [-h] [--json] [--SETTING VALUE ...]",
    )  # fmt: skip
    parser.set_defaults(execute=_print_settings)


def _print_settings(args: argparse.Namespace) -> int:
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
