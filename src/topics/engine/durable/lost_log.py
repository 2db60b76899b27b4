"""Detect and report log files that are truncated, missing, or older than the ledger says.

What stood in the missing part is unknown, and so is whose it was. Every topic that has nothing behind that part goes on
above its ceiling, and the seqs between count as lost (`corrupt`), so that none is given out twice. A topic that only
the missing part knew comes back empty under its name.
"""

from __future__ import annotations

from typing import NamedTuple

from topics import logs
from topics.engine import retention
from topics.engine.durable.log_files import LogFile
from topics.engine.state.topics import State
from topics.engine.write import apply
from topics.storage.datadir import DataDir
from topics.storage.log import entry as entries
from topics.storage.log import ledger, walfile
from topics.storage.log.frame import Head

log = logs.Log("recovery")

NO_LEDGER = "the ledger is missing: nothing is lost by that, but a log file that is missing or cut short goes unnoticed"


class Lost(NamedTuple):
    """Seqs of a topic that may have been in a missing part of the log."""

    path: str
    offset: int
    topic: str
    first: int
    last: int


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
        self._expected = _adjusted(self._account.files, files)
        self._clean = clean and set(self._expected) <= {since}  # nothing was written after the last snapshot
        if self._clean:
            self._expected = {}
        self._missing = sorted(set(self._expected) - set(datadir.wal_numbers()))
        self._known = set(state.by_id)  # topics in the snapshot or in the log so far
        self._appended: set[int] = set()  # topics whose next seq is known from an entry after the last missing part
        self._changed: set[int] = set()  # topics with entries other than records
        self.lost: list[Lost] = []
        self._missing_at: tuple[str, int] | None = None  # where the last missing part begins

    @property
    def last_number(self) -> int:
        """The highest known number of a log file."""
        return self._account.last_number

    @property
    def failed(self) -> bool:
        return self._missing_at is not None

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
        if expected is None:
            return
        size_bytes = self._dir.fs.size(file.path)
        if end < expected.end:
            self._lose(file.number, end, f"the log file ends here, and was written to byte {expected.end} at least")
        elif size_bytes < expected.size_bytes:
            what = f"the log file is cut short: {size_bytes} of {expected.size_bytes} bytes"
            if expected.left:  # the file is complete
                self._damage.append(f"{file.path} at byte {size_bytes}: {what}; nothing is lost")
                log.warning("log_cut_short", file=file.path, bytes=size_bytes, expected_bytes=expected.size_bytes)
            else:
                self._lose(file.number, end, what)

    def end(self) -> None:
        """End the replay: make every topic skip the seqs that a missing part of the log may have assigned."""
        state, account = self._state, self._account
        state.next_topic_id = max([state.next_topic_id, *(topic_id + 1 for topic_id in account.topics)])
        state.last_epoch = max([state.last_epoch, *(known.epoch for known in account.topics.values())])
        for topic in list(state.by_id.values()):
            known = account.topics.get(topic.topic_id)
            if known is not None and known.epoch == topic.epoch and not self._clean:
                topic.ceiling = topic.ceiling_staged = max(topic.ceiling, known.ceiling)
                if self.failed and known.config != topic.config:
                    apply.configure(state, topic, entries.Configure(topic.topic_id, known.config, topic.last_ts))
            if self._missing_at is None or topic.topic_id in self._appended or topic.config.durability == "ephemeral":
                continue
            first = topic.head + 1
            retention.skip_to(topic, topic.ceiling + 1, "corrupt")
            if topic.head >= first:
                self.lost.append(Lost(*self._missing_at, topic.name, first, topic.head))
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
        """Report a missing part of a log file, and restore the topics that only this part had created."""
        path = self._dir.wal_path(number)
        self._missing_at = path, offset
        self._damage.append(f"{path} at byte {offset}: {what}")
        log.error("log_incomplete", file=path, offset=offset, what=what)
        self._appended.clear()
        state, account = self._state, self._account
        for topic_id in account.gone:
            if (topic := state.by_id.get(topic_id)) is not None:
                apply.drop(state, topic)
        known_later = self._created_after(number)
        for known in account.topics.values():
            if known.topic_id not in self._known | known_later and known.topic_id not in state.by_id:
                self._known.add(known.topic_id)
                if known.name not in state.by_name:
                    apply.create(state, entries.Create(known.topic_id, known.name, known.epoch, known.config, 0))

    def _created_after(self, number: int) -> set[int]:
        """Return the ids of the topics that later log files create."""
        return {
            item.frame.head.topic_id
            for file in self._files
            if file.number > number
            for found in walfile.scan(file.data)
            for item in (found.begun if isinstance(found, walfile.Damage) else (found,))
            if item.frame.head.kind == entries.CREATE
        }


def _adjusted(expected: dict[int, ledger.Expected], files: list[LogFile]) -> dict[int, ledger.Expected]:
    """Return the files that the ledger expects, without those that a later log file declares void."""
    kept = dict(expected)
    for file in files:
        number, offset = file.resume
        if number:
            for other in [other for other in kept if number < other < file.number]:
                del kept[other]
            if (before := kept.get(number)) is not None:
                before.end, before.left = min(before.end, offset), True
    return kept
