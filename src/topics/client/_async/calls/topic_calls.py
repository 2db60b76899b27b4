"""Calls for topics: create, inspect, list and delete them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Unpack

from topics.client._async.transport import AsyncCalls, topic_path, with_query
from topics.client.items import Config
from topics.model import inspection, wire


class AsyncTopicCalls(AsyncCalls):
    """Create, inspect, list and delete topics."""

    async def put_topic(self, topic: str, **config: Unpack[Config]) -> wire.TopicPut:
        """Create a topic, or change its configuration. Raises `TopicExistsIncompatible` if its type would change.

        await topics.put_topic("orders", durability="fsync", cap_records=1_000_000)
        """
        return await self._http.call("PUT", topic_path(topic), wire.TopicPut, body=config)

    async def topic(self, topic: str, *, touch: bool = False) -> wire.TopicState:
        """Return the state of a topic: head, count, bytes, configuration. Raises `TopicNotFound`.

        With `touch`, the request counts as a read of the topic, which raises its automatic priority.

        state = await topics.topic("orders")
        print(state.count, state.head_seq, state.config.durability)
        """
        return await self._http.call("GET", with_query(topic_path(topic), touch=touch), wire.TopicState)

    async def topics(self, prefix: str = "") -> AsyncIterator[wire.TopicSummary]:
        """Yield the topics whose names begin with `prefix`, by name.

        async for row in topics.topics("orders."):
            print(row.topic, row.count)
        """
        async for page in self._http.pages("/v0/topics", wire.TopicList, prefix=prefix or None):
            for row in page.topics:
                yield row

    async def drop_topic(self, topic: str, *, if_empty: bool = False) -> bool:
        """Remove a topic and everything in it. Return False if it did not exist.

        With `if_empty`, raise `TopicNotEmpty` if the topic holds records.

        await topics.drop_topic("orders.old", if_empty=True)
        """
        path = with_query(topic_path(topic), if_empty=True if if_empty else None)
        return (await self._http.call("DELETE", path, wire.TopicDropped)).deleted

    async def timeline(
        self, topic: str, *, from_seq: int = 1, to_seq: int | None = None, ranges: int = inspection.RANGES
    ) -> inspection.TimelineAnswer:
        """Return what has become of each seq from `from_seq` to `to_seq`: live, deleted, archived, or lost and why.

        There are about as many `ranges` as asked for; shorter ranges are merged.

        for part in (await topics.timeline("orders")).ranges:
            print(part.from_seq, part.to_seq, part.state)
        """
        path = with_query(topic_path(topic, "/timeline"), from_seq=from_seq, to_seq=to_seq, ranges=ranges)
        return await self._http.call("GET", path, inspection.TimelineAnswer)

    async def report_archived(self, topic: str, *, seq: int, epoch: int, trimmed_seq: int = 0) -> wire.ArchivedAnswer:
        """Report that an archive has every record of this epoch of the topic up to `seq`.

        An archive that deletes archived records from the topic reports the last one first, as `trimmed_seq`. Raises
        `EpochMismatch` if the topic was created again.

        state = await topics.topic("orders")
        await topics.report_archived("orders", seq=state.head_seq, epoch=state.epoch)
        """
        body = {"seq": seq, "epoch": epoch, "trimmed_seq": trimmed_seq}
        return await self._http.call("POST", topic_path(topic, "/archived"), wire.ArchivedAnswer, body=body)
