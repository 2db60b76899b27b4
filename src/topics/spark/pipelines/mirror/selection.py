"""The topics that a mirror copies: by name, or by a prefix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from topics.client import Client
from topics.client.request import Summary
from topics.spark.pipelines.run.job import PipelineJob
from topics.spark.pipelines.run.lags import common
from topics.spark.unknown_names import begins_with, no_topic, unknown_topic


class MirrorSelection(Struct, frozen=True, kw_only=True):
    """The topics to mirror."""

    prefix: str | None
    topics: tuple[str, ...]
    except_for: tuple[str, ...]

    def among(self, client: Client) -> Iterator[Summary]:
        begins = common([*self.topics, *([] if self.prefix is None else [self.prefix])])
        return (row for row in client.topics(begins) if self.has(row.topic) and row.topic not in self.except_for)

    def has(self, topic: str) -> bool:
        return topic in self.topics or self.begins(topic)

    def begins(self, topic: str) -> bool:
        """Return whether the prefix selects the topic. `sys:` topics need a prefix that begins so, or the empty one."""
        if self.prefix is None or not topic.startswith(self.prefix):
            return False
        return not topic.startswith("sys:") or (self.prefix or "sys:").startswith("sys:")


def check_wanted(job: PipelineJob, wanted: MirrorSelection, sources: Sequence[Client], *, follow: bool) -> None:
    """Raise `BadUsage` if a name or the prefix selects no topic; with `follow`, warn and wait instead."""
    there = {row.topic for client in sources for row in wanted.among(client)}
    where = " or ".join(client.url for client in sources)
    for topic in wanted.topics:
        if topic not in there and not follow:
            raise unknown_topic(sources[0], topic)
        if topic not in there:
            job.warn(f"topic {topic} does not exist on {where} yet: waiting for it")
    if wanted.prefix is not None and not any(wanted.begins(topic) for topic in there):
        which = begins_with(wanted.prefix or "")
        if not follow:
            raise no_topic(sources, which, like=wanted.prefix or "")
        job.warn(f"no topic on {where} {which}: waiting for one")
    job.report.looked_at = len(there)
