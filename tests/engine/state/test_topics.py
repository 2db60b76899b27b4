"""Topics themselves: made, changed, listed, dropped, made again; and those who wait for them."""

import gc
from itertools import islice

import pytest

from tests.engine.harness import append, done, open_engine, put, read, record, write
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.engine.state.jobs.leases import Leases
from topics.engine.state.topic import Topic
from topics.errors import Code, TopicsError
from topics.model.records import Limits
from topics.model.topic import ConfigPatch, TopicConfig
from topics.server.loop.throttle import effective_priority


def refused(act) -> Code:
    with pytest.raises(TopicsError) as caught:
        act()
    return caught.value.code


def test_a_new_topic_is_empty_and_has_every_default():
    engine = open_engine(SimClock(ms=7_000))
    made = put(engine, "a")
    topic = made.topic
    assert made.created
    assert topic.config == TopicConfig()
    assert (topic.head, topic.next_seq, topic.earliest, topic.count, topic.bytes, topic.epoch) == (0, 1, 1, 0, 0, 7_000)
    assert (topic.last_write_ts, topic.last_read_ts) == (None, None)


def test_a_put_changes_only_the_fields_it_names():
    engine = open_engine()
    put(engine, "a", ttl_ms=5, priority=3)
    changed = put(engine, "a", cap_records=9)
    assert not changed.created
    assert (changed.topic.config.ttl_ms, changed.topic.config.priority, changed.topic.config.cap_records) == (5, 3, 9)


def test_an_identical_put_is_no_change():
    engine = open_engine()
    put(engine, "a", ttl_ms=5)
    ticket = engine.put_topic("a", ConfigPatch(ttl_ms=5))
    assert ticket.done
    assert not ticket.value().created


def test_a_topic_s_type_is_for_ever():
    engine = open_engine()
    put(engine, "a")
    assert refused(lambda: engine.put_topic("a", ConfigPatch(type="queue"))) is Code.TOPIC_EXISTS_INCOMPATIBLE


def test_two_puts_in_one_turn_make_one_topic():
    engine = open_engine()
    tickets = [engine.put_topic("a", ConfigPatch(ttl_ms=5)), engine.put_topic("a", ConfigPatch(cap_records=1))]
    engine.flush()
    assert [ticket.value().created for ticket in tickets] == [True, False]
    assert (engine.topic("a").config.ttl_ms, engine.topic("a").config.cap_records) == (5, 1)


def test_write_after_a_put_in_one_turn_finds_the_topic():
    engine = open_engine()
    engine.put_topic("a", ConfigPatch(cap_records=1))
    assert append(engine, "a", record(), record()).created is False
    assert engine.topic("a").count == 1


def test_a_dropped_topic_takes_everything_with_it():
    engine = open_engine()
    append(engine, "a", *[record()] * 9)
    append(engine, "b")
    assert done(engine, engine.drop_topic("a")).deleted
    assert refused(lambda: engine.topic("a")) is Code.TOPIC_NOT_FOUND
    assert (engine.state.totals.records, list(engine.state.by_id)) == (1, [2])


def test_dropping_what_is_not_there_is_no_error():
    engine = open_engine()
    assert not done(engine, engine.drop_topic("a")).deleted
    engine.append("a", write())
    tickets = [engine.drop_topic("a"), engine.drop_topic("a")]
    engine.flush()
    assert [ticket.value().deleted for ticket in tickets] == [True, False]


def test_drop_if_empty_keeps_a_topic_with_records():
    clock = SimClock()
    engine = open_engine(clock)
    put(engine, "a", ttl_ms=10)
    append(engine, "a")
    assert refused(lambda: engine.drop_topic("a", if_empty=True)) is Code.TOPIC_NOT_EMPTY
    engine.append("a", write())
    assert refused(lambda: engine.drop_topic("a", if_empty=True)) is Code.TOPIC_NOT_EMPTY
    clock.advance(ms=11)
    assert done(engine, engine.drop_topic("a", if_empty=True)).deleted


def test_recreated_topic_gets_another_epoch_if_the_clock_stands_still():
    engine = open_engine()
    epochs = []
    for _ in range(3):
        append(engine, "a")
        epochs.append(engine.topic("a").epoch)
        engine.drop_topic("a")
    engine.flush()
    assert epochs == sorted(set(epochs))


