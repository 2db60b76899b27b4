"""Every verb on a disk whose pages are never in the cache: it is answered, and the event loop never waits for a file.

The columns of one segment at most stay in memory, so whatever a verb needs at the same time has to be held for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest

from tests.engine.harness import record
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.engine.consumers.lag import lag_of, rough_age_ms
from topics.engine.queue import verbs
from topics.engine.queue.verbs import Want
from topics.engine.read.read import Query, Reading
from topics.engine.read.scan import Scan
from topics.engine.state.consumers import Consumer
from topics.engine.state.topic import Topic
from topics.engine.state.topics import SegmentLimits
from topics.engine.steps import Steps
from topics.engine.write import archived
from topics.engine.write.commit import Ticket
from topics.model.records import NewRecord, Projection, TagMatch, WriteRequest
from topics.model.router import RouterRequest
from topics.model.topic import ArchiveConfig
from topics.storage.segments.cold import Cold, Hold
from topics.storage.segments.sealed import SealedSegment

T = TypeVar("T")
TOPIC = "t"
SEGMENT = 16
RARE = TagMatch("Eq", "rare")
SEARCHED = TagMatch("Where", '["And", [["tag", "Eq", "rare"], ["data", "Contains", "xx"]]]')
ANY = TagMatch("Where", '["data", "Exists"]')


class Loop:
    """Runs verbs as a server does. `trips` counts how often one had to be loaded for."""

    def __init__(self, server: SimServer) -> None:
        self.server = server
        self.engine = server.engine
        self.trips = 0
        server.store.caches._columns_bytes = 1

    def run(self, work: Callable[[], T], *, between: Callable[[], object] = lambda: None) -> T:
        """The result of `work`; `between` happens after each load, before the work is run again."""
        hold, self.trips = Hold(), 0
        while True:
            try:
                found = self.calm(work)
            except Cold as cold:
                self.trips += 1
                assert self.trips < 200, "loads again and again what it has already loaded"
                hold.load(cold)
                between()
            else:
                hold.release()
                return found

    def calm(self, work: Callable[[], T]) -> T:
        """The result of `work`, which must not read from a segment file and wait for it."""
        before = len(self.server.disk.calls)
        try:
            return work()
        finally:
            waits = [call for call in self.server.disk.calls[before:] if call.op == "pread" and ".seg" in call.path]
            assert not waits, f"the loop waits for a file: {waits}"

    def done(self, verb: Callable[[], Ticket], **options: Any) -> Any:
        """What a verb ends with; taking effect must not wait either."""
        ticket = self.run(verb, **options)
        return self.calm(lambda: self.server.done(ticket))

    def step(self, steps: Steps[T]) -> T:
        """The result of a verb in steps. Only what one trip fetched is in memory for the step after it."""
        self.trips = 0
        hold = Hold()
        while True:
            try:
                cold = self.calm(lambda: next(steps))
            except StopIteration as end:
                result: T = end.value
                return result
            hold.release()
            if cold is not None:
                self.trips += 1
                assert self.trips < 200, "loads again and again what it has already loaded"
                hold = Hold()
                hold.load(cold)

    def deleted(self, steps: Steps[Ticket]) -> Any:
        """What a delete in steps ends with; taking effect must not wait either."""
        ticket = self.step(steps)
        return self.calm(lambda: self.server.done(ticket))

    # --- verbs

    def read(self, name: str = TOPIC, **query: Any) -> Reading:
        return self.run(lambda: self.engine.read(name, Query(**query))[1])

    def walk(self, name: str = TOPIC, **query: Any) -> list[int]:
        """The seqs of all records that a reader meets."""
        found: list[int] = []
        at = 0
        while at < self.engine.topic(name).head:
            reading = self.read(name, from_seq=at, **query)
            found += seqs(reading)
            at = reading.next_from_seq
        return found


def seqs(reading: Reading) -> list[int]:
    return [row["$seq"] for row in msgspec.json.decode(b"[%b]" % b"".join(reading.body()))]


def reopened(server: SimServer) -> Loop:
    """The same server after a restart, with all that it had in files."""
    server.checkpoint()
    return Loop(server.stop())


def filled(records: int = 200, *, rare: int = 40, size: int = 30, **config: Any) -> Loop:
    """A topic in segments of 16; every `rare`-th record has the tag of that name."""
    server = SimServer.start(SimDisk(cold=True), segments=SegmentLimits(max_events=SEGMENT))
    server.put(TOPIC, durability="fsync", **config)
    for first in range(1, records + 1, 8):
        rows = [record(f'"{"x" * size}"', tag="rare" if seq % rare == 0 else f"t{seq}", node=f"n{seq % 3}")
                for seq in range(first, min(first + 8, records + 1))]  # fmt: skip
        server.done(server.engine.append(TOPIC, WriteRequest(rows)))
    return reopened(server)


# --- reads


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 1000},
        {"limit": 1000, "plain": True},
        {"limit": 50, "match": RARE},
        {"limit": 50, "match": SEARCHED},
        {"limit": 1000, "match": SEARCHED, "nodes": frozenset(["n1"])},
        {"limit": 1000, "nodes": frozenset(["n1"])},
        {"limit": 1000, "projection": Projection(tags=True, meta=False)},
        {"limit": 7, "max_bytes": 200},
    ],
)
def test_cold_read_gives_what_a_warm_one_gives(query: dict[str, Any]):
    loop = filled()
    loop.server.disk.cold = False
    warm = loop.walk(**query)
    loop.server.disk.cold = True
    assert loop.walk(**query) == warm
    assert warm


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("misses", range(1, 8))
def test_read_progresses_if_pages_are_cached_while_it_looks(
    plain: bool, misses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reads ahead: what a first look does not find in memory can be there a moment later."""
    loop = filled()
    load = SealedSegment._load
    looks = 0

    def load_and_warm(segment: SealedSegment, *, wait: bool) -> Any:
        nonlocal looks
        looks += 1
        loop.server.disk.cold = looks <= misses
        return load(segment, wait=wait)

    monkeypatch.setattr(SealedSegment, "_load", load_and_warm)
    assert len(seqs(loop.read(limit=2 * SEGMENT, plain=plain))) == 2 * SEGMENT


