"""Read the facts in the log of a Delta table.

A fact is an application transaction (`txn`): a name and a number that a commit sets together with its files, and that
stays in the table for good. `deltalake` returns a fact by its name; this module lists all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow.parquet as pq

from topics.lake.errors import Damaged, LakeError
from topics.lake.layout import LOG
from topics.lake.storage import Storage

Facts = Mapping[str, int]


class FactsReader:
    """Reads the facts of one table from its log. Reads only the versions that are new since the last call."""

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
                facts.update(self._commit(number))
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
            facts.update(self._checkpoint(name))
        return facts, at

    def _checkpoint(self, name: str) -> dict[str, int]:
        path = f"{LOG}/{name}"
        try:
            with self._storage.open(path) as file:
                column = pq.ParquetFile(file).read(columns=["txn.appId", "txn.version"]).column("txn").combine_chunks()
        except FileNotFoundError:
            raise Damaged(f"{self._storage.uri(path)} is missing: bring it back from a copy of the lake") from None
        rows = column.drop_null()
        return dict(zip(rows.field("appId").to_pylist(), rows.field("version").to_pylist(), strict=True))

    def _commit(self, version: int) -> dict[str, int]:
        path = f"{LOG}/{version:020d}.json"
        text = self._storage.read(path)
        if text is None:
            raise Damaged(f"{self._storage.uri(path)} is missing: bring it back from a copy of the lake")
        actions: list[dict[str, Any]] = [msgspec.json.decode(line) for line in text.splitlines() if b'"txn"' in line]
        return {one["txn"]["appId"]: one["txn"]["version"] for one in actions if "txn" in one}
