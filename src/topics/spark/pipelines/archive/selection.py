"""The topics that an archive run copies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from topics.errors import TopicsError
from topics.model.names import check_topic
from topics.spark.options import ConnectionOptions, ReadOptions
from topics.spark.pipelines.run.job import BadUsage
from topics.spark.source.plan import TopicExtent
from topics.spark.unknown_names import begins_with

SYSTEM = "sys:"


class ArchiveSelection(Struct, frozen=True):
    topics: tuple[str, ...]
    prefix: str | None
    pattern: str | None

    def has(self, topic: str) -> bool:
        """Return whether the topic may be archived: `sys:` topics only if they are selected explicitly."""
        asked_for = topic in self.topics or any((text or "").startswith(SYSTEM) for text in (self.prefix, self.pattern))
        return not topic.startswith(SYSTEM) or asked_for

    @property
    def ways(self) -> int:
        return bool(self.topics) + (self.prefix is not None) + (self.pattern is not None)

    def reading(self, connection: ConnectionOptions) -> ReadOptions:
        """Return the read options for this selection. Several kinds of selection become one pattern."""
        if self.ways == 1:
            return ReadOptions(connection=connection, topics=self.topics, prefix=self.prefix, pattern=self.pattern)
        parts = [re.escape(name) for name in self.topics]
        parts += [] if self.prefix is None else [re.escape(self.prefix) + ".*"]
        parts += [] if self.pattern is None else [f"(?:{self.pattern})"]
        return ReadOptions(connection=connection, pattern="|".join(parts))

    def matches_none(self, extents: Iterable[TopicExtent]) -> bool:
        """Return whether there is a prefix or pattern, and it matches none of these topics."""
        named = set(self.topics)
        if self.ways == 1 and named:
            return False
        return not any(extent.topic not in named or self._matches(extent.topic) for extent in extents)

    def _matches(self, topic: str) -> bool:
        begins = self.prefix is not None and topic.startswith(self.prefix)
        return begins or (self.pattern is not None and re.fullmatch(self.pattern, topic) is not None)

    def __str__(self) -> str:
        prefixes = [] if self.prefix is None else [begins_with(self.prefix)]
        return " or ".join([*prefixes, *([] if self.pattern is None else [f"matches {self.pattern!r}"])])


def selection(topics: Sequence[str], prefix: str | None, pattern: str | None) -> ArchiveSelection:
    if not topics and prefix is None and pattern is None:
        raise BadUsage("no topics selected: use --topic, --prefix or --pattern")
    for topic in topics:
        try:
            check_topic(topic, field="--topic")
        except TopicsError as error:
            raise BadUsage(error.message) from None
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadUsage(f"--pattern: {pattern!r} is not a regular expression: {error}") from None
    return ArchiveSelection(tuple(dict.fromkeys(topics)), prefix, pattern)
