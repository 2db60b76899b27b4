"""The timeline of a topic, compared with what each seq is."""

import random

import pytest

from tests.engine.harness import SMALL_SEGMENTS, open_engine, record, write
from topics.engine.engine import Engine
from topics.engine.read import timeline
from topics.engine.state.topic import Topic
from topics.engine.state.topics import SegmentLimits
from topics.engine.steps import run_all
from topics.model.topic import ConfigPatch

LARGE_SEGMENTS = SegmentLimits(max_events=1000, max_bytes=1 << 20, max_age_ms=10_000)


def states_of(topic: Topic) -> dict[int, str]:
    """Return the state of every seq, found one by one."""
    found = {}
    for seq in range(1, topic.head + 1):
        lost = topic.losses.covering(seq)
        if lost is not None:
            found[seq] = lost[2]
        elif topic.is_live(seq):
            found[seq] = "live"
        else:
            found[seq] = "archived" if seq <= topic.trimmed else "deleted"
    return found


def history(engine: Engine, rolls: random.Random) -> Topic:
    """Append, evict, delete by tag and by seq, and lose a range in the middle."""
    engine.put_topic("t", ConfigPatch(cap_records=rolls.choice((0, 120))))
    engine.flush()
    for number in range(200):
        engine.append("t", write(record(tag=f"tag{number % 7}")))
        engine.flush()
        if rolls.random() < 0.1:
            engine.delete_seqs("t", [rolls.randrange(1, number + 2)], dry_run=False)
            engine.flush()
    topic = engine.topic("t")
    if rolls.random() < 0.5:
        topic.trimmed = topic.archived = rolls.randrange(topic.head)
    return topic


@pytest.mark.parametrize("segments", [SMALL_SEGMENTS, LARGE_SEGMENTS])
@pytest.mark.parametrize("seed", range(6))
def test_exact_timeline_has_the_state_of_every_seq(seed: int, segments: SegmentLimits) -> None:
    rolls = random.Random(seed)
    topic = history(open_engine(segments=segments), rolls)
    expected = states_of(topic)
    low, high = sorted(rolls.sample(range(1, topic.head + 1), 2))
    for from_seq, to_seq in ((1, topic.head), (low, high), (low, low), (1, 2**64)):
        seen = run_all(timeline.build(topic, from_seq, to_seq, 2000))
        assert seen.resolution == 1
        spread = {seq: one.state for one in seen.ranges for seq in range(one.from_seq, one.to_seq + 1)}
        assert spread == {seq: state for seq, state in expected.items() if from_seq <= seq <= to_seq}
        assert all(a.state != b.state for a, b in zip(seen.ranges, seen.ranges[1:], strict=False))


@pytest.mark.parametrize("segments", [SMALL_SEGMENTS, LARGE_SEGMENTS])
@pytest.mark.parametrize("most", [1, 7, 20])
def test_coarse_timeline_covers_the_window_with_few_ranges(most: int, segments: SegmentLimits) -> None:
    topic = history(open_engine(segments=segments), random.Random(3))
    expected = states_of(topic)
    seen = run_all(timeline.build(topic, 1, topic.head, most))
    assert len(seen.ranges) <= most
    assert seen.ranges[0].from_seq == 1
    assert seen.ranges[-1].to_seq == topic.head
    assert all(a.to_seq + 1 == b.from_seq for a, b in zip(seen.ranges, seen.ranges[1:], strict=False))
    for one in seen.ranges:
        size = one.to_seq - one.from_seq + 1
        if one.state == "merged":
            assert (one.live or 0) + (one.deleted or 0) + (one.lost or 0) == size
        elif segments is LARGE_SEGMENTS:
            assert {expected[seq] for seq in range(one.from_seq, one.to_seq + 1)} == {one.state}
    live = sum(
        one.live if one.live is not None else (one.to_seq - one.from_seq + 1) * (one.state == "live")
        for one in seen.ranges
    )
    assert abs(live - topic.count) <= len(seen.ranges)


def test_many_segments_with_deleted_records_are_not_searched_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(segments=SMALL_SEGMENTS)
    for _ in range(400):
        engine.append("t", write(record()))
        engine.flush()
    engine.delete_seqs("t", list(range(2, 400, 2)), dry_run=False)
    engine.flush()
    looked = []
    look = timeline._look

    def counted(*args: object, **options: object) -> object:
        looked.append(args)
        return look(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(timeline, "_look", counted)
    topic = engine.topic("t")
    seen = run_all(timeline.build(topic, 1, topic.head, 150))
    assert (seen.resolution, len(looked)) == (3, timeline.MAX_LOOKS)
    assert all(one.state == "merged" for one in seen.ranges[:100])


def test_many_deleted_records_of_one_segment_are_counted_per_cell() -> None:
    engine = open_engine(segments=LARGE_SEGMENTS)
    for _ in range(900):
        engine.append("t", write(record()))
    engine.flush()
    engine.delete_seqs("t", list(range(3, 900, 3)), dry_run=False)
    engine.flush()
    topic = engine.topic("t")
    topic.trimmed = topic.archived = 450
    seen = run_all(timeline.build(topic, 1, topic.head, 30))
    assert {(one.live, one.deleted, one.lost) for one in seen.ranges} == {(20, 10, 0), (21, 9, 0)}


def test_ranges_are_made_in_steps_of_what_the_first_step_saw() -> None:
    engine = open_engine(segments=SegmentLimits(max_events=10_000, max_bytes=1 << 20, max_age_ms=10_000))
    engine.append("t", write(*(record() for _ in range(5000))))
    engine.flush()
    engine.delete_seqs("t", list(range(2, 5001, 2)), dry_run=False)
    engine.flush()
    topic = engine.topic("t")
    for most, from_seq in ((2000, 1), (2000, 3001)):
        expected = run_all(timeline.build(topic, from_seq, 5000, most))
        steps = timeline.build(topic, from_seq, 5000, most)
        assert next(steps) is None
        engine.delete_seqs("t", [from_seq], dry_run=False)
        engine.append("t", write(record()))
        engine.flush()
        between = 0
        while True:
            try:
                assert next(steps) is None
            except StopIteration as end:
                seen = end.value
                break
            between += 1
        assert seen == expected
        assert between >= len(seen.ranges) // timeline.RANGES_PER_STEP >= 6


def test_timeline_of_an_empty_topic_has_no_ranges() -> None:
    engine = open_engine()
    engine.put_topic("t", ConfigPatch())
    engine.flush()
    seen = run_all(timeline.build(engine.topic("t"), 1, 2**64, 10))
    assert (seen.ranges, seen.to_seq) == ([], 0)
