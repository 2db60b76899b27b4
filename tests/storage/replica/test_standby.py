"""A standby, simulated: it answers as the writer does at the same object, and takes over."""

from __future__ import annotations

import pytest

from tests.simulated.bucket import SimBucket
from tests.simulated.draining import drain
from tests.simulated.replica import ReplicaServer
from tests.simulated.standby import SimStandby
from topics.engine.queue.verbs import Want
from topics.errors import TopicsError
from topics.model.consumer import ConsumerRequest
from topics.model.records import TagMatch
from topics.model.router import RouterRequest


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
    with pytest.raises(TopicsError, match="has taken it over"):
        writer.append("sure", "3")


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
    assert after.append("fast", "4").first == 4


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
