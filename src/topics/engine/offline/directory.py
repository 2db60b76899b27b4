"""Topics of a data directory or a backup, read without a server and without changing anything.

One process opens the directory as a server would, through the same `recovery`, and knows then what a start would make
of it. Others that read parts of it are given an `Excerpt`: the files of a range, what those files do not know yet, and
the watermarks of the topic. From that the same `Topic` arises again, and the same `read` answers from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from msgspec import Struct, structs

from topics.engine import retention
from topics.engine.durable.recovery import recover
from topics.engine.read.read import Query, Reading, Tombstone, expire_and_read
from topics.engine.read.scan import Scan
from topics.engine.state import snapshot_parts
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.storage.datadir import DataDir
from topics.storage.fs import Fs, ReadOnlyFs
from topics.storage.segments import record_run as runs
from topics.storage.segments.cold import waiting
from topics.storage.segments.record_run import Run
from topics.storage.segments.sealed import SealedSegment
from topics.storage.segments.segment import MemorySegment, Segment
from topics.storage.segments.segment_caches import SegmentCaches
from topics.storage.snapshot import SegmentRef, TopicSnapshot

SLICE_BYTES = 2 << 20  # large slices: no other client waits for this process


class Excerpt(Struct, kw_only=True):
    """What another process needs to read a range of a topic. `pieces` are segment files, or bytes that no file has."""

    root: str
    topic: TopicSnapshot  # without its records
    pieces: list[tuple[str, SegmentRef] | bytes]
    now_ms: int


class Directory:
    """A data directory that is open for reading. A server and a reader exclude each other."""

    def __init__(self, fs: Fs, root: str, *, cold_dir: str | None = None, now_ms: int) -> None:
        self.now_ms = now_ms
        self._dir = DataDir(ReadOnlyFs(fs), root)
        self._dir.inspect()
        try:
            self._dir.check_format()
            state = State()
            recover(self._dir, state, SegmentCaches(self._dir.fs), cold_dir=cold_dir, progress=lambda share: None)
        except BaseException:
            self._dir.close()
            raise
        self.topics = state.by_name
        for topic in self.topics.values():
            if topic.config.ttl_ms:
                retention.expire(topic, now_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._dir.close()

    def read(self, name: str, query: Query) -> Reading:
        """Return the state of the topic that `diff` would report now."""
        topic = self.topics[name]
        return _reading(topic, query, self.now_ms)[1]

    def excerpt(self, name: str, start: int, stop: int) -> Excerpt:
        """Return the plan to read the seqs [start, stop) of a topic."""
        topic = self.topics[name]
        outline = snapshot_parts.outline(topic)
        outline.config = structs.replace(topic.config, ttl_ms=0)  # the directory has expired them when it was opened
        outline.losses = tuple(run for run in outline.losses if run[1] >= start)
        pieces = [_piece(topic, *span) for span in topic.spans(start, stop)]
        return Excerpt(root=self._dir.root, topic=outline, pieces=pieces, now_ms=self.now_ms)


def scan(fs: Fs, excerpt: Excerpt, query: Query, *, upto_seq: int) -> Iterator[Run | Tombstone]:
    """Yield runs of records, and losses in their order. Raise `DataDirError` if a server has the directory open."""
    datadir = DataDir(ReadOnlyFs(fs), excerpt.root)
    datadir.inspect()
    try:
        topic = _topic(datadir, excerpt)
        bulk = Scan(query, upto_seq=upto_seq, slice_bytes=SLICE_BYTES)
        # Bound: each step moves the cursor of the scan, or is its last.
        while True:
            step = bulk.step(lambda asked: _reading(topic, asked, excerpt.now_ms))
            if step.tombstone is not None:
                yield step.tombstone
            for piece in step.slices:
                yield piece.run(all_names=True)
            if step.done:
                return
    finally:
        datadir.close()


def known_end(topic: Topic) -> int:
    """Return the seq after the last one that this directory has.

    A server that starts on a copy reserves the seqs that the original may have assigned since, and reports them as lost
    to readers. A reader of a backup reads only what the backup holds, so they are left out here.
    """
    runs_ = topic.losses.runs
    if runs_ and runs_[-1][1] == topic.head and runs_[-1][2] == "restart":
        return runs_[-1][0]
    return topic.head + 1


def _reading(topic: Topic, query: Query, now_ms: int) -> tuple[Topic, Reading]:
    return topic, waiting(lambda: expire_and_read(topic, query, now_ms))


def _piece(topic: Topic, segment: Segment, low: int, high: int) -> tuple[str, SegmentRef] | bytes:
    if isinstance(segment, SealedSegment):
        return segment.path, segment.snapshot_ref()
    assert isinstance(segment, MemorySegment)
    cut = runs.Slice.of(segment.columns, [(low, high)], [segment.read(low, high)]).run()
    marks = segment.marks
    cut.marks = None if marks is None else bytes(marks[low:high])
    return b"".join(runs.encode(cut, topic_id=topic.topic_id, epoch=topic.epoch))


def _topic(datadir: DataDir, excerpt: Excerpt) -> Topic:
    caches, segments = SegmentCaches(datadir.fs), list[Segment]()
    for piece in excerpt.pieces:
        if isinstance(piece, bytes):
            segments.append(MemorySegment.from_bytes(piece, path=excerpt.root, opened_ms=0))
        else:
            segments.append(SealedSegment.of(caches, *piece))
    return snapshot_parts.restore(State(), excerpt.topic, sealed=segments, tail=None)
