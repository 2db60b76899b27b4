"""`topics serve`: read the settings and run the server until a signal stops it."""

import argparse
import os
from typing import TYPE_CHECKING

from topics import early_signals, logs
from topics.cli.servers import dev, secrets
from topics.cli.servers.setting_flags import add_flags, report, serve_flags
from topics.config import BadSettings, Settings, unknown_variables

if TYPE_CHECKING:
    from topics.server.run import Build

log = logs.Log("serve")


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "serve",
        help="run the server",
        usage="%(prog)s [-h] [--dev [--open]] [--json] [--SETTING VALUE ...]",
        description="Run the server. Each setting is a flag and a TOPICS_* variable; the flag wins. "
        "On SIGTERM or SIGINT, open requests finish and the server exits with status 0. SIGHUP reads the files of "
        "certificates and API keys again.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--dev", action="store_true", help="for development: in memory, on a free port, with few log lines"
    )
    parser.add_argument("--open", action="store_true", help="with --dev: open the console in a browser")
    parser.add_argument(
        "--json", action="store_true", help="print only JSON lines, also on a terminal: implies --log-format json"
    )
    add_flags(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, *, build: "Build | None" = None) -> int:
    """Run the server and return its exit status. Tests pass `build` to run another application."""
    early_signals.handle()
    try:
        if args.dev:
            with dev.settings_of(args, os.environ) as (env, flags):
                return _serve(Settings.load(env, flags), args, build)
        if args.open:
            raise BadSettings(["--open: opens the console of a server that --dev starts; add --dev"])
        return _serve(Settings.load(os.environ, serve_flags(args)), args, build)
    except BadSettings as bad:
        return report(bad)


def _serve(settings: Settings, args: argparse.Namespace, build: "Build | None") -> int:
    secrets.forget(args)
    logs.setup(level=settings.log_level, form=settings.log_format)
    if not args.dev:
        _warn(settings)
    # Imported here, because `topics version` and `--help` need no event loop.
    from topics.server.run import run

    return run(settings, build=build)


def _warn(settings: Settings) -> None:
    for line in unknown_variables(os.environ):
        log.warning("unknown_variable", hint=line)
    if settings.data_dir is None:
        log.warning(
            "memory_only", hint="records are lost when the server stops; set TOPICS_DATA_DIR to keep them on disk"
        )
    if not settings.key_rules():
        log.warning(
            "no_api_keys",
            hint="every client of this address has full access; set TOPICS_API_KEYS to require a key",
            host=settings.host,
        )
