"""Cuts and keys of writes: which writes must be repeatable, and which must differ."""

import random
from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from topics.spark.sink import chunks
from topics.spark.sink.chunks import Chunk, GridChunks, OrderedChunks, Plain, Sourced


def rows(*seqs: int, topic: str = "out", source: str = "in", text: str = "x") -> list[Sourced]:
    return [Sourced(topic, source, seq, b'{"data":"%b %d"}' % (text.encode(), seq)) for seq in seqs]


def grid(*batches: Iterable[Sourced], run: str = "q/0", **options: object) -> list[Chunk]:
    chunker = GridChunks(run, **options)  # type: ignore[arg-type]
    found = [chunk for batch in batches for chunk in chunker.add(batch)]
    return [*found, *chunker.finish()]


def ordered(records: Iterable[bytes], *, partition: int = 0, sort: bool = False) -> list[Chunk]:
    chunker = OrderedChunks("q/0", partition, sort=sort)
    found = list(chunker.add(Plain("out", record) for record in records))
    return [*found, *chunker.finish()]


def keys(found: Iterable[Chunk]) -> set[str]:
    return {chunk.key for chunk in found}


@given(st.lists(st.integers(900, 5100), max_size=6), st.integers(1, 4))
def test_requests_do_not_depend_on_partitions_on_the_grid(cuts: list[int], size: int):
    """The batch is 901 to 5100; partitions end at multiples of 1000, Arrow batches anywhere."""
    whole = grid(rows(*range(901, 5101)))
    edges = sorted({901, 5101, *(cut // 1000 * 1000 for cut in cuts if cut > 1000)})
    again: list[Chunk] = []
    for low, high in pairwise(edges):
        seqs = list(range(low, high))
        step = max(len(seqs) // size, 1)
        again += grid(*[rows(*seqs[at : at + step]) for at in range(0, len(seqs), step)])
    assert again == whole
    assert [len(chunk.records) for chunk in whole] == [99, 1000, 1000, 1000, 1000, 101]


def test_shuffled_rows_give_the_same_requests():
    seqs = list(range(1, 3000))
    random.Random(7).shuffle(seqs)
    assert grid(rows(*seqs[:1000]), rows(*seqs[1000:])) == grid(rows(*range(1, 3000)))


def test_memory_is_bounded_and_cuts_do_not_depend_on_the_bound():
    batches = [rows(*range(at, at + 500)) for at in range(0, 20_000, 500)]
    assert grid(*batches, held_bytes=30_000) == grid(*batches)


def test_two_branches_of_one_source_are_two_writes():
    assert not keys(grid(rows(1, 2, 3, text="a"))) & keys(grid(rows(1, 2, 3, text="b")))


def test_by_source_random_columns_change_no_key():
    assert keys(grid(rows(1, 2, text="a"), key_by="source")) == keys(grid(rows(1, 2, text="b"), key_by="source"))


def test_by_source_other_rows_of_a_range_are_another_write():
    assert not keys(grid(rows(1, 2, 5), key_by="source")) & keys(grid(rows(1, 3, 5), key_by="source"))


def test_by_range_deleted_records_change_no_key():
    whole = grid(rows(*range(1, 3000)), key_by="range")
    assert keys(grid(rows(1, *range(3, 1500), *range(1502, 3000)), key_by="range")) == keys(whole)
    found = [grid(rows(1), key_by="range", run=run) for run in ("q/0", "q/1")]
    assert len(set.union(*map(keys, found), keys(grid(rows(1, source="other"), key_by="range")))) == 3


def test_by_range_rows_of_several_requests_have_keys_of_their_rows():
    """A delete moves rows from one request to another: under a key of the range, a moved row would not be written."""
    many = rows(*[7] * 25_000)
    assert keys(grid(many, key_by="range")) == keys(grid(many))
    early = grid(*[rows(7) for _ in range(50)], held_bytes=40, key_by="range")
    assert len(keys(early)) == len(early)


def test_same_seqs_of_another_batch_or_topic_are_another_write():
    found = [grid(rows(1)), grid(rows(1), run="q/1"), grid(rows(1, source="other"))]
    assert len(set.union(*map(keys, found))) == 3


def test_many_rows_of_one_record_are_cut_with_distinct_keys():
    found = grid(rows(*[7] * 25_000), key_by="source")
    assert [len(chunk.records) for chunk in found] == [10_000, 10_000, 5000]
    assert len(keys(found)) == 3


def test_cell_released_early_never_reuses_a_key():
    found = grid(*[rows(7) for _ in range(50)], held_bytes=40, key_by="source")
    assert sum(len(chunk.records) for chunk in found) == 50
    assert len(keys(found)) == len(found)


def test_requests_are_bounded_in_bytes():
    big = [Sourced("out", "in", seq, b'"' + b"x" * (1 << 20) + b'"') for seq in range(10)]
    found = grid(big)
    assert [len(chunk.records) for chunk in found] == [3, 3, 3, 1]
    assert max(sum(map(len, chunk.records)) for chunk in found) <= chunks.MAX_BYTES


def test_rows_without_a_source_have_a_key_independent_of_order():
    one, other = ordered([b"1", b"3", b"2"]), ordered([b"2", b"1", b"3"])
    assert one[0].records == [b"1", b"3", b"2"]
    assert keys(one) == keys(other)


def test_equal_rows_in_two_partitions_are_two_writes():
    assert not keys(ordered([b"1"], partition=0)) & keys(ordered([b"1"], partition=1))


def test_equal_requests_of_one_partition_are_two_writes():
    found = ordered([b"1"] * 20_000)
    assert [len(chunk.records) for chunk in found] == [10_000, 10_000]
    assert len(keys(found)) == 2


def test_sorted_rows_are_cut_independently_of_their_order():
    records = [b"%d" % number for number in range(25_000)]
    mixed = random.Random(7).sample(records, len(records))
    assert ordered(mixed, sort=True) == ordered(records, sort=True)
    assert sum(len(chunk.records) for chunk in ordered(mixed, sort=True)) == 25_000


def test_key_is_short_enough_for_a_server():
    [chunk] = grid(rows(2**63 - 1, source="s" * 255), run=f"spark/{'f' * 36}/{2**63}/{'w' * 64}")
    assert len(chunk.key) <= 200
