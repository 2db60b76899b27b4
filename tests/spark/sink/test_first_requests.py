"""A repeated micro-batch after some of its records were deleted: the others are written once, and nothing is lost."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from topics.spark.sink import chunks
from topics.spark.sink.chunks import Chunk, GridChunks, Sourced
from topics.spark.sink.first_requests import FirstRequests

SEQS = st.integers(990, 1030)


class Target:
    """A topic that remembers keys."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.records: Counter[bytes] = Counter()

    def send(self, requests: Iterable[Chunk]) -> None:
        for one in requests:
            if one.key not in self.keys:
                self.keys.add(one.key)
                self.records.update(one.records)


def requests(checkpoint: Path, attempt: str, seqs: Iterable[int], *, task: int = 0, text: str = "x") -> list[Chunk]:
    """Return the requests of one task, which has these source seqs."""
    first = FirstRequests(checkpoint / "topics" / "0", attempt, f"3.{task}")
    grid = GridChunks("q/0", repeated=first.repeated)
    rows = [Sourced("out", "in", seq, record_of(seq, text)) for seq in sorted(seqs)]
    return [*grid.add(rows), *grid.finish()]


def record_of(seq: int, text: str = "x") -> bytes:
    return b'{"data":"%b %d"}' % (text.encode(), seq)


@given(st.sets(SEQS, min_size=1), st.data(), st.integers(0, 4))
def test_rows_that_are_left_are_written_once(seqs: set[int], data: st.DataObject, sent: int):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "MAX_BYTES", 200)  # a cell takes several requests
        target, left = Target(), seqs
        target.send(requests(Path(folder), "1", seqs)[:sent])
        for attempt in ("2", "3"):
            left = left - data.draw(st.sets(SEQS))
            target.send(requests(Path(folder), attempt, left)[:sent])
        target.send(requests(Path(folder), "4", left))
        assert all(target.records[record_of(seq)] == 1 for seq in left)
        assert max(target.records.values(), default=0) <= 1


@given(st.lists(st.tuples(SEQS, st.integers(0, 2), st.integers(0, 2)), unique_by=lambda row: row[0]), st.data())
def test_parts_of_a_cell_are_never_lost(rows: list[tuple[int, int, int]], data: st.DataObject):
    """Each row is in one task of the first attempt, and in another of the second one."""
    with tempfile.TemporaryDirectory() as folder:
        target = Target()
        for task in range(3):
            part = [seq for seq, first, _ in rows if first == task]
            target.send(requests(Path(folder), "1", part, task=task)[: data.draw(st.integers(0, 2))])
        deleted = data.draw(st.sets(SEQS))
        for task in data.draw(st.permutations([0, 1, 2, 0, 1, 2])):  # each of them is tried again
            part = [seq for seq, _, second in rows if second == task and seq not in deleted]
            target.send(requests(Path(folder), "2", part, task=task))
        assert all(target.records[record_of(seq)] for seq, *_ in rows if seq not in deleted)


def test_branches_of_a_union_are_both_written(tmp_path: Path):
    target, seqs = Target(), range(1, 10)
    for attempt in ("1", "2"):
        for task, text in enumerate("ab"):
            target.send(requests(tmp_path, attempt, seqs, task=task, text=text))
    assert target.records == Counter(record_of(seq, text) for seq in seqs for text in "ab")


def test_task_that_is_tried_again_keeps_its_keys(tmp_path: Path):
    target = Target()
    target.send(requests(tmp_path, "1", range(1, 10)))
    target.send(requests(tmp_path, "1", range(1, 9)))
    target.send(requests(tmp_path, "1", range(1, 9), task=1))  # another task has other keys
    assert target.records == Counter([*map(record_of, range(1, 10)), *map(record_of, range(1, 9))])


def test_machine_without_the_checkpoint_keeps_nothing(tmp_path: Path):
    plain = requests(tmp_path / "elsewhere", "1", range(1, 5))
    assert not (tmp_path / "elsewhere").exists()
    assert requests(tmp_path, "1", range(1, 5)) == plain


@pytest.mark.parametrize("content", [b"[", b"\xff", b""])
def test_damaged_file_makes_duplicates_and_loses_nothing(tmp_path: Path, content: bytes):
    target = Target()
    target.send(requests(tmp_path, "1", range(1, 5)))
    [file] = (tmp_path / "topics" / "0").iterdir()
    file.write_bytes(content)
    for attempt in "23":
        target.send(requests(tmp_path, attempt, range(2, 5)))
    assert target.records == Counter({record_of(1): 1} | {record_of(seq): 2 for seq in range(2, 5)})


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_nothing_is_lost_whatever_changes_between_the_attempts(data: st.DataObject):
    """Another shuffle, a filter that comes and goes, branches of a union, deletes: duplicates, but no loss."""
    seqs, branches = range(1000, 1008), data.draw(st.sampled_from([1, 2]))  # of one cell
    with tempfile.TemporaryDirectory() as folder:
        target, gone = Target(), set[int]()
        tasks, wanted, attempts = dict[int, list[int]](), Counter[bytes](), data.draw(st.integers(2, 4))
        for attempt in map(str, range(attempts)):
            gone |= data.draw(st.sets(st.sampled_from(seqs), max_size=2))
            tasks.clear()
            wanted.clear()
            for branch in range(branches):
                chosen = seqs if branch == 0 else data.draw(st.sets(st.sampled_from(seqs)))  # a filtered copy
                layout = data.draw(st.lists(st.integers(0, 1), min_size=len(seqs), max_size=len(seqs)))
                for seq, task in zip(seqs, layout, strict=True):
                    if seq in chosen and seq not in gone:
                        tasks.setdefault(branch * 2 + task, []).append(seq)
                        wanted[record_of(seq)] += 1
            # Branches with the very same rows are one write, as the page says.
            assume(len({tuple(part) for part in tasks.values()}) == len(tasks))
            for task in data.draw(st.permutations(sorted(tasks))):
                sent = requests(Path(folder), attempt, tasks[task], task=task)
                target.send(sent[: data.draw(st.integers(0, 1))])
        for task in data.draw(st.permutations(sorted(tasks))):  # each is tried again, and the batch ends
            target.send(requests(Path(folder), attempt, tasks[task], task=task))
        assert target.records >= wanted
