"""The quota on all bytes: never passed, and exact whatever makes records go away."""

import random

import pytest

from tests.engine.harness import FakeLog, append, delete, done, open_engine, put, record, write
from tests.simulated.clock import SimClock
from topics.engine.engine import Engine
from topics.errors import Code, TopicsError
from topics.model.records import Limits, TagMatch
from topics.model.topic import ConfigPatch


def full(engine: Engine, name: str, *, size: int = 1, quota: int) -> None:
    with pytest.raises(TopicsError) as caught:
        append(engine, name, record('"%s"' % ("x" * size)))
    error = caught.value
    assert (error.code, error.detail) == (Code.THROTTLED, {"limit": "max_total_bytes", "max": quota})
    assert error.retry_after_ms


def size_of_one() -> int:
    """Bytes of the record that most tests write, as it is kept: with a seq of one digit and a timestamp of four."""
    engine = open_engine(SimClock(ms=1_000))
    append(engine, "a")
    return engine.state.totals.bytes


def test_writes_to_several_topics_in_one_turn_count_against_each_other():
    one = size_of_one()
    engine = open_engine(SimClock(ms=1_000), limits=Limits(max_total_bytes=2 * one))
    put(engine, "b")
    first, second = engine.append("a", write()), engine.append("b", write())
    with pytest.raises(TopicsError):
        engine.append("c", write())
    with pytest.raises(TopicsError):
        engine.append("b", write())
    engine.flush()
    assert first.value().created
    assert second.value().last == 1
    assert engine.state.totals.bytes == 2 * one
    assert engine.commits.pending_bytes == 0


def test_a_write_that_waits_for_a_sync_counts_and_a_refused_one_does_not():
    log = FakeLog()
    one = size_of_one()
    engine = open_engine(SimClock(ms=1_000), log=log, limits=Limits(max_total_bytes=one))
    made = engine.put_topic("a", ConfigPatch(durability="fsync"))
    engine.flush()
    log.finish()
    assert made.done
    waiting = engine.append("a", write())
    engine.flush()
    with pytest.raises(TopicsError):
        engine.append("b", write())
    log.finish()
    assert waiting.error is None
    assert engine.commits.pending_bytes == 0
    engine.drop_topic("a")
    engine.flush()
    log.finish()
    log.write_fails = True
    refused = engine.append("b", write())
    engine.flush()
    assert refused.error is not None
    assert engine.commits.pending_bytes == 0
    log.write_fails = False
    engine.append("b", write())


def test_room_comes_back_with_deletes_drops_and_age():
    clock = SimClock(ms=1_000)
    one = size_of_one()
    engine = open_engine(clock, limits=Limits(max_total_bytes=3 * one))
    put(engine, "old", ttl_ms=100)
    for name in ("a", "b", "old"):
        append(engine, name)
    full(engine, "c", quota=3 * one)
    delete(engine, "a", before_seq=2)
    append(engine, "c")
    full(engine, "c", quota=3 * one)
    done(engine, engine.drop_topic("b"))
    append(engine, "c")
    full(engine, "c", quota=3 * one)
    clock.advance(ms=101)
    engine.expire_and_get("old", touch=False)
    append(engine, "c")
    assert engine.state.totals.bytes == 3 * one


@pytest.mark.parametrize("cap", ["cap_records", "cap_bytes"])
def test_a_topic_that_trims_itself_goes_on_in_a_full_server(cap: str):
    one = size_of_one() + 1  # a second digit of the seq
    engine = open_engine(SimClock(ms=1_000), limits=Limits(max_total_bytes=6 * one))
    put(engine, "ring", **{cap: 5 if cap == "cap_records" else 5 * one})
    append(engine, "other")
    for _ in range(40):
        append(engine, "ring")
        assert engine.state.totals.bytes <= 6 * one
    assert engine.topic("ring").count == 5
    full(engine, "other", quota=6 * one)
    if cap == "cap_records":
        full(engine, "ring", size=2 * one, quota=6 * one)
    else:
        append(engine, "ring", record('"%s"' % ("x" * 2 * one)))
        assert engine.state.totals.bytes <= 6 * one


def test_the_total_is_the_sum_of_what_is_there_after_any_history():
    clock = SimClock(ms=1_000)
    quota = 2_000
    engine = open_engine(clock, limits=Limits(max_total_bytes=quota))
    rolls = random.Random(11)
    configs = {"plain": {}, "few": {"cap_records": 3}, "small": {"cap_bytes": 300}, "young": {"ttl_ms": 50}}
    for name, config in configs.items():
        put(engine, name, **config)
    refused = 0
    for _ in range(1_500):
        name = rolls.choice(sorted(configs))
        match rolls.randrange(8):
            case 0:
                before = rolls.randrange(1, engine.topic(name).head + 2)
                delete(engine, name, before_seq=before, match=TagMatch("Eq", "t") if rolls.random() < 0.5 else None)
            case 1:
                clock.advance(ms=rolls.randrange(40))
            case 2 if rolls.random() < 0.1:
                done(engine, engine.drop_topic(name))
                put(engine, name, **configs[name])
            case _:
                sizes = [rolls.randrange(60) for _ in range(rolls.randrange(1, 4))]
                try:
                    append(engine, name, *(record('"%s"' % ("x" * size), tag="t") for size in sizes))
                except TopicsError as error:
                    refused += error.code is Code.THROTTLED
        assert engine.state.totals.bytes == sum(topic.bytes for topic in engine.topics.values()) <= quota
        assert engine.state.totals.records == sum(topic.count for topic in engine.topics.values())
    assert refused


def test_a_creation_beyond_max_topics_is_refused_and_a_change_is_not():
    engine = open_engine(limits=Limits(max_topics=2))
    first, second = engine.append("a", write()), engine.put_topic("b", ConfigPatch())
    for create in (lambda: engine.append("c", write()), lambda: engine.put_topic("c", ConfigPatch())):
        with pytest.raises(TopicsError) as caught:
            create()
        assert (caught.value.code, caught.value.detail) == (Code.THROTTLED, {"limit": "max_topics", "max": 2})
    engine.flush()
    assert first.done
    assert second.done
    assert not put(engine, "a", ttl_ms=5_000).created
    done(engine, engine.drop_topic("a"))
    assert put(engine, "c").created
