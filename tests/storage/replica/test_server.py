"""A server with a replica, simulated: what a start elsewhere finds, and what writes do without the bucket."""

from __future__ import annotations

import random

import msgspec
import pytest

from tests.simulated.bucket import SimBucket
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.draining import drain
from tests.simulated.harness import DeferredWorker, SimServer, request
from tests.simulated.replica import ReplicaServer
from topics.engine.queue.verbs import Want
from topics.engine.state.topic import FIRST_CEILING
from topics.errors import Code, TopicsError
from topics.model.consumer import ConsumerRequest
from topics.model.records import TagMatch
from topics.model.router import RouterRequest
from topics.storage.datadir import FORMAT_VERSION
from topics.storage.replica import objects, upkeep
from topics.storage.replica.history import History
from topics.storage.replica.objects import Damaged
from topics.storage.replica.restore import restore
from topics.storage.replica.start import NotOurs
from topics.storage.worker import INLINE


def test_everything_is_there_on_another_machine():
    bucket = SimBucket()
    server = ReplicaServer.begin(bucket)
    server.append("sure", "1", "2", key="k", durability="replicated")
    for number in range(20):  # sealed segments, a tail, and a log after the checkpoint
        server.append("plain", str(number), tag=f"t{number % 3}")
    server.checkpoint()
    server.delete("plain", before_seq=3)
    server.append("sure", "3")
    server.pass_ms(2000)

    after = server.elsewhere()

    assert after.view()["sure"] == server.view()["sure"]
    assert after.data("plain") == server.data("plain")
    assert after.engine.topic("plain").epoch == server.engine.topic("plain").epoch
    assert after.append("sure", "1", "2", key="k").first == 1, "the idempotency key is known"
    assert after.append("sure", "4").first == 4, "no seq of a replicated topic is skipped"


def test_replicated_write_takes_effect_after_the_upload():
    worker = DeferredWorker()
    server = ReplicaServer.begin(SimBucket(), worker=worker)
    worker.run_all()
    ticket = server.engine.append("sure", request("1", durability="replicated"))
    server.engine.flush()
    assert not ticket.done, "the creation waits, too"
    worker.run_all()
    assert ticket.done

    second = server.engine.append("sure", request("2"))
    server.engine.flush()
    assert server.wal.synced_to == server.wal.position, "it is synced"
    assert not second.done
    assert server.data("sure") == ["1"], "no reader sees it"
    worker.run_all()
    assert second.value().first == 2
    assert server.data("sure") == ["1", "2"]


def test_writers_of_one_upload_share_the_next_one():
    worker, bucket = DeferredWorker(), SimBucket()
    server = ReplicaServer.begin(bucket, worker=worker)
    worker.run_all()
    server.engine.append("sure", request("0", durability="replicated"))
    server.engine.flush()
    worker.run_all()
    events: list[str] = []
    create = bucket.create

    def recorded(name: str, data: bytes) -> bool:
        server.clock.advance(ms=30)
        events.append("uploaded")
        return create(name, data)

    def write(*names: str) -> None:
        """Append with several clients in one turn of the loop, and sync."""
        for name in names:
            ticket = server.engine.append("sure", request(f'"{name}"'))
            ticket.on_done(lambda done, name=name: events.append(f"{name} answered"))
        server.engine.flush()
        events.append("synced")
        if len(worker):
            events.append("upload begun")

    bucket.create = recorded  # type: ignore[method-assign]
    write("a", "b", "c", "d")
    worker.run_all()
    write("a", "b")
    write("c", "d")
    worker.run_all()
    answered = [f"{name} answered" for name in "abcd"]
    assert events == [
        "synced", "upload begun", "uploaded", *answered, "synced", "synced", "upload begun", "uploaded", *answered,
    ]  # fmt: skip


