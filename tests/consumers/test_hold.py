"""`hold`: caps do not evict what a consumer has not read, up to `max_hold_bytes`."""

from __future__ import annotations

import pytest

from tests.consumers.harness import TOPIC, Consumers
from tests.simulated.draining import drain
from topics.engine.write import archived
from topics.errors import Code, TopicsError
from topics.model.records import Limits
from topics.model.router import RouterRequest
from topics.model.topic import ArchiveConfig

ENOUGH = 1 << 20


def size_of_one(readers: Consumers) -> int:
    topic = readers.engine.topic(TOPIC)
    return topic.bytes // topic.count


@pytest.mark.parametrize("cap", [{"cap_records": 3}, {"cap_bytes": 120}])
def test_unread_records_stay_past_the_cap(cap: dict[str, int]):
    readers = Consumers(**cap)
    readers.put("billing", hold=True, max_hold_bytes=ENOUGH)
    readers.write(10)
    assert readers.live() == list(range(1, 11))
    assert readers.lost("billing") == []


def test_records_that_were_read_are_evicted_with_the_next_write():
    readers = Consumers(cap_records=3)
    readers.put("billing", hold=True, max_hold_bytes=ENOUGH)
    readers.write(10)
    readers.put("billing", seq=5)
    assert readers.live() == list(range(1, 11)), "a commit itself evicts nothing"
    readers.write(1)
    assert readers.live() == list(range(6, 12))
    readers.put("billing", seq=11)
    readers.write(1)
    assert readers.live() == [10, 11, 12]


def test_slowest_holder_decides():
    readers = Consumers(cap_records=2)
    readers.put("fast", hold=True, max_hold_bytes=ENOUGH)
    readers.put("slow", hold=True, max_hold_bytes=ENOUGH)
    readers.put("other")
    readers.write(8)
    readers.put("fast", seq=8)
    readers.put("slow", seq=4)
    readers.write(1)
    assert readers.live() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("end", ["drop", "release", "expire"])
def test_hold_ends_with_its_consumer(end: str):
    readers = Consumers(cap_records=2)
    readers.put("billing", hold=True, max_hold_bytes=ENOUGH, expire_ms=100)
    readers.write(6)
    if end == "drop":
        readers.drop("billing")
    elif end == "release":
        readers.put("billing", hold=False)
    else:
        readers.clock.advance(ms=101)
        readers.engine.consumers.sweep(topics=10)
        readers.engine.flush()
    readers.write(1)
    assert readers.live() == [6, 7]


def test_past_max_hold_bytes_old_records_are_evicted_and_reported():
    readers = Consumers(cap_records=2)
    readers.write(1)
    limit = size_of_one(readers) * 5
    readers.put("billing", hold=True, max_hold_bytes=limit)
    readers.write(20)
    topic = readers.engine.topic(TOPIC)
    assert topic.bytes <= limit
    assert len(readers.live()) == 4 or len(readers.live()) == 5
    first = readers.live()[0]
    assert readers.lost("billing") == [(1, first - 1, "cap")]
    assert readers.server.read(TOPIC, 0).tombstone.gap_to == first - 1  # type: ignore[union-attr]


def test_hold_below_the_cap_changes_nothing():
    readers = Consumers(cap_records=4)
    readers.put("billing", hold=True, max_hold_bytes=1)
    readers.write(9)
    assert readers.live() == [6, 7, 8, 9]


def test_topic_that_rejects_stays_full_until_records_are_deleted():
    readers = Consumers(cap_records=3, discard="reject")
    readers.put("billing", hold=True, max_hold_bytes=ENOUGH)
    readers.write(3)
    with pytest.raises(TopicsError) as refused:
        readers.write(1)
    assert refused.value.code is Code.TOPIC_FULL
    readers.put("billing", seq=3)
    with pytest.raises(TopicsError):
        readers.write(1)


def test_archive_and_consumer_hold_together():
    """A topic that rejects makes room by evicting archived records, if no consumer holds them."""
    readers = Consumers(cap_records=3, discard="reject", archive=ArchiveConfig(hold=True))
    readers.put("billing", hold=True, max_hold_bytes=1)
    readers.write(3)
    epoch = readers.engine.topic(TOPIC).epoch
    readers.server.done(readers.engine.report_archived(TOPIC, seq=3, epoch=epoch))
    with pytest.raises(TopicsError):
        readers.write(1)
    readers.put("billing", seq=2)
    readers.write(2)
    assert readers.live() == [3, 4, 5]
    with pytest.raises(TopicsError):
        readers.write(1)
    assert archived.standing(readers.engine.topic(TOPIC), readers.clock.now_ms()).evicted == 0  # type: ignore[union-attr]


def test_ttl_expires_held_records():
    readers = Consumers(ttl_ms=50)
    readers.put("billing", hold=True, max_hold_bytes=ENOUGH)
    readers.write(2)
    readers.clock.advance(ms=51)
    readers.write(1)
    assert readers.live() == [3]
    assert readers.lost("billing") == [(1, 2, "ttl")]


def test_full_server_does_not_count_on_held_records():
    readers = Consumers(cap_records=3)
    readers.write(3)
    one = size_of_one(readers)
    readers.put("billing", seq=1, hold=True, max_hold_bytes=ENOUGH)
    limits = Limits(max_total_bytes=one * 4)
    readers.engine.staging.limits = readers.engine.limits = limits
    readers.engine.append.__self__._limits = limits  # type: ignore[attr-defined]
    readers.write(1)  # evicts the one record that was read
    assert readers.live() == [2, 3, 4]
    readers.write(1)
    with pytest.raises(TopicsError) as refused:
        readers.write(1)
    assert refused.value.code is Code.THROTTLED


@pytest.mark.parametrize("how", ["stop", "keep", "lose", "tear", "reorder"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_replay_evicts_what_the_live_server_evicted(how: str, checkpoint: bool):
    readers = Consumers(cap_records=2, durability="fsync")
    readers.write(1)
    readers.put("billing", hold=True, max_hold_bytes=size_of_one(readers) * 6)
    for seq in range(1, 12):
        readers.write(1)
        if seq % 3 == 0:
            readers.put("billing", seq=seq - 1)
        if checkpoint and seq == 5:
            readers.server.checkpoint()
    before = readers.server.view()
    after = readers.restart(how)
    assert after.server.view() == before
    assert after.seqs() == readers.seqs()


def test_router_loses_nothing_that_a_consumer_of_its_source_holds():
    readers = Consumers(cap_records=2, durability="disk")
    readers.server.done(readers.engine.routers.put("r", RouterRequest(source=TOPIC, dest="to")))
    readers.put("billing", hold=True, max_hold_bytes=ENOUGH)
    readers.write(9)
    drain(readers.engine)
    readers.engine.flush()
    rows, gaps = readers.server.walk("to")
    assert (len(rows), gaps) == (9, [])
    assert readers.restart("keep").server.walk("to") == (rows, gaps)
