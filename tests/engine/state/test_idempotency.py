"""A key makes a retried write land once: remembered for a window, shared while pending."""

import pytest

from tests.engine.harness import FakeLog, append, delete, done, open_engine, put, read, record, seqs, write
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.engine import retention
from topics.engine.engine import Engine
from topics.engine.state import idempotency
from topics.engine.state.topics import State
from topics.errors import Code, TopicsError
from topics.model.topic import ConfigPatch

DURABLE = ConfigPatch(durability="fsync")


def test_a_retry_gets_the_seqs_of_the_first_write():
    engine = open_engine()
    first = append(engine, "a", record(), record(), idempotency_key="k")
    append(engine, "a")
    again = append(engine, "a", record("2"), idempotency_key="k")
    assert (first.first, first.last, first.deduped) == (1, 2, False)
    assert (again.first, again.last, again.head, again.deduped, again.created) == (1, 2, 3, True, False)
    assert engine.topic("a").head == 3


def test_a_retry_needs_no_flush():
    engine = open_engine()
    append(engine, "a", idempotency_key="k")
    assert engine.append("a", write(idempotency_key="k")).done


def test_keys_belong_to_their_topic():
    engine = open_engine()
    append(engine, "a", idempotency_key="k")
    assert not append(engine, "b", idempotency_key="k").deduped


def test_the_window_is_strict():
    clock = SimClock()
    engine = open_engine(clock)
    put(engine, "a", idempotency_window_ms=100)
    append(engine, "a", idempotency_key="k")
    clock.advance(ms=100)
    assert append(engine, "a", idempotency_key="k").deduped
    clock.advance(ms=1)
    again = append(engine, "a", idempotency_key="k")
    assert (again.deduped, again.first) == (False, 2)
    clock.advance(ms=100)
    assert append(engine, "a", idempotency_key="k").first == 2, "the later write is the one that is remembered"


def test_a_key_survives_the_loss_of_its_records():
    engine = open_engine()
    put(engine, "a", cap_records=1)
    append(engine, "a", idempotency_key="k")
    append(engine, "a")
    delete(engine, "a", before_seq=9)
    assert append(engine, "a", idempotency_key="k").deduped


@pytest.mark.parametrize("reason", ["restart", "corrupt"])
def test_a_key_is_void_once_its_record_is_lost_with_the_disk(reason: str):
    engine = open_engine()
    append(engine, "a", idempotency_key="k")
    retention.lose_all(engine.topic("a"), reason)
    again = append(engine, "a", idempotency_key="k")
    assert (again.deduped, again.first) == (False, 2)
    assert append(engine, "a", idempotency_key="k").first == 2


def test_a_key_is_found_in_a_full_topic_that_rejects():
    engine = open_engine()
    put(engine, "a", cap_records=1, discard="reject")
    append(engine, "a", idempotency_key="k")
    assert append(engine, "a", idempotency_key="k").deduped


def test_a_dropped_topic_forgets_its_keys():
    engine = open_engine()
    append(engine, "a", idempotency_key="k")
    done(engine, engine.drop_topic("a"))
    assert append(engine, "a", idempotency_key="k").created


def test_forgotten_keys_take_no_memory():
    clock = SimClock()
    engine = open_engine(clock)
    put(engine, "a", idempotency_window_ms=10)
    for n in range(50):
        append(engine, "a", idempotency_key=f"k{n}")
        clock.advance(ms=1)
    assert list(engine.topic("a").keys) == [f"k{n}" for n in range(39, 50)]


def test_past_the_limit_the_oldest_keys_make_room():
    engine = Engine(clock=SimClock(), state=State(max_keys=2))
    for key in ("k1", "k2", "k3"):
        append(engine, "a", idempotency_key=key)
    assert not append(engine, "a", idempotency_key="k1").deduped
    assert append(engine, "a", idempotency_key="k3").deduped


def test_twins_in_one_turn_land_once():
    engine = open_engine()
    put(engine, "a")
    tickets = [engine.append("a", write(idempotency_key="k")) for _ in range(3)]
    engine.flush()
    assert [(ticket.value().first, ticket.value().deduped) for ticket in tickets] == [(1, False), (1, True), (1, True)]
    assert seqs(read(engine, "a")) == [1]


def test_without_a_window_even_twins_of_one_turn_land_twice():
    engine = open_engine()
    put(engine, "a", idempotency_window_ms=0)
    twins = [engine.append("a", write(idempotency_key="k")) for _ in range(2)]
    engine.flush()
    assert [(twin.value().first, twin.value().deduped) for twin in twins] == [(1, False), (2, False)]


def test_twins_that_create_the_topic_land_once():
    engine = open_engine()
    tickets = [engine.append("a", write(idempotency_key="k")) for _ in range(2)]
    engine.flush()
    assert [(done.value().created, done.value().deduped) for done in tickets] == [(True, False), (False, True)]
    assert engine.topic("a").head == 1


