"""The manifest, without files."""

import pytest

from topics.lake import ArchivedEpoch, Change, Conflict, File, Gap, Snapshot, Staged, joined, plan_merges
from topics.lake.manifest import Commit


def file(first: int, last: int, *, size: int = 1000, date: str = "2024-02-29") -> File:
    return File(
        path=f"{first}-{last}", date=date, first=first, last=last, rows=last - first + 1, bytes=size,
        min_ts=0, max_ts=0, sum="0",
    )  # fmt: skip


def after(snapshot: Snapshot, *changes: Change) -> Snapshot:
    snapshot.check(snapshot, changes)
    return snapshot.after(Commit(version=snapshot.version + 1, made_at=0, run="r", changes=list(changes)))


def archived(first: int, last: int, *, topic: str = "a", gaps: list[Gap] | None = None) -> Change:
    return Change(
        op="archive", topic=topic, epoch=7, adds=[Staged(file(first, last))], gaps=gaps or [], covered=(first, last)
    )


def test_epoch_knows_its_archived_seq_and_ranges():
    gap = Gap(11, 15, "cap", 1)
    archived_epoch = after(after(Snapshot(), archived(1, 10)), archived(11, 30, gaps=[gap])).archived("a", 7)
    assert archived_epoch is not None
    assert (archived_epoch.archived_to, archived_epoch.covered) == (30, ((1, 30),))
    assert [found.first for found in archived_epoch.files_in(10, 11)] == [1, 11]
    assert [found.first for found in archived_epoch.files_in(31, 99)] == []
    assert archived_epoch.gaps_in(13, 14) == [Gap(13, 14, "cap", 1)]
    assert archived_epoch.uncovered(25, 40) == [(31, 40)]
    assert archived_epoch.uncovered(1, 30) == []


def test_uncovered_ranges_lie_between_and_around_covered_ones():
    archived_epoch = ArchivedEpoch(topic="a", epoch=7, covered=((5, 9), (20, 29)))
    assert archived_epoch.uncovered(1, 40) == [(1, 4), (10, 19), (30, 40)]
    assert archived_epoch.archived_to == 0


def test_epochs_of_a_topic_are_separate_and_sorted():
    snapshot = after(Snapshot(), archived(1, 10))
    other = Change(op="archive", topic="a", epoch=3, adds=[Staged(file(1, 5))], covered=(1, 5))
    snapshot = after(snapshot, other)
    assert [(archived_epoch.epoch, archived_epoch.archived_to) for archived_epoch in snapshot.epochs("a")] == [
        (3, 5),
        (7, 10),
    ]
    assert snapshot.archived("a", 4) is None
    assert snapshot.epochs("b") == []


def test_later_version_does_not_change_an_earlier_one():
    first = after(Snapshot(), archived(1, 10))
    after(first, archived(11, 20))
    archived_epoch = first.archived("a", 7)
    assert archived_epoch is not None
    assert archived_epoch.archived_to == 10


def test_concurrent_archives_of_the_same_seqs_conflict():
    base = Snapshot()
    newest = after(base, archived(1, 10))
    with pytest.raises(Conflict, match="up to 10 by another run"):
        newest.check(base, [archived(1, 12)])
    newest.check(base, [archived(1, 5, topic="b")])


def test_archive_that_skips_seqs_conflicts():
    with pytest.raises(Conflict):
        Snapshot().check(Snapshot(), [archived(2, 5)])


def test_archive_read_before_an_erase_conflicts():
    base = after(Snapshot(), archived(1, 10))
    newest = after(base, Change(op="erase", topic="a", epoch=0))
    with pytest.raises(Conflict, match="erased"):
        newest.check(base, [archived(11, 20)])
    newest.check(newest, [archived(11, 20)])


