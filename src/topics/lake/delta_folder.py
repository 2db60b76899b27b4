"""A Delta table at a place of its own: its newest version, the facts in its log, and commits.

A fact is an application transaction (`txn`), a part of Delta that a commit changes together with its files and that
stays in the table for good, through merges, vacuums and checkpoints of any program. It is a name and a number. Two
commits that set the same fact conflict: Delta refuses the second one unless it was made from the result of the first.

A commit adds and removes files and sets facts, at once. It is written as exactly the version after the one that was
checked, without the retries of `deltalake`: of two processes one succeeds, and the other checks again. `deltalake` does
not sync files of a local disk, so commits and checkpoints are synced here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from msgspec import Struct

from topics.clock import SystemClock
from topics.lake.errors import Conflict, Damaged, LakeError
from topics.lake.layout import LOG
from topics.lake.storage import Storage, with_remedies

CHECKPOINT_EVERY = 32  # commits

PROPERTIES = {
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
    "delta.logRetentionDuration": "interval 1 days",
}

# Checkpoints are made explicitly, because they must be synced before the log before them is removed.
BY_HAND = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


Facts = Mapping[str, int]


class Added(NamedTuple):
    """A new file: its path below the table, size, Delta's statistics, and the values of the partition columns."""

    path: str
    size_bytes: int
    stats: str
    partition: dict[str, str | None]


class Actions(Struct, kw_only=True):
    """The content of one commit. With a `schema`, the commit replaces the schema and removes all other files."""

    adds: Sequence[Added] = ()
    removes: Sequence[str] = ()  # paths below the table
    is_change: bool = True  # False: the rows of the table stay the same
    facts: Facts = {}
    note: Mapping[str, Any] | None = None
    schema: pa.Schema | None = None


class DeltaFolder:
    """The Delta table at the place of a storage. It need not exist. Not safe for several threads."""

    def __init__(self, storage: Storage, *, partitions: Sequence[str] = ()) -> None:
        self.storage = storage
        self._partitions = list(partitions)
        self.log = FactsReader(storage)
        self.table: DeltaTable | None = None  # as of the last call of `open`
        self.checkpoints = 0  # that this object has written

    @property
    def uri(self) -> str:
        return self.storage.location

    # --- state

    def open(self) -> DeltaTable | None:
        """Return the newest version of the table, or None if it does not exist."""
        if self.table is not None:
            self.table.update_incremental()
        elif not self.storage.is_local or self.storage.has_folder(LOG):
            try:
                self.table = DeltaTable(self.uri, storage_options=self.storage.options or None)
            except TableNotFoundError:
                return None
        return self.table

    @property
    def version(self) -> int:
        """The version that `open` has found; -1 if the table does not exist."""
        return -1 if self.table is None else int(self.table.version())

    def facts(self) -> Facts:
        """Return the facts as of the version that `open` has found."""
        return {} if self.table is None else self.log.at(self.version)

    def files(self) -> pa.Table:
        """Return the files of the version that `open` has found, with their statistics, as `deltalake` lists them."""
        assert self.table is not None
        return pa.table(self.table.get_add_actions(flatten=True))

    def schema(self) -> pa.Schema:
        assert self.table is not None
        return pa.schema(self.table.schema().to_arrow())

    # --- changes

    def create(
        self, schema: pa.Schema, *, name: str, properties: Mapping[str, str], description: str | None = None
    ) -> None:
        """Create the table unless it exists."""
        if self.table is not None or self.open() is not None:
            return
        try:
            DeltaTable.create(
                self.uri, Schema.from_arrow(schema), mode="error", partition_by=self._partitions, name=name,
                description=description, configuration=PROPERTIES | dict(properties),
                storage_options=self.storage.options or None, post_commithook_properties=BY_HAND,
            )  # fmt: skip
        except (DeltaError, CommitFailedError, FileExistsError):
            if self.open() is None:  # another process has created it
                raise
        self._sync_version(0)
        self.storage.sync_place()
        self.open()

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        assert self.table is not None
        self.table.alter.add_columns(Schema.from_arrow(pa.schema(fields)).fields, post_commithook_properties=BY_HAND)
        self._sync_version(self.version)

    def commit(self, actions: Actions, facts: Callable[[], Facts]) -> None:
        """Commit the actions with these facts, and open the version with them.

        `facts` is called again for each newer version that another process has written. It calls `open`, and raises
        `Conflict` if the change does not fit to that version; nothing is committed then.
        """
        while True:
            actions.facts = facts()
            try:
                self._sync_added(actions.adds)
            except LakeError:
                facts()  # raises `Conflict` if another run has removed a file because it can never be committed
                raise
            before = self.version
            try:
                self.write(actions)
                break
            except (DeltaError, OSError) as error:
                self.open()
                if self.version == before:
                    if isinstance(error, CommitFailedError):
                        raise Conflict(f"{self.uri} was changed by another run: {error}") from error
                    raise
                if self._has(actions):  # an object store may lose the answer to a commit
                    break
        self.open()
        self._sync_version(self.version)
        self.facts()
        if self.version - self.log.checkpoint >= CHECKPOINT_EVERY:
            self.checkpoint()

    def _sync_added(self, adds: Sequence[Added]) -> None:
        """Sync new files. Raise `LakeError` or `Damaged` unless every one is there with its full size."""
        for one in adds:
            size = self.storage.size(one.path)
            if size is None:
                raise LakeError(
                    f"{self.storage.uri(one.path)}: a file that a task wrote is not here; the place must be a "
                    "directory that the driver and all executors share, or be in an object store"
                )
            if size != one.size_bytes:
                raise Damaged(f"{self.storage.uri(one.path)}: {size} bytes where {one.size_bytes} were written")
        self.storage.sync([one.path for one in adds])

    def write(self, actions: Actions) -> None:
        """Commit as the version after the one that `open` has found, or fail."""
        assert self.table is not None
        note = None if actions.note is None else {key: str(value) for key, value in actions.note.items()}
        properties = CommitProperties(
            custom_metadata=note,
            app_transactions=[Transaction(name, value) for name, value in actions.facts.items()],
            max_commit_retries=0,  # Delta would not compare the removed files of two commits, so `build` does
        )
        schema = self.table.schema() if actions.schema is None else Schema.from_arrow(actions.schema)
        now_ms, changes = SystemClock().now_ms(), actions.is_change
        adds = [AddAction(one.path, one.size_bytes, one.partition, now_ms, changes, one.stats) for one in actions.adds]
        removes = [RemoveAction(path, changes, now_ms) for path in actions.removes]
        self.table.create_write_transaction(
            [*adds, *removes],
            "append" if actions.schema is None else "overwrite",
            schema,
            partition_by=self._partitions, commit_properties=properties, post_commithook_properties=BY_HAND,
        )  # fmt: skip

    def _has(self, actions: Actions) -> bool:
        """Return whether a commit that failed has taken effect. The names of added files are used once."""
        there = set(self.files().column("path").to_pylist())
        if actions.adds:
            return all(one.path in there for one in actions.adds)
        known = self.facts()
        is_set = all(known.get(name) == value for name, value in actions.facts.items())
        return is_set and not there.intersection(actions.removes)

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version, and remove the log before it that is older than a day."""
        table = self.open()
        assert table is not None
        table.create_checkpoint()
        self.storage.sync([f"{LOG}/{self.version:020d}.checkpoint.parquet", f"{LOG}/_last_checkpoint"])
        self.log.checkpoint = self.version
        self.checkpoints += 1
        table.cleanup_metadata()

    def vacuum(self, retention_hours: int, *, dry_run: bool = False, full: bool = True) -> list[str]:
        """Remove and return files that no version younger than the retention needs; with `full`, also uncommitted."""
        assert self.table is not None
        remove = partial(self.table.vacuum, retention_hours, enforce_retention_duration=False, full=full)
        found = remove(dry_run=True)
        if found and not dry_run:
            remove(dry_run=False)
        return [str(path) for path in found]

    def _sync_version(self, version: int) -> None:
        self.storage.sync([f"{LOG}/{version:020d}.json"])

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of `deltalake` and of the storage into a `LakeError` that names the table or the file."""
        try:
            with with_remedies(self.uri):
                yield
        except DeltaError as error:
            raise LakeError(f"{self.uri}: {error}") from error


