"""Reading without an end: one topic page by page, or many topics over one event stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from msgspec import Struct

from topics.client import tracing
from topics.client._async import tools
from topics.client._async.records import AsyncRecordCalls, ScanFields, scan_pieces
from topics.client._async.transport import UNLIMITED, AsyncTransport
from topics.client.call import EVENT_STREAM, Backoff, Request, consumer_path, given, topic_path, with_query
from topics.client.cursors import ConsumerInfo, Cursor, ServerCursor, Session, Start, WatchCursor, WatchPosition
from topics.client.errors import ConsumerNotFound, EpochMismatch, NotFound, TopicNotFound, TopicsError, Unreachable
from topics.client.items import Gap, Match, Position, Record
from topics.client.streams import Event, EventParser, ScanTombstone, gap_of, raise_if_final, records_of
from topics.model import wire
from topics.model.consumer import ConsumerPut

OnRetry = Callable[[TopicsError, float], None] | None
OnCaughtUp = Callable[[], object] | None
SILENCE_SLACK_S = 5.0
SCAN_RECORDS = 5_000  # a reader that is further behind catches up with a scan


class Following(Struct, kw_only=True, frozen=True):
    """What `follow` was asked for."""

    topic: str
    cursor: Cursor | ServerCursor | None
    from_seq: int
    epoch: int | None
    tail: bool
    node: str | Sequence[str] | None
    filter: Match | None
    page_records: int
    wait_ms: int
    wait_for_topic: bool
    on_retry: OnRetry
    on_caught_up: OnCaughtUp


class Watching(Struct, kw_only=True, frozen=True):
    """What `watch` was asked for."""

    topics: Mapping[str, Start | Position | None]
    cursor: WatchCursor | None
    node: str | Sequence[str] | None
    include_data: bool
    strong: bool
    heartbeat_ms: int
    wait_for_topics: bool
    on_retry: OnRetry


class AsyncServerPosition:
    """What `follow` makes of a `ServerCursor`: `load` and `save` of one consumer of one topic."""

    def __init__(self, http: AsyncTransport, topic: str, cursor: ServerCursor) -> None:
        self._http = http
        self._path = consumer_path(topic, cursor.name)
        self._settings = cursor.settings()
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


class _Follower:
    """The position of one `follow`, and its cursor."""

    def __init__(self, cursor: Cursor | AsyncServerPosition | None, position: Position) -> None:
        self._cursor = cursor
        self.position = position

    async def reach(self, position: Position) -> None:
        """Move on, and save the position: everything up to it has been processed."""
        if position != self.position:
            self.position = position
            if self._cursor is not None:
                await tools.result_of(self._cursor.save(position))
        elif isinstance(self._cursor, AsyncServerPosition):
            await self._cursor.keep(position)


async def follow(client: AsyncRecordCalls, http: AsyncTransport, wanted: Following) -> AsyncIterator[Record | Gap]:
    """See `AsyncTopics.follow`."""
    async with aclosing(_pages(client, http, wanted)) as batches:
        async for batch in batches:
            if isinstance(batch, Gap):
                yield batch
                continue
            traced = tracing.enabled()
            for record in batch:
                if traced:
                    tracing.received(record)
                yield record


async def _pages(
    client: AsyncRecordCalls, http: AsyncTransport, wanted: Following
) -> AsyncGenerator[list[Record] | Gap, None]:
    """Yield pages and gaps without an end. A reader that asks for the next one has processed the one before."""
    cursor = wanted.cursor
    place = AsyncServerPosition(http, wanted.topic, cursor) if isinstance(cursor, ServerCursor) else cursor
    follower: _Follower | None = None
    backoff = Backoff()
    existed = False
    may_scan = True
    behind = wanted.on_caught_up is not None  # never set without a callback: a reader at the head waits at once
    while True:
        try:
            if follower is None:
                follower = _Follower(place, await _first_position(http, wanted, place))
            page = await client.diff(
                wanted.topic, from_seq=follower.position.seq, epoch=follower.position.epoch,
                limit=wanted.page_records, wait_ms=0 if behind else wanted.wait_ms, node=wanted.node,
                filter=wanted.filter, retries=0,
            )  # fmt: skip
        except TopicsError as error:
            if not (error.retryable or (isinstance(error, TopicNotFound) and (existed or wanted.wait_for_topic))):
                raise
            await _wait(backoff, error, wanted.on_retry)
            behind = wanted.on_caught_up is not None
            continue
        backoff.reset()
        existed = True
        if page.tombstone is not None:
            yield page.tombstone.gap(wanted.topic)
        if page.records:
            yield page.records
        await follower.reach(Position(page.next_from_seq, page.epoch))
        if wanted.on_caught_up is not None:
            if behind and page.caught_up:
                await tools.result_of(wanted.on_caught_up())
            behind = not page.caught_up
        if page.head_seq - page.next_from_seq < SCAN_RECORDS:
            may_scan = True
        elif may_scan:
            try:
                async with aclosing(_scanned(http, wanted, follower)) as batches:
                    async for batch in batches:
                        yield batch
            except TopicsError as error:
                may_scan = False  # pages need less of the server and of the connection: they come next
                if wanted.on_retry is not None:
                    wanted.on_retry(error, 0.0)


async def _scanned(
    http: AsyncTransport, wanted: Following, follower: _Follower
) -> AsyncGenerator[list[Record] | Gap, None]:
    """Yield what a scan finds up to the head, in lists of at most `page_records`, and move the follower along."""
    at = follower.position
    left = ScanFields(from_seq=at.seq, epoch=at.epoch, node=wanted.node, filter=wanted.filter)
    async with aclosing(scan_pieces(http, wanted.topic, left)) as pieces:
        async for piece in pieces:
            if isinstance(piece, list):
                for start in range(0, len(piece), wanted.page_records):
                    part = piece[start : start + wanted.page_records]
                    yield part
                    await follower.reach(Position(part[-1].seq, left.epoch))
                continue
            if isinstance(piece, ScanTombstone):
                yield piece.gap(wanted.topic)
            left = left.after(piece)
            await follower.reach(Position(left.from_seq, left.epoch))


async def _first_position(
    http: AsyncTransport, wanted: Following, cursor: Cursor | AsyncServerPosition | None
) -> Position:
    """Return the position of the cursor; without one, where the caller wants to begin."""
    saved = None if cursor is None else await tools.result_of(cursor.load())
    if saved is not None:
        return saved
    if not wanted.tail:
        return Position(wanted.from_seq, wanted.epoch)
    state = await http.call("GET", topic_path(wanted.topic, touch=False), wire.TopicState, retries=0)
    return Position(state.head_seq, state.epoch)


async def watch(http: AsyncTransport, wanted: Watching) -> AsyncIterator[Record | Gap]:
    """See `AsyncTopics.watch`."""
    position = None if wanted.cursor is None else await tools.result_of(wanted.cursor.load())
    backoff = Backoff()
    silence_s = 2 * min(max(wanted.heartbeat_ms, 1000), 60_000) / 1000 + SILENCE_SLACK_S
    while True:
        try:
            session = await _open_session(http, wanted, position)
            epochs = {name: at.epoch for name, at in session.topics.items() if name in wanted.topics}
            async with http.stream(
                Request("GET", session.stream_url, accept=EVENT_STREAM), silence_s=silence_s
            ) as chunks:
                parser = EventParser()
                async for chunk in chunks:
                    for event in parser.feed(chunk):
                        backoff.reset()
                        for item in _event_items(event):
                            if tracing.enabled():
                                tracing.received(item)
                            yield item
                        if event.id is None or not event.name:
                            continue  # the id at the beginning says no more than the position the session began at
                        position = WatchPosition(event.id, epochs)
                        if wanted.cursor is not None:
                            await tools.result_of(wanted.cursor.save(position))
            raise Unreachable("the stream has ended", code="stream_ended")
        except TopicsError as error:
            missing = isinstance(error, TopicNotFound) and wanted.wait_for_topics
            if not (error.retryable or missing or isinstance(error, NotFound)):
                raise
            await _wait(backoff, error, wanted.on_retry)


async def _open_session(http: AsyncTransport, wanted: Watching, position: WatchPosition | None) -> Session:
    body = {
        "topics": {name: _topic_options(name, start, position) for name, start in wanted.topics.items()},
        "include_tags": True,
        "heartbeat_ms": wanted.heartbeat_ms,
        **given(
            node=wanted.node,
            cursor=None if position is None else position.event_id,
            include_data=None if wanted.include_data else False,
            consistency="strong" if wanted.strong else None,
        ),
    }
    path = with_query("/v0/watch", lenient=True if wanted.wait_for_topics else None)
    return await http.call("POST", path, Session, body=body, retries=0)


def _topic_options(name: str, start: Start | Position | None, position: WatchPosition | None) -> Mapping[str, Any]:
    """Return where to begin in one topic. The id of an event says that for all topics, but it holds no epochs."""
    found = Start(from_seq=start.seq, epoch=start.epoch) if isinstance(start, Position) else start or Start()
    if position is not None:
        return given(filter=found.filter, epoch=position.epochs.get(name))
    if found.consumer is not None:
        return given(consumer=found.consumer, epoch=found.epoch, filter=found.filter)
    return given(from_seq=found.from_seq, tail=found.tail or None, epoch=found.epoch, filter=found.filter)


def _event_items(event: Event) -> Iterator[Record | Gap]:
    if event.name == "record":
        yield from records_of(event.data)
    elif event.name == "tombstone":
        yield gap_of(event.data)
    elif event.name == "error":
        raise_if_final(event.data)


async def _wait(backoff: Backoff, error: TopicsError, on_retry: OnRetry) -> None:
    wait_s = backoff.next_s(error)
    if on_retry is not None:
        on_retry(error, wait_s)
    await tools.sleep(wait_s)