def test_topic_with_a_record_that_waits_for_its_upload_is_not_dropped_as_empty():
    bucket = SimBucket()
    server = ReplicaServer.begin(bucket)
    server.append("sure", "1", durability="replicated")
    server.delete("sure", before_seq=2)
    bucket.fail(at=len(bucket.requests))
    ticket = server.engine.append("sure", request("2"))
    with pytest.raises(TopicsError) as refused:
        server.engine.drop_topic("sure", if_empty=True)
    assert refused.value.code is Code.REPLICA_UNAVAILABLE
    bucket.heal()
    assert server.done(ticket).first == 2
    assert server.data("sure") == ["2"]


def test_write_whose_bytes_are_uploaded_before_its_sync_is_reported_does_not_wait():
    server = ReplicaServer.begin(SimBucket())
    server.append("sure", "1", durability="replicated")
    server.replication.sequence.waiting = 1  # another write waits: the upload begins with the sync, and is quick
    ticket = server.engine.append("sure", request("2"))
    server.engine.flush()
    assert ticket.done


def test_other_classes_do_not_wait_for_the_bucket():
    bucket = SimBucket()
    server = ReplicaServer.begin(bucket)
    bucket.fail(at=len(bucket.requests))
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        assert server.append(durability, "1", durability=durability).first == 1
    server.pass_ms(60_000)
    assert server.append("disk", "2").first == 2


def test_unreplicated_tail_is_reported_with_its_range():
    server = ReplicaServer.begin(SimBucket())
    for durability in ("ephemeral", "memory", "disk", "fsync", "replicated"):
        server.append(durability, "1", durability=durability)
    server.pass_ms(2000)
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        server.append(durability, "2")  # acknowledged, and not uploaded yet
    after = server.elsewhere()

    for durability in ("memory", "disk", "fsync"):
        assert after.data(durability) == ["1"]
        assert after.walk(durability)[1] == [(2, FIRST_CEILING, "failover")]
        assert after.append(durability, "3").first == FIRST_CEILING + 1
    assert after.walk("ephemeral") == ([], [(1, FIRST_CEILING, "failover")])
    assert after.walk("replicated")[1] == []
    assert after.append("replicated", "2").first == 2


def test_bytes_of_a_term_without_a_checkpoint_do_not_count():
    """They follow a part of the log that was never uploaded."""
    server = ReplicaServer.begin(SimBucket())
    server.append("plain", "1")
    server.pass_ms(2000)
    server.append("plain", "2")  # in the local log only
    again = server.restart(file_worker=DeferredWorker())
    again.append("plain", "3")
    again.pass_ms(5000)
    assert (again.state, again.replication.sequence.lag_bytes) == ("opening", 0)

    after = again.elsewhere(file_worker=INLINE)

    assert after.recovered is not None
    assert after.recovered.damage == []
    assert after.data("plain") == ["1"]
    assert after.walk("plain")[1] == [(2, FIRST_CEILING, "failover")]


def test_loss_is_reported_once_and_stays_the_same_after_a_restart():
    server = ReplicaServer.begin(SimBucket())
    server.append("plain", "1")
    server.pass_ms(2000)
    after = server.elsewhere()
    expected = after.walk("plain")
    assert after.restart().walk("plain") == expected


def test_orderly_stop_loses_nothing():
    server = ReplicaServer.begin(SimBucket())
    for durability in ("memory", "disk", "fsync", "replicated"):
        server.append(durability, "1", "2", durability=durability)
    server.close()
    assert server.state == "ended"

    after = server.elsewhere()

    for durability in ("memory", "disk", "fsync", "replicated"):
        assert after.walk(durability)[1] == []
        assert after.append(durability, "3").first == 3


