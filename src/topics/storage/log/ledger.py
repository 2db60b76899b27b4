"""The ledger: a second account of what the log must hold, so that a truncated or missing log file is detected.

It names the log files in order, with the place where each was left, how far the log is known to be synced, and every
topic with its seq ceiling. One file belongs to each snapshot and has what happened since; it lies in a folder of its
own. The file is a row of frames (see `frame.py`) without a header, and is only ever appended to:

    kind  topic id  first         body, a MessagePack array
    1     0         number        FILE: number of the file before it (0 for none), offset where that ends, size in bytes
    2     0         number        REACHED: offset up to which the file is synced
    3     id        ceiling       TOPIC: name, epoch, config
    4     id        0             GONE: nothing

It is written by the thread that syncs the log, right after the log itself, and only when there is something new: a
topic or a ceiling, a log file, or once a second the place that was reached. So it never claims more than the log has
after a power loss. If it cannot be written, the log goes on without. A snapshot says whether it has a ledger: that one
was written before the snapshot, with one note at least, so its absence is damage.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock

import msgspec
from msgspec import Struct

from topics import logs
from topics.errors import Corrupt, UnknownFormat
from topics.model.topic import TopicConfig
from topics.storage.datadir import DataDir
from topics.storage.fs import File, read_whole
from topics.storage.log import frame, walfile
from topics.storage.log.log_files import LogFile
from topics.storage.snapshot import Snapshot, ledger_number

log = logs.Log("ledger")

FILE, REACHED, TOPIC, GONE = 1, 2, 3, 4
MISSING = "the ledger is missing, or nothing in it can be read: whether the log is complete is unknown"

_encode = msgspec.msgpack.encode
_decode_topic = msgspec.msgpack.Decoder(tuple[str, int, TopicConfig]).decode
_decode_ints = msgspec.msgpack.Decoder(list[int]).decode


def file_note(number: int, previous: tuple[int, int], size_bytes: int) -> bytes:
    return frame.encode(FILE, 0, number, 0, _encode([*previous, size_bytes]))


def _reached_note(number: int, offset: int) -> bytes:
    return frame.encode(REACHED, 0, number, 0, _encode([offset]))


class Known(Struct):
    """A topic as the ledger knows it."""

    topic_id: int
    name: str
    epoch: int
    config: TopicConfig
    ceiling: int


class Expected(Struct):
    """The account of a log file. Its frames reach at least to `end`; its size was at least `size_bytes`."""

    end: int = 0
    size_bytes: int = 0
    left: bool = False  # a later file continues where this one ends

    def lacks(self, end: int, size_bytes: int) -> str:
        """Return what is wrong with a file of this size whose last entry ends at `end`; empty if nothing is lost."""
        if end < self.end:
            return f"the log file ends here, and was written to byte {self.end} at least"
        if size_bytes < self.size_bytes and not self.left:
            return f"the log file is cut short: {size_bytes} of {self.size_bytes} bytes"
        return ""


class LedgerAccount(Struct):
    """The content of all ledger files together."""

    files: dict[int, Expected] = {}
    topics: dict[int, Known] = {}
    gone: set[int] = set()
    numbers: set[int] = set()  # of the ledger files that have a note
    unreadable: set[int] = set()  # of those that have none
    damage: list[tuple[str, int]] = []  # file and offset
    last_number: int = 0
    unsynced_from: int = 0  # the files before this one are known to be synced to their ends

    @property
    def synced_to(self) -> tuple[int, int] | None:
        """The file number and the offset up to which the log is known to be synced; None if that is unknown."""
        number = self.unsynced_from or min(self.files, default=0)
        return (number, self.files[number].end) if number in self.files else None


class Ledger:
    """The ledger of a running server. Notes come from the owner's thread; the thread that syncs the log writes them."""

    def __init__(self, datadir: DataDir) -> None:
        self._dir = datadir
        self._lock = Lock()  # guards the notes; not held during file calls
        self._file_lock = Lock()  # guards the file
        self._notes: list[bytes] = []
        self._number = 0  # of the file that notes go to; 0 before there is one
        self.number = 0  # of the last file that has a note
        self._file: File | None = None
        self._at = 0
        self._spoilt_to = 0  # what a failed write may have left behind `_at` ends here
        self._failed = False
        self.reached = (0, 0)  # the last noted position

    def open(self, number: int) -> list[bytes]:
        """Continue in the file of snapshot `number`. Return the note that shows that it exists, and claims nothing."""
        with self._lock:
            self._number = number
        return [_reached_note(number, 0)]

    def note_file(self, number: int, *, previous: tuple[int, int], size_bytes: int) -> None:
        self._note(file_note(number, previous, size_bytes))

    def note_reached(self, position: tuple[int, int]) -> None:
        if position != self.reached:
            self.reached = position
            self._note(_reached_note(*position))

    def note_topic(self, topic_id: int, name: str, epoch: int, config: TopicConfig, ceiling: int) -> None:
        self._note(frame.encode(TOPIC, topic_id, ceiling, 0, _encode((name, epoch, config))))

    def note_gone(self, topic_id: int) -> None:
        self._note(frame.encode(GONE, topic_id, 0, 0, _encode(())))

    @property
    def waits(self) -> bool:
        return bool(self._notes)

    def take(self) -> list[bytes]:
        """Take the notes that will be true once everything written to the log so far is synced."""
        if not self._notes:
            return []
        with self._lock:
            notes, self._notes = self._notes, []
        return notes

    def write(self, notes: list[bytes]) -> bool:
        """Write and sync the notes. Return False if that fails: they are tried again with the next sync."""
        if not notes:
            return True
        number = self._number
        path = self._dir.ledger_path(number)
        try:
            with self._file_lock:
                self._append(path, b"".join(notes))
        except OSError as error:
            with self._lock:
                self._notes = notes + self._notes
            if not self._failed:
                self._failed = True
                log.error("ledger_failed", file=path, reason=error.strerror or str(error))
            return False
        self._failed, self.number = False, number
        return True

    def close(self, *, replaced: bool = False) -> None:
        """Write what is left, unless a snapshot has `replaced` the log, and close the file."""
        if not replaced:
            self.write(self.take())
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _note(self, entry: bytes) -> None:
        with self._lock:
            if self._number:
                self._notes.append(entry)

    def _append(self, path: str, data: bytes) -> None:
        file = self._file
        if file is None or file.path != path:
            new = self._create(path, data)
            if file is not None:
                with suppress(OSError):
                    file.close()
            self._file, self._at = new, walfile.written_end(new.pread(new.size(), 0))
            self._spoilt_to = self._at
            return
        end = self._at + len(data)
        zeroed = data.ljust(self._spoilt_to - self._at, b"\0")  # the notes of a failed write may be longer than these
        self._spoilt_to = max(self._spoilt_to, end)
        file.pwrite(zeroed, self._at)
        file.datasync()
        self._at = self._spoilt_to = end

    def _create(self, path: str, data: bytes) -> File:
        """Return a durable file with the notes of `data` at its end. It has its name once it has a note."""
        if not self._dir.fs.exists(path):
            with self._dir.new_file(path, open_after=True) as new:
                new.pwrite(data, 0)
            return new
        new = self._dir.fs.open(path, write=True)  # of an earlier start, or its name could not be synced
        try:
            new.pwrite(data, walfile.written_end(new.pread(new.size(), 0)))
            new.datasync()
            self._dir.fs.sync_dir(self._dir.ledger_dir)
        except OSError:
            with suppress(OSError):
                new.close()
            raise
        return new


