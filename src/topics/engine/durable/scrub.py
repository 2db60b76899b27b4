"""Scrub: compare every stored checksum at a low rate, so that damage is found before a reader meets it.

A round covers the sealed segments and the saved tails of all topics, then the snapshot and the closed log files. It
begins at a random topic, so that a server which restarts often comes to all of them, too. Reads run on the thread that
writes checkpoints and removes files, one batch at a time, and bypass the page cache where the system allows it. Nothing
is lost by what a scrub finds: records count as lost once a reader meets the damage, and `topics repair` can come first.
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from topics import logs
from topics.clock import Clock
from topics.engine.state.snapshot_parts import SavedTail
from topics.engine.state.topic import Topic
from topics.errors import DamageReport
from topics.storage import snapshot as snap
from topics.storage.check import Problem, examine_file
from topics.storage.data_layout import holds_topics
from topics.storage.fs import absence, read_whole
from topics.storage.log import walfile
from topics.storage.segments.sealed import SealedSegment
from topics.storage.worker import rested

if TYPE_CHECKING:
    from topics.engine.durable.store import Store

BATCH_BYTES = 1 << 20
TOPICS_A_TICK = 250
MAX_FOUND = 1000  # damaged places that are remembered

log = logs.Log("scrub")


class Place(NamedTuple):
    """A part of a file to check. `owner` is what the topic has while the part belongs to it."""

    topic: Topic | None
    owner: SealedSegment | SavedTail | None
    path: str
    offset: int
    size_bytes: int

    def is_current(self, snapshot_number: int) -> bool:
        """Return whether the newest snapshot, which has this number, still needs the part."""
        if isinstance(self.owner, SealedSegment):
            return not self.owner.gone and self.owner.path == self.path
        if self.topic is None:  # a snapshot, or a log file: the next snapshot replaces both
            return int(posixpath.splitext(posixpath.basename(self.path))[0]) >= snapshot_number
        return not self.topic.gone and self.topic.saved_tail is self.owner


class Scrub:
    """Checks one batch of places after another. `tick` is called often, on the thread that owns the state."""

    def __init__(self, store: Store, clock: Clock, interval_ms: int) -> None:
        self.bytes_total = self.rounds_total = 0
        self.round_ended_ms = clock.now_ms()  # or the start
        self._store = store
        self._clock = clock
        self._interval_ms = interval_ms
        self._ids: list[int] = []
        self._places: Iterator[Place] = iter(())
        self._round_bytes = self._last_round_bytes = 0
        self._due_ns = clock.monotonic_ns()
        self._running = self._begun = False
        self._found: list[tuple[Place, DamageReport]] = []

    def damage(self) -> list[DamageReport]:
        """Return the damage that was found and is still there."""
        number = self._store.snapshot_number
        self._found = [found for found in self._found if found[0].is_current(number)]
        return [report for _, report in self._found]

    def tick(self) -> None:
        """Begin the next batch if it is due."""
        if not self._interval_ms or self._running or self._clock.monotonic_ns() < self._due_ns:
            return
        batch, size_bytes, looked = list[Place](), 0, 0
        # Bound: the topics of one tick; a batch with enough bytes ends before.
        while size_bytes < BATCH_BYTES and looked < TOPICS_A_TICK:
            place = next(self._places, None)
            if place is not None:
                batch.append(place)
                size_bytes += place.size_bytes
            elif self._ids:
                looked += 1
                self._places = self._places_of(self._store.state.by_id.get(self._ids.pop()))
            else:
                break
        ends = not self._ids and size_bytes < BATCH_BYTES and looked < TOPICS_A_TICK
        if ends:
            batch += self._rest_of_round()
        if batch:
            self._check(batch, size_bytes)
        if ends:
            self._begin_round()

    def _begin_round(self) -> None:
        """Note the end of a round, if there was one, and list the topics of the next."""
        if self._begun:
            self.rounds_total += 1
            self.round_ended_ms = self._clock.now_ms()
        self._begun = True
        self._last_round_bytes, self._round_bytes = self._round_bytes, 0
        ids = list(self._store.state.by_id)
        at = random.randrange(len(ids)) if ids else 0
        self._ids = ids[at:] + ids[:at]
        # Without anything to read, the next look comes after a hundredth of the interval.
        self._wait(self._interval_ms // 100)

    def _wait(self, delay_ms: int) -> None:
        now_ns = self._clock.monotonic_ns()
        self._due_ns = max(self._due_ns, now_ns) + delay_ms * 1_000_000

    def _places_of(self, topic: Topic | None) -> Iterator[Place]:
        if topic is None:
            return
        for segment in list(topic.segments):
            if isinstance(segment, SealedSegment) and segment.live:
                yield Place(topic, segment, segment.path, 0, segment.footer.file_bytes)
        saved: SavedTail | None = topic.saved_tail
        if saved is not None:
            path = self._store.dir.tails_path(saved.ref.tails)
            yield Place(topic, saved, path, saved.ref.offset, saved.ref.size)

    def _rest_of_round(self) -> list[Place]:
        """Return the places that belong to no topic: the snapshot, and log files that do not grow."""
        store = self._store
        paths = [store.dir.wal_path(number) for number in store.dir.wal_numbers() if number < store.wal.number]
        if store.snapshot_number:
            paths.append(store.dir.snapshot_path(store.snapshot_number))
        return [Place(None, None, path, 0, 0) for path in paths]

    def _check(self, batch: list[Place], size_bytes: int) -> None:
        results: list[tuple[Place, list[Problem]]] = []

        def work() -> None:
            for place in batch:
                results.append((place, self._problems(place)))

        def finished(error: Exception | None) -> None:
            self._running = False
            self.bytes_total += size_bytes
            self._round_bytes += size_bytes
            all_bytes = max(self._last_round_bytes, self._store.state.totals.bytes, size_bytes, 1)
            self._wait(self._interval_ms * size_bytes // all_bytes)
            if error is not None:
                log.error("scrub_failed", reason=str(error))
            for place, problems in results:
                self._note(place, problems)

        self._running = True
        self._store.submit(work, finished)

    def _note(self, place: Place, problems: list[Problem]) -> None:
        """Report new damage of a place, and forget what was repaired. Skip a place that was replaced meanwhile."""
        if not place.is_current(self._store.snapshot_number):
            return
        topic, at, owner = place.topic, (place.path, place.offset), place.owner
        name, earliest = ("", 1) if topic is None else (topic.name, topic.earliest)
        first = 0 if owner is None else owner.first
        reports = [one.report(place.path, name, first, earliest=earliest, offset=place.offset) for one in problems]
        was = {report.offset for other, report in self._found if (other.path, other.offset) == at}
        self._found = [found for found in self._found if (found[0].path, found[0].offset) != at]
        for report in reports:
            if len(self._found) >= MAX_FOUND:
                return
            self._found.append((place, report))
            if report.offset not in was:
                first_seq, last_seq = report.seqs or (1, 0)
                log.error(
                    "damage_found", topic=name, file=report.path, offset=report.offset, what=report.what,
                    first_seq=first_seq, last_seq=last_seq,
                    hint="stop the server and run `topics repair DIR --from BACKUP`, before readers need these records",
                )  # fmt: skip

    # --- on the worker

    def _problems(self, place: Place) -> list[Problem]:
        fs, path, owner = self._store.fs, place.path, place.owner
        if owner is not None:
            sealed = owner if isinstance(owner, SealedSegment) else None
            known, part = (None, (place.offset, place.size_bytes)) if sealed is None else (sealed.footer, None)
            problems = examine_file(fs, path, known, part=part, stored=True, taken=self._rest).problems
            cold = sealed is not None and sealed.cold and bool(problems) and not fs.exists(path)
            unmounted = cold and not holds_topics(fs, posixpath.dirname(posixpath.dirname(path)))
            return [] if unmounted else problems
        try:
            if path.endswith(".snap"):
                bad, what = self._damaged_copies(path), "one of the two copies of a snapshot is damaged"
                return [Problem(at, what) for at in bad]
            items = rested(self._store.worker, walfile.scan(read_whole(fs, path)))
            damaged = [item for item in items if isinstance(item, walfile.Damage) and not item.torn]
            return [Problem(item.at, f"{item.end - item.at} damaged bytes in the log") for item in damaged]
        except FileNotFoundError:
            return []  # the last checkpoint has removed it
        except OSError as error:
            return [Problem(0, absence(error))]

    def _damaged_copies(self, path: str) -> list[int]:
        """Return the copies of a snapshot that are damaged, without holding one in memory."""
        file = self._store.fs.open(path)
        try:

            def read(size: int, at: int) -> bytes:
                self._rest()
                return file.pread_stored(size, at)

            return snap.damaged_copies(read, file.size())
        finally:
            file.close()

    def _rest(self, at: int = 0, data: bytes = b"") -> None:
        self._store.worker.rest()