def test_replica_goes_on_after_an_orderly_restart():
    bucket = SimBucket()
    server = ReplicaServer.begin(bucket)
    server.append("sure", "1", durability="replicated")
    server.append("plain", "1")
    server.close()
    after = ReplicaServer.begin(bucket, server.disk, clock=server.clock)
    assert after.state == "following"
    early = ReplicaServer.begin(bucket.copy(), clock=SimClock(server.clock.now_ms()))
    last = after.append("plain", "2").last
    assert early.append("plain", "3").first > last, "the checkpoint of the start is no end"
    assert after.append("sure", "2").first == 2
    after.pass_ms(2_000)
    elsewhere = after.elsewhere()
    assert (elsewhere.data("sure"), elsewhere.data("plain")) == (["1", "2"], ["1", "2"])


def test_ceiling_counts_only_once_it_is_uploaded():
    bucket = SimBucket()
    server = ReplicaServer.begin(bucket)
    server.append("plain", "1")
    server.pass_ms(2000)
    bucket.fail(at=len(bucket.requests))
    acknowledged = []

    def write() -> None:
        for _ in range(200):
            server.pass_ms(1000)
            acknowledged.append(server.append("plain", *["1"] * 100).last)

    with pytest.raises(TopicsError) as refused:
        write()
    assert refused.value.code is Code.REPLICA_UNAVAILABLE
    assert refused.value.detail is not None
    assert refused.value.detail["outcome"] == "refused"
    assert acknowledged[-1] <= FIRST_CEILING

    bucket.heal()
    server.pass_ms(10_000)
    assert server.append("plain", "x").first == acknowledged[-1] + 1, "it goes on when the bucket is back"
    assert server.elsewhere().append("plain", "y").first > acknowledged[-1] + 1


def test_no_seq_is_given_out_twice_however_fast_a_topic_grows():
    bucket = SimBucket()
    server = ReplicaServer.begin(bucket, interval_ms=3_600_000)
    last = 0
    for _ in range(60):
        last = server.append("plain", *["1"] * 500).last
        server.pass_ms(10)
    assert server.elsewhere().append("plain", "y").first > last


@pytest.mark.parametrize("seed", range(5))
def test_writes_keep_their_order_however_syncs_and_uploads_end(seed: int):
    """A write waits for a ceiling in the bucket, others behind it; uploads end while these are being synced."""
    chosen = random.Random(seed)
    syncs, uploads = DeferredWorker(), DeferredWorker()
    server = ReplicaServer.begin(SimBucket(), interval_ms=100, worker=uploads, sync_worker=syncs)
    acknowledged: list[int] = []

    def drain_all() -> None:
        while len(syncs) or len(uploads):
            syncs.run_all()
            uploads.run_all()
            server.pass_ms(20)

    server.engine.append("plain", request("1"))
    server.engine.append("sure", request("1", durability="fsync"))
    server.engine.flush()
    drain_all()
    for _ in range(250):
        act = chosen.randrange(6)
        if act < 3:
            name = "plain" if act else chosen.choice(["plain", "sure"])
            ticket = server.engine.append(name, request(*["1"] * chosen.choice([1, 300, 2000])))
            ticket.on_done(
                lambda done, name=name: done.error or name == "sure" or acknowledged.append(done.result.first)
            )
            server.engine.flush()
        elif act == 3:
            syncs.run()
        elif act == 4:
            uploads.run()
        else:
            server.pass_ms(20)
    drain_all()
    assert acknowledged == sorted(set(acknowledged))
    assert len(acknowledged) > 50


def test_stalled_bucket_leaves_the_outcome_unknown_and_the_key_tells_it_later():
    worker = DeferredWorker()
    server = ReplicaServer.begin(SimBucket(), worker=worker)
    worker.run_all()
    server.engine.append("sure", request("1", durability="replicated"))
    server.engine.flush()
    worker.run_all()
    answers: list[TopicsError | None] = []
    ticket = server.engine.append("sure", request("2", key="k"))
    ticket.then = lambda done: answers.append(done.error)
    server.engine.flush()

    server.pass_ms(9_000)
    assert answers == []
    server.pass_ms(2_000)
    assert [(error.code, error.detail) for error in answers if error] == [
        (Code.REPLICA_UNAVAILABLE, {"outcome": "unknown"})
    ]
    twin = server.engine.append("sure", request("2", key="k"))
    assert not twin.done, "the first write is still on its way"
    refused = server.engine.append("sure", request("3", key="other"))
    server.engine.flush()
    assert refused.error is not None
    assert refused.error.detail == {"reason": "the replica does not answer: no answer yet", "outcome": "refused"}

    worker.run_all()
    assert twin.value().first == 2
    assert server.data("sure") == ["1", "2"]
    late = server.engine.append("sure", request("3", key="other"))
    server.engine.flush()
    worker.run_all()
    assert late.value().first == 3


