"""What a data directory holds: the topics and records that a server would serve from it, log included."""

from __future__ import annotations

from msgspec import Struct

from topics.engine.durable import recovery
from topics.engine.state.topics import State
from topics.errors import Corrupt
from topics.storage.datadir import DataDir
from topics.storage.fs import Fs
from topics.storage.readonly import ReadOnlyFs
from topics.storage.segments.segment_caches import SegmentCaches

COLUMNS_BYTES = 64 << 20


class Coverage(Struct, frozen=True):
    """Topics and their readable records."""

    topics: int
    records: int


def coverage(fs: Fs, root: str) -> Coverage | None:
    """Return what a start on the directory would find, without changing it. None if it cannot start.

    Loads the snapshot and replays the log, so it takes as long as a start.
    """
    datadir = DataDir(ReadOnlyFs(fs), root)
    datadir.inspect()
    state = State()
    try:
        caches = SegmentCaches(datadir.fs, columns_bytes=COLUMNS_BYTES)
        recovery.recover(datadir, state, caches, cold_dir=None, progress=lambda share: None)
    except Corrupt:
        return None
    finally:
        datadir.close()
    return Coverage(len(state.by_name), sum(topic.count for topic in state.by_name.values()))