def test_read_announces_all_cold_pieces_of_its_slice_at_once():
    loop = filled(400, rare=20, size=9000)  # so far apart that each is read on its own
    assert len(seqs(loop.read(limit=1000, match=RARE))) == 20
    assert loop.trips == 2, "one trip for the columns, one for the data"
    loop = reopened(loop.server)
    assert len(seqs(loop.read(limit=1000, max_bytes=8 << 20))) == 400
    assert loop.trips == 1, "where nothing is skipped, columns and data come together"


def test_scan_of_topic_with_nearly_all_deleted_comes_to_its_end():
    loop = filled(600, rare=100)
    live = [seq for seq in range(1, 601) if seq % 100 == 0]
    dead = [seq for seq in range(1, 601) if seq % 100]
    loop.done(lambda: loop.engine.delete_seqs(TOPIC, dead))
    loop = reopened(loop.server)
    scan, found = Scan(Query(), upto_seq=None, slice_bytes=100), []
    while True:
        step = loop.run(lambda: scan.step(lambda query: loop.engine.read(TOPIC, query)))
        found += [slice.run().first for slice in step.slices]
        if step.done:
            break
    assert found == live


def test_read_from_a_time_on_is_answered():
    loop = filled(100)
    middle = loop.engine.topic(TOPIC).segments[3].min_ts
    assert seqs(loop.read(limit=1000, from_ts=middle))


def test_reader_at_a_front_that_moves_all_the_time_is_answered():
    """Each time the records were fetched, a cap has taken the first ones."""
    loop = filled(400, cap_records=400)

    def lose_some() -> None:
        loop.server.done(loop.engine.append(TOPIC, WriteRequest([record() for _ in range(5)])))

    for query in (
        {"limit": 40},
        {"limit": 1000, "match": TagMatch("Glob", "t")},
        {"limit": 1},
        {"plain": True},
        {"match": ANY},
    ):
        found = loop.run(lambda query=query: loop.engine.read(TOPIC, Query(from_seq=0, **query))[1], between=lose_some)
        assert found.count
        assert loop.trips < 6
        assert seqs(found)[0] >= loop.engine.topic(TOPIC).earliest


