"""What the commands for queues share: the state of a queue, the name of the worker, and jobs as encoded JSON.

Jobs stay as the server sent them, so that their data is printed as it was written.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
from typing import Any

import msgspec
from msgspec import Raw

from topics.cli.command import Call
from topics.cli.connect.server import get
from topics.client.call import topic_path
from topics.errors import Code, TopicsError


class _Payload(msgspec.Struct):
    data: Raw = Raw(b"null")


def data_of(raw: bytes) -> str:
    """Return the data of a job or record as it was written."""
    try:
        return bytes(msgspec.json.decode(raw, type=_Payload).data).decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.dumps(json.loads(raw)["data"])


def raw_jobs(body: bytes, member: str) -> list[bytes]:
    """Return the jobs of an answer. The decoder refuses half a surrogate pair; `json` keeps it."""
    try:
        return [
            bytes(job)
            for job in msgspec.json.decode(msgspec.json.decode(body, type=dict[str, Raw])[member], type=list[Raw])
        ]
    except msgspec.DecodeError:
        return [json.dumps(job).encode() for job in json.loads(body)[member]]


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
