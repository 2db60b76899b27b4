"""Copies after a crash: the same records under the same seqs, whatever had happened and wherever it stopped.

Histories come from a seeded generator. Where the routers had caught up before the crash, the restart must look exactly
like the server before; where they had not, everything that was visible must be unchanged, and more may have come.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

import pytest
from msgspec import Raw

from tests.conftest import Counts
from tests.sampling import SEED, amount
from topics.engine.queue.verbs import Want
from topics.engine.state.topic import leases_of
from topics.engine.steps import run_all
from topics.engine.write.commit import Ticket
from topics.errors import TopicsError
from topics.model.records import NewRecord, TagMatch, WriteRequest
from topics.model.router import RouterRequest
from topics.model.topic import ArchiveConfig, ConfigPatch
from topics.storage.segments.cold import waiting
from topics.testing.clock import SimClock
from topics.testing.disk import MUTATING, SimDisk
from topics.testing.harness import DeferredWorker, SimServer, TopicView
from topics.testing.inode import CrashMode

TOPICS = "abcde"
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
            (2, self.archive), (4, lambda: self.server.engine.routers.forwarder.drain()),
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
        if patch.ttl_ms:
            self.server.engine.commits.sync()
        self.done(waiting(lambda: self.server.engine.put_topic(topic, patch)))

    def archive(self) -> None:
        topic = self.server.engine.topic(self.topic())
        seq = max(topic.head - self.rng.choice([0, 0, 2]), 0)
        self.done(self.server.engine.archives.report(topic.name, seq=seq, epoch=topic.epoch))

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

    def mend(self) -> None:
        self.server.disk.heal()
        self.server.engine.commits.sync()
        for _ in range(3):
            if self.sync is not None:
                self.sync.run_all()
            self.server.tick()
        if self.sync is not None:
            self.sync.run_all()
        assert not self.server.wal.broken

    def delete(self) -> None:
        before = self.rng.choice([None, 2, 5, 9])
        match = None if before else TagMatch("Eq", "x")
        topic = self.topic()
        self.done(run_all(self.server.engine.delete_records(topic, before_seq=before, match=match)))
        self.resolve_deletes(topic)

    def resolve_deletes(self, name: str) -> None:
        """Wait for the log if records can expire before a delete under way takes effect.

        The server reports such records as lost. After a restart they are deleted: a replay applies the delete first.
        """
        topic = self.server.engine.find(name)
        if topic is not None and topic.config.ttl_ms:
            self.server.engine.commits.sync()

    def route(self) -> None:
        rng = self.rng
        source, dest = self.topic(), self.topic()
        request = RouterRequest(
            source=source, dest=dest, filter=rng.choice([None, None, "x"]), allow_cycle=self.cycles,
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
        for edge in table.edges():
            edge.held_until_ms = 0
        server.engine.routers.forwarder.drain()


def looks(server: SimServer) -> dict[str, TopicView]:
    """Return all topics. Whether a TTL or a cap took a record may differ: the log does not say when it was lost."""
    return {
        name: view._replace(losses=tuple(_joined(_alike(view.losses))), tombstones=tuple(_alike(view.tombstones)))
        for name, view in server.view().items()
    }


def _alike(runs: tuple[tuple[int, int, str], ...]) -> Iterator[tuple[int, int, str]]:
    for first, last, reason in runs:
        yield first, last, "evicted" if reason in ("cap", "ttl", "mixed") else reason


def _joined(runs: Iterator[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
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


def play(seed: int, steps: int, *, ring: bool = False, faults: bool = False) -> None:
    world = World(seed, ring=ring, faults=faults)
    for _ in range(steps):
        world.act()
        if world.rng.random() < 0.1:
            for name in list(world.server.engine.topics):
                world.server.engine.find(name)  # a drop under way ends before a look
            before = looks(world.server)
            if world.server.wal.fenced:
                check_unchanged(before, restarted(world.server))
            world.mend()
            drain(world.server)
            before = looks(world.server)
            after = restarted(world.server)
            assert looks(after) == before
            assert forwarded(after) == forwarded(world.server)
            if world.rng.random() < 0.5:
                world.server, world.sync = after, None


@pytest.mark.parametrize("block", range(2))
def test_copies_come_back_with_the_same_seqs_after_any_history(block: int) -> None:
    for seed in range(block * 60, block * 60 + 60):
        try:
            play(SEED * 10_000 + seed, 40)
        except BaseException as error:
            error.add_note(f"seed {SEED * 10_000 + seed}")
            raise


@pytest.mark.parametrize("ring", [False, True])
def test_copies_come_back_with_the_same_seqs_after_calls_have_failed(ring: bool) -> None:
    for seed in range(60):
        try:
            play(SEED * 20_000 + seed, 60, ring=ring, faults=True)
        except BaseException as error:
            error.add_note(f"seed {SEED * 20_000 + seed}, faults")
            raise


def test_copies_on_cycles_keep_their_seqs_after_any_history() -> None:
    for seed in range(60):
        try:
            play(SEED * 10_000 + seed, 60, ring=True)
        except BaseException as error:
            error.add_note(f"seed {SEED * 10_000 + seed}, ring")
            raise


@pytest.mark.parametrize("seed", [7000233, 7000410, 7000488])
def test_a_history_that_once_came_back_different_comes_back_the_same(seed: int) -> None:
    """An edge whose second router overtook the first at a full destination; two cycles of topics with caps."""
    play(seed, 60)


@pytest.mark.torture
@pytest.mark.parametrize("block", range(12))
@pytest.mark.parametrize("ring", [False, True])
def test_copies_come_back_with_the_same_seqs_after_many_histories(ring: bool, block: int, counts: Counts) -> None:
    for seed in range(250 * block, 250 * block + amount(40, 250)):
        try:
            play(SEED * 1_000_000 + seed, 60, ring=ring, faults=bool(block % 2))
        except BaseException as error:
            error.add_note(f"seed {SEED * 1_000_000 + seed}")
            raise
    counts(f"in block {block} (seed {SEED})", histories=amount(40, 250))


# --- ephemeral topics


class Reader:
    """Remembers every record that was ever shown, by topic, epoch and seq."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], dict[bytes, bytes]] = {}

    def look(self, server: SimServer) -> dict[str, TopicView]:
        """All topics, after a check that no seq was given to two records."""
        found = looks(server)
        for name, view in found.items():
            seen = self.seen.setdefault((name, view.epoch), {})
            for row in view.records:
                assert seen.setdefault(row.split(b",", 1)[0], row) == row, f"{name}: a seq was given out twice"
        return found


