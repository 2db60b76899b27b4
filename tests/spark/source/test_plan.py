"""Plans: which seqs are read, and how they are cut."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.options import read_options
from topics.spark.source import plan
from topics.spark.source.plan import GRID, Impossible, Span, TopicExtent


def extent(**fields: Any) -> TopicExtent:
    return TopicExtent(**{"server": "s", "topic": "t", "epoch": 5, "earliest": 11, "head": 90} | fields)


def planned(there: TopicExtent, **given_options: str) -> list[tuple[int, int, str | None]]:
    options = read_options({"subscribe": "t"} | given_options)
    found = plan.spans(options, [there], lambda _, ts_ms: ts_ms)
    return [(span.start, span.stop, span.lost) for span in found]


def test_batch_reads_everything_by_default():
    assert planned(extent()) == [(11, 91, None)]


def test_start_is_inclusive_and_end_exclusive():
    assert planned(extent(), startingOffsets='{"t": 20}', endingOffsets='{"t": 30}') == [(20, 30, None)]
    assert planned(extent(), startingOffsets="latest") == []


def test_times_are_looked_up():
    assert planned(extent(), startingTimestamp="40", endingTimestamp="60") == [(40, 60, None)]


def test_start_below_the_retained_seqs_is_kept_for_the_gap():
    assert planned(extent(), startingOffsets='{"t": 1}') == [(1, 91, None)]


def test_start_right_after_the_head_reads_nothing():
    assert planned(extent(), startingOffsets='{"t": 91}') == []


@pytest.mark.parametrize("loss", ["true", "false"])
def test_start_past_the_next_seq_is_an_error(loss: str):
    with pytest.raises(Impossible, match="no seq 91 yet; its head is 90"):
        planned(extent(), startingOffsets='{"t": 92}', failOnDataLoss=loss)
    with pytest.raises(Impossible, match="no seq 199 yet; its head is 90"):
        planned(extent(), startingOffsets='{"t": {"epoch": 5, "seq": 200}}', failOnDataLoss=loss)


def test_start_in_an_earlier_epoch_is_reported_as_recreated():
    for seq in (20, 200):
        offsets = f'{{"t": {{"epoch": 4, "seq": {seq}}}}}'
        assert planned(extent(), startingOffsets=offsets) == [(1, 91, "recreated"), (11, 91, None)]


def test_start_in_the_present_epoch_reads_from_its_seq():
    assert planned(extent(), startingOffsets='{"t": {"epoch": 5, "seq": 20}}') == [(20, 91, None)]


def test_end_in_an_earlier_epoch_is_an_error():
    with pytest.raises(Impossible, match="created again; its epoch is 5"):
        planned(extent(), endingOffsets='{"t": {"epoch": 4, "seq": 20}}')


def test_end_past_the_head_is_an_error():
    with pytest.raises(Impossible, match="no seq 99 yet; its head is 90"):
        planned(extent(), endingOffsets='{"t": 100}')


def test_empty_topic_has_nothing_to_read():
    assert planned(extent(earliest=1, head=0)) == []


def test_latest_of_a_backup_is_its_last_record():
    assert planned(extent(latest=80)) == [(11, 80, None)]


def span(start: int, stop: int, topic: str = "t") -> Span:
    return Span(server="s", topic=topic, epoch=1, start=start, stop=stop)


@given(
    start=st.integers(1, 50_000), length=st.integers(1, 200_000), parts=st.integers(1, 40), size=st.floats(0.0, 1000.0)
)
def test_cut_is_complete_and_on_the_grid(start: int, length: int, parts: int, size: float):
    cut = plan.cut([span(start, start + length)], lambda _: size, min_partitions=parts, partition_bytes=1 << 20)
    spans = [piece for part in cut for piece in part]
    assert (spans[0].start, spans[-1].stop) == (start, start + length)
    for before, after in pairwise(spans):
        assert before.stop == after.start
        assert before.stop % GRID == 0


def test_min_partitions_are_met_if_the_grid_allows():
    cut = plan.cut([span(1, 1_000_001)], lambda _: 100.0, min_partitions=8, partition_bytes=1 << 40)
    assert len(cut) == 8
    cut = plan.cut([span(1, 1_501)], lambda _: 100.0, min_partitions=8, partition_bytes=1 << 40)
    assert len(cut) == 2


def test_partition_stays_within_the_size_limit():
    cut = plan.cut([span(1, 1_000_001)], lambda _: 100.0, min_partitions=1, partition_bytes=10_000_000)
    assert len(cut) == 10


def test_small_topics_share_a_partition():
    spans = [span(1, 11, f"t{n}") for n in range(1000)]
    assert len(plan.cut(spans, lambda _: 100.0, min_partitions=1, partition_bytes=1 << 20)) == 1
    assert 4 <= len(plan.cut(spans, lambda _: 100.0, min_partitions=4, partition_bytes=1 << 20)) <= 5


def test_narrowing_keeps_the_range():
    narrowed = plan.narrow([span(10, 20), span(30, 40)], low=15, high=35)
    assert [(one.start, one.stop) for one in narrowed] == [(15, 20), (30, 35)]
