"""Calls for topics, named consumers, routers and schedules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from topics.client.call import (
    PAGE_ROWS,
    consumer_path,
    given,
    router_path,
    schedule_path,
    topic_path,
    with_query,
)
from topics.client.cursors import ConsumerInfo, ConsumerPage
from topics.client.items import Config, Filter, Match, ScheduleOptions, TopicPut, TopicState
from topics.model import consumer as consuming
from topics.model import inspection, wire
from topics.model import router as routing
from topics.model import schedule as scheduling

if TYPE_CHECKING:  # httpx: `Client`, which has its own connection, needs none
    from topics.client._async.transport import AsyncTransport


class AsyncCalls:
    """Calls of one group, which share the connections of a client."""

    _http: AsyncTransport

    async def _rows(self, path: str, page: Any, member: str, **query: str | None) -> AsyncIterator[Any]:
        """Yield the rows of a list, which its pages have in the field `member`."""
        cursor: str | None = ""
        while cursor is not None:
            asked = with_query(path, page_size=PAGE_ROWS, cursor=cursor or None, **query)
            found = await self._http.call("GET", asked, page)
            for row in getattr(found, member):
                yield row
            cursor = found.next_cursor


class AsyncManagementCalls(AsyncCalls):
    """Create, inspect, list and delete topics, consumers, routers and schedules."""

    # --- topics

    async def put_topic(self, topic: str, **config: Unpack[Config]) -> TopicPut:
        """Create a topic, or change its configuration. Raises `TopicExistsIncompatible` if its type would change.

        A new queue has safe defaults: `discard="reject"` and `leases_durable=True`. `defaults="contract"` is for those
        of the API. The answer has `warnings` about what the configuration does not do.

        await topics.put_topic("orders", durability="fsync", cap_records=1_000_000)
        """
        return await self._http.call("PUT", topic_path(topic), TopicPut, body={"defaults": "safe", **config})

    async def topic(self, topic: str, *, touch: bool = False) -> TopicState:
        """Return the state of a topic: head, count, bytes, configuration. Raises `TopicNotFound`.

        With `touch`, the request counts as a read of the topic, which raises its automatic priority.

        state = await topics.topic("orders")
        print(state.count, state.head_seq, state.config.durability)
        """
        return await self._http.call("GET", topic_path(topic, touch=touch), TopicState)

    def topics(self, prefix: str = "") -> AsyncIterator[wire.TopicSummary]:
        """Yield the topics whose names begin with `prefix`, by name.

        async for row in topics.topics("orders."):
            print(row.topic, row.count)
        """
        return self._rows("/v0/topics", wire.TopicList, "topics", prefix=prefix or None)

    async def drop_topic(self, topic: str, *, if_empty: bool = False) -> bool:
        """Remove a topic and everything in it. Return False if it did not exist.

        With `if_empty`, raise `TopicNotEmpty` if the topic holds records.

        await topics.drop_topic("orders.old", if_empty=True)
        """
        path = topic_path(topic, if_empty=True if if_empty else None)
        return (await self._http.call("DELETE", path, wire.TopicDropped)).deleted

    async def delete(
        self,
        topic: str,
        *,
        before_seq: int | None = None,
        match: Match | Sequence[str] | None = None,
        seqs: Sequence[int] | None = None,
        epoch: int | None = None,
        dry_run: bool = False,
    ) -> wire.RecordsDeleted:
        """Delete records by seq, by tag, or both; or a list of `seqs`. Readers see no gap where records were deleted.

        With `dry_run`, count the records only. With `epoch`, raise `EpochMismatch` if the topic was created again.

        await topics.delete("orders", match=("tag", "Glob", "customer-7:*"))
        """
        body = given(before_seq=before_seq, match=match, seqs=seqs, epoch=epoch, dry_run=dry_run or None)
        return await self._http.call("POST", topic_path(topic, "delete"), wire.RecordsDeleted, body=body)

    async def timeline(
        self, topic: str, *, from_seq: int = 1, to_seq: int | None = None, ranges: int = inspection.RANGES
    ) -> inspection.TimelineAnswer:
        """Return what has become of each seq from `from_seq` to `to_seq`: live, deleted, archived, or lost and why.

        There are about as many `ranges` as asked for; shorter ranges are merged.

        for part in (await topics.timeline("orders")).ranges:
            print(part.from_seq, part.to_seq, part.state)
        """
        path = topic_path(topic, "timeline", from_seq=from_seq, to_seq=to_seq, ranges=ranges)
        return await self._http.call("GET", path, inspection.TimelineAnswer)

    async def schema(self, topic: str, *, version: int | None = None) -> wire.SchemaState:
        """Return a version of the topic's schema, by default the last one. Raises `NotFound` if there is none.

        await topics.put_topic("orders", schema={"type": "object", "required": ["sku"]})
        print((await topics.schema("orders")).schema)
        """
        return await self._http.call("GET", topic_path(topic, "schema", version=version), wire.SchemaState)

    async def report_archived(self, topic: str, *, seq: int, epoch: int, trimmed_seq: int = 0) -> wire.ArchivedAnswer:
        """Report that an archive has every record of this epoch of the topic up to `seq`.

        An archive that deletes archived records from the topic reports the last one first, as `trimmed_seq`. Raises
        `EpochMismatch` if the topic was created again.

        state = await topics.topic("orders")
        await topics.report_archived("orders", seq=state.head_seq, epoch=state.epoch)
        """
        body = {"seq": seq, "epoch": epoch, "trimmed_seq": trimmed_seq}
        return await self._http.call("POST", topic_path(topic, "archived"), wire.ArchivedAnswer, body=body)

    # --- named consumers, whose positions the server keeps

    async def put_consumer(
        self,
        topic: str,
        name: str,
        *,
        seq: int | None = None,
        epoch: int | None = None,
        if_seq: int | None = None,
        if_new: bool = False,
        meta: Mapping[str, Any] | None = None,
        expire_ms: int | None = None,
        hold: bool | None = None,
        max_hold_bytes: int | None = None,
    ) -> consuming.ConsumerPut:
        """Store the position of a consumer, or change its settings. What is not given keeps its value.

        `seq` is the last record that it has processed. Raise `ConsumerMoved` if `if_seq` is given and is not its
        position, or if `if_new` is set and it exists. Raise `EpochMismatch` if `epoch` is given and the topic was
        created again. With `hold`, the server keeps unread records, up to `max_hold_bytes`.

        await topics.put_consumer("orders", "billing", seq=480, if_seq=420)
        """
        body = {
            **given(
                seq=seq, epoch=epoch, if_seq=if_seq, meta=meta, expire_ms=expire_ms, hold=hold,
                max_hold_bytes=max_hold_bytes,
            ),
            **({"if_seq": None} if if_new else {}),
        }  # fmt: skip
        safe = if_seq is None and not if_new
        return await self._http.call("PUT", consumer_path(topic, name), consuming.ConsumerPut, body=body, safe=safe)

    async def commit(self, commits: Sequence[tuple[str, str, int]]) -> consuming.CommitAnswer:
        """Move consumers of any topics: a topic, the name of a consumer and a seq each. They never move back.

        A commit that cannot take effect is listed in `refused`, and the others take effect.

        await topics.commit([("orders", "billing", 480), ("chat", "billing", 12)])
        """
        rows = [consuming.Commit(topic, name, seq) for topic, name, seq in commits]
        return await self._http.call("POST", "/v0/consumers", consuming.CommitAnswer, body={"commits": rows})

    async def consumer(self, topic: str, name: str) -> ConsumerInfo:
        """Return a consumer: its position, its lag, and what it has lost. Raises `ConsumerNotFound`.

        print((await topics.consumer("orders", "billing")).lag_records)
        """
        return await self._http.call("GET", consumer_path(topic, name), ConsumerInfo)

    def consumers(self, topic: str | None = None, *, prefix: str | None = None) -> AsyncIterator[ConsumerInfo]:
        """Yield the consumers of a topic by name, or those of all topics whose names begin with `prefix`.

        async for row in topics.consumers("orders"):
            print(row.consumer, row.lag_records, row.lag_ms)
        """
        path = "/v0/consumers" if topic is None else topic_path(topic, "consumers")
        return self._rows(path, ConsumerPage, "consumers", prefix=prefix)

    async def drop_consumer(self, topic: str, name: str) -> bool:
        """Forget a consumer, and end its hold. Return False if it did not exist.

        await topics.drop_consumer("orders", "billing")
        """
        return (await self._http.call("DELETE", consumer_path(topic, name), consuming.ConsumerDropped)).deleted

    # --- routers, which copy the records of one topic to another

    async def put_router(
        self,
        name: str,
        *,
        source: str,
        dest: str,
        filter: Filter | None = None,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        create_dest: bool = True,
        allow_cycle: bool = False,
        guarantee: routing.Guarantee = "at_least_once",
        from_seq: int | None = None,
        from_ts: int | None = None,
    ) -> routing.RouterPutAnswer:
        """Create a router, or change it: every record of `source` is copied to `dest`.

        A new router starts at the head of its source, or after `from_seq`, or with the first record from `from_ts` on.
        Raises `RouterCycle` if the router would close a cycle and `allow_cycle` is not set.

        await topics.put_router("orders->audit", source="orders", dest="audit", filter=("tag", "Glob", "eu-*"))
        """
        body = {
            "source": source, "dest": dest, "preserve_node": preserve_node, "preserve_tag": preserve_tag,
            "create_dest": create_dest, "allow_cycle": allow_cycle, "guarantee": guarantee,
            **given(filter=filter, from_seq=from_seq, from_ts=from_ts),
        }  # fmt: skip
        return await self._http.call("PUT", router_path(name), routing.RouterPutAnswer, body=body)

    async def router(self, name: str) -> routing.RouterAnswer:
        """Return a router: its position, its lag and its last error. Raises `RouterNotFound`.

        print((await topics.router("orders->audit")).lag)
        """
        return await self._http.call("GET", router_path(name), routing.RouterAnswer)

    def routers(
        self, *, prefix: str | None = None, source: str | None = None, dest: str | None = None
    ) -> AsyncIterator[routing.RouterSummary]:
        """Yield routers by name.

        async for row in topics.routers(source="orders"):
            print(row.router, row.dest)
        """
        return self._rows("/v0/routers", routing.RouterList, "routers", prefix=prefix, source=source, dest=dest)

    async def drop_router(self, name: str) -> bool:
        """Remove a router. Records that it has copied stay. Return False if it did not exist.

        await topics.drop_router("orders->audit")
        """
        return (await self._http.call("DELETE", router_path(name), routing.RouterDropped)).deleted

    async def preview_router(
        self,
        name: str,
        *,
        source: str | None = None,
        filter: Filter | None = None,
        from_seq: int = 0,
        from_ts: int | None = None,
    ) -> routing.PreviewAnswer:
        """Count the records that a filter would copy, without copying any.

        `source` and `filter` default to those of the router; with a `source`, the router need not exist.

        print((await topics.preview_router("orders->audit", filter="eu-1")).matched)
        """
        body = {"from_seq": from_seq, **given(source=source, filter=filter, from_ts=from_ts)}
        return await self._http.call("POST", router_path(name, "preview"), routing.PreviewAnswer, body=body)

    # --- schedules, which append a record at certain times

    async def put_schedule(
        self, name: str, *, topic: str, record: Mapping[str, Any], **options: Unpack[ScheduleOptions]
    ) -> scheduling.SchedulePutAnswer:
        """Create a schedule, or change it: `record` is appended to `topic` at each tick. Raises `TopicNotFound`.

        await topics.put_schedule("nightly", topic="jobs", record={"data": {"do": "report"}},
                                  cron="30 2 * * *", timezone="Europe/Berlin")
        """
        body = {"topic": topic, "record": record, **options}
        return await self._http.call("PUT", schedule_path(name), scheduling.SchedulePutAnswer, body=body)

    async def schedule(self, name: str) -> scheduling.ScheduleAnswer:
        """Return a schedule: its last and its next tick, and its last error. Raises `ScheduleNotFound`.

        print((await topics.schedule("nightly")).next_at)
        """
        return await self._http.call("GET", schedule_path(name), scheduling.ScheduleAnswer)

    def schedules(
        self, *, prefix: str | None = None, topic: str | None = None
    ) -> AsyncIterator[scheduling.ScheduleState]:
        """Yield schedules by name.

        async for row in topics.schedules(topic="jobs"):
            print(row.schedule, row.next_at)
        """
        return self._rows("/v0/schedules", scheduling.ScheduleList, "schedules", prefix=prefix, topic=topic)

    async def drop_schedule(self, name: str) -> bool:
        """Remove a schedule. Records that it has appended stay. Return False if it did not exist.

        await topics.drop_schedule("nightly")
        """
        return (await self._http.call("DELETE", schedule_path(name), scheduling.ScheduleDropped)).deleted

    async def run_schedule(self, name: str) -> int:
        """Append the record of a schedule now, and return its seq. The ticks go on as before.

        seq = await topics.run_schedule("nightly")
        """
        return (await self._http.call("POST", schedule_path(name, "run"), scheduling.ScheduleRun)).seq

    async def pause_schedule(self, name: str, *, paused: bool = True) -> scheduling.ScheduleAnswer:
        """Let a schedule have no ticks, or with `paused=False` have them again. Missed ticks are not caught up.

        await topics.pause_schedule("nightly")
        """
        path = schedule_path(name, "pause")
        return await self._http.call("POST", path, scheduling.ScheduleAnswer, body={"paused": paused})

    async def preview_schedule(self, name: str, **timing: Unpack[ScheduleOptions]) -> list[scheduling.TickTime]:
        """Return the next ten ticks of a schedule, or those that another timing would have. Nothing is stored.

        for tick in await topics.preview_schedule("nightly", cron="@hourly"):
            print(tick.local)
        """
        path = schedule_path(name, "preview")
        return (await self._http.call("POST", path, scheduling.SchedulePreview, body=timing)).times
