"""Random histories of routers, and comparisons of a server before and after a restart."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

from msgspec import Raw

from tests.simulated import draining
from tests.simulated.disk import MUTATING, SimDisk
from tests.simulated.harness import DeferredWorker, SimServer, TopicView
from topics.engine.queue.verbs import Want
from topics.engine.state.topic import leases_of
from topics.engine.steps import run_all
from topics.engine.write.commit import Halted, Ticket
from topics.errors import TopicsError
from topics.model.records import NewRecord, TagMatch, WriteRequest
from topics.model.router import RouterRequest
from topics.model.topic import ArchiveConfig, ConfigPatch
from topics.storage.segments.cold import waiting

TOPICS = "abcde"
FILTERS = [None, None, "x", ["data", "Glob", "*1*x"]]
T = TypeVar("T")


class World:
    """A server and a random hand on it. With `faults`, calls of the disk fail, too, and the log's thread is slow."""

    def __init__(
        self,
        seed: int,
        *,
        ring: bool,
        faults: bool = False,
        classes: Sequence[str] = ("disk", "fsync", "memory"),
    ) -> None:
        self.rng = Random(seed)
        self.classes = classes
        self.topics = TOPICS[:3] if ring else TOPICS  # so few that most routers close a cycle
        self.sync = DeferredWorker() if faults and seed % 5 else None
        self.server = SimServer.start(SimDisk(seed=seed, cold=seed % 2 == 1), sync_worker=self.sync)
        self.faults = faults
        self.written = 0
        self.cycles = ring or seed % 3 == 0
        self.queue = seed % 2
        if self.queue:
            leases_durable = seed % 4 > 1
            patch = ConfigPatch(type="queue", max_deliveries=1, dead_letter="b", leases_durable=leases_durable)
            self.done(self.server.engine.put_topic("a", patch))

    def act(self) -> None:
        verbs: list[tuple[int, Callable[[], object]]] = [
            (8, self.append), (2, self.configure), (2, self.delete), (3, self.route), (1, self.unroute), (1, self.drop),
            (2, self.archive), (4, lambda: draining.drain(self.server.engine)),
            (1, self.checkpoint), (1, self.begin_checkpoint),
            (2, lambda: self.server.clock.advance(ms=self.rng.choice([1, 30, 50, 101]))),
            (self.queue * 5, self.claim), (self.queue, self.finish), (self.queue, self.redrive),
            (2 * self.faults, self.fail), (2 * self.faults, self.mend), (6 * (self.sync is not None), self.work),
        ]  # fmt: skip
        [verb] = self.rng.choices([verb for _, verb in verbs], [weight for weight, _ in verbs])
        try:
            verb()
        except TopicsError:
            pass  # what is refused leaves no trace

    def checkpoint(self) -> None:
        self.server.steps.release()
        self.server.checkpoint()

    def begin_checkpoint(self) -> None:
        """Begin a checkpoint that captures the rest of the topics after some of the verbs that follow."""
        self.server.begin_checkpoint(topics=self.rng.choice([0, 1, 3]))

    def append(self) -> None:
        rng = self.rng
        records = []
        for _ in range(rng.randint(1, 5)):
            self.written += 1
            # Some are larger than what some topics may hold.
            data = Raw(b'"%d%b"' % (self.written, b"x" * rng.choice([0, 0, 0, 0, 60, 300])))
            records.append(NewRecord(data, rng.choice([None, "x", "y"]), rng.choice([None, "n1"])))
        topic = self.topic()
        self.done(waiting(lambda: self.server.engine.append(topic, WriteRequest(records))))

    def done(self, ticket: Ticket) -> None:
        """End the turn. Where the log's thread is slow, the answer comes later."""
        if self.sync is None:
            self.server.done(ticket)
        else:
            self.server.engine.flush()

    def work(self) -> None:
        assert self.sync is not None
        if self.rng.random() < 0.3:
            self.sync.work()
        else:
            self.sync.run(self.rng.choice([1, 2, 5]))
        if self.rng.random() < 0.3:
            self.server.tick()
        waiting(lambda: self.server.engine.routers.forwarder.run(0))

    def configure(self) -> None:
        rng = self.rng
        bounds: dict[str, Any] = {
            "cap_records": rng.choice([0, 0, 3, 8]),
            "cap_bytes": rng.choice([0, 0, 0, 200]),
            "discard": rng.choice(["old", "old", "reject"]),
            "ttl_ms": rng.choice([0, 0, 40]),
            "archive": rng.choice([None, None, ArchiveConfig(hold=True)]),
        }
        patch = ConfigPatch(durability=rng.choice(self.classes), **bounds)
        topic = self.topic()
        self.done(waiting(lambda: self.server.engine.put_topic(topic, patch)))

    def archive(self) -> None:
        topic = self.server.engine.topic(self.topic())
        seq = max(topic.head - self.rng.choice([0, 0, 2]), 0)
        self.done(self.server.engine.report_archived(topic.name, seq=seq, epoch=topic.epoch))

    def claim(self) -> None:
        """Jobs of the queue, if there is one, go to a worker; those delivered too often go to the dead letters."""
        topic = self.server.engine.queues.get("a")
        waiting(
            lambda: self.server.engine.queues.claim(topic, [Want(node="w", max=self.rng.choice([1, 3]), lease_ms=25)])
        )
        self.server.engine.flush()

    def finish(self) -> None:
        engine, rng = self.server.engine, self.rng
        topic = engine.queues.get("a")
        seqs = sorted(leases_of(topic).leases)[: rng.choice([1, 2])]
        if seqs and rng.random() < 0.6:
            self.done(waiting(lambda: engine.queues.ack(topic, "w", seqs, None)))
        elif seqs:
            delay_ms = rng.choice([0, 20])
            self.done(waiting(lambda: engine.queues.nack(topic, "w", seqs, None, delay_ms=delay_ms)))

    def redrive(self) -> None:
        engine = self.server.engine
        topic = engine.queues.get("a")
        self.done(
            waiting(
                lambda: engine.queues.dead_letters.redrive(
                    topic, dead_letter=None, match=None, seqs=None, from_seq=0, limit=2, dry_run=False
                )
            )
        )

    def fail(self) -> None:
        disk, rng = self.server.disk, self.rng
        op = rng.choice(["pwrite", "pwrite", "datasync", "datasync", "sync", "allocate", "rename", "sync_dir", "open"])
        path = "*.tmp" if op == "open" else None
        error, times = rng.choice([errno.EIO, errno.ENOSPC]), rng.choice([1, 2, 5])
        disk.fail(at=len(disk.calls), op=op, path=path, error=error, times=times, short=rng.random() < 0.5)

    def restart_if_halted(self, act: Callable[[], object]) -> None:
        """Start the server again if it ends because a call fails."""
        try:
            act()
        except Halted:
            self.server.disk.heal()
            self.server, self.sync = self.server.crash("keep"), None

    def end_drops(self) -> None:
        for name in list(self.server.engine.topics):
            self.server.engine.find(name)

    def mend(self) -> None:
        self.server.disk.heal()
        for _ in range(2):  # a sync may have failed that was not reported
            self.restart_if_halted(self._settle)

    def _settle(self) -> None:
        self.server.engine.commits.sync()
        for _ in range(3):
            if self.sync is not None:
                self.sync.run_all()
            self.server.tick()
        if self.sync is not None:
            self.sync.run_all()
        assert self.server.wal.read_only is None

    def delete(self) -> None:
        before = self.rng.choice([None, 2, 5, 9])
        match = None if before else TagMatch("Eq", "x")
        topic = self.topic()
        self.done(run_all(self.server.engine.delete_records(topic, before_seq=before, match=match)))

    def route(self) -> None:
        rng = self.rng
        source, dest = self.topic(), self.topic()
        request = RouterRequest(
            source=source, dest=dest, filter=rng.choice(FILTERS), allow_cycle=self.cycles,
            preserve_node=rng.random() < 0.8, guarantee=rng.choice(["at_least_once", "exactly_once"]),
            from_seq=rng.choice([None, 0, 2]),
        )  # fmt: skip
        self.done(self.server.engine.routers.put(rng.choice(["r1", "r2", "r3", f"{source}->{dest}"]), request))

    def unroute(self) -> None:
        self.done(self.server.engine.routers.drop(self.rng.choice(["r1", "r2", "r3"])))

    def drop(self) -> None:
        if self.rng.random() < 0.3:
            topic = self.topic()
            self.done(waiting(lambda: self.server.engine.drop_topic(topic)))

    def topic(self) -> str:
        return self.rng.choice(self.topics)


