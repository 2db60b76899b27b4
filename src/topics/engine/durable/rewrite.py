"""Rewrite sealed segments without the bytes of removed records, so that their space returns.

A rewritten segment has the same seqs and the same marks; removed records have no bytes, names or extras any more. It is
a new file with its own name. The topic has it as soon as it is written, and the next snapshot is the first to name it
and to let the old file go: until then, a start finds the old one. Only records that are removed in the state of that
snapshot are left out, so a replay never needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from topics import logs
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.errors import Corrupt
from topics.storage import snapshot as snap
from topics.storage.datadir import DataDir
from topics.storage.fs import Fs, read_whole
from topics.storage.log.wal import Wal
from topics.storage.segments import codec, record_run
from topics.storage.segments.marks import put_marks
from topics.storage.segments.sealed import SealedSegment
from topics.storage.segments.segment_caches import SegmentCaches
from topics.storage.worker import Worker

log = logs.Log("store")


class Host(Protocol):
    """What a rewrite needs of the store."""

    state: State
    dir: DataDir
    fs: Fs
    wal: Wal
    caches: SegmentCaches
    worker: Worker
    cold_dir: str | None
    is_snapshotting: bool
    follows: bool

    def submit(self, work: Callable[[], None], finished: Callable[[Exception | None], None]) -> None: ...


class Rewriter:
    """Rewrites one segment after another while no snapshot is in progress. Each checkpoint finds what is worth it."""

    def __init__(self, store: Host, *, percent: int, min_bytes: int) -> None:
        """Rewrite from `percent` of removed bytes on (0: never), if that frees `min_bytes`."""
        self.segments_total = self.freed_bytes_total = 0
        self.has_replaced = False  # whether files wait for the next snapshot to be removed
        self._store = store
        self._percent = percent
        self._min_bytes = min_bytes
        self._waiting: dict[tuple[int, int], int] = {}  # topic id and first seq: bytes that it would free
        self._running = False

    @property
    def waiting_bytes(self) -> int:
        """The bytes that the rewrites which are due will free."""
        return sum(self._waiting.values())

    def forget(self) -> None:
        """Begin a new list: a snapshot is taken."""
        self._waiting.clear()
        self.has_replaced = False

    def look(self, topic: snap.TopicSnapshot) -> None:
        """Note the segments of a topic that are worth a rewrite."""
        for ref in topic.segments if self._percent else ():
            data_bytes, count = codec.Footer(*ref.footer).data_bytes, ref.count
            # What lies before the first live record of the topic goes with its segment.
            ahead = max(topic.earliest - ref.first, 0)
            rest_bytes = data_bytes * (count - ahead) // count
            freed_bytes = data_bytes - ref.live_bytes
            is_wasteful = (rest_bytes - ref.live_bytes) * 100 >= self._percent * rest_bytes
            if ref.live and is_wasteful and freed_bytes >= self._min_bytes:
                self._waiting[topic.topic_id, ref.first] = freed_bytes

    def next(self) -> None:
        """Begin the next rewrite, unless one is in progress."""
        store = self._store
        # Bound: the list.
        while self._waiting and not self._running and not store.is_snapshotting and not store.follows:
            (topic_id, first), freed_bytes = next(iter(self._waiting.items()))
            topic = store.state.by_id.get(topic_id)
            segment = None if topic is None else next((one for one in topic.segments if one.first == first), None)
            if topic is not None and isinstance(segment, SealedSegment) and store.wal.read_only is None:
                if store.fs.free_bytes(store.dir.root) < 2 * segment.footer.file_bytes + store.wal.rotation_bytes:
                    return  # the next checkpoint looks again
                self._rewrite(topic, segment, freed_bytes)
            else:
                del self._waiting[topic_id, first]

    def _rewrite(self, topic: Topic, segment: SealedSegment, freed_bytes: int) -> None:
        store, old, unsaved = self._store, segment.path, segment.unsaved_marks()
        ahead = max(topic.earliest - segment.first, 0)
        cold_dir = store.cold_dir if segment.cold else None
        path = store.dir.segment_path(topic.topic_id, segment.first, cold_dir, generation=segment.footer.generation + 1)
        made: list[tuple[codec.Footer, bytearray]] = []

        def work() -> None:
            if topic.gone or segment.gone:
                return
            footer, columns, rendered, flags = codec.decode(read_whole(store.fs, old), path=old)
            marks = codec.decode_flags(flags) or bytearray(footer.count)
            put_marks(marks, unsaved)
            keep = np.frombuffer(marks, np.uint8) == 0
            keep[:ahead] = False
            store.worker.rest()
            columns, data = record_run.without(columns, rendered, keep)
            parts = codec.encode(
                columns, data, marks, topic_id=footer.topic_id, epoch=footer.epoch,
                generation=footer.generation + 1, worker=store.worker,
            )  # fmt: skip
            store.dir.write_file(path, parts, store.worker)
            size_bytes = sum(map(len, parts))
            made.append((codec.decode_footer(bytes(parts[-1]), path=path, file_bytes=size_bytes), marks))

        def finished(error: Exception | None) -> None:
            self._running = False
            self._waiting.pop((topic.topic_id, segment.first), None)
            if made:
                self._replace(topic, segment, path, *made[0], freed_bytes)
            elif isinstance(error, Corrupt):
                log.warning("rewrite_skipped", topic=topic.name, file=old, reason=str(error))  # a reader reports it
            elif error is not None and not segment.gone:
                log.warning("rewrite_failed", topic=topic.name, file=old, reason=str(error))
                self._waiting.clear()
            self.next()

        self._running = True
        store.submit(work, finished)

    def _replace(
        self, topic: Topic, segment: SealedSegment, path: str, footer: codec.Footer, written: bytearray,
        freed_bytes: int,
    ) -> None:  # fmt: skip
        """Let the topic have the new file, with the marks that were made meanwhile, unless the segment is gone."""
        caches, segments = self._store.caches, topic.segments
        at = next((at for at, known in enumerate(segments) if known is segment), None)
        if at is None or topic.gone:
            caches.retired.append(path)
            return
        segments[at] = segment.rewritten(path, footer, written)
        segment.release()
        self.has_replaced = True
        self.segments_total += 1
        self.freed_bytes_total += freed_bytes
        log.info("segment_rewritten", topic=topic.name, first_seq=segment.first, freed_bytes=freed_bytes)