@pytest.mark.parametrize("uploads", [False, True])
def test_checkpoint_has_the_entries_that_wait_for_an_upload(uploads: bool):
    worker = DeferredWorker()
    server = ReplicaServer.begin(SimBucket(), worker=worker)
    worker.run_all()
    server.engine.append("sure", request("1", durability="replicated"))
    server.engine.flush()
    worker.run_all()
    ticket = server.engine.append("sure", request("2"))
    created = server.engine.append("new", request("1", durability="replicated"))
    server.engine.flush()
    before = server.store.snapshot_number

    assert server.checkpoint()

    assert server.store.snapshot_number > before, "it does not wait for the bucket"
    assert server.append("plain", "1").first == 1
    later = server.engine.append("sure", request("3"))
    server.engine.flush()
    assert server.data("sure") == ["1"]
    if uploads:
        worker.run_all()
        assert (ticket.done, created.done, later.done) == (True, True, True)
        assert server.data("sure") == ["1", "2", "3"]
    after = server.restart(worker=DeferredWorker())
    assert after.data("sure") == ["1", "2", "3"], "the snapshot and the log have them"
    assert after.data("new") == ["1"]


def test_entry_that_lands_during_a_checkpoint_is_there_once():
    worker = DeferredWorker()
    server = ReplicaServer.begin(SimBucket(), worker=worker)
    worker.run_all()
    for name in ("a", "sure", "z"):
        server.engine.append(name, request("1", durability="replicated"))
        server.engine.flush()
        worker.run_all()
    server.engine.append("sure", request("2"))
    server.engine.drop_topic("z")
    server.engine.flush()
    server.begin_checkpoint(topics=1)
    worker.run_all()  # the entries take effect before their topics have their turn
    assert server.data("sure") == ["1", "2"]
    server.steps.release()
    after = server.restart(worker=DeferredWorker())
    assert after.data("sure") == ["1", "2"]
    assert sorted(after.engine.topics) == ["a", "sure"]


def test_unknown_write_is_invisible_until_the_replica_has_it():
    """Its seq may be given out by a server that takes over: a reader must not have seen it."""
    bucket = SimBucket()
    server = ReplicaServer.begin(bucket, max_lag_bytes=20_000)
    server.append("sure", "1", durability="replicated")
    bucket.fail(at=len(bucket.requests))
    with pytest.raises(TopicsError) as failure:
        server.append("sure", "2", key="k")
    assert failure.value.detail == {"outcome": "unknown"}
    for number in range(300):
        server.append("plain", f'"{number:0100d}"')
        server.pass_ms(10)
    assert server.state == "lost"
    server.checkpoint()
    assert len(server.disk.listdir("/data/wal")) < 5, "the log is kept no longer"
    assert server.data("sure") == ["1"]

    other = ReplicaServer.begin(bucket.copy(), clock=SimClock(server.clock.now_ms()))
    assert other.append("sure", "3").first == 2

    bucket.heal()
    server.pass_ms(60_000)
    assert server.state == "following"
    assert server.data("sure") == ["1", "2"]
    assert server.append("sure", "2", key="k").first == 2
    assert server.append("sure", "3").first == 3
    assert server.elsewhere().data("sure") == ["1", "2", "3"]


