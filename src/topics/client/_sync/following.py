# Generated from _async/following.py by tools/unasync.py. Do not edit.
"""Reading without an end: one topic page by page, or many topics over one event stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from topics.client import tracing
from topics.client._sync import tools
from topics.client._sync.transport import Transport, fields_of, with_query
from topics.client.cursors import Cursor
from topics.client.errors import NotFound, TopicNotFound, TopicsError, Unavailable, Unreachable
from topics.client.items import Gap, Match, Page, Position, Record, Tombstone, decode_records
from topics.client.retry import Backoff
from topics.client.sse import Event, EventParser
from topics.client.watching import Session, Start, WatchCursor, WatchPosition

if TYPE_CHECKING:
    from topics.client._sync.client import Topics

OnRetry = Callable[[TopicsError, float], None] | None
SILENCE_SLACK_S = 5.0
ADVISORY = 429  # an `error` event that ends nothing


class Following(Struct, kw_only=True, frozen=True):
    """What `follow` was asked for."""

    topic: str
    cursor: Cursor | None
    from_seq: int
    tail: bool
    node: str | Sequence[str] | None
    filter: Match | None
    include_data: bool
    page_records: int
    wait_ms: int
    wait_for_topic: bool
    on_retry: OnRetry


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


class _Batch(Struct):
    topic: str
    records: list[Record]


class _Problem(Struct):
    code: int
    error: str
    retry_after_ms: int | None = None


class _Lost(Tombstone):
    topic: str = ""


_batches = msgspec.json.Decoder(_Batch)
_decode_lost = msgspec.json.Decoder(_Lost).decode
_decode_problem = msgspec.json.Decoder(_Problem).decode


def items_of(page: Page, topic: str) -> Iterator[Record | Gap]:
    """Yield the gap of a page, then its records."""
    if page.tombstone is not None:
        yield page.tombstone.gap(topic)
    for record in page.records:
        record.topic = topic
        yield record


def follow(client: Topics, wanted: Following) -> Iterator[Record | Gap]:
    """See `Topics.follow`."""
    position = None if wanted.cursor is None else tools.result_of(wanted.cursor.load())
    backoff = Backoff()
    existed = False
    while True:
        try:
            if position is None:
                position = _first_position(client, wanted)
            page = client.diff(
                wanted.topic, from_seq=position.seq, epoch=position.epoch, limit=wanted.page_records,
                wait_ms=wanted.wait_ms, node=wanted.node, filter=wanted.filter, include_data=wanted.include_data,
                retries=0,
            )  # fmt: skip
        except TopicsError as error:
            if not (error.retryable or (isinstance(error, TopicNotFound) and (existed or wanted.wait_for_topic))):
                raise
            _wait(backoff, error, wanted.on_retry)
            continue
        backoff.reset()
        existed = True
        if page.tombstone is not None:
            yield page.tombstone.gap(wanted.topic)
        for record in page.records:
            record.topic = wanted.topic
            if tracing.enabled:
                tracing.received(record)
            yield record
        reached = Position(page.next_from_seq, page.epoch)
        if reached != position:
            position = reached
            if wanted.cursor is not None:
                tools.result_of(wanted.cursor.save(position))


def _first_position(client: Topics, wanted: Following) -> Position:
    if not wanted.tail:
        return Position(wanted.from_seq)
    state = client.topic(wanted.topic)
    return Position(state.head_seq, state.epoch)


def watch(http: Transport, wanted: Watching) -> Iterator[Record | Gap]:
    """See `Topics.watch`."""
    position = None if wanted.cursor is None else tools.result_of(wanted.cursor.load())
    backoff = Backoff()
    silence_s = 2 * min(max(wanted.heartbeat_ms, 1000), 60_000) / 1000 + SILENCE_SLACK_S
    while True:
        try:
            session = _open_session(http, wanted, position)
            epochs = {name: at.epoch for name, at in session.topics.items() if name in wanted.topics}
            with http.stream(session.stream_url, silence_s=silence_s) as chunks:
                parser = EventParser()
                for chunk in chunks:
                    for event in parser.feed(chunk):
                        backoff.reset()
                        for item in _event_items(event):
                            if tracing.enabled:
                                tracing.received(item)
                            yield item
                        if event.id is None:
                            continue
                        position = WatchPosition(event.id, epochs)
                        if wanted.cursor is not None:
                            tools.result_of(wanted.cursor.save(position))
            raise Unreachable("the stream has ended", code="stream_ended")
        except TopicsError as error:
            missing = isinstance(error, TopicNotFound) and wanted.wait_for_topics
            if not (error.retryable or missing or isinstance(error, NotFound)):
                raise
            _wait(backoff, error, wanted.on_retry)


def _open_session(http: Transport, wanted: Watching, position: WatchPosition | None) -> Session:
    body = {
        "topics": {name: _topic_options(name, start, position) for name, start in wanted.topics.items()},
        "include_tags": True,
        "heartbeat_ms": wanted.heartbeat_ms,
        **fields_of(
            node=wanted.node,
            cursor=None if position is None else position.event_id,
            include_data=None if wanted.include_data else False,
            consistency="strong" if wanted.strong else None,
        ),
    }
    path = with_query("/v0/watch", lenient=True if wanted.wait_for_topics else None)
    return http.call("POST", path, Session, body=body, retries=0)


def _topic_options(name: str, start: Start | Position | None, position: WatchPosition | None) -> Mapping[str, Any]:
    """Return where to begin in one topic. The id of an event says that for all topics, but it holds no epochs."""
    found = Start(from_seq=start.seq, epoch=start.epoch) if isinstance(start, Position) else start or Start()
    if position is not None:
        return fields_of(filter=found.filter, epoch=position.epochs.get(name))
    return fields_of(from_seq=found.from_seq, tail=found.tail or None, epoch=found.epoch, filter=found.filter)


def _event_items(event: Event) -> Iterator[Record | Gap]:
    if event.name == "record":
        batch = decode_records(_batches, event.data)
        for record in batch.records:
            record.topic = batch.topic
            yield record
    elif event.name == "tombstone":
        lost = _decode_lost(event.data)
        yield lost.gap(lost.topic)
    elif event.name == "error":
        problem = _decode_problem(event.data)
        if problem.code != ADVISORY:
            wait_s = None if problem.retry_after_ms is None else problem.retry_after_ms / 1000
            raise Unavailable(
                problem.error, code=f"stream_{problem.code}", status=problem.code, retryable=True, retry_after=wait_s
            )


def _wait(backoff: Backoff, error: TopicsError, on_retry: OnRetry) -> None:
    wait_s = backoff.next_s(error)
    if on_retry is not None:
        on_retry(error, wait_s)
    tools.sleep(wait_s)
