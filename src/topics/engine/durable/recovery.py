"""Recovery of the state from a data directory: the snapshot, then the log after it, by the functions of live writes.

Everything that cannot be read is logged with file and offset. Where its seqs are known, readers of the topic get a
tombstone.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from topics import __version__, logs
from topics.engine import retention
from topics.engine.consumers import consumer_log
from topics.engine.durable import entry_kinds, lost_log
from topics.engine.durable.deferred_replay import Backlog
from topics.engine.durable.snapshot_load import load_topics
from topics.engine.routers import replay
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.write import apply, archived
from topics.errors import Corrupt, DamageReport, UnknownFormat
from topics.model.topic import SYNCED
from topics.nesting import limit_restored
from topics.storage import snapshot as snap
from topics.storage.datadir import DataDir
from topics.storage.log import entry as entries
from topics.storage.log import ledger, walfile
from topics.storage.log.frame import Head
from topics.storage.log.log_files import LogFile, read_log
from topics.storage.segments.sealed import SealedSegment
from topics.storage.segments.segment_caches import SegmentCaches

log = logs.Log("recovery")

Progress = Callable[[float], None]


class Recovered(NamedTuple):
    """The result of a recovery."""

    snapshot_number: int
    resume: tuple[int, int]  # file number and offset at which the good part of the log ends
    next_number: int
    entries: int
    damage: list[str]
    cut: list[str]  # unfinished writes at the end of the log
    unchanged: bool  # the snapshot holds the whole state: the start needs no new one
    backlog: Backlog  # records of `memory` topics, replayed after the server is ready
    lost: list[DamageReport]  # seqs that may have been in a missing part of the log
    unnoted: set[int]  # topics whose changes the ledger has not noted
    unsynced: list[tuple[str, int, bytes]]  # path, offset and bytes of the log that no sync is known to have covered
    heads: dict[int, int]  # highest seq in the files, by topic id, of topics that skip seqs after it


def recover(
    datadir: DataDir,
    state: State,
    caches: SegmentCaches,
    *,
    cold_dir: str | None,
    progress: Progress,
    defer_memory: bool = False,
    damage: list[str] | None = None,
) -> Recovered:
    """Recover `state`. Blocks: call it on a thread of its own. Raise `Corrupt` if no snapshot can be read.

    Raise `DataDirError` if another version of topics wrote what this one does not know. Add what is damaged to
    `damage`, also if this raises.

    With `defer_memory`, leave the records of `memory` topics in the backlog, so that the server is ready sooner.
    """
    try:
        with limit_restored():
            routers = replay.Recovering(state)
            damage = [] if damage is None else damage
            snapshot = load_topics(datadir, state, caches, cold_dir=cold_dir, damage=damage)
            return Recovery(datadir, state, routers, snapshot, damage, progress, defer_memory=defer_memory).run()
    except UnknownFormat as error:
        raise datadir.unknown(str(error)) from error


class Recovery:
    """One recovery, after the snapshot is loaded."""

    def __init__(
        self,
        datadir: DataDir,
        state: State,
        routers: replay.Recovering,
        snapshot: snap.Snapshot,
        damage: list[str],
        progress: Progress,
        *,
        defer_memory: bool,
    ) -> None:
        self._dir = datadir
        self._state = state
        self._routers = routers
        self._snapshot = snapshot
        self._progress = progress
        self._defer_memory = defer_memory
        self._damage = damage
        self._cut: list[str] = []
        self._backlog = Backlog()
        self._entries = 0
        self._synced_to: tuple[int, int] | None = None  # after a power loss: the log behind it may have gaps
        self._has_gaps = False  # found some
        # An unknown boot counts as another one.
        same_boot = snapshot.boot_id == datadir.fs.boot_id() != ""
        # Whether the log has all that was written. After a failed sync it may lack what a power loss may cost, too.
        self._is_whole = same_boot and not datadir.sync_failed
        restored = snapshot.extra.get(snap.RESTORED)
        self._restored_ms = None if restored is None else msgspec.msgpack.decode(restored, type=int)
        self._is_failover = snap.FAILOVER in snapshot.extra  # the directory continues a replica

    def run(self) -> Recovered:
        """Read the log, replay it, and give no seq out twice that an unreadable or missing part may have assigned."""
        since = self._snapshot.wal_number
        self.replay_waiting()
        account = ledger.read(self._dir, since)
        unsynced_from = ledger.unsynced_from(self._dir, None if self._is_whole else account)
        self._synced_to = None if self._is_whole else account.synced_to
        files = read_log(self._dir, since, self._damage, self._cut, unsynced_from=unsynced_from)
        lost_ledger = ledger.lost(self._dir, account, files, self._snapshot)
        ledger.check_known(self._dir, account, files, self._snapshot)
        check = lost_log.Check(
            self._dir, self._state, files, since, account,
            clean=self._snapshot.clean, lost_ledger=lost_ledger, damage=self._damage,
        )  # fmt: skip
        resume = self._replay_files(files, check)
        numbers = self._dir.wal_numbers()
        heads, skipped = self._close(check, after_power_loss=self._is_after_power_loss(files, numbers))
        self._progress(1.0)
        if self._entries or self._damage:
            log.info("replayed", entries=self._entries, files=len(files), damaged=len(self._damage))
        changed = self._entries or self._damage or self._cut or skipped
        return Recovered(
            snapshot_number=since,
            resume=resume,
            next_number=max([*numbers, since, account.last_number]) + 1,
            entries=self._entries,
            damage=self._damage,
            cut=self._cut,
            unchanged=self._is_whole and not changed,
            backlog=self._backlog,
            lost=check.lost,
            unnoted=check.unnoted(),
            unsynced=_unsynced(files, account.synced_to or (0, 0)),
            heads=heads,
        )

    def replay_waiting(self) -> None:
        """Replay the entries that waited for the replica when the snapshot was taken."""
        number = self._snapshot.wal_number
        if (waiting := self._snapshot.extra.get(snap.WAITING)) is not None:
            path = self._dir.snapshot_path(number)
            file = LogFile(number, path, msgspec.msgpack.decode(waiting, type=bytes))
            for item in walfile.scan(file.data, start=0):
                if isinstance(item, walfile.FoundFrame):  # always: the snapshot has a checksum
                    self._entries += self.replay(item, file)

    def _replay_files(self, files: list[LogFile], check: lost_log.Check) -> tuple[int, int]:
        """Replay the log. Return the file number and the offset at which its good part ends."""
        resume = (files[0].number, walfile.HEADER_BYTES) if files else (0, 0)
        total = sum(walfile.written_end(file.data) for file in files) or 1  # the reserved rest of a file is zeros
        done = 0
        for file in files:
            check.before_file(file.number)
            end = self._replay_file(file, check, done, total)
            if end > walfile.HEADER_BYTES:
                resume = file.number, end
            check.after_file(file, walfile.after_other_frames(file.data, end))
            done += walfile.written_end(file.data)
        check.before_file(None)
        return resume

    def _replay_file(self, file: LogFile, check: lost_log.Check, done: int, total: int) -> int:
        """Replay one log file and return the offset at which its good part ends."""
        state, damage, backlog = self._state, self._damage, self._backlog
        if damage or self._has_gaps:
            backlog.replay_all(state)  # its entries precede the next ones
        defers, end = self._defer_memory, file.start
        for item in walfile.scan(file.data, start=end):
            if (damage or self._has_gaps) and backlog:
                backlog.replay_all(state)  # the next entry may drop a topic that has deferred entries
            if isinstance(item, walfile.Damage):
                if item.torn and file.last:
                    at, size = item.write_at, item.end - item.write_at
                    self._cut.append(f"{file.path} at byte {at}: {size} bytes of an unfinished write")
                    log.warning("torn_tail_cut", file=file.path, offset=at, bytes=size)
                    break
                backlog.replay_all(state)  # the missing seqs depend on the head of each topic
                for begun in item.begun:
                    check.entry(begun.frame.head)
                    self._entries += self.replay(begun, file)
                if self._synced_to is not None and (file.number, item.at) >= self._synced_to:
                    self._note_gap_of_power_loss(file, item)
                else:
                    _note_damage(state, file, item, damage)
                    check.damaged(file.number, item)
            else:
                check.entry(item.frame.head)
                whole = not damage and not self._has_gaps
                deferred = defers and whole and backlog.defer(state, item.frame, file.data[item.at : item.end])
                self._entries += 1 if deferred else self.replay(item, file)
                self._progress((done + item.end) / total)
            end = item.end
        return end

    def _note_gap_of_power_loss(self, file: LogFile, item: walfile.Damage) -> None:
        """Note a gap behind the synced part of the log: the disk had written later bytes before the power failed."""
        self._has_gaps = True
        size = item.end - item.at
        self._cut.append(f"{file.path} at byte {item.at}: {size} bytes of a write that was not synced")
        log.warning("unsynced_write_lost", file=file.path, offset=item.at, bytes=size)
        if item.head is not None:
            _lose_head(self._state, item.head, size, "restart")

    def replay(self, item: walfile.FoundFrame, file: LogFile) -> int:
        """Replay the entry of a frame. Return how many entries that are: 0 if it cannot be applied."""
        state, damage = self._state, self._damage
        try:
            entry = entries.decode(item.frame, path=file.path, at=item.at)
        except Corrupt as error:
            if self._dir.written_by not in ("", __version__):
                raise UnknownFormat(str(error)) from error
            damage.append(_report(state, file.path, item.at, error.what, item.frame.head))
            log.error("entry_unreadable", file=file.path, offset=item.at, reason=error.what)
            _lose_head(state, item.frame.head, item.end - item.at, "corrupt")
            return 0
        records = entries.records_of(entry)
        topic = None if records is None else state.by_id.get(records.topic_id)
        if topic is not None and topic.links is not None:
            topic.links.written = True
        if isinstance(entry, entries.Append):
            if topic is not None and entry.first > topic.head + 1:
                if self._has_gaps:
                    apply.skip_to(state, topic, entry.first, "restart")
                else:  # every entry can be read
                    first, last = topic.head + 1, entry.first - 1
                    before = f"{file.path} at byte {item.at}: before this"
                    damage.append(f"{before}, topic {topic.name}, seqs {first} to {last} are missing")
                    log.error(
                        "seqs_missing", file=file.path, offset=item.at, topic=topic.name, first_seq=first, last_seq=last
                    )
        if what := entry_kinds.replay_or_lose(state, entry):
            damage.append(f"{file.path} at byte {item.at}: {what}")
            return 0
        return 1

    def _is_after_power_loss(self, files: list[LogFile], numbers: list[int]) -> bool:
        """Return whether the machine may have lost power since the files were written."""
        snapshot = self._snapshot
        if self._is_whole or self._restored_ms is not None or (not snapshot.wal_number and not files):
            return False
        # The removal of a file before the snapshot may be lost with the power.
        only_snapshot = snapshot.clean and max(numbers, default=0) <= snapshot.wal_number
        return not only_snapshot or bool(self._entries or self._damage)

    def _close(self, check: lost_log.Check, *, after_power_loss: bool) -> tuple[dict[int, int], bool]:
        """End the replay. Return the heads in the files of topics that skip seqs, and whether one skips them now."""
        state, restored_ms = self._state, self._restored_ms
        # If a durable topic skips seqs, a snapshot must record that before the log gets entries after them.
        skips = bool(self._damage or after_power_loss or state.left_ephemeral or self._routers.loses_copies())
        if skips or restored_ms is not None or not self._defer_memory:
            self._backlog.replay_all(state)
        check.end()
        if restored_ms is not None:
            for topic in state.by_name.values():  # readers notice by the epoch that the history changed
                state.last_epoch = max(restored_ms, state.last_epoch + 1)
                topic.begin_epoch(state.last_epoch)
                topic.saved_tail = None  # its file has the old epoch
        early: list[tuple[Topic, int, int]] = []  # skip before routers go on: heads before, after
        if after_power_loss:
            # Before routers go on: copies take seqs behind those that the lost part of the log may have given out.
            topics = state.by_name.values()
            if self._is_failover:
                _skip_to_ceilings(state, topics, "failover", kept=("replicated",))
            else:
                mixed = {topic: topic.head for topic in topics if topic.links is not None and topic.links.mixes_writes}
                _skip_to_ceilings(state, mixed, "restart", kept=SYNCED)
                early = [(topic, known, topic.head) for topic, known in mixed.items()]
        if self._routers.catch_up():
            self._backlog.replay_all(state)  # so that the start takes a snapshot
        known_heads = {topic.topic_id: known for topic, known, skipped in early if topic.head == skipped}
        ends = [(topic, topic.head, topic.earliest) for topic in state.by_id.values()]
        _close_gaps(state, self._backlog, after_power_loss=after_power_loss, restored=restored_ms is not None)
        self._routers.end()
        moved = {topic.topic_id: head for topic, head, first in ends if topic.head != head or topic.earliest != first}
        return moved | known_heads, bool(moved)


def _note_damage(state: State, file: LogFile, item: walfile.Damage, damage: list[str]) -> None:
    size = item.end - item.at
    report = _report(state, file.path, item.at, f"{size} damaged bytes in the log", item.head)
    if item.head is not None:
        _lose_head(state, item.head, size, "corrupt")
    damage.append(report)
    log.error("log_damaged", file=file.path, offset=item.at, bytes=size, lost=report.partition("; ")[2])


def _report(state: State, path: str, at: int, what: str, head: Head | None) -> DamageReport:
    """Return the report about an entry with this head: the seqs of its records, or the topic that it changes."""
    topic = None if head is None else state.by_id.get(head.topic_id)
    if head is None or topic is None:
        return DamageReport(path, at, what)
    if head.kind == entries.APPEND:
        return DamageReport(path, at, what, topic=topic.name, seqs=(head.first, head.first + head.count - 1))
    change = "changes of consumers" if head.kind == entries.CONSUMERS_CHANGED else "a change"
    others = " and perhaps of others" if head.kind == entries.CONSUMERS_CHANGED else ""
    return DamageReport(path, at, f"{what}; {change} of topic {topic.name}{others}", topic=topic.name)


def _lose_head(state: State, head: Head, size: int, reason: str) -> None:
    """Count the records of an unreadable append as lost, and missing seqs before it, too.

    Count no more seqs than the damage has bytes: the head itself may be damaged.
    """
    topic = state.by_id.get(head.topic_id)
    if topic is not None and head.kind == entries.APPEND and head.first > topic.head:
        if head.first + head.count - 1 - topic.head <= size:
            retention.skip_to(topic, head.first + head.count, reason)


def _skip_to_ceilings(state: State, topics: Iterable[Topic], reason: str, *, kept: Collection[str]) -> None:
    """Report the seqs that may be missing as lost, for topics of all classes but `kept`. The log is replayed."""
    for topic in topics:
        if topic.config.durability == "ephemeral":
            retention.lose_all(topic, reason)
        if topic.config.durability not in kept or topic.topic_id in state.left_ephemeral:
            retention.skip_to(topic, topic.ceiling + 1, reason)


def _close_gaps(state: State, backlog: Backlog, *, after_power_loss: bool, restored: bool) -> None:
    """Move each head past the seqs that may have been acknowledged and are not in the log. Readers get tombstones.

    The topics of a restored backup have new epochs. No reader has seen a seq of these, so none is skipped.
    """
    for topic in state.by_name.values():
        durability = topic.config.durability
        if durability == "ephemeral":
            retention.lose_all(topic, "restart")
        # After a power loss the log may hold a change that was refused while the topic continued in memory.
        unlogged = durability == "ephemeral" or topic.topic_id in state.left_ephemeral
        if (unlogged and not restored) or (after_power_loss and durability not in SYNCED):
            backlog.replay(state, topic)
            retention.skip_to(topic, topic.ceiling + 1, "restart")
        archived.recovered(topic)
        consumer_log.recovered(state, topic)


def _unsynced(files: list[LogFile], synced_to: tuple[int, int]) -> list[tuple[str, int, bytes]]:
    """Return path, offset and bytes of the parts of the log behind `synced_to`."""
    parts = []
    for file in files:
        at = synced_to[1] if file.number == synced_to[0] else 0
        if file.number >= synced_to[0] and (end := walfile.written_end(file.data)) > at:
            parts.append((file.path, at, file.data[at:end]))
    return parts


def write_again(datadir: DataDir, parts: list[tuple[str, int, bytes]]) -> None:
    """Write and sync the parts of the log that no sync is known to have covered.

    The replayed entries may be in the page cache only, and answers from now on depend on them. A sync alone does not
    help after a failed one: the pages count as written.
    """
    for path, at, data in parts:
        file = datadir.fs.open(path, write=True)
        try:
            try:
                file.pwrite(data, at)
            except OSError as error:  # a copy-on-write file system is full: without a failed sync, a sync suffices
                if error.errno not in (errno.ENOSPC, errno.EDQUOT) or datadir.sync_failed:
                    raise
            file.datasync()
        finally:
            file.close()


def remove_orphans(datadir: DataDir, state: State, named: set[str], cold_dir: str | None) -> None:
    """Remove segment files that a stopped process wrote, except those that are `named` or belong to a topic."""
    for topic in state.by_id.values():
        named.update(segment.path for segment in topic.segments if isinstance(segment, SealedSegment))
    fs = datadir.fs
    for folder in filter(fs.exists, [datadir.segments_dir, *([] if cold_dir is None else [cold_dir])]):
        for name in filter(str.isdigit, fs.listdir(folder)):  # other names are not ours
            topic_dir = posixpath.join(folder, name)
            for path in [posixpath.join(topic_dir, file) for file in fs.listdir(topic_dir)]:
                if path not in named:
                    with suppress(FileNotFoundError):  # a directory is not ours
                        fs.unlink(path)
            if int(name) not in state.by_id:
                with suppress(OSError):
                    fs.rmdir(topic_dir)
