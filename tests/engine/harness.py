"""An engine under test: on a simulated clock, with segments that roll after a few records, and a log that can fail."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw

from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from topics.engine.engine import Engine
from topics.engine.read.read import Query, Reading
from topics.engine.state.topic import Topic
from topics.engine.state.topics import SegmentLimits, State
from topics.engine.steps import run_all
from topics.engine.write.commit import Log, LogRefused, Ticket
from topics.model.records import Limits, NewRecord, WriteRequest
from topics.model.topic import ConfigPatch
from topics.storage.fs import Fs
from topics.storage.log.frame import Frames, LargeFrame, parts_of
from topics.storage.segments import codec
from topics.storage.segments.cold import Cold, Hold
from topics.storage.segments.sealed import SealedSegment
from topics.storage.segments.segment import MemorySegment
from topics.storage.segments.segment_caches import SegmentCaches

T = TypeVar("T")
SMALL_SEGMENTS = SegmentLimits(max_events=4, max_bytes=300, max_age_ms=500)


class FakeLog(Log):
    """A log in memory. `write_fails` makes it refuse, `sync_fails` fail; a sync ends when the test says `finish`."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.write_fails = False
        self.sync_fails = False
        self.syncs: list[Callable[[], None]] = []
        self.holds_large = False  # whether a large write ends only when the test says `finish_large`
        self.large: tuple[list[Frames], Callable[[], None]] | None = None

    def write(self, frames: list[bytes]) -> None:
        if self.write_fails:
            raise LogRefused("no space left")
        self.frames += frames

    def write_large(self, frames: list[Frames], done: Callable[[], None]) -> None:
        if self.write_fails:
            raise LogRefused("no space left")
        self.large = frames, done
        if not self.holds_large:
            self.finish_large()

    def finish_large(self) -> None:
        if self.large is None:
            return
        (frames, done), self.large = self.large, None
        for frame in frames:
            if isinstance(frame, LargeFrame):
                frame.seal()
        self.frames += [b"".join(parts_of([frame])) for frame in frames]
        done()

    def sync(self, done: Callable[[], None]) -> None:
        self.syncs.append(done)

    def sync_now(self) -> None:
        if self.sync_fails:
            self.failed(OSError("the disk does not answer"))

    def after_sync(self, done: Callable[[], None]) -> None:
        done()

    def finish(self) -> None:
        """End the pending syncs, and those that begin because of that."""
        while self.syncs:
            done = self.syncs.pop(0)
            if self.sync_fails:
                self.failed(OSError("the disk does not answer"))
            done()


def open_engine(
    clock: SimClock | None = None,
    *,
    log: Log | None = None,
    segments: SegmentLimits = SMALL_SEGMENTS,
    limits: Limits | None = None,
) -> Engine:
    return Engine(clock=clock or SimClock(), log=log, limits=limits, state=State(segments=segments))


def record(data: str = "1", *, tag: str | None = None, node: str | None = None, meta: str | None = None) -> NewRecord:
    """`data` and `meta` are JSON text."""
    return NewRecord(Raw(data.encode()), tag, node, UNSET if meta is None else Raw(meta.encode()))


def write(*records: NewRecord, **fields: Any) -> WriteRequest:
    return WriteRequest(list(records) or [record()], **fields)


def done(engine: Engine, ticket: Ticket) -> Any:
    """End the turn, then return the result of the verb, or raise its error."""
    engine.flush()
    return ticket.value()


def append(engine: Engine, name: str, *records: NewRecord, **fields: Any) -> Any:
    return done(engine, engine.append(name, write(*records, **fields)))


def put(engine: Engine, name: str, **fields: Any) -> Any:
    return done(engine, engine.put_topic(name, ConfigPatch(**fields)))


def delete(engine: Engine, name: str, **fields: Any) -> Any:
    wanted = {"before_seq": None, "match": None} | fields
    return done(engine, run_all(engine.delete_records(name, **wanted)))


def read(engine: Engine, name: str, **query: Any) -> Reading:
    """Read, and fetch from the disk what the read asks for. If there is a fast path, both must agree."""
    found = waiting(lambda: engine.read(name, Query(**query))[1])
    if query.keys() <= {"from_seq", "limit", "max_bytes"}:
        assert waiting(lambda: engine.read(name, Query(plain=True, **query))[1]) == found
    return found


def waiting(act: Callable[[], T]) -> T:
    """Run `act` as a server does: fetch what it asks for and run it again. A hundred rounds are a livelock."""
    hold = Hold()
    try:
        for _ in range(100):
            try:
                return act()
            except Cold as cold:
                hold.load(cold)
        raise AssertionError("loads again and again what it has already loaded")
    finally:
        hold.release()  # a traceback may keep the hold; the next read at the front would end where its records end


def objects(reading: Reading) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.json.decode(b"[%b]" % b"".join(reading.body()))
    return found


def seqs(reading: Reading) -> list[int]:
    return [found["$seq"] for found in objects(reading)]


class Sealer:
    """Moves closed segments into files, as a server with a data directory does."""

    def __init__(self, fs: Fs | None = None, *, columns_bytes: int = 1 << 20) -> None:
        self.fs = fs or SimDisk()
        self.caches = SegmentCaches(self.fs, columns_bytes=columns_bytes)
        self.fs.mkdir("/seg")
        self._files = 0

    def seal(self, topic: Topic) -> None:
        """Seal every closed segment of the topic that is still in memory."""
        for at, was in enumerate(topic.segments[:-1]):
            if isinstance(was, MemorySegment) and was.count:
                topic.segments[at] = self.sealed(topic, was)

    def sealed(self, topic: Topic, was: MemorySegment) -> SealedSegment:
        self._files += 1
        path = f"/seg/{self._files}"
        parts = codec.encode(was.columns, was.rendered, was.marks, topic_id=topic.topic_id, epoch=topic.epoch)
        self.fs.open(path, create=True).pwritev(parts, 0)
        return SealedSegment.adopt(self.caches, path, self._footer(path), was)

    def reopen(self, topic: Topic) -> None:
        """Save the marks and open every sealed segment again, as a restart does."""
        for at, was in enumerate(topic.segments):
            if isinstance(was, SealedSegment):
                if unsaved := was.unsaved_marks():
                    was.save_marks(unsaved)()
                self.caches.drop(was)
                topic.segments[at] = SealedSegment(
                    self.caches, was.path, self._footer(was.path), live=was.live, live_bytes=was.live_bytes
                )

    def _footer(self, path: str) -> codec.Footer:
        size = self.fs.size(path)
        tail = self.fs.open(path).pread(codec.FOOTER_BYTES, size - codec.FOOTER_BYTES)
        return codec.decode_footer(tail, path=path, file_bytes=size)
