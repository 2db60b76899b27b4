"""What the commands for queues share: the state of a queue, the name of the worker, and jobs as encoded JSON.

Jobs stay as the server sent them, so that their data is printed as it was written.
"""

from __future__ import annotations

import argparse
import os
import socket
from typing import Any

from topics.cli.command import Call
from topics.cli.connect.server import get
from topics.cli.output.records import elements, members
from topics.client.call import topic_path
from topics.errors import Code, TopicsError


def data_of(raw: bytes) -> str:
    """Return the data of a job or record as it was written."""
    return members(raw).get("data", b"null").decode()


def raw_jobs(body: bytes, member: str) -> list[bytes]:
    """Return the jobs of an answer."""
    return elements(members(body)[member])


def queue_state(call: Call) -> dict[str, Any]:
    """Return the state of the queue that the arguments name. Raise `TopicsError` if the topic is a log."""
    state: dict[str, Any] = call.server.json(get(topic_path(call.args.queue, touch=False)))
    if state["type"] != "queue":
        raise TopicsError(Code.NOT_A_QUEUE, f'topic "{call.args.queue}" is a log, not a queue')
    return state


def add_node(parser: argparse.ArgumentParser) -> None:
    """Add the name under which this user claims jobs: the same in every command, so `ack` finds what `claim` leased."""
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or str(os.getuid())
    node = f"cli-{user}@{socket.gethostname()}"[:128]
    parser.add_argument("--node", metavar="NODE", default=node, help="name of the worker [%(default)s]")
