"""Load the snapshot of a data directory: its topics, with their sealed segments and their tails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from topics import logs
from topics.engine import retention
from topics.engine.routers.graph import table_of
from topics.engine.state import snapshot_parts
from topics.engine.state.jobs.leases import left_range
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.errors import Corrupt, DamageReport
from topics.storage import snapshot as snap
from topics.storage.data_layout import holds_topics
from topics.storage.datadir import DataDir, DataDirError
from topics.storage.fs import File, absence
from topics.storage.log.log_files import newest_snapshot
from topics.storage.segments import codec
from topics.storage.segments.sealed import SealedSegment
from topics.storage.segments.segment import MemorySegment
from topics.storage.segments.segment_caches import SegmentCaches

log = logs.Log("recovery")

PIECE_BYTES, PIECES = 256 << 10, 64


def load_topics(
    datadir: DataDir, state: State, caches: SegmentCaches, *, cold_dir: str | None, damage: list[str]
) -> snap.Snapshot:
    """Fill `state` from the newest snapshot, and return it. Add to `damage` what is wrong with its files.

    Raise `Corrupt` if there are snapshots and none is readable.
    """
    snapshot = newest_snapshot(datadir, damage, packed=True)
    if snapshot.wal_number:
        snapshot_parts.check_known(snapshot)
        state.next_topic_id, state.last_epoch = snapshot.next_topic_id, snapshot.last_epoch
        with open_tails(datadir) as read_tail:
            for topic in snap.unpack(snapshot, path=datadir.snapshot_path(snapshot.wal_number)):
                restore_topic(datadir, state, caches, topic, cold_dir, damage, read_tail)
        state.index_all()
        if snapshot_parts.ROUTERS in snapshot.extra:
            table_of(state).load(snapshot.extra[snapshot_parts.ROUTERS])
        for name, rows in snapshot_parts.named_rows(state).items():
            if name in snapshot.extra:
                rows.load(snapshot.extra[name])
    return snapshot


@contextmanager
def open_tails(datadir: DataDir) -> Iterator[Callable[[snap.TailRef], tuple[str, bytes]]]:
    """Give out what reads a tail, with the path of its file.

    Each file is opened once. The first few are read in large pieces: all topics may share one, and it has their tails
    in their order. Of a later file, only the tails are read: there are many with a few tails each. So are they after a
    piece that cannot be read: the bad sector may be in the tail of a topic that was dropped.
    """
    files: dict[int, File] = {}
    pieces: dict[int, tuple[int, bytes]] = {}  # the last one of each file, with its offset

    def read(ref: snap.TailRef) -> tuple[str, bytes]:
        if ref.tails not in files:
            files[ref.tails] = datadir.fs.open(datadir.tails_path(ref.tails))
            if len(files) <= PIECES:
                pieces[ref.tails] = 0, b""
        file = files[ref.tails]
        begin, piece = pieces.get(ref.tails, (0, b""))
        if ref.tails in pieces and not begin <= ref.offset <= begin + len(piece) - ref.size:
            with suppress(OSError):
                begin, piece = pieces[ref.tails] = ref.offset, file.pread(max(ref.size, PIECE_BYTES), ref.offset)
        at = ref.offset - begin
        if 0 <= at <= len(piece) - ref.size:
            return file.path, piece[at : at + ref.size]
        pieces.pop(ref.tails, None)
        return file.path, file.pread(ref.size, ref.offset)

    try:
        yield read
    finally:
        for file in files.values():
            file.close()


def restore_topic(
    datadir: DataDir,
    state: State,
    caches: SegmentCaches,
    found: snap.TopicSnapshot,
    cold_dir: str | None,
    damage: list[str],
    read_tail: Callable[[snap.TailRef], tuple[str, bytes]],
) -> Topic:
    if found.segments:
        _check_cold(datadir, found, cold_dir)
    sealed = [SealedSegment.of(caches, datadir.path_of(found.topic_id, ref, cold_dir), ref) for ref in found.segments]
    tail: MemorySegment | None = None
    failed: Exception | None = None
    harmless: list[str] = []
    if found.tail is not None:
        try:
            path, data = read_tail(found.tail)
            footer = codec.check(data, path=path)
            if (footer.topic_id, footer.first + footer.count) != (found.topic_id, found.head + 1):
                raise Corrupt(path, 0, "these are not the records that the snapshot names")
            opened_ms = found.tail.opened_ms
            tail = MemorySegment.from_bytes(data, path=path, opened_ms=opened_ms, harmless=harmless, footer=footer)
            for what in harmless:
                reported = f"topic {found.name}: {what}; nothing is lost"
                damage.append(DamageReport(path, found.tail.offset, reported, topic=found.name, harmless=True))
                log.warning("tail_flawed", file=path, offset=found.tail.offset, topic=found.name, what=what)
        except (Corrupt, FileNotFoundError) as error:  # other disk errors may be temporary: nothing is lost
            failed, path = error, datadir.tails_path(found.tail.tails)
            what, at = (error.what, error.offset) if isinstance(error, Corrupt) else (absence(error), 0)
            seqs = found.tail_first, found.head
            damage.append(DamageReport(path, found.tail.offset + at, what, topic=found.name, seqs=seqs))
    topic = snapshot_parts.restore(state, found, sealed=sealed, tail=tail)
    if failed is not None and found.tail is not None:
        _lose_tail(topic, found, found.tail)
    elif tail is not None and found.tail is not None and not harmless:
        # The next snapshot need not write it again.
        topic.saved_tail = snapshot_parts.SavedTail(found.tail, tail.first, tail.count)
    return topic


def _check_cold(datadir: DataDir, found: snap.TopicSnapshot, cold_dir: str | None) -> None:
    """Raise `DataDirError` if the folder of the cold segments is not mounted: then nothing is lost."""
    if not any(ref.cold for ref in found.segments):
        return
    if cold_dir is None:
        raise DataDirError(f"topic {found.name} has segments in a cold folder; set TOPICS_COLD_DIR to where they are")
    if not holds_topics(datadir.fs, cold_dir):
        raise DataDirError(
            f"the cold folder {cold_dir} has no segments, and topic {found.name} has some there; is its disk mounted?"
        )


def _lose_tail(topic: Topic, found: snap.TopicSnapshot, tail: snap.TailRef) -> None:
    """Count all records after the sealed segments as lost."""
    first = found.tail_first
    topic.removed(tail.live, tail.live_bytes)
    if topic.queue is not None:
        left_range(topic.queue, first, topic.head + 1)
    if tail.live:
        topic.own_losses().add(first, topic.head, "corrupt")
    log.error("tail_damaged", topic=topic.name, first_seq=first, last_seq=topic.head)
    retention.advance(topic)
