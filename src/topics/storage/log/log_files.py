"""Read the snapshot and the log files that a start begins with, and find where the log ends."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from topics import logs
from topics.errors import Corrupt, DamageReport
from topics.storage import snapshot as snap
from topics.storage.datadir import DataDir
from topics.storage.fs import read_whole, reader_of
from topics.storage.log import walfile

log = logs.Log("recovery")


class LogFile(NamedTuple):
    number: int
    path: str
    data: bytes  # as far as it is valid
    resume: tuple[int, int] = (0, 0)  # file number and offset at which the log before it ends, if it says so
    unreadable: str = ""  # why nothing of the file can be used; `data` is empty then
    start: int = walfile.HEADER_BYTES  # where the entries begin that the snapshot does not have
    last: bool = False  # no later one has begun: a write cut short at its end is the log's own end

    @property
    def end(self) -> int:
        """The offset after the last entry, damaged ones included."""
        return walfile.whole_end(self.data, damaged=True)


def read_log(
    datadir: DataDir,
    since: int,
    damage: list[str],
    cut: list[str],
    *,
    unsynced_from: int | None,
) -> list[LogFile]:
    """Return the log files from number `since` on, each cut where a later one says that it ends.

    `unsynced_from` is the first file that the ledger does not report as synced to its end, or None if no power was lost
    since the files were written. From that file on, the log ends where the end of a file is
    missing. The files behind it were not synced either, so no write in them was promised to survive.
    """
    files: list[LogFile] = []
    for number in datadir.wal_numbers():
        if number < since:
            continue
        path = datadir.wal_path(number)
        file = decode(number, path, read_whole(datadir.fs, path), damage)
        if file.resume[0]:
            files = [other for other in files if other.number <= file.resume[0]]
            if files and files[-1].number == file.resume[0]:
                files[-1] = files[-1]._replace(data=files[-1].data[: file.resume[1]])
        if 0 < file.resume[0] < since < number:
            file = file._replace(start=walfile.entries_from(file.data, since))
        files.append(file)
    if unsynced_from is not None:
        files = _until_missing_end(files, unsynced_from, cut)
    for at in range(len(files) - 1, -1, -1):
        files[at] = files[at]._replace(last=True)
        if walfile.has_begun(files[at].data):
            break
    return files


def decode(number: int, path: str, data: bytes, damage: list[str]) -> LogFile:
    """Return the log file with these bytes. Report damage of its header."""
    try:
        header = walfile.decode_header(data, path=path, number=number)
    except Corrupt as error:
        log.error("log_header_damaged", file=path, reason=error.what)
        is_foreign = len(walfile.damaged_headers(data)) < 2
        if is_foreign or walfile.whole_end(data) <= walfile.HEADER_BYTES:
            return LogFile(number, path, b"", unreadable=error.what)
        damage.append(DamageReport(path, error.offset, error.what))  # without its header it still holds its frames
        return LogFile(number, path, data)
    if bad := walfile.damaged_headers(data):
        what = "one copy of the header is damaged, the other was used"
        damage.append(DamageReport(path, bad[0], what, harmless=True))
        log.warning("log_header_copy_damaged", file=path, offset=bad[0])
    return LogFile(number, path, data, (header.resume_number, header.resume_offset))


def _until_missing_end(files: list[LogFile], unsynced_from: int, cut: list[str]) -> list[LogFile]:
    """Return the files up to the first one whose end is missing, or which is followed by one without a beginning.

    Files that were prepared and never used can be between two files of the log.
    """
    known = {file.number: file for file in files if file.number >= unsynced_from}
    for before, file in pairwise(files):
        if file.resume[0] or before.number < unsynced_from:
            continue
        last, said = before, walfile.follows(file.data)
        if said is None:
            empty = walfile.whole_end(file.data) == walfile.HEADER_BYTES
            is_missing = empty and walfile.written_end(file.data) > walfile.HEADER_BYTES
        else:
            last = known.get(said[0], before)
            is_missing = said[0] == last.number and walfile.whole_end(last.data) < said[1]
        if is_missing:
            at, end = files.index(last) + 1, walfile.whole_end(last.data)
            later = len(files) - at
            cut.append(f"{last.path} at byte {end}: the log ends here; {later} later files were not synced either")
            log.warning("unsynced_end_cut", file=last.path, offset=end, later_files=later)
            return files[:at]
    return files


def newest_snapshot(datadir: DataDir, damage: list[str], *, packed: bool = False) -> snap.Snapshot:
    """Return the newest readable snapshot; an empty one with number 0 in a directory that never had one.

    Raise `Corrupt` if there was a snapshot and none is readable. Report damaged ones in `damage`.
    """
    numbers = datadir.snapshot_numbers()
    for number in reversed(numbers):
        path = datadir.snapshot_path(number)
        data = read_whole(datadir.fs, path)
        try:
            bad = snap.damaged_copies(reader_of(data), len(data))
            snapshot = snap.decode(data, path=path, number=number, packed=packed, bad=bad)
        except Corrupt as error:
            damage.append(DamageReport(path, error.offset, error.what))
            log.error("snapshot_damaged", file=path, reason=error.what)
            continue
        if bad:
            what = "one copy of the snapshot is damaged, the other was used"
            damage.append(DamageReport(path, bad[0], what, harmless=True))
            log.warning("snapshot_copy_damaged", file=path, offset=bad[0])
        return snapshot
    log_numbers = datadir.wal_numbers()
    began_later = log_numbers[:1] > [1] or datadir.ledger_numbers()[:1] > [1]
    if not numbers and (began_later or (not log_numbers and (datadir.tails_numbers() or datadir.topic_ids()))):
        # Without a snapshot the directory would count as empty, and its files as leftovers.
        raise Corrupt(datadir.snapshots_dir, 0, "the snapshot is missing; restore the data directory from a backup")
    if numbers:
        raise Corrupt(
            datadir.snapshot_path(numbers[-1]), 0, "no snapshot can be read; restore the data directory from a backup"
        )
    return snap.empty()
