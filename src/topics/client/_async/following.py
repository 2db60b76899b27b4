"""Reading without an end: one topic page by page, or many topics over one event stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from msgspec import Struct

from topics.client import tracing
from topics.client._async import tools
from topics.client._async.records import PAGE_RECORDS, AsyncRecordCalls, ScanFields, scan_pieces
from topics.client._async.transport import UNLIMITED, AsyncTransport
from topics.client.call import EVENT_STREAM, Backoff, Request, consumer_path, given, topic_path, with_query
from topics.client.cursors import ConsumerInfo, Cursor, ServerCursor, Start, WatchCursor, WatchPosition
from topics.client.errors import ConsumerNotFound, EpochMismatch, NotFound, TopicNotFound, TopicsError, Unreachable
from topics.client.items import Filter, Gap, Position, Record, Tombstone, TopicState, typed
from topics.client.streams import Event, EventParser, gap_of, raise_if_final, records_of
from topics.model.consumer import ConsumerPut
from topics.model.watch import WatchCreated

OnRetry = Callable[[TopicsError, float], None] | None
SILENCE_SLACK_S = 5.0
SCAN_RECORDS = 5_000  # a reader that is further behind catches up with a scan


class AsyncServerPosition:
    """What `follow` makes of a `ServerCursor`: `load` and `save` of one consumer of one topic."""

    def __init__(self, http: AsyncTransport, topic: str, cursor: ServerCursor) -> None:
        self._http = http
        self._path = consumer_path(topic, cursor.name)
        self._settings = given(hold=cursor.hold, max_hold_bytes=cursor.max_hold_bytes, expire_ms=cursor.expire_ms)
        self._expire_s = 0.0
        self._used_at = time.monotonic()

    async def load(self) -> Position | None:
        """Return the position of the consumer, or None if it is new."""
        created = False
        if self._settings:
            put = await self._http.call("PUT", self._path, ConsumerPut, body=self._settings, retries=0)
            created = put.created
        try:
            found = await self._http.call("GET", self._path, ConsumerInfo, retries=0)
        except ConsumerNotFound:
            return None
        self._expire_s = found.expire_ms / 1000
        return None if created else Position(found.seq, found.epoch)

    async def save(self, position: Position) -> None:
        """Store a position, however long the server is away.

        The consumer ends with its topic. If the topic was deleted or created again, the next read reports that.
        """
        body = {"seq": position.seq, "epoch": position.epoch}
        with suppress(EpochMismatch, TopicNotFound):
            await self._http.call("PUT", self._path, ConsumerPut, body=body, retries=UNLIMITED)
        self._used_at = time.monotonic()

    async def keep(self, position: Position) -> None:
        """Store a position again if the server would soon forget the consumer for not being used."""
        if self._expire_s and time.monotonic() - self._used_at > self._expire_s / 4:
            await self.save(position)


class AsyncFollower(Struct, kw_only=True):
    """One `follow`: what it was asked for, and its position."""

    client: AsyncRecordCalls
    http: AsyncTransport
    topic: str
    cursor: Cursor | AsyncServerPosition | None
    start: Position | None  # None is the head
    node: str | Sequence[str] | None
    filter: Filter | None
    page_records: int
    wait_ms: int
    wait_for_topic: bool
    on_retry: OnRetry
    on_caught_up: Callable[[], object] | None
    position: Position | None = None

    async def pages(self) -> AsyncGenerator[list[Record] | Gap, None]:
        """Yield pages and gaps without an end. A reader that asks for the next one has processed the one before."""
        backoff = Backoff()
        existed = False
        may_scan = True
        behind = self.on_caught_up is not None  # never set without a callback: a reader at the head waits at once
        while True:
            try:
                if self.position is None:
                    self.position = await self._first_position()
                page = await self.client.diff(
                    self.topic, from_seq=self.position.seq, epoch=self.position.epoch, limit=self.page_records,
                    wait_ms=0 if behind else self.wait_ms, node=self.node, filter=self.filter, retries=0,
                )  # fmt: skip
            except TopicsError as error:
                if not (error.retryable or (isinstance(error, TopicNotFound) and (existed or self.wait_for_topic))):
                    raise
                await _wait(backoff, error, self.on_retry)
                behind = self.on_caught_up is not None
                continue
            backoff.reset()
            existed = True
            if page.tombstone is not None:
                yield page.tombstone.gap(self.topic)
            if page.records:
                yield page.records
            await self._reach(Position(page.next_from_seq, page.epoch))
            if self.on_caught_up is not None:
                if behind and page.caught_up:
                    await tools.result_of(self.on_caught_up())
                behind = not page.caught_up
            if page.head_seq - page.next_from_seq < SCAN_RECORDS:
                may_scan = True
            elif may_scan:
                try:
                    async with aclosing(self._scanned(self.position)) as batches:
                        async for batch in batches:
                            yield batch
                except TopicsError as error:
                    may_scan = False  # pages need less of the server and of the connection: they come next
                    if self.on_retry is not None:
                        self.on_retry(error, 0.0)

    async def _scanned(self, at: Position) -> AsyncGenerator[list[Record] | Gap, None]:
        """Yield what a scan finds up to the head, in lists of at most `page_records`."""
        left = ScanFields(from_seq=at.seq, epoch=at.epoch, node=self.node, filter=self.filter)
        async with aclosing(scan_pieces(self.http, self.topic, left)) as pieces:
            async for piece in pieces:
                if isinstance(piece, list):
                    for start in range(0, len(piece), self.page_records):
                        part = piece[start : start + self.page_records]
                        yield part
                        await self._reach(Position(part[-1].seq, left.epoch))
                    continue
                if isinstance(piece, Tombstone):
                    yield piece.gap(self.topic)
                left = left.after(piece)
                await self._reach(Position(left.from_seq, left.epoch))

    async def _reach(self, position: Position) -> None:
        """Move on, and save the position: everything up to it has been processed."""
        if position != self.position:
            self.position = position
            if self.cursor is not None:
                await tools.result_of(self.cursor.save(position))
        elif isinstance(self.cursor, AsyncServerPosition):
            await self.cursor.keep(position)

    async def _first_position(self) -> Position:
        """Return the position of the cursor; without one, where the caller wants to begin."""
        saved = None if self.cursor is None else await tools.result_of(self.cursor.load())
        if saved is not None:
            return saved
        if self.start is not None:
            return self.start
        state = await self.http.call("GET", topic_path(self.topic, touch=False), TopicState, retries=0)
        return Position(state.head_seq, state.epoch)


class AsyncFollowCalls(AsyncRecordCalls):
    """Read without an end."""

    async def follow(
        self,
        topic: str,
        *,
        cursor: Cursor | ServerCursor | None = None,
        from_seq: int = 0,
        epoch: int | None = None,
        tail: bool = False,
        node: str | Sequence[str] | None = None,
        filter: Filter | None = None,
        page_records: int = PAGE_RECORDS,
        wait_ms: int = 20_000,
        wait_for_topic: bool = False,
        on_retry: Callable[[TopicsError, float], None] | None = None,
        on_caught_up: Callable[[], object] | None = None,
        type: type[object] | None = None,
    ) -> AsyncIterator[Record | Gap]:
        """Yield the records of a topic as they come, and a `Gap` wherever records were lost. Never ends by itself.

        The loop resumes after broken connections and restarts of the server, and waits as long as the server asks. Its
        position goes to `cursor` when a page has been processed: after a crash the last page comes again, and no record
        is skipped. A topic that was created again comes as a gap with the reason `recreated`. A topic that does not
        exist raises `TopicNotFound`, unless it existed before or `wait_for_topic` is set. `ServerCursor("billing")`
        keeps the position on the server, as a named consumer. `epoch` is the epoch that `from_seq` belongs to.
        `on_caught_up()` is called when the loop has processed everything up to the head: the first time, and each time
        after it had fallen behind or the server had not answered.

            async for item in topics.follow("orders", cursor=FileCursor("orders.cursor")):
                if isinstance(item, Gap): print("lost", item.first_seq, item.last_seq, item.reason)
                else: print(item.seq, item.data)
        """
        place = AsyncServerPosition(self._http, topic, cursor) if isinstance(cursor, ServerCursor) else cursor
        follower = AsyncFollower(
            client=self, http=self._http, topic=topic, cursor=place, start=None if tail else Position(from_seq, epoch),
            node=node, filter=filter, page_records=page_records, wait_ms=wait_ms, wait_for_topic=wait_for_topic,
            on_retry=on_retry, on_caught_up=on_caught_up,
        )  # fmt: skip
        async with aclosing(follower.pages()) as batches:
            async for batch in batches:
                if isinstance(batch, Gap):
                    yield batch
                    continue
                traced = tracing.enabled()
                for record in typed(batch, type):
                    if traced:
                        tracing.received(record)
                    yield record

    async def watch(
        self,
        topics: Iterable[str] | Mapping[str, Start | Position | None],
        *,
        cursor: WatchCursor | None = None,
        node: str | Sequence[str] | None = None,
        include_data: bool = True,
        strong: bool = False,
        heartbeat_ms: int = 15_000,
        wait_for_topics: bool = False,
        on_retry: Callable[[TopicsError, float], None] | None = None,
        type: type[object] | None = None,
    ) -> AsyncIterator[Record | Gap]:
        """Follow many topics over one stream. A name that ends in `*` means every topic that begins so.

        With `strong`, records come only once they are on the disk. Without `include_data`, they come without their
        data. With `wait_for_topics`, topics that do not exist are left out instead of raising `TopicNotFound`.

        async for item in topics.watch({"orders": None, "chat-*": Start(tail=True)}):
            print(item.topic, item)
        """
        wanted = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics)
        position = None if cursor is None else await tools.result_of(cursor.load())
        path = with_query("/v0/watch", lenient=True if wait_for_topics else None)
        fields = given(
            node=node, include_data=None if include_data else False, consistency="strong" if strong else None
        )
        backoff = Backoff()
        silence_s = 2 * min(max(heartbeat_ms, 1000), 60_000) / 1000 + SILENCE_SLACK_S
        while True:
            starts = {name: _topic_options(name, start, position) for name, start in wanted.items()}
            at = given(cursor=None if position is None else position.event_id)
            body = {"topics": starts, "include_tags": True, "heartbeat_ms": heartbeat_ms, **fields, **at}
            try:
                session = await self._http.call("POST", path, WatchCreated, body=body, retries=0)
                epochs = {name: one.epoch for name, one in session.topics.items() if name in wanted}
                stream = Request("GET", session.stream_url, accept=EVENT_STREAM)
                async with self._http.stream(stream, silence_s=silence_s) as chunks:
                    parser = EventParser()
                    async for chunk in chunks:
                        for event in parser.feed(chunk):
                            backoff.reset()
                            for item in _event_items(event, type):
                                if tracing.enabled():
                                    tracing.received(item)
                                yield item
                            if event.id is None or not event.name:
                                continue  # the id at the beginning says no more than where the session began
                            position = WatchPosition(event.id, epochs)
                            if cursor is not None:
                                await tools.result_of(cursor.save(position))
                raise Unreachable("the stream has ended", code="stream_ended")
            except TopicsError as error:
                missing = isinstance(error, TopicNotFound) and wait_for_topics
                if not (error.retryable or missing or isinstance(error, NotFound)):
                    raise
                await _wait(backoff, error, on_retry)


def _topic_options(name: str, start: Start | Position | None, position: WatchPosition | None) -> Mapping[str, Any]:
    """Return where to begin in one topic. The id of an event says that for all topics, but it holds no epochs."""
    found = Start(from_seq=start.seq, epoch=start.epoch) if isinstance(start, Position) else start or Start()
    if position is not None:
        return given(filter=found.filter, epoch=position.epochs.get(name))
    if found.consumer is not None:
        return given(consumer=found.consumer, epoch=found.epoch, filter=found.filter)
    return given(from_seq=found.from_seq, tail=found.tail or None, epoch=found.epoch, filter=found.filter)


def _event_items(event: Event, type: type[object] | None) -> Iterator[Record | Gap]:
    if event.name == "record":
        yield from typed(records_of(event.data), type)
    elif event.name == "tombstone":
        yield gap_of(event.data)
    elif event.name == "error":
        raise_if_final(event.data)


async def _wait(backoff: Backoff, error: TopicsError, on_retry: OnRetry) -> None:
    wait_s = backoff.next_s(error)
    if on_retry is not None:
        on_retry(error, wait_s)
    await tools.sleep(wait_s)
