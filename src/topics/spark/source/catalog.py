"""Look up the subscribed topics on servers, in a data directory or in a lake. Used by the driver to plan a read."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from msgspec import structs

from topics import logs
from topics.client import Client
from topics.clock import SystemClock
from topics.engine.offline import directory
from topics.engine.offline.directory import Excerpt
from topics.engine.read.read import Query
from topics.engine.state.topic import Topic
from topics.errors import Code, TopicsError
from topics.lake import ArchivedEpoch, Lake, heal
from topics.spark.options import ConnectionOptions, ReadOptions
from topics.spark.source.plan import Span, TopicExtent
from topics.storage.fs import RealFs

log = logs.Log("spark")


class NoSuchTopic(ValueError):
    """A subscribed topic does not exist."""


class Catalog(Protocol):
    def extents(self) -> list[TopicExtent]:
        """Return the subscribed topics, sorted by server and name. Raise `NoSuchTopic` if a named one is missing."""

    def seq_at(self, extent: TopicExtent, ts_ms: int) -> int:
        """Return the seq at which a read of all records from `ts_ms` on begins.

        This is the seq of the first record at or after that time, or head + 1 if there is none. If records from the
        front of the topic were lost, their times are unknown: then return 1, so that the gap is reported as in `diff`.
        """

    def excerpt(self, span: Span) -> Excerpt | None:
        """Return the part of a data directory that an executor needs to read the span, or None for other sources."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def client_for(connection: ConnectionOptions, server: str) -> Client:
    """Return a new client for the server. The caller closes it."""
    return Client(
        server, token=connection.read_token(), timeout_s=connection.timeout_ms / 1000, retries=connection.retries
    )


def catalog_of(options: ReadOptions) -> Catalog:
    if options.path is not None:
        return DirectoryCatalog(options, options.path)
    return (
        LakeCatalog(options, options.lake) if options.lake is not None and options.lake_only else ServerCatalog(options)
    )


class ServerCatalog:
    """The topics of one or several servers. With a lake, extents begin where the archive begins."""

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

    def extents(self) -> list[TopicExtent]:
        found = self.present()
        _check_all_found(self._options, found)
        return found

    def present(self) -> list[TopicExtent]:
        """Return the subscribed topics that exist on a server or in the lake. A stream may wait for the others."""
        found = [extent for server, client in self._clients.items() for extent in self._extents(server, client)]
        if self._lake is None:
            return found
        snapshot = self._lake.snapshot()
        epochs = [(extent, snapshot.archived(extent.topic, extent.epoch)) for extent in found]
        only_archived = self._only_archived(self._lake, {extent.topic for extent in found})
        return [
            _with_archive(extent, archived, self._trimmed_to(extent, archived)) for extent, archived in epochs
        ] + only_archived

    def publish(self, server: str, topic: str, consumer: str, *, epoch: int, seq: int) -> None:
        """Store the progress of a stream as a named consumer. A refusal is logged: it must not stop the stream."""
        try:
            self._clients[server].put_consumer(topic, consumer, seq=seq, epoch=epoch)
        except TopicsError as error:
            log.warning("progress_not_published", topic=topic, consumer=consumer, reason=error.message)

    def _trimmed_to(self, extent: TopicExtent, archived: ArchivedEpoch | None) -> int:
        """Return the last trimmed seq that the server knows, or 0 if the lake covers everything before the topic."""
        if extent.earliest == 1 or (archived is not None and not archived.uncovered(1, extent.earliest - 1)):
            return 0
        key, start = (extent.server, extent.topic), (extent.epoch, extent.earliest)
        known_for, trimmed_to = self._trimmed.get(key, (None, 0))
        if known_for != start:  # a trim moves the first record, so the cached answer is stale
            trimmed_to = self._trimmed_seq(extent)
            self._trimmed[key] = start, trimmed_to
        return trimmed_to

    def _trimmed_seq(self, extent: TopicExtent) -> int:
        """Ask the server for the last trimmed seq of this epoch; 0 if there is none or the topic was deleted."""
        try:
            state = self._clients[extent.server].topic(extent.topic)
        except TopicsError as error:
            if error.code is not Code.TOPIC_NOT_FOUND:
                raise
            return 0
        return (state.trimmed_seq or 0) if state.epoch == extent.epoch else 0

    def _only_archived(self, lake: Lake, live: set[str]) -> list[TopicExtent]:
        """Return the newest archived epoch of each subscribed topic that no server has."""
        server = self._options.connection.servers[0]
        names = [name for name in lake.snapshot().topics() if self._options.wants(name) and name not in live]
        epochs = [archived for name in names if (archived := heal.newest_epoch(lake, name)) is not None]
        return [structs.replace(_archived_extent(server, archived), only_archived=True) for archived in epochs]

    def wait(self, extent: TopicExtent, ms: int) -> None:
        """Return when the topic has new records, at the latest after `ms`."""
        try:
            self._clients[extent.server].diff(
                extent.topic, from_seq=extent.head, epoch=extent.epoch, limit=1, include_meta=False, wait_ms=ms
            )
        except TopicsError as error:
            if error.code is not Code.TOPIC_NOT_FOUND:
                raise

    def _extents(self, server: str, client: Client) -> list[TopicExtent]:
        options = self._options
        if options.topics:
            return [extent for name in sorted(options.topics) if (extent := _named(server, client, name)) is not None]
        return [
            TopicExtent(
                server=server, topic=row.topic, epoch=row.epoch, earliest=row.earliest_seq, head=row.head_seq,
                count=row.count, size_bytes=row.bytes,
            )
            for row in client.topics(options.prefix or "")
            if options.wants(row.topic)
        ]  # fmt: skip

    def seq_at(self, extent: TopicExtent, ts_ms: int) -> int:
        try:
            return self._seq_at(extent, ts_ms)
        except TopicsError as error:
            if self._lake is None or error.code is not Code.TOPIC_NOT_FOUND:
                raise
            archived = self._lake.snapshot().archived(extent.topic, extent.epoch)
            return 1 if archived is None else heal.first_at(self._lake, archived, ts_ms)

    def _seq_at(self, extent: TopicExtent, ts_ms: int) -> int:
        client, from_seq = self._clients[extent.server], 0
        while True:
            page = client.diff(extent.topic, from_seq=from_seq, from_ts=ts_ms, limit=1, epoch=extent.epoch)
            if self._lake is not None and from_seq == 0:
                floor = 0 if page.tombstone is None else page.tombstone.gap_to
                floor = max(floor, self._trimmed_seq(extent))
                if (archived_seq := _archived_at(self._lake, extent, ts_ms, floor)) is not None:
                    return archived_seq
            elif page.tombstone is not None:
                return 1
            if page.records:
                return page.records[0].seq
            if page.caught_up:
                return page.head_seq + 1
            from_seq = page.next_from_seq

    def excerpt(self, span: Span) -> Excerpt | None:
        return None