def restarted(server: SimServer) -> SimServer:
    """What a kill of the process at this moment leaves, while the server itself goes on."""
    after = server.next(server.disk.clone().crash("keep"))
    after.clock.set(ms=server.clock.now_ms())
    return after


def drain(server: SimServer) -> None:
    """Forwards what can be. A restart tries a full destination at once, so no backoff is waited for here."""
    table = server.engine.routers.table
    before: list[int] | None = None
    while before != (now := [router.cursor for router in table.by_id.values()]):
        before = now
        for edge in table.edges.values():
            edge.held_until_ms = 0
        draining.drain(server.engine)


def looks(server: SimServer) -> dict[str, TopicView]:
    """Return all topics. Whether a TTL or a cap took a record may differ: the log does not say when it was lost."""
    return {
        name: view._replace(losses=tuple(joined(_alike(view.losses))), tombstones=tuple(_alike(view.tombstones)))
        for name, view in server.view().items()
    }


def _alike(runs: tuple[tuple[int, int, str], ...]) -> Iterator[tuple[int, int, str]]:
    for first, last, reason in runs:
        yield first, last, "evicted" if reason in ("cap", "ttl", "mixed") else reason


def joined(runs: Iterator[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """Neighbours with one reason as one: how they came about does not matter."""
    last: tuple[int, int, str] | None = None
    for first, end, reason in runs:
        if last is not None and (last[1] + 1, last[2]) == (first, reason):
            last = (last[0], end, reason)
        else:
            if last is not None:
                yield last
            last = (first, end, reason)
    if last is not None:
        yield last


def forwarded(server: SimServer) -> dict[str, int]:
    return {name: router.forwarded_total for name, router in server.engine.routers.table.by_name.items()}


def check_unchanged(before: dict[str, TopicView], after: SimServer) -> None:
    """Every record that was visible is the same or is gone for a reason, and no watermark went back."""
    for name, view in looks(after).items():
        if (was := before.get(name)) is None:
            continue  # its creation was not answered yet
        rows = {row.split(b",", 1)[0]: row for row in view.records}
        for row in was.records:
            assert rows.get(row.split(b",", 1)[0], row) == row
        assert (view.head >= was.head, view.earliest >= was.earliest, view.evict_floor >= was.evict_floor) == (
            True,
        ) * 3


class Film(SimDisk):
    """Keeps a copy of itself from before every call that changes something."""

    on_call: Callable[[SimDisk], None] | None = None

    def _call(self, op: str, path: str, work: Callable[[], T], fail: Callable[[bool], None] | None = None) -> T:
        if self.on_call is not None and op in MUTATING:
            self.on_call(self.clone())
        return super()._call(op, path, work, fail)
