"""Lakes from which something was taken, or to which something was done: they report it, and nothing is built on it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.lake.making import EPOCH, archive, archived_epoch_of, erase, known, merge, seqs_of
from topics.lake import Damaged, Lake, LakeError
from topics.lake.delta_folder import CHECKPOINT_EVERY

ROUNDS = 5


@pytest.fixture
def filled(lake: Lake) -> Lake:
    """Five commits, of ten records each."""
    for at in range(ROUNDS):
        archive(lake, "a", 1 + 10 * at, 10 + 10 * at)
    return Lake(lake.path)


def log(lake: Lake, version: int, kind: str = "json") -> Path:
    return Path(lake.path, "a", "_delta_log", f"{version:020d}.{kind}")


@pytest.mark.parametrize("version", range(1, ROUNDS))
def test_missing_version_is_an_error_and_stops_archiving(filled: Lake, version: int):
    log(filled, version).unlink()
    for lake in (filled, Lake(filled.path)):
        with pytest.raises(LakeError, match=f"{lake.path}/a"):
            lake.table("a").state()
        with pytest.raises(LakeError, match=f"{lake.path}/a"):
            archive(lake, "a", 51, 60)


def test_missing_checkpoint_is_an_error_not_an_empty_table(lake: Lake):
    for at in range(CHECKPOINT_EVERY + 1):
        archive(lake, "a", 1 + at, 1 + at)
    for path in sorted(Path(lake.path, "a", "_delta_log").glob("*"))[:20]:
        path.unlink()
    for path in Path(lake.path, "a", "_delta_log").glob("*.checkpoint.parquet"):
        path.unlink()
    with pytest.raises(LakeError):
        Lake(lake.path).table("a").state()


def test_table_set_back_is_noticed_by_a_reader_of_a_later_version(filled: Lake):
    version = filled.table("a").state().version
    log(filled, version).unlink()
    with pytest.raises(LakeError, match=f"{filled.path}/a"):
        filled.table("a").state()


# --- files that were changed


def drop_rows(path: Path) -> None:
    pq.write_table(pq.read_table(path, partitioning=None).slice(0, 5), path)


def change_data(path: Path) -> None:
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.set_column(table.schema.get_field_index("data"), "data", pa.array(["666"] * len(table))), path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


SPOILING = [drop_rows, change_data, cut, flip, Path.unlink]


@pytest.mark.parametrize("spoil", SPOILING)
def test_damaged_file_is_not_merged_but_named(filled: Lake, spoil: Callable[[Path], None]):
    file = archived_epoch_of(filled).files[2]
    spoil(Path(filled.path) / file.path)
    before = filled.table("a").state()
    with pytest.raises(Damaged, match=file.path.rpartition("/")[2]):
        merge(filled, "a")
    assert filled.table("a").state() == before
    with pytest.raises(Damaged):
        filled.verify(file)


@pytest.mark.parametrize("spoil", SPOILING)
def test_damaged_file_is_not_rewritten_by_an_erase(filled: Lake, spoil: Callable[[Path], None]):
    file = archived_epoch_of(filled).files[2]
    spoil(Path(filled.path) / file.path)
    before = filled.table("a").state()
    with pytest.raises(Damaged, match=file.path.rpartition("/")[2]):
        erase(filled, "t1")
    assert filled.table("a").state() == before
    assert len(filled.table("a").files()) == ROUNDS - (spoil is Path.unlink), "no new file is left"


def test_missing_file_is_named_by_a_reader(filled: Lake):
    Path(filled.path, archived_epoch_of(filled).files[2].path).unlink()
    reading = filled.read("a", EPOCH)
    with pytest.raises(Damaged, match="is missing"):
        seqs_of(reading)


def test_uncommitted_file_is_a_stray(filled: Lake):
    assert filled.table("a").strays() == []
    path = Path(filled.path) / archived_epoch_of(filled).files[0].path
    shutil.copy(path, path.with_name("copy.parquet"))
    assert filled.table("a").strays() == ["epoch=7/date=2024-02-29/copy.parquet"]
    merge(filled, "a")
    assert len(filled.table("a").strays()) == 1, "replaced files are not strays"


# --- disks


@pytest.mark.parametrize(
    ("number", "reported"), [(errno.ENOSPC, "free space"), (errno.EROFS, "check how it is mounted")]
)
def test_disk_error_names_the_path_and_the_remedy(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, number: int, reported: str
):
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(LakeError, match=f"{lake.path}/a: {os.strerror(number)}; {reported}"):
        archive(lake, "a", 1, 10)
    monkeypatch.undo()
    archive(lake, "a", 1, 10)
    assert len(known(lake)) == 10


def test_path_where_no_lake_can_be_created_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: str, *rest: object, **more: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, "makedirs", refuse)
    with pytest.raises(LakeError, match="lake: Read-only file system; check how it is mounted"):
        Lake(str(tmp_path / "lake")).create()
