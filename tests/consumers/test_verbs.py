"""Named consumers in the engine: store, compare-and-set, commit, lag, losses, expiry."""

from __future__ import annotations

import pytest

from tests.consumers.harness import TOPIC, Consumers
from tests.engine.harness import FakeLog, append, open_engine
from tests.simulated.harness import request
from topics.engine.steps import run_all
from topics.errors import Code, TopicsError
from topics.model.consumer import ConsumerRequest
from topics.model.records import Limits, TagMatch
from topics.storage.log import frame


@pytest.fixture
def readers() -> Consumers:
    found = Consumers()
    found.write(10)
    return found


def refused(code: Code, verb, *args, **fields):  # type: ignore[no-untyped-def]
    with pytest.raises(TopicsError) as found:
        verb(*args, **fields)
    assert found.value.code is code
    return found.value


def test_stored_position_is_returned(readers: Consumers):
    assert readers.put("billing", seq=4).created
    assert not readers.put("billing", seq=6).created
    assert readers.get("billing").seq == 6
    assert readers.put("mail").seq == 0, "without a seq a new consumer begins at 0"
    assert readers.seqs() == {"billing": 6, "mail": 0}


def test_omitted_fields_keep_their_values(readers: Consumers):
    readers.put("billing", seq=4, meta={"host": "a"}, expire_ms=500)
    readers.put("billing", seq=5)
    one = readers.get("billing")
    assert (one.seq, one.meta, one.expire_ms) == (5, b'{"host":"a"}', 500)
    readers.put("billing", meta=None, expire_ms=0)
    one = readers.get("billing")
    assert (one.seq, one.meta, one.expire_ms) == (5, None, 0)


def test_compare_and_set_refuses_a_consumer_that_has_moved(readers: Consumers):
    readers.put("billing", seq=4)
    error = refused(Code.CONSUMER_MOVED, readers.put, "billing", seq=7, if_seq=3)
    assert error.detail == {"topic": TOPIC, "consumer": "billing", "seq": 4}
    assert readers.get("billing").seq == 4
    assert readers.put("billing", seq=7, if_seq=4).seq == 7


def test_null_if_seq_only_creates(readers: Consumers):
    assert readers.put("billing", seq=1, if_seq=None).created
    assert refused(Code.CONSUMER_MOVED, readers.put, "billing", seq=2, if_seq=None).detail["seq"] == 1
    assert refused(Code.CONSUMER_MOVED, readers.put, "absent", seq=2, if_seq=0).detail["seq"] is None
    assert readers.seqs() == {"billing": 1}


def test_of_two_compare_and_sets_in_one_turn_one_wins(readers: Consumers):
    readers.put("billing", seq=0)
    consumers = readers.engine.consumers
    first = consumers.put(TOPIC, "billing", ConsumerRequest(seq=3, if_seq=0))
    assert (
        refused(Code.CONSUMER_MOVED, consumers.put, TOPIC, "billing", ConsumerRequest(seq=5, if_seq=0)).detail["seq"]
        == 3
    )
    readers.server.done(first)
    assert readers.get("billing").seq == 3


def test_position_beyond_the_head_is_refused(readers: Consumers):
    assert refused(Code.INVALID_REQUEST, readers.put, "billing", seq=11).detail == {"field": "seq"}
    assert refused(Code.INVALID_REQUEST, readers.open, "billing", commit=11) if readers.put("billing") else None
    assert readers.seqs() == {"billing": 0}


def test_epoch_of_another_topic_is_refused(readers: Consumers):
    epoch = readers.engine.topic(TOPIC).epoch
    readers.put("billing", seq=1, epoch=epoch)
    error = refused(Code.EPOCH_MISMATCH, readers.put, "billing", seq=2, epoch=epoch + 1)
    assert error.detail == {"topic": TOPIC, "epoch": epoch}


