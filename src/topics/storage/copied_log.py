"""The log of a backup: read the files of a source whose server may run, and carry its losses into the copy."""

from __future__ import annotations

from collections.abc import Callable

from topics.errors import Corrupt
from topics.storage.backup_target import CopyError
from topics.storage.datadir import DataDir
from topics.storage.fs import read_whole
from topics.storage.log import ledger, log_files, walfile
from topics.storage.log.log_files import LogFile
from topics.storage.snapshot import Snapshot

READ_TRIES = 5


class CopiedLog:
    """The log files of a source after a snapshot, each up to its last whole frame, and the ledger for the copy.

    `account` is what the ledger of the source said before these files were read, so they must have all that it claims.
    """

    def __init__(self, source: DataDir, account: ledger.LedgerAccount, problems: list[str]) -> None:
        self._source = source
        self._account = account
        self._problems = problems
        self._sizes: dict[int, int] = {}
        self.files: list[LogFile] = []
        self.ledger = b""  # empty if the source has lost its ledger: the copy reports that, too

    def read(self, numbers: list[int], pause: Callable[[], None]) -> None:
        """Read the files, the last one first. Leave out the unused ones at the end of the log."""
        files = [self._read_file(number, pause) for number in reversed(numbers)][::-1]
        while len(files) > 1 and _is_unused(files[-1]):
            files.pop()
        self.files = files

    def check(self, snapshot: Snapshot | None) -> None:
        """Compare the files with the ledger, and report what is missing. Raise `CopyError` if that is unknown."""
        if snapshot is None and not self.files:
            raise CopyError(f"{self._source.root} has no log and no snapshot; run `topics verify {self._source.root}`")
        try:
            ledger.check_known(self._source, self._account, self.files, snapshot)
        except Corrupt as error:
            raise CopyError(str(error)) from error
        since = 0 if snapshot is None else snapshot.wal_number
        lost = ledger.lost(self._source, self._account, self.files, snapshot)
        if lost is not None:
            self._problems.append(f"{self._source.ledger_path(lost)} at byte 0: {ledger.MISSING}")
            return
        expected = ledger.without_void(self._account.files, self.files)
        if snapshot is not None and snapshot.clean and set(expected) <= {since}:
            expected = {}  # nothing was written after the snapshot
        self.ledger = ledger.copied(self._source, since, self.files, self._lacking(expected))

    def _lacking(self, expected: dict[int, ledger.Expected]) -> dict[int, ledger.Expected]:
        """Report the files that are missing or end too early, and return what the ledger says of them."""
        found = {file.number: file for file in self.files}
        lacking = {}
        for number, known in sorted(expected.items()):
            end = 0
            if number in found:
                if found[number].unreadable:
                    continue  # reported; the empty copy is unreadable, too
                end = len(found[number].data)
                what = known.lacks(end, self._sizes[number])
            else:
                what = "" if number in self._sizes else "the log file is missing"
            if what:
                self._problems.append(f"{self._source.wal_path(number)} at byte {end}: {what}")
                lacking[number] = known
        return lacking

    def _read_file(self, number: int, pause: Callable[[], None]) -> LogFile:
        path = self._source.wal_path(number)
        for _ in range(READ_TRIES):
            data = read_whole(self._source.fs, path)
            items = list(walfile.scan(data))
            damaged = [item for item in items if isinstance(item, walfile.Damage)]
            if not damaged:
                break
            pause()  # an unfinished write looks like damage: read again
        self._sizes[number] = len(data)
        file = log_files.decode(number, path, data, self._problems)
        if file.unreadable:
            self._problems.append(f"{path} at byte 0: {file.unreadable}")
            return file
        torn = bool(damaged) and damaged[-1].torn and damaged[-1] is items[-1]
        for item in damaged[:-1] if torn else damaged:
            self._problems.append(f"{path} at byte {item.at}: {item.end - item.at} damaged bytes in the log")
        end = damaged[-1].write_at if torn else file.end
        return file._replace(data=data[:end])


def _is_unused(file: LogFile) -> bool:
    return not file.unreadable and not file.resume[0] and len(file.data) <= walfile.FIRST_BYTES
