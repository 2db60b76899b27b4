"""Calls for records: append, read and delete them, and read a range in one streamed answer."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Literal, Unpack
from uuid import uuid4

from msgspec import Struct, structs

from topics.client import tracing
from topics.client._async.management import AsyncCalls
from topics.client._async.transport import AsyncTransport
from topics.client.call import NDJSON, SEGMENTS, Backoff, Request, given, topic_path
from topics.client.errors import TopicsError, Unreachable
from topics.client.items import (
    Appended,
    Config,
    End,
    Filter,
    Gap,
    NewRecord,
    Page,
    Record,
    RecordOptions,
    Tombstone,
    encode,
    new_record,
    typed,
)
from topics.client.streams import Piece, ScanLines, decoded

PAGE_RECORDS = 1000  # the most that a server returns unless it is configured otherwise
SCAN_FORMATS = {
    "ndjson": NDJSON,
    "arrow": "application/vnd.apache.arrow.stream",
    "segments": SEGMENTS,
}
SILENCE_S = 60.0
log = logging.getLogger("topics.client")


class AsyncRecordCalls(AsyncCalls):
    """Append, read and delete records."""

    async def append(
        self,
        topic: str,
        data: object,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        create: bool | None = None,
        config: Config | None = None,
        disable_backpressure: bool = False,
        **options: Unpack[RecordOptions],
    ) -> Appended:
        """Append one record. `key` is short for `idempotency_key`: without one the client makes one up for its retries.

        With `create=False`, raise `TopicNotFound` instead of creating the topic; `config` is for a topic that the
        request creates. With `disable_backpressure`, a busy server lets the request wait instead of raising
        `Throttled`. The record may have `tag`, `node` and `meta`, and as a job of a queue `priority`, `delay_ms`,
        `deliver_at` and `unique`. A queue delivers jobs of one `record_key` in order.

        done = await topics.append("orders", {"sku": "V60"}, tag="order-7")
        print(done.seq)
        """
        key = idempotency_key or key
        record = new_record(data, options)
        return await self.append_many(
            topic, [record], key=key, create=create, config=config, disable_backpressure=disable_backpressure
        )

    async def append_many(
        self,
        topic: str,
        records: Sequence[NewRecord | Mapping[str, Any]],
        *,
        node: str | None = None,
        key: str | None = None,
        idempotency_key: str | None = None,
        create: bool | None = None,
        config: Config | None = None,
        disable_backpressure: bool = False,
    ) -> Appended:
        """Append records: all of them or none. `node` is for records that have none of their own.

        await topics.append_many("orders", [NewRecord(data=1), {"data": 2, "tag": "b"}])
        """
        with tracing.sending(topic, records) as traced:
            body = {
                "records": traced, "idempotency_key": idempotency_key or key or uuid4().hex,
                **given(
                    node=node, create=create, config=config, disable_backpressure=disable_backpressure or None
                ),
            }  # fmt: skip
            path = topic_path(topic, return_seqs=False)
            done = await self._http.call("POST", path, Appended, body=body, keyed=True)
        if done.created:
            log.info("the topic %s did not exist; this append has created it", topic)
        return done

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
        filter: Filter | None = None,
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
            **given(
                from_seq=from_seq if consumer is None else None, consumer=consumer,
                commit=None if commit is False else commit, epoch=epoch, wait_ms=wait_ms or None, node=node,
                filter=filter, from_ts=from_ts,
                max_batch_bytes=max_batch_bytes, include_meta=None if include_meta else False,
            ),
        }  # fmt: skip
        page = await self._http.call(
            "POST", topic_path(topic, "diff"), Page, body=body, wait_ms=wait_ms, retries=retries
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
        filter: Filter | None = None,
        from_ts: int | None = None,
        type: type[object] | None = None,
    ) -> AsyncIterator[Record | Gap]:
        """Yield records and gaps from `from_seq` up to the head of the topic, and end there.

        With `type` (a dataclass, a msgspec Struct, a TypedDict or a pydantic model), the data of each record is decoded
        as this type, and a record that does not fit is a `Misfit`: `read`, `scan`, `follow` and `watch` have it.

        async for item in topics.read("orders"):
            print(item)
        """
        while True:
            page = await self.diff(topic, from_seq=from_seq, epoch=epoch, node=node, filter=filter, from_ts=from_ts)
            if page.gap is not None:
                yield page.gap
            for record in typed(page.records, type):
                yield record
            if page.caught_up:
                return
            from_seq, epoch, from_ts = page.next_from_seq, page.epoch, None

    async def scan(
        self,
        topic: str,
        *,
        from_seq: int = 0,
        upto_seq: int | None = None,
        epoch: int | None = None,
        node: str | Sequence[str] | None = None,
        filter: Filter | None = None,
        from_ts: int | None = None,
        type: type[object] | None = None,
    ) -> AsyncIterator[Record | Gap]:
        """Yield records and gaps of a range in one streamed answer: faster than `read` for many records.

        The scan ends at `upto_seq`, or at the head at the time it began. After a broken connection it continues where
        it was, so that no record is repeated or left out.

        async for item in topics.scan("orders", upto_seq=1_000_000):
            print(item)
        """
        wanted = ScanFields(
            from_seq=from_seq, upto_seq=upto_seq, epoch=epoch, node=node, filter=filter, from_ts=from_ts
        )
        backoff = Backoff()
        while True:
            try:
                async with aclosing(scan_pieces(self._http, topic, wanted)) as found:
                    async for piece in found:
                        backoff.reset()
                        if isinstance(piece, list):
                            for record in typed(piece, type):
                                yield record
                        elif isinstance(piece, Tombstone):
                            yield piece.gap(topic)
                        else:
                            return
                        wanted = wanted.after(piece)
            except TopicsError as error:
                await self._http.wait_after(error, backoff)

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
        wanted = ScanFields(from_seq=from_seq, upto_seq=upto_seq, epoch=epoch)
        async with opened(self._http, topic, wanted, SCAN_FORMATS[format]) as chunks:
            async for chunk in chunks:
                yield chunk


# --- scans


class ScanFields(Struct, kw_only=True):
    """The range of a scan, and the records of it that are wanted."""

    from_seq: int = 0
    upto_seq: int | None = None
    epoch: int | None = None
    node: str | Sequence[str] | None = None
    filter: Filter | None = None
    from_ts: int | None = None

    def after(self, piece: Piece) -> ScanFields:
        if isinstance(piece, list):
            return structs.replace(self, from_seq=piece[-1].seq, from_ts=None)
        if isinstance(piece, Tombstone):
            return structs.replace(self, from_seq=piece.resume_seq, epoch=piece.epoch, from_ts=None)
        return structs.replace(self, from_seq=piece.next_from_seq, epoch=piece.epoch, from_ts=None)


def opened(
    http: AsyncTransport, topic: str, wanted: ScanFields, accept: str
) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
    body = encode({"include_tags": True, **given(**structs.asdict(wanted))})
    return http.stream(Request("POST", topic_path(topic, "scan"), body, accept), silence_s=SILENCE_S)


async def scan_pieces(http: AsyncTransport, topic: str, wanted: ScanFields) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of one attempt up to the `End`. Raise `Unreachable` if the answer was cut off."""
    async with opened(http, topic, wanted, NDJSON) as chunks:
        lines = ScanLines()
        async for chunk in chunks:
            for piece in map(decoded, lines.feed(chunk)):
                if isinstance(piece, list):
                    for record in piece:
                        record.topic = topic
                yield piece
                if isinstance(piece, End):
                    return
    raise Unreachable("the scan was cut off", code="stream_ended")
