"""The topics that a pipeline processes, and errors for names that do not exist: the message lists existing names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from os.path import commonprefix

from msgspec import Struct

from topics.client import Client
from topics.client.request import Summary
from topics.errors import Code, TopicsError
from topics.lake import Lake
from topics.model.names import check_topic
from topics.plurals import counted
from topics.spark.failures import BadUsage
from topics.spark.options import ConnectionOptions, ReadOptions

SHOWN = 5
LISTED = 1000  # most names that are compared with the given one


def check_name(topic: str, option: str = "") -> None:
    """Raise `BadUsage` if the value of an option is no name of a topic."""
    try:
        check_topic(topic)
    except TopicsError as error:
        raise BadUsage(f"{option}: {error.message}" if option else error.message) from None


def unknown_topic(client: Client, topic: str, *, lake: Lake | None = None) -> BadUsage:
    where = f"does not exist on {client.url}" if lake is None else f"is neither on {client.url} nor in {lake.path}"
    return BadUsage(f"topic {topic} {where}", next=_there_is(client, topic, lake))


def missing_in(where: str, topic: str, names: Iterable[str]) -> BadUsage:
    """Return the error for a topic that a lake, a data directory or a server does not have; `names` are its topics."""
    found = list(names)
    step = _among(found, topic) if found else f"check the path: {where} holds no topic"
    return BadUsage(f"topic {topic} does not exist in {where}", next=step)


def no_topic(clients: Sequence[Client], wanted: str, *, like: str = "", lake: Lake | None = None) -> BadUsage:
    """Return the error for a selection, described by `wanted`, without topics. It lists names similar to `like`."""
    where = " or ".join(f"on {client.url}" for client in clients)
    text = f"no topic {where}{'' if lake is None else f' or in {lake.path}'} {wanted}"
    return BadUsage(text, next=_there_is(clients[0], like, lake))


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


# --- the topics that a pipeline processes


SYSTEM = "sys:"


class Selection(Struct, frozen=True, kw_only=True):
    """Topics. One that begins with `sys:` needs its name, or a prefix or pattern that begins so."""

    topics: tuple[str, ...] = ()
    prefix: str | None = None
    pattern: str | None = None
    has_system: bool = False  # whether the empty prefix includes `sys:` topics
    excluded: tuple[str, ...] = ()

    def has(self, topic: str) -> bool:
        return topic not in self.excluded and (topic in self.topics or self.matches(topic))

    def matches(self, topic: str) -> bool:
        """Return whether the prefix or the pattern selects the topic."""
        begins = self.prefix is not None and topic.startswith(self.prefix)
        if not begins and (self.pattern is None or re.fullmatch(self.pattern, topic) is None):
            return False
        texts = (self.prefix or (SYSTEM if self.has_system else ""), self.pattern or "")
        return not topic.startswith(SYSTEM) or any(text.startswith(SYSTEM) for text in texts)

    def among(self, client: Client) -> Iterator[Summary]:
        """Yield the selected topics of a server, by name and prefix."""
        names = [*self.topics, *([] if self.prefix is None else [self.prefix])]
        begins = commonprefix(names)  # noqa: RUF071 (of characters)
        return (row for row in client.topics(begins) if self.has(row.topic))

    def reading(self, connection: ConnectionOptions) -> ReadOptions:
        """Return the read options for this selection. Several kinds of selection become one pattern."""
        if bool(self.topics) + (self.prefix is not None) + (self.pattern is not None) == 1:
            return ReadOptions(connection=connection, topics=self.topics, prefix=self.prefix, pattern=self.pattern)
        parts = [re.escape(name) for name in self.topics]
        parts += [] if self.prefix is None else [re.escape(self.prefix) + ".*"]
        parts += [] if self.pattern is None else [f"(?:{self.pattern})"]
        return ReadOptions(connection=connection, pattern="|".join(parts))

    def check(
        self, clients: Sequence[Client], there: Collection[str], warn: Callable[[str], None], *, follow: bool
    ) -> None:
        """Raise `BadUsage` if a name, or prefix and pattern, select no topic; with `follow`, warn: the job waits."""
        where = " or ".join(client.url for client in clients)
        for topic in self.topics:
            if topic not in there and not follow:
                raise unknown_topic(clients[0], topic)
            if topic not in there:
                warn(f"topic {topic} does not exist on {where} yet: waiting for it")
        if (self.prefix, self.pattern) != (None, None) and not any(map(self.matches, there)):
            if not follow:
                raise no_topic(clients, str(self), like=self.prefix or "")
            warn(f"no topic on {where} {self}: waiting for one")

    def __str__(self) -> str:
        prefix = None if self.prefix is None else f"begins with {self.prefix!r}" if self.prefix else "exists yet"
        return " or ".join(filter(None, [prefix, None if self.pattern is None else f"matches {self.pattern!r}"]))
