"""Involuntary loss: exact to the record, always reported, and distinct from deleted records."""

import pytest

from tests.engine.harness import Sealer, append, delete, open_engine, put, read, record, seqs
from tests.simulated.clock import SimClock
from topics.engine import retention
from topics.engine.state.losses import MAX_TIMES
from topics.model.records import TagMatch


def gap(page) -> tuple[int, int, str, int]:
    gap = page.tombstone
    return gap.gap_from, gap.gap_to, gap.reason, gap.missed_estimate


def test_a_record_cap_keeps_the_newest_and_says_what_went():
    engine = open_engine()
    put(engine, "a", cap_records=3)
    for _ in range(10):
        append(engine, "a")
    topic = engine.topic("a")
    assert (topic.count, topic.earliest, topic.evict_floor, topic.head) == (3, 8, 8, 10)
    page = read(engine, "a", from_seq=2)
    assert (gap(page), seqs(page)) == ((3, 7, "cap", 5), [8, 9, 10])


def test_a_batch_larger_than_the_cap_keeps_its_own_end():
    engine = open_engine()
    append(engine, "a", *[record()] * 10, config=None)
    put(engine, "b", cap_records=3)
    append(engine, "b", *[record()] * 10)
    assert seqs(read(engine, "b")) == [8, 9, 10]


def test_a_byte_cap_lets_as_few_records_go_as_it_can():
    engine = open_engine(SimClock(ms=5))
    size_bytes = len(b'{"$seq":1,"$ts":5,"data":1},')
    put(engine, "a", cap_bytes=3 * size_bytes)
    append(engine, "a", record(), record(), record())
    assert engine.topic("a").count == 3
    append(engine, "a", record("10"))
    assert (engine.topic("a").count, engine.topic("a").bytes) == (2, 2 * size_bytes + 1)


@pytest.mark.parametrize("from_seq", [0, 5, 6, 7, 8])
def test_tombstone_appears_if_the_next_seq_is_below_the_floor(from_seq):
    engine = open_engine()
    put(engine, "a", cap_records=3)
    append(engine, "a", *[record()] * 10)
    assert engine.topic("a").evict_floor == 8
    page = read(engine, "a", from_seq=from_seq)
    assert (page.tombstone is not None) == (from_seq + 1 < 8)


def test_record_is_kept_in_the_last_millisecond_of_its_ttl():
    clock = SimClock(ms=1000)
    engine = open_engine(clock)
    put(engine, "a", ttl_ms=50)
    append(engine, "a")
    clock.advance(ms=50)
    assert seqs(read(engine, "a")) == [1]
    clock.advance(ms=1)
    page = read(engine, "a")
    assert (gap(page), page.count, page.next_from_seq) == ((1, 1, "ttl", 1), 0, 1)
    assert (engine.topic("a").earliest, engine.topic("a").evict_floor) == (2, 2)


def test_expiry_shows_in_the_state_without_a_write_or_a_read():
    clock = SimClock()
    engine = open_engine(clock)
    put(engine, "a", ttl_ms=50)
    append(engine, "a", *[record()] * 6)
    clock.advance(ms=30)
    append(engine, "a")
    clock.advance(ms=21)
    topic = engine.expire_and_get("a", touch=False)
    assert (topic.count, topic.earliest, topic.evict_floor) == (1, 7, 7)
    clock.advance(ms=1000)
    engine.expire(topic)
    assert (topic.count, topic.bytes, topic.earliest) == (0, 0, 8)


def test_expired_record_stays_expired_if_the_clock_steps_back():
    clock = SimClock(ms=1000)
    engine = open_engine(clock)
    put(engine, "a", ttl_ms=50)
    append(engine, "a")
    clock.set(ms=1051)
    assert read(engine, "a").count == 0
    clock.set(ms=1000)
    assert gap(read(engine, "a")) == (1, 1, "ttl", 1)


def test_losses_of_both_kinds_are_mixed():
    clock = SimClock()
    engine = open_engine(clock)
    put(engine, "a", cap_records=4, ttl_ms=50)
    append(engine, "a", *[record()] * 5)
    clock.advance(ms=51)
    append(engine, "a")
    assert gap(read(engine, "a")) == (1, 5, "mixed", 5)
    assert gap(read(engine, "a", from_seq=1)) == (2, 5, "ttl", 4)


def test_gap_range_includes_deleted_records_but_its_count_does_not():
    engine = open_engine()
    append(engine, "a", *[record(tag="x" if seq in (2, 3, 6) else None) for seq in range(1, 11)])
    delete(engine, "a", match=TagMatch("Eq", "x"))
    put(engine, "a", cap_records=2)
    page = read(engine, "a")
    assert (gap(page), seqs(page)) == ((1, 8, "cap", 5), [9, 10])
    assert gap(read(engine, "a", from_seq=1)) == (2, 8, "cap", 4)


def test_a_deleted_gap_above_the_floor_is_silent():
    engine = open_engine()
    put(engine, "a", cap_records=8)
    append(engine, "a", *[record()] * 10)
    delete(engine, "a", before_seq=7)
    topic = engine.topic("a")
    assert (topic.evict_floor, topic.earliest) == (3, 7)
    page = read(engine, "a", from_seq=2)
    assert (page.tombstone, seqs(page)) == (None, [7, 8, 9, 10])
    assert gap(read(engine, "a", from_seq=1)) == (2, 6, "cap", 1)


