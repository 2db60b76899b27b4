"""Changes of a lake: what readers see, and which changes conflict."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from tests.lake.making import (
    EPOCH,
    archive,
    archived_epoch_of,
    check_content,
    commit_first,
    erase,
    known,
    merge,
    records,
    seen_by_others,
    seqs_of,
    written,
)
from tests.sampling import amount
from topics.clock import SystemClock
from topics.lake import Change, Conflict, Damaged, Gap, Lake, LakeError, NoLake, TopicState, write_files
from topics.lake.delta_folder import CHECKPOINT_EVERY
from topics.lake.files import FilesWriter
from topics.lake.rewrite import Rewrite, rewrite
from topics.lake.table import KEPT_HOURS


def data_files(lake: Lake, topic: str) -> set[str]:
    return {one.path for one in lake.table(topic).files()}


def test_uncommitted_files_are_invisible(lake: Lake):
    archive(lake, "a", 1, 10)
    written(lake, "a", 11, 100)
    assert known(lake) == [("a", seq) for seq in range(1, 11)]
    assert seen_by_others(lake, "a") == list(range(1, 11))


def test_commit_is_visible_to_every_reader(lake: Lake):
    archive(lake, "a", 1, 100)
    assert known(Lake(lake.path)) == [("a", seq) for seq in range(1, 101)]
    assert seen_by_others(lake, "a") == list(range(1, 101))
    check_content(lake, "a")


def test_gaps_and_progress_come_with_the_records(lake: Lake):
    archive(lake, "a", 1, 20, lost=5)
    archive(lake, "a", 21, 30, lost=10)
    found = archived_epoch_of(Lake(lake.path))
    assert (found.archived_to, found.gaps) == (30, (Gap(1, 5, "cap", 1000), Gap(21, 30, "cap", 1000)))
    assert seen_by_others(lake, "a") == list(range(6, 21)), "no gap is a row"


def test_gap_reason_may_hold_any_text(lake: Lake):
    gap = Gap(1, 5, 'a/b: ünïcode "x"', 99)
    lake.commit(TopicState(topic="a"), [Change(op="archive", topic="a", epoch=EPOCH, gaps=[gap], covered=(1, 5))])
    assert archived_epoch_of(Lake(lake.path)).gaps == (gap,)


def test_epochs_of_a_topic_are_separate(lake: Lake):
    archive(lake, "a", 1, 5, epoch=100)
    archive(lake, "a", 1, 3, epoch=200)
    found = Lake(lake.path).snapshot().epochs("a")
    assert [(one.epoch, one.archived_to, len(one.files)) for one in found] == [(100, 5, 1), (200, 3, 1)]
    assert seqs_of(lake.read("a", 100)) == [1, 2, 3, 4, 5]
    assert lake.snapshot().archived("a", 300) is None


def test_one_of_two_archives_of_the_same_seqs_succeeds(lake: Lake):
    base = archive(lake, "a", 1, 10)
    other = Lake(lake.path)
    archive(lake, "a", 11, 20, base=base)
    with pytest.raises(Conflict, match="up to 20 by another run"):
        archive(other, "a", 11, 22, base=base)
    assert known(lake) == [("a", seq) for seq in range(1, 21)]


def test_archive_that_skips_seqs_conflicts(lake: Lake):
    archive(lake, "a", 1, 10)
    with pytest.raises(Conflict):
        archive(lake, "a", 12, 15)


def test_commit_between_check_and_commit_is_refused_by_the_table(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    """The other run commits after this one has looked: then only Delta's own check is left."""
    archive(lake, "a", 1, 10)
    commit_first(monkeypatch, lambda: archive(Lake(lake.path), "a", 11, 12))
    with pytest.raises(Conflict):
        archive(lake, "a", 11, 20)
    monkeypatch.undo()
    assert known(lake) == [("a", seq) for seq in range(1, 13)]


