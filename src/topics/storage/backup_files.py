"""The files of a backup: what its target holds, and the marks, tails and log of a source on which a server may run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from typing import NoReturn

from topics.errors import Corrupt
from topics.storage import snapshot as snap
from topics.storage.check import examine
from topics.storage.datadir import DataDir
from topics.storage.fs import Fs, read_whole, reader_of
from topics.storage.log import ledger, log_files, walfile
from topics.storage.log.entry import APPEND
from topics.storage.log.log_files import LogFile
from topics.storage.segments import codec
from topics.storage.segments.marks import LIVE, LOST

READ_TRIES = 5


class CopyError(Exception):
    """The copy failed and the target is unchanged. The text gives the reason and the next step."""


class HeldBackup:
    """The state of a target before a copy; empty for a target without a complete backup."""

    def __init__(self, target: DataDir) -> None:
        self.snapshot = newest_snapshot(target, []) if target.declared else snap.empty()
        self._topics = {topic.topic_id: topic for topic in self.snapshot.topics}
        self._heads = {topic_id: topic.head for topic_id, topic in self._topics.items()}
        for number in target.wal_numbers() if target.declared else ():
            for item in walfile.scan(read_whole(target.fs, target.wal_path(number))):
                if isinstance(item, walfile.FoundFrame) and item.frame.head.kind == APPEND:
                    _, topic_id, first, count = item.frame.head
                    self._heads[topic_id] = max(self._heads.get(topic_id, 0), first + count - 1)
        self.footers = {ref.footer for topic in self._topics.values() for ref in topic.segments}
        self.tails = {topic.tail.tails for topic in self._topics.values() if topic.tail is not None}

    def may_have(self, topic_id: int, first: int, last: int) -> bool:
        """Return whether the target may have a record of this range."""
        topic = self._topics.get(topic_id)
        earliest = 1 if topic is None else topic.earliest
        return max(first, earliest) <= min(last, self._heads.get(topic_id, 0))

    def lost_since(self, topic: snap.TopicSnapshot) -> list[tuple[int, int]]:
        """Return the ranges that the source has lost to damage and that the target may have."""
        known = self._topics.get(topic.topic_id)
        before = [] if known is None else [run for run in known.losses if run[2] == "corrupt"]
        return [
            (first, last)
            for first, last, reason in topic.losses
            if reason == "corrupt"
            and self.may_have(topic.topic_id, first, last)
            and not any(low <= first and last <= high for low, high, _ in before)
        ]

    def is_earlier_than(self, snapshot: snap.Snapshot, target: DataDir) -> bool:
        """Return whether the target can be an earlier state of a source with this snapshot."""
        held, number = self.snapshot.wal_number, snapshot.wal_number
        if held > number or (held < number and any(other >= number for other in target.wal_numbers())):
            return False
        now = {topic.topic_id: topic for topic in snapshot.topics}
        for topic in self.snapshot.topics:
            same = now.get(topic.topic_id)
            if same is not None and ((same.name, same.epoch) != (topic.name, topic.epoch) or same.head < topic.head):
                return False
            refs = {} if same is None else {ref.first: ref for ref in same.segments}
            for ref in topic.segments:
                now_ref = refs.get(ref.first, ref)
                if now_ref.footer != ref.footer and now_ref.generation <= ref.generation:
                    return False  # not the same one, and not rewritten since
        return snapshot.last_epoch >= self.snapshot.last_epoch


def refuse_history(source: DataDir, target: DataDir) -> NoReturn:
    raise CopyError(
        f"{target.root} is no earlier backup of {source.root}: it is one of another directory, "
        "or a server was started on it since; choose another target"
    )


def refuse_damage(source: DataDir, target: DataDir, problems: list[str]) -> NoReturn:
    first = problems[0].replace("; ", ", ")  # the text after a semicolon is the next step
    raise CopyError(
        f"{target.root} is unchanged: it has records that are damaged or missing in {source.root} "
        f"({len(problems)} places, the first: {first}); keep it, and back up to a new directory"
    )


def newest_number(datadir: DataDir) -> int:
    """Return the number of the newest snapshot, 0 if there is none."""
    return max(datadir.snapshot_numbers(), default=0) if datadir.fs.exists(datadir.snapshots_dir) else 0


def newest_snapshot(datadir: DataDir, problems: list[str]) -> snap.Snapshot:
    """Return the newest readable snapshot. Raise `CopyError` if there was one and none can be read."""
    try:
        return log_files.newest_snapshot(datadir, problems)
    except Corrupt as error:
        what = error.what.partition("; ")[0]
        raise CopyError(f"{error.path}: {what}; run `topics verify {datadir.root}`") from error


def read_marks(fs: Fs, path: str, footer: codec.Footer) -> bytearray:
    """Return the marks of a segment file. A flag that is damaged or missing gives no mark."""
    with closing(fs.open(path)) as file:
        flags = file.pread(footer.count, footer.flags_at).ljust(footer.count, b"\0")
    marks = codec.decode_flags(flags) or bytearray(footer.count)
    for at in codec.damaged_flags(flags):
        marks[at] = LIVE if marks[at] == LOST else marks[at]
    return marks


def read_footer(fs: Fs, path: str) -> codec.Footer | None:
    """Return the footer of a segment file; None if it is damaged."""
    with closing(fs.open(path)) as file, suppress(Corrupt):
        size = file.size()
        tail = file.pread(codec.FOOTER_BYTES, max(size - codec.FOOTER_BYTES, 0))
        return codec.decode_footer(tail, path=path, file_bytes=size)
    return None


def tail_problems(path: str, topic: str, ref: snap.TailRef, data: bytes) -> list[str]:
    """Return what is wrong with the last records of a topic in the tails file with these bytes."""
    part = data[ref.offset : ref.offset + ref.size]
    problems = examine(reader_of(part), len(part), path=path).problems
    return [f"{path} at byte {ref.offset + one.offset}: {one.what}; last records of topic {topic}" for one in problems]


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
        while len(files) > 1 and not files[-1].unreadable and not files[-1].resume[0]:
            if len(files[-1].data) > walfile.FIRST_BYTES:
                break
            files.pop()
        self.files = files

    def check(self, snapshot: snap.Snapshot) -> None:
        """Compare the files with the ledger, and report what is missing. Raise `CopyError` if that is unknown."""
        if not snapshot.wal_number and not self.files:
            raise CopyError(f"{self._source.root} has no log and no snapshot; run `topics verify {self._source.root}`")
        try:
            ledger.check_known(self._source, self._account, self.files, snapshot)
        except Corrupt as error:
            raise CopyError(str(error)) from error
        lost = ledger.lost(self._source, self._account, self.files, snapshot)
        if lost is not None:
            self._problems.append(f"{self._source.ledger_path(lost)} at byte 0: {ledger.MISSING}")
            return
        expected = ledger.without_void(self._account.files, self.files)
        if snapshot.clean and set(expected) <= {snapshot.wal_number}:
            expected = {}  # nothing was written after the snapshot
        self.ledger = ledger.copied(self._source, snapshot.wal_number, self.files, self._lacking(expected))

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