def test_expired_records_of_cold_segments_go_without_a_wait():
    loop = filled(200, ttl_ms=1000)
    topic = loop.engine.topic(TOPIC)
    loop.done(lambda: loop.engine.delete_seqs(TOPIC, list(range(1, 200, 2))))
    loop = reopened(loop.server)
    loop.server.clock.advance(ms=500)
    loop.server.append(TOPIC, "1")
    loop.server.clock.advance(ms=501)
    reading = loop.read()
    assert reading.tombstone is not None
    assert (reading.tombstone.reason, reading.tombstone.gap_to, seqs(reading)) == ("ttl", 200, [201])
    assert topic.count


@pytest.mark.parametrize("deleted", [[], [1], [3, SEGMENT + 3], list(range(1, 200, 2))])
@pytest.mark.parametrize("cold", [True, False])
def test_scrape_makes_no_file_call(deleted: list[int], cold: bool):
    """A scrape expires at most what a read expires, and what it can without the disk."""
    loop = filled(200, ttl_ms=1000, archive=ArchiveConfig())
    if deleted:
        loop.done(lambda: loop.engine.delete_seqs(TOPIC, deleted))
    loop = reopened(loop.server)
    loop.server.disk.cold = cold
    topic, clock = loop.engine.topic(TOPIC), loop.server.clock
    consumer = Consumer(1, "c", 7, 0)
    topic.archived = 5
    clock.advance(ms=500)
    loop.server.append(TOPIC, "1")
    for _ in range(3):
        clock.advance(ms=251)
        calls, before = len(loop.server.disk.calls), topic.count
        loop.engine.expire_in_memory(topic)
        rough_age_ms(topic, clock.now_ms())
        lag = lag_of(topic, consumer, clock.now_ms(), exact=False)
        standing = archived.standing(topic, clock.now_ms(), exact=False)
        assert len(loop.server.disk.calls) == calls
        assert topic.count <= before
        assert standing is not None
        assert 0 < lag.records <= topic.count
        assert standing.unarchived <= topic.count
    assert topic.earliest <= 201
    if not deleted:
        assert topic.earliest == 201, "whole segments expire by the times in their footers"
    assert seqs(loop.read()) == [201]


def test_one_answer_for_all_while_columns_of_others_are_given_up():
    """Two reads that take turns: each load gives up what the other one loaded, and both come to their end."""
    loop = filled(400, rare=3)
    holds = [Hold(), Hold()]
    queries = [Query(limit=100, match=RARE), Query(limit=100, match=RARE, from_seq=200)]
    found: list[Reading | None] = [None, None]
    for turn in range(40):
        at = turn % 2
        if found[at] is None:
            try:
                found[at] = loop.engine.read(TOPIC, queries[at])[1]
            except Cold as cold:
                holds[at].load(cold)
                loop.server.store.caches.trim()
    assert [reading is not None and reading.count for reading in found] == [100, 67]


# --- deletes


@pytest.mark.parametrize("restarted", [True, False])
def test_delete_by_tag_takes_effect_without_a_wait(restarted: bool):
    loop = filled(300, rare=10)
    if not restarted:
        loop.read(limit=1000)
    assert loop.deleted(loop.engine.delete_records(TOPIC, before_seq=None, match=RARE, dry_run=True)).deleted == 30
    gone = loop.deleted(loop.engine.delete_records(TOPIC, before_seq=151, match=RARE))
    assert (gone.deleted, gone.count) == (15, 285)
    rest = loop.deleted(loop.engine.delete_records(TOPIC, before_seq=None, match=RARE))
    assert (rest.deleted, rest.count) == (15, 270)
    topic = loop.engine.topic(TOPIC)
    assert topic.bytes == sum(segment.live_bytes for segment in topic.segments)
    assert loop.walk(limit=1000) == [seq for seq in range(1, 301) if seq % 10]
    assert reopened(loop.server).walk(limit=1000) == [seq for seq in range(1, 301) if seq % 10]