def test_log_and_files_stay_until_they_are_uploaded():
    worker, files = DeferredWorker(), DeferredWorker()
    disk = SimDisk()
    server = ReplicaServer.begin(SimBucket(), disk, worker=worker, file_worker=files)
    while len(worker) + len(files):
        worker.run_all()
        files.run_all()
    for number in range(9):
        server.append("plain", str(number))
    server.tick()
    numbers = [int(name[:20]) for name in disk.listdir("/data/wal") if name.endswith(".wal")]
    server.checkpoint()
    server.drop("plain")  # its segments are being uploaded
    server.checkpoint()
    server.checkpoint()
    left = [int(name[:20]) for name in disk.listdir("/data/wal") if name.endswith(".wal")]
    assert numbers[0] in left
    assert disk.listdir("/data/segments") == ["1"]

    while len(worker) + len(files):
        server.pass_ms(1000)
        worker.run_all()
        files.run_all()
    server.append("other", "1")
    server.checkpoint()
    assert numbers[0] not in [int(name[:20]) for name in disk.listdir("/data/wal") if name.endswith(".wal")]
    assert disk.listdir("/data/segments") == []


def test_second_server_fences_the_first():
    bucket = SimBucket()
    server = ReplicaServer.begin(bucket)
    server.append("sure", "1", durability="replicated")
    after = server.elsewhere()

    with pytest.raises(TopicsError) as refused:
        server.append("sure", "2")
    assert refused.value.code is Code.FENCED
    assert "b has taken it over" in refused.value.message
    with pytest.raises(TopicsError) as refused:
        server.append("plain", "1")
    assert refused.value.code is Code.FENCED
    assert after.append("sure", "2").first == 2
    with pytest.raises(NotOurs, match=r"belongs to b since .*start with an empty directory"):
        server.restart()
    assert server.elsewhere(host="c").data("sure") == ["1", "2"]


def test_directory_behind_the_replica_is_refused():
    bucket, disk = SimBucket(), SimDisk()
    server = ReplicaServer.begin(bucket, disk)
    server.append("plain", "1")
    server.pass_ms(2000)
    older = disk.crash("keep")
    server = server.restart()
    server.append("plain", "2")
    server.pass_ms(2000)
    with pytest.raises(NotOurs, match="belongs to a since"):
        ReplicaServer.begin(bucket, older)


def test_directory_of_another_replica_is_refused():
    server = ReplicaServer.begin(SimBucket())
    server.append("plain", "1")
    other = ReplicaServer.begin(SimBucket())
    with pytest.raises(NotOurs, match="choose another prefix"):
        ReplicaServer.begin(other.bucket, server.disk.crash("keep"))
    with pytest.raises(NotOurs, match=r"correct TOPICS_REPLICA, or remove /data/REPLICA"):
        ReplicaServer.begin(SimBucket(), server.disk.crash("keep"))


def test_bucket_with_other_objects_is_refused_before_anything_is_written():
    bucket = SimBucket()
    bucket.put("photos/1.jpg", b"x")
    with pytest.raises(Exception, match="choose another prefix"):
        ReplicaServer.begin(bucket)
    assert list(bucket.objects) == ["photos/1.jpg"]


def test_gap_is_given_up_and_a_new_checkpoint_follows():
    bucket = SimBucket()
    server = ReplicaServer.begin(bucket, max_lag_bytes=20_000)
    server.append("sure", "1", durability="replicated")
    bucket.fail(at=len(bucket.requests))
    server.append("plain", "1")
    server.pass_ms(1_100)  # an upload is on its way
    for number in range(300):
        server.append("plain", f'"{number:0100d}"')
        server.pass_ms(10)
    assert server.state == "lost"
    with pytest.raises(TopicsError):
        server.append("sure", "2")
    server.checkpoint()
    assert len(server.disk.listdir("/data/wal")) < 5, "the log is kept no longer"

    bucket.heal()
    server.pass_ms(60_000)
    assert server.state == "following"
    assert server.append("sure", "2").first == 2
    server.pass_ms(2_000)
    after = server.elsewhere()
    assert after.data("sure") == ["1", "2"]
    assert after.data("plain") == server.data("plain")


