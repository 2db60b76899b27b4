"""Recovery of the state from a data directory: the snapshot, then the log after it, through the same `apply` as live
writes.

Everything that cannot be read is logged with file and offset. Where its seqs are known, readers of the topic get a
tombstone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from topics import logs
from topics.engine import retention
from topics.engine.consumers import consumer_log
from topics.engine.durable import lost_log
from topics.engine.durable.deferred_replay import Backlog
from topics.engine.durable.log_files import LogFile, read_log, read_whole
from topics.engine.queue import verbs
from topics.engine.routers import replay
from topics.engine.state import snapshot_parts
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.write import apply, archived
from topics.errors import Corrupt
from topics.storage import snapshot as snap
from topics.storage.datadir import DataDir, DataDirError
from topics.storage.fs import File
from topics.storage.log import entry as entries
from topics.storage.log import ledger, walfile
from topics.storage.log.frame import Head
from topics.storage.segments.codec import Footer
from topics.storage.segments.sealed import SealedSegment
from topics.storage.segments.segment import MemorySegment
from topics.storage.segments.segment_cache import Shelf

log = logs.Log("recovery")

Progress = Callable[[float], None]
REPLAYED_ELSEWHERE = (archived, consumer_log, verbs)  # these modules register kinds of entries when they are imported


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
    lost: list[lost_log.Lost]  # seqs that may have been in a missing part of the log
    unnoted: set[int]  # topics whose changes the ledger has not noted
    heads: dict[int, int]  # highest seq of each topic in the files, by topic id: the start may skip some after it


def recover(
    datadir: DataDir,
    state: State,
    shelf: Shelf,
    *,
    cold_dir: str | None,
    progress: Progress,
    defer_memory: bool = False,
) -> Recovered:
    """Recover `state`. Blocks: call it on a thread of its own. Raise `Corrupt` if no snapshot can be read.

    With `defer_memory`, leave the records of `memory` topics in the backlog, so that the server is ready sooner.
    """
    with replay.recovering(state) as routers:
        return _recover(datadir, state, shelf, routers, cold_dir=cold_dir, progress=progress, defer_memory=defer_memory)


def _recover(
    datadir: DataDir,
    state: State,
    shelf: Shelf,
    routers: replay.Recovering,
    *,
    cold_dir: str | None,
    progress: Progress,
    defer_memory: bool,
) -> Recovered:
    damage: list[str] = []
    backlog = Backlog()
    number, snapshot = load_snapshot(datadir, damage)
    if snapshot is not None:
        state.next_topic_id, state.last_epoch = snapshot.next_topic_id, snapshot.last_epoch
        with Tails(datadir) as tails:
            for topic in snapshot.topics:
                restore_topic(datadir, state, shelf, topic, cold_dir, damage, tails)
        state.names.rebuild(state.by_name)
        snapshot_parts.load_state(state, snapshot.extra)
    since = 0 if snapshot is None else snapshot.wal_number
    replayed = 0
    boot_id = datadir.fs.boot_id()
    same_boot = snapshot is not None and snapshot.boot_id == boot_id != ""  # an unknown boot counts as another one
    account = ledger.read(datadir, since)
    if snapshot is not None and snap.LEDGER in snapshot.extra and since not in datadir.ledger_numbers():
        path = datadir.ledger_path(since)
        damage.append(f"{path} at byte 0: {lost_log.NO_LEDGER}")
        log.error("ledger_missing", file=path)
    cut: list[str] = []
    files = read_log(datadir, since, damage, cut, unsynced_from=None if same_boot else account.unsynced_from)
    resume = (files[0].number, walfile.HEADER_BYTES) if files else (0, 0)
    total = sum(walfile.written_end(file.data) for file in files) or 1  # the reserved rest of a file is zeros
    done = 0
    check = lost_log.Check(
        datadir, state, files, since, account, clean=snapshot is not None and snapshot.clean, damage=damage
    )
    for file in files:
        check.before_file(file.number)
        if damage:
            backlog.replay_all(state)  # its entries precede the next ones
        end = walfile.HEADER_BYTES
        for item in walfile.scan(file.data):
            if damage and backlog:
                backlog.replay_all(state)  # the next entry may drop a topic that has deferred entries
            if isinstance(item, walfile.Damage):
                torn = item.torn and file.last
                if torn:
                    size = item.end - item.at
                    cut.append(f"{file.path} at byte {item.at}: {size} bytes of an unfinished write")
                    log.warning("torn_tail_cut", file=file.path, offset=item.at, bytes=size)
                    break
                backlog.replay_all(state)  # the missing seqs depend on the head of each topic
                _note_damage(state, file, item, damage)
            else:
                check.entry(item.frame.head)
                defers = defer_memory and not damage and backlog.defer(state, item.frame, file.data[item.at : item.end])
                replayed += 1 if defers else _replay(state, item, file, damage)
                progress((done + item.end) / total)
            resume, end = (file.number, item.end), item.end
        check.after_file(file, walfile.after_refused(file.data, end))
        done += walfile.written_end(file.data)
    check.before_file(None)
    numbers = datadir.wal_numbers()
    next_number = max([*numbers, since, check.last_number]) + 1
    clean = snapshot is not None and snapshot.clean and numbers in ([], [snapshot.wal_number]) and not replayed
    clean = clean and not damage
    restored = None if snapshot is None else snapshot.extra.get(snap.RESTORED)
    after_power_loss = not clean and not same_boot and restored is None and (snapshot is not None or bool(files))
    # If a durable topic skips seqs, a snapshot must record that before the log gets entries after them.
    skips = bool(damage or after_power_loss or state.risen or replay.loses_copies(state))
    if skips or restored is not None or not defer_memory:
        backlog.replay_all(state)
    check.end()
    if restored is not None:
        _begin_new_epochs(state, msgspec.msgpack.decode(restored, type=int))
    routers.catch_up()
    heads = {topic.topic_id: topic.head for topic in state.by_id.values()}
    found_ends = [(topic.head, topic.earliest) for topic in state.by_id.values()]
    _close_gaps(state, backlog, after_power_loss=after_power_loss, restored=restored is not None)
    routers.end()
    skipped = found_ends != [(topic.head, topic.earliest) for topic in state.by_id.values()]
    _make_durable(datadir, files)
    progress(1.0)
    if replayed or damage:
        log.info("replayed", entries=replayed, files=len(files), damaged=len(damage))
    unchanged = same_boot and not replayed and not damage and not cut and not skipped
    return Recovered(
        number, resume, next_number, replayed, damage, cut, unchanged, backlog, check.lost, check.unnoted(), heads
    )


def load_snapshot(datadir: DataDir, damage: list[str]) -> tuple[int, snap.Snapshot | None]:
    """Return the newest readable snapshot and its number. Raise `Corrupt` if snapshots exist and none is readable."""
    numbers = datadir.snapshot_numbers()
    for number in reversed(numbers):
        path = datadir.snapshot_path(number)
        data = read_whole(datadir, path)
        try:
            snapshot = snap.decode(data, path=path)
        except Corrupt as error:
            damage.append(str(error))
            log.error("snapshot_damaged", file=path, reason=error.what)
            continue
        if bad := snap.damaged_copies(data):
            damage.append(f"{path} at byte {bad[0]}: one copy of the snapshot is damaged, the other was used")
            log.warning("snapshot_copy_damaged", file=path, offset=bad[0])
        return number, snapshot
    log_numbers = datadir.wal_numbers()
    began_later = log_numbers[:1] > [1]
    began_later = began_later or datadir.ledger_numbers()[:1] > [1]
    if not numbers and (began_later or (not log_numbers and (datadir.tails_numbers() or datadir.topic_ids()))):
        # Without a snapshot the directory would count as empty, and its files as leftovers.
        raise Corrupt(datadir.snapshots_dir, 0, "the snapshot is missing; restore the data directory from a backup")
    if numbers:
        raise Corrupt(
            datadir.snapshot_path(numbers[-1]), 0, "no snapshot can be read; restore the data directory from a backup"
        )
    return 0, None


class Tails:
    """The tails files of a directory. Each is opened once, since every topic of a snapshot may have a part in it."""

    def __init__(self, datadir: DataDir) -> None:
        self._dir = datadir
        self._files: dict[int, File] = {}

    def __enter__(self) -> Tails:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            file.close()

    def read(self, ref: snap.TailRef) -> bytes:
        """Return the bytes of one tail. Raise `FileNotFoundError` if its file is missing."""
        file = self._files.get(ref.tails)
        if file is None:
            file = self._files[ref.tails] = self._dir.fs.open(self._dir.tails_path(ref.tails))
        return file.pread(ref.size, ref.offset)


def restore_topic(
    datadir: DataDir,
    state: State,
    shelf: Shelf,
    found: snap.TopicSnapshot,
    cold_dir: str | None,
    damage: list[str],
    tails: Tails,
) -> Topic:
    sealed = []
    if found.segments:
        _check_cold(datadir, found, cold_dir)
    for ref in found.segments:
        segment = SealedSegment(
            shelf,
            segment_path(datadir, found.topic_id, ref.first, cold_dir if ref.cold else None),
            Footer(*ref.footer),
            live=ref.live,
            live_bytes=ref.live_bytes,
            pending=ref.pending,
        )
        segment.cold = ref.cold
        sealed.append(segment)
    tail: MemorySegment | None = None
    failed: Exception | None = None
    harmless: list[str] = []
    if found.tail is not None:
        path = datadir.tails_path(found.tail.tails)
        try:
            data = tails.read(found.tail)
            tail = MemorySegment.from_bytes(data, path=path, opened_ms=found.tail.opened_ms, harmless=harmless)
            for what in harmless:
                damage.append(f"{path} at byte {found.tail.offset}: topic {found.name}: {what}; nothing is lost")
                log.warning("tail_flawed", file=path, offset=found.tail.offset, topic=found.name, what=what)
        except (Corrupt, FileNotFoundError) as error:  # other disk errors may be temporary: nothing is lost
            failed = error
            damage.append(f"{path}: the last records of topic {found.name} cannot be read: {error}")
    topic = snapshot_parts.restore(state, found, sealed=sealed, tail=tail)
    if failed is not None and found.tail is not None:
        _lose_tail(topic, found, found.tail)
    elif found.tail is not None and not harmless:
        topic.saved_tail = found.tail, snapshot_parts.look(topic.open)  # the next snapshot need not write it again
    return topic


def _check_cold(datadir: DataDir, found: snap.TopicSnapshot, cold_dir: str | None) -> None:
    """Raise `DataDirError` if a cold segment is missing: its disk may not be mounted, and then nothing is lost."""
    ref = next((ref for ref in found.segments if ref.cold), None)
    if ref is None:
        return
    if cold_dir is None:
        raise DataDirError(f"topic {found.name} has segments in a cold folder; set TOPICS_COLD_DIR to where they are")
    path = segment_path(datadir, found.topic_id, ref.first, cold_dir)
    if not datadir.fs.exists(path):
        raise DataDirError(f"a cold segment of topic {found.name} is missing: {path}; is its disk mounted?")


def segment_path(datadir: DataDir, topic_id: int, first: int, cold_dir: str | None) -> str:
    hot = datadir.segment_path(topic_id, first)
    return hot if cold_dir is None else cold_dir + hot[len(datadir.segments_dir) :]


def _replay(state: State, item: walfile.FoundFrame, file: LogFile, damage: list[str]) -> int:
    try:
        entry = entries.decode(item.frame, path=file.path, at=item.at)
    except Corrupt as error:
        damage.append(str(error))
        log.error("entry_unreadable", file=file.path, offset=item.at, reason=error.what)
        _lose_head(state, item.frame.head, item.end - item.at)
        return 0
    if isinstance(entry, entries.Append):
        _note_gap(state, entry, item, file, damage)
    apply.replay(state, entry)
    return 1


def _note_gap(state: State, entry: entries.Append, item: walfile.FoundFrame, file: LogFile, damage: list[str]) -> None:
    """Report seqs that are missing before an entry although every entry can be read."""
    topic = state.by_id.get(entry.topic_id)
    if topic is None or entry.first <= topic.head + 1:
        return
    first, last = topic.head + 1, entry.first - 1
    damage.append(f"{file.path} at byte {item.at}: before this, topic {topic.name}, seqs {first} to {last} are missing")
    log.error("seqs_missing", file=file.path, offset=item.at, topic=topic.name, first_seq=first, last_seq=last)


def _note_damage(state: State, file: LogFile, item: walfile.Damage, damage: list[str]) -> None:
    size = item.end - item.at
    seqs = ""
    if item.head is not None:
        topic = state.by_id.get(item.head.topic_id)
        if topic is not None and item.head.kind == entries.APPEND:
            seqs = f"; topic {topic.name}, seqs {item.head.first} to {item.head.first + item.head.count - 1}"
        _lose_head(state, item.head, size)
    damage.append(f"{file.path} at byte {item.at}: {size} damaged bytes{seqs}")
    log.error("log_damaged", file=file.path, offset=item.at, bytes=size, lost=seqs.removeprefix("; "))


def _lose_head(state: State, head: Head, size: int) -> None:
    """Count the records of an unreadable append as lost, and missing seqs before it, too.

    Count no more seqs than the damage has bytes: the head itself may be damaged.
    """
    topic = state.by_id.get(head.topic_id)
    if topic is not None and head.kind == entries.APPEND and head.first > topic.head:
        if head.first + head.count - 1 - topic.head <= size:
            retention.skip_to(topic, head.first + head.count, "corrupt")


def _lose_tail(topic: Topic, found: snap.TopicSnapshot, tail: snap.TailRef) -> None:
    """Count all records after the sealed segments as lost."""
    sealed_end = max([ref.first + ref.count for ref in found.segments], default=1)
    first = max(sealed_end, topic.earliest)
    topic.removed(tail.live, tail.live_bytes)
    if topic.queue is not None:
        topic.queue.left_range(first, topic.head + 1)
    if tail.live:
        topic.losses.add(first, topic.head, "corrupt")
    log.error("tail_damaged", topic=topic.name, first_seq=first, last_seq=topic.head)
    retention.advance(topic)


def _begin_new_epochs(state: State, restored_ms: int) -> None:
    """Give every topic of a restored backup a new epoch, so that readers notice that its history changed."""
    for topic in state.by_name.values():
        state.last_epoch = max(restored_ms, state.last_epoch + 1)
        topic.begin_epoch(state.last_epoch)
        topic.saved_tail = None  # its file has the old epoch


def _close_gaps(state: State, backlog: Backlog, *, after_power_loss: bool, restored: bool) -> None:
    """Skip seqs that may have been acknowledged and are not in the log, and report them as lost.

    A restored directory has new epochs, so its seqs continue after the last known one.
    """
    for topic in state.by_name.values():
        durability = topic.config.durability
        if durability == "ephemeral":
            retention.lose_all(topic, "restart")
        # After a power loss the log may hold a change that was refused while the topic continued in memory.
        unlogged = durability == "ephemeral" or topic.topic_id in state.risen
        if (unlogged and not restored) or (after_power_loss and durability != "fsync"):
            backlog.replay(state, topic)
            retention.skip_to(topic, topic.ceiling + 1, "restart")
        archived.recovered(topic)
        consumer_log.recovered(state, topic)


def _make_durable(datadir: DataDir, files: list[LogFile]) -> None:
    """Sync the log files: the replayed entries may be in the page cache only, and later writes depend on them."""
    for found in files:
        file = datadir.fs.open(found.path, write=True)
        try:
            file.datasync()
        finally:
            file.close()
