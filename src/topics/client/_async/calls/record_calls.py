"""Calls for records: append, read and delete them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal
from uuid import uuid4

from topics.client import tracing
from topics.client._async import scanning
from topics.client._async.transport import AsyncCalls, fields_of, topic_path, with_query
from topics.client.items import Appended, Config, Gap, Match, NewRecord, Page, Record, RecordFields, items_of
from topics.model import wire

PAGE_RECORDS = 1000  # the most that a server returns unless it is configured otherwise
SCAN_FORMATS = {
    "ndjson": "application/x-ndjson",
    "arrow": "application/vnd.apache.arrow.stream",
    "segments": "application/vnd.topics.segments",
}


class AsyncRecordCalls(AsyncCalls):
    """Append, read and delete records."""

    async def append(
        self,
        topic: str,
        data: object,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, Any] | None = None,
        priority: int | None = None,
        delay_ms: int | None = None,
        deliver_at: int | None = None,
        key: str | None = None,
        create: bool | None = None,
        config: Config | None = None,
        disable_backpressure: bool = False,
    ) -> Appended:
        """Append one record. `key` is its idempotency key; without one the client makes one up for its retries.

        With `create=False`, raise `TopicNotFound` instead of creating the topic; `config` is for a topic that the
        request creates. `priority`, `delay_ms` and `deliver_at` are for jobs of a queue. With `disable_backpressure`, a
        busy server lets the request wait instead of raising `Throttled`.

        done = await topics.append("orders", {"sku": "V60"}, tag="order-7")
        print(done.seq)
        """
        record = NewRecord(
            data=data, tag=tag, node=node, meta=None if meta is None else dict(meta),
            priority=priority, delay_ms=delay_ms, deliver_at=deliver_at,
        )  # fmt: skip
        return await self.append_many(
            topic, [record], key=key, create=create, config=config, disable_backpressure=disable_backpressure
        )

    async def append_many(
        self,
        topic: str,
        records: Sequence[NewRecord | RecordFields],
        *,
        node: str | None = None,
        key: str | None = None,
        create: bool | None = None,
        config: Config | None = None,
        disable_backpressure: bool = False,
    ) -> Appended:
        """Append records: all of them or none. `node` is for records that have none of their own.

        await topics.append_many("orders", [NewRecord(data=1), {"data": 2, "tag": "b"}])
        """
        with tracing.sending(topic, records) as traced:
            body = {
                "records": traced, "idempotency_key": key or uuid4().hex,
                **fields_of(
                    node=node, create=create, config=config, disable_backpressure=disable_backpressure or None
                ),
            }  # fmt: skip
            path = with_query(topic_path(topic), return_seqs=False)
            return await self._http.call("POST", path, Appended, body=body, keyed=True)

    async def diff(
        self,
        topic: str,
        *,
        from_seq: int = 0,
        epoch: int | None = None,
        limit: int = PAGE_RECORDS,
        max_batch_bytes: int | None = None,
        wait_ms: int = 0,
        node: str | Sequence[str] | None = None,
        filter: Match | None = None,
        include_tags: bool = True,
        include_meta: bool = True,
        from_ts: int | None = None,
        consumer: str | None = None,
        commit: bool | int = False,
        retries: int | None = None,
    ) -> Page:
        """Return one page of records after `from_seq`. With `wait_ms`, wait for a record at the head of the topic.

        `epoch` is the epoch that `from_seq` belongs to; `node` leaves out the records of these writers; `from_ts` skips
        records from before this time (ms since 1970). `consumer` reads from the position of a named consumer instead of
        `from_seq`, and `commit` first moves it: to a seq, or with True behind all that it was sent.

        page = await topics.diff("orders", from_seq=0)
        if page.gap: print("lost", page.gap.first_seq, page.gap.last_seq, page.gap.reason)
        """
        body = {
            "limit": limit, "include_tags": include_tags,
            **fields_of(
                from_seq=from_seq if consumer is None else None, consumer=consumer,
                commit=None if commit is False else commit, epoch=epoch, wait_ms=wait_ms or None, node=node,
                filter=filter, from_ts=from_ts,
                max_batch_bytes=max_batch_bytes, include_meta=None if include_meta else False,
            ),
        }  # fmt: skip
        page = await self._http.call(
            "POST", topic_path(topic, "/diff"), Page, body=body, wait_ms=wait_ms, retries=retries
        )
        for record in page.records:
            record.topic = topic
        return page

    async def read(
        self,
        topic: str,
        *,
        from_seq: int = 0,
        epoch: int | None = None,
        node: str | Sequence[str] | None = None,
        filter: Match | None = None,
        from_ts: int | None = None,
    ) -> AsyncIterator[Record | Gap]:
        """Yield records and gaps from `from_seq` up to the head of the topic, and end there.

        async for item in topics.read("orders"):
            print(item)
        """
        while True:
            page = await self.diff(topic, from_seq=from_seq, epoch=epoch, node=node, filter=filter, from_ts=from_ts)
            for item in items_of(page):
                yield item
            if page.caught_up:
                return
            from_seq, epoch, from_ts = page.next_from_seq, page.epoch, None

    def scan(
        self,
        topic: str,
        *,
        from_seq: int = 0,
        upto_seq: int | None = None,
        epoch: int | None = None,
        node: str | Sequence[str] | None = None,
        filter: Match | None = None,
        from_ts: int | None = None,
    ) -> AsyncIterator[Record | Gap]:
        """Yield records and gaps of a range in one streamed answer: faster than `read` for many records.

        The scan ends at `upto_seq`, or at the head at the time it began. After a broken connection it continues where
        it was, so that no record is repeated or left out.

        async for item in topics.scan("orders", upto_seq=1_000_000):
            print(item)
        """
        wanted = scanning.ScanFields(
            from_seq=from_seq, upto_seq=upto_seq, epoch=epoch, node=node, filter=filter, from_ts=from_ts
        )
        return scanning.scan(self._http, topic, wanted)

    async def scan_bytes(
        self,
        topic: str,
        format: Literal["ndjson", "arrow", "segments"],
        *,
        from_seq: int = 0,
        upto_seq: int | None = None,
        epoch: int | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield the bytes of a scan as the server sends them: JSON lines, an Arrow stream, or segments.

        An answer that does not end with its `end` was cut off; see docs/bulk.md.

        with open("orders.arrows", "wb") as file:
            async for chunk in topics.scan_bytes("orders", "arrow"): file.write(chunk)
        """
        wanted = scanning.ScanFields(from_seq=from_seq, upto_seq=upto_seq, epoch=epoch)
        async with scanning.opened(self._http, topic, wanted, SCAN_FORMATS[format]) as chunks:
            async for chunk in chunks:
                yield chunk

    async def delete(
        self,
        topic: str,
        *,
        before_seq: int | None = None,
        match: Match | None = None,
        seqs: Sequence[int] | None = None,
        epoch: int | None = None,
        dry_run: bool = False,
    ) -> wire.RecordsDeleted:
        """Delete records by seq, by tag, or both; or a list of `seqs`. Readers see no gap where records were deleted.

        With `dry_run`, count the records only. With `epoch`, raise `EpochMismatch` if the topic was created again.

        await topics.delete("orders", match=("tag", "Glob", "customer-7:*"))
        """
        body = fields_of(before_seq=before_seq, match=match, seqs=seqs, epoch=epoch, dry_run=dry_run or None)
        return await self._http.call("POST", topic_path(topic, "/delete"), wire.RecordsDeleted, body=body)
