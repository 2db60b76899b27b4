"""Loops end: whatever a client asks for and whatever the disk returns, and each `while` states its bound."""

from __future__ import annotations

import ast
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.queues.harness import Workshop, job, seqs
from tests.simulated.disk import SimDisk
from tests.simulated.draining import drain
from tests.simulated.harness import SimServer
from topics.engine import past_damage
from topics.engine.routers.graph import upstream
from topics.engine.state.topics import SegmentLimits
from topics.engine.write import apply
from topics.errors import Corrupt
from topics.model.records import TagMatch
from topics.model.router import RouterRequest
from topics.storage.log import entry as log
from topics.storage.segments.codec import CHUNK_BYTES, HEADER_BYTES
from topics.storage.segments.sealed import SealedSegment
from topics.storage.segments.segment import Damaged
from topics.storage.worker import INLINE

DEAD = "jobs.dead"
ONE_SEGMENT = SegmentLimits(max_events=1000)


@contextmanager
def ends_within(seconds: int) -> Iterator[None]:
    """Raise `TimeoutError` in a block that runs for longer: an endless loop then fails its test and nothing else."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- every loop states its bound


def loops(package: str) -> Iterator[tuple[str, list[str], ast.While]]:
    for path in sorted((Path(topics.__file__).parent / package).rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.While):
                yield f"{package}/{path.name}:{node.lineno}", text.splitlines(), node


def has_visible_bound(condition: ast.expr) -> bool:
    """Whether the condition compares sizes: `at < end`. The loops of this code move one side towards the other."""
    sized = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    return any(
        isinstance(op, sized) for node in ast.walk(condition) if isinstance(node, ast.Compare) for op in node.ops
    )


@pytest.mark.parametrize("package", ["engine", "server"])
def test_every_while_loop_shows_its_bound_or_a_comment_states_it(package: str):
    found = list(loops(package))
    assert len(found) > 5
    silent = [
        place
        for place, lines, node in found
        if not has_visible_bound(node.test) and "# Bound: " not in lines[node.lineno - 2]
    ]
    assert silent == [], "compare sizes in the condition, or state the bound above it in a comment `# Bound: …`"


# --- redrive


def worn_out(count: int, data: str = "1", **config: Any) -> Workshop:
    """A queue whose jobs have all become dead letters."""
    shop = Workshop(max_deliveries=1, dead_letter=DEAD, **config)
    for _ in range(count):
        shop.write(job(data))
    while got := shop.claim("w", 100):
        shop.nack("w", *seqs(got))
    return shop


@pytest.mark.parametrize("from_seq", [4, 5, 1000, 2**64 - 1])
def test_redrive_past_the_head_moves_nothing_and_returns_the_head(from_seq: int):
    shop = worn_out(3)
    with ends_within(10):
        done = shop.redrive(from_seq=from_seq)
    assert (done.seqs, done.next_from_seq, done.caught_up) == ([], 3, True)


def test_redrive_of_an_empty_or_absent_topic_starts_over_at_zero():
    shop = Workshop(dead_letter=DEAD)
    for _ in range(2):
        with ends_within(10):
            done = shop.redrive(from_seq=1)
        assert (done.seqs, done.next_from_seq, done.caught_up) == ([], 0, True)
        shop.server.put(DEAD)


def test_redrive_of_single_seqs_says_whether_it_examined_all():
    shop = worn_out(4)
    assert shop.redrive(seqs=[0, 4, 2, 2, 9, 2**64], dry_run=True, limit=1).caught_up is False
    done = shop.redrive(seqs=[0, 4, 2, 2, 9, 2**64])
    assert (done.seqs, done.next_from_seq, done.caught_up) == ([2, 4], 4, True)


def test_redrive_moves_no_more_bytes_at_once_than_an_answer_holds():
    shop = worn_out(20, data='"' + "x" * 900_000 + '"')
    moved: list[int] = []
    at, calls, caught_up = 0, 0, False
    while not caught_up:
        done = shop.redrive(from_seq=at)
        assert 0 < len(done.seqs) < 12
        moved += done.seqs
        at, caught_up, calls = done.next_from_seq, done.caught_up, calls + 1
    assert moved == list(range(1, 21))
    assert calls > 1


# --- claims


def test_large_dead_jobs_do_not_block_their_queue():
    shop = Workshop(max_deliveries=1, dead_letter=DEAD)
    for _ in range(12):
        shop.write(job('"' + "x" * 1_000_000 + '"'))
    shop.write("1")
    held = [seq for _ in range(2) for seq in seqs(shop.claim("w", 100))]
    assert held == list(range(1, 14))
    shop.nack("w", *held[:-1])
    shop.write("2")
    assert [one["data"] for one in shop.claim("w", 5)] == [2], "the first pass moves what fits, and hands out the rest"
    shop.claim("w", 5)
    assert (shop.queue.dead_lettered, shop.counts) == (12, (0, 2, 0))


# --- damage


def with_damage_between(kind: str = "log") -> SimServer:
    """A topic `t` of three large records in one segment: the second is deleted, and bytes of it alone are damaged."""
    server = SimServer.start(SimDisk(), segments=ONE_SEGMENT)
    server.put("t", type=kind)
    for letter in "abc":
        server.append("t", '"' + letter * 3 * CHUNK_BYTES + '"', tag=letter)
    server.checkpoint()
    server.delete("t", match=TagMatch("Eq", "b"))
    after = server.stop()
    segment = after.engine.topic("t").segments[0]
    assert isinstance(segment, SealedSegment)
    file = after.disk.open(segment.path, write=True)
    file.pwrite(b"?", HEADER_BYTES + 4 * CHUNK_BYTES)  # the second record lies in chunks 3 to 6
    return after


def test_a_read_around_damaged_bytes_of_a_deleted_record_ends():
    server = with_damage_between()
    with ends_within(10):
        reading = server.read("t", max_bytes=8 << 20)
    assert (reading.count, reading.next_from_seq, reading.tombstone) == (2, 3, None)
    topic = server.engine.topic("t")
    assert (topic.count, list(topic.losses.runs)) == (2, [])
    assert [row[:6] for row in server.data("t")] == ['"aaaaa', '"ccccc']


def test_a_router_copies_around_damaged_bytes_of_a_deleted_record():
    server = with_damage_between()
    with ends_within(10):
        server.done(server.engine.routers.put("r", RouterRequest(source="t", dest="copy", from_seq=0)))
        drain(server.engine)
    assert [row[:6] for row in server.data("copy")] == ['"aaaaa', '"ccccc']
    with ends_within(10):
        after = server.crash("keep")
    assert [row[:6] for row in after.data("copy")] == ['"aaaaa', '"ccccc']


def test_damage_that_costs_nothing_again_and_again_raises():
    server = SimServer.start(SimDisk(), segments=ONE_SEGMENT)
    server.append("t", "1", "2")
    topic = server.engine.topic("t")
    apply.delete(topic, log.Delete(topic.topic_id, 0, None, "", 0, [1]))
    damage = Damaged(topic.segments[0], 0, 1, Corrupt("file", 7, "bad"))

    def look() -> None:
        raise damage

    with ends_within(10), pytest.raises(Corrupt):
        past_damage.read(topic, look)
    assert topic.count == 1


def test_a_thousand_damaged_segments_in_a_row_are_lost_and_reported():
    server = SimServer.start(SimDisk(), segments=SegmentLimits(max_events=1))
    for n in range(1200):
        server.append("t", str(n))
    server = server.stop()
    sealed = [one for one in server.engine.topic("t").segments if isinstance(one, SealedSegment)]
    assert len(sealed) > 1000
    for segment in sealed:
        server.disk.unlink(segment.path)
    server.append("t", '"new"')
    assert server.data("t")[-1:] == ['"new"']
    assert server.engine.topic("t").losses.runs == [(1, len(sealed), "corrupt")]


def test_truncated_cold_file_is_not_copied_for_ever():
    server = SimServer.start(SimDisk(), segments=SegmentLimits(max_events=2))
    for n in range(4):
        server.append("t", str(n))
    server.checkpoint()
    segment = server.engine.topic("t").segments[0]
    assert isinstance(segment, SealedSegment)
    size = server.disk.size(segment.path)

    real_open = server.store.fs.open

    def open_cut(path: str, **options: Any) -> Any:
        opened = real_open(path, **options)
        if path == segment.path:
            opened.size = lambda: size + 10  # the file was longer when its size was asked for
        return opened

    with pytest.MonkeyPatch.context() as patch, ends_within(10):
        patch.setattr(server.store.fs, "open", open_cut)
        with pytest.raises(Corrupt, match="ends here"):
            server.store.dir.copy_file(segment.path, "/data/segments/copy", INLINE)


# --- chains of routers


def chained(length: int, **config: Any) -> SimServer:
    """Topics t0 to tN, each fed by the one before; the routers are made from the end to the beginning."""
    server = SimServer.start(SimDisk(), wal_file_bytes=1 << 20)
    for n in range(length + 1):
        server.put(f"t{n}", **config)
    for n in reversed(range(length)):
        server.done(server.engine.routers.put(f"r{n}", RouterRequest(source=f"t{n}", dest=f"t{n + 1}")))
    return server


def test_a_chain_of_more_routers_than_calls_may_nest_recovers():
    length = sys.getrecursionlimit() + 100
    server = chained(length)
    server.append("t0", "1", "2", "3")
    drain(server.engine)
    server.delete(f"t{length}", before_seq=2)  # pins in the log how far the chain had come
    after = server.crash("keep")
    assert after.data(f"t{length}") == ["2", "3"]
    assert sys.getrecursionlimit() < length


def test_a_chain_of_capped_topics_recovers_however_deep_evictions_nest():
    server = chained(40, cap_records=2)
    for n in range(60):
        server.append("t0", f"{n}", f"{n}")
        drain(server.engine)
    limit = sys.getrecursionlimit()
    depth = len(list(frames()))
    sys.setrecursionlimit(depth + 150)  # stands for a longer chain: seven calls nest per router
    try:
        after = server.crash("keep")
    finally:
        sys.setrecursionlimit(limit)
    assert after.data("t40") == server.data("t40")


def frames() -> Iterator[Any]:
    at = sys._getframe()
    while at is not None:
        yield at
        at = at.f_back  # type: ignore[assignment]


def test_the_way_upstream_ends_where_a_cycle_closes():
    server = SimServer.start(SimDisk())
    for n, (source, dest) in enumerate([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]):
        server.done(server.engine.routers.put(f"r{n}", RouterRequest(source=source, dest=dest, allow_cycle=True)))
    topics_by_name = server.engine.topics
    assert [topic.name for topic in upstream(topics_by_name["d"])] == ["d", "c", "b", "a"]
    cyclic = {router.name: router.edge.cyclic for router in server.engine.routers.table.by_name.values()}
    assert cyclic == {"r0": True, "r1": True, "r2": True, "r3": False}


def test_a_delete_of_seqs_that_no_segment_holds_ends():
    server = SimServer.start(SimDisk())
    server.append("t", "1", "2", "3", "4")
    topic = server.engine.topic("t")
    topic.head += 2  # as if seqs had been set aside and the open segment did not know
    with ends_within(10):
        apply.delete(topic, log.Delete(topic.topic_id, 0, None, "", 0, [2, 5, 6]))
    assert topic.count == 3
    topic.head -= 2
    assert list(server.by_seq("t")) == [1, 3, 4]
