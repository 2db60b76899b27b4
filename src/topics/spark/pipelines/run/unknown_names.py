"""Names that somebody gave and that name nothing: an error that says what there is instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from itertools import islice

from topics.client import Client
from topics.errors import Code, TopicsError
from topics.lake import Lake, NoLake
from topics.spark.pipelines.run.failures import BadUsage

SHOWN = 5
LISTED = 1000  # names that are looked at for one that was meant


def unknown_topic(client: Client, topic: str, *, lake: Lake | None = None) -> BadUsage:
    where = f"does not exist on {client.url}" if lake is None else f"is neither on {client.url} nor in {lake.path}"
    return BadUsage(f"topic {topic} {where}", next=_there_is(client, topic, lake))


def missing_in(place: str, topic: str, names: Iterable[str]) -> BadUsage:
    """Of a lake or a data directory, whose names are known without a server."""
    found = list(names)
    step = _among(found, topic) if found else f"see that it is the right place: {place} holds no topic"
    return BadUsage(f"topic {topic} does not exist in {place}", next=step)


def no_topic(clients: Sequence[Client], wanted: str, *, like: str = "", lake: Lake | None = None) -> BadUsage:
    """`wanted` says it in words, such as "begins with 'shop:'"; `like` is what the names that are shown resemble."""
    where = " or ".join(f"on {client.url}" for client in clients)
    text = f"no topic {where}{'' if lake is None else f' or in {lake.path}'} {wanted}"
    return BadUsage(text, next=_there_is(clients[0], like, lake))


def begins_with(prefix: str) -> str:
    return f"begins with {prefix!r}" if prefix else "exists yet"


def existing_lake(path: str) -> Lake:
    """Known before Spark is started, which would say it less clearly."""
    lake = Lake(path)
    if not lake.exists():
        raise NoLake(f"{path} is not a lake")
    return lake


def _there_is(client: Client, like: str, lake: Lake | None) -> str:
    try:
        live = [row.topic for row in islice(client.topics(), LISTED)]
    except TopicsError as error:
        if error.code not in (Code.UNAUTHORIZED, Code.FORBIDDEN):
            raise
        return f"see that the name is right; the key may not list the topics of {client.url}"
    names = list(dict.fromkeys([*live, *(lake.snapshot().topics() if lake is not None and lake.exists() else ())]))
    if not names:
        return f"write to a topic first: {client.url} has none yet"
    return _among(names, like, all_known=len(live) < LISTED)


def _among(names: Sequence[str], like: str, *, all_known: bool = True) -> str:
    """Those of pipelines and others only where there is nothing else."""
    names = [name for name in names if not name.startswith("sys:")] or names
    shown = nearest(like, names)
    more = len(names) - len(shown)
    others = f" and {more}{'' if all_known else ' or more'} {'other' if more == 1 else 'others'}" if more else ""
    return f"see that the name is right; there {'is' if len(names) == 1 else 'are'} {', '.join(shown)}{others}"


def nearest(like: str, names: Iterable[str]) -> list[str]:
    """Those that were most likely meant first, then others; the reports of pipelines last."""
    ours_last = sorted(names, key=lambda name: (name.startswith("sys:"), name))
    alike = difflib.get_close_matches(like, ours_last, n=SHOWN, cutoff=0.5)
    return list(dict.fromkeys([*alike, *ours_last]))[:SHOWN]
