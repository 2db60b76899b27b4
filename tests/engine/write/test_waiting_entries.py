"""Time that passes while an entry waits for its sync: a running server and a restarted one report the same losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.harness import waiting
from tests.simulated.disk import SimDisk
from tests.simulated.harness import DeferredWorker, SimServer, request
from topics.engine.queue.verbs import Want
from topics.engine.steps import run_all
from topics.engine.write.commit import Ticket
from topics.model.records import TagMatch
from topics.model.topic import ConfigPatch
from topics.storage.log.background import LogRefused

TTL_MS = 1000
LOOKS: dict[str, Callable[[Waiting], object]] = {
    "none": lambda server: None,
    "read": lambda server: server.read("t"),
    "state": lambda server: server.state(),
    "metrics": lambda server: server.engine.expire_in_memory(server.engine.topics["t"]),
    "dry run": lambda server: server.engine.delete_seqs("t", [4], dry_run=True),
}
LOOK = pytest.mark.parametrize("look", LOOKS)


class Waiting(SimServer):
    """A server with one `fsync` topic of four records, whose entries wait until `land`."""

    syncs: DeferredWorker

    @classmethod
    def with_topic(cls, **config: Any) -> Waiting:
        syncs = DeferredWorker()
        server = cls(SimDisk(), sync_worker=syncs)
        server.syncs = syncs
        server.open()
        server.now(server.engine.put_topic("t", ConfigPatch(**{"durability": "fsync"} | config)))
        for tag in "aabb":
            server.now(server.engine.append("t", request("1", tag=tag)))
        return server

    def now(self, ticket: Ticket) -> Any:
        self.land()
        return ticket.value()

    def land(self) -> None:
        self.engine.commits.sync()
        self.syncs.run_all()

    def write_out(self, ticket: Ticket | None) -> Ticket:
        """Write the entry to the log: it waits for the sync."""
        assert ticket is not None
        self.engine.flush()
        assert not ticket.done
        return ticket

    def state(self) -> tuple[int, int]:
        topic = self.engine.expire_and_get("t", touch=False)
        return topic.earliest, topic.count

    def missed(self) -> int:
        """Return how many lost records a reader from the beginning is told about."""
        tombstone = self.read("t").tombstone
        return 0 if tombstone is None else tombstone.missed_estimate

    def assert_same_after_a_crash(self) -> None:
        after = self.next(self.disk.clone().crash("keep"))
        self.clock.advance(ms=after.clock.now_ms() - self.clock.now_ms())
        assert after.view() == self.view()


def _delete(server: Waiting, how: str) -> Ticket:
    if how == "seqs":
        return server.engine.delete_seqs("t", [1, 2])
    match = TagMatch("Eq", "a") if how == "tag" else None
    before_seq = 3 if how == "before_seq" else None
    return run_all(server.engine.delete_records("t", before_seq=before_seq, match=match))


@LOOK
@pytest.mark.parametrize("how", ["seqs", "tag", "before_seq"])
def test_deleted_record_does_not_expire_while_its_delete_waits(look: str, how: str):
    server = Waiting.with_topic(ttl_ms=TTL_MS)
    deleted = server.write_out(_delete(server, how))
    server.clock.advance(ms=TTL_MS + 1)
    LOOKS[look](server)
    server.land()
    assert (deleted.value().deleted, server.missed()) == (2, 2)
    server.assert_same_after_a_crash()


@LOOK
def test_acked_job_does_not_expire_while_its_ack_waits(look: str):
    server = Waiting.with_topic(type="queue", ttl_ms=TTL_MS)
    queues, topic = server.engine.queues, server.engine.topics["t"]
    waiting(lambda: queues.claim(topic, [Want(node="w", max=2, lease_ms=60_000)]))
    acked = server.write_out(queues.ack(topic, "w", [1, 2], None))
    server.clock.advance(ms=TTL_MS + 1)
    LOOKS[look](server)
    server.land()
    assert (acked.value().done, acked.value().skipped, server.missed()) == (2, [], 2)
    server.assert_same_after_a_crash()


@LOOK
def test_job_does_not_expire_on_its_way_to_the_dead_letters(look: str):
    server = Waiting.with_topic(type="queue", ttl_ms=TTL_MS, max_deliveries=1, dead_letter="dead")
    queues, topic = server.engine.queues, server.engine.topics["t"]
    want = Want(node="w", max=1, lease_ms=60_000)
    waiting(lambda: queues.claim(topic, [want]))
    server.write_out(queues.nack(topic, "w", [1], None, delay_ms=0))
    server.clock.advance(ms=TTL_MS + 1)
    LOOKS[look](server)
    server.land()
    assert (server.missed(), server.data("dead")) == (3, ["1"])
    server.assert_same_after_a_crash()


@LOOK
def test_records_do_not_expire_by_a_ttl_that_is_being_changed(look: str):
    server = Waiting.with_topic(ttl_ms=TTL_MS)
    changed = server.write_out(server.engine.put_topic("t", ConfigPatch(ttl_ms=0)))
    server.clock.advance(ms=TTL_MS + 1)
    if look != "none":
        server.engine.expire_in_memory(server.engine.topics["t"])
    server.land()
    assert changed.value() is not None
    assert server.missed() == 0
    server.assert_same_after_a_crash()


def test_records_expire_once_the_delete_that_waited_is_refused():
    server = Waiting.with_topic(ttl_ms=TTL_MS)
    commits = server.engine.commits
    refused = _delete(server, "seqs")
    server.clock.advance(ms=TTL_MS + 1)
    assert server.state() == (1, 4)
    staged, commits._staged = commits._staged, []
    commits.refuse(staged, LogRefused("no space left"))
    assert refused.error is not None
    assert (server.missed(), server.state()) == (4, (5, 0))
    server.assert_same_after_a_crash()


def test_first_of_several_deletes_that_wait_decides_what_may_expire():
    server = Waiting.with_topic(ttl_ms=TTL_MS)
    server.clock.advance(ms=600)
    server.now(server.engine.append("t", request("1")))
    server.write_out(server.engine.delete_seqs("t", [1]))
    server.clock.advance(ms=600)
    second = server.engine.delete_seqs("t", [5])
    server.clock.advance(ms=600)
    assert server.state() == (1, 5)
    server.engine.flush()
    server.syncs.run()
    assert not second.done
    assert (server.missed(), server.state()) == (3, (5, 1)), "the first delete has landed"
    server.land()
    assert (second.value().deleted, server.missed()) == (1, 3)
    server.assert_same_after_a_crash()


def test_job_that_an_earlier_write_evicts_is_not_acked():
    server = Waiting.with_topic(type="queue", cap_records=4)
    queues, topic = server.engine.queues, server.engine.topics["t"]
    waiting(lambda: queues.claim(topic, [Want(node="w", max=2, lease_ms=60_000)]))
    server.engine.append("t", request("1"))
    acked = server.write_out(queues.ack(topic, "w", [1, 2], None))
    server.land()
    assert (acked.value().done, acked.value().skipped, server.missed()) == (1, [1], 1)
    assert queues.acks.total == 1
    server.assert_same_after_a_crash()


@pytest.mark.parametrize("how", ["seqs", "tag", "before_seq"])
def test_record_that_an_earlier_write_evicts_is_not_counted_as_deleted(how: str):
    server = Waiting.with_topic(cap_records=4)
    server.engine.append("t", request("1"))
    deleted = server.write_out(_delete(server, how))
    server.land()
    assert (deleted.value().deleted, server.missed()) == (1, 1)
    server.assert_same_after_a_crash()


def test_job_that_expires_before_its_ack_is_skipped_and_reported_once():
    server = Waiting.with_topic(type="queue", ttl_ms=TTL_MS)
    queues, topic = server.engine.queues, server.engine.topics["t"]
    waiting(lambda: queues.claim(topic, [Want(node="w", max=2, lease_ms=60_000)]))
    server.write_out(server.engine.delete_seqs("t", [4]))  # holds expiry back
    server.clock.advance(ms=TTL_MS + 1)
    acked = server.write_out(queues.ack(topic, "w", [1, 2], None))
    server.land()
    assert (acked.value().done, acked.value().skipped, server.missed()) == (0, [1, 2], 3)
    server.assert_same_after_a_crash()


def test_job_that_expires_behind_a_delete_does_not_become_a_dead_letter():
    server = Waiting.with_topic(type="queue", ttl_ms=TTL_MS, max_deliveries=1, dead_letter="dead")
    queues, topic = server.engine.queues, server.engine.topics["t"]
    want = Want(node="w", max=1, lease_ms=100)
    waiting(lambda: queues.claim(topic, [want]))
    server.write_out(server.engine.delete_seqs("t", [4]))
    server.clock.advance(ms=TTL_MS + 1)
    _, moved = waiting(lambda: queues.claim(topic, [want]))
    server.land()
    assert (moved, server.missed(), "dead" in server.engine.topics) == (None, 3, False)
    server.assert_same_after_a_crash()


def test_dead_letter_that_expires_behind_a_delete_is_not_redriven():
    server = Waiting.with_topic(type="queue", max_deliveries=1, dead_letter="dead")
    queues, topic = server.engine.queues, server.engine.topics["t"]
    server.now(server.engine.put_topic("dead", ConfigPatch(durability="fsync", ttl_ms=TTL_MS)))
    waiting(lambda: queues.claim(topic, [Want(node="w", max=4, lease_ms=60_000)]))
    server.now(queues.nack(topic, "w", [1, 2, 3, 4], None, delay_ms=0))
    waiting(lambda: queues.claim(topic, [Want(node="w", max=4, lease_ms=60_000)]))
    server.land()
    server.write_out(server.engine.delete_seqs("dead", [4]))
    server.clock.advance(ms=TTL_MS + 1)
    asked: dict[str, Any] = {"dead_letter": None, "match": None, "seqs": None, "from_seq": 0, "limit": 9}
    redriven = waiting(lambda: queues.dead_letters.redrive(topic, **asked, dry_run=False))
    server.land()
    assert redriven.value().seqs == []
    tombstone = server.read("dead").tombstone
    assert tombstone is not None
    assert (tombstone.missed_estimate, topic.count) == (3, 0)
    server.assert_same_after_a_crash()