def read(datadir: DataDir, since: int) -> LedgerAccount:
    """Return what the ledger files from number `since` on say together. Of earlier files, only note that they exist."""
    account = LedgerAccount()
    for number in datadir.ledger_numbers():
        path = datadir.ledger_path(number)
        items = list(walfile.scan(read_whole(datadir.fs, path), start=0))
        has_notes = any(isinstance(item, walfile.FoundFrame) for item in items)
        (account.numbers if has_notes else account.unreadable).add(number)
        for item in items if number >= since else ():
            if isinstance(item, walfile.FoundFrame):
                _take(account, item.frame, since)
            elif not item.torn:
                account.damage.append((path, item.at))
    return account


def lost(datadir: DataDir, account: LedgerAccount, files: list[LogFile], snapshot: Snapshot) -> int | None:
    """Return the number of a ledger that is missing, empty or unreadable; None if there is none.

    A snapshot names its ledger. Without a name, a log with entries needs one.
    """
    since, named = snapshot.wal_number, ledger_number(snapshot)
    if named is not None and named not in account.numbers:
        return named
    if unreadable := [number for number in account.unreadable if number >= since]:
        return unreadable[0]
    if named is None and datadir.keeps_ledger and not account.numbers and _has_entries(files):
        return since
    return None


def unsynced_from(datadir: DataDir, account: LedgerAccount | None) -> int | None:
    """Return the first log file whose end a power loss may have cost; None without a power loss (no account).

    Also None if the ledger is lost: then nothing shows that a missing end was not synced.
    """
    if account is None or (datadir.keeps_ledger and not account.numbers):
        return None
    return account.unsynced_from


def without_void(expected: dict[int, Expected], files: list[LogFile]) -> dict[int, Expected]:
    """Return the files that a ledger expects, without those that a later log file declares void."""
    kept = dict(expected)
    for file in files:
        number, offset = file.resume
        if number:
            for other in [other for other in kept if number < other < file.number]:
                del kept[other]
            if (before := kept.get(number)) is not None:
                before.end, before.left = min(before.end, offset), True
    return kept


