"""The Delta table of one topic: its newest state, and commits.

A commit adds and removes files and sets facts, at once. It is made from a base state: if the newest version does not
fit to the base any more, the commit raises `Conflict`, and the caller builds the change again. A commit is written as
the version after the one that was checked: of two processes one succeeds, and the other checks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from msgspec import structs

from topics.clock import SystemClock
from topics.lake import facts
from topics.lake.archived import ArchivedEpoch, Change, File, TopicState
from topics.lake.columns import BadColumns, TypedColumns
from topics.lake.errors import Conflict, Damaged, LakeError
from topics.lake.facts import FactsReader
from topics.lake.layout import LOG, PARTITIONS, SCHEMA, topic_folder
from topics.lake.storage import Storage, StoredFile, with_remedies
from topics.lake.write import NO_COLUMNS

CHECKPOINT_EVERY = 32  # commits
HOUR_MS = 3_600_000
KEPT_HOURS = 168  # how long replaced files stay for readers of older versions

PROPERTIES = {
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": f"interval {KEPT_HOURS} hours",
}
TABLE_SCHEMA = pa.schema([*SCHEMA, ("date", pa.date32())])

# Checkpoints are made explicitly, because they must be synced before the log before them is removed.
_BY_HAND = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class TopicTable:
    """The table of a topic. It need not exist. Not safe for several threads."""

    def __init__(self, storage: Storage, topic: str) -> None:
        self.topic = topic
        self._storage = storage
        self._folder = topic_folder(topic)
        self._table: DeltaTable | None = None
        self._facts = FactsReader(storage, topic)
        self._state = TopicState(topic=topic)
        self.checkpoints = 0  # that this object has written

    # --- state

    def state(self) -> TopicState:
        """Return the newest state. Raise `Damaged` if the log lacks a file."""
        with self.errors():
            table = self._open()
            if table is None:
                return TopicState(topic=self.topic)
            if table.version() < self._state.version:
                raise Damaged(
                    f"{self.uri} is at version {table.version()}, but version {self._state.version} existed before: "
                    "the lake was replaced by an older copy, or lacks files; restore them from a copy"
                )
            if table.version() > self._state.version:
                self._state = self._read(table)
            return self._state

    @property
    def uri(self) -> str:
        return self._storage.uri(self._folder)

    def delta(self) -> DeltaTable | None:
        """Return the table as an object of `deltalake`, as of the newest version, or None if it does not exist."""
        self.state()
        return self._table

    def _open(self) -> DeltaTable | None:
        if self._table is not None:
            self._table.update_incremental()
            return self._table
        if not self._storage.is_local or self._storage.has_folder(f"{self._folder}/{LOG}"):
            try:
                self._table = DeltaTable(self.uri, storage_options=self._storage.options or None)
            except TableNotFoundError:
                return None
        return self._table

    def _read(self, table: DeltaTable) -> TopicState:
        known = self._facts.at(table.version())
        files = _files(self._folder, pa.table(table.get_add_actions(flatten=True)))
        of_epoch = facts.by_epoch(known)
        epochs = {
            epoch: ArchivedEpoch(
                topic=self.topic,
                epoch=epoch,
                files=tuple(sorted(files.get(epoch, ()), key=lambda file: file.first)),
                archived_to=of_epoch[epoch].archived_to if epoch in of_epoch else 0,
                gaps=tuple(of_epoch[epoch].gaps) if epoch in of_epoch else (),
                trimmed_to=of_epoch[epoch].trimmed_to if epoch in of_epoch else 0,
            )
            for epoch in sorted({*files, *of_epoch})
        }
        return TopicState(
            topic=self.topic, version=table.version(), epochs=epochs,
            erasures=known.get(facts.ERASED, 0), removed=known.get(facts.REMOVED, 0), purged=known.get(facts.PURGED, 0),
        )  # fmt: skip

    def typed(self) -> TypedColumns:
        """Return the typed columns of the table."""
        return NO_COLUMNS if self._table is None else TypedColumns.of_schema(_arrow(self._table))

    # --- files

    def files(self) -> list[StoredFile]:
        """Return every file in the folder of the table, except the log, with paths relative to the table."""
        found = [
            structs.replace(one, path=one.path.removeprefix(f"{self._folder}/"))
            for one in self._storage.files_in(self._folder)
        ]
        return [one for one in found if not one.path.startswith(f"{LOG}/")]

    def stray_files(self) -> list[StoredFile]:
        """Return the files that neither the newest version nor a version younger than the retention has."""
        stored = self.files()  # before the state is read: a file that is committed meanwhile is known by then
        delta = self.delta()
        if delta is None:
            return stored
        known = {
            file.path.removeprefix(f"{self._folder}/") for epoch in self._state.epochs.values() for file in epoch.files
        }
        with self.errors():
            replaced = delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True, full=False)
        known.update(replaced)
        return [one for one in stored if one.path not in known]

    def strays(self) -> list[str]:
        return sorted(one.path for one in self.stray_files())

    def remove(self, path: str) -> None:
        """Remove a file by its path below the table."""
        self._storage.remove(f"{self._folder}/{path}")

    def log_time_ns(self, version: int) -> int:
        """Return when the storage received a version."""
        name = f"{self._folder}/{LOG}/{version:020d}.json"
        return next((one.modified_ns for one in self._storage.files_in(f"{self._folder}/{LOG}") if one.path == name), 0)

    def forget_log(self) -> None:
        """Remove the log before the newest checkpoint: its statistics may contain values of erased records."""
        for one in self._storage.files_in(f"{self._folder}/{LOG}"):
            number = one.path.rpartition("/")[2].partition(".")[0]
            if number.isdigit() and int(number) < self._facts.checkpoint:
                self._storage.remove(one.path)

    # --- commits

    def create(self) -> None:
        """Create the table unless it exists.

        An archive run creates it before it reads the first record: an erasure then finds the table and marks it, and
        the run cannot commit records that it read before the erasure.
        """
        with self.errors(), with_remedies(self.uri):
            if self._open() is not None:
                return
            try:
                DeltaTable.create(
                    self.uri, Schema.from_arrow(TABLE_SCHEMA), mode="error", partition_by=list(PARTITIONS),
                    name=self.topic, configuration=PROPERTIES, storage_options=self._storage.options or None,
                    post_commithook_properties=_BY_HAND,
                )  # fmt: skip
            except (DeltaError, CommitFailedError, FileExistsError):
                if self._open() is None:  # another process has created it
                    raise
            self._storage.sync([f"{self._folder}/{LOG}/{0:020d}.json"])

    def add_columns(self, columns: TypedColumns) -> list[str]:
        """Add the typed columns that the table lacks, and return their names. Raise `BadColumns` if a type differs."""
        with self.errors(), with_remedies(self.uri):
            self.create()
            self.state()
            assert self._table is not None
            known = dict(self.typed().fields)
            for name, kind in columns.fields:
                if known.get(name, kind) != kind:
                    raise BadColumns(f"column {name} of topic {self.topic} is {known[name]} in the lake, not {kind}")
            new = [field for field in columns.arrow_fields if field.name not in known]
            if new:
                fields = Schema.from_arrow(pa.schema(new)).fields
                self._table.alter.add_columns(fields, post_commithook_properties=_BY_HAND)
                self._storage.sync([f"{self._folder}/{LOG}/{self._table.version():020d}.json"])
            return [field.name for field in new]

    def commit(
        self, base: TopicState, changes: Sequence[Change], *, note: Mapping[str, Any] | None = None
    ) -> TopicState:
        """Commit the changes as one version. Raise `Conflict` if the base was changed; then nothing is committed."""
        with self.errors(), with_remedies(self.uri):
            self._storage.sync([file.path for change in changes for file in change.adds])
            self._check_there(base, changes)
            self.create()
            while True:
                newest = self.state()
                for change in changes:
                    _check(newest, base, change)
                if self._try(newest, changes, note):
                    break
            state = self.state()
            self._storage.sync([f"{self._folder}/{LOG}/{state.version:020d}.json"])
            if state.version - self._facts.checkpoint >= CHECKPOINT_EVERY:
                self.checkpoint()
            return state

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version, and remove the log before it that is older than a day."""
        table = self._open()
        assert table is not None
        table.create_checkpoint()
        log, version = f"{self._folder}/{LOG}", table.version()
        self._storage.sync([f"{log}/{version:020d}.checkpoint.parquet", f"{log}/_last_checkpoint"])
        self._facts.checkpoint = version
        self.checkpoints += 1
        table.cleanup_metadata()

    def _try(self, newest: TopicState, changes: Sequence[Change], note: Mapping[str, Any] | None) -> bool:
        """Commit as the version after `newest`. Return False if another process has written that version."""
        try:
            self._add(newest, changes, note)
            return True
        except (DeltaError, OSError) as error:
            if self._is_done(newest, changes):
                return True
            if self.state().version > newest.version:
                return False
            if isinstance(error, CommitFailedError):
                raise Conflict(f"topic {self.topic} was changed by another run: {error}") from error
            raise

    def _add(self, newest: TopicState, changes: Sequence[Change], note: Mapping[str, Any] | None) -> None:
        set_facts: dict[str, int] = {}
        for change in changes:
            set_facts.update(facts.of_change(change, newest))
        now_ms = SystemClock().now_ms()
        is_change = any(change.op != "merge" for change in changes)
        adds = [_add_action(self._folder, change, file, now_ms) for change in changes for file in change.adds]
        removes = [
            RemoveAction(
                path=file.path.removeprefix(f"{self._folder}/"), data_change=is_change, deletion_timestamp=now_ms
            )
            for change in changes
            for file in change.removes
        ]
        properties = CommitProperties(
            custom_metadata=None if note is None else {key: str(value) for key, value in note.items()},
            app_transactions=[Transaction(name, value) for name, value in set_facts.items()],
            max_commit_retries=0,  # Delta would not compare the removed files of two commits, so `_check` does
        )
        assert self._table is not None
        self._table.create_write_transaction(
            [*adds, *removes], "append", self._table.schema(), partition_by=list(PARTITIONS),
            commit_properties=properties, post_commithook_properties=_BY_HAND,
        )  # fmt: skip

    def _is_done(self, before: TopicState, changes: Sequence[Change]) -> bool:
        """Return whether a commit that failed has taken effect: an object store may lose the answer to a commit."""
        after = self.state()
        if after.version == before.version:
            return False
        there = {file.path for epoch in after.epochs.values() for file in epoch.files}
        adds = [file.path for change in changes for file in change.adds]
        if adds:
            return all(path in there for path in adds)
        known = self._facts.at(after.version)
        removes = [file.path for change in changes for file in change.removes]
        mine = {name: value for change in changes for name, value in facts.of_change(change, before).items()}
        return not there.intersection(removes) and all(known.get(name) == value for name, value in mine.items())

    def _check_there(self, base: TopicState, changes: Sequence[Change]) -> None:
        """Raise `LakeError` or `Damaged` unless every new file is there with its full size.

        Raise `Conflict` if another run has removed a file because it can never be committed.
        """
        for change in changes:
            for file in change.adds:
                size = self._storage.size(file.path)
                if size is None:
                    _check(self.state(), base, change)
                    raise LakeError(
                        f"{self._storage.uri(file.path)}: a file that a task wrote is not here; the lake must be a "
                        "directory that the driver and all executors share, or be in an object store"
                    )
                if size != file.bytes:
                    raise Damaged(f"{file.path}: {size} bytes where {file.bytes} were written")

    def errors(self) -> AbstractContextManager[None]:
        return delta_errors(self.uri)


