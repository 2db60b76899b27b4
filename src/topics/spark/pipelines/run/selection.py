"""The topics that a pipeline processes: by name, by prefix, and by pattern."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec import Struct

from topics.client import Client
from topics.client.request import Summary
from topics.spark.options import ConnectionOptions, ReadOptions
from topics.spark.pipelines.run.job import common
from topics.spark.unknown_names import begins_with, no_topic, unknown_topic

SYSTEM = "sys:"


class Selection(Struct, frozen=True, kw_only=True):
    """Topics. One that begins with `sys:` needs its name, or a prefix or pattern that begins so."""

    topics: tuple[str, ...] = ()
    prefix: str | None = None
    pattern: str | None = None
    has_system: bool = False  # whether the empty prefix includes `sys:` topics

    def has(self, topic: str) -> bool:
        return topic in self.topics or self.matches(topic)

    def matches(self, topic: str) -> bool:
        """Return whether the prefix or the pattern selects the topic."""
        begins = self.prefix is not None and topic.startswith(self.prefix)
        if not begins and (self.pattern is None or re.fullmatch(self.pattern, topic) is None):
            return False
        texts = (self.prefix or (SYSTEM if self.has_system else ""), self.pattern or "")
        return not topic.startswith(SYSTEM) or any(text.startswith(SYSTEM) for text in texts)

    def among(self, client: Client) -> Iterator[Summary]:
        """Yield the selected topics of a server, by name and prefix."""
        begins = common([*self.topics, *([] if self.prefix is None else [self.prefix])])
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
        prefixes = [] if self.prefix is None else [begins_with(self.prefix)]
        return " or ".join([*prefixes, *([] if self.pattern is None else [f"matches {self.pattern!r}"])])