@pytest.mark.parametrize("name", ["", "a b", "-x", "x" * 256, "ä"])
def test_invalid_name_is_refused(readers: Consumers, name: str):
    refused(Code.INVALID_REQUEST, readers.put, name, seq=1)
    refused(Code.INVALID_REQUEST, readers.open, name)
    refused(Code.INVALID_REQUEST, readers.get, name)


def test_number_of_consumers_per_topic_is_bounded():
    engine = open_engine(limits=Limits(max_consumers=2))
    append(engine, TOPIC)
    engine.consumers.put(TOPIC, "a", ConsumerRequest())
    engine.consumers.put(TOPIC, "b", ConsumerRequest())
    assert refused(Code.THROTTLED, engine.consumers.put, TOPIC, "c", ConsumerRequest()).detail["max"] == 2
    engine.consumers.put(TOPIC, "a", ConsumerRequest(seq=1))
    engine.flush()
    refused(Code.THROTTLED, engine.consumers.open, TOPIC, "c", commit=True)
    engine.consumers.drop(TOPIC, "a")
    engine.flush()
    engine.consumers.put(TOPIC, "c", ConsumerRequest())


def test_large_meta_is_refused(readers: Consumers):
    refused(Code.INVALID_REQUEST, readers.put, "billing", meta={"text": "x" * 1024})
    refused(Code.CONSUMER_NOT_FOUND, readers.get, "billing")


def test_deleted_consumer_is_not_found_and_can_begin_again(readers: Consumers):
    readers.put("billing", seq=4, meta={"a": 1})
    assert readers.drop("billing")
    assert not readers.drop("billing")
    refused(Code.CONSUMER_NOT_FOUND, readers.get, "billing")
    assert readers.put("billing").seq == 0
    assert readers.get("billing").meta is None


def test_delete_and_creation_in_one_turn_leave_the_new_consumer(readers: Consumers):
    readers.put("billing", seq=4)
    readers.engine.consumers.drop(TOPIC, "billing")
    readers.engine.consumers.put(TOPIC, "billing", ConsumerRequest(seq=2))
    readers.engine.consumers.put(TOPIC, "brief", ConsumerRequest(seq=2))
    readers.engine.consumers.drop(TOPIC, "brief")
    readers.engine.flush()
    assert readers.seqs() == {"billing": 2}


def test_consumer_ends_with_its_topic(readers: Consumers):
    readers.put("billing", seq=4)
    readers.server.drop(TOPIC)
    readers.write(2)
    refused(Code.CONSUMER_NOT_FOUND, readers.get, "billing")
    assert readers.seqs() == {}
    assert list(readers.engine.state.consumed) == []


# --- reading by name


def test_unknown_consumer_that_reads_begins_at_zero(readers: Consumers):
    assert readers.open("billing") == 0
    assert readers.seqs() == {"billing": 0}


def test_commit_moves_to_what_the_last_answer_had(readers: Consumers):
    topic = readers.engine.topic(TOPIC)
    readers.open("billing")
    readers.engine.consumers.note_delivered(topic, "billing", 4)
    assert readers.open("billing") == 0, "without a commit the position stays"
    assert readers.open("billing", commit=True) == 4
    assert readers.open("billing", commit=True) == 4
    assert readers.open("billing", commit=7) == 7
    assert readers.open("billing", commit=2) == 7, "a commit never moves back"


def test_stored_position_replaces_what_a_commit_would_acknowledge(readers: Consumers):
    readers.open("billing")
    readers.engine.consumers.note_delivered(readers.engine.topic(TOPIC), "billing", 9)
    readers.put("billing", seq=2)
    assert readers.open("billing", commit=True) == 2


# --- lag and losses


def test_lag_counts_live_records_behind_the_position(readers: Consumers):
    readers.put("billing", seq=4)
    assert readers.lag("billing")[0] == 6
    readers.delete(before_seq=7)
    assert readers.lag("billing")[0] == 4
    readers.put("billing", seq=10)
    assert readers.lag("billing") == (0, 0)


