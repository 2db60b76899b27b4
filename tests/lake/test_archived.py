"""The content of a lake, without files."""

from topics.lake import ArchivedEpoch, File, Gap, joined, plan_merges
from topics.lake.archived import outside


def file(first: int, last: int, *, size: int = 1000, date: str = "2024-02-29") -> File:
    return File(
        path=f"{first}-{last}", date=date, first=first, last=last, rows=last - first + 1, bytes=size,
        min_ts=0, max_ts=0,
    )  # fmt: skip


def test_epoch_knows_its_files_gaps_and_unarchived_seqs():
    found = ArchivedEpoch(
        topic="a", epoch=7, files=(file(1, 10), file(16, 30)), gaps=(Gap(11, 15, "cap", 1),), archived_to=30
    )
    assert [one.first for one in found.files_in(10, 16)] == [1, 16]
    assert found.files_in(31, 99) == []
    assert found.gaps_in(13, 14) == [Gap(13, 14, "cap", 1)]
    assert found.uncovered(25, 40) == [(31, 40)]
    assert found.uncovered(1, 30) == []


def test_seqs_outside_lie_between_and_around_the_ranges():
    assert outside([(20, 29), (5, 9)], 1, 40) == [(1, 4), (10, 19), (30, 40)]
    assert outside([(1, 5), (6, 9)], 2, 9) == []
    assert outside([], 3, 2) == []


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
