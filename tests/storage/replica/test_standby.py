"""A standby, simulated: it answers as the writer does at the same object, and takes over."""

from __future__ import annotations

import errno

import pytest

from tests.simulated.bucket import SimBucket
from tests.simulated.clock import SimClock
from tests.simulated.disk import FOREVER
from tests.simulated.draining import drain
from tests.simulated.harness import ROOT, SimServer
from tests.simulated.replica import ReplicaServer
from tests.simulated.standby import SimStandby
from topics.engine.queue.verbs import Want
from topics.errors import Code, TopicsError
from topics.model.consumer import ConsumerRequest
from topics.model.records import TagMatch
from topics.model.router import RouterRequest
from topics.storage.replica import start
from topics.storage.replica.objects import Announced


def test_standby_has_what_the_writer_has():
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket)
    writer.append("sure", "1", "2", key="k", durability="replicated")
    standby = SimStandby.begin(bucket, clock=writer.clock)
    assert standby.view() == writer.view()
    for number in range(30):
        writer.append("plain", str(number), tag=f"t{number % 3}")
    writer.checkpoint()
    writer.delete("plain", match=TagMatch("Eq", "t1"))
    writer.append("sure", "3")
    writer.pass_ms(1_500)
    standby.follow()
    assert standby.view() == writer.view()
    writer.drop("plain")
    writer.pass_ms(1_500)
    standby.follow()
    assert standby.view() == writer.view()


def test_standby_takes_snapshots_and_removes_old_log_files():
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket)
    standby = SimStandby.begin(bucket, clock=writer.clock, save_bytes=1000)
    for number in range(200):
        writer.append("plain", f'"{number:0100d}"')
        writer.pass_ms(100)
    writer.pass_ms(2_000)
    standby.follow()
    assert standby.view() == writer.view()
    assert len(standby.disk.listdir("/data/wal")) <= 3
    assert standby.store.snapshot_number > 1
    standby.pass_ms(60_000)
    after = standby.successor()
    assert after.data("plain") == writer.data("plain")


def test_silent_writer_is_succeeded_and_losses_are_reported():
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket)
    writer.append("sure", "1", durability="replicated")
    writer.append("plain", "1")
    writer.pass_ms(1_500)
    standby = SimStandby.begin(bucket, clock=writer.clock)
    last = writer.append("plain", "2").last  # is not uploaded
    standby.pass_ms(60_000)
    after = standby.successor()
    assert (after.data("sure"), after.data("plain")) == (["1"], ["1"])
    assert after.append("sure", "2").first == 2
    assert after.append("plain", "3").first > last
    [(low, high, reason)] = after.walk("plain")[1]
    assert (low, reason) == (2, "failover")
    assert high >= last
    assert after.state == "following"
    for _ in range(2):
        with pytest.raises(TopicsError, match="has taken it over") as failure:
            writer.append("sure", "3")
        assert failure.value.code is Code.FENCED


def test_orderly_stop_is_succeeded_without_a_gap():
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket)
    standby = SimStandby.begin(bucket, clock=writer.clock)
    writer.append("plain", "1", "2")
    writer.append("fast", "1", "2", "3", durability="ephemeral")
    writer.close()
    standby.follow()
    standby.pass_ms(60_000)
    after = standby.successor()
    assert after.data("plain") == ["1", "2"]
    assert after.append("plain", "3").first == 3
    assert after.append("fast", "4").first > 3, "its head is not in the log"


def test_restart_in_order_is_followed_without_a_new_load():
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket)
    writer.append("plain", "1")
    standby = SimStandby.begin(bucket, clock=writer.clock)
    writer.close()
    again = ReplicaServer.begin(bucket, writer.disk, clock=writer.clock)
    again.append("plain", "2")
    again.pass_ms(2_000)
    standby.follow()
    assert not standby.must_load
    assert standby.view() == again.view()
    standby.pass_ms(60_000)
    assert standby.successor().data("plain") == ["1", "2"]


def test_restart_after_a_kill_is_loaded_again():
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket)
    writer.append("plain", "1")
    writer.pass_ms(2_000)
    standby = SimStandby.begin(bucket, clock=writer.clock)
    writer.append("plain", "2")
    writer = writer.restart()
    writer.append("plain", "3")
    writer.pass_ms(2_000)
    standby.follow()
    assert standby.must_load
    standby = standby.loaded_again()
    assert standby.view() == writer.view()
    writer.append("plain", "4")
    writer.pass_ms(2_000)
    standby.follow()
    assert standby.view() == writer.view()


def test_router_copies_queues_and_consumers_are_the_same():
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket)
    writer.put("jobs", type="queue", leases_durable=True)
    writer.append("jobs", "1", "2", "3")
    writer.append("in", "1", "2")
    writer.done(writer.engine.routers.put("r", RouterRequest(source="in", dest="out", from_seq=0)))
    drain(writer.engine)
    writer.pass_ms(2_000)
    standby = SimStandby.begin(bucket, clock=writer.clock)
    assert standby.view() == writer.view()
    assert standby.data("out") == ["1", "2"]
    _, ticket = writer.engine.queues.claim(writer.engine.topic("jobs"), [Want(node="w", max=2, lease_ms=30_000)])
    assert ticket is not None
    writer.done(ticket)
    writer.append("in", "3")
    drain(writer.engine)
    writer.done(writer.engine.consumers.put("in", "reader", ConsumerRequest(seq=2)))
    writer.pass_ms(3_000)
    standby.follow()
    assert standby.view() == writer.view()
    assert standby.data("out") == ["1", "2", "3"]
    assert standby.engine.topic("jobs").queue.in_flight == 2


