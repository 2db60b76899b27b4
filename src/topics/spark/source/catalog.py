"""What there is to read: topics of servers, a directory or a lake, as they are at this moment. Asked by the driver."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from msgspec import structs

from topics.client import Client
from topics.clock import SystemClock
from topics.engine.offline import directory
from topics.engine.offline.directory import Excerpt
from topics.engine.read.read import Query
from topics.engine.state.topic import Topic
from topics.errors import Code, TopicsError
from topics.lake import Lake, Life, heal
from topics.spark.options import Connection, ReadOptions
from topics.spark.source.plan import Place, Span
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
    if options.path is not None:
        return Files(options, options.path)
    return Archive(options, options.lake) if options.lake is not None and options.lake_only else Servers(options)


class Servers:
    """The topics of one or several servers; with a lake, as far back as that goes."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._lake = None if options.lake is None else Lake(options.lake)
        self._clients = {server: client_for(options.connection, server) for server in options.connection.servers}
        self._trimmed: dict[tuple[str, str], tuple[tuple[int, int], int]] = {}  # by topic; see `_trimmed_to`

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
        """Those of the topics that are there, on a server or in the lake: a stream may wait for the others."""
        found = [place for server, client in self._clients.items() for place in self._places(server, client)]
        if self._lake is None:
            return found
        snapshot = self._lake.snapshot()
        lives = [(place, snapshot.life(place.topic, place.epoch)) for place in found]
        gone = self._only_archived(self._lake, {place.topic for place in found})
        return [_with_archive(place, life, self._trimmed_to(place, life)) for place, life in lives] + gone

    def _trimmed_to(self, place: Place, life: Life | None) -> int:
        """Up to where the server says it was trimmed, where that can make a difference: not for what the lake has."""
        if place.earliest == 1 or (life is not None and not life.uncovered(1, place.earliest - 1)):
            return 0
        key, stand = (place.server, place.topic), (place.epoch, place.earliest)
        asked_at, told = self._trimmed.get(key, (None, 0))
        if asked_at != stand:  # a trim moves the first record
            told = self._told(place)
            self._trimmed[key] = stand, told
        return told

    def _told(self, place: Place) -> int:
        try:
            state = self._clients[place.server].topic(place.topic)
        except TopicsError as error:
            if error.code is not Code.TOPIC_NOT_FOUND:
                raise
            return 0
        return (state.trimmed_seq or 0) if state.epoch == place.epoch else 0

    def _only_archived(self, lake: Lake, there: set[str]) -> list[Place]:
        """Topics that are gone from the servers: their last life is in the lake, and reading finds out the rest."""
        server = self._options.connection.servers[0]
        gone = [name for name in lake.snapshot().topics() if self._options.wants(name) and name not in there]
        lives = [life for name in gone if (life := heal.newest_life(lake, name)) is not None]
        return [structs.replace(_archived_place(server, life), gone=True) for life in lives]

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
        try:
            return self._seq_at(place, ts_ms)
        except TopicsError as error:
            if self._lake is None or error.code is not Code.TOPIC_NOT_FOUND:
                raise
            life = self._lake.snapshot().life(place.topic, place.epoch)
            return 1 if life is None else heal.first_at(self._lake, life, ts_ms)

    def _seq_at(self, place: Place, ts_ms: int) -> int:
        client, from_seq = self._clients[place.server], 0
        while True:
            page = client.diff(place.topic, from_seq=from_seq, from_ts=ts_ms, limit=1, epoch=place.epoch)
            if self._lake is not None and from_seq == 0:
                floor = 0 if page.tombstone is None else page.tombstone.gap_to
                floor = max(floor, self._told(place))
                if (archived := _archived_at(self._lake, place, ts_ms, floor)) is not None:
                    return archived
            elif page.tombstone is not None:
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
        self._directory = directory.Directory(RealFs(), path, cold_dir=options.cold_path, now_ms=SystemClock().now_ms())

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
            count=topic.count, size_bytes=topic.bytes, latest=directory.known_end(topic),
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


class Archive:
    """The topics of a lake, without a server: of each the last life that was archived."""

    def __init__(self, options: ReadOptions, path: str) -> None:
        self._options = options
        self._path = path
        self._lake = Lake(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def places(self) -> list[Place]:
        names = [name for name in self._lake.snapshot().topics() if self._options.wants(name)]
        lives = [life for name in sorted(names) if (life := heal.newest_life(self._lake, name)) is not None]
        found = [_archived_place(self._path, life) for life in lives]
        _check_all_found(self._options, found)
        return found

    def seq_at(self, place: Place, ts_ms: int) -> int:
        life = self._lake.snapshot().life(place.topic, place.epoch)
        return 1 if life is None else heal.first_at(self._lake, life, ts_ms)

    def excerpt(self, span: Span) -> Excerpt | None:
        return None


def _with_archive(place: Place, life: Life | None, trimmed_to: int) -> Place:
    """The topic as lake and server have it together. What was trimmed, and this lake lacks, is part of it: as a gap."""
    known = life or Life(topic=place.topic, epoch=place.epoch)
    lacking = known.uncovered(1, trimmed_to)
    first = min(heal.first_record(life) or place.earliest, lacking[0][0] if lacking else place.earliest)
    if first >= place.earliest:
        return place
    older_bytes = sum(file.bytes for file in known.files_in(first, place.earliest - 1))
    return structs.replace(place, earliest=first, size_bytes=place.size_bytes + older_bytes)


def _archived_place(where: str, life: Life) -> Place:
    end = heal.last_seq(life)
    return Place(
        server=where, topic=life.topic, epoch=life.epoch, earliest=heal.first_record(life) or end + 1, head=end,
        count=sum(file.rows for file in life.files), size_bytes=sum(file.bytes for file in life.files),
    )  # fmt: skip


def _archived_at(lake: Lake, place: Place, ts_ms: int, floor: int) -> int | None:
    """Where reading from a time on begins in the lake; None if what the server has is all of it."""
    life = lake.snapshot().life(place.topic, place.epoch)
    if life is None:
        return 1 if floor else None
    begin = heal.first_at(lake, life, ts_ms)
    return begin if begin <= max(floor, life.trimmed_to) else None


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
            where = options.path or (options.lake if options.lake_only else None)
            where = where or ", ".join(options.connection.servers)
            raise NoSuchTopic(f"topic {name!r} does not exist in {where}")