def check_kept(before: dict[str, TopicView], after: dict[str, TopicView]) -> None:
    """A topic that is kept has what it had. What comes behind is the report of what was lost with ephemeral topics."""
    assert before.keys() == after.keys()
    for name, was in before.items():
        view = after[name]
        assert view.config == was.config
        assert view.head >= was.head
        if was.config.durability == "ephemeral":
            assert view.records == ()
            continue
        assert view.records == was.records, name
        known = [run for run in view.losses if run[1] <= was.head]
        cut = [(low, min(high, was.head), why) for low, high, why in view.losses if low <= was.head < high]
        assert list(_joined(iter([*known, *cut]))) == list(was.losses), name
        assert {why for _, high, why in view.losses if high > was.head} <= {"source_trim"}, name


def play_ephemeral(seed: int, steps: int, *, ring: bool = False) -> None:
    """Killed in the middle, a topic shows nothing else than before; killed at rest, it has all that it had."""
    world = World(seed, ring=ring, classes=("disk", "fsync", "ephemeral", "ephemeral"))
    reader = Reader()
    for _ in range(steps):
        world.act()
        if world.rng.random() < 0.15:
            before = reader.look(world.server)
            killed = restarted(world.server)
            found = looks(killed)
            for name, view in found.items():
                assert view.head >= before[name].head
            drain(world.server)
            before = reader.look(world.server)
            after = restarted(world.server)
            check_kept(before, looks(after))
            assert looks(restarted(after)) == looks(after), "a second start finds something else"
            if world.rng.random() < 0.5:
                world.server = after
                reader.look(after)


@pytest.mark.parametrize("ring", [False, True])
def test_no_seq_comes_twice_where_routers_meet_ephemeral_topics(ring: bool) -> None:
    for seed in range(30):
        try:
            play_ephemeral(SEED * 10_000 + seed, 40, ring=ring)
        except BaseException as error:
            error.add_note(f"seed {SEED * 10_000 + seed}")
            raise


@pytest.mark.torture
@pytest.mark.parametrize("block", range(6))
@pytest.mark.parametrize("ring", [False, True])
def test_no_seq_comes_twice_in_many_histories_with_ephemeral_topics(ring: bool, block: int, counts: Counts) -> None:
    for seed in range(250 * block, 250 * block + amount(40, 250)):
        try:
            play_ephemeral(SEED * 1_000_000 + seed, 60, ring=ring)
        except BaseException as error:
            error.add_note(f"seed {SEED * 1_000_000 + seed}")
            raise
    counts(f"with ephemeral topics in block {block} (seed {SEED})", histories=amount(40, 250))


# --- every file call


class Film(SimDisk):
    """Keeps a copy of itself from before every call that changes something."""

    on_call: Callable[[SimDisk], None] | None = None

    def _call(self, op: str, path: str, work: Callable[[], T], fail: Callable[[bool], None] | None = None) -> T:
        if self.on_call is not None and op in MUTATING:
            self.on_call(self.clone())
        return super()._call(op, path, work, fail)


