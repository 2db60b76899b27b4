"""Changes of a lake on disk: what readers see, and when."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.lake.making import archive, check_content, known, listed, seqs_of, staged
from topics.lake import Change, Conflict, Damaged, File, Lake, LakeError, NoLake, Snapshot, merge_files
from topics.lake.commits import CHECKPOINT_EVERY, KEPT, Commits
from topics.lake.manifest import Commit


def folders(lake: Lake) -> list[str]:
    return os.listdir(Path(lake.path) / "_lake" / "staging")


def commit_files(lake: Lake) -> list[str]:
    return sorted(os.listdir(Path(lake.path) / "_lake" / "commits"))


def without_publishing(lake: Lake, first: int, last: int, *, lost: int = 0) -> None:
    """A writer that dies right after its commit."""
    staging = lake.stage()
    staging.__enter__()
    staging._publish = lambda commits: None  # type: ignore[method-assign]
    archive(lake, staging, "a", first, last, lost=lost)
    os.close(staging._lock)


def test_uncommitted_files_are_invisible(lake: Lake):
    with lake.stage() as staging:
        staged(lake, staging, "a", 1, 100)
        assert listed(lake) == known(lake) == []
    assert folders(lake) == []


def test_commit_is_visible_to_listings_and_the_manifest(lake: Lake):
    with lake.stage() as staging:
        archive(lake, staging, "a", 1, 100)
    assert listed(lake) == known(lake) == [("a", seq) for seq in range(1, 101)]
    check_content(lake, "a")


def test_next_writer_publishes_a_commit_of_a_killed_writer(lake: Lake):
    without_publishing(lake, 1, 100, lost=10)
    assert listed(lake) == []
    assert known(lake) == [("a", seq) for seq in range(11, 101)]
    with lake.stage():
        pass
    assert listed(lake) == known(lake) == [("a", seq) for seq in range(11, 101)]
    assert folders(lake) == []


def test_committed_files_that_cannot_be_renamed_are_kept(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    def no_space(old: str, new: str) -> None:
        raise OSError(28, "No space left on device")

    with lake.stage() as staging:
        monkeypatch.setattr(os, "rename", no_space)
        with pytest.raises(LakeError, match="lake: No space left on device; free space"):
            archive(lake, staging, "a", 1, 100)
    monkeypatch.undo()
    assert len(known(lake)) == 100
    assert listed(lake) == []
    with lake.stage():
        assert len(listed(lake)) == 100
    assert folders(lake) == []


def test_concurrent_archivers_leave_one_history(lake: Lake):
    """Each archiver takes the next seqs that it knows of, and reads the lake again after a conflict."""
    clashes: list[Conflict] = []

    def work() -> None:
        mine = Lake(lake.path)
        with mine.stage() as staging:
            for _ in range(15):
                base = mine.snapshot()
                archived = base.archived("a", 7)
                at = 0 if archived is None else archived.archived_to
                try:
                    archive(mine, staging, "a", at + 1, at + 5, base=base)
                    mine.merge(staging, "a", 7, min_files=4)
                except Conflict as clash:
                    clashes.append(clash)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    commits = 4 * 15 - len(clashes)
    assert known(lake) == listed(lake) == [("a", seq) for seq in range(1, 5 * commits + 1)]
    check_content(lake, "a")


def test_folder_of_a_live_writer_is_left_alone(lake: Lake):
    with lake.stage() as one:
        files = staged(lake, one, "a", 1, 10)
        with lake.stage():
            assert one.token in folders(lake)
        one.commit(lake.snapshot(), [Change(op="archive", topic="a", epoch=7, adds=files, covered=(1, 10))])
    assert len(listed(lake)) == 10


def test_folder_of_a_dead_writer_is_removed(lake: Lake):
    dead = lake.stage()
    dead.__enter__()
    staged(lake, dead, "a", 1, 10)
    os.close(dead._lock)
    with lake.stage():
        assert dead.token not in folders(lake)


def test_one_of_two_archives_of_the_same_seqs_succeeds(lake: Lake):
    with lake.stage() as one, lake.stage() as other:
        base = lake.snapshot()
        archive(lake, one, "a", 1, 10, base=base)
        with pytest.raises(Conflict):
            archive(lake, other, "a", 1, 12, base=base)
        archive(lake, other, "a", 11, 12, lost=1)
    assert known(lake) == listed(lake) == [("a", seq) for seq in (*range(1, 11), 12)]


def test_changes_of_different_topics_do_not_conflict(lake: Lake):
    with lake.stage() as one, lake.stage() as other:
        base = lake.snapshot()
        archive(lake, one, "a", 1, 10, base=base)
        archive(lake, other, "b", 1, 10, base=base)
    assert lake.snapshot().topics() == ["a", "b"]


def test_commit_of_a_missing_file_is_refused(lake: Lake):
    with lake.stage() as staging:
        [file] = staged(lake, staging, "a", 1, 10)
        os.unlink(Path(lake.path) / file.staged)
        with pytest.raises(LakeError, match="driver and all executors share"):
            staging.commit(Snapshot(), [Change(op="archive", topic="a", epoch=7, adds=[file], covered=(1, 10))])


def test_commit_of_a_truncated_file_is_refused(lake: Lake):
    with lake.stage() as staging:
        [file] = staged(lake, staging, "a", 1, 10)
        os.truncate(Path(lake.path) / file.staged, 10)
        with pytest.raises(Damaged):
            staging.commit(Snapshot(), [Change(op="archive", topic="a", epoch=7, adds=[file], covered=(1, 10))])


def test_versions_are_folded_and_old_ones_removed(lake: Lake):
    rounds = KEPT + 2 * CHECKPOINT_EVERY + 3
    with lake.stage() as staging:
        for at in range(rounds):
            archive(lake, staging, "a", 1 + 2 * at, 2 + 2 * at, lost=1)
    fresh = Lake(lake.path)
    assert fresh.snapshot().published() == lake.snapshot().published()
    assert fresh.snapshot().version == rounds
    assert known(fresh) == listed(fresh) == [("a", 2 * at) for at in range(1, rounds + 1)]
    assert len(commit_files(lake)) < rounds
    assert len(Commits(lake.path).checkpoints()) == 1
    assert len(list((Path(lake.path) / "_gaps").iterdir())) < CHECKPOINT_EVERY + 2
    assert fresh.ledger().num_rows == rounds


def test_reader_with_an_old_version_sees_the_newest(lake: Lake):
    other = Lake(lake.path)
    assert other.snapshot().version == 0
    with lake.stage() as staging:
        for at in range(KEPT + 2 * CHECKPOINT_EVERY):
            archive(lake, staging, "a", 1 + at, 1 + at)
    assert other.snapshot().published() == lake.snapshot().published()


def test_removed_version_cannot_be_written_again(lake: Lake, tmp_path: Path):
    with lake.stage() as staging:
        for at in range(KEPT + 2 * CHECKPOINT_EVERY):
            archive(lake, staging, "a", 1 + at, 1 + at)
        before = lake.snapshot()
        late = Commit(version=1, made_at=0, run="late", changes=[])
        with pytest.raises(Conflict, match="many newer versions"):
            Commits(lake.path).add(late, via=str(tmp_path))
    assert "00000000000000000001.json" not in commit_files(lake)
    assert Lake(lake.path).snapshot().published() == before.published()


def test_merged_files_replace_the_small_ones(lake: Lake):
    with lake.stage() as staging:
        for at in range(10):
            archive(lake, staging, "a", 1 + 10 * at, 10 + 10 * at, lost=1)
        before = known(lake)
        assert lake.merge(staging, "a", 7, min_files=8) == 10
    archived = lake.snapshot().archived("a", 7)
    assert archived is not None
    assert len(archived.files) == 1
    assert listed(lake) == known(lake) == before
    assert (archived.archived_to, len(archived.gaps)) == (100, 10)
    check_content(lake, "a")


def test_merge_gives_way_to_an_erase(lake: Lake):
    with lake.stage() as staging:
        for at in range(4):
            archive(lake, staging, "a", 1 + 10 * at, 10 + 10 * at)
        base = lake.snapshot()
        archived = base.archived("a", 7)
        assert archived is not None
        merged = merge_files(lake.path, staging.token, "a", 7, archived.files)
        erase(lake, "t1")
        change = Change(op="merge", topic="a", epoch=7, adds=[merged], removes=list(archived.files))
        with pytest.raises(Conflict):
            staging.commit(base, [change])
    assert [("a", seq) for seq in range(1, 41) if seq % 3 != 1] == known(lake) == listed(lake)


def erase(lake: Lake, tag: str, **options: bool) -> int:
    import pyarrow.compute as pc

    done = lake.erase(["a", "b"], lambda topic, epoch, batch: pc.not_equal(batch.column("tag"), tag), **options)
    return sum(one.removed for one in done)


def test_erase_removes_records_from_every_file_and_the_disk(lake: Lake):
    with lake.stage() as staging:
        archive(lake, staging, "a", 1, 30)
        archive(lake, staging, "b", 1, 3)
        archive(lake, staging, "c", 1, 3)
    before = set(Path(lake.path).glob("topic=[ab]/*/*.parquet"))
    assert erase(lake, "t1") == 11
    assert not before & set(Path(lake.path).glob("topic=[ab]/*/*.parquet"))
    left = [("a", seq) for seq in range(1, 31) if seq % 3 != 1] + [("b", 2), ("b", 3)]
    assert known(lake) == listed(lake) == [*left, ("c", 1), ("c", 2), ("c", 3)]
    check_content(lake, "a")
    archived = lake.snapshot().archived("a", 7)
    assert archived is not None
    assert archived.uncovered(1, 30) == []  # the deleted seqs are covered


def test_erase_of_all_records_removes_the_file(lake: Lake):
    with lake.stage() as staging:
        archive(lake, staging, "b", 1, 1)
    assert erase(lake, "t1") == 1
    assert known(lake) == listed(lake) == []
    assert not list(Path(lake.path).glob("topic=b/*/*.parquet"))


def test_dry_run_of_an_erase_counts_and_changes_nothing(lake: Lake):
    with lake.stage() as staging:
        archive(lake, staging, "a", 1, 30)
    before = lake.snapshot()
    assert erase(lake, "t1", dry_run=True) == 10
    assert lake.snapshot() == before
    assert len(listed(lake)) == 30


def test_archive_during_an_erase_reads_again(lake: Lake):
    with lake.stage() as staging:
        base = lake.snapshot()
        erase(lake, "t1")
        with pytest.raises(Conflict, match="erased"):
            archive(lake, staging, "a", 1, 10, base=base)


def test_directory_without_a_lake_is_an_error(tmp_path: Path):
    lake = Lake(str(tmp_path / "nothing"))
    assert not lake.exists()
    with pytest.raises(NoLake, match="is not a lake"):
        lake.snapshot()


@pytest.mark.parametrize("location", ["s3://bucket/lake", "hdfs:///lake"])
def test_path_that_is_not_a_directory_is_refused(location: str):
    with pytest.raises(LakeError, match="is a directory"):
        Lake(location)


def test_reader_continues_when_files_are_merged(lake: Lake):
    with lake.stage() as staging:
        for at in range(10):
            archive(lake, staging, "a", 1 + 10 * at, 10 + 10 * at)
        reading = lake.read("a", 7)
        seen = seqs_of([next(reading)])
        assert lake.merge(staging, "a", 7, min_files=2) == 10
    assert seen + seqs_of(reading) == list(range(1, 101))


def test_file_renamed_or_replaced_while_opened_is_found_or_reported(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    without_publishing(lake, 1, 10)
    archived = lake.snapshot().archived("a", 7)
    assert archived is not None
    [file] = archived.files
    locate, moves = Lake.locate, iter([lake.stage, lambda: os.unlink(Path(lake.path) / file.path)])

    def and_move(self: Lake, wanted: File) -> str:
        """Where it was a moment ago."""
        path = locate(self, wanted)
        if (move := next(moves, None)) is not None and (done := move()) is not None:
            with done:
                pass
        return path

    monkeypatch.setattr(Lake, "locate", and_move)
    with pytest.raises(Damaged, match="is missing"):
        lake.verify(file)
