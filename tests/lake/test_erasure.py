"""An erasure of a lake reads only files that may have its records, and what other runs commit meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lake.making import EPOCH, archive, archived_epoch_of, commit_first, erase, known, merge, records
from topics.lake import Change, Lake, write_files
from topics.lake.lake import LakeErasure
from topics.lake.rewrite import Erasure, here
from topics.model.records import TagMatch


def tagged(lake: Lake, first: int, *tags: str | None) -> None:
    """Archive one record for each tag, in a file of their own."""
    batch = records(first, first + len(tags) - 1)
    batch = batch.set_column(batch.schema.get_field_index("tag"), "tag", pa.array(tags, pa.string()))
    files = write_files(lake.storage, "a", EPOCH, [batch])
    change = Change(op="archive", topic="a", epoch=EPOCH, adds=files, covered=(first, first + len(tags) - 1))
    lake.commit(lake.table("a").state(), [change])


class Counting:
    """Runs tasks, and counts the files that they read and that they wrote."""

    def __init__(self, act: Callable[[], object] | None = None) -> None:
        self.read, self.written = 0, 0
        self._act = act

    def __call__(self, items: list[Any], task: Any, **more: Any) -> list[Any]:
        found = here(items, task, **more)
        self.read += len(items)
        self.written += sum(one.new is not None for one in found)
        if self._act is not None:
            act, self._act = self._act, None
            act()
        return found


@pytest.mark.parametrize(
    ("match", "files"),
    [
        (TagMatch("Eq", "b"), 1),
        (TagMatch("Eq", "m"), 0),
        (TagMatch("Eq", "u-42:web"), 2),
        (TagMatch("Eq", "u-42:zz"), 0),
        (TagMatch("Glob", "u-42:"), 2),
        (TagMatch("Glob", "u-"), 2),
        (TagMatch("Glob", "v"), 0),
        (TagMatch("Eq", "é"), 1),
    ],
)
def test_statistics_exclude_files(lake: Lake, match: TagMatch, files: int):
    tagged(lake, 1, "a", "b", None, "c")
    tagged(lake, 5, "u-42:app", "u-42:web")
    tagged(lake, 7, "u-42:x", "u-420")
    tagged(lake, 9, None, None)
    tagged(lake, 11, "z", "ü")
    run = Counting()
    fresh = Lake(lake.path)
    found = LakeErasure(fresh, ["a"], lambda topic, epoch: Erasure(match=match), run=run).count()
    assert run.read == files
    expected = [tag for tag in ("a", "b", "c", "u-42:app", "u-42:web", "u-42:x", "u-420") if match.covers(tag)]
    assert sum(found["a"]) == len(expected)


def test_files_without_statistics_of_tags_are_read(lake: Lake):
    tagged(lake, 1, "a")
    tagged(lake, 2, "x" * 2000, "m")  # too long for bounds
    delta = lake.table("a").delta()
    assert delta is not None
    run = Counting()
    assert erase(lake, "m", topics=["a"], run=run) == 1
    assert (run.read, run.written) == (2, 1)


def test_copies_are_found_by_their_seqs_whatever_the_tags(lake: Lake):
    tagged(lake, 1, "a", None)
    tagged(lake, 3, None, "b")
    run = Counting()
    erasure = LakeErasure(lake, ["a"], lambda *of: Erasure(match=TagMatch("Eq", "x"), seqs=[3], upto=3), run=run)
    assert erasure.count() == {"a": [1]}
    erasure.commit()
    assert (run.read, run.written) == (2, 1)
    assert known(lake) == [("a", 1), ("a", 2), ("a", 4)]


def test_log_has_no_bounds_of_erased_tags(lake: Lake):
    tagged(lake, 1, "user-42", "b")
    tagged(lake, 3, "c", "user-42")
    erase(lake, "user-42", topics=["a"])
    for path in Path(lake.path, "a").rglob("*"):
        assert path.is_dir() or b"user-42" not in path.read_bytes(), path
    assert [file.tags for file in archived_epoch_of(Lake(lake.path)).files] == [("b", "b"), ("c", "c")]


def test_records_that_are_archived_during_an_erasure_are_erased(lake: Lake):
    """Another run read them before they were deleted from the topic."""
    tagged(lake, 1, "a", "m")
    run = Counting(lambda: tagged(Lake(lake.path), 3, "m", "b"))
    assert LakeErasure(lake, ["a"], lambda *of: Erasure(match=TagMatch("Eq", "m")), run=run).commit() == {"a": [1, 1]}
    assert known(lake) == [("a", 1), ("a", 4)]
    assert (run.read, run.written) == (2, 2), "no file is read or written twice"


def test_records_that_are_archived_at_the_commit_of_an_erasure_are_erased(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    tagged(lake, 1, "a", "m")
    commit_first(monkeypatch, lambda: tagged(Lake(lake.path), 3, "m", "b"))
    LakeErasure(lake, ["a"], lambda *of: Erasure(match=TagMatch("Eq", "m"))).commit()
    assert known(lake) == [("a", 1), ("a", 4)]


def test_files_that_are_merged_during_an_erasure_are_erased(lake: Lake):
    for at in range(4):
        archive(lake, "a", 1 + 10 * at, 10 + 10 * at)
    run = Counting(lambda: merge(Lake(lake.path)))
    LakeErasure(lake, ["a"], lambda *of: Erasure(match=TagMatch("Eq", "t1")), run=run).commit()
    assert known(lake) == [("a", seq) for seq in range(1, 41) if seq % 3 != 1]
    assert len(archived_epoch_of(lake).files) == 1
    assert lake.table("a").strays() == []
