"""What there is to read: the topics of servers, or of a directory, as they are at this moment. Asked by the driver."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from topics.client import Client
from topics.clock import SystemClock
from topics.engine import offline
from topics.engine.offline import Excerpt
from topics.engine.read import Query
from topics.engine.state import Topic
from topics.errors import Code, TopicsError
from topics.spark.options import Connection, ReadOptions
from topics.spark.plan import Place, Span
from topics.storage.fs import RealFs


class NoSuchTopic(ValueError):
    """A topic that was named is not there."""


class Catalog(Protocol):
    def places(self) -> list[Place]:
        """The topics subscribed to, by server and name. Raises `NoSuchTopic` where one was named and is nowhere."""

    def seq_at(self, place: Place, ts_ms: int) -> int:
        """Where reading begins for a reader who wants everything from this time on.

        The seq of the first record at or after it, head + 1 if there is none. Where some of what he wants was lost at
        the front, which seqs that were is not known any more: then 1, as `diff` would tell it.
        """

    def excerpt(self, span: Span) -> Excerpt | None:
        """What an executor needs beside the span, if anything."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def client_for(connection: Connection, server: str) -> Client:
    """A connection of its own: to be closed by whoever asked for it."""
    return Client(
        server, token=connection.read_token(), timeout_s=connection.timeout_ms / 1000, retries=connection.retries
    )


def catalog_of(options: ReadOptions) -> Catalog:
    return Servers(options) if options.path is None else Files(options, options.path)


class Servers:
    """The topics of one or several servers."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._clients = {server: client_for(options.connection, server) for server in options.connection.servers}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients.values():
            client.close()

    def places(self) -> list[Place]:
        found = self.present()
        _check_all_found(self._options, found)
        return found

    def present(self) -> list[Place]:
        """Those of the topics that are there: a stream may wait for the others."""
        return [place for server, client in self._clients.items() for place in self._places(server, client)]

    def wait(self, place: Place, ms: int) -> None:
        """Until the topic has grown, or for this long."""
        try:
            self._clients[place.server].diff(
                place.topic, from_seq=place.head, epoch=place.epoch, limit=1, include_meta=False, wait_ms=ms
            )
        except TopicsError as error:
            if error.code is not Code.TOPIC_NOT_FOUND:
                raise

    def _places(self, server: str, client: Client) -> list[Place]:
        options = self._options
        if options.topics:
            return [place for name in sorted(options.topics) if (place := _named(server, client, name)) is not None]
        return [
            Place(
                server=server, topic=row.topic, epoch=row.epoch, earliest=row.earliest_seq, head=row.head_seq,
                count=row.count, size_bytes=row.bytes,
            )
            for row in client.topics(options.prefix or "")
            if options.wants(row.topic)
        ]  # fmt: skip

    def seq_at(self, place: Place, ts_ms: int) -> int:
        client, from_seq = self._clients[place.server], 0
        while True:
            page = client.diff(place.topic, from_seq=from_seq, from_ts=ts_ms, limit=1, epoch=place.epoch)
            if page.tombstone is not None:
                return 1
            if page.records:
                return page.records[0].seq
            if page.caught_up:
                return page.head_seq + 1
            from_seq = page.next_from_seq

    def excerpt(self, span: Span) -> Excerpt | None:
        return None


class Files:
    """The topics of a data directory or a backup."""

    def __init__(self, options: ReadOptions, path: str) -> None:
        self._options = options
        self._path = path
        self._directory = offline.Directory(RealFs(), path, cold_dir=options.cold_path, now_ms=SystemClock().now_ms())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._directory.__exit__(kind, error, trace)

    def places(self) -> list[Place]:
        topics = self._directory.topics
        found = [self._place(topics[name]) for name in sorted(topics) if self._options.wants(name)]
        _check_all_found(self._options, found)
        return found

    def _place(self, topic: Topic) -> Place:
        return Place(
            server=self._path, topic=topic.name, epoch=topic.epoch, earliest=topic.earliest, head=topic.head,
            count=topic.count, size_bytes=topic.bytes, latest=offline.known_end(topic),
        )  # fmt: skip

    def seq_at(self, place: Place, ts_ms: int) -> int:
        from_seq = 0
        while True:
            found = self._directory.read(place.topic, Query(from_seq=from_seq, from_ts=ts_ms, limit=1))
            if found.tombstone is not None:
                return 1
            if found.count or found.next_from_seq >= place.head:
                return found.next_from_seq + (0 if found.count else 1)
            from_seq = found.next_from_seq

    def excerpt(self, span: Span) -> Excerpt | None:
        return self._directory.excerpt(span.topic, span.start, span.stop)


def _named(server: str, client: Client, name: str) -> Place | None:
    try:
        state = client.topic(name)
    except TopicsError as error:
        if error.code is Code.TOPIC_NOT_FOUND:
            return None
        raise
    return Place(
        server=server, topic=name, epoch=state.epoch, earliest=state.earliest_seq, head=state.head_seq,
        count=state.count, size_bytes=state.bytes,
    )  # fmt: skip


def _check_all_found(options: ReadOptions, places: list[Place]) -> None:
    there = {place.topic for place in places}
    for name in options.topics:
        if name not in there:
            where = options.path or ", ".join(options.connection.servers)
            raise NoSuchTopic(f"topic {name!r} does not exist in {where}")
