"""Consumers after a restart, a crash, a checkpoint, and a restore."""

from __future__ import annotations

import pytest

from tests.consumers.harness import TOPIC, Consumers
from tests.simulated.draining import drain
from tests.simulated.harness import ROOT, SimServer
from topics.engine.offline.verify import verify
from topics.errors import TopicsError
from topics.model.consumer import ConsumerRequest
from topics.model.router import RouterRequest
from topics.storage import backup

WAYS = ["stop", "keep", "lose", "tear", "reorder"]


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("how", WAYS)
def test_acknowledged_positions_survive(how: str, checkpoint: bool):
    readers = Consumers(durability="fsync")
    readers.write(9)
    readers.put("billing", seq=3, meta={"host": "a"}, expire_ms=60_000)
    readers.put("mail", seq=1)
    readers.put("gone", seq=2)
    readers.drop("gone")
    if checkpoint:
        readers.server.checkpoint()
    readers.put("mail", seq=8)
    readers.put("late", seq=9)
    after = readers.restart(how)
    assert after.seqs() == {"billing": 3, "mail": 8, "late": 9}
    one = after.get("billing")
    assert (one.meta, one.expire_ms) == (b'{"host":"a"}', 60_000)
    assert after.restart("stop").seqs() == {"billing": 3, "mail": 8, "late": 9}


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_killed_process_loses_no_acknowledged_position(durability: str):
    readers = Consumers(durability=durability)
    readers.write(9)
    readers.put("billing", seq=3)
    readers.put("billing", seq=7)
    assert readers.restart("keep").seqs() == {"billing": 7}


@pytest.mark.parametrize("how", ["lose", "tear", "reorder"])
def test_power_loss_leaves_an_earlier_acknowledged_position(how: str):
    readers = Consumers(durability="disk")
    readers.write(9)
    readers.put("billing", seq=3)
    readers.server.checkpoint()
    for seq in (4, 5, 6):
        readers.put("billing", seq=seq)
    assert readers.restart(how).get("billing").seq in (3, 4, 5, 6)


def test_consumers_of_an_ephemeral_topic_end_with_the_process():
    readers = Consumers(durability="ephemeral")
    readers.write(3)
    readers.put("billing", seq=2)
    after = readers.restart("stop")
    with pytest.raises(TopicsError, match="no consumer"):
        after.get("billing")


def test_consumers_of_a_topic_that_leaves_ephemeral_are_kept():
    readers = Consumers(durability="ephemeral")
    readers.write(3)
    readers.put("billing", seq=2)
    readers.server.put(TOPIC, durability="disk")
    assert readers.restart("keep").seqs() == {"billing": 2}


def test_numbers_of_deleted_consumers_are_not_used_again():
    """A move in the log of a consumer that has ended must not move the one that came after it."""
    readers = Consumers()
    readers.write(9)
    readers.put("a", seq=1)
    readers.put("b", seq=1)
    readers.put("b", seq=5)
    readers.drop("b")
    after = readers.restart("stop")
    after.put("c", seq=2)
    assert after.get("c").number > 2
    assert after.restart("keep").seqs() == {"a": 1, "c": 2}


def test_memory_topic_with_records_to_replay_keeps_its_consumers():
    readers = Consumers(durability="memory")
    readers.write(3)
    readers.put("billing", seq=3)
    readers.write(4)
    readers.put("billing", seq=6)
    after = readers.restart("keep")
    assert after.seqs() == {"billing": 6}
    assert after.lag("billing")[0] == 1


def test_snapshot_taken_while_consumers_move_has_one_of_the_positions():
    readers = Consumers(durability="fsync")
    readers.write(5)
    for at in range(4):
        readers.server.append(f"other{at}", "1")
    readers.put("billing", seq=1)
    readers.server.begin_checkpoint(topics=0)
    readers.put("billing", seq=4)
    readers.server.steps.release()
    readers.put("billing", seq=5)
    assert readers.restart("keep").seqs() == {"billing": 5}


def test_router_into_a_topic_with_consumers_is_replayed_in_order():
    readers = Consumers(durability="disk")
    readers.server.append("from", "0")
    readers.server.done(readers.engine.routers.put("r", RouterRequest(source="from", dest=TOPIC)))
    for at in range(7):
        readers.server.append("from", str(at))
        drain(readers.engine)
        readers.engine.flush()
        readers.put("billing", seq=readers.engine.topic(TOPIC).head)
    before = readers.seqs()
    assert before == {"billing": 7}
    after = readers.restart("keep")
    assert after.seqs() == before
    assert after.engine.topic(TOPIC).head == 7


def test_batch_of_consumers_is_kept_as_a_whole():
    readers = Consumers(durability="fsync")
    readers.write(5)
    for at in range(100):
        readers.engine.consumers.put(TOPIC, f"c{at}", ConsumerRequest(seq=at % 6))
    readers.engine.flush()
    assert readers.restart("tear").seqs() == {f"c{at}": at % 6 for at in range(100)}


def test_restored_backup_has_the_positions_in_a_new_epoch():
    readers = Consumers(durability="fsync")
    readers.write(9)
    readers.put("billing", seq=3)
    readers.server.checkpoint()
    readers.put("billing", seq=7)
    epoch, disk = readers.engine.topic(TOPIC).epoch, readers.server.disk
    backup.copy(disk, ROOT, "/copy")
    assert verify(disk, "/copy").clean
    readers.put("billing", seq=9)
    readers.server.wal.close()
    restored = disk.crash("keep")
    backup.restore(restored, "/copy", ROOT, now_ms=readers.clock.now_ms(), set_aside="/old")
    after = Consumers(SimServer.start(restored, clock=readers.clock))
    assert after.seqs() == {"billing": 7}
    assert after.engine.topic(TOPIC).epoch > epoch
    after.put("billing", seq=8, epoch=after.engine.topic(TOPIC).epoch)