def test_erase_between_check_and_commit_is_refused_by_the_table(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    archive(lake, "a", 1, 10)
    commit_first(monkeypatch, lambda: erase(Lake(lake.path), "nobody"))
    with pytest.raises(Conflict):
        archive(lake, "a", 11, 20)


def test_concurrent_archivers_leave_one_history(lake: Lake):
    """Each archiver takes the next seqs that it knows of, and reads the lake again after a conflict."""
    clashes: list[Conflict] = []
    failures: list[BaseException] = []
    archive(lake, "a", 1, 5)

    def work() -> None:
        mine = Lake(lake.path)
        for _ in range(12):
            base = mine.table("a").state()
            at = base.epoch(EPOCH).archived_to
            try:
                archive(mine, "a", at + 1, at + 5, base=base)
                merge(mine, min_files=4)
            except Conflict as clash:
                clashes.append(clash)
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    commits = 1 + 4 * 12 - len(clashes)
    assert known(lake) == [("a", seq) for seq in range(1, 5 * commits + 1)]
    assert seen_by_others(lake, "a") == list(range(1, 5 * commits + 1))
    check_content(lake, "a")


def test_changes_of_different_topics_do_not_conflict(lake: Lake):
    one, other = lake.table("a").state(), lake.table("b").state()
    archive(lake, "a", 1, 10, base=one)
    archive(lake, "b", 1, 10, base=other)
    assert lake.snapshot().topics() == ["a", "b"]


def test_commit_of_a_missing_file_is_refused(lake: Lake):
    [file] = written(lake, "a", 1, 10)
    os.unlink(Path(lake.path) / file.path)
    with pytest.raises(LakeError, match="driver and all executors share"):
        lake.commit(TopicState(topic="a"), [Change(op="archive", topic="a", epoch=7, adds=[file], covered=(1, 10))])


def test_archive_whose_files_a_quicker_run_removed_conflicts(lake: Lake):
    base = archive(lake, "a", 1, 10)
    late = written(lake, "a", 11, 20)
    archive(lake, "a", 11, 30, base=base)
    assert lake.table("a").remove_dead_files() == 1
    with pytest.raises(Conflict, match="up to 30 by another run"):
        lake.commit(base, [Change(op="archive", topic="a", epoch=EPOCH, adds=late, covered=(11, 20))])
    assert known(lake) == [("a", seq) for seq in range(1, 31)]


def test_records_out_of_order_are_not_written(lake: Lake):
    lake.create()
    batches = [records(1, 10), records(5, 6)]
    with pytest.raises(Damaged, match="topic a: seq 5 was read after seq 10"):
        write_files(lake.storage, "a", EPOCH, batches)
    assert lake.storage.files_in("a") == [], "the unfinished file is removed"


def test_file_that_a_quicker_run_removes_while_it_is_written_conflicts(lake: Lake):
    base = archive(lake, "a", 1, 10)
    with FilesWriter(lake.storage, "a", EPOCH) as writer:
        writer.write(records(11, 20))
        archive(lake, "a", 11, 30, base=base)
        assert lake.table("a").remove_dead_files() == 1
        late = writer.finish()
    with pytest.raises(Conflict, match="up to 30 by another run"):
        lake.commit(base, [Change(op="archive", topic="a", epoch=EPOCH, adds=late, covered=(11, 20))])


def test_commit_of_a_truncated_file_is_refused(lake: Lake):
    [file] = written(lake, "a", 1, 10)
    os.truncate(Path(lake.path) / file.path, 10)
    with pytest.raises(Damaged):
        lake.commit(TopicState(topic="a"), [Change(op="archive", topic="a", epoch=7, adds=[file], covered=(1, 10))])


def test_log_stays_short_and_keeps_every_fact(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("topics.lake.delta_folder.CHECKPOINT_EVERY", 6)
    rounds = 2 * 6 + 3
    reader = Lake(lake.path)
    for at in range(rounds):
        archive(lake, "a", 1 + 2 * at, 2 + 2 * at, lost=1)
        if at % 4 == 0:
            assert archived_epoch_of(reader) == archived_epoch_of(lake)
    for fresh in (Lake(lake.path), reader):
        found = archived_epoch_of(fresh)
        assert found.archived_to == 2 * rounds
        assert [gap.first for gap in found.gaps] == [1 + 2 * at for at in range(rounds)]
    assert len(list(Path(lake.path, "a", "_delta_log").glob("*.checkpoint.parquet"))) >= 2
    assert seen_by_others(lake, "a") == [2 * at for at in range(1, rounds + 1)]


MINUTE_S = 60
DAY = 24 * 60  # rounds
RETENTION_DAYS = KEPT_HOURS // 24


@pytest.mark.parametrize("rounds", [40, pytest.param(amount(5_000, 30 * DAY), marks=pytest.mark.torture)])
def test_table_archived_every_minute_stays_small(lake: Lake, rounds: int, monkeypatch: pytest.MonkeyPatch):
    """A month has 43,200 minutes. They end now: what was written before has the age that it would have."""
    started_s = time.time() - rounds * MINUTE_S
    log = Path(lake.path, "a", "_delta_log")
    aged = -1
    for at in range(1, rounds + 1):
        now_s = started_s + at * MINUTE_S
        monkeypatch.setattr(SystemClock, "now_ms", lambda self, now_s=now_s: round(now_s * 1000))
        archive(lake, "a", at, at, step_us=MINUTE_S * 1_000_000)
        merge(lake, "a", min_files=8)
        version = lake.table("a").state().version
        for number in range(aged + 1, version + 1):
            os.utime(log / f"{number:020d}.json", (now_s, now_s))
        aged = version
        if at % DAY == 0:
            for path in log.parent.rglob("*.parquet"):
                if path.stat().st_mtime > now_s:
                    os.utime(path, (now_s, now_s))
            lake.table("a").vacuum()
    last_checkpoint = json.loads((log / "_last_checkpoint").read_text())["version"]
    after_it = [path for path in log.glob("*.json") if int(path.stem) > last_checkpoint]
    assert len(after_it) <= CHECKPOINT_EVERY, "a reader reads one checkpoint and few versions"
    found = archived_epoch_of(Lake(lake.path))
    assert (found.archived_to, sum(file.rows for file in found.files)) == (rounds, rounds)
    assert len(found.files) < 8 * (rounds / DAY + 2), "a day has fewer files than a merge needs"
    assert len(list(log.iterdir())) < 2 * DAY * 9 / 8, "the log goes back a day, to a checkpoint"
    assert len(data_files(lake, "a")) < (RETENTION_DAYS + 2) * DAY * 9 / 8, "replaced files stay for a week"
    lake.table("a").vacuum(retention_hours=0)
    assert len(data_files(lake, "a")) == len(found.files)


def test_facts_survive_maintenance_by_other_programs(lake: Lake):
    for at in range(10):
        archive(lake, "a", 1 + 10 * at, 10 + 10 * at, lost=2)
    delta = lake.table("a").delta()
    assert delta is not None
    delta.optimize.compact()
    delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    delta.create_checkpoint()
    fresh = Lake(lake.path)
    found = archived_epoch_of(fresh)
    assert (found.archived_to, len(found.gaps), len(found.files)) == (100, 10, 1)
    assert seqs_of(fresh.read("a", EPOCH)) == [seq for seq in range(1, 101) if seq % 10 not in (1, 2)]
    check_content(fresh, "a")
    archive(fresh, "a", 101, 110)


def test_merged_files_replace_the_small_ones(lake: Lake):
    for at in range(10):
        archive(lake, "a", 1 + 10 * at, 10 + 10 * at, lost=1)
    before = known(lake)
    assert merge(lake, "a", min_files=8) == 10
    found = archived_epoch_of(lake)
    assert len(found.files) == 1
    assert known(lake) == before
    assert (found.archived_to, len(found.gaps)) == (100, 10)
    check_content(lake, "a")


def test_reader_of_an_older_version_finishes_during_a_merge(lake: Lake):
    for at in range(10):
        archive(lake, "a", 1 + 10 * at, 10 + 10 * at)
    delta = Lake(lake.path).table("a").delta()
    assert delta is not None
    reading = lake.read("a", 7)
    seen = seqs_of([next(reading)])
    assert merge(lake, "a", min_files=2) == 10
    assert seen + seqs_of(reading) == list(range(1, 101))
    assert delta.to_pyarrow_table().num_rows == 100, "replaced files stay for a week"


def test_merge_gives_way_to_an_erase(lake: Lake):
    for at in range(4):
        base = archive(lake, "a", 1 + 10 * at, 10 + 10 * at)
    files = base.epoch(EPOCH).files
    merged = rewrite(Rewrite(topic="a", epoch=EPOCH, files=files), lake=lake.path).new
    assert merged is not None
    erase(lake, "t1")
    with pytest.raises((Conflict, LakeError)):
        lake.commit(base, [Change(op="merge", topic="a", epoch=EPOCH, adds=[merged], removes=list(files))])
    assert [("a", seq) for seq in range(1, 41) if seq % 3 != 1] == known(lake)


def test_erase_removes_records_from_every_file_and_the_disk(lake: Lake):
    for at in range(3):
        archive(lake, "a", 1 + 10 * at, 10 + 10 * at)
    archive(lake, "b", 1, 3)
    archive(lake, "c", 1, 3)
    merge(lake, "a", min_files=2)  # the merged files are still on the disk
    before = data_files(lake, "a")
    assert len(before) == 4
    assert erase(lake, "t1") == 11
    assert not before & data_files(lake, "a")
    left = [("a", seq) for seq in range(1, 31) if seq % 3 != 1] + [("b", 2), ("b", 3)]
    assert known(lake) == [*left, ("c", 1), ("c", 2), ("c", 3)]
    check_content(lake, "a")
    assert archived_epoch_of(lake).uncovered(1, 30) == []  # the deleted seqs are covered
    assert seen_by_others(lake, "b") == [2, 3]


def test_erase_removes_the_log_of_earlier_versions(lake: Lake):
    for at in range(3):
        archive(lake, "a", 1 + 10 * at, 10 + 10 * at)
    erase(lake, "t1")
    log = Path(lake.path, "a", "_delta_log")
    assert not (log / f"{1:020d}.json").exists()
    fresh = Lake(lake.path)
    assert known(fresh) == known(lake)
    archive(fresh, "a", 31, 40)
    assert len(known(lake)) == 30


def test_killed_purge_is_repeated_by_the_next_erase(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    archive(lake, "a", 1, 10)
    before = data_files(lake, "a")
    monkeypatch.setattr("topics.lake.table.TopicTable.purge", lambda *rest: None)
    assert erase(lake, "t1") == 4
    assert before <= data_files(lake, "a")
    monkeypatch.undo()
    assert erase(lake, "t1") == 0
    assert not before & data_files(lake, "a")


def test_erase_removes_the_files_of_a_killed_archive(lake: Lake):
    archive(lake, "a", 1, 10)
    [dead] = written(lake, "a", 5, 20)  # a run that began at seq 5 can never be committed
    [running] = written(lake, "a", 11, 20)
    erase(lake, "t1")
    assert lake.storage.size(dead.path) is None
    assert lake.storage.size(running.path) is not None
    change = Change(op="archive", topic="a", epoch=EPOCH, adds=[running], covered=(11, 20))
    lake.commit(lake.table("a").state(), [change])
    assert len(known(lake)) == 6 + 10


def test_erase_of_all_records_removes_the_file(lake: Lake):
    archive(lake, "b", 1, 1)
    assert erase(lake, "t1") == 1
    assert known(lake) == []
    assert data_files(lake, "b") == set()
    assert archived_epoch_of(lake, "b").archived_to == 1


def test_dry_run_of_an_erase_counts_and_changes_nothing(lake: Lake):
    archive(lake, "a", 1, 30)
    before = lake.table("a").state()
    assert erase(lake, "t1", dry_run=True) == 10
    assert lake.table("a").state() == before
    assert len(data_files(lake, "a")) == 1


def test_archive_during_an_erase_reads_again(lake: Lake):
    lake.table("a").create()
    base = lake.table("a").state()
    erase(lake, "t1")
    with pytest.raises(Conflict, match="erased"):
        archive(lake, "a", 1, 10, base=base)


def test_trim_never_goes_back(lake: Lake):
    archive(lake, "a", 1, 10)
    for upto in (8, 5):
        lake.commit(lake.table("a").state(), [Change(op="trim", topic="a", epoch=EPOCH, trimmed_to=upto)])
    assert archived_epoch_of(Lake(lake.path)).trimmed_to == 8


def test_vacuum_keeps_replaced_files_for_a_week_by_default(lake: Lake):
    for at in range(4):
        archive(lake, "a", 1 + 10 * at, 10 + 10 * at)
    merge(lake, "a", min_files=2)
    assert lake.table("a").vacuum() == []
    assert len(data_files(lake, "a")) == 5
    assert len(lake.table("a").vacuum(retention_hours=0, dry_run=True)) == 4
    found = lake.table("a").vacuum(retention_hours=0)
    assert (len(found), sum(found) > 1000) == (4, True)
    assert len(data_files(lake, "a")) == 1
    check_content(Lake(lake.path), "a")


def test_directory_without_a_lake_is_an_error(tmp_path: Path):
    lake = Lake(str(tmp_path / "nothing"))
    assert not lake.exists()
    with pytest.raises(NoLake, match="is not a lake"):
        lake.snapshot()


def test_directory_with_other_files_is_refused(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NoLake, match=r"is not empty and is not a lake: it contains notes\.txt"):
        Lake(str(tmp_path)).create()


@pytest.mark.parametrize("location", ["hdfs:///lake", "s3:bucket", "s3://user@bucket/lake", ""])
def test_place_that_cannot_be_a_lake_is_refused(location: str):
    with pytest.raises(NoLake):
        Lake(location)
