"""Errors for names that do not exist: the message lists existing names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from itertools import islice

from topics.client import Client
from topics.errors import Code, TopicsError
from topics.lake import Lake, NoLake
from topics.plurals import counted
from topics.spark.failures import BadUsage

SHOWN = 5
LISTED = 1000  # most names that are compared with the given one


def unknown_topic(client: Client, topic: str, *, lake: Lake | None = None) -> BadUsage:
    where = f"does not exist on {client.url}" if lake is None else f"is neither on {client.url} nor in {lake.path}"
    return BadUsage(f"topic {topic} {where}", next=_there_is(client, topic, lake))


def missing_in(where: str, topic: str, names: Iterable[str]) -> BadUsage:
    """Return the error for a topic that a lake, a data directory or a server does not have; `names` are its topics."""
    found = list(names)
    step = _among(found, topic) if found else f"check the path: {where} holds no topic"
    return BadUsage(f"topic {topic} does not exist in {where}", next=step)


def no_topic(clients: Sequence[Client], wanted: str, *, like: str = "", lake: Lake | None = None) -> BadUsage:
    """Return the error for a selection without topics. `wanted` describes it, such as "begins with 'shop:'".

    The message lists the names that are most similar to `like`.
    """
    where = " or ".join(f"on {client.url}" for client in clients)
    text = f"no topic {where}{'' if lake is None else f' or in {lake.path}'} {wanted}"
    return BadUsage(text, next=_there_is(clients[0], like, lake))


def begins_with(prefix: str) -> str:
    return f"begins with {prefix!r}" if prefix else "exists yet"


def existing_lake(path: str) -> Lake:
    """Return the lake. Raise `NoLake` if there is none; checked before Spark starts, for a clear message."""
    lake = Lake(path)
    if not lake.exists():
        raise NoLake(f"{lake.path} is not a lake")
    return lake


def _there_is(client: Client, like: str, lake: Lake | None) -> str:
    try:
        live = [row.topic for row in islice(client.topics(), LISTED)]
    except TopicsError as error:
        if error.code not in (Code.UNAUTHORIZED, Code.FORBIDDEN):
            raise
        return f"check the name; the key may not list the topics of {client.url}"
    names = list(dict.fromkeys([*live, *(lake.snapshot().topics() if lake is not None and lake.exists() else ())]))
    if not names:
        return f"write to a topic first: {client.url} has none yet"
    return _among(names, like, all_known=len(live) < LISTED)


def _among(names: Sequence[str], like: str, *, all_known: bool = True) -> str:
    """Return the next step: check the name, and a list of existing ones. `sys:` topics only if there are no others."""
    names = [name for name in names if not name.startswith("sys:")] or names
    shown = nearest(like, names)
    more = len(names) - len(shown)
    others = f" and {counted(more, 'other')}{'' if all_known else ', or more'}" if more else ""
    return f"check the name; there {'is' if len(names) == 1 else 'are'} {', '.join(shown)}{others}"


def nearest(like: str, names: Iterable[str]) -> list[str]:
    """Return a few names: the most similar first, then others; `sys:` topics last."""
    system_last = sorted(names, key=lambda name: (name.startswith("sys:"), name))
    alike = difflib.get_close_matches(like, system_last, n=SHOWN, cutoff=0.5)
    return list(dict.fromkeys([*alike, *system_last]))[:SHOWN]
