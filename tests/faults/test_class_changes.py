"""Changes of a topic's durability class: once acknowledged, all data of the topic is as safe as the new class."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.contract.api import Api
from tests.queues.harness import QUEUE, Workshop, job
from tests.simulated.disk import FOREVER, SimDisk
from tests.simulated.draining import drain
from tests.simulated.harness import DeferredWorker, SimServer, TopicView
from tests.simulated.inode import CrashMode
from topics.engine.write.commit import Halted, Ticket
from topics.errors import Code, TopicsError
from topics.model.records import TagMatch
from topics.model.router import RouterRequest
from topics.model.topic import ConfigPatch

CLASSES = ["ephemeral", "memory", "disk", "fsync"]
KEPT = CLASSES[1:]
CRASHES: list[CrashMode] = ["keep", "lose", "tear", "reorder", "zero"]


def route(server: SimServer, source: str, dest: str, **fields: object) -> None:
    server.done(server.engine.routers.put(f"{source}->{dest}", RouterRequest(source=source, dest=dest, **fields)))


def content(view: TopicView) -> tuple[object, ...]:
    """Return what a crash must not change. Seqs that a start skips after the last record do not count."""
    losses = [run for run in view.losses if run[2] != "restart" or run[1] < view.head]
    return view.config, view.earliest if view.live else 0, view.records, losses, view.keys, view.archived, view.trimmed


def use(server: SimServer, turn: int) -> None:
    """Do all that some classes log and others do not: records, keys, deletes, evictions, expiry, archive marks."""
    engine = server.engine
    for name in ("plain", "capped", "aging"):
        server.append(name, f"{turn}1", f"{turn}2", tag="x", key=f"{name}{turn}")
        server.append(name, f"{turn}3", f"{turn}4", f"{turn}5", tag="y")
        server.delete(name, match=TagMatch("Eq", "x"))
    topic = engine.topic("plain")
    server.delete("plain", before_seq=topic.head - 1)
    server.append("plain", f"{turn}6")
    server.done(engine.report_archived("plain", seq=topic.head - 1, epoch=topic.epoch, trimmed=topic.head - 2))
    server.clock.advance(ms=60)
    engine.expire_and_get("aging", touch=False)


def put_all(server: SimServer, durability: str) -> None:
    server.put("plain", durability=durability)
    server.put("capped", durability=durability, cap_records=4)
    server.put("aging", durability=durability, ttl_ms=100)


@pytest.mark.parametrize("classes", list(itertools.product(CLASSES, CLASSES, KEPT)), ids="-".join)
def test_crash_after_class_change_restores_and_loses_nothing(classes: tuple[str, ...]) -> None:
    server = SimServer.start(SimDisk(seed=7))
    for turn, durability in enumerate(classes, 1):
        put_all(server, durability)
        if turn < len(classes):
            use(server, turn)
    before = {name: content(view) for name, view in server.view().items()}
    heads = {name: topic.head for name, topic in server.engine.topics.items()}
    synced = classes[1] != classes[2] or classes[2] == "fsync"  # a change is, with everything before it
    for mode in CRASHES if synced else CRASHES[:1]:
        after = server.next(server.disk.clone().crash(mode))
        assert {name: content(view) for name, view in after.view().items()} == before, mode
        assert all(after.engine.topic(name).head >= head for name, head in heads.items()), mode
        assert after.append("plain", "1").first > heads["plain"]
        assert after.recovered is not None
        assert after.recovered.damage == []


def test_deleted_records_stay_deleted_after_leaving_ephemeral() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.append("t", "1", "2", "3", "4", "5", durability="fsync")
    server.put("t", durability="ephemeral")
    server.delete("t", before_seq=4)
    server.append("t", "6")
    server.put("t", durability="fsync")
    server.append("t", "7")
    after = server.crash("keep")
    assert after.by_seq("t") == {4: "4", 5: "5", 6: "6", 7: "7"}
    assert after.walk("t")[1] == []


@pytest.mark.parametrize("leases_durable", [False, True])
@pytest.mark.parametrize("durability", KEPT)
def test_acks_and_leases_survive_a_change_from_ephemeral(durability: str, leases_durable: bool) -> None:
    shop = Workshop(durability="fsync", leases_durable=leases_durable)
    shop.write("1", "2", job("3", priority=2), job("4", delay_ms=5_000))
    shop.server.put(QUEUE, durability="ephemeral")
    seqs = shop.write("5", "6")
    claimed = shop.claim("a", 3, lease_ms=60_000)
    shop.ack("a", claimed[0]["$seq"])
    shop.nack("a", claimed[1]["$seq"], delay_ms=9_000)
    shop.server.put(QUEUE, durability=durability)
    counts = shop.counts
    after = shop.restart("keep")
    assert after.topic.count == shop.topic.count == len(seqs) + 3
    if leases_durable:
        assert after.counts == counts
        assert after.ack("a", claimed[2]["$seq"]).done == 1
    else:
        assert after.counts == (counts[0] + 2, 0, 1), "as after every restart: what was out may be claimed again"


def test_leases_granted_before_leases_durable_survive_a_crash() -> None:
    shop = Workshop(durability="disk", leases_durable=False)
    shop.write("1", "2")
    [held] = shop.claim("a", 1, lease_ms=60_000)
    shop.server.put(QUEUE, leases_durable=True)
    after = shop.restart("keep")
    assert after.counts == (1, 1, 0)
    assert after.ack("a", held["$seq"], lease_ids=[held["lease_id"]]).done == 1


@pytest.mark.parametrize("durability", KEPT)
@pytest.mark.parametrize("forwarded", [False, True])
def test_routers_around_a_topic_leaving_ephemeral_copy_each_record_once(durability: str, forwarded: bool) -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.put("e", durability="ephemeral")
    route(server, "a", "e")
    route(server, "e", "d", guarantee="exactly_once")
    server.append("a", "1", "2")
    server.append("e", "3")
    drain(server.engine)
    server.append("a", "4")
    server.append("e", "5")
    if forwarded:
        drain(server.engine)
    server.put("e", durability=durability)
    server.append("d", '"direct"')
    server.append("a", "6")
    drain(server.engine)
    before = {name: (view.records, view.tombstones) for name, view in server.view().items()}
    for mode in CRASHES if durability == "fsync" else CRASHES[:1]:
        after = server.next(server.disk.clone().crash(mode))
        drain(after.engine)
        if mode == "keep":
            assert {name: (view.records, view.tombstones) for name, view in after.view().items()} == before
        datas = after.data("d")
        assert sorted(set(datas)) == sorted(datas), "none twice"
        assert set(datas) >= {"1", "2", "3"}


def test_kill_during_change_from_ephemeral_keeps_all_records_or_none() -> None:
    """The kill comes between the change and its snapshot. The change has no answer, so the topic may be empty."""
    store = DeferredWorker()
    server = SimServer.start(SimDisk(seed=7), store_worker=store)
    server.append("t", "1", "2", "3", durability="fsync")
    server.put("t", durability="ephemeral")
    server.delete("t", before_seq=3)
    server.append("t", "4")
    ticket = server.engine.put_topic("t", ConfigPatch(durability="fsync"))
    server.engine.flush()
    assert not ticket.done
    server.append("t", "5")
    cut = server.next(server.disk.clone().crash("keep"))
    assert cut.by_seq("t") == {5: "5"}
    assert cut.walk("t")[1][0] == (1, 4, "restart")
    assert cut.append("t", "6").first > 5
    store.run_all()
    assert ticket.done
    assert server.crash("keep").by_seq("t") == {3: "3", 4: "4", 5: "5"}


@pytest.mark.parametrize("router", ["in", "out", "both"])
def test_kill_during_change_from_ephemeral_moves_no_later_copy(router: str) -> None:
    store = DeferredWorker()
    server = SimServer.start(SimDisk(seed=7), store_worker=store)
    server.put("e", durability="ephemeral")
    if router != "out":
        route(server, "a", "e")
    if router != "in":
        route(server, "e", "d", filter="x")
    server.append("a", "1", tag="x")
    server.append("e", "2", "3", tag="y")
    server.append("e", "4", tag="x")
    server.engine.put_topic("e", ConfigPatch(durability="fsync"))
    server.engine.flush()
    drain(server.engine)
    server.append("a", "5", tag="x")
    server.append("e", "6", tag="x")
    drain(server.engine)
    server.append("d", '"direct"')
    server.append("e", "7", tag="x")
    drain(server.engine)
    live = {name: server.by_seq(name) for name in server.engine.topics}
    after = server.next(server.disk.clone().crash("keep"))
    for _ in range(2):  # a second start finds the same, with or without a snapshot in between
        drain(after.engine)
        found = {name: after.by_seq(name) for name in after.engine.topics}
        assert found["a"] == live["a"]
        assert {seq: data for seq, data in live["d"].items() if seq in found.get("d", {})} == found.get("d", {})
        assert '"direct"' in after.data("d")
        if router != "in":
            assert after.data("d")[-1] == "7"
        after = after.crash("keep")


def leave_ephemeral(server: SimServer) -> Ticket:
    ticket = server.engine.put_topic("t", ConfigPatch(durability="fsync"))
    server.engine.flush()
    return ticket


def test_change_from_ephemeral_is_refused_until_a_snapshot_succeeds() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.append("t", "1", durability="ephemeral")
    server.disk.fail(at=len(server.disk.calls), op="rename", path="*.snap.tmp", error=errno.EIO, times=FOREVER)
    for _ in range(2):
        with pytest.raises(TopicsError) as refused:
            leave_ephemeral(server).value()
        assert refused.value.code is Code.READ_ONLY
    server.disk.heal()
    with pytest.raises(TopicsError):
        leave_ephemeral(server).value()  # a failed snapshot is not tried again at once
    server.clock.advance(ms=60_000)
    assert not leave_ephemeral(server).value().created
    assert server.crash("lose").data("t") == ["1"]


def test_simultaneous_changes_from_ephemeral_share_snapshots() -> None:
    store = DeferredWorker()
    server = SimServer.start(SimDisk(seed=7), store_worker=store)
    for name in "abc":
        server.append(name, "1", durability="ephemeral")
    before = len(server.disk.calls)
    tickets = []
    for name in "abc":
        tickets.append(server.engine.put_topic(name, ConfigPatch(durability="disk")))
        server.engine.flush()
    store.run_all()
    assert all(ticket.done and ticket.error is None for ticket in tickets)
    snapshots = [call for call in server.disk.calls[before:] if call.op == "rename" and call.path.endswith(".snap.tmp")]
    assert len(snapshots) == 2, "one was pending when the other two came"
    after = server.crash("keep")
    assert [after.data(name) for name in "abc"] == [["1"]] * 3


def test_topic_that_returns_to_ephemeral_waits_for_no_snapshot() -> None:
    store = DeferredWorker()
    server = SimServer.start(SimDisk(seed=7), store_worker=store)
    server.append("t", "1", durability="ephemeral")
    first = leave_ephemeral(server)
    server.put("t", durability="ephemeral")
    server.append("t", "2")
    second = leave_ephemeral(server)
    server.drop("t")
    store.run_all()
    assert first.done
    assert second.done
    assert "t" not in server.crash("keep").engine.topics


def test_change_from_ephemeral_waits_for_the_deferred_replay() -> None:
    server = SimServer.start(SimDisk(seed=7))
    for number in range(300):
        server.append("m", str(number), durability="memory")
    server.append("t", "1", durability="disk")
    disk = server.disk.crash("keep")
    after = SimServer(disk, clock=server.clock)
    after.open()
    after.put("t", durability="ephemeral")
    after.append("t", "2")
    ticket = leave_ephemeral(after)
    assert not ticket.done
    while after.engine.replay_some():
        pass
    after.tick()
    assert ticket.value().topic.config.durability == "fsync"
    assert after.crash("lose").data("t") == ["1", "2"]


@pytest.mark.parametrize("kill", [True, False])
def test_killed_server_keeps_records_from_before_leaving_ephemeral(
    start_server: StartServer, tmp_path: Path, kill: bool
) -> None:
    data = tmp_path / "data"
    server = start_server(data_dir=data)
    api = Api(server.url)
    api.put("t", durability="fsync")
    api.write("t", *range(1, 6))
    api.put("t", durability="ephemeral", cap_records=4)
    api.delete("t", before_seq=4)
    api.write("t", 6, 7, 8, idempotency_key="k")
    assert api.put("t", durability="fsync", cap_records=4)["config"]["durability"] == "fsync"
    before = api.diff("t")
    api.close()
    if kill:
        server.kill()
    else:
        server.stop()
    again = start_server(data_dir=data)
    api = Api(again.url)
    after = api.diff("t")
    assert [after[name] for name in ("records", "tombstone", "head_seq")] == [
        before[name] for name in ("records", "tombstone", "head_seq")
    ]
    assert api.write("t", 6, 7, 8, idempotency_key="k")["deduped"]
    assert api.write("t", 9)["first_seq"] == 9
    api.close()


def test_change_from_ephemeral_whose_sync_fails_frees_no_seq() -> None:
    """The topic goes on in memory while the sync of the change is pending, and the server ends when that fails."""
    came_back = 0
    for seed, mode in itertools.product(range(10), CRASHES):
        server = SimServer.start(SimDisk(seed=seed, failed_sync_drops=False))
        server.put("t", durability="ephemeral")
        server.append("t", "1", "2", "3")
        server.disk.fail(at=len(server.disk.calls), op="datasync", error=errno.EIO)
        with pytest.raises(Halted):
            leave_ephemeral(server)
        after = server.next(server.disk.clone().crash(mode))
        came_back += after.engine.topic("t").config.durability == "fsync"
        assert after.append("t", "4").first > 3, (seed, mode)
    assert came_back


def test_key_of_a_record_that_a_restart_lost_is_forgotten(tmp_path: Path, start_server: StartServer) -> None:
    server = start_server(data_dir=tmp_path / "data")
    api = Api(server.url)
    api.put("jobs", durability="disk")
    api.write("jobs", "paid", idempotency_key="k")
    api.write("kept", "paid", idempotency_key="k")
    api.put("jobs", durability="ephemeral")
    api.close()
    server.kill()
    api = Api(start_server(data_dir=tmp_path / "data").url)
    again = api.write("jobs", "paid", idempotency_key="k")
    assert again["deduped"] is False
    assert [record["data"] for record in api.diff("jobs")["records"]] == ["paid"]
    assert api.write("jobs", "paid", idempotency_key="k")["seqs"] == again["seqs"]
    assert api.write("kept", "paid", idempotency_key="k")["deduped"] is True
    api.close()
