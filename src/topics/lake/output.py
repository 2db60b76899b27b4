"""The Delta table of a pipeline's results. Each commit has the rows of a round and the position of the pipeline.

The position is a set of facts in the log of the table, such as `topics/rollup/done`. A run that is killed before its
commit leaves only files that no version has. Of two runs that continue from the same position, one raises `Moved`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from topics.lake.delta_folder import Actions, Added, DeltaFolder, Facts
from topics.lake.errors import Conflict, Damaged, Moved, NoTable
from topics.lake.files import ROWS_FILE_BYTES, RowsFile, RowsWriter, read_rows
from topics.lake.layout import LOG
from topics.lake.storage import Storage

KEPT_HOURS = 168  # how long replaced files stay for readers of older versions
MERGE_FILES = 32  # small files that are merged into one
SMALL_BYTES = ROWS_FILE_BYTES // 4


class OutputTable:
    """The table at a path or URL. It need not exist. The constructor does no I/O beyond a check of the path."""

    def __init__(self, where: str, kind: str, *, kept_hours: int = KEPT_HOURS) -> None:
        """`kind` is the name of the pipeline, and part of the names of its facts."""
        self.storage = Storage(where, noun="table")
        self.uri = self.storage.location
        self._prefix = f"topics/{kind}/"
        self._kept_hours = kept_hours
        self._delta = DeltaFolder(self.storage)
        self.known: dict[str, int] = {}  # the position that this run continues from
        self._vacuumed = 0  # checkpoints at the last vacuum

    # --- state

    def exists(self) -> bool:
        with self._delta.errors():
            return self._delta.open() is not None

    def load(self) -> Facts:
        """Return the newest position, from which the next commit continues. It is empty before the first commit.

        Raise `NoTable` if the place holds something that this pipeline has not written.
        """
        with self._delta.errors():
            if self._delta.open() is None:
                others = [name for name in self.storage.names() if name != LOG]
                if others:
                    raise NoTable(f"{self.uri} is not empty and is not a Delta table: it contains {others[0]}")
                self.known = {}
                return self.known
            self.known = self._position()
            if not self.known and (self._delta.facts() or self._delta.files().num_rows):
                raise NoTable(f"{self.uri} is a table that this pipeline has not written, and is not replaced")
            return self.known

    def files(self, column: str | None = None) -> list[RowsFile]:
        """Return the files of the newest version, with the bounds of a column."""
        with self._delta.errors():
            if self._delta.open() is None:
                return []
            found = self._delta.files()
            return [
                RowsFile(
                    path=row["path"], rows=row["num_records"] or 0, bytes=row["size_bytes"],
                    low=row.get(f"min.{column}"), high=row.get(f"max.{column}"),
                )
                for row in found.to_pylist()
            ]  # fmt: skip

    def schema(self) -> pa.Schema | None:
        """Return the columns of the table, or None if it does not exist."""
        with self._delta.errors():
            return None if self._delta.open() is None else self._delta.schema()

    def _position(self) -> dict[str, int]:
        facts = self._delta.facts()
        return {name.removeprefix(self._prefix): facts[name] for name in facts if name.startswith(self._prefix)}

    # --- changes

    def create(self, schema: pa.Schema, *, name: str) -> None:
        """Create the table unless it exists. Files can be written after that."""
        with self._delta.errors():
            kept = {"delta.deletedFileRetentionDuration": f"interval {self._kept_hours} hours"}
            self._delta.create(schema, name=name, properties=kept)

    def commit(
        self,
        position: Facts,
        adds: Sequence[RowsFile] = (),
        removes: Sequence[str] = (),
        *,
        facts: Facts | None = None,
        schema: pa.Schema | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> None:
        """Add and remove files, and set the position and further facts, at once. A `schema` replaces table and schema.

        Raise `Moved` if another run has changed the position since `load`, and `Conflict` if a file to remove is not
        there any more: another program has merged it. In both cases nothing is committed.
        """
        with self._delta.errors():
            changed = {name: value for name, value in position.items() if self.known.get(name) != value}
            set_facts = {f"{self._prefix}{name}": value for name, value in changed.items()} | dict(facts or {})

            def check() -> Facts:
                self._delta.open()
                if self._position() != self.known:
                    raise Moved(f"another run is writing to {self.uri}")
                self._check_there(removes)
                return set_facts

            self._delta.commit(Actions(adds=_added(adds), removes=removes, note=note, schema=schema), check)
            self.known = self._position()
            if self._delta.checkpoints > self._vacuumed:
                self._vacuumed = self._delta.checkpoints
                self._delta.vacuum(self._kept_hours)

    def merge_small_files(self) -> int:
        """Merge small files into larger ones once there are many. Return the number of merged files."""
        small = [file for file in self.files() if file.bytes < SMALL_BYTES]
        if len(small) < MERGE_FILES:
            return 0
        with self._delta.errors():
            schema = self._delta.schema()
            with RowsWriter(self.storage, schema) as writer:
                for file in small:
                    for batch in read_rows(self.storage, file.path, schema):
                        writer.write(batch)
                merged = writer.finish()
            if sum(file.rows for file in merged) != sum(file.rows for file in small):
                raise Damaged(f"{self.uri}: the merged files do not have all of the rows")

            removes = [file.path for file in small]

            def check() -> Facts:
                self._delta.open()
                self._check_there(removes)
                return {}

            try:
                self._delta.commit(Actions(adds=_added(merged), removes=removes, is_change=False), check)
            except Conflict:  # another program has merged them
                for new in merged:
                    self.storage.remove(new.path)
                return 0
        return len(small)

    def _check_there(self, removes: Sequence[str]) -> None:
        """Raise `Conflict` if a file to remove is not there any more."""
        missing = set(removes) - set(self._delta.files().column("path").to_pylist())
        if missing:
            raise Conflict(f"{self.uri}: {min(missing)} was replaced meanwhile")


def _added(files: Sequence[RowsFile]) -> list[Added]:
    return [Added(file.path, file.bytes, file.stats, {}) for file in files]
