"""Move the oldest sealed segments of topics that keep too much to the cold folder, and read them there from then on.

The hot file goes with the next snapshot, which is the first to know the new place.
"""

from __future__ import annotations

from itertools import accumulate

from topics import logs
from topics.engine.durable.rewrite import Host
from topics.engine.state.topic import Topic
from topics.engine.steps import Steps
from topics.storage.segments.sealed import SealedSegment

log = logs.Log("store")


class ColdMoves:
    """Finds after each snapshot what to move, and copies it on the worker."""

    def __init__(self, store: Host, *, hot_segments: int, hot_bytes: int) -> None:
        """Keep so many segments, or bytes of them, of each topic; 0 is no limit."""
        self._store = store
        self._hot_segments = hot_segments
        self._hot_bytes = hot_bytes
        self._moves: list[tuple[Topic, SealedSegment, str]] = []

    def find(self) -> Steps[None]:
        """Look for segments to move, one topic per step."""
        store, self._moves = self._store, []
        for topic in list(store.state.by_id.values()):
            hot = [one for one in topic.segments if isinstance(one, SealedSegment) and not one.cold]
            sizes = accumulate(segment.footer.file_bytes for segment in reversed(hot))
            kept = sum(size_bytes <= self._hot_bytes for size_bytes in sizes) if self._hot_bytes else len(hot)
            kept = min(kept, self._hot_segments) if self._hot_segments else kept  # the newest ones
            for segment in hot[: len(hot) - kept]:
                target = store.dir.segment_path(
                    topic.topic_id, segment.first, store.cold_dir, generation=segment.footer.generation
                )
                self._moves.append((topic, segment, target))
            yield None

    def begin(self) -> None:
        """Copy what `find` has found."""
        store, moves, self._moves = self._store, self._moves, []

        def work() -> None:
            for _, segment, target in moves:
                store.dir.copy_file(segment.path, target, store.worker)

        def finished(error: Exception | None) -> None:
            if error is not None:
                log.error("cold_move_failed", reason=str(error))
                return
            for topic, segment, target in moves:
                if any(known is segment for known in topic.segments):
                    store.caches.retired.append(segment.path)
                    store.caches.forget(segment, moved_to=target)
                    segment.cold = True
                else:
                    store.caches.retired.append(target)  # the topic dropped the segment meanwhile

        if moves:
            store.submit(work, finished)
