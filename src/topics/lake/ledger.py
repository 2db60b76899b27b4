"""The gap ledger: each range that was lost before it was archived, as rows of Parquet files.

It is derived from the manifest. A version that adds gaps adds a file. Many files are folded into one, `<version>-all`.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from topics.lake import disk
from topics.lake.layout import GAP_SCHEMA, GAPS, HIDDEN
from topics.lake.manifest import Commit, Gap, Snapshot

FOLD_AT = 16  # files
ALL = "-all"

_NAME = re.compile(r"([0-9]{20})(-all)?\.parquet")

Row = tuple[str, int, Gap]


def create(root: str) -> None:
    """Create a ledger without rows, so that readers find a file with the right columns before the first gap."""
    os.makedirs(os.path.join(root, GAPS), exist_ok=True)
    if not _files(root):
        disk.write_whole(_path(root, 0), _encode([]), via=os.path.join(root, HIDDEN))


def publish(root: str, commits: Iterable[Commit], *, via: str) -> None:
    """Add the gaps of these commits that the ledger lacks."""
    there = _files(root)
    folded = max((version for version, is_all in there if is_all), default=-1)
    for commit in commits:
        rows = [(change.topic, change.epoch, gap) for change in commit.changes for gap in change.gaps]
        if rows and commit.version > folded and (commit.version, False) not in there:
            disk.write_whole(_path(root, commit.version), _encode(rows), via=via)
    _remove(root, upto=folded)


def fold(root: str, snapshot: Snapshot, *, via: str) -> None:
    """Replace the files by one if there are at least `FOLD_AT`."""
    if len(_files(root)) < FOLD_AT:
        return
    disk.write_whole(_path(root, snapshot.version, ALL), _encode(rows_of(snapshot)), via=via)
    _remove(root, upto=snapshot.version)


def rows_of(snapshot: Snapshot) -> list[Row]:
    return [
        (topic, archived.epoch, gap)
        for topic in snapshot.topics()
        for archived in snapshot.epochs(topic)
        for gap in archived.gaps
    ]


def table_of(rows: Iterable[Row]) -> pa.Table:
    listed = [(topic, epoch, gap.first, gap.last, gap.reason, gap.met_at * 1000) for topic, epoch, gap in rows]
    columns = zip(*listed, strict=True) if listed else [[]] * len(GAP_SCHEMA)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, GAP_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=GAP_SCHEMA)


def _encode(rows: Iterable[Row]) -> bytes:
    out = io.BytesIO()
    pq.write_table(table_of(rows), out, compression="zstd")
    return out.getvalue()


def _files(root: str) -> set[tuple[int, bool]]:
    """Return the version of each ledger file, and whether it replaces all earlier ones. Other files are ignored."""
    names = map(_NAME.fullmatch, os.listdir(os.path.join(root, GAPS)))
    return {(int(found[1]), found[2] is not None) for found in names if found}


def _remove(root: str, *, upto: int) -> None:
    """Remove the files that a folded one has replaced."""
    for version, is_all in _files(root):
        if version < upto or (version == upto and not is_all):
            disk.remove(_path(root, version, ALL if is_all else ""))


def _path(root: str, version: int, kind: str = "") -> str:
    return os.path.join(root, GAPS, f"{version:020d}{kind}.parquet")
