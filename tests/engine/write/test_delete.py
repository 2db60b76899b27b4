"""Deletes: permanent, at once, in silence, and never of what comes later."""

import pytest

from tests.engine.harness import Sealer, append, delete, done, open_engine, put, read, record, seqs, write
from tests.simulated.clock import SimClock
from topics.engine.steps import run_all
from topics.engine.write import apply
from topics.errors import Code, TopicsError
from topics.model.records import TagMatch
from topics.storage.log import entry as log

EQ_X = TagMatch("Eq", "x")


@pytest.fixture(params=["memory", "files"])
def topic(request):
    """Topic "a" with seqs 1 to 10; odd ones are tagged "x", every fifth "x:…"; four a segment."""
    engine = open_engine()
    for seq in range(1, 11):
        append(engine, "a", record(tag=f"x:{seq}" if seq % 5 == 0 else "x" if seq % 2 else None))
    if request.param == "files":
        Sealer().seal(engine.topic("a"))
    return engine


def test_a_delete_by_seq_takes_everything_below(topic):
    gone = delete(topic, "a", before_seq=6)
    assert (gone.deleted, gone.earliest, gone.head, gone.count) == (5, 6, 10, 5)
    page = read(topic, "a")
    assert (seqs(page), page.tombstone) == ([6, 7, 8, 9, 10], None)


def test_a_delete_by_tag_takes_exact_matches(topic):
    assert delete(topic, "a", match=EQ_X).deleted == 4
    assert seqs(read(topic, "a")) == [2, 4, 5, 6, 8, 10]


def test_a_delete_by_prefix_takes_every_tag_that_begins_so(topic):
    assert delete(topic, "a", match=TagMatch("Glob", "x:")).deleted == 2
    assert delete(topic, "a", match=TagMatch("Glob", "")).deleted == 4
    assert seqs(read(topic, "a")) == [2, 4, 6, 8], "records without a tag never match"


def test_both_conditions_must_hold(topic):
    assert delete(topic, "a", match=EQ_X, before_seq=7).deleted == 2
    assert seqs(read(topic, "a")) == [2, 4, 5, 6, 7, 8, 9, 10]


def test_delete_of_deleted_records_takes_nothing(topic):
    delete(topic, "a", match=EQ_X)
    delete(topic, "a", before_seq=4)
    assert delete(topic, "a", match=EQ_X).deleted == 0
    assert delete(topic, "a", before_seq=4).deleted == 0
    assert delete(topic, "a", before_seq=0).deleted == 0
    assert delete(topic, "a", match=TagMatch("Eq", "other")).deleted == 0


def test_deleting_everything_leaves_an_empty_topic_that_goes_on_counting(topic):
    gone = delete(topic, "a", before_seq=2**64 - 1)
    assert (gone.deleted, gone.earliest, gone.head, gone.count, gone.bytes) == (10, 11, 10, 0, 0)
    page = read(topic, "a")
    assert (page.count, page.next_from_seq, page.tombstone) == (0, 10, None)
    assert append(topic, "a").first == 11
    assert seqs(read(topic, "a", from_seq=3)) == [11]


def test_a_delete_never_touches_what_is_written_after_it(topic):
    delete(topic, "a", match=EQ_X)
    delete(topic, "a", before_seq=100)
    append(topic, "a", record(tag="x"))
    assert seqs(read(topic, "a")) == [11]


def test_delete_takes_records_staged_before_it_and_no_later_ones(topic):
    topic.append("a", write(record(tag="x")))
    ticket = run_all(topic.delete_records("a", before_seq=None, match=EQ_X))
    topic.append("a", write(record(tag="x")))
    assert done(topic, ticket).deleted == 5
    assert seqs(read(topic, "a", from_seq=9)) == [10, 12]


def test_a_delete_moves_earliest_past_the_front_and_never_the_floor(topic):
    delete(topic, "a", match=EQ_X)
    state = topic.topic("a")
    assert (state.earliest, state.evict_floor) == (2, 1)
    delete(topic, "a", before_seq=4)
    assert (state.earliest, state.evict_floor) == (4, 1)


def test_bytes_are_those_of_what_is_left(topic):
    delete(topic, "a", match=EQ_X)
    delete(topic, "a", before_seq=6)
    page = read(topic, "a")
    assert topic.topic("a").bytes == sum(map(len, page.parts))
    assert (topic.state.totals.bytes, topic.state.totals.records) == (topic.topic("a").bytes, page.count)


def test_an_expired_record_counts_as_lost_not_as_deleted():
    clock = SimClock()
    engine = open_engine(clock)
    put(engine, "a", ttl_ms=10)
    append(engine, "a")
    clock.advance(ms=11)
    append(engine, "a")
    assert delete(engine, "a", before_seq=99).deleted == 1
    assert read(engine, "a").tombstone.missed_estimate == 1


def test_seqs_can_be_named_one_by_one_in_any_segment(topic):
    gone = apply.delete(topic.topic("a"), log.Delete(1, 0, None, "", 0, seqs=[1, 3, 4, 9, 9, 10, 11, 99]))
    assert gone == 5
    assert seqs(read(topic, "a")) == [2, 5, 6, 7, 8]


def test_delete_by_seq_continues_after_seqs_in_a_gap():
    engine = open_engine()
    for _ in range(3):
        append(engine, "a", *[record()] * 4)
    state = engine.topic("a")
    del state.segments[0]
    assert apply.delete(state, log.Delete(1, 0, None, "", 0, seqs=[1, 2, 10])) == 1
    assert seqs(read(engine, "a", from_seq=8)) == [9, 11, 12]


def test_a_delete_needs_a_topic():
    with pytest.raises(TopicsError) as caught:
        run_all(open_engine().delete_records("a", before_seq=1, match=None))
    assert caught.value.code is Code.TOPIC_NOT_FOUND