class FactsReader:
    """Reads the facts of one table from its log. Reads only the versions that are new since the last call.

    `deltalake` returns a fact by its name; this class lists all of them.
    """

    def __init__(self, storage: Storage) -> None:
        """`storage` is the place of the table."""
        self._storage = storage
        self._version = -1
        self._facts: dict[str, int] = {}
        self.checkpoint = -1  # the version of the newest known checkpoint

    def at(self, version: int) -> Facts:
        """Return the facts as of a version of the table, which must not be older than at the last call."""
        if version > self._version:
            facts, at = self._start(version)
            for number in range(at + 1, version + 1):
                text = self._storage.read(path := f"{LOG}/{number:020d}.json")
                if text is None:
                    raise Damaged(f"{self._storage.uri(path)} is missing: bring it back from a copy of the lake")
                for action in (msgspec.json.decode(line) for line in text.splitlines() if b'"txn"' in line):
                    if "txn" in action:
                        facts[action["txn"]["appId"]] = action["txn"]["version"]
            self._facts, self._version = facts, version
        return self._facts

    def _start(self, version: int) -> tuple[dict[str, int], int]:
        """Return facts to continue from, and their version: the known ones, or those of a later checkpoint."""
        text = self._storage.read(f"{LOG}/_last_checkpoint")
        checkpoint = None if text is None else msgspec.json.decode(text)
        at = -1 if checkpoint is None else int(checkpoint["version"])
        self.checkpoint = max(self.checkpoint, at)
        if checkpoint is None or not self._version < at <= version:
            return dict(self._facts), self._version
        if "v2Checkpoint" in checkpoint:
            raise LakeError(f"{self._storage.uri(LOG)}: this version of topics cannot read checkpoints of kind v2")
        parts = int(checkpoint.get("parts") or 0)
        names = [f"{at:020d}.checkpoint.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]
        facts: dict[str, int] = {}
        for name in names or [f"{at:020d}.checkpoint.parquet"]:
            path = f"{LOG}/{name}"
            try:
                with self._storage.open(path) as file:
                    found = pq.ParquetFile(file).read(columns=["txn.appId", "txn.version"])
            except FileNotFoundError:
                raise Damaged(f"{self._storage.uri(path)} is missing: bring it back from a copy of the lake") from None
            rows = found.column("txn").combine_chunks().drop_null()
            facts.update(zip(rows.field("appId").to_pylist(), rows.field("version").to_pylist(), strict=True))
        return facts, at
