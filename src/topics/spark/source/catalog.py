"""Look up the subscribed topics on servers, in a data directory or in a lake. Used by the driver to plan a read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Set
from itertools import islice
from os.path import commonprefix
from typing import Self

from msgspec import structs

from topics import logs
from topics.client import Client
from topics.client.call import EVENT_STREAM, Request, with_query
from topics.client.request import State, Summary
from topics.client.streams import EventParser
from topics.clock import SystemClock
from topics.engine.offline import directory
from topics.engine.offline.directory import Excerpt
from topics.engine.read.read import Query
from topics.errors import Code, TopicsError
from topics.lake import ArchivedEpoch, Lake, heal
from topics.model.names import AUDIT
from topics.model.watch import WatchCreated
from topics.spark.options import ConnectionOptions, ReadOptions
from topics.spark.source.plan import Span, TopicExtent
from topics.storage.fs import Fs

log = logs.Log("spark")


class NoSuchTopic(ValueError):
    """A subscribed topic does not exist."""


class Catalog:
    """The topics of one source, as a context manager."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close what the catalog holds open."""

    def extents(self) -> list[TopicExtent]:
        """Return the subscribed topics, sorted by server and name. Raise `NoSuchTopic` if a named one is missing."""
        options, found = self._options, self.present()
        there = {extent.topic for extent in found}
        for name in options.topics:
            if name not in there:
                where = options.path or (options.lake if options.lake_only else None)
                raise NoSuchTopic(f"topic {name!r} does not exist in {where or options.connection.server}")
        return found

    def present(self) -> list[TopicExtent]:
        """Return the subscribed topics that exist. A stream may wait for the others."""
        raise NotImplementedError

    def seq_at(self, extent: TopicExtent, ts_ms: int) -> int:
        """Return the seq at which a read of all records from `ts_ms` on begins.

        This is the seq of the first record at or after that time, or head + 1 if there is none. If records from the
        front of the topic were lost, their times are unknown: then return 1, so that the gap is reported as in `diff`.
        """
        raise NotImplementedError

    def excerpt(self, span: Span) -> Excerpt | None:
        """Return the part of a data directory that an executor needs to read the span, or None for other sources."""
        return None


def client_for(connection: ConnectionOptions) -> Client:
    """Return a new client for the server. The caller closes it."""
    return Client(
        connection.server, token=connection.read_token(), timeout_s=connection.timeout_ms / 1000,
        retries=connection.retries,
    )  # fmt: skip


def catalog_of(options: ReadOptions) -> Catalog:
    return ServerCatalog(options) if options.path is None else DirectoryCatalog(options, options.path)


def state_of(client: Client, topic: str, *, epoch: int | None = None) -> State | None:
    """Return the state of a topic, or None if it does not exist, or has another epoch than `epoch`."""
    try:
        state = client.topic(topic)
    except TopicsError as error:
        if error.code is not Code.TOPIC_NOT_FOUND:
            raise
        return None
    return state if epoch in (None, state.epoch) else None


FEW = 16  # topics that are looked for on one page of a list only
LISTED_FOR_ONE = 1000  # rows of a list that are read before a topic is asked for by its name; a page has as many


def states_of(client: Client, names: Set[str]) -> dict[str, State | Summary]:
    """Return the state of each topic that exists.

    Several topics are listed in one request, by the prefix that their names share. A list has all names that the key
    may read. Topics behind the rows that are read are asked for one by one.
    """
    found, missing = dict[str, State | Summary](), set(names)
    if len(names) > 1:
        begins = commonprefix(list(names))  # noqa: RUF071 (of characters)
        most = LISTED_FOR_ONE * (1 if len(names) <= FEW else len(names))
        rows = list(islice(client.topics(begins), most))
        found = {row.topic: row for row in rows if row.topic in names}
        missing = (names - found.keys()) & ({AUDIT} if len(rows) < most else names)  # no list has the audit topic
    return found | {name: state for name in sorted(missing) if (state := state_of(client, name)) is not None}


