"""A state that follows the log of another server: a recovery that has no end.

Bytes of the log are replayed as they arrive, through the functions of `recovery`. Routers move only as far as the log
says, and leases and records expire by the time of the log: so the state is that of the writer at the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from topics.clock import Clock
from topics.engine import retention
from topics.engine.durable import entry_kinds
from topics.engine.durable.recovery import Recovery
from topics.engine.durable.snapshot_load import load_topics
from topics.engine.routers import replay
from topics.engine.routers.graph import table_of
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.steps import Steps, run_all
from topics.errors import Corrupt, UnknownFormat
from topics.model.nesting import limit_restored
from topics.storage.datadir import DataDir
from topics.storage.fs import read_whole
from topics.storage.log import entry as entries
from topics.storage.log import walfile
from topics.storage.log.log_files import LogFile
from topics.storage.segments.segment_caches import SegmentCaches

PER_STEP = 16  # entries: about 0.1 ms


class FollowedClock:
    """The time of the state, for an engine: that of the log, by the clock of the writer."""

    def __init__(self, clock: Clock) -> None:
        self.monotonic_ns = clock.monotonic_ns
        self.as_of_ms = 0

    def now_ms(self) -> int:
        return self.as_of_ms


class Follower:
    """Applies the log of another server to a state."""

    def __init__(self, datadir: DataDir, state: State, caches: SegmentCaches, *, cold_dir: str | None) -> None:
        """Load the snapshot of the directory, and replay its log. Blocks. Raise `Corrupt` or `DataDirError`."""
        self._dir = datadir
        self._state = state
        self._damage: list[str] = []
        self.grew: Callable[[Topic], None] = lambda topic: None  # called with each topic that may have grown, or ended
        self.is_incomplete = False  # whether a topic lacks what it held in memory alone: the next checkpoint has it
        self.routers = replay.Following(state)
        try:
            with limit_restored():
                snapshot = load_topics(datadir, state, caches, cold_dir=cold_dir, damage=self._damage)
                self._recovery = Recovery(
                    datadir, state, self.routers, snapshot, self._damage, lambda share: None, defer_memory=False
                )
                self._recovery.replay_waiting()
        except UnknownFormat as error:
            raise datadir.unknown(str(error)) from error
        self.snapshot_number = snapshot.wal_number
        for number in datadir.wal_numbers():
            if number >= snapshot.wal_number:
                run_all(self.apply(number, 0, read_whole(datadir.fs, datadir.wal_path(number))))
        self.routers.is_replaying = False

    def apply(self, number: int, at: int, data: bytes) -> Steps[None]:
        """Replay bytes of log file `number` that begin at offset `at`. Raise `Corrupt` if they are no whole frames."""
        path = self._dir.wal_path(number)
        file = LogFile(number, path, data)
        frames = walfile.scan(data, start=0 if at else walfile.HEADER_BYTES)
        heads = self._heads()
        # Bound: the frames.
        while self._apply_some(frames, file, at):
            yield None
        for topic, head in heads.items():
            if topic.head != head:
                self.grew(topic)

    def _apply_some(self, frames: Iterator[walfile.FoundFrame | walfile.Damage], file: LogFile, at: int) -> bool:
        """Replay a few entries. Return whether there may be more."""
        changed: dict[Topic, None] = {}
        done = 0
        self.routers.is_replaying = True
        try:
            with limit_restored():
                for item in frames:
                    if not isinstance(item, walfile.FoundFrame):
                        raise Corrupt(file.path, at + item.at, "the replica has bytes of the log that are no frame")
                    self._note(item, changed)
                    self._recovery.replay(item, file)
                    done += 1
                    if item.frame.head.kind == entries.CONFIGURE:
                        self.is_incomplete |= any(topic.needs_snapshot for topic in changed)
                    if done == PER_STEP:
                        break
        finally:
            self.routers.is_replaying = False
        for topic in changed:
            self.grew(topic)
        return done == PER_STEP

    def _note(self, item: walfile.FoundFrame, changed: dict[Topic, None]) -> None:
        """Note the topics that an entry changes by itself."""
        head = item.frame.head
        ids = {head.topic_id}
        if head.kind != entries.APPEND:
            ids.update(entry_kinds.touched_by(entries.decode(item.frame, path="", at=0)) or ())
        for topic_id in ids:
            if (topic := self._state.by_id.get(topic_id)) is not None:
                changed[topic] = None

    def _heads(self) -> dict[Topic, int]:
        """Return the heads of all topics that routers write into."""
        return {edge.dest: edge.dest.head for edge in table_of(self._state).edges()}

    def end_ephemeral(self, heads: dict[int, int]) -> None:
        """Note where ephemeral topics ended, by id: their writer has stopped in order, and the log does not say."""
        for topic_id, head in heads.items():
            topic = self._state.by_id.get(topic_id)
            if topic is not None and topic.config.durability == "ephemeral":
                retention.skip_to(topic, head + 1, "restart")
