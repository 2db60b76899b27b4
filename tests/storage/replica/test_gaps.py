"""What a writer knows after a gap or a takeover, and how far it lets a topic go without the bucket."""

from __future__ import annotations

import pytest

from tests.simulated.bucket import SimBucket
from tests.simulated.clock import SimClock
from tests.simulated.harness import ROOT, DeferredWorker, request
from tests.simulated.replica import ReplicaServer
from topics.engine.state.topic import FIRST_CEILING
from topics.errors import Code
from topics.storage.replica import start


def after_gap() -> ReplicaServer:
    """Return a server that has begun a later term after a gap."""
    server = ReplicaServer.begin(SimBucket(), max_lag_bytes=1000)
    server.append("plain", '"' + "x" * 3000 + '"')
    server.pass_ms(5_000)
    assert (server.state, server.replication.sequence.term) == ("following", 2)
    return server


@pytest.mark.parametrize("ends", ["kill", "stop"])
def test_server_goes_on_in_its_directory_after_a_gap(ends: str):
    server = after_gap()
    server.append("plain", "1")
    if ends == "stop":
        server.close()
        again = ReplicaServer.begin(server.bucket, server.disk, clock=server.clock)
    else:
        again = server.restart()
    assert again.append("plain", "2").first == 3


def test_writer_that_starts_as_a_standby_goes_on_after_a_gap():
    server = after_gap()
    assert start.load(server.bucket, server.disk.crash("keep"), ROOT) is None  # type: ignore[arg-type]


def test_write_that_is_being_synced_at_a_takeover_is_refused_at_once():
    syncs, uploads = DeferredWorker(), DeferredWorker()
    server = ReplicaServer.begin(SimBucket(), worker=uploads, sync_worker=syncs)
    while len(syncs) + len(uploads):
        syncs.run_all()
        uploads.run_all()
    server.append("plain", "1")
    server.wal.sync_now()
    server.replication.sequence.waiting = 1
    server.replication.uploader.pump()
    ticket = server.engine.append("sure", request("1", durability="replicated"))
    server.engine.flush()
    other = ReplicaServer.begin(server.bucket, host="b", clock=SimClock(server.clock.now_ms()))
    uploads.run_all()
    assert server.state == "fenced"
    assert not ticket.done
    syncs.run_all()
    assert ticket.done
    assert ticket.error is not None
    assert ticket.error.code is Code.FENCED
    assert "sure" not in other.engine.topics


def test_slow_disk_does_not_widen_the_range_of_a_small_topic():
    server = ReplicaServer.begin(SimBucket())
    server.wal.stats.slow_us = 375_000
    server.append("plain", "1", "2", "3")
    server.pass_ms(2_000)
    after = server.elsewhere()
    after.wal.stats.slow_us = 375_000
    assert after.walk("plain")[1] == [(4, FIRST_CEILING, "failover")]
    last = after.append("plain", "4").last
    after.pass_ms(2_000)
    assert after.elsewhere().walk("plain")[1][-1] == (last + 1, last + 1 + FIRST_CEILING, "failover")


def ceiling_after(writes: int, records: int, every_ms: int) -> tuple[int, int]:
    """Return how far the ceiling of a topic is above its head after so many writes, and how many seqs it has."""
    server = ReplicaServer.begin(SimBucket())
    for _ in range(writes):
        server.append("plain", *["1"] * records)
        server.pass_ms(every_ms)
    topic = server.engine.topic("plain")
    return topic.ceiling - topic.head, topic.head


def test_ceiling_is_about_ten_minutes_of_a_steady_topic_ahead():
    ahead, head = ceiling_after(writes=400, records=50, every_ms=1_000)
    per_second = head / 400
    assert 300 <= ahead / per_second <= 700


def test_few_large_writes_do_not_lift_the_ceiling_far():
    ahead, head = ceiling_after(writes=2, records=5_000, every_ms=5)
    assert ahead <= 10 * head


def test_topic_that_was_busy_has_a_small_range_again_once_it_is_slow():
    server = ReplicaServer.begin(SimBucket())
    for _ in range(100):
        server.append("plain", *["1"] * 1000)
        server.pass_ms(1_000)
    topic = server.engine.topic("plain")
    busy = topic.ceiling_step
    server.pass_ms(86_400_000)
    for _ in range(400):
        server.append("plain", *["1"] * 2000)
        server.pass_ms(3_600_000)
        if topic.ceiling_step < busy:
            break
    assert topic.ceiling_step == FIRST_CEILING
