"""What a server is called among those that mirror each other.

An address may change and two networks may use the same one, so a server's name is a record on the server itself: the
first one in `sys:identity`. It moves with the data directory and comes back with a backup.
"""

from __future__ import annotations

import re
import secrets

from topics.client import Client
from topics.client.request import Record
from topics.errors import Code, TopicsError
from topics.spark.pipelines.run.job import BadUsage, Failed

TOPIC = "sys:identity"
CONFIG = {"durability": "fsync"}
NEW = "(new)"  # what a dry run calls a server that has no name yet
_is_name = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch


def identity(client: Client, *, name: str | None = None, dry_run: bool = False) -> str:
    """The server's name, given to it now if it has none. `name` is the one it should have."""
    if name is not None and _is_name(name) is None:
        raise BadUsage(f"{name!r} is no name of a server: 1 to 64 letters, digits, dots, dashes and underscores")
    known = _known(client)
    if known is None and not dry_run:
        _give(client, name)
        known = _known(client) or name
    if known is None:
        return name or NEW
    if name is not None and name != known:
        raise BadUsage(
            f"the server at {client.url} is called {known!r}, not {name!r}; copies of its records carry that name",
            next="leave the name out, or give the one that it has",
        )
    return known


def _known(client: Client) -> str | None:
    try:
        for item in client.read(TOPIC):
            if isinstance(item, Record):
                return str(item.value["id"])
    except TopicsError as error:
        if error.code not in (Code.TOPIC_NOT_FOUND, Code.FORBIDDEN):
            raise
    return None


def _give(client: Client, name: str | None) -> None:
    """Two who do this at once are no problem: the first record counts, for both."""
    record = {"data": {"id": name or secrets.token_hex(8)}}
    try:
        client.append(TOPIC, [record], create=True, config=CONFIG)
    except TopicsError as error:
        if error.code is not Code.FORBIDDEN:
            raise
        if name is None:
            raise Failed(
                f"the key may not write to {TOPIC} of {client.url}, where a server's name for mirrors is kept",
                next="run once with a key that may, or name the server with --from-name or --to-name, always the same",
            ) from None