def test_delete_by_tag_counts_right_after_concurrent_deletes():
    loop = filled(100, rare=5)
    first = loop.step(loop.engine.delete_records(TOPIC, before_seq=None, match=RARE))
    second = loop.step(loop.engine.delete_records(TOPIC, before_seq=None, match=RARE))
    third = loop.run(lambda: loop.engine.delete_seqs(TOPIC, [5, 6, 7]))
    loop.engine.flush()
    assert [ticket.value().deleted for ticket in (first, second, third)] == [20, 0, 2]
    topic = loop.engine.topic(TOPIC)
    assert (topic.count, topic.bytes) == (78, sum(segment.live_bytes for segment in topic.segments))
    assert len(loop.walk(limit=1000)) == 78


def test_deletes_by_seq_take_effect_without_a_wait():
    loop = filled(200)
    wanted = list(range(3, 200, 7))
    assert loop.done(lambda: loop.engine.delete_seqs(TOPIC, wanted, dry_run=True)).deleted == len(wanted)
    assert loop.done(lambda: loop.engine.delete_seqs(TOPIC, wanted)).deleted == len(wanted)
    loop = reopened(loop.server)
    left = [seq for seq in range(1, 201) if seq not in wanted]
    before = loop.deleted(loop.engine.delete_records(TOPIC, before_seq=101, match=None))
    assert before.deleted == len([seq for seq in left if seq <= 100])
    assert loop.walk(limit=1000) == [seq for seq in left if seq > 100]


# --- queues


def jobs(count: int, *, server: SimServer | None = None, **config: Any) -> Loop:
    server = server or SimServer.start(SimDisk(cold=True), segments=SegmentLimits(max_events=SEGMENT))
    server.put(TOPIC, durability="fsync", type="queue", **config)
    for first in range(0, count, 8):
        rows = [
            NewRecord(msgspec.Raw(b'"%b"' % (b"x" * 30)), priority=number % 3) for number in range(first, first + 8)
        ]
        server.done(server.engine.append(TOPIC, WriteRequest(rows)))
    return reopened(server)


def queue(loop: Loop) -> Topic:
    return loop.engine.queues.get(TOPIC)


def claim(loop: Loop, n: int, lease_ms: int = 1000) -> list[int]:
    want = Want(node="w", max=n, lease_ms=lease_ms)
    [claimed], ticket = loop.run(lambda: loop.engine.queues.claim(queue(loop), [want]))
    loop.calm(loop.engine.flush)
    assert ticket is None or ticket.error is None
    return [job.seq for job in claimed.jobs]


def test_claim_and_ack_of_cold_jobs_hand_out_each_once():
    loop = jobs(160)
    handed: list[int] = []
    while got := claim(loop, 30):
        handed += got
        loop.done(lambda got=got: loop.engine.queues.ack(queue(loop), "w", got, None))
    assert sorted(handed) == list(range(1, 161))
    assert queue(loop).count == 0


def test_claim_goes_past_many_held_jobs_in_cold_segments():
    loop = jobs(160)
    first = claim(loop, 150)
    assert len(first) == 150
    server = loop.server.crash("keep")
    loop = Loop(server)  # leases are not durable: all are claimable again
    again = claim(loop, 160)
    assert sorted(again) == list(range(1, 161))


def test_list_of_cold_jobs_is_answered():
    loop = jobs(100)
    rows, more = loop.run(
        lambda: verbs.expire_and_list(queue(loop), state=None, after=0, limit=60, now_ms=loop.server.clock.now_ms())
    )
    assert (len(rows), more) == (60, 60)


