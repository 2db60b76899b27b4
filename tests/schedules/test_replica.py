"""Schedules of a server with a replica: a standby has them and runs none, and a takeover goes on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.schedules.driving import ticks, turn, wanted
from tests.simulated.bucket import SimBucket
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.harness import ROOT, DeferredWorker, SimServer
from tests.simulated.replica import ReplicaServer
from tests.simulated.standby import SimStandby
from topics.engine.durable.recovery import recover
from topics.engine.offline.verify import verify
from topics.engine.state.topics import State
from topics.errors import TopicsError
from topics.model.topic import ConfigPatch
from topics.storage import backup
from topics.storage.datadir import DataDir
from topics.storage.segments.segment_caches import SegmentCaches

BEGIN, EVERY = 1_800_000_000_000, 60_000


def followed(durability: str = "replicated") -> tuple[ReplicaServer, SimStandby]:
    bucket = SimBucket()
    writer = ReplicaServer.begin(bucket, clock=SimClock(BEGIN - 1))
    writer.put("jobs", durability=durability, idempotency_window_ms=0)
    writer.done(writer.engine.schedules.put("s", wanted(every_ms=EVERY, starts_at=BEGIN, catch_up="all")))
    writer.upload()
    standby = SimStandby.begin(bucket, clock=SimClock(writer.clock.now_ms()), takeover_after_ms=2_000)
    return writer, standby


def tick(server: ReplicaServer) -> None:
    server.clock.advance(ms=EVERY)
    turn(server)
    turn(server)


def succeeded(standby: SimStandby) -> ReplicaServer:
    standby.pass_ms(8_000)
    server = standby.successor()
    server.engine.schedules.attach()
    for _ in range(5):
        turn(server)
        server.upload()
        server.pass_ms(100)
    return server


def test_standby_has_the_schedules_and_runs_none() -> None:
    writer, standby = followed()
    tick(writer)
    writer.upload()
    standby.follow()
    assert standby.engine.state.schedules.by_name == writer.engine.state.schedules.by_name
    assert list(standby.engine.state.schedules.names) == ["s"]
    assert ticks(standby) == ticks(writer) == [BEGIN]
    assert standby.engine.schedules.delay_ms is None
    writer.done(writer.engine.schedules.drop("s"))
    writer.upload()
    standby.follow()
    assert standby.engine.state.schedules.by_name == {}


def test_takeover_runs_the_ticks_that_were_missed() -> None:
    writer, standby = followed()
    tick(writer)
    writer.upload()
    standby.follow()
    standby.clock.set(ms=BEGIN + 3 * EVERY)
    server = succeeded(standby)
    assert ticks(server) == [BEGIN + at * EVERY for at in range(4)]


class SlowReplica:
    """A writer whose uploads happen when the test says so, with a schedule that is in the replica."""

    def __init__(self, **options: Any) -> None:
        self.uploads, bucket = DeferredWorker(), SimBucket()
        self.writer = ReplicaServer.begin(bucket, clock=SimClock(BEGIN - 1), worker=self.uploads, **options)
        self.uploads.run_all()
        self.writer.engine.put_topic("jobs", ConfigPatch(durability="replicated"))
        self.upload()
        self.writer.engine.schedules.put("s", wanted(every_ms=EVERY, starts_at=BEGIN, catch_up="all"))
        self.upload()
        self.standby = SimStandby.begin(bucket, clock=SimClock(BEGIN), takeover_after_ms=2_000)

    def upload(self) -> None:
        self.writer.engine.flush()
        self.writer.tick()
        self.uploads.run_all()


def test_takeover_at_a_tick_that_waits_for_its_upload() -> None:
    """The writer never showed the tick, because no standby has it. The next writer runs it once."""
    slow = SlowReplica()
    tick(slow.writer)
    assert (ticks(slow.writer), slow.writer.engine.schedules.standing("s").is_pending) == ([], True)
    slow.standby.follow()
    server = succeeded(slow.standby)
    assert ticks(server) == [BEGIN]
    assert ticks(server.restart()) == [BEGIN]


def test_takeover_after_the_upload_of_a_tick_repeats_nothing() -> None:
    slow = SlowReplica()
    tick(slow.writer)
    slow.upload()
    assert ticks(slow.writer) == [BEGIN]
    slow.standby.follow()
    assert ticks(succeeded(slow.standby)) == [BEGIN]


def test_tick_with_an_unknown_outcome_is_not_repeated() -> None:
    slow = SlowReplica(timeout_ms=2_000)
    writer = slow.writer
    tick(writer)
    for _ in range(8):
        writer.pass_ms(1_000)
        writer.replication.check()
        turn(writer)
    standing = writer.engine.schedules.standing("s")
    assert (standing.failures, standing.is_pending, ticks(writer)) == (1, True, [])
    with pytest.raises(TopicsError, match="send the request again"):
        writer.engine.schedules.drop("s")
    slow.upload()
    assert (ticks(writer), writer.engine.schedules.get("s").position) == ([BEGIN], BEGIN)
    turn(writer)
    slow.upload()
    assert ticks(writer) == [BEGIN, BEGIN + EVERY]


def test_snapshot_of_a_standby_has_the_schedules() -> None:
    writer, standby = followed("disk")
    tick(writer)
    writer.checkpoint()
    writer.upload()
    standby.follow()
    again = standby.loaded_again()
    assert again.engine.state.schedules.by_name == writer.engine.state.schedules.by_name


def test_backup_has_the_schedules_and_their_positions() -> None:
    disk = SimDisk(seed=3)
    server = SimServer.start(disk, clock=SimClock(BEGIN))
    server.put("jobs", durability="fsync")
    server.done(server.engine.schedules.put("s", wanted(every_ms=EVERY, catch_up="all")))
    server.checkpoint()
    server.clock.advance(ms=EVERY)
    turn(server)
    backup.copy(disk, ROOT, "/copy")
    backup.restore(disk, "/copy", "/restored", now_ms=BEGIN + EVERY, set_aside=None)
    assert verify(disk, "/restored").clean
    state, datadir = State(), DataDir(disk, "/restored")
    datadir.open()
    recover(datadir, state, SegmentCaches(disk), cold_dir=None, progress=lambda share: None)
    assert state.schedules.by_name == server.engine.state.schedules.by_name
    assert state.schedules.by_name["s"].position == BEGIN + EVERY
