"""Lakes from which something was taken, or to which something was done: they say so, and nothing is built on them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.lake.making import EPOCH, archive, known, listed
from topics.lake import ArchivedEpoch, Change, Damaged, Lake, LakeError, Snapshot, Staged, disk
from topics.lake.commits import CHECKPOINT_EVERY, KEPT
from topics.lake.layout import commit_name
from topics.lake.manifest import Commit

ROUNDS = 5


@pytest.fixture
def filled(lake: Lake) -> Lake:
    """Five versions, of ten records each."""
    with lake.stage() as staging:
        for at in range(ROUNDS):
            archive(lake, staging, "a", 1 + 10 * at, 10 + 10 * at)
    return Lake(lake.path)


def commit_path(lake: Lake, version: int) -> Path:
    return Path(lake.path) / "_lake" / "commits" / commit_name(version)


def archived_epoch_of(lake: Lake) -> ArchivedEpoch:
    archived = lake.snapshot().archived("a", EPOCH)
    assert archived is not None
    return archived


def folded(lake: Lake) -> Path:
    """So many versions that the first are only in the checkpoint; where that is."""
    with lake.stage() as staging:
        for at in range(KEPT + 2 * CHECKPOINT_EVERY + 1):
            archive(lake, staging, "a", 1 + at, 1 + at)
    [checkpoint] = (Path(lake.path) / "_lake").glob("checkpoint-*")
    assert not commit_path(lake, 1).exists()
    return checkpoint


# --- versions


@pytest.mark.parametrize("version", range(1, ROUNDS))
def test_missing_version_is_damage_and_stops_archiving(filled: Lake, version: int):
    commit_path(filled, version).unlink()
    with pytest.raises(Damaged, match=rf"{commit_name(version)} is missing.*up to {ROUNDS}"):
        filled.snapshot()
    with pytest.raises(Damaged, match="is missing"):
        filled.stage()


def test_missing_checkpoint_is_damage_not_an_empty_lake(lake: Lake):
    folded(lake).unlink()
    with pytest.raises(Damaged, match="and so is the checkpoint"):
        Lake(lake.path).snapshot()


def test_checkpoint_without_its_commits_is_damage(lake: Lake):
    folded(lake)
    shutil.rmtree(commit_path(lake, 1).parent)
    commit_path(lake, 1).parent.mkdir()
    with pytest.raises(Damaged, match="replaced by an older copy, or lacks files"):
        Lake(lake.path).snapshot()


def test_lake_set_back_is_noticed_by_a_reader_of_a_later_version(filled: Lake):
    assert filled.snapshot().version == ROUNDS
    commit_path(filled, ROUNDS).unlink()
    with pytest.raises(Damaged, match=f"has versions up to {ROUNDS - 1}, but version {ROUNDS} existed before"):
        filled.snapshot()


def test_replaced_last_version_is_noticed(filled: Lake, tmp_path: Path):
    saved = shutil.move(commit_path(filled, ROUNDS), tmp_path / "saved")
    with filled.stage() as staging:
        archive(filled, staging, "b", 1, 10)
        archive(filled, staging, "b", 11, 20)
    shutil.move(saved, commit_path(filled, ROUNDS))
    with pytest.raises(Damaged, match=f"version {ROUNDS + 1} was made from another version {ROUNDS} than"):
        Lake(filled.path).snapshot()


def test_writer_notices_a_replaced_parent_version(filled: Lake):
    with filled.stage() as staging:
        commit_path(filled, ROUNDS).unlink()
        other = Lake(filled.path)
        with other.stage() as rebuilt:
            archive(other, rebuilt, "b", 1, 10)
        with pytest.raises(Damaged, match="was replaced by another version"):
            archive(filled, staging, "a", 51, 60)


def test_version_under_a_wrong_name_is_damage(filled: Lake):
    shutil.copy(commit_path(filled, 2), commit_path(filled, 3))
    with pytest.raises(Damaged, match="holds version 2"):
        filled.snapshot()


def change(first: int, last: int, **more: object) -> Change:
    from tests.lake.test_manifest import file

    return Change(op="archive", topic="a", epoch=EPOCH, adds=[Staged(file(first, last))], covered=(first, last), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("first", "last"), [(1, 10), (5, 15), (10, 20)])
def test_seqs_archived_twice_are_damage(first: int, last: int):
    snapshot = Snapshot().after(Commit(version=1, made_at=0, run="r", changes=[change(1, 10)]))
    with pytest.raises(Damaged, match="archived twice"):
        snapshot.after(Commit(version=2, made_at=0, run="r", changes=[change(first, last)]))


def test_merge_of_unknown_files_is_damage():
    from tests.lake.test_manifest import file

    merge = Change(op="merge", topic="a", epoch=EPOCH, adds=[Staged(file(1, 20))], removes=[file(1, 10), file(11, 20)])
    with pytest.raises(Damaged, match="no earlier version has it"):
        Snapshot().after(Commit(version=1, made_at=0, run="r", changes=[merge]))


# --- files that were changed


def drop_rows(path: Path) -> None:
    pq.write_table(pq.read_table(path, partitioning=None).slice(0, 5), path)


def change_data(path: Path) -> None:
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.set_column(table.schema.get_field_index("data"), "data", pa.array(["666"] * len(table))), path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


SPOILING = [drop_rows, change_data, cut, Path.unlink]


@pytest.mark.parametrize("spoil", SPOILING)
def test_damaged_file_is_not_merged_but_named(filled: Lake, spoil: Callable[[Path], None]):
    file = archived_epoch_of(filled).files[2]
    spoil(Path(filled.path) / file.path)
    before = filled.snapshot()
    with filled.stage() as staging, pytest.raises(Damaged, match=file.path.rpartition("/")[2]):
        filled.merge(staging, "a", EPOCH, min_files=2)
    assert filled.snapshot() == before
    with pytest.raises(Damaged):
        filled.verify(file)


@pytest.mark.parametrize("spoil", SPOILING)
def test_damaged_file_is_not_rewritten_by_an_erase(filled: Lake, spoil: Callable[[Path], None]):
    file = archived_epoch_of(filled).files[2]
    spoil(Path(filled.path) / file.path)
    before = filled.snapshot()
    with pytest.raises(Damaged, match=file.path.rpartition("/")[2]):
        filled.erase(["a"], lambda topic, epoch, batch: pc.not_equal(batch.column("tag"), "t1"))
    assert filled.snapshot() == before
    with pytest.raises(Damaged):
        filled.verify(file)


def test_erase_of_a_damaged_file_does_not_hide_the_damage(filled: Lake):
    change_data(Path(filled.path) / archived_epoch_of(filled).files[2].path)
    with pytest.raises(Damaged, match="does not hold"):
        filled.erase(["a"], lambda topic, epoch, batch: pc.is_null(batch.column("tag")))


# --- foreign files


def test_foreign_files_are_left_alone(filled: Lake):
    root = Path(filled.path)
    names = ["_gaps/copy.parquet", "_gaps/1.parquet", "_lake/checkpoint-x.json.bak", "_lake/checkpoint-9.json"]
    names += ["_lake/commits/notes.json", "_lake/commits/00000000000000000009.json.bak", "_lake/commits/7.json"]
    for name in names:
        (root / name).write_bytes(b"")
    with filled.stage() as staging:
        for at in range(CHECKPOINT_EVERY):
            archive(filled, staging, "a", 51 + at, 51 + at, lost=1)
    assert Lake(filled.path).snapshot().version == ROUNDS + CHECKPOINT_EVERY
    assert filled.ledger().num_rows == CHECKPOINT_EVERY
    assert all((root / name).exists() for name in names)


def test_ledger_is_created_beside_foreign_files(tmp_path: Path):
    (tmp_path / "lake" / "_gaps").mkdir(parents=True)
    (tmp_path / "lake" / "_gaps" / "readme.txt").write_text("ours?")
    lake = Lake(str(tmp_path / "lake"))
    lake.create()
    assert ds.dataset(str(tmp_path / "lake" / "_gaps" / f"{0:020d}.parquet")).count_rows() == 0


def test_uncommitted_record_file_is_a_stray(filled: Lake):
    assert filled.strays() == []
    path = Path(filled.path) / archived_epoch_of(filled).files[0].path
    shutil.copy(path, path.with_name("copy.parquet"))
    assert filled.strays() == [str(Path(archived_epoch_of(filled).files[0].path).with_name("copy.parquet"))]


def test_replaced_files_of_a_killed_writer_are_not_strays(filled: Lake, monkeypatch: pytest.MonkeyPatch):
    with filled.stage() as staging:
        monkeypatch.setattr(disk, "remove", lambda path: None)
        filled.merge(staging, "a", EPOCH, min_files=2)
    monkeypatch.undo()
    assert len(listed(filled)) == 2 * len(known(filled))
    assert filled.strays() == []
    with filled.stage():
        assert listed(filled) == known(filled)


# --- disks


@pytest.mark.parametrize(
    ("number", "reported"), [(errno.ENOSPC, "free space"), (errno.EROFS, "check how it is mounted")]
)
def test_disk_error_names_the_path_and_the_remedy(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, number: int, reported: str
):
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with lake.stage() as staging:
        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(LakeError, match=f"{lake.path}: {os.strerror(number)}; {reported}"):
            archive(lake, staging, "a", 1, 10)
        monkeypatch.undo()
        archive(lake, staging, "a", 1, 10)
    assert len(listed(lake)) == 10


def test_path_where_no_lake_can_be_created_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: str, *rest: object, **more: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, "makedirs", refuse)
    with pytest.raises(LakeError, match="staging: Read-only file system; check how it is mounted"):
        Lake(str(tmp_path / "lake")).create()
