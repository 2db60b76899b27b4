"""The name of a server among the servers that mirror each other.

An address may change, and two networks may use the same one. So the name of a server is a record on the server: the
first one in `sys:identity`. It moves with the data directory and is part of a backup.
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
NEW = "(new)"  # in a dry run: a server without a name
_is_name = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch


def identity(client: Client, *, name: str | None = None, dry_run: bool = False) -> str:
    """Return the name of the server, and store one if it has none. Raise `BadUsage` if it has another than `name`."""
    if name is not None and _is_name(name) is None:
        raise BadUsage(f"{name!r} is not a server name: use 1 to 64 letters, digits, dots, dashes and underscores")
    known = _known(client)
    if known is None and not dry_run:
        _store_name(client, name)
        known = _known(client) or name
    if known is None:
        return name or NEW
    if name is not None and name != known:
        raise BadUsage(
            f"the server at {client.url} is called {known!r}, not {name!r}; copies of its records carry that name",
            next="remove the name from the command, or use the existing one",
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


def _store_name(client: Client, name: str | None) -> None:
    """Store the name of this server on it. If two runs do this at once, both use the first record."""
    record = {"data": {"id": name or secrets.token_hex(8)}}
    try:
        client.append(TOPIC, [record], create=True, config=CONFIG)
    except TopicsError as error:
        if error.code is not Code.FORBIDDEN:
            raise
        if name is None:
            raise Failed(
                f"the key may not write to {TOPIC} of {client.url}, where a server's name for mirrors is kept",
                next="run once with a key that may write, or always pass the same --from-name or --to-name",
            ) from None
