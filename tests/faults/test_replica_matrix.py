"""A server with a replica is killed at every request to the bucket and every file call, and continued elsewhere.

What was acknowledged must be true on the other machine: every write of a `replicated` topic is there, every seq of
another topic is there or reported as lost (`failover`), and no seq is given out twice.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.conftest import Counts
from tests.sampling import amount
from tests.simulated.bucket import SimBucket
from tests.simulated.disk import MUTATING, Crashed, SimDisk
from tests.simulated.replica import ReplicaServer
from topics.errors import TopicsError
from topics.model.records import TagMatch
from topics.storage.replica.start import NotOurs

CLASSES = ("memory", "disk", "fsync", "replicated")


class Client:
    """Writes, and notes what was acknowledged: data by seq for each topic, and seqs whose deletion was asked for."""

    def __init__(self) -> None:
        self.acked: dict[str, dict[int, str]] = {}
        self.deleting: dict[str, set[int]] = {}
        self.dropped: set[str] = set()

    def append(self, server: ReplicaServer, topic: str, *data: str, **config: str) -> None:
        with suppress(TopicsError):
            done = server.append(topic, *data, tag="odd" if len(data) % 2 else "even", **config)
            self.acked.setdefault(topic, {}).update(zip(range(done.first, done.last + 1), data, strict=True))

    def delete(self, server: ReplicaServer, topic: str, before_seq: int) -> None:
        self.deleting.setdefault(topic, set()).update(range(1, before_seq))
        with suppress(TopicsError):
            server.delete(topic, before_seq=before_seq)

    def delete_tag(self, server: ReplicaServer, topic: str, tag: str) -> None:
        self.deleting.setdefault(topic, set()).update(self.acked.get(topic, {}))
        with suppress(TopicsError):
            server.delete(topic, match=TagMatch("Eq", tag))

    def run(self, server: ReplicaServer) -> None:
        """Write to topics of all classes, with checkpoints, deletes, and a topic that goes while it is uploaded."""
        for name in CLASSES:
            self.append(server, name, "1", "2", durability=name)
        server.pass_ms(1_100)
        for number in range(3, 9):
            for name in CLASSES:
                self.append(server, name, str(number))
        server.checkpoint()
        self.append(server, "replicated", '"after the checkpoint"')
        self.delete(server, "replicated", 3)
        self.delete_tag(server, "disk", "even")
        self.append(server, "gone", "1", "2", "3", "4", durability="replicated")
        server.checkpoint()
        self.dropped.add("gone")
        with suppress(TopicsError):
            server.drop("gone")
        server.pass_ms(1_100)
        server.checkpoint()
        for name in CLASSES:
            self.append(server, name, '"last"')

    def check(self, after: ReplicaServer, where: str) -> None:
        for name, acked in self.acked.items():
            if name in self.dropped:
                continue
            if name not in after.engine.topics:
                assert name != "replicated", f"{where}: the topic is missing"
                continue  # it was created after the last upload; a new one has another epoch
            found, gaps = after.by_seq(name), after.walk(name)[1]
            for seq, data in acked.items():
                if seq in self.deleting.get(name, ()):
                    continue
                lost = any(low <= seq <= high and reason == "failover" for low, high, reason in gaps)
                assert found.get(seq) == data or (lost and name != "replicated"), f"{where}: {name} {seq} is {found}"
            first = after.append(name, '"new"').first
            assert first > max(acked), f"{where}: {name} gives out {first} again"
        assert after.append("replicated", '"more"', durability="replicated").first > 0


def play(bucket: SimBucket, disk: SimDisk, client: Client) -> bool:
    """Run the workload. Return whether the process died."""
    try:
        client.run(ReplicaServer.begin(bucket, disk))
    except Crashed:
        return True
    return False


def requests_of_workload() -> int:
    bucket = SimBucket()
    play(bucket, SimDisk(), Client())
    return len(bucket.requests)


def continue_elsewhere(bucket: SimBucket, client: Client, where: str) -> None:
    other = bucket.copy()
    if not any(name.startswith("log/") for name in other.objects):
        return  # nothing has begun
    try:
        after = ReplicaServer.begin(other, host="b")
    except NotOurs:  # there is no checkpoint yet
        assert not client.acked.get("replicated"), f"{where}: acknowledged before the first checkpoint"
        return
    client.check(after, where)


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_request(after: bool, counts: Counts):
    total = requests_of_workload()
    for number in range(total):
        bucket, disk, client = SimBucket(), SimDisk(), Client()
        bucket.crash_at(number, after=after)
        assert play(bucket, disk, client), number
        bucket.heal()
        continue_elsewhere(bucket, client, f"request {number}")
        again = ReplicaServer.begin(bucket, disk.crash("keep"))
        client.check(again, f"request {number}, on the same machine")
    counts(kills=total)


@pytest.mark.parametrize("fault", ["fail", "lose"])
def test_every_request_fails_or_loses_its_answer(fault: str):
    for number in range(6, requests_of_workload()):  # before that, the start is refused
        bucket, client = SimBucket(), Client()
        getattr(bucket, fault)(at=number, times=1)
        server = ReplicaServer.begin(bucket)
        client.run(server)
        bucket.heal()
        server.pass_ms(20_000)
        assert server.state == "following", number
        client.check(server, f"request {number}")
        continue_elsewhere(bucket, client, f"request {number}")


@pytest.mark.parametrize("mode", ["lose", "keep"])
def test_killed_at_file_calls(mode: str, counts: Counts):
    disk = SimDisk()
    play(SimBucket(), disk, Client())
    calls = [call.number for call in disk.calls if call.op in MUTATING]
    chosen = calls[:: max(1, len(calls) // amount(30, len(calls)))]
    for number in chosen:
        bucket, disk, client = SimBucket(), SimDisk(), Client()
        disk.crash_at(number)
        play(bucket, disk, client)
        continue_elsewhere(bucket, client, f"file call {number}")
        again = ReplicaServer.begin(bucket, disk.crash(mode))  # type: ignore[arg-type]
        if mode == "keep":
            client.check(again, f"file call {number}, on the same machine")
    counts(kills=len(chosen))


def test_second_server_between_any_two_requests():
    """The other server starts before a request of the first one. What the first acknowledges then is still true."""
    for number in range(8, requests_of_workload()):
        bucket, client = SimBucket(), Client()
        others: list[ReplicaServer] = []
        before = Client()

        def take_over(op: str, name: str) -> None:
            if len(bucket.requests) - 1 == number and not others:  # noqa: B023
                bucket.before = lambda op, name: None  # noqa: B023
                before.acked = {topic: dict(acked) for topic, acked in client.acked.items()}  # noqa: B023
                with suppress(NotOurs):  # there is no checkpoint yet
                    others.append(ReplicaServer.begin(bucket, host="b"))  # noqa: B023

        bucket.before = take_over
        server = ReplicaServer.begin(bucket)
        client.run(server)
        if not others:
            continue
        [other] = others
        before.deleting, before.dropped = client.deleting, client.dropped
        late = {
            seq for seq in client.acked.get("replicated", {}) if seq not in before.acked.get("replicated", {})
        }  # fmt: skip
        assert not late or server.state != "fenced", f"request {number}: {late} acknowledged after the takeover"
        before.check(other, f"request {number}")


def test_full_local_disk_keeps_the_replica_whole():
    bucket, client = SimBucket(), Client()
    server = ReplicaServer.begin(bucket)
    client.run(server)
    server.fill_log()
    for number in range(20):
        client.append(server, "replicated", str(number))
        client.append(server, "disk", str(number))
        server.checkpoint()
        server.pass_ms(500)
    continue_elsewhere(bucket, client, "full disk")
    server.disk.heal()
    server.pass_ms(2_000)
    client.append(server, "replicated", '"again"')
    continue_elsewhere(bucket, client, "after the full disk")
    assert '"again"' in client.acked["replicated"].values()
