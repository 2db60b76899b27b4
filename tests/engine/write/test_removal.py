"""Deletes by tag in steps: whatever happens between two steps, the delete takes what it would take at once."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest

from tests.engine.harness import Sealer, append, delete, done, open_engine, put, read, record, seqs, waiting, write
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from topics.engine.engine import Engine
from topics.engine.queue.verbs import Want
from topics.engine.state.topics import SegmentLimits
from topics.engine.steps import Steps
from topics.engine.write.commit import Ticket
from topics.errors import Code, TopicsError
from topics.model.records import TagMatch
from topics.storage.segments.cold import Hold
from topics.storage.segments.sealed import SealedSegment
from topics.storage.segments.segment import MemorySegment

T = TypeVar("T")
TAGS = ["a:1", "a:2", "b", None]
MATCHES = [TagMatch("Glob", "a:"), TagMatch("Eq", "b"), TagMatch("Glob", "")]
ALL = TagMatch("Glob", "")


def live(engine: Engine) -> dict[int, str | None]:
    """Live seqs with their tags."""
    found: dict[int, str | None] = {}
    for segment in engine.topic("t").segments:
        columns, marks = waiting(lambda segment=segment: (segment.columns, segment.marks))
        for at in range(segment.count):
            seq = segment.first + at
            if seq >= engine.topic("t").earliest and not (marks and marks[at]):
                found[seq] = columns.tag_at(at)
    return found


def fill(engine: Engine, dice: random.Random, count: int) -> None:
    for _ in range(count):
        append(engine, "t", record(tag=dice.choice(TAGS)))


def result(steps: Steps[T], between: Callable[[], object] = lambda: None) -> T:
    """Run the steps as a server does: what one trip to the disk fetched is in memory for the next step only."""
    hold = Hold()
    for _ in range(1000):
        try:
            cold = next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        hold.release()
        if cold is not None:
            hold = Hold()
            hold.load(cold)
        between()
    raise AssertionError("the steps have no end")


def delete_steps(engine: Engine, match: TagMatch, *, before_seq: int | None = None, **options: Any) -> Steps[Ticket]:
    return engine.delete_records("t", before_seq=before_seq, match=match, **options)


def test_delete_takes_records_of_a_segment_that_grows_between_its_steps() -> None:
    engine = open_engine(SimClock())
    append(engine, "t", record(tag="b"), record(tag="c"))
    engine.append("t", write(record(tag="b"), record(tag="b")))  # has its seqs, and is not there yet
    steps = delete_steps(engine, TagMatch("Eq", "b"))
    ticket = result(steps, between=engine.flush)
    assert done(engine, ticket).deleted == 3
    assert live(engine) == {2: "c"}


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", ["log", "queue"])
def test_delete_in_steps_takes_what_it_would_take_at_once(seed: int, kind: str) -> None:
    dice = random.Random(seed)
    clock = SimClock()
    engine = open_engine(clock)
    put(engine, "t", type=kind, cap_records=dice.choice([0, 50]), ttl_ms=dice.choice([0, 5_000]))
    sealer = Sealer(SimDisk(cold=seed % 2 == 0))
    fill(engine, dice, 40)
    topic = engine.topic("t")
    if dice.random() < 0.5:
        sealer.seal(topic)
        sealer.reopen(topic)

    def between() -> None:
        for _ in range(dice.randint(0, 2)):
            dice.choice(
                [
                    lambda: fill(engine, dice, dice.randint(1, 6)),
                    lambda: delete(engine, "t", match=dice.choice(MATCHES), before_seq=dice.randint(1, 40)),
                    lambda: delete(engine, "t", before_seq=dice.randint(1, 30)),
                    lambda: sealer.seal(topic),
                    lambda: sealer.reopen(topic),
                    lambda: clock.advance(ms=dice.randint(0, 2_000)),
                    lambda: engine.expire(topic),
                ]
            )()

    match, before = dice.choice(MATCHES), dice.choice([None, dice.randint(1, 45)])
    bound = topic.next_seq if before is None else min(before, topic.next_seq)
    ticket = result(delete_steps(engine, match, before_seq=before), between)
    engine.expire(topic)
    expected = {seq: tag for seq, tag in live(engine).items() if seq >= bound or not match.covers(tag)}
    gone = done(engine, ticket)
    assert live(engine) == expected
    assert (gone.count, topic.count) == (len(expected), len(expected))
    assert topic.bytes == sum(
        len(waiting(partial(segment.read, at, at + 1))) for seq in expected for segment, at in [place(engine, seq)]
    )
    assert seqs(read(engine, "t", from_seq=topic.earliest - 1, limit=1000)) == sorted(expected)


def place(engine: Engine, seq: int) -> Any:
    topic = engine.topic("t")
    segment = topic.segments[topic.index_of(seq)]
    return segment, seq - segment.first


def test_delete_in_steps_takes_effect_at_once_after_the_last_step() -> None:
    engine = open_engine()
    fill(engine, random.Random(1), 40)
    before = live(engine)
    seen = []
    ticket = result(delete_steps(engine, ALL), lambda: seen.append(live(engine)))
    assert len(seen) >= 9
    assert all(one == before for one in seen)
    done(engine, ticket)
    assert live(engine) == {seq: None for seq, tag in before.items() if tag is None}


def test_dry_run_in_steps_counts_and_deletes_nothing() -> None:
    engine = open_engine()
    fill(engine, random.Random(2), 40)
    before = live(engine)
    ticket = result(delete_steps(engine, ALL, before_seq=30, dry_run=True))
    assert ticket.value().deleted == sum(tag is not None for seq, tag in before.items() if seq < 30)
    assert live(engine) == before


def test_leases_of_deleted_jobs_are_forgotten() -> None:
    engine = open_engine()
    put(engine, "t", type="queue")
    fill(engine, random.Random(3), 40)
    engine.queues.claim(engine.topic("t"), [Want(node="w", max=30, lease_ms=30_000)])
    done(engine, result(delete_steps(engine, ALL)))
    queue = engine.topic("t").queue
    assert queue is not None
    assert set(queue.leases) == {seq for seq in live(engine) if seq <= 30}
    assert queue.ready + queue.in_flight == engine.topic("t").count


def test_topic_dropped_between_two_steps_is_not_found() -> None:
    engine = open_engine()
    fill(engine, random.Random(4), 40)
    steps = delete_steps(engine, ALL)
    next(steps)
    done(engine, engine.drop_topic("t"))
    append(engine, "t", record(tag="a:1"))
    with pytest.raises(TopicsError) as refused:
        result(steps)
    assert refused.value.code is Code.TOPIC_NOT_FOUND
    assert len(live(engine)) == 1


def test_delete_takes_effect_without_a_look_at_closed_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(segments=SegmentLimits(max_events=100))
    for _ in range(10):
        append(engine, "t", *[record(tag="x")] * 100)
    ticket = result(delete_steps(engine, ALL))
    for segment in engine.topic("t").segments[:-1]:
        assert isinstance(segment, MemorySegment)
        monkeypatch.setattr(segment, "columns", None)
    assert done(engine, ticket).deleted == 1000


def test_delete_in_steps_takes_records_under_way_when_it_began() -> None:
    engine = open_engine()
    fill(engine, random.Random(5), 30)
    engine.append("t", write(record(tag="a:1")))
    done(engine, result(delete_steps(engine, ALL)))
    assert set(live(engine).values()) <= {None}


def test_segment_sealed_after_the_last_step_is_not_looked_at_again() -> None:
    disk = SimDisk(cold=True)
    engine, sealer = open_engine(), Sealer(disk)
    for _ in range(40):
        append(engine, "t", record(tag="x"))
    ticket = result(delete_steps(engine, ALL))
    sealer.seal(engine.topic("t"))
    before = len(disk.calls)
    assert done(engine, ticket).deleted == 40
    assert [call for call in disk.calls[before:] if call.op == "pread"] == []


def test_damaged_segment_is_lost_and_the_rest_deleted() -> None:
    engine, sealer = open_engine(), Sealer()
    for _ in range(40):
        append(engine, "t", record(tag="x"))
    topic = engine.topic("t")
    sealer.seal(topic)
    sealer.reopen(topic)
    victim = topic.segments[3]
    assert isinstance(victim, SealedSegment)
    sealer.fs.open(victim.path, write=True).pwrite(b"\xff" * 16, victim.footer.sums_at)
    gone = done(engine, result(delete_steps(engine, ALL)))
    assert (gone.deleted, gone.count) == (40 - victim.count, 0)
    assert [tuple(run) for run in topic.losses.runs] == [(victim.first, victim.end - 1, "corrupt")]


def test_preview_in_steps_counts_what_was_there_when_it_began() -> None:
    engine, sealer = open_engine(), Sealer(SimDisk(cold=True))
    fill(engine, random.Random(6), 40)
    topic = engine.topic("t")
    sealer.seal(topic)
    sealer.reopen(topic)
    expected = sum(tag is not None for tag in live(engine).values())
    steps = engine.preview(topic, ALL, from_seq=0, from_ts=None)
    found = result(steps, lambda: append(engine, "t", record(tag="a:1")))
    assert (found.matched, found.scanned) == (expected, 40)


def test_preview_of_a_topic_dropped_between_two_steps_is_refused() -> None:
    engine = open_engine()
    fill(engine, random.Random(7), 40)
    steps = engine.preview(engine.topic("t"), ALL, from_seq=0, from_ts=None)
    next(steps)
    done(engine, engine.drop_topic("t"))
    with pytest.raises(TopicsError) as refused:
        result(steps)
    assert refused.value.code is Code.TOPIC_NOT_FOUND