def test_redrive_of_cold_dead_letters_returns_all_of_them():
    server = SimServer.start(SimDisk(cold=True), segments=SegmentLimits(max_events=SEGMENT))
    loop = jobs(64, server=server, max_deliveries=1, dead_letter="dead")
    while claim(loop, 16, lease_ms=1):
        loop.server.clock.advance(ms=10)
    assert loop.engine.topic("dead").count == 64
    loop = reopened(loop.server)
    some = [3, 30, 60]
    options: dict[str, Any] = {"dead_letter": None, "match": None, "from_seq": 0, "limit": 1000, "dry_run": False}
    done = loop.done(lambda: loop.engine.queues.dead_letters.redrive(queue(loop), seqs=some, **options))
    assert done.seqs == some
    moved, at = 0, 0
    while True:
        part = loop.done(
            lambda at=at: loop.engine.queues.dead_letters.redrive(queue(loop), seqs=None, **options | {"from_seq": at})
        )
        moved, at = moved + len(part.seqs), part.next_from_seq
        if part.caught_up:
            break
    assert (moved, loop.engine.topic("dead").count, queue(loop).count) == (61, 0, 64)


# --- routers


def route(loop: Loop, **fields: Any) -> None:
    request = RouterRequest(source=TOPIC, dest="copy", from_seq=0, **fields)
    loop.server.done(loop.run(lambda: loop.engine.routers.put("r", request)))


def forward(loop: Loop) -> None:
    while loop.run(lambda: loop.engine.routers.forwarder.run(0)) is not None:
        loop.engine.flush()


@pytest.mark.parametrize("filter", [None, "rare"])
def test_router_forwards_cold_records(filter: str | None):
    loop = filled(300, rare=10)
    route(loop, filter=filter)
    forward(loop)
    expected = 300 if filter is None else 30
    assert len(loop.walk("copy", limit=1000)) == expected


def test_exactly_once_router_finds_its_cold_copies_again():
    loop = filled(200)
    route(loop, guarantee="exactly_once")
    forward(loop)
    loop = reopened(loop.server)
    loop.server.done(loop.engine.routers.drop("r"))
    route(loop, guarantee="exactly_once")
    forward(loop)
    assert loop.engine.topic("copy").count == 200
    assert loop.engine.routers.get("r").lag == 0


def test_router_that_searches_cold_records_copies_those_that_match():
    loop = filled(200, rare=20)
    route(loop, filter=["Where", "data contains 'xx' and tag = 'rare'"])
    forward(loop)
    assert loop.engine.topic("copy").count == 10


@pytest.mark.parametrize("filter", [None, RARE, SEARCHED])
def test_preview_of_a_router_over_cold_records_counts_them(filter: TagMatch | None):
    loop = filled(300, rare=10)
    source = loop.engine.topic(TOPIC)
    found = loop.step(loop.engine.preview(source, filter, from_seq=5, from_ts=None))
    assert (found.scanned, found.matched) == (295, 295 if filter is None else 30)
    assert (found.first, found.last) == ((6, 300) if filter is None else (10, 300))
    assert loop.trips <= len(source.segments) or filter is SEARCHED


def test_feed_that_needs_the_disk_does_not_wait_behind_busy_ones(monkeypatch: pytest.MonkeyPatch):
    """What was loaded for an edge is in memory only for the next run: that one begins with it."""
    loop = filled(100)
    loop.server.put("busy", durability="fsync")
    for name in (f"busy{number}" for number in range(20)):
        loop.server.done(loop.engine.routers.put(name, RouterRequest(source="busy", dest=name)))
    route(loop)
    ticks = itertools.count()
    monkeypatch.setattr(SimClock, "monotonic_ns", lambda self: next(ticks))
    for _ in range(200):
        loop.server.append("busy", "1")
        loop.run(lambda: loop.engine.routers.forwarder.run(1))  # a budget for one step
    assert loop.engine.topic("copy").head > SEGMENT


# --- replay


def test_replayed_deletes_over_cold_segments_match_the_live_server():
    loop = filled(200, rare=10)
    loop.deleted(loop.engine.delete_records(TOPIC, before_seq=None, match=RARE))
    loop.done(lambda: loop.engine.delete_seqs(TOPIC, [1, 101, 199]))
    seen = loop.walk(limit=1000)
    again = Loop(loop.server.crash("keep"))
    assert again.walk(limit=1000) == seen
    assert again.engine.topic(TOPIC).bytes == loop.engine.topic(TOPIC).bytes