def test_one_sync_beyond_the_limit_begins_a_new_term():
    """Nothing is in flight then, so no answer shows that the bucket is there."""
    server = ReplicaServer.begin(SimBucket(), max_lag_bytes=1000)
    server.append("plain", '"' + "x" * 3000 + '"')
    server.pass_ms(5_000)
    assert (server.state, server.replication.sequence.term) == ("following", 2)
    assert server.elsewhere().data("plain") == server.data("plain")


def test_leases_routers_and_consumers_survive():
    server = ReplicaServer.begin(SimBucket())
    server.put("jobs", type="queue", durability="replicated", leases_durable=True, lease_ms=60_000)
    server.append("jobs", "1", "2", "3")
    claims, ticket = server.engine.queues.claim(server.engine.topic("jobs"), [Want(node="w", max=2, lease_ms=60_000)])
    assert ticket is not None
    server.done(ticket)
    server.done(server.engine.queues.ack(server.engine.topic("jobs"), "w", [1], None))
    server.append("source", "1", "2", durability="replicated")
    server.done(server.engine.routers.put("copy", RouterRequest(source="source", dest="copies", from_seq=0)))
    drain(server.engine)
    server.done(server.engine.consumers.put("source", "billing", ConsumerRequest(seq=1)))
    server.append("source", "3")

    after = server.elsewhere()

    assert [len(claim.jobs) for claim in claims] == [2]
    assert after.view()["jobs"] == server.view()["jobs"]
    leases = after.engine.topic("jobs").queue
    assert leases is not None
    assert (leases.in_flight, leases.ready) == (1, 1), "job 2 is leased, job 3 is free"
    drain(after.engine)
    assert list(after.by_seq("copies").values()) == ["1", "2", "3"]
    assert [one.seq for one in after.view()["source"].consumers] == [1]


def test_router_copies_get_no_seq_that_a_lost_write_had():
    """A direct write to the destination is lost, and a copy of a record that survives comes after it."""
    server = ReplicaServer.begin(SimBucket())
    server.append("source", "1", durability="replicated")
    server.append("dest", '"direct"')
    server.done(server.engine.routers.put("copy", RouterRequest(source="source", dest="dest", from_seq=0)))
    server.pass_ms(2000)
    drain(server.engine)
    server.append("source", "2")  # in the bucket
    server.append("dest", '"lost"')  # not uploaded
    drain(server.engine)
    seen = server.by_seq("dest")

    after = server.elsewhere()
    drain(after.engine)

    found = after.by_seq("dest")
    assert sorted(found.values()) == ['"direct"', "1", "2"]
    assert all(found.get(seq, data) == data for seq, data in seen.items()), (seen, found)


def test_copies_land_in_a_replicated_topic_that_is_always_written():
    worker = DeferredWorker()
    server = ReplicaServer.begin(SimBucket(), worker=worker)
    worker.run_all()
    for name, data, durability in (("source", "1", "disk"), ("sure", '"direct"', "replicated")):
        server.engine.append(name, request(data, durability=durability))
        server.engine.flush()
        worker.run_all()
    server.engine.routers.put("copy", RouterRequest(source="source", dest="sure", from_seq=0))
    server.engine.flush()
    worker.run_all()
    routers, woken = server.engine.routers, list[bool]()
    for _ in range(5):
        server.engine.append("sure", request('"direct"'))
        server.engine.flush()
        routers.forwarder.run(0)  # by its timer: the write is waiting
        routers.due.wake = lambda: woken.append(True)
        worker.run_all()  # it is answered, and its client writes again in the next turn
        routers.due.wake = lambda: None
        if woken:
            routers.forwarder.run(0)
    assert "1" in server.data("sure")


