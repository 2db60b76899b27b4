"""The name under which this user claims jobs: the same in every command, so that `ack` finds what `claim` leased."""

from __future__ import annotations

import argparse
import os
import socket


def default_node() -> str:
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or str(os.getuid())
    return f"cli-{user}@{socket.gethostname()}"[:128]


def add_node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", metavar="NODE", default=default_node(), help="name of the worker [%(default)s]")