def test_lag_leaves_out_deleted_records():
    readers = Consumers()
    for at in range(12):
        readers.server.append(TOPIC, str(at), tag="odd" if at % 2 else "even")
    readers.put("billing", seq=3)
    run_all(readers.engine.delete_records(TOPIC, before_seq=None, match=TagMatch("Eq", "odd")))
    readers.engine.flush()
    assert readers.lag("billing")[0] == len([seq for seq in readers.live() if seq > 3]) == 4


def test_lag_in_time_is_the_age_of_the_oldest_unread_record():
    readers = Consumers()
    for _ in range(8):
        readers.write(1)
        readers.clock.advance(ms=100)
    readers.put("billing", seq=5)
    assert readers.lag("billing") == (3, 300)
    readers.server.checkpoint()
    after = readers.restart("stop")
    assert after.lag("billing")[0] == 3
    assert after.lag("billing")[1] >= 300


def test_lost_records_behind_the_position_are_reported():
    readers = Consumers(cap_records=4)
    readers.write(6)
    readers.put("billing", seq=1)
    assert readers.lost("billing") == [(2, 2, "cap")]
    readers.write(4)
    assert readers.lost("billing") == [(2, 6, "cap")]
    assert readers.lag("billing")[0] == 4
    readers.put("billing", seq=6)
    assert readers.lost("billing") == []


# --- expiry


def test_unused_consumer_expires(readers: Consumers):
    readers.put("billing", seq=1, expire_ms=100)
    readers.put("kept", seq=1)
    readers.clock.advance(ms=100)
    assert readers.get("billing").seq == 1
    readers.clock.advance(ms=1)
    refused(Code.CONSUMER_NOT_FOUND, readers.get, "billing")
    assert readers.seqs() == {"kept": 1}
    readers.engine.consumers.sweep(topics=10)
    readers.engine.flush()
    assert set(readers.engine.topic(TOPIC).consumers.by_name) == {"kept"}
    assert not readers.engine.state.expiring


def test_reads_and_commits_keep_a_consumer(readers: Consumers):
    readers.put("reads", expire_ms=100)
    readers.put("commits", expire_ms=100)
    for seq in range(1, 5):
        readers.clock.advance(ms=80)
        readers.open("reads")
        readers.put("commits", seq=seq)
        readers.engine.consumers.sweep(topics=10)
    assert readers.seqs() == {"commits": 4, "reads": 0}


def test_expired_consumer_begins_again_when_it_returns(readers: Consumers):
    readers.put("billing", seq=5, expire_ms=100)
    readers.clock.advance(ms=101)
    assert readers.put("billing", if_seq=None).created
    assert readers.get("billing").seq == 0


def test_time_without_a_server_does_not_expire_consumers(readers: Consumers):
    readers.put("billing", seq=5, expire_ms=100)
    readers.clock.advance(ms=1000)
    after = readers.restart("keep")
    assert after.get("billing").seq == 5
    after.clock.advance(ms=101)
    refused(Code.CONSUMER_NOT_FOUND, after.get, "billing")


# --- the log


def test_all_changes_of_a_turn_share_one_frame():
    log = FakeLog()
    engine = open_engine(log=log)
    append(engine, "a")
    append(engine, "b")
    for name in ("x", "y"):
        engine.consumers.put("a", name, ConsumerRequest())
    engine.flush()
    log.frames.clear()
    for _ in range(50):
        engine.consumers.put("a", "x", ConsumerRequest(seq=1))
        engine.consumers.put("a", "y", ConsumerRequest(seq=0))
        engine.consumers.put("b", "x", ConsumerRequest(seq=1))
    engine.flush()
    assert len(log.frames) == 1
    assert len(log.frames[0]) < 150


def test_refused_change_leaves_no_trace():
    log = FakeLog()
    engine = open_engine(log=log)
    append(engine, "a")
    engine.consumers.put("a", "x", ConsumerRequest(seq=1))
    engine.flush()
    log.write_fails = True
    tickets = [engine.consumers.put("a", name, ConsumerRequest(seq=0)) for name in ("x", "y")]
    engine.flush()
    assert [ticket.error.code for ticket in tickets] == [Code.READ_ONLY] * 2
    assert engine.consumers.get("a", "x")[1].seq == 1
    log.write_fails = False
    again = engine.consumers.put("a", "x", ConsumerRequest(seq=0, if_seq=1))
    engine.flush()
    assert again.value().seq == 0