def test_marks_of_segments_do_not_depend_on_when_they_are_uploaded():
    """A segment is uploaded once. Later deletes of its records are in the snapshots of later checkpoints."""
    bucket = SimBucket()
    server = ReplicaServer.begin(bucket)
    for number in range(9):
        server.append("plain", str(number), tag=f"t{number}", durability="replicated")
    server.checkpoint()
    server.pass_ms(2000)
    uploads = sum(op == "put" and name.startswith("files/") for op, name in bucket.requests)
    server.delete("plain", before_seq=2)
    server.engine.flush()
    server.delete("plain", match=TagMatch("Eq", "t4"))
    server.checkpoint()
    server.checkpoint()
    server.pass_ms(2000)
    later = sum(op == "put" and name.startswith("files/") for op, name in bucket.requests)
    assert later - uploads <= 4, "snapshots and tails only"
    assert server.elsewhere().view() == server.view()


def test_later_deletes_are_not_in_a_checkpoint_whose_upload_takes_long():
    """The next checkpoint is complete, and its marks are in the segment, before the segment is uploaded."""
    bucket, files = SimBucket(), DeferredWorker()
    server = ReplicaServer.begin(bucket, file_worker=files)
    files.run_all()
    for number in range(4):
        server.append("sure", str(number), tag=f"t{number}", durability="replicated")
    server.delete("sure", match=TagMatch("Eq", "t2"))
    server.checkpoint()
    before = server.replication.sequence.last_number
    server.delete("sure", match=TagMatch("Eq", "t1"))
    server.checkpoint()
    files.run_all()
    history = History.open(bucket, whole=True)
    assert history is not None
    first = next(
        number for number in sorted(history.log)
        if number > before and history.read(number).head.kind == "checkpoint"
    )  # fmt: skip
    assert history.read(first).checkpoint.snapshot < server.store.snapshot_number
    # Leave out the delete, which is between the objects: only the files of the checkpoint count.
    state = history.state(first)
    disk, only_files = SimDisk(), state.checkpoint.since
    for number in range(only_files, first):
        bucket.objects[f"log/{number:020d}"] = objects.encode(
            msgspec.structs.replace(history.read(number).head, kind="alive", pieces=())
        )
    restore(history, disk, "/data", number=first, restored_ms=1)
    assert SimServer.start(disk).data("sure") == ["0", "1", "3"]


def test_state_of_an_earlier_object_is_restored():
    bucket = SimBucket()
    server = ReplicaServer.begin(bucket)
    server.append("sure", "1", durability="replicated")
    at = server.replication.sequence.last_number
    moment = server.clock.now_ms()
    server.pass_ms(5000)
    server.append("sure", "2")
    server.delete("sure", before_seq=2)
    server.checkpoint()
    server.pass_ms(5000)
    history = History.open(bucket, whole=True)
    assert history is not None
    assert history.at_time(moment) == at

    disk = SimDisk()
    restore(history, disk, "/data", number=at, restored_ms=server.clock.now_ms())
    found = SimServer.start(disk)
    assert found.data("sure") == ["1"]
    assert found.engine.topic("sure").epoch != server.engine.topic("sure").epoch, "a new history"


def test_every_object_names_the_format_of_its_data():
    server = ReplicaServer.begin(SimBucket())
    server.append("sure", "1", durability="replicated")
    server.stop()
    history = History.open(server.bucket, whole=True)
    assert history is not None
    assert {history.read(number).head.stored for number in history.log} == {FORMAT_VERSION}