class ServerCatalog(Catalog):
    """The topics of a server, of a lake, or of both: then extents begin where the archive begins.

    A topic that only the lake has is read in its newest archived epoch.
    """

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._lake = None if options.lake is None else Lake(options.lake)
        self._server = options.connection.server
        self._client = client_for(options.connection)
        self._trimmed: dict[str, tuple[tuple[int, int], int]] = {}  # by topic: its start, and the last trimmed seq

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def present(self) -> list[TopicExtent]:
        """Return the subscribed topics that exist on a server or in the lake."""
        found = [] if self._options.lake_only else self._extents()
        if self._lake is None:
            return found
        snapshot = self._lake.snapshot()
        epochs = [(extent, snapshot.archived(extent.topic, extent.epoch)) for extent in found]
        live = {extent.topic for extent in found}
        extents = [self._with_archive(extent, archived) for extent, archived in epochs]
        where = self._lake.path if self._options.lake_only else self._server
        for name in snapshot.topics():
            if name not in live and self._options.wants(name) and (archived := snapshot.epochs(name)):
                files = archived[-1].files
                extent = TopicExtent(
                    server=where, topic=name, epoch=archived[-1].epoch, head=archived[-1].archived_to,
                    earliest=archived[-1].earliest, only_archived=True,
                    count=sum(file.rows for file in files), size_bytes=sum(file.bytes for file in files),
                    archived=archived[-1],
                )  # fmt: skip
                extents.append(extent)
        return extents

    def publish(self, topic: str, consumer: str, *, epoch: int, seq: int) -> None:
        """Store the progress of a stream as a named consumer. A refusal is logged: it must not stop the stream."""
        try:
            self._client.put_consumer(topic, consumer, seq=seq, epoch=epoch)
        except TopicsError as error:
            log.warning("progress_not_published", topic=topic, consumer=consumer, reason=error.message)

    def _with_archive(self, extent: TopicExtent, archived: ArchivedEpoch | None) -> TopicExtent:
        """Return the extent of lake and server together. It includes trimmed seqs that this lake lacks, as gaps."""
        known, trimmed_to = archived or ArchivedEpoch(topic=extent.topic, epoch=extent.epoch), 0
        if known.uncovered(1, extent.earliest - 1):
            start = (extent.epoch, extent.earliest)
            known_for, trimmed_to = self._trimmed.get(extent.topic, (None, 0))
            if known_for != start:  # a trim moves the first record, so the cached answer is stale
                trimmed_to = self._trimmed_seq(extent)
                self._trimmed[extent.topic] = start, trimmed_to
        lacking = [low for low, _ in known.uncovered(1, trimmed_to)]
        first = min([extent.earliest, *lacking, *(file.first for file in known.files[:1])])
        older_bytes = sum(file.bytes for file in known.files_in(first, extent.earliest - 1))
        return structs.replace(
            extent, earliest=first, size_bytes=extent.size_bytes + older_bytes, archived=archived,
            live_from=extent.earliest,
        )  # fmt: skip

    def _trimmed_seq(self, extent: TopicExtent) -> int:
        """Ask the server for the last trimmed seq of this epoch; 0 if there is none or the topic was deleted."""
        state = state_of(self._client, extent.topic, epoch=extent.epoch)
        return 0 if state is None else state.trimmed_seq or 0

    def watch(self, present: Iterable[str]) -> TopicsWatch:
        """Return a watch of the subscription. A missing topic is watched as a prefix, to notice that it is created."""
        options, there = self._options, set(present)
        if options.topics:
            return TopicsWatch(self._client, (name if name in there else f"{name}*" for name in options.topics))
        return TopicsWatch(self._client, [f"{options.prefix or ''}*"])

    def _extents(self) -> list[TopicExtent]:
        options, client = self._options, self._client
        rows: list[tuple[str, State | Summary]]
        if options.topics:
            rows = sorted(states_of(client, set(options.topics)).items())
        else:
            rows = [(row.topic, row) for row in client.topics(options.prefix or "") if options.wants(row.topic)]
        return [
            TopicExtent(
                server=self._server, topic=name, epoch=row.epoch, earliest=row.earliest_seq, head=row.head_seq,
                count=row.count, size_bytes=row.bytes,
            )
            for name, row in rows
        ]  # fmt: skip

    def seq_at(self, extent: TopicExtent, ts_ms: int) -> int:
        try:
            if not self._options.lake_only:
                return self._seq_at(extent, ts_ms)
        except TopicsError as error:
            if self._lake is None or error.code is not Code.TOPIC_NOT_FOUND:
                raise
        return self._first_archived(extent, ts_ms)[0]

    def _first_archived(self, extent: TopicExtent, ts_ms: int) -> tuple[int, int]:
        """Return the archived seq at which a read from `ts_ms` on begins, 1 if there is none, and the last trimmed."""
        archived = None if self._lake is None else self._lake.snapshot().archived(extent.topic, extent.epoch)
        if self._lake is None or archived is None:
            return 1, 0
        return heal.first_at(self._lake, archived, ts_ms), archived.trimmed_to

    def _seq_at(self, extent: TopicExtent, ts_ms: int) -> int:
        client, from_seq = self._client, 0
        while True:
            page = client.diff(extent.topic, from_seq=from_seq, from_ts=ts_ms, limit=1, epoch=extent.epoch)
            if self._lake is not None and from_seq == 0:
                floor = 0 if page.tombstone is None else page.tombstone.gap_to
                begin, trimmed_to = self._first_archived(extent, ts_ms)
                if begin <= max(floor, self._trimmed_seq(extent), trimmed_to):
                    return begin
            elif page.tombstone is not None:
                return 1
            if page.records:
                return page.records[0].seq
            if page.caught_up:
                return page.head_seq + 1
            from_seq = page.next_from_seq


