"""The head of a topic at given times."""

from tests.engine.harness import open_engine, record, write
from tests.simulated.clock import SimClock
from topics.engine.read.timeline import at_times
from topics.model.topic import ConfigPatch


def test_head_at_each_time_follows_the_commits() -> None:
    clock = SimClock(ms=1_000_000)
    engine = open_engine(clock)
    for number in range(1, 4):
        engine.append("ticks", write(*[record() for _ in range(number)]))
        engine.flush()
        clock.advance(ms=10_000)
    rows = at_times(engine.topic("ticks"), 990_000, 1_030_000, 4)
    assert [row[:2] for row in rows] == [[990_000, 0], [1_000_000, 1], [1_010_000, 3], [1_020_000, 6], [1_030_000, 6]]
    per_record = rows[1][2]
    assert [row[2] for row in rows] == [count * per_record for _, count, _ in rows]
    assert at_times(engine.topic("ticks"), 1_015_000, 1_025_000, 1)[1] == [1_025_000, 6, 3 * per_record]


def test_evicted_records_count_and_an_empty_topic_has_its_head() -> None:
    clock = SimClock(ms=1_000_000)
    engine = open_engine(clock)
    engine.put_topic("ticks", ConfigPatch(cap_records=2))
    assert at_times(engine.topic("ticks"), 0, 10, 1) == [[0, 0, 0], [10, 0, 0]]
    for _ in range(5):
        engine.append("ticks", write(record(), record()))
        engine.flush()
        clock.advance(ms=10_000)
    # Records up to the first known time count as older than it.
    assert [row[1] for row in at_times(engine.topic("ticks"), 990_000, 1_040_000, 5)] == [2, 2, 4, 6, 8, 10]
