"""`hold`: caps do not evict what a consumer has not read, up to `max_hold_bytes`."""

from __future__ import annotations

import pytest

from tests.consumers.harness import TOPIC, Desk
from topics.engine.write import archived
from topics.errors import Code, TopicsError
from topics.model.records import Limits
from topics.model.router import RouterRequest
from topics.model.topic import ArchivePatch

ENOUGH = 1 << 20


def size_of_one(desk: Desk) -> int:
    topic = desk.engine.topic(TOPIC)
    return topic.bytes // topic.count


@pytest.mark.parametrize("cap", [{"cap_records": 3}, {"cap_bytes": 120}])
def test_unread_records_stay_past_the_cap(cap: dict[str, int]):
    desk = Desk(**cap)
    desk.put("billing", hold=True, max_hold_bytes=ENOUGH)
    desk.write(10)
    assert desk.live() == list(range(1, 11))
    assert desk.lost("billing") == []


def test_records_that_were_read_are_evicted_with_the_next_write():
    desk = Desk(cap_records=3)
    desk.put("billing", hold=True, max_hold_bytes=ENOUGH)
    desk.write(10)
    desk.put("billing", seq=5)
    assert desk.live() == list(range(1, 11)), "a commit itself evicts nothing"
    desk.write(1)
    assert desk.live() == list(range(6, 12))
    desk.put("billing", seq=11)
    desk.write(1)
    assert desk.live() == [10, 11, 12]


def test_slowest_holder_decides():
    desk = Desk(cap_records=2)
    desk.put("fast", hold=True, max_hold_bytes=ENOUGH)
    desk.put("slow", hold=True, max_hold_bytes=ENOUGH)
    desk.put("other")
    desk.write(8)
    desk.put("fast", seq=8)
    desk.put("slow", seq=4)
    desk.write(1)
    assert desk.live() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("end", ["drop", "release", "expire"])
def test_hold_ends_with_its_consumer(end: str):
    desk = Desk(cap_records=2)
    desk.put("billing", hold=True, max_hold_bytes=ENOUGH, expire_ms=100)
    desk.write(6)
    if end == "drop":
        desk.drop("billing")
    elif end == "release":
        desk.put("billing", hold=False)
    else:
        desk.clock.advance(ms=101)
        desk.engine.consumers.sweep(topics=10)
        desk.engine.flush()
    desk.write(1)
    assert desk.live() == [6, 7]


def test_past_max_hold_bytes_old_records_are_evicted_and_reported():
    desk = Desk(cap_records=2)
    desk.write(1)
    limit = size_of_one(desk) * 5
    desk.put("billing", hold=True, max_hold_bytes=limit)
    desk.write(20)
    topic = desk.engine.topic(TOPIC)
    assert topic.bytes <= limit
    assert len(desk.live()) == 4 or len(desk.live()) == 5
    first = desk.live()[0]
    assert desk.lost("billing") == [(1, first - 1, "cap")]
    assert desk.server.read(TOPIC, 0).tombstone.gap_to == first - 1  # type: ignore[union-attr]


def test_hold_below_the_cap_changes_nothing():
    desk = Desk(cap_records=4)
    desk.put("billing", hold=True, max_hold_bytes=1)
    desk.write(9)
    assert desk.live() == [6, 7, 8, 9]


def test_topic_that_rejects_stays_full_until_records_are_deleted():
    desk = Desk(cap_records=3, discard="reject")
    desk.put("billing", hold=True, max_hold_bytes=ENOUGH)
    desk.write(3)
    with pytest.raises(TopicsError) as refused:
        desk.write(1)
    assert refused.value.code is Code.TOPIC_FULL
    desk.put("billing", seq=3)
    with pytest.raises(TopicsError):
        desk.write(1)


def test_archive_and_consumer_hold_together():
    """A topic that rejects makes room by evicting archived records, if no consumer holds them."""
    desk = Desk(cap_records=3, discard="reject", archive=ArchivePatch(hold=True))
    desk.put("billing", hold=True, max_hold_bytes=1)
    desk.write(3)
    epoch = desk.engine.topic(TOPIC).epoch
    desk.server.done(desk.engine.archives.report(TOPIC, seq=3, epoch=epoch))
    with pytest.raises(TopicsError):
        desk.write(1)
    desk.put("billing", seq=2)
    desk.write(2)
    assert desk.live() == [3, 4, 5]
    with pytest.raises(TopicsError):
        desk.write(1)
    assert archived.standing(desk.engine.topic(TOPIC), desk.clock.now_ms()).evicted == 0  # type: ignore[union-attr]


def test_ttl_expires_held_records():
    desk = Desk(ttl_ms=50)
    desk.put("billing", hold=True, max_hold_bytes=ENOUGH)
    desk.write(2)
    desk.clock.advance(ms=51)
    desk.write(1)
    assert desk.live() == [3]
    assert desk.lost("billing") == [(1, 2, "ttl")]


def test_full_server_does_not_count_on_held_records():
    desk = Desk(cap_records=3)
    desk.write(3)
    one = size_of_one(desk)
    desk.put("billing", seq=1, hold=True, max_hold_bytes=ENOUGH)
    limits = Limits(max_total_bytes=one * 4)
    desk.engine.staging.limits = desk.engine.limits = limits
    desk.engine.append.__self__._limits = limits  # type: ignore[attr-defined]
    desk.write(1)  # evicts the one record that was read
    assert desk.live() == [2, 3, 4]
    desk.write(1)
    with pytest.raises(TopicsError) as refused:
        desk.write(1)
    assert refused.value.code is Code.THROTTLED


@pytest.mark.parametrize("how", ["stop", "keep", "lose", "tear", "reorder"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_replay_evicts_what_the_live_server_evicted(how: str, checkpoint: bool):
    desk = Desk(cap_records=2, durability="fsync")
    desk.write(1)
    desk.put("billing", hold=True, max_hold_bytes=size_of_one(desk) * 6)
    for seq in range(1, 12):
        desk.write(1)
        if seq % 3 == 0:
            desk.put("billing", seq=seq - 1)
        if checkpoint and seq == 5:
            desk.server.checkpoint()
    before = desk.server.view()
    after = desk.restart(how)
    assert after.server.view() == before
    assert after.seqs() == desk.seqs()


def test_router_loses_nothing_that_a_consumer_of_its_source_holds():
    desk = Desk(cap_records=2, durability="disk")
    desk.server.done(desk.engine.routers.put("r", RouterRequest(source=TOPIC, dest="to")))
    desk.put("billing", hold=True, max_hold_bytes=ENOUGH)
    desk.write(9)
    desk.engine.routers.forwarder.drain()
    desk.engine.flush()
    rows, gaps = desk.server.walk("to")
    assert (len(rows), gaps) == (9, [])
    assert desk.restart("keep").server.walk("to") == (rows, gaps)
