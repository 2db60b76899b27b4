"""Random histories with a standby: after every turn it shows what the writer and the model show.

Topics with caps, TTLs, deletes, idempotency keys, archives and consumers; routers, also on cycles and into full topics;
queues with durable leases and dead letters. Writers stop, are killed, and are continued elsewhere.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults import test_replica_histories as replicas
from tests.faults.test_histories import Turn, examples, seeds, turns_of, verbs
from tests.queues import test_histories as queues
from tests.queues.harness import Workshop
from tests.reference.oracle_router import RouterOracle
from tests.routers import test_histories as routers
from tests.sampling import amount
from tests.simulated.bucket import SimBucket
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from tests.simulated.replica import ReplicaServer
from tests.simulated.standby import SimStandby
from topics.engine.queue.verbs import expire_and_list
from topics.storage.segments.cold import waiting


class Follows:
    """A standby of a server with a replica."""

    def __init__(self, bucket: SimBucket) -> None:
        self._bucket = bucket
        self.standby: SimStandby | None = None

    def compare(self, server: SimServer) -> SimStandby:
        """Upload everything, let the standby follow, and compare what both show. Return the standby."""
        assert isinstance(server, ReplicaServer)
        server.upload()
        if self.standby is None:
            self.standby = SimStandby.begin(self._bucket, clock=server.clock, save_bytes=300, takes_over=False)
        self.standby.follow()
        if self.standby.must_load:
            self.standby = self.standby.loaded_again(save_bytes=300, takes_over=False)
            self.standby.follow()
        self.standby.engine.clock.as_of_ms = server.clock.now_ms()  # type: ignore[attr-defined]  # all is uploaded
        shown, wanted = self.standby.view(), server.view()
        assert shown == wanted, f"{shown}\nis not\n{wanted}"
        return self.standby


class StandbyPair(replicas.ReplicaPair):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.follows = Follows(self.bucket)

    def play(self, turn: Turn) -> None:
        super().play(turn)
        standby, server = self.follows.compare(self.server), self.server
        self.server = standby
        self.compare([self.oracle])
        self.server = server


@examples(amount(40, 2_000))
@given(st.lists(turns_of(verbs, st.none() | st.integers(0, 30)), max_size=10), seeds)
def test_standby_matches_the_model_after_every_turn(history: list[Turn], seed: int) -> None:
    pair = StandbyPair(seed)
    for turn in history:
        pair.play(turn)


class RouterPair(routers.Pair):
    def __init__(self) -> None:
        bucket = SimBucket()
        self.server = ReplicaServer.begin(bucket)
        self.oracle = RouterOracle(self.server.clock)
        self.follows = Follows(bucket)

    def compare(self) -> None:
        super().compare()
        standby, server = self.follows.compare(self.server), self.server
        self.server = standby
        super().compare()
        self.server = server


@settings(
    max_examples=amount(50, 2_000), deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(st.lists(routers.verbs, min_size=1, max_size=20), st.integers(0, 20))
def test_standby_makes_the_same_copies(history: list[tuple[Any, ...]], checkpoint_at: int) -> None:
    pair = RouterPair()
    for at, verb in enumerate(history):
        pair.play(verb)
        if at == checkpoint_at:
            pair.server.checkpoint()


class QueuePair(queues.Pair):
    def __init__(self, config: dict[str, Any]) -> None:
        bucket = SimBucket()
        server = ReplicaServer.begin(bucket, SimDisk())
        self.config = config
        self.shop = Workshop(server, durability="fsync", **config)
        self.model = self.new_model()
        self.got = []
        self.follows = Follows(bucket)

    def compare(self) -> None:
        super().compare()
        server = self.shop.server
        standby = self.follows.compare(server)
        now_ms = server.clock.now_ms()
        for name, topic in server.engine.topics.items():
            if topic.queue is not None:
                assert _jobs(standby, name, now_ms) == _jobs(server, name, now_ms)


def _jobs(server: SimServer, name: str, now_ms: int) -> tuple[Any, ...]:
    topic = server.engine.topic(name)
    rows, _ = waiting(lambda: expire_and_list(topic, state=None, after=0, limit=100, now_ms=now_ms))
    queue = topic.queue
    assert queue is not None
    return [msgspec.json.decode(row) for row in rows], queue.ready, queue.in_flight, queue.delayed, queue.dead_lettered


queue_steps = st.lists(
    st.one_of(
        queues.write, queues.write, queues.claim, queues.claim, queues.ack, queues.ack, queues.nack, queues.extend,
        queues.time, queues.time, queues.trim, queues.step("checkpoint"),
    ),
    min_size=1, max_size=30,
)  # fmt: skip


@settings(max_examples=amount(50, 2_000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(queue_steps, queues.configs)
def test_standby_has_the_same_leases(history: list[queues.Step], config: dict[str, Any]) -> None:
    pair = QueuePair(config | {"leases_durable": True})
    for one in history:
        pair.play(one)
