"""Verify a whole data directory without a server: every checksum, every invariant, and the account of every seq.

Nothing in the directory is changed. What a start would make of it is found out by doing just that, through the same
`recovery.recover` a server uses, on a file system that refuses every change; what reading all of it would lose after
that is applied with the same functions that a server's readers end in.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from topics.engine import retention
from topics.engine.durable import recovery
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.errors import Corrupt, DamageReport, UnknownFormat
from topics.storage import snapshot as snap
from topics.storage.check import Problem, examine_file
from topics.storage.datadir import FILES, DataDir, DataDirError, UnknownVersion
from topics.storage.fs import Fs, ReadOnlyFs, absence, next_step
from topics.storage.log.log_files import newest_snapshot
from topics.storage.segments import codec
from topics.storage.segments.columns import runs
from topics.storage.segments.marks import LOST, put_marks
from topics.storage.segments.sealed import SealedSegment
from topics.storage.segments.segment import Damaged
from topics.storage.segments.segment_caches import SegmentCaches

RESTORE = (
    "if these records matter, restore them from a backup; "
    "a server started on it serves the rest and reports the gap to readers"
)
RESTORE_ALL = "restore the directory from a backup"
HARMLESS = "nothing is lost as long as the rest is whole: see to the disk, and take a backup to another one"
REPORT = "the files contradict each other: keep a copy of the directory, report this, and restore from a backup"

Span = tuple[int, int]  # seqs, both ends inclusive
Progress = Callable[[int, int], None]  # bytes read, bytes in all


class Finding(Struct, kw_only=True):
    """One damage: its position, the seqs that are lost by it (if any), and the next step."""

    file: str
    offset: int
    what: str
    next: str
    topic: str | None = None
    first_seq: int | None = None
    last_seq: int | None = None


class SeqAccount(Struct, kw_only=True):
    """Every seq from 1 to the head is in one of `live`, `deleted` and `lost`.

    `skipped` seqs after the head are not in the files; a start does not assign them.
    """

    topic: str
    topic_id: int
    durability: str
    head_seq: int
    earliest_seq: int
    live: int
    bytes: int
    deleted: int
    lost: dict[str, int]  # by reason
    skipped: int = 0


class Covered(Struct):
    """The seqs from `earliest` on, as the segments have them."""

    live: list[Span] = []
    lost: list[Span] = []  # within a segment
    missing: list[Span] = []  # in no segment
    live_records: int = 0
    live_bytes: int = 0
    deleted_records: int = 0
    lost_records: int = 0


class Report(Struct, kw_only=True):
    """The result. `notes` are facts that are no damage."""

    directory: str
    clean: bool = True
    snapshot: int | None = None
    files: int = 0
    bytes: int = 0
    log_files: int = 0
    log_entries: int = 0
    damage: list[Finding] = []
    notes: list[str] = []
    topics: list[SeqAccount] = []


def verify(fs: Fs, root: str, *, cold_dir: str | None = None, progress: Progress = lambda done, total: None) -> Report:
    """Verify the directory. Block until done. Raise `DataDirError` if it is missing, foreign, or held by a server."""
    datadir = DataDir(ReadOnlyFs(fs), root)
    datadir.inspect()
    try:
        return _Verifier(datadir, cold_dir, progress).run()
    except UnknownFormat as error:
        raise datadir.unknown(str(error)) from error
    finally:
        datadir.close()


class _Verifier:
    def __init__(self, datadir: DataDir, cold_dir: str | None, progress: Progress) -> None:
        self.dir = datadir
        self.fs = datadir.fs
        self.cold_dir = cold_dir
        self.report = Report(directory=datadir.root)
        self._progress = progress
        self._done = self._total = 0
        self._is_copy = False
        self._lacks_cold = False  # segments are in a cold folder that was not named
        self._damage: list[str] = []  # what a start would report
        self._named: set[str] = set()  # files that the snapshot or the log needs
        self._problems: dict[tuple[int, int], list[Problem]] = {}  # of sealed segments, by topic and first seq

    def run(self) -> Report:
        report = self.report
        try:
            self.dir.check_format()
        except UnknownVersion:
            raise
        except DataDirError as error:
            self._found(posixpath.join(self.dir.root, "FORMAT"), 0, str(error), RESTORE_ALL)
        except OSError as error:
            self._unreadable(error)
        folders = (self.dir.wal_dir, self.dir.segments_dir, self.dir.snapshots_dir)
        missing = [path for path in folders if not self.fs.exists(path)]
        for path in missing:
            self._found(path, 0, "the folder is missing", RESTORE_ALL)
        if not missing:
            self._check_files()
        report.clean = not report.damage
        self._progress(self._total, self._total)
        return report

    def _check_files(self) -> None:
        report, paths = self.report, self._all_files()
        report.files = len(paths)
        for path in paths:
            with suppress(OSError):  # the check of the file finds out why
                report.bytes += self.fs.size(path)
        self._total = report.bytes
        snapshot = self._newest_snapshot()
        if snapshot is not None:
            report.snapshot = snapshot.wal_number or None
            for topic in snapshot.topics:
                self._topic(topic)
            self._is_copy = snapshot.boot_id == snap.COPIED_BOOT_ID
            self._replay(snapshot)
        self._report_damage()
        self._left_over()

    # --- files

    def _all_files(self) -> list[str]:
        found = [self.dir.wal_path(number) for number in self.dir.wal_numbers()]
        found += [self.dir.snapshot_path(number) for number in self.dir.snapshot_numbers()]
        found += [self.dir.tails_path(number) for number in self.dir.tails_numbers()]
        found += [self.dir.ledger_path(number) for number in self.dir.ledger_numbers()]
        for topic_id in self.dir.topic_ids():
            found += self.dir.segment_paths(topic_id)
        return found

    def _left_over(self) -> None:
        """Note files that nothing refers to. They are normal after a crash; a server removes or ignores them."""
        paths = self._all_files()
        for path in paths:
            if path in self._named:
                continue
            problems = examine_file(self.fs, path, None, taken=self._step).problems if path.endswith(".seg") else ()
            damaged = f" (damaged: {problems[0].what})" if problems else ""
            self.report.notes.append(f"{path}: nothing refers to this file; a server does not read it{damaged}")
        folders = [self.dir.root, self.dir.wal_dir, self.dir.snapshots_dir, self.dir.segments_dir]
        folders += map(self.dir.topic_dir, self.dir.topic_ids())
        known = {*paths, *folders, self.dir.ledger_dir, *(self.dir.file_path(name) for name in (*FILES, "lost+found"))}
        found = (posixpath.join(folder, name) for folder in folders for name in self.fs.listdir(folder))
        unknown = [path for path in found if path not in known]
        self.report.notes += [f"{path}: not a file of ours, or an unfinished one" for path in unknown]

    # --- the snapshot

    def _newest_snapshot(self) -> snap.Snapshot | None:
        """Return the newest readable snapshot; None if there are snapshots and none is readable."""
        snapshot = None
        try:
            snapshot = newest_snapshot(self.dir, self._damage)
        except OSError as error:
            self._unreadable(error)
        except Corrupt as error:
            self._found(error.path, error.offset, error.what, RESTORE_ALL)
        since = 0 if snapshot is None else snapshot.wal_number
        self._named.update(self.dir.snapshot_path(n) for n in self.dir.snapshot_numbers() if n >= since)
        return snapshot

    def _topic(self, found: snap.TopicSnapshot) -> None:
        for ref in found.segments:
            self._sealed(found, ref)
        if found.tail is not None:
            self._named.add(self.dir.tails_path(found.tail.tails))

    def _sealed(self, found: snap.TopicSnapshot, ref: snap.SegmentRef) -> None:
        path = self.dir.path_of(found.topic_id, ref, self.cold_dir)
        self._named.add(path)
        if ref.cold and self.cold_dir is None:
            self.report.notes.append(f"{path}: in the cold folder, and not checked; name that folder with --cold-dir")
            self._lacks_cold = True
            return
        footer = codec.Footer(*ref.footer)
        examined = examine_file(self.fs, path, footer, taken=self._step)
        if (footer.topic_id, footer.first, footer.count) != (found.topic_id, ref.first, ref.count):
            self._found(path, 0, "the snapshot's own entries about this segment differ", REPORT, topic=found.name)
        self._problems[found.topic_id, ref.first] = examined.problems
        for problem in examined.problems:
            self._reported(problem.report(path, found.name, ref.first, earliest=found.earliest))
        if examined.columns is not None and len(examined.flags) == ref.count and not examined.problems:
            marks = codec.decode_flags(examined.flags) or bytearray(ref.count)
            put_marks(marks, ref.pending)
            positions = np.flatnonzero(np.frombuffer(marks, np.uint8) == 0)
            positions = positions[positions >= found.earliest - ref.first]
            live, live_bytes = len(positions), examined.columns.size_of(positions)
            if (live, live_bytes) != (ref.live, ref.live_bytes):
                said = f"the snapshot counts {ref.live} live records of {ref.live_bytes} bytes here"
                what = f"{said}, the file has {live} of {live_bytes}"
                self._found(path, footer.flags_at, what, REPORT, topic=found.name)

    # --- the state that a start would recover

    def _replay(self, snapshot: snap.Snapshot) -> None:
        since = snapshot.wal_number
        oldest = min(since, snap.ledger_number(snapshot) or since)
        log_files = [self.dir.wal_path(number) for number in self.dir.wal_numbers() if number >= since]
        self._named.update(log_files)
        self._named.update(self.dir.ledger_path(number) for number in self.dir.ledger_numbers() if number >= oldest)
        self.report.log_files = len(log_files)
        if self._lacks_cold:
            self.report.notes.append(
                "the log is not checked, because that needs the cold folder; name it with --cold-dir"
            )
            return
        state, caches = State(), SegmentCaches(self.fs, columns_bytes=64 << 20)
        self._damage.clear()  # the start reads the snapshot again
        try:
            found = recovery.recover(
                self.dir, state, caches, cold_dir=self.cold_dir, progress=lambda share: None, damage=self._damage
            )
        except DataDirError:  # a start would fail, and nothing is damaged
            raise
        except OSError as error:
            self._unreadable(error)
            return
        except Exception as error:  # a start would raise the same error
            what = f"a start would fail: {error or type(error).__name__}"
            self._found(self.dir.root, 0, what, RESTORE_ALL)
            return
        self._damage += found.lost
        self.report.notes += [f"{text}; a start leaves them out" for text in found.cut]
        self.report.log_entries = found.entries
        for name in sorted(state.by_name):
            topic = state.by_name[name]
            self._lose_what_is_damaged(topic)
            self._account(topic, found.heads.get(topic.topic_id, topic.head))
        self._note_skipped()

    def _report_damage(self) -> None:
        """Report what a start finds. What else it says of a file that is reported already follows from that."""
        for one in self._damage:
            if isinstance(one, DamageReport):
                self._reported(one)
        reported = {finding.file for finding in self.report.damage}
        for text in self._damage:
            if not any(text.startswith(path) for path in reported):
                self._found(text.partition(" at byte ")[0], 0, text, RESTORE)

    def _lose_what_is_damaged(self, topic: Topic) -> None:
        for segment in list(topic.segments):
            if not isinstance(segment, SealedSegment):
                continue
            for problem in self._problems.get((topic.topic_id, segment.first), ()):
                if problem.low < problem.high and segment in topic.segments and retention.ready(topic, segment):
                    cause = Corrupt(segment.path, problem.offset, problem.what)
                    retention.lose_range(topic, Damaged(segment, problem.low, problem.high, cause, whole=problem.whole))

    def _account(self, topic: Topic, known_head: int) -> None:
        """Account for the seqs of a topic. Those that only a start skips, after the head in the files, are not lost."""
        found, wrong = _account_of(topic)
        self.report.topics.append(found)
        for what in wrong:
            self._found(self.dir.snapshot_path(self.report.snapshot or 0), 0, what, REPORT, topic=topic.name)
        if found.durability != "ephemeral" and topic.head > known_head:
            found.skipped, found.head_seq = topic.head - known_head, known_head
            found.earliest_seq = min(found.earliest_seq, known_head + 1)
            # `source_trim` where a router copies what its source skips
            for first, last, reason in topic.losses.lost_in(known_head + 1, topic.head):
                found.lost[reason] -= last - first + 1
            found.lost = {reason: count for reason, count in found.lost.items() if count}

    def _note_skipped(self) -> None:
        """Note that a start skips seqs: after a power loss they may have been assigned, in a backup they were not."""
        skipping = [found for found in self.report.topics if found.skipped]
        if skipping and self._is_copy:
            self.report.notes.append(
                f"{len(skipping)} topics: `topics restore` continues after the last record; a server that starts on "
                "this backup itself skips some seqs and reports them as lost"
            )
            return
        for found in skipping:
            first, last = found.head_seq + 1, found.head_seq + found.skipped
            self.report.notes.append(
                f"topic {found.topic}: a start counts seqs {first} to {last} as lost (restart): "
                "they may have been given out, and are not here"
            )

    # --- reporting

    def _reported(self, one: DamageReport) -> None:
        seqs = {} if one.seqs is None else {"first_seq": one.seqs[0], "last_seq": one.seqs[1]}
        self._found(one.path, one.offset, one.what, HARMLESS if one.harmless else RESTORE, topic=one.topic, **seqs)

    def _unreadable(self, error: OSError) -> None:
        """Report a file without which a server does not start, once."""
        path = error.filename or self.dir.root
        if all(finding.file != path for finding in self.report.damage):
            self._found(path, 0, f"{absence(error)}; a server does not start on it", next_step(error))

    def _found(self, file: str, offset: int, what: str, next_step: str, **where: Any) -> None:
        self.report.damage.append(Finding(file=file, offset=offset, what=what, next=next_step, **where))

    def _step(self, at: int, data: bytes) -> None:
        self._done += len(data)
        self._progress(min(self._done, self._total), self._total)


# --- the account of a topic


def _account_of(topic: Topic) -> tuple[SeqAccount, list[str]]:
    """Return the account and its contradictions. Read the columns of every segment."""
    covered = _look_at_segments(topic)
    losses = topic.losses
    lost = losses.by_reason()
    # A damaged flag byte makes its record unreadable, but no counter has it as lost.
    silent = covered.lost_records - sum(losses.within(*span)[0] for span in covered.lost)
    if silent:
        lost["corrupt"] = lost.get("corrupt", 0) + silent
    deleted_in_front = topic.earliest - 1 - losses.within(1, topic.earliest - 1)[0]
    found = SeqAccount(
        topic=topic.name,
        topic_id=topic.topic_id,
        durability=topic.config.durability,
        head_seq=topic.head,
        earliest_seq=topic.earliest,
        live=covered.live_records,
        bytes=topic.bytes,
        deleted=covered.deleted_records + deleted_in_front,
        lost=lost,
    )
    wrong = [*_wrong_ranges(topic, covered), *_wrong_marks(topic, covered)]
    return found, [*wrong, *_wrong_sums(topic, found, covered, silent)]


def _look_at_segments(topic: Topic) -> Covered:
    covered = Covered()
    at = topic.earliest
    for segment in list(topic.segments):
        low = max(topic.earliest - segment.first, 0)
        if low >= segment.count or not retention.ready(topic, segment):
            continue
        if segment.first > at:
            covered.missing.append((at, segment.first - 1))
        at = segment.end
        covered.live_bytes += segment.live_within(low, segment.count)[1]
        if segment.marks is None:  # all are live
            covered.live_records += segment.count - low
            covered.live.append((segment.first + low, segment.end - 1))
            continue
        marks = np.frombuffer(segment.marks, np.uint8)[low:]
        live, deleted, lost = np.bincount(marks, minlength=3)[:3].tolist()
        covered.live_records += live
        covered.deleted_records += deleted
        covered.lost_records += lost
        covered.live += _spans(segment.first + low, marks == 0)
        covered.lost += _spans(segment.first + low, marks == LOST)
    if at <= topic.head:
        covered.missing.append((at, topic.head))
    return covered


def _wrong_ranges(topic: Topic, covered: Covered) -> list[str]:
    wrong = []
    for low, high in covered.missing:
        if silent := high - low + 1 - topic.losses.within(low, high)[0]:
            wrong.append(f"{silent} of seqs {low} to {high} are in no segment and not counted as lost")
    for low, high in covered.live:
        if topic.losses.within(low, high)[0]:
            wrong.append(f"seqs {low} to {high} are live, and some of them are counted as lost")
    lost = topic.losses.runs
    if any(before[1] >= after[0] for before, after in pairwise(lost)):
        wrong.append("ranges of lost seqs overlap")
    if any(not 0 < first <= last <= topic.head for first, last, _ in lost):
        wrong.append("a range of lost seqs reaches past the head")
    return wrong


def _wrong_marks(topic: Topic, covered: Covered) -> list[str]:
    floor, earliest, head = topic.evict_floor, topic.earliest, topic.head
    if not 1 <= floor <= earliest <= head + 1:
        return [f"watermarks out of order: floor {floor}, earliest {earliest}, head {head}"]
    wrong = []
    if any(floor <= last < earliest for _, last, _ in topic.losses.runs):
        wrong.append(f"something below seq {earliest} was lost, but the floor {floor} does not report it")
    first_live = covered.live[0][0] if covered.live else head + 1
    if first_live != earliest and not covered.lost:
        wrong.append(f"the first live seq is {first_live}, and {earliest} is said to be")
    return wrong


def _wrong_sums(topic: Topic, found: SeqAccount, covered: Covered, silent: int) -> list[str]:
    wrong = []
    if found.live + silent != topic.count:
        wrong.append(f"{topic.count} records are counted as live, and {found.live} are")
    if not silent and covered.live_bytes != topic.bytes:
        wrong.append(f"{topic.bytes} bytes are counted as live, and {covered.live_bytes} are")
    total = found.live + found.deleted + sum(found.lost.values())
    if total != topic.head or found.deleted < 0:
        wrong.append(f"live, deleted and lost seqs come to {total}, and the head is {topic.head}")
    return wrong


def _spans(first: int, hit: npt.NDArray[np.bool_]) -> list[Span]:
    return [(first + low, first + high) for low, high in runs(np.flatnonzero(hit))]