def _check(newest: TopicState, base: TopicState, change: Change) -> None:
    """Raise `Conflict` if a change that was made from `base` does not fit to the newest state."""
    epoch = newest.epoch(change.epoch)
    if change.covered is not None:
        if change.covered[0] != epoch.archived_to + 1:
            raise Conflict(f"topic {change.topic} was archived up to {epoch.archived_to} by another run")
        if newest.erasures != base.erasures:
            raise Conflict(f"records of topic {change.topic} were erased while they were being archived")
    there = {file.path for file in epoch.files} if change.removes else set()
    for file in change.removes:
        if file.path not in there:
            raise Conflict(f"{file.path} was replaced meanwhile")


def _add_action(folder: str, change: Change, file: File, now_ms: int) -> AddAction:
    return AddAction(
        path=file.path.removeprefix(f"{folder}/"),
        size=file.bytes,
        partition_values={"epoch": str(change.epoch), "date": file.date},
        modification_time=now_ms,
        data_change=change.op != "merge",
        stats=file.stats,
    )


def _files(folder: str, actions: pa.Table) -> dict[int, list[File]]:
    """Return the files of each epoch. Raise `Damaged` if a file has no statistics, which other programs may omit."""
    found: dict[int, list[File]] = {}
    names = (
        "path", "size_bytes", "num_records", "min.seq", "max.seq", "min.ts", "max.ts", "partition.epoch",
        "partition.date",
    )  # fmt: skip
    if not actions.num_rows:
        return found
    rows = zip(*(actions.column(name).to_pylist() for name in names), strict=True)
    for path, size, count, first, last, min_ts, max_ts, epoch, date in rows:
        if None in (count, first, last, min_ts, max_ts):
            raise Damaged(
                f"{folder}/{path} has no statistics of seq and ts: write it again with topics pipeline maintain"
            )
        found.setdefault(int(epoch), []).append(
            File(
                path=f"{folder}/{path}", date=str(date), first=first, last=last, rows=count, bytes=size,
                min_ts=_ms(min_ts), max_ts=_ms(max_ts),
            )
        )  # fmt: skip
    return found


def _arrow(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _ms(moment: datetime) -> int:
    utc = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(utc.timestamp() * 1000)


@contextmanager
def delta_errors(uri: str) -> Iterator[None]:
    """Turn errors of `deltalake` into a `LakeError` that names the table."""
    try:
        yield
    except DeltaError as error:
        raise LakeError(f"{uri}: {error}") from error