class DirectoryCatalog(Catalog):
    """The topics of a data directory or a backup."""

    def __init__(self, options: ReadOptions, path: str) -> None:
        super().__init__(options)
        self._path = path
        self._directory = directory.Directory(Fs(), path, cold_dir=options.cold_path, now_ms=SystemClock().now_ms())

    def __exit__(self, *error: object) -> None:
        self._directory.__exit__(None, None, None)

    def present(self) -> list[TopicExtent]:
        topics = self._directory.topics
        return [
            TopicExtent(
                server=self._path, topic=name, epoch=topic.epoch, earliest=topic.earliest, head=topic.head,
                count=topic.count, size_bytes=topic.bytes, latest=directory.known_end(topic),
            )
            for name, topic in sorted(topics.items())
            if self._options.wants(name)
        ]  # fmt: skip

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


# --- wait until one of many topics changes, with a watch instead of repeated requests

MAX_NAMES = 256  # the default limit of a server for one watch
HEARTBEAT_MS = 1000  # a thread notices between two heartbeats that its watch is closed
SILENCE_S = 10.0  # the connection is lost if there was no heartbeat for so long
LOOK_AGAIN_S = 10.0  # for changes that a watch does not report, such as those of a lake
POLL_S = 0.1  # if a server refuses the watch
NEWS = ("record", "tombstone", "topic-deleted", "error")


class TopicsWatch:
    """Reports once that a topic has changed since the watch was created. A change before that is not reported."""

    def __init__(self, client: Client, names: Iterable[str]) -> None:
        """`names` may end in `*`, for all present and future topics with a prefix."""
        listed = sorted(names)
        if len(listed) > MAX_NAMES:
            listed = [f"{commonprefix(listed)}*"]  # noqa: RUF071 (a prefix of characters is wanted)
        self._changed = threading.Event()
        self._is_closed = False
        self._until_s = time.monotonic() + LOOK_AGAIN_S
        body = {
            "topics": {name: {"tail": True} for name in listed},
            "include_data": False,
            "heartbeat_ms": HEARTBEAT_MS,
        }
        try:
            path = with_query("/v0/watch", lenient=True)
            session = client.call("POST", path, WatchCreated, body=body)
        except TopicsError:  # a key that may not watch a prefix, or too many sessions
            self._until_s = 0.0
        else:
            threading.Thread(target=self._follow, args=(client, session.stream_url), daemon=True).start()

    def wait(self, ms: int) -> bool:
        """Return whether a topic may have changed, after `ms` at the latest."""
        if not self._until_s:
            time.sleep(POLL_S)
        return self._changed.wait(ms / 1000 if self._until_s else 0) or time.monotonic() > self._until_s

    def close(self) -> None:
        self._is_closed = True

    def _follow(self, client: Client, path: str) -> None:
        parser = EventParser()
        try:
            # A connection of its own, so that the client stays free for the thread that owns it.
            with client.opened(Request("GET", path, accept=EVENT_STREAM), timeout_s=SILENCE_S) as response:
                while not self._is_closed and (chunk := response.read1()):
                    if any(event.name in NEWS for event in parser.feed(chunk)):
                        break
        except TopicsError:
            pass  # the reader asks the server again, and reports its errors
        finally:
            self._changed.set()