def test_prune_keeps_what_a_restore_in_the_window_needs():
    clock_bucket = SimBucket()
    server = ReplicaServer.begin(clock_bucket)
    clock_bucket.now_ms = server.clock.now_ms
    for number in range(6):
        server.append("sure", str(number), durability="replicated")
        server.checkpoint()
        server.pass_ms(3_600_000)
    history = History.open(clock_bucket)
    assert history is not None
    assert len(history.log) < 3, "the old objects need not be listed before"
    before = len(clock_bucket.objects)
    keep_ms, now_ms = 2 * 3_600_000, server.clock.now_ms()
    done = upkeep.prune(history, keep_ms=keep_ms, now_ms=now_ms + 365 * 86_400_000)  # the clock has jumped
    assert done.objects > 3
    assert done.files > 2
    assert len(clock_bucket.objects) == before - done.objects - done.files
    again = History.open(clock_bucket, whole=True)
    assert again is not None
    assert upkeep.verify(again).problems == []
    assert server.elsewhere().data("sure") == [str(number) for number in range(6)]


def test_second_of_two_servers_that_begin_a_replica_is_refused_before_it_writes():
    bucket, disk = SimBucket(), SimDisk()
    others = objects.encode_identity("other")

    def begin(op: str, name: str) -> None:
        if (op, name) == ("create", "replica"):  # the other server is a moment earlier, and has no term yet
            bucket.objects.setdefault(name, others)

    bucket.before = begin
    with pytest.raises(NotOurs, match="another server"):
        ReplicaServer.begin(bucket, disk)
    assert bucket.objects == {"replica": others}
    assert not disk.exists("/data/FORMAT"), "a start with the same directory can still follow the other server"
    assert ReplicaServer.begin(bucket, disk).append("sure", "1", durability="replicated").first == 1


def test_damaged_object_is_named_with_the_last_state_before_it():
    bucket = SimBucket()
    server = ReplicaServer.begin(bucket)
    for number in range(4):
        server.append("sure", str(number), durability="replicated")
    last = server.replication.sequence.last_number
    name = f"log/{last - 1:020d}"
    bucket.objects[name] = bucket.objects[name][:-1] + b"\0"
    history = History.open(bucket, whole=True)
    assert history is not None
    found = upkeep.verify(history)
    assert found.restorable_to == last - 2
    assert len(found.problems) == 1
    with pytest.raises(Exception, match=f"checksum is wrong; restore the state before it with --at-object {last - 2}"):
        server.elsewhere()
    assert server.append("sure", "4").first == 5, "a start that cannot restore fences no server"


def test_damaged_end_names_the_state_before_it_and_that_is_restored():
    bucket = SimBucket()
    server = ReplicaServer.begin(bucket)
    for number in range(4):
        server.append("sure", str(number), durability="replicated")
    last = server.replication.sequence.last_number
    bucket.objects[f"log/{last:020d}"] = b"hello"
    with pytest.raises(Damaged, match=f"no object of a replica; restore .* --at-object {last - 1}$"):
        server.elsewhere()
    history = History.open(bucket, whole=True)
    assert history is not None
    disk = SimDisk()
    restore(history, disk, "/data", number=last - 1, restored_ms=server.clock.now_ms())
    assert SimServer.start(disk).data("sure") == ["0", "1", "2"]


def test_damaged_first_checkpoint_leaves_nothing_to_restore():
    bucket = SimBucket()
    ReplicaServer.begin(bucket)
    [name] = [name for name in bucket.objects if name.startswith("files/")]
    bucket.objects[name] = b""
    history = History.open(bucket, whole=True)
    assert history is not None
    found = upkeep.verify(history)
    assert (len(found.problems), found.restorable_to) == (1, 0)


def test_clock_far_behind_the_replica_is_refused_before_anything_is_written():
    bucket, disk = SimBucket(), SimDisk()
    server = ReplicaServer.begin(bucket)
    server.pass_ms(3_600_000)
    server.append("sure", "1", durability="replicated")
    before = dict(bucket.objects)
    with pytest.raises(NotOurs, match=r"the clock of this machine shows .*; set the clock"):
        ReplicaServer.begin(bucket, disk, clock=SimClock(server.clock.now_ms() - 3_000_000))
    assert bucket.objects == before
    assert not disk.exists("/data/REPLICA")