def _unexplained_gap(files: list[LogFile], since: int, account: LedgerAccount) -> tuple[int, int] | None:
    """Return the file number and the offset from which on the log lacks a part that the ledger does not know.

    A log file says where the log before it ends. What such a part held, and which topics it created, is unknown.
    """
    known = {file.number: file for file in files}
    for file in files:
        place = file.resume if file.resume[0] else walfile.follows(file.data)
        if place is None or place[0] < since or place[0] in account.files:
            continue
        number, offset = place
        if number not in known:
            if offset > walfile.FIRST_BYTES:
                return number, 0
        elif (end := known[number].end) < offset:
            return number, end
    return None


def check_known(datadir: DataDir, account: LedgerAccount, files: list[LogFile], snapshot: Snapshot) -> None:
    """Raise `Corrupt` if a part of the log is missing and no file says what it held.

    A start would begin without the topics that the rest of the log belongs to, and delete that rest.
    """
    if (gap := _unexplained_gap(files, snapshot.wal_number, account)) is not None:
        raise Corrupt(
            datadir.wal_path(gap[0]),
            gap[1],
            "the rest of the log file is missing, and no ledger says what it held; "
            "put the file back, or restore the data directory from a backup",
        )
    if not snapshot.wal_number:
        is_lost = bool(datadir.written_by) and not account.numbers and not datadir.wal_numbers()
    else:
        is_lost = (
            lost(datadir, account, files, snapshot) is not None and not snapshot.topics and not _has_entries(files)
        )
    if is_lost:
        raise Corrupt(
            datadir.wal_dir, 0, "the log and its ledger are missing; restore the data directory from a backup"
        )


def _has_entries(files: list[LogFile]) -> bool:
    return any(walfile.has_begun(file.data) for file in files)


def copied(datadir: DataDir, since: int, files: list[LogFile], lacking: dict[int, Expected]) -> bytes:
    """Return a ledger for copies of log files that end with their last whole frame.

    What the ledger of `datadir` says of topics is true of the copies, too. What it says of files is true only of those
    that the original lacks, or lacks a part of: the copy reports that loss like the original. Without files, the ledger
    claims nothing of the log.
    """
    notes = [_reached_note(since, 0)]
    for number in datadir.ledger_numbers():
        if number >= since:
            data = read_whole(datadir.fs, datadir.ledger_path(number))
            items = [item for item in walfile.scan(data, start=0) if isinstance(item, walfile.FoundFrame)]
            notes += [data[item.at : item.end] for item in items if item.frame.head.kind in (TOPIC, GONE)]
    found = {file.number: file for file in files}
    previous = (0, 0)
    for number in sorted({*found, *lacking}):
        file, known = found.get(number), lacking.get(number)
        if file is not None and file.resume[0]:
            previous = file.resume if file.resume[0] in found or file.resume[0] in lacking else (0, 0)
        end = known.end if known is not None else len(found[number].data)
        size_bytes = known.size_bytes if known is not None else end
        notes += [file_note(number, previous, size_bytes), _reached_note(number, end)]
        previous = number, end
    return b"".join(notes)


def _take(account: LedgerAccount, found: frame.Frame, since: int) -> None:
    head, files = found.head, account.files
    if head.kind == FILE:
        previous, end, size_bytes = _decode_ints(found.body)
        number = head.first
        for other in [other for other in files if previous < other < number]:
            del files[other]  # void: the log continued from an earlier file
        if previous:
            account.unsynced_from = max(account.unsynced_from, number)
        if previous >= since and previous:
            before = files.setdefault(previous, Expected())
            before.end, before.left = end, True
        if number >= since:
            files.setdefault(number, Expected(walfile.HEADER_BYTES)).size_bytes = size_bytes
        account.last_number = max(account.last_number, number)
    elif head.kind == REACHED and head.first in files and not files[head.first].left:
        files[head.first].end = max(files[head.first].end, _decode_ints(found.body)[0])
    elif head.kind == TOPIC:
        try:
            name, epoch, config = _decode_topic(found.body)
        except msgspec.MsgspecError as error:
            raise UnknownFormat(f"the ledger has a topic with unknown settings ({error})") from error
        known = account.topics.get(head.topic_id)
        ceiling = head.first if known is None else max(head.first, known.ceiling)
        account.topics[head.topic_id] = Known(head.topic_id, name, epoch, config, ceiling)
    elif head.kind == GONE:
        account.topics.pop(head.topic_id, None)
        account.gone.add(head.topic_id)
    elif head.kind != REACHED:
        raise UnknownFormat(f"the ledger has a note of kind {head.kind}")