def test_recreated_topic_begins_at_seq_1():
    engine = open_engine()
    append(engine, "a", record(), record())
    engine.drop_topic("a")
    again = append(engine, "a")
    assert (again.created, again.first) == (True, 1)


def test_there_are_no_more_topics_than_allowed():
    engine = open_engine(limits=Limits(max_topics=2))
    append(engine, "a")
    engine.append("b", write())
    assert refused(lambda: engine.append("c", write())) is Code.THROTTLED
    assert refused(lambda: engine.put_topic("c", ConfigPatch())) is Code.THROTTLED
    append(engine, "b")
    done(engine, engine.drop_topic("a"))
    assert append(engine, "c").created


def test_topics_are_listed_by_name_a_page_at_a_time():
    engine = open_engine()
    for name in ("b:2", "a", "b:1", "c", "b:3"):
        put(engine, name)

    def page(*, prefixes=(), limit=9, **asked):
        names = list(islice(engine.state.names.visible(prefixes, **asked), limit + 1))
        return names[:limit], len(names) > limit

    assert page() == (["a", "b:1", "b:2", "b:3", "c"], False)
    assert page(prefix="b:", limit=2) == (["b:1", "b:2"], True)
    assert page(prefix="b:", limit=2, after="b:2") == (["b:3"], False)
    assert page(prefixes=("b:", "c"), limit=1) == (["b:1"], True)


def test_a_look_counts_as_interest_only_when_it_says_so():
    clock = SimClock(ms=500)
    engine = open_engine(clock)
    put(engine, "a")
    assert engine.expire_and_get("a", touch=False).last_read_ts is None
    assert engine.expire_and_get("a", touch=True).last_read_ts == 500
    clock.advance(ms=5)
    read(engine, "a")
    assert engine.topic("a").last_read_ts == 505
    append(engine, "a")
    assert engine.topic("a").last_write_ts == 505


@pytest.mark.parametrize(("idle_ms", "expected"), [(0, 500), (30_000, 250), (60_000, 125), (299_999, 0), (300_000, 0)])
def test_interest_halves_every_half_minute(idle_ms, expected):
    clock = SimClock()
    engine = open_engine(clock)
    put(engine, "a")
    read(engine, "a")
    clock.advance(ms=idle_ms)
    assert effective_priority(engine.topic("a"), engine.clock.now_ms()) == expected


def test_a_manual_priority_wins_and_without_either_there_is_none():
    engine = open_engine()
    put(engine, "a", priority=-7)
    put(engine, "b", auto_priority=False)
    put(engine, "c")
    read(engine, "a")
    read(engine, "b")
    assert [effective_priority(engine.topic(name), engine.clock.now_ms()) for name in "abc"] == [-7, 0, 0]


def waking_engine():
    """An engine whose scheduled work runs when the test says so."""
    later = []
    engine = open_engine()
    engine.commits.schedule = later.append

    def run() -> None:
        while later:
            later.pop(0)()

    return engine, run


def test_listener_is_called_once_per_turn_in_which_the_topic_grows():
    engine, run = waking_engine()
    put(engine, "a")
    woken = []
    engine.listen(engine.topic("a"), lambda topic: woken.append(topic.head))
    engine.append("a", write())
    engine.append("a", write())
    run()
    engine.append("a", write())
    run()
    assert woken == [2, 3]


def test_cancelled_listener_is_not_called():
    engine, run = waking_engine()
    put(engine, "a")
    woken = []
    cancel = engine.listen(engine.topic("a"), lambda topic: woken.append(1))
    cancel()
    cancel()
    engine.append("a", write())
    run()
    assert woken == []


def test_listener_is_called_when_the_topic_is_dropped():
    engine, run = waking_engine()
    put(engine, "a")
    woken = []
    engine.listen(engine.topic("a"), lambda topic: woken.append("a" in engine.topics))
    engine.drop_topic("a")
    run()
    assert woken == [False]


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_deleted_topic_is_freed_without_the_garbage_collector(kind: str):
    """What the server has frozen is never collected, so a cycle would stay for as long as the process."""
    server = SimServer.start(SimDisk(seed=1))
    server.put("t", type=kind)
    server.drop("t")
    gc.collect()
    gc.disable()
    try:
        server.put("t", type=kind)
        server.append("t", '"1"', '"2"')
        server.drop("t")
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert [one for one in gc.garbage if isinstance(one, Topic | Leases)] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