def announced(at_ms: int) -> Announced:
    return Announced(name="b", address="http://b", takes_over=True, object=1, lag_ms=0, at_ms=at_ms)


def test_records_expire_by_the_time_of_the_log():
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket)
    writer.append("short", "1", ttl_ms=5_000)
    writer.upload()
    standby = SimStandby.begin(bucket, clock=SimClock(writer.clock.now_ms() + 3_600_000))
    assert standby.data("short") == ["1"], "the clock of the standby does not count"
    writer.replication.note_standbys([announced(1)])
    writer.pass_ms(10_000)
    standby.follow()
    assert standby.data("short") == []
    assert standby.view() == writer.view()


def test_idle_writer_shows_that_it_lives_and_is_not_succeeded():
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket)
    writer.append("plain", "1")
    standby = SimStandby.begin(bucket, clock=writer.clock)
    before = len(bucket.objects)
    writer.pass_ms(20_000)
    assert len(bucket.objects) == before + 1, "nothing follows it: only the write is uploaded"
    for number in range(60):
        writer.replication.note_standbys([announced(number)])
        writer.pass_ms(1_000)
        standby.pass_ms(1)
        standby.follow()
    assert standby.opened is None
    assert standby.standby.lag_ms <= 1_001
    assert writer.state == "following"
    standby.pass_ms(60_000)
    assert standby.opened is not None
    writer.pass_ms(6_000)
    assert writer.state == "fenced", "its next sign of life has found the new term"


@pytest.mark.parametrize("noticed", [True, False])
def test_new_standby_waits_longer_until_the_writer_has_noticed_it(noticed: bool):
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket)
    standby = SimStandby.begin(bucket, clock=writer.clock, takeover_after_ms=15_000)
    if noticed:
        writer.replication.note_standbys([announced(1)])
    writer.append("plain", "1")
    writer.pass_ms(2_000)
    standby.follow()
    standby.pass_ms(17_000)
    assert (standby.opened is not None) is noticed
    standby.pass_ms(15_000)
    assert standby.opened is not None


def test_topic_that_leaves_ephemeral_is_loaded_with_the_next_checkpoint():
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket)
    writer.append("fast", "1", "2", durability="ephemeral")
    writer.upload()
    standby = SimStandby.begin(bucket, clock=writer.clock)
    writer.put("fast", durability="disk")
    writer.append("fast", "3")
    writer.upload()
    standby.follow()
    assert standby.must_load
    standby = standby.loaded_again()
    assert standby.data("fast") == writer.data("fast")


def test_follower_of_a_pruned_sequence_loads_the_state_again():
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket)
    writer.append("plain", "1")
    writer.upload()
    standby = SimStandby.begin(bucket, clock=writer.clock, takes_over=False)
    for number in range(5):
        writer.append("plain", str(number))
        writer.upload()
        writer.checkpoint()
    for name in sorted(bucket.objects)[:]:
        if name.startswith("log/") and int(name[4:]) < standby.standby.following.number + 4:
            del bucket.objects[name]
    standby.pass_ms(60_000)
    assert standby.must_load


def test_directory_of_a_standby_is_refused_as_that_of_a_writer():
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket)
    with pytest.raises(start.NothingToFollow):
        SimStandby.begin(SimBucket())
    with pytest.raises(start.NotOurs, match="has data that is not from this replica"):
        SimStandby.begin(bucket, SimServer.start().stop().disk.crash("keep"))
    standby = SimStandby.begin(bucket, clock=writer.clock)
    disk = standby.disk.crash("keep")
    with pytest.raises(start.NotOurs, match="start it with --standby"):
        ReplicaServer.begin(bucket, disk)
    again = SimStandby.begin(bucket, disk, clock=writer.clock)
    again.pass_ms(60_000)
    after = again.successor()
    with pytest.raises(start.NotOurs, match="an earlier writer"):
        SimStandby.begin(bucket, writer.disk.crash("keep"))
    assert start.load(bucket, after.disk.crash("keep"), ROOT) is None, "the last writer goes on"


def test_full_disk_of_a_standby_ends_nothing_and_it_goes_on_once_there_is_room():
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket)
    writer.append("plain", "1")
    writer.upload()
    standby = SimStandby.begin(bucket, clock=writer.clock, takeover_after_ms=2_000)
    standby.disk.fail(at=len(standby.disk.calls), op="pwrite", error=errno.ENOSPC, times=FOREVER)
    for number in range(20):
        writer.append("plain", str(number))
        writer.upload()
        standby.pass_ms(2_000)
    assert standby.data("plain") == ["1"]
    assert "space" in standby.standby.following.last_failure
    assert standby.opened is None, "it has not what the writer acknowledged"
    standby.disk.heal()
    standby.pass_ms(6_000)
    assert standby.data("plain") == writer.data("plain")
    standby.pass_ms(6_000)
    assert standby.successor().data("plain") == writer.data("plain")
