"""Entries with a right checksum that cannot be applied, and a clock before 1970: neither stops a start."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.conftest import ServerProcess
from tests.simulated.disk import SimDisk
from tests.simulated.harness import ROOT, SimServer
from topics.clock import SystemClock
from topics.engine.offline.verify import verify
from topics.engine.queue.dead_letters import Moved
from topics.engine.queue.lease_log import Leased
from topics.storage.log import entry as log


def bad_append(server: SimServer, name: str, *, n: int = 1) -> log.Append:
    """Return an append of `n` records that fails when it is applied: its time is before 1970."""
    topic = server.engine.topic(name)
    row = b'{"$seq":%d,"$ts":-5,"data":0},' % (topic.head + 1)
    return log.Append(topic.topic_id, topic.head + 1, -5, [len(row)] * n, row * n, tags=["bad"] * n)


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory"])
def test_append_that_cannot_be_applied_is_reported_and_skipped(durability: str):
    server = SimServer.start(SimDisk(seed=3))
    server.append("t", "1", tag="good", durability=durability)
    server.wal.write([log.encode(bad_append(server, "t", n=2))])
    after = server.crash("keep")
    assert after.by_seq("t") == {1: "1"}
    assert tuple(after.engine.topic("t").losses.runs) == ((2, 3, "corrupt"),)
    after.append("t", "4", tag="later")
    assert after.stop().by_seq("t") == {1: "1", 4: "4"}


def test_entries_after_a_poisoned_one_are_replayed_and_the_damage_is_reported():
    server = SimServer.start(SimDisk(seed=3))
    server.append("t", "1", durability="fsync")
    poison = bad_append(server, "t")
    server.wal.write([log.encode(poison)])
    good = server.engine.topic("t").head + 2
    row = b'{"$seq":%d,"$ts":7,"data":9},' % good
    server.wal.write([log.encode(log.Append(poison.topic_id, good, 7, [len(row)], row))])
    disk = server.disk.crash("keep")
    found = verify(disk.clone(), ROOT)
    after = server.next(disk)
    assert after.by_seq("t") == {1: "1", 3: "9"}
    assert after.recovered is not None
    [damage] = after.recovered.damage
    assert "topic t, seqs 2 to 2" in damage
    assert [finding.what for finding in found.damage] == [damage]


def test_entries_of_queues_that_cannot_be_applied_are_reported():
    server = SimServer.start(SimDisk(seed=3))
    server.put("q", type="queue", durability="fsync", leases_durable=True)
    server.append("q", "1", "2")
    server.append("dead", "0", durability="fsync")
    topic_id = server.engine.topic("q").topic_id
    lease = Leased(topic_id, "n", 1, 5000, [1, 2], [0], [None])  # its lists differ in length
    move = Moved(topic_id, [2], 1_000_001, True, bad_append(server, "dead"))
    server.wal.write([log.encode(lease), log.encode(move)])
    after = server.crash("keep")
    assert after.recovered is not None
    assert len(after.recovered.damage) == 2
    assert "topic dead, seqs 2 to 2" in after.recovered.damage[1]
    assert after.by_seq("dead") == {1: "0"}
    assert after.append("dead", "3").first == 3


def test_full_memory_still_stops_a_start(monkeypatch: pytest.MonkeyPatch):
    server = SimServer.start(SimDisk(seed=3))
    server.append("t", "1", durability="fsync")
    disk = server.disk.crash("keep")

    def full(*_: object) -> None:
        raise MemoryError

    for name in ("append", "append_plain"):
        monkeypatch.setattr(f"topics.engine.write.apply.{name}", full)
    with pytest.raises(MemoryError):
        server.next(disk)


def test_clock_before_1970_reads_as_1970(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("topics.clock.time.time_ns", lambda: -86_400_000_000_000)
    assert SystemClock().now_ms() == 0


def test_writes_under_a_clock_before_1970_survive_a_kill(tmp_path: Path):
    program = [str(Path(__file__).with_name("odd_machine.py"))]
    settings = {"data_dir": tmp_path / "data"}
    early = ServerProcess(tmp_path, settings, program=program, variables={"CLOCK_MS": "-86400000"})
    answers = [
        httpx.put(f"{early.url}/v0/topics/q", json={"type": "queue", "leases_durable": True, "ttl_ms": 60_000}),
        httpx.post(f"{early.url}/v0/topics/q", json={"records": [{"data": 1, "delay_ms": 5}, {"data": 2}]}),
        httpx.post(f"{early.url}/v0/topics/q/claim", json={"node": "n"}),
        httpx.post(f"{early.url}/v0/topics/t", json={"records": [{"data": 3}], "idempotency_key": "k"}),
        httpx.put(f"{early.url}/v0/topics/t/consumers/c", json={"expire_ms": 60_000}),
        httpx.get(f"{early.url}/v0/metrics"),
    ]
    early.kill()
    assert all(answer.is_success for answer in answers), [answer.text for answer in answers]
    after = ServerProcess(tmp_path / "after", settings)
    found = httpx.post(f"{after.url}/v0/topics/t/diff", json={}).json()
    after.stop()
    [record] = found["records"]
    assert record["data"] == 3
    assert 0 <= record["$ts"] < 3_600_000