def scene(server: SimServer) -> Iterator[None]:
    """Appends, forwards and cursors in every order that matters, with a chain, a filter and a direct write."""
    routers = server.engine.routers
    server.put("a", durability="fsync")
    server.put("b", durability="fsync")
    yield
    server.done(routers.put("ab", RouterRequest(source="a", dest="b")))
    server.done(routers.put("bc", RouterRequest(source="b", dest="c", filter="x", guarantee="exactly_once")))
    yield
    server.append("a", "1", "2", tag="x")
    yield
    routers.forwarder.drain()
    yield
    server.append("b", '"direct"', tag="x")
    server.append("a", "3")
    yield
    server.delete("a", match=TagMatch("Eq", "x"))
    routers.forwarder.drain()
    yield
    server.checkpoint()
    server.append("a", "4", "5", tag="x")
    server.delete("b", before_seq=3)
    yield
    routers.forwarder.drain()
    server.put("a", durability="fsync", cap_records=2)
    server.append("a", "6", "7", tag="x")
    yield
    routers.forwarder.drain()
    server.done(routers.drop("bc"))
    server.append("a", "8")
    routers.forwarder.drain()
    yield


MODES: list[CrashMode] = ["keep", "lose", "tear", "reorder", "zero"]


@pytest.mark.parametrize("mode", MODES)
def test_copies_agree_with_their_source_after_any_crash(mode: CrashMode) -> None:
    disk = Film(seed=SEED)
    moments: list[SimDisk] = []
    server = SimServer.start(disk)
    disk.on_call = moments.append
    for _ in scene(server):
        moments.append(disk.clone())
    disk.on_call = None
    for at, moment in enumerate(moments):
        try:
            check_copies(SimServer(moment, clock=SimClock(server.clock.now_ms())).crash(mode))
        except BaseException as error:
            error.add_note(f"seed {SEED}, moment {at} of {len(moments)}, {mode}")
            raise


def check_copies(after: SimServer) -> None:
    """The source is `fsync`: every record that it still has was copied exactly once, in order."""
    engine = after.engine
    engine.routers.forwarder.drain()
    if "ab" in engine.routers.table.by_name:
        assert engine.routers.get("ab").lag == 0
        source, copies = after.data("a"), [data for data in after.data("b") if data != '"direct"']
        assert copies == sorted(copies) == sorted(set(copies)), "in order, and none twice"
        assert set(source) <= set(copies) | {"1", "2"}, "what is there was forwarded, or went with b's own delete"
    found = after.view()
    again = after.crash("keep")
    again.engine.routers.forwarder.drain()
    assert again.view() == found


def ring(server: SimServer) -> Iterator[None]:
    """Three topics in a circle, two of them with bounds, written to on all sides, opened and closed again."""
    routers = server.engine.routers
    server.put("a", durability="fsync")
    server.put("b", durability="fsync", cap_records=4)
    server.put("c", durability="fsync", cap_bytes=150)
    circle = ["ab", "bc", "ca"]
    for pair in circle:
        server.done(routers.put(pair, RouterRequest(source=pair[0], dest=pair[1], allow_cycle=True)))
    yield
    for number in range(3):
        for name in "abc":
            server.append(name, str(number), f'"{name}{number}"')
        yield
        routers.forwarder.drain()
        yield
    server.checkpoint()
    server.append("b", "7")
    server.put("a", durability="fsync", cap_records=3)
    routers.forwarder.drain()
    yield
    server.done(routers.drop("ca"))
    server.append("a", "8")
    routers.forwarder.drain()
    yield
    server.done(routers.put("ca", RouterRequest(source="c", dest="a", allow_cycle=True, guarantee="exactly_once")))
    server.append("c", "9")
    routers.forwarder.drain()
    yield


@pytest.mark.parametrize("mode", MODES)
def test_records_on_a_cycle_keep_their_seqs_after_any_crash(mode: CrashMode) -> None:
    disk = Film(seed=SEED)
    server = SimServer.start(disk)
    seen: dict[str, TopicView] = {}
    moments: list[tuple[SimDisk, dict[str, TopicView]]] = []
    disk.on_call = lambda copy: moments.append((copy, seen))
    for _ in ring(server):
        seen = looks(server)
        moments.append((disk.clone(), seen))
    disk.on_call = None
    for at, (moment, before) in enumerate(moments):
        try:
            after = SimServer(moment, clock=SimClock(server.clock.now_ms())).crash(mode)
            check_unchanged({**looks(after), **before}, after)
            after.engine.routers.forwarder.drain()
            check_unchanged({**looks(after), **before}, after)
            found = looks(after)
            assert looks(after.crash("keep")) == found
            if mode in ("keep", "lose", "tear"):
                reasons = {run[2] for view in found.values() for run in view.losses}
                assert reasons <= {"evicted", "source_trim"}
        except BaseException as error:
            error.add_note(f"seed {SEED}, moment {at} of {len(moments)}, {mode}")
            raise