def test_position_of_fsync_topic_shows_only_after_the_sync():
    log = FakeLog()
    engine = open_engine(log=log)
    made = engine.append("a", request("1", durability="fsync"))
    engine.flush()
    log.finish()
    made.value()
    ticket = engine.consumers.put("a", "x", ConsumerRequest(seq=1))
    engine.flush()
    assert not ticket.done
    refused(Code.CONSUMER_NOT_FOUND, engine.consumers.get, "a", "x")
    log.finish()
    assert ticket.value().seq == 1
    assert engine.consumers.get("a", "x")[1].seq == 1


def test_repeated_commit_waits_for_the_sync_of_the_first_one():
    log = FakeLog()
    engine = open_engine(log=log)
    engine.append("a", request("1", durability="fsync"))
    engine.flush()
    log.finish()
    moved = engine.consumers.put("a", "x", ConsumerRequest(seq=1))
    engine.flush()
    again = engine.consumers.open("a", "x", commit=1)
    gone = engine.consumers.drop("a", "y")
    assert gone.value() is False  # depends on no pending change
    assert not again.done
    log.finish()
    assert moved.value().seq == again.value().seq == 1


def test_second_delete_of_a_consumer_is_refused_with_the_first_one():
    log = FakeLog()
    engine = open_engine(log=log)
    append(engine, "a")
    engine.consumers.put("a", "x", ConsumerRequest(seq=1))
    engine.flush()
    log.write_fails = True
    tickets = [engine.consumers.drop("a", "x") for _ in range(2)]
    engine.flush()
    assert [ticket.error.code for ticket in tickets] == [Code.READ_ONLY] * 2
    assert engine.consumers.get("a", "x")[1].seq == 1


def test_appends_still_share_a_frame_when_a_consumer_moves_between_them():
    log = FakeLog()
    engine = open_engine(log=log)
    append(engine, "a")
    log.frames.clear()
    engine.append("a", request("1"))
    engine.consumers.put("a", "x", ConsumerRequest(seq=1))
    engine.append("a", request("1"))
    engine.flush()
    heads = [frame.peek(memoryview(one), 0)[0] for one in log.frames]  # type: ignore[index]
    assert [(head.kind, head.count) for head in heads] == [(4, 2), (41, 0)]


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_jump_of_the_wall_clock_expires_no_consumer_and_no_hold(jump_ms: int):
    readers = Consumers(cap_records=2)
    readers.put("billing", expire_ms=60_000, hold=True, max_hold_bytes=10_000)
    readers.write(4)
    readers.clock.set(ms=readers.clock.now_ms() + jump_ms)
    readers.engine.consumers.sweep(topics=10)
    readers.engine.flush()
    readers.write(1)
    assert readers.seqs() == {"billing": 0}
    assert readers.live() == [1, 2, 3, 4, 5]
    readers.clock.advance(ms=60_001)
    readers.engine.consumers.sweep(topics=10)
    readers.engine.flush()
    readers.write(1)
    assert readers.seqs() == {}
    assert readers.live() == [5, 6]


@pytest.mark.parametrize("use", ["put", "commit", "read"])
def test_use_of_a_consumer_counts_in_elapsed_time(readers: Consumers, use: str):
    readers.put("billing", expire_ms=100)
    readers.clock.set(ms=1)
    readers.clock.advance(ms=100)
    if use == "put":
        readers.put("billing", meta={"host": "a"})
    else:
        readers.open("billing", commit=3 if use == "commit" else False)
    readers.clock.advance(ms=100)
    assert readers.get("billing").seq == (3 if use == "commit" else 0)
    readers.clock.advance(ms=1)
    refused(Code.CONSUMER_NOT_FOUND, readers.get, "billing")
