"""The subcommands of `topics pipeline`, one module each. `register` adds all modules of this folder."""

from __future__ import annotations

import argparse
import importlib
import pkgutil

from topics.cli.command import Subparsers


def register(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    text = "run bulk jobs over topics, in one process or with Spark"
    parser = subparsers.add_parser(
        "pipeline",
        help=text,
        description="Run bulk jobs over topics, in one process or with Spark.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="pipelines", metavar="PIPELINE", required=True)
    for module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}").register(commands)
