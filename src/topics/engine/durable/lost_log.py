"""Detect and report log files that are truncated, missing, unreadable, or older than the ledger says.

Which entries the missing part had is unknown, and so are their topics. Every topic that has nothing behind that part
continues above its ceiling, and the seqs between count as lost (`corrupt`), so that none is given out twice. A topic
that only the missing part knew comes back empty under its name.
"""

from __future__ import annotations

from topics import logs
from topics.engine import retention
from topics.engine.state.topics import State
from topics.engine.write import apply
from topics.errors import DamageReport
from topics.storage.datadir import DataDir
from topics.storage.log import entry as entries
from topics.storage.log import ledger, walfile
from topics.storage.log.frame import Head
from topics.storage.log.log_files import LogFile
from topics.storage.log.walfile import HEADER_BYTES

log = logs.Log("recovery")

LOST_PART = "may have been in the part of the log that is not there"


class Check:
    """Compares a log with its ledger while the log is replayed."""

    def __init__(
        self,
        datadir: DataDir,
        state: State,
        files: list[LogFile],
        since: int,
        account: ledger.LedgerAccount,
        *,
        clean: bool,
        lost_ledger: int | None,
        damage: list[str],
    ) -> None:
        self._dir = datadir
        self._state = state
        self._damage = damage
        self._files = files
        self._account = account
        for path, at in self._account.damage:
            damage.append(f"{path} at byte {at}: the ledger is damaged here; nothing is lost while the log is whole")
            log.warning("ledger_damaged", file=path, offset=at)
        self._lost_ledger = None if lost_ledger is None else datadir.ledger_path(lost_ledger)
        if self._lost_ledger is not None:
            damage.append(f"{self._lost_ledger} at byte 0: {ledger.MISSING}")
            log.error("ledger_missing", file=self._lost_ledger)
        self._expected = ledger.without_void(self._account.files, files)
        if self._lost_ledger is not None and not clean and since:
            self._expected.setdefault(since, ledger.Expected(HEADER_BYTES))
        # Whether nothing was written after the last snapshot.
        self._clean = clean and lost_ledger is None and set(self._expected) <= {since}
        if self._clean:
            self._expected = {}
        self._missing = sorted(set(self._expected) - set(datadir.wal_numbers()))
        self._known = set(state.by_id)  # topics in the snapshot or in the log so far
        self._appended: set[int] = set()  # topics whose next seq is known from an entry after the last missing part
        self._changed: set[int] = set()  # topics with entries other than records
        self.lost: list[DamageReport] = []  # seqs that may have been in a missing part of the log
        self._missing_at: tuple[str, int] | None = None  # where the last missing part begins

    def before_file(self, number: int | None) -> None:
        """Report the files that should have come before this one; all that are left without a number."""
        while self._missing and (number is None or self._missing[0] < number):
            self._lose(self._missing.pop(0), 0, "the log file is missing")

    def entry(self, head: Head) -> None:
        """Note an entry of the log before it takes effect."""
        if head.kind == entries.APPEND:
            self._appended.add(head.topic_id)
            return
        self._changed.add(head.topic_id)
        if head.kind == entries.CREATE:
            self._known.add(head.topic_id)

    def after_file(self, file: LogFile, end: int) -> None:
        """Report what the file lacks. Its last entry ended at `end`."""
        expected = self._expected.get(file.number)
        if file.unreadable:
            if self._clean:
                self._damage.append(f"{file.path} at byte 0: {file.unreadable}; nothing is lost")
            else:
                self._lose(file.number, 0, file.unreadable)
            return
        if expected is None:
            return
        size_bytes = self._dir.fs.size(file.path)
        if what := expected.lacks(end, size_bytes):
            self._lose(file.number, end, what)
        elif size_bytes < expected.size_bytes:  # the file is complete
            what = f"the log file is cut short: {size_bytes} of {expected.size_bytes} bytes"
            self._damage.append(f"{file.path} at byte {size_bytes}: {what}; nothing is lost")
            log.warning("log_cut_short", file=file.path, bytes=size_bytes, expected_bytes=expected.size_bytes)

    def damaged(self, number: int, found: walfile.Damage) -> None:
        """Note a damaged part of a log file, after it was reported. Its contents are unknown if it is not one frame.

        A part that held something else than records may have created a topic whose records follow.
        """
        head = found.head
        if not found.certain:
            self._missing_at = self._dir.wal_path(number), found.at
            self._appended.clear()
            topic = None if head is None else self._state.by_id.get(head.topic_id)
            if head is not None and topic is not None and topic.head == head.first + head.count - 1:
                self._appended.add(head.topic_id)  # the last frame of the part has its last seq
        if not found.certain or head is None or head.kind != entries.APPEND:
            self._restore_topics(number, found.end)

    def end(self) -> None:
        """End the replay: make every topic skip the seqs that a missing part of the log may have assigned."""
        state, account, what = self._state, self._account, LOST_PART
        if self._lost_ledger is not None:  # the last file may be missing, too
            self._missing_at, what = (self._lost_ledger, 0), ledger.MISSING
            self._appended.clear()
        state.next_topic_id = max([state.next_topic_id, *(topic_id + 1 for topic_id in account.topics)])
        state.last_epoch = max([state.last_epoch, *(known.epoch for known in account.topics.values())])
        for topic in list(state.by_id.values()):
            known = account.topics.get(topic.topic_id)
            if known is not None and known.epoch == topic.epoch and not self._clean:
                topic.ceiling = topic.ceiling_staged = max(topic.ceiling, known.ceiling)
                if self._missing_at is not None and known.config != topic.config:
                    apply.configure(state, topic, entries.Configure(topic.topic_id, known.config, topic.last_ts))
            if self._missing_at is None or topic.topic_id in self._appended or topic.config.durability == "ephemeral":
                continue
            first = topic.head + 1
            retention.skip_to(topic, topic.ceiling + 1, "corrupt")
            if topic.head >= first:
                self.lost.append(DamageReport(*self._missing_at, what, topic=topic.name, seqs=(first, topic.head)))
                log.error("seqs_lost", topic=topic.name, first_seq=first, last_seq=topic.head, file=self._missing_at[0])

    def unnoted(self) -> set[int]:
        """Return the ids of topics that the log created, changed or dropped and that the ledger has not noted.

        A process that is killed before its next sync has written entries to the log and none to the ledger.
        """
        found = set()
        for topic_id in self._changed:
            topic, known = self._state.by_id.get(topic_id), self._account.topics.get(topic_id)
            if topic is None:
                if known is not None or topic_id not in self._account.gone:
                    found.add(topic_id)
            elif known is None or (known.config, known.ceiling) != (topic.config, topic.ceiling):
                found.add(topic_id)
        return found

    def _lose(self, number: int, offset: int, what: str) -> None:
        """Report that a log file lacks everything from `offset` on."""
        path = self._dir.wal_path(number)
        self._missing_at = path, offset
        self._damage.append(DamageReport(path, offset, what))
        log.error("log_incomplete", file=path, offset=offset, what=what)
        self._appended.clear()
        self._restore_topics(number + 1, 0)

    def _restore_topics(self, number: int, offset: int) -> None:
        """Restore the topics that only the log before this place can have created."""
        state, account = self._state, self._account
        for topic_id in account.gone:
            if (topic := state.by_id.get(topic_id)) is not None:
                apply.drop(state, topic)
        known_later = self._created_from(number, offset)
        for known in account.topics.values():
            if known.topic_id not in self._known | known_later and known.topic_id not in state.by_id:
                self._known.add(known.topic_id)
                if known.name not in state.by_name:
                    apply.create(state, entries.Create(known.topic_id, known.name, known.epoch, known.config, 0))

    def _created_from(self, number: int, offset: int) -> set[int]:
        """Return the ids of the topics that the log creates from this place on."""
        return {
            item.frame.head.topic_id
            for file in self._files
            if file.number >= number
            for found in walfile.scan(file.data, start=offset if file.number == number and offset else HEADER_BYTES)
            for item in (found.begun if isinstance(found, walfile.Damage) else (found,))
            if item.frame.head.kind == entries.CREATE
        }