def test_deleted_records_at_the_front_make_room_without_any_loss():
    engine = open_engine()
    put(engine, "a", cap_records=3)
    append(engine, "a", *[record()] * 3)
    delete(engine, "a", before_seq=3)
    append(engine, "a", record(), record())
    assert (engine.topic("a").evict_floor, seqs(read(engine, "a"))) == (1, [3, 4, 5])


@pytest.mark.parametrize("sealed", [False, True])
def test_tightened_limits_apply_to_what_is_there(sealed):
    clock = SimClock()
    engine = open_engine(clock)
    for _ in range(10):
        append(engine, "a")
        clock.advance(ms=10)
    if sealed:
        Sealer().seal(engine.topic("a"))
    put(engine, "a", ttl_ms=85)
    assert engine.topic("a").earliest == 3
    put(engine, "a", ttl_ms=0, cap_records=4)
    assert (engine.topic("a").earliest, engine.topic("a").count) == (7, 4)
    page = read(engine, "a")
    assert gap(page) == (1, 6, "mixed", 6)


def test_reader_by_time_misses_only_newer_losses():
    clock = SimClock(ms=100)
    engine = open_engine(clock)
    put(engine, "a", cap_records=3)
    for _ in range(6):
        append(engine, "a")
        clock.advance(ms=1)
    assert gap(read(engine, "a", from_ts=100)) == (1, 3, "cap", 3)
    assert gap(read(engine, "a", from_ts=102)) == (3, 3, "cap", 1)
    assert gap(read(engine, "a", from_ts=101, from_seq=2)) == (3, 3, "cap", 1)
    page = read(engine, "a", from_ts=103)
    assert (page.tombstone, seqs(page)) == (None, [4, 5, 6])


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("change", [{"cap_records": 3}, {"ttl_ms": 4}])
def test_reader_by_time_misses_only_newer_losses_of_one_eviction(change: dict[str, int], sealed: bool):
    clock = SimClock(ms=100)
    engine = open_engine(clock)
    for _ in range(8):
        append(engine, "a")
        clock.advance(ms=1)
    if sealed:
        Sealer().seal(engine.topic("a"))
    put(engine, "a", **change)
    last = engine.topic("a").earliest - 1
    assert gap(read(engine, "a", from_ts=100 + last - 2)) == (last - 1, last, next(iter(change))[:3], 2)


def test_times_of_many_losses_are_bounded_and_never_begin_too_late():
    clock = SimClock(ms=1_000)
    engine = open_engine(clock)
    put(engine, "a", cap_records=1)
    for _ in range(5 * MAX_TIMES):
        append(engine, "a")
        clock.advance(ms=1)
    assert len(engine.topic("a").losses.times) <= MAX_TIMES
    last = engine.topic("a").earliest - 1
    for since in (last, last - 10, last // 2, 100, 1):
        found = gap(read(engine, "a", from_ts=1_000 + since - 1))
        assert found[0] <= since <= found[0] + 2 * MAX_TIMES
    assert gap(read(engine, "a", from_ts=1_000 + last - 10))[0] == last - 9


def test_deleted_record_of_an_evicted_segment_is_no_loss_by_time():
    clock = SimClock(ms=100)
    engine = open_engine(clock)
    for seq in range(1, 9):
        append(engine, "a", record(tag="x" if seq == 4 else None))
        clock.advance(ms=1)
    delete(engine, "a", match=TagMatch("Eq", "x"))
    put(engine, "a", cap_records=4)
    assert engine.topic("a").evict_floor == 4
    page = read(engine, "a", from_ts=103)
    assert (page.tombstone, seqs(page)) == (None, [5, 6, 7, 8])


def test_segments_without_live_records_are_released():
    engine = open_engine()
    put(engine, "a", cap_records=4)
    for _ in range(100):
        append(engine, "a")
    assert len(engine.topic("a").segments) <= 2


def test_open_segment_without_live_records_frees_its_memory():
    engine = open_engine()
    append(engine, "a", record(), record())
    delete(engine, "a", before_seq=99)
    topic = engine.topic("a")
    assert ([(part.first, part.count) for part in topic.segments], len(topic.open.rendered)) == ([(3, 0)], 0)


def test_skipped_seqs_are_a_reported_gap():
    engine = open_engine()
    append(engine, "a", record(), record())
    retention.skip_to(engine.topic("a"), 6, "corrupt")
    assert append(engine, "a").first == 6
    first = read(engine, "a")
    assert (seqs(first), first.tombstone, first.next_from_seq) == ([1, 2], None, 2)
    second = read(engine, "a", from_seq=2)
    assert (gap(second), seqs(second)) == ((3, 5, "corrupt", 3), [6])
    assert gap(read(engine, "a", from_seq=3)) == (4, 5, "corrupt", 2)
    topic = engine.topic("a")
    assert (topic.earliest, topic.evict_floor) == (1, 1)


def test_seqs_skipped_in_an_empty_topic_are_lost_at_the_front():
    engine = open_engine()
    put(engine, "a")
    retention.skip_to(engine.topic("a"), 4, "corrupt")
    topic = engine.topic("a")
    assert (topic.head, topic.earliest, topic.evict_floor) == (3, 4, 4)
    page = read(engine, "a")
    assert (gap(page), page.next_from_seq) == ((1, 3, "corrupt", 3), 3)


def test_gap_at_the_end_is_reported_before_later_records():
    engine = open_engine()
    append(engine, "a")
    retention.skip_to(engine.topic("a"), 4, "corrupt")
    assert read(engine, "a").next_from_seq == 1
    page = read(engine, "a", from_seq=1)
    assert (gap(page), page.next_from_seq) == ((2, 3, "corrupt", 2), 3)