class DirectoryCatalog:
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

    def extents(self) -> list[TopicExtent]:
        topics = self._directory.topics
        found = [self._extent(topics[name]) for name in sorted(topics) if self._options.wants(name)]
        _check_all_found(self._options, found)
        return found

    def _extent(self, topic: Topic) -> TopicExtent:
        return TopicExtent(
            server=self._path, topic=topic.name, epoch=topic.epoch, earliest=topic.earliest, head=topic.head,
            count=topic.count, size_bytes=topic.bytes, latest=directory.known_end(topic),
        )  # fmt: skip

    def seq_at(self, extent: TopicExtent, ts_ms: int) -> int:
        from_seq = 0
        while True:
            found = self._directory.read(extent.topic, Query(from_seq=from_seq, from_ts=ts_ms, limit=1))
            if found.tombstone is not None:
                return 1
            if found.count or found.next_from_seq >= extent.head:
                return found.next_from_seq + (0 if found.count else 1)
            from_seq = found.next_from_seq

    def excerpt(self, span: Span) -> Excerpt | None:
        return self._directory.excerpt(span.topic, span.start, span.stop)


class LakeCatalog:
    """The topics of a lake, without a server. Each topic is read in its newest archived epoch."""

    def __init__(self, options: ReadOptions, path: str) -> None:
        self._options = options
        self._path = path
        self._lake = Lake(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def extents(self) -> list[TopicExtent]:
        names = [name for name in self._lake.snapshot().topics() if self._options.wants(name)]
        epochs = [archived for name in sorted(names) if (archived := heal.newest_epoch(self._lake, name)) is not None]
        found = [_archived_extent(self._path, archived) for archived in epochs]
        _check_all_found(self._options, found)
        return found

    def seq_at(self, extent: TopicExtent, ts_ms: int) -> int:
        archived = self._lake.snapshot().archived(extent.topic, extent.epoch)
        return 1 if archived is None else heal.first_at(self._lake, archived, ts_ms)

    def excerpt(self, span: Span) -> Excerpt | None:
        return None


def _with_archive(extent: TopicExtent, archived: ArchivedEpoch | None, trimmed_to: int) -> TopicExtent:
    """Return the extent of lake and server together. It includes trimmed seqs that this lake lacks, as gaps."""
    known = archived or ArchivedEpoch(topic=extent.topic, epoch=extent.epoch)
    lacking = known.uncovered(1, trimmed_to)
    first = min(heal.first_record(archived) or extent.earliest, lacking[0][0] if lacking else extent.earliest)
    if first >= extent.earliest:
        return extent
    older_bytes = sum(file.bytes for file in known.files_in(first, extent.earliest - 1))
    return structs.replace(extent, earliest=first, size_bytes=extent.size_bytes + older_bytes)


def _archived_extent(where: str, archived: ArchivedEpoch) -> TopicExtent:
    end = heal.last_seq(archived)
    return TopicExtent(
        server=where, topic=archived.topic, epoch=archived.epoch,
        earliest=heal.first_record(archived) or end + 1, head=end,
        count=sum(file.rows for file in archived.files), size_bytes=sum(file.bytes for file in archived.files),
    )  # fmt: skip


def _archived_at(lake: Lake, extent: TopicExtent, ts_ms: int, floor: int) -> int | None:
    """Return the archived seq at which a read from `ts_ms` on begins, or None if the read begins on the server."""
    archived = lake.snapshot().archived(extent.topic, extent.epoch)
    if archived is None:
        return 1 if floor else None
    begin = heal.first_at(lake, archived, ts_ms)
    return begin if begin <= max(floor, archived.trimmed_to) else None


def _named(server: str, client: Client, name: str) -> TopicExtent | None:
    try:
        state = client.topic(name)
    except TopicsError as error:
        if error.code is Code.TOPIC_NOT_FOUND:
            return None
        raise
    return TopicExtent(
        server=server, topic=name, epoch=state.epoch, earliest=state.earliest_seq, head=state.head_seq,
        count=state.count, size_bytes=state.bytes,
    )  # fmt: skip


def _check_all_found(options: ReadOptions, extents: list[TopicExtent]) -> None:
    there = {extent.topic for extent in extents}
    for name in options.topics:
        if name not in there:
            where = options.path or (options.lake if options.lake_only else None)
            where = where or ", ".join(options.connection.servers)
            raise NoSuchTopic(f"topic {name!r} does not exist in {where}")
