"""Topics that nobody uses: how little they hold, and that what a use adds goes away again."""

import gc
import tracemalloc

import pytest

from tests.engine.harness import FakeLog, append, delete, done, open_engine, put, read, record, write
from topics.engine.engine import Engine
from topics.engine.state.losses import NOTHING
from topics.engine.state.topic import EMPTY, FIRST_CEILING, Topic
from topics.engine.state.topics import SegmentLimits
from topics.engine.write.ceilings import Ceilings
from topics.errors import Code
from topics.model.records import Limits
from topics.model.topic import ConfigPatch
from topics.storage.log import entry as entries
from topics.storage.segments.columns import NO_EXTRAS

MOST_BYTES = 2048
TOPICS = 500


def holds_nothing(topic: Topic) -> bool:
    shared = topic.keys, topic.staged_keys, topic.listeners, topic.open.columns.extras
    lists = topic.staged_deletes, topic.staged_times, topic.losses.runs, topic.losses.times
    return all(one is EMPTY or one is NO_EXTRAS for one in shared) and all(one is NOTHING for one in lists)


def create_by_put(engine: Engine, name: str) -> None:
    engine.put_topic(name, ConfigPatch())


def create_by_append(engine: Engine, name: str) -> None:
    engine.append(name, write(record('{"a":1}', tag="t")))


@pytest.mark.parametrize("create", [create_by_put, create_by_append])
def test_idle_topic_takes_at_most_two_kibibytes(create):
    engine = open_engine(segments=SegmentLimits())
    create(engine, "first")
    engine.flush()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(TOPICS):
            create(engine, f"topic-{number}")
            engine.flush()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(engine.topics) == TOPICS + 1
    assert taken < TOPICS * MOST_BYTES


def test_topics_that_are_alike_share_their_configuration():
    engine = open_engine()
    topics = [put(engine, name, ttl_ms=5).topic for name in "ab"]
    other = put(engine, "c", ttl_ms=6).topic
    assert topics[0].config is topics[1].config
    assert (other.config.ttl_ms, topics[0].config.ttl_ms) == (6, 5)


def test_topic_holds_nothing_once_its_uses_have_ended():
    engine = open_engine(segments=SegmentLimits())
    topic = append(engine, "a", record(), record()).topic
    assert holds_nothing(topic)

    ends = [engine.listen(topic, lambda topic: None) for _ in range(2)]
    deletes = [engine.delete_seqs("a", [seq]) for seq in (1, 2)]
    assert (len(topic.listeners), len(topic.staged_deletes), len(topic.staged_times)) == (2, 2, 2)
    for end in [*ends, *ends]:  # a second end is no error
        end()
    assert [done(engine, ticket).deleted for ticket in deletes] == [1, 1]
    assert holds_nothing(topic)


def test_idempotency_keys_leave_no_mapping_behind():
    engine = open_engine()
    topic = append(engine, "a", idempotency_key="k").topic
    assert list(topic.keys) == ["k"]
    assert topic.staged_keys is EMPTY
    put(engine, "a", idempotency_window_ms=0)
    assert topic.keys is EMPTY
    assert append(engine, "a", idempotency_key="k").last == 2


def test_refused_delete_leaves_no_list_behind():
    log = FakeLog()
    engine = open_engine(log=log)
    ticket = engine.append("a", write(record()))
    engine.flush()
    log.finish()
    topic = ticket.value().topic
    log.write_fails = True
    refused = engine.delete_seqs("a", [1])
    assert topic.staged_deletes
    engine.flush()
    assert refused.error is not None
    assert refused.error.code is Code.READ_ONLY
    assert holds_nothing(topic)


def test_losses_of_one_topic_are_not_those_of_another():
    engine = open_engine()
    lossy, whole = (append(engine, name, record(), config=ConfigPatch(cap_records=1)).topic for name in "ab")
    append(engine, "a", record())
    assert [(low, high) for low, high, _ in lossy.losses.runs] == [(1, 1)]
    assert (whole.losses.runs, whole.losses.times) == ((), ())
    assert read(engine, "a").tombstone is not None
    assert read(engine, "b").tombstone is None


class SlowLog(FakeLog):
    sync_ms = 50


def test_small_topics_on_a_slow_disk_raise_no_ceilings():
    log = SlowLog()
    engine = open_engine(log=log, limits=Limits())
    topic = append(engine, "a", record()).topic
    raised: list[entries.Ceiling] = []
    make, ceilings = Ceilings.ticket, engine.staging.ceilings
    ceilings.ticket = lambda topic, end: raised.append(topic) or make(ceilings, topic, end)  # type: ignore[method-assign]
    for _ in range(4):
        append(engine, "a", record())
    assert not raised
    append(engine, "a", *[record()] * (FIRST_CEILING // 2))
    assert raised == [topic]
    assert topic.ceiling_staged > 50 * 4 * 100


def test_delete_of_a_prefix_needs_nothing_of_an_idle_topic():
    engine = open_engine(segments=SegmentLimits())
    topic = append(engine, "a", *[record()] * 10).topic
    assert delete(engine, "a", before_seq=8).deleted == 7
    assert (topic.earliest, topic.count, holds_nothing(topic)) == (8, 3, True)
