"""`topics serve`: settings from the environment and the flags, then the server until it is told to stop."""

import argparse
import os
from typing import TYPE_CHECKING

from topics import logs
from topics.cli import secrets
from topics.cli.settings import add_flags, chosen_flags, report
from topics.config import BadSettings, Settings, unknown_variables

if TYPE_CHECKING:
    from topics.server.run import Build

log = logs.Log("serve")


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "serve",
        help="run the server",
        description="Run the server. Every setting is a flag or a TOPICS_* variable; the flag wins. "
        "SIGTERM or SIGINT lets open requests finish and exits with status 0.",
        allow_abbrev=False,
    )
    add_flags(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, *, build: "Build | None" = None) -> int:
    """Exit status of a server's whole life; `build` puts another application behind the sockets, for tests."""
    try:
        settings = Settings.load(os.environ, chosen_flags(args))
    except BadSettings as bad:
        return report(bad)
    secrets.forget(args)
    logs.setup(level=settings.log_level, form=settings.log_format)
    _warn(settings)
    # Here and not above: `topics version` and `--help` need no event loop.
    from topics.server.run import run

    try:
        return run(settings, build=build)
    except BadSettings as bad:
        return report(bad)


def _warn(settings: Settings) -> None:
    for line in unknown_variables(os.environ):
        log.warning("unknown_variable", hint=line)
    if settings.data_dir is None:
        log.warning(
            "memory_only", hint="every record is lost when this server stops; set TOPICS_DATA_DIR to keep them on disk"
        )
    if not settings.key_rules():
        log.warning(
            "no_api_keys",
            hint="anybody who reaches this address may read and write everything; set TOPICS_API_KEYS to ask for a key",
            host=settings.host,
        )