def test_leader_is_resolved_with_or_without_followers():
    engine = open_engine()
    put(engine, "a")
    called = []
    leader = engine.append("a", write(idempotency_key="k"))
    follower = engine.append("a", write(idempotency_key="k"))
    follower.on_done(lambda ticket: called.append("follower"))
    leader.on_done(lambda ticket: called.append("leader"))
    engine.flush()
    assert sorted(called) == ["follower", "leader"]


def test_refused_leader_fails_its_followers_and_frees_the_key():
    log = FakeLog()
    engine = open_engine(log=log)
    put_ticket = engine.put_topic("a", DURABLE)
    engine.flush()
    log.finish()
    assert put_ticket.value().created
    tickets = [engine.append("a", write(idempotency_key="k")) for _ in range(3)]
    log.write_fails = True
    engine.flush()
    for ticket in tickets:
        with pytest.raises(TopicsError) as caught:
            ticket.value()
        assert caught.value.code is Code.READ_ONLY
    log.write_fails = False
    retry = engine.append("a", write(idempotency_key="k"))
    engine.flush()
    log.finish()
    assert (retry.value().first, retry.value().deduped) == (1, False)


def test_a_follower_waits_for_the_sync_its_leader_waits_for():
    log = FakeLog()
    engine = open_engine(log=log)
    engine.put_topic("a", DURABLE)
    engine.flush()
    log.finish()
    engine.append("a", write(idempotency_key="k"))
    engine.flush()
    follower = engine.append("a", write(idempotency_key="k"))
    assert not follower.done
    log.finish()
    assert follower.value().deduped


def key_bytes(engine: Engine) -> int:
    """What the engine counts, once it was compared with what it holds."""
    totals, topics = engine.state.totals, engine.topics.values()
    assert totals.key_bytes == sum(topic.key_bytes for topic in topics)
    for topic in topics:
        assert topic.key_bytes == sum(map(idempotency.size_bytes, topic.keys))
    return totals.key_bytes


def test_the_memory_of_keys_is_counted_whatever_becomes_of_them():
    clock = SimClock()
    engine = Engine(clock=clock, state=State(max_keys=30))
    put(engine, "a", idempotency_window_ms=100)
    for n in range(20):
        append(engine, "a", idempotency_key=f"k{n}")
        append(engine, "b", idempotency_key=f"longer-{n}")
    full = key_bytes(engine)
    assert full > 40 * idempotency.ENTRY_BYTES
    append(engine, "a", idempotency_key="k3")
    assert key_bytes(engine) == full, "a retry takes nothing"
    clock.advance(ms=101)
    append(engine, "a", idempotency_key="k3")
    assert key_bytes(engine) < full
    for n in range(40):
        append(engine, "b", idempotency_key=f"more-{n}")
    key_bytes(engine)
    engine.drop_topic("b")
    engine.flush()
    assert key_bytes(engine) < full // 2
    assert list(engine.state.keyed) == [engine.topic("a")]


def test_a_write_forgets_few_keys_and_sweeps_forget_the_rest():
    clock = SimClock()
    engine = open_engine(clock)
    put(engine, "a", idempotency_window_ms=100)
    put(engine, "b", idempotency_window_ms=100_000)
    for n in range(100):
        append(engine, "a", idempotency_key=f"k{n}")
    append(engine, "b", idempotency_key="k")
    clock.advance(ms=101)
    append(engine, "a", idempotency_key="new")
    assert len(engine.topic("a").keys) == 101 - idempotency.FORGOTTEN_A_WRITE
    idempotency.sweep(engine.state, clock.now_ms(), topics=10, keys=50)
    idempotency.sweep(engine.state, clock.now_ms(), topics=10, keys=50)
    assert (len(engine.topic("a").keys), len(engine.topic("b").keys)) == (1, 1)
    clock.advance(ms=101)
    idempotency.sweep(engine.state, clock.now_ms(), topics=1, keys=50)
    idempotency.sweep(engine.state, clock.now_ms(), topics=1, keys=50)
    assert list(engine.state.keyed) == [engine.topic("b")]
    key_bytes(engine)


def test_a_key_without_room_is_refused_and_a_retry_is_not():
    engine = open_engine()
    append(engine, "a", idempotency_key="k")

    def refuse(size_bytes: int) -> None:
        raise TopicsError(Code.THROTTLED, f"no room for {size_bytes} bytes")

    engine.staging.admit_key = refuse
    assert append(engine, "a", idempotency_key="k").deduped
    assert append(engine, "a").first == 2
    for name in ("a", "new"):
        with pytest.raises(TopicsError) as refused:
            append(engine, name, idempotency_key="other")
        assert refused.value.code is Code.THROTTLED
    assert "new" not in engine.topics


def test_the_memory_of_keys_is_counted_after_a_restart():
    server = SimServer.start(SimDisk(seed=1))
    put(server.engine, "a", durability="fsync")
    append(server.engine, "a", idempotency_key="k" * 200)
    assert server.store.checkpoint()
    append(server.engine, "a", idempotency_key="j")
    before = key_bytes(server.engine)
    assert key_bytes(server.crash("tear").engine) == before > 0
