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
after a power loss. If it cannot be written, the log goes on without.
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
from topics.storage.fs import File
from topics.storage.log import frame, walfile

log = logs.Log("ledger")

FILE, REACHED, TOPIC, GONE = 1, 2, 3, 4

_encode = msgspec.msgpack.encode
_decode_topic = msgspec.msgpack.Decoder(tuple[str, int, TopicConfig]).decode
_decode_ints = msgspec.msgpack.Decoder(list[int]).decode


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


class LedgerAccount(Struct):
    """The content of all ledger files together."""

    files: dict[int, Expected] = {}
    topics: dict[int, Known] = {}
    gone: set[int] = set()
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
        self._path = ""
        self._file: File | None = None
        self._at = 0
        self._failed = False
        self.reached = (0, 0)  # the last noted position

    def begin(self, number: int, size_bytes: int, *, previous: tuple[int, int] = (0, 0)) -> bytes:
        """Continue in the file of snapshot `number`. Notes that could not be written before go there.

        Return the note that the file begins with. The caller writes it before that snapshot counts, so that a ledger
        belongs to every snapshot. It claims only that log file `number` exists, which no sync has to make true.
        """
        with self._lock:
            self._path = self._dir.ledger_path(number)
        return frame.encode(FILE, 0, number, 0, _encode([*previous, size_bytes]))

    def note_file(self, number: int, *, previous: tuple[int, int], size_bytes: int) -> None:
        self._note(frame.encode(FILE, 0, number, 0, _encode([*previous, size_bytes])))

    def note_reached(self, position: tuple[int, int]) -> None:
        """Note that the log is synced up to here."""
        if position != self.reached:
            self.reached = position
            self._note(frame.encode(REACHED, 0, position[0], 0, _encode([position[1]])))

    def note_topic(self, topic_id: int, name: str, epoch: int, config: TopicConfig, ceiling: int) -> None:
        self._note(frame.encode(TOPIC, topic_id, ceiling, 0, _encode((name, epoch, config))))

    def note_gone(self, topic_id: int) -> None:
        self._note(frame.encode(GONE, topic_id, 0, 0, _encode(())))

    @property
    def waits(self) -> bool:
        """Whether there are notes to write."""
        return bool(self._notes)

    def take(self) -> list[bytes]:
        """Take the notes that will be true once everything written to the log so far is synced."""
        if not self._notes:
            return []
        with self._lock:
            notes, self._notes = self._notes, []
        return notes

    def put_back(self, notes: list[bytes]) -> None:
        with self._lock:
            self._notes = notes + self._notes

    def write(self, notes: list[bytes]) -> bool:
        """Write and sync the notes. Return False if that fails: they are tried again with the next sync."""
        if not notes:
            return True
        path = self._path
        try:
            with self._file_lock:
                self._append(path, b"".join(notes))
        except OSError as error:
            self.put_back(notes)
            if not self._failed:
                self._failed = True
                log.error("ledger_failed", file=path, reason=error.strerror or str(error))
            return False
        self._failed = False
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
            if self._path:
                self._notes.append(entry)

    def _append(self, path: str, data: bytes) -> None:
        file = self._file
        if file is None or file.path != path:
            new = self._dir.fs.open(path, create=True)
            try:
                at = walfile.written_end(new.pread(new.size(), 0))
                self._dir.fs.sync_dir(self._dir.ledger_dir)
            except OSError:  # the next write tries to make the name durable again
                with suppress(OSError):
                    new.close()
                raise
            if file is not None:
                with suppress(OSError):
                    file.close()
            self._file, self._at = new, at
            file = new
        file.pwrite(data, self._at)
        file.datasync()
        self._at += len(data)


def read(datadir: DataDir, since: int) -> LedgerAccount:
    """Return what the ledger files from number `since` on say together."""
    account = LedgerAccount()
    for number in datadir.ledger_numbers():
        if number < since:
            continue
        path = datadir.ledger_path(number)
        for item in walfile.scan(_read_whole(datadir, path), start=0):
            if isinstance(item, walfile.FoundFrame):
                _take(account, item.frame, since)
            elif not item.torn:
                account.damage.append((path, item.at))
    return account


def copied(datadir: DataDir, since: int, files: list[tuple[int, bytes]]) -> bytes:
    """Return a ledger for copies of log files, by number and content, that end with their last whole frame.

    What the ledger of `datadir` says of topics is true of the copies, too. What it says of files is not: those are
    longer.
    """
    notes: list[bytes] = []
    for number in datadir.ledger_numbers():
        if number >= since:
            data = _read_whole(datadir, datadir.ledger_path(number))
            items = [item for item in walfile.scan(data, start=0) if isinstance(item, walfile.FoundFrame)]
            notes += [data[item.at : item.end] for item in items if item.frame.head.kind in (TOPIC, GONE)]
    previous = (0, 0)
    for number, data in files:
        with suppress(Corrupt):  # the copy reports a damaged header
            header = walfile.decode_header(data, path=datadir.wal_path(number), number=number)
            if header.resume_number:
                is_copied = any(header.resume_number == other for other, _ in files)  # a file without entries is not
                previous = (header.resume_number, header.resume_offset) if is_copied else (0, 0)
        notes.append(frame.encode(FILE, 0, number, 0, _encode([*previous, len(data)])))
        previous = number, walfile.whole_end(data)
        notes.append(frame.encode(REACHED, 0, number, 0, _encode([previous[1]])))
    return b"".join(notes)


def _read_whole(datadir: DataDir, path: str) -> bytes:
    file = datadir.fs.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


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
