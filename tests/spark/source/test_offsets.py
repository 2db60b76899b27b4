"""Offsets of streams: pure arithmetic on positions."""

import json

import pytest

from topics.spark.source import offsets
from topics.spark.source.offsets import ForeignOffset, StreamPosition, advance, share, spans
from topics.spark.source.plan import TopicExtent


def extent(topic: str = "t", *, epoch: int = 1, earliest: int = 1, head: int = 0) -> TopicExtent:
    return TopicExtent(server="http://a", topic=topic, epoch=epoch, earliest=earliest, head=head)


def at(**topics: tuple[int, int]) -> offsets.StreamPositions:
    return {topic: StreamPosition(*position) for topic, position in topics.items()}


def step(
    known: offsets.StreamPositions, *extents: TopicExtent, budget: int | None = None
) -> tuple[offsets.StreamPositions, list[str]]:
    """The end of the next batch, and its spans as text."""
    begin, end = advance(known, extents, first_seq=lambda _: 1, budget=budget)
    shown = [
        f"{span.topic}@{span.epoch}:{span.start}-{span.stop - 1} {span.lost or ''}".strip()
        for span in spans("http://a", begin, end)
    ]
    return end, shown


def test_batch_goes_from_the_last_end_to_the_head():
    assert step(at(t=(1, 5)), extent(head=9)) == (at(t=(1, 10)), ["t@1:5-9"])


def test_without_new_records_end_equals_start():
    known = at(t=(1, 10))
    begin, end = advance(known, [extent(head=9)], first_seq=lambda _: 1, budget=None)
    assert begin == end == known


def test_new_topic_is_read_from_its_first_seq():
    assert step(at(t=(1, 10)), extent(head=9), extent("u", epoch=2, head=3))[1] == ["u@2:1-3"]


def test_recreated_topic_is_reported_and_read_from_its_first_seq():
    assert step(at(t=(1, 5)), extent(epoch=2, head=3)) == (at(t=(2, 4)), ["t@2:1-3 recreated", "t@2:1-3"])


def test_topic_that_moved_backwards_is_reported_as_recreated():
    assert step(at(t=(1, 50)), extent(head=9)) == (at(t=(1, 10)), ["t@1:1-9 recreated", "t@1:1-9"])


def test_empty_recreated_topic_is_waited_for():
    assert step(at(t=(1, 5)), extent(epoch=2)) == (at(t=(1, 5)), [])


def test_deleted_topic_keeps_its_position():
    assert step(at(t=(1, 5)), extent("u", head=2))[0] == at(t=(1, 5), u=(1, 3))


def test_lost_range_costs_nothing_of_the_budget():
    assert step(at(t=(1, 1)), extent(earliest=5000, head=6000), budget=100) == (at(t=(1, 5100)), ["t@1:1-5099"])


def test_topic_that_lost_everything_reports_it():
    assert step(at(t=(1, 5)), extent(earliest=10, head=9), budget=1) == (at(t=(1, 10)), ["t@1:5-9"])


def test_unused_share_goes_to_the_other_topics():
    rooms = {"small": 10, "big": 1000, "bigger": 5000}
    assert share(rooms, 210, turn=0) == {"small": 10, "big": 100, "bigger": 100}


def test_topics_take_turns_with_a_small_budget():
    known = at(a=(1, 1), b=(1, 1), c=(1, 1))
    for _ in range(3):
        known, _ = step(known, *[extent(name, head=100) for name in "abc"], budget=1)
    assert known == at(a=(1, 2), b=(1, 2), c=(1, 2))


def test_large_batch_ends_on_the_grid_or_at_the_head():
    assert step(at(t=(1, 1)), extent(head=100_000), budget=20_500)[0] == at(t=(1, 20_000))
    assert step(at(t=(1, 1)), extent(head=20_400), budget=20_500)[0] == at(t=(1, 20_401))


def test_offsets_survive_json_with_sorted_names():
    positions = at(b=(1, 2), a=(3, 4), c=(5, 6))
    text = json.dumps(offsets.dump(positions, positions))
    assert offsets.load(json.loads(text)) == (positions, positions)
    assert text.index('"a"') < text.index('"b"') < text.index('"c"')


@pytest.mark.parametrize("offset", [{}, {"to": {}}, {"from": {"t": 5}, "to": {"t": 6}}, {"from": 1, "to": 2}])
def test_foreign_checkpoint_is_refused(offset: dict[str, object]):
    with pytest.raises(ForeignOffset, match="not an offset of topics"):
        offsets.load(offset)
