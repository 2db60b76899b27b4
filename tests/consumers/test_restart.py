"""Consumers after a restart, a crash, a checkpoint, and a restore."""

from __future__ import annotations

import pytest

from tests.consumers.harness import TOPIC, Desk
from topics.engine.offline.verify import verify
from topics.errors import TopicsError
from topics.model.consumer import ConsumerRequest
from topics.model.router import RouterRequest
from topics.storage import backup
from topics.testing.harness import ROOT, SimServer

WAYS = ["stop", "keep", "lose", "tear", "reorder"]


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("how", WAYS)
def test_acknowledged_positions_survive(how: str, checkpoint: bool):
    desk = Desk(durability="fsync")
    desk.write(9)
    desk.put("billing", seq=3, meta={"host": "a"}, expire_ms=60_000)
    desk.put("mail", seq=1)
    desk.put("gone", seq=2)
    desk.drop("gone")
    if checkpoint:
        desk.server.checkpoint()
    desk.put("mail", seq=8)
    desk.put("late", seq=9)
    after = desk.restart(how)
    assert after.seqs() == {"billing": 3, "mail": 8, "late": 9}
    one = after.get("billing")
    assert (one.meta, one.expire_ms) == (b'{"host":"a"}', 60_000)
    assert after.restart("stop").seqs() == {"billing": 3, "mail": 8, "late": 9}


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_killed_process_loses_no_acknowledged_position(durability: str):
    desk = Desk(durability=durability)
    desk.write(9)
    desk.put("billing", seq=3)
    desk.put("billing", seq=7)
    assert desk.restart("keep").seqs() == {"billing": 7}


@pytest.mark.parametrize("how", ["lose", "tear", "reorder"])
def test_power_loss_leaves_an_earlier_acknowledged_position(how: str):
    desk = Desk(durability="disk")
    desk.write(9)
    desk.put("billing", seq=3)
    desk.server.checkpoint()
    for seq in (4, 5, 6):
        desk.put("billing", seq=seq)
    assert desk.restart(how).get("billing").seq in (3, 4, 5, 6)


def test_consumers_of_an_ephemeral_topic_end_with_the_process():
    desk = Desk(durability="ephemeral")
    desk.write(3)
    desk.put("billing", seq=2)
    after = desk.restart("stop")
    with pytest.raises(TopicsError, match="no consumer"):
        after.get("billing")


def test_consumers_of_a_topic_that_leaves_ephemeral_are_kept():
    desk = Desk(durability="ephemeral")
    desk.write(3)
    desk.put("billing", seq=2)
    desk.server.put(TOPIC, durability="disk")
    assert desk.restart("keep").seqs() == {"billing": 2}


def test_numbers_of_deleted_consumers_are_not_used_again():
    """A move in the log of a consumer that has ended must not move the one that came after it."""
    desk = Desk()
    desk.write(9)
    desk.put("a", seq=1)
    desk.put("b", seq=1)
    desk.put("b", seq=5)
    desk.drop("b")
    after = desk.restart("stop")
    after.put("c", seq=2)
    assert after.get("c").number > 2
    assert after.restart("keep").seqs() == {"a": 1, "c": 2}


def test_memory_topic_with_records_to_replay_keeps_its_consumers():
    desk = Desk(durability="memory")
    desk.write(3)
    desk.put("billing", seq=3)
    desk.write(4)
    desk.put("billing", seq=6)
    after = desk.restart("keep")
    assert after.seqs() == {"billing": 6}
    assert after.lag("billing")[0] == 1


def test_snapshot_taken_while_consumers_move_has_one_of_the_positions():
    desk = Desk(durability="fsync")
    desk.write(5)
    for at in range(4):
        desk.server.append(f"other{at}", "1")
    desk.put("billing", seq=1)
    desk.server.begin_checkpoint(topics=0)
    desk.put("billing", seq=4)
    desk.server.steps.release()
    desk.put("billing", seq=5)
    assert desk.restart("keep").seqs() == {"billing": 5}


def test_router_into_a_topic_with_consumers_is_replayed_in_order():
    desk = Desk(durability="disk")
    desk.server.append("from", "0")
    desk.server.done(desk.engine.routers.put("r", RouterRequest(source="from", dest=TOPIC)))
    for at in range(7):
        desk.server.append("from", str(at))
        desk.engine.routers.forwarder.drain()
        desk.engine.flush()
        desk.put("billing", seq=desk.engine.topic(TOPIC).head)
    before = desk.seqs()
    assert before == {"billing": 7}
    after = desk.restart("keep")
    assert after.seqs() == before
    assert after.engine.topic(TOPIC).head == 7


def test_batch_of_consumers_is_kept_as_a_whole():
    desk = Desk(durability="fsync")
    desk.write(5)
    for at in range(100):
        desk.engine.consumers.put(TOPIC, f"c{at}", ConsumerRequest(seq=at % 6))
    desk.engine.flush()
    assert desk.restart("tear").seqs() == {f"c{at}": at % 6 for at in range(100)}


def test_restored_backup_has_the_positions_in_a_new_epoch():
    desk = Desk(durability="fsync")
    desk.write(9)
    desk.put("billing", seq=3)
    desk.server.checkpoint()
    desk.put("billing", seq=7)
    epoch, disk = desk.engine.topic(TOPIC).epoch, desk.server.disk
    backup.copy(disk, ROOT, "/copy")
    assert verify(disk, "/copy").clean
    desk.put("billing", seq=9)
    desk.server.wal.close()
    restored = disk.crash("keep")
    backup.restore(restored, "/copy", ROOT, now_ms=desk.clock.now_ms(), set_aside="/old")
    after = Desk(SimServer.start(restored, clock=desk.clock))
    assert after.seqs() == {"billing": 7}
    assert after.engine.topic(TOPIC).epoch > epoch
    after.put("billing", seq=8, epoch=after.engine.topic(TOPIC).epoch)