def test_erase_is_recorded_for_topics_not_in_the_lake():
    newest = after(Snapshot(), Change(op="erase", topic="a", epoch=0))
    assert newest.topics() == []
    with pytest.raises(Conflict):
        newest.check(Snapshot(), [archived(1, 10)])


def test_merge_of_replaced_files_conflicts():
    base = after(after(Snapshot(), archived(1, 10)), archived(11, 20))
    merge = Change(op="merge", topic="a", epoch=7, adds=[Staged(file(1, 20))], removes=[file(1, 10), file(11, 20)])
    newest = after(base, merge)
    archived_epoch = newest.archived("a", 7)
    assert archived_epoch is not None
    assert [(found.first, found.last) for found in archived_epoch.files] == [(1, 20)]
    with pytest.raises(Conflict, match="replaced meanwhile"):
        newest.check(base, [merge])


def test_trim_never_goes_back():
    snapshot = after(Snapshot(), archived(1, 10))
    for upto in (8, 5):
        snapshot = after(snapshot, Change(op="trim", topic="a", epoch=7, trimmed_to=upto))
    archived_epoch = snapshot.archived("a", 7)
    assert archived_epoch is not None
    assert archived_epoch.trimmed_to == 8


def test_gap_cut_between_tasks_is_one_gap():
    pieces = [Gap(1001, 1500, "cap", 2), Gap(1, 1000, "cap", 1), Gap(1501, 1600, "ttl", 3), Gap(1700, 1800, "ttl", 3)]
    assert joined(pieces) == [Gap(1, 1500, "cap", 1), Gap(1501, 1600, "ttl", 3), Gap(1700, 1800, "ttl", 3)]


# --- which files are merged


def archived_epoch_of(*files: File) -> ArchivedEpoch:
    return ArchivedEpoch(topic="a", epoch=7, files=files)


def merges(archived_epoch: ArchivedEpoch) -> list[list[int]]:
    return [[found.first for found in group] for group in plan_merges(archived_epoch, min_files=3, target_bytes=100)]


def test_enough_small_neighbours_are_merged():
    assert merges(archived_epoch_of(*(file(at, at, size=10) for at in range(1, 3)))) == []
    assert merges(archived_epoch_of(*(file(at, at, size=10) for at in range(1, 5)))) == [[1, 2, 3, 4]]


def test_files_of_two_dates_are_not_merged():
    dates = ["2024-02-28", "2024-02-28", "2024-02-29", "2024-02-29"]
    assert merges(archived_epoch_of(*(file(at, at, size=1, date=date) for at, date in enumerate(dates, 1)))) == []


def test_large_file_is_not_merged():
    small = [file(at, at, size=10) for at in range(2, 6)]
    assert merges(archived_epoch_of(file(1, 1, size=60), *small)) == [[2, 3, 4, 5]]


def test_file_waits_until_the_others_are_as_large():
    small = [file(at, at, size=10) for at in range(2, 6)]
    assert merges(archived_epoch_of(file(1, 1, size=45), *small)) == [[2, 3, 4, 5]]
    assert merges(archived_epoch_of(file(1, 1, size=35), *small)) == [[1, 2, 3, 4, 5]]


def test_merged_file_stays_within_the_target_size():
    assert merges(archived_epoch_of(*(file(at, at, size=30) for at in range(1, 8)))) == [[1, 2, 3], [4, 5, 6]]


def test_cost_of_a_small_file_grows_slowly():
    """Files of one byte come in one by one and are merged as planned: bytes written again stay within a logarithm."""
    files: list[File] = []
    rewritten = 0
    for at in range(1, 1001):
        files.append(file(at, at, size=1))
        for group in plan_merges(archived_epoch_of(*files), min_files=8, target_bytes=10_000):
            size = sum(one.bytes for one in group)
            rewritten += size
            files = [one for one in files if one not in group] + [file(group[0].first, group[-1].last, size=size)]
            files.sort(key=lambda one: one.first)
    assert len(files) < 40
    assert rewritten < 1000 * 10
