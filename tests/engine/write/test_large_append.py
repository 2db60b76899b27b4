"""Large appends: rendered in steps, written on another thread, and otherwise the same as any append."""

from __future__ import annotations

import pytest

from tests.engine.harness import objects, open_engine, read, record, write
from tests.engine.write.commit_bench import DISK, EPHEMERAL, FSYNC, Bench, is_refused
from topics.engine.engine import Engine
from topics.engine.state.topics import SegmentLimits
from topics.engine.steps import run_all
from topics.engine.write.append import LARGE_TRIES
from topics.engine.write.apply import ALONE_BYTES
from topics.engine.write.commit import Halted, Ticket
from topics.engine.write.render import PIECE_BYTES
from topics.errors import TopicsError
from topics.model.records import NewRecord, PlainRecord, PlainWriteRequest, WriteRequest
from topics.model.topic import ConfigPatch
from topics.storage.log import entry as log_entry
from topics.storage.log import frame

MIB = 1 << 20
SEGMENTS = SegmentLimits(max_events=1000, max_bytes=64 * MIB)


def append_large(engine: Engine, name: str, request: WriteRequest) -> Ticket:
    return engine.append(name, request, run_all(engine.prepare_append(name, request)))


def numbered(count: int) -> list[NewRecord]:
    return [record(str(n)) for n in range(count)]


@pytest.mark.parametrize(
    "request_",
    [
        lambda: write(record('"a"'), record('"b"', tag="t")),
        lambda: write(record('{\n"a":\r\n1}', meta='{\n"m":1}'), record("2", node="own")),
        lambda: write(*numbered(20), node="all"),
        lambda: write(record("1", meta="null"), record("2", meta='{"a":1}', tag="x", node="n")),
        lambda: write(record('"' + "x" * (2 * PIECE_BYTES) + '"'), record("2")),
        lambda: PlainWriteRequest([PlainRecord(one.data, "t") for one in numbered(3)]),
        lambda: WriteRequest([NewRecord(numbered(1)[0].data, priority=3), NewRecord(numbered(1)[0].data, delay_ms=9)]),
    ],
)
def test_large_append_stores_what_any_append_stores(request_):
    found = []
    for add in (lambda engine: engine.append("a", request_()), lambda engine: append_large(engine, "a", request_())):
        bench = Bench()
        queue = any(getattr(one, "priority", None) for one in request_().records)
        bench.engine.put_topic("a", ConfigPatch(type="queue") if queue else DISK)
        bench.turn()
        add(bench.engine)
        bench.turn()
        segment = bench.engine.topic("a").segments[0]
        found.append((bench.log.frames[-1], bytes(segment.read(0, segment.count))))
    assert found[0] == found[1]


def test_large_append_gives_the_turn_back_after_each_piece():
    bench = Bench(a=DISK, b=DISK)
    request = write(*[record('"' + "x" * 1000 + '"') for _ in range(4000)])
    steps = bench.engine.prepare_append("a", request)
    answered = 0
    try:
        while True:
            next(steps)
            ticket = bench.engine.append("b", write())
            bench.turn()
            answered += ticket.done
    except StopIteration as end:
        blob = end.value
    assert answered >= 4 * MIB // (2 * PIECE_BYTES)
    bench.engine.append("a", request, blob)
    bench.turn()
    assert (bench.engine.topic("a").head, bench.engine.topic("b").head) == (4000, answered)


def test_writes_of_the_same_topic_between_steps_move_the_seqs():
    bench = Bench(a=DISK)
    for _ in range(10):
        bench.engine.append("a", write())
    bench.turn()
    request = write(*numbered(5), node="n")
    steps = bench.engine.prepare_append("a", request)
    next(steps)
    bench.clock.advance(ms=7)
    bench.engine.append("a", write())
    bench.turn()
    ticket = bench.engine.append("a", request, run_all(steps))
    bench.turn()
    assert (ticket.value().first, ticket.value().last) == (12, 16)
    rows = objects(read(bench.engine, "a", limit=100))[-5:]
    assert [(row["$seq"], row["data"], row["$ts"]) for row in rows] == [
        (12 + n, n, bench.clock.now_ms()) for n in range(5)
    ]


@pytest.mark.parametrize("before", range(1, 12))
@pytest.mark.parametrize("between", [0, 1, 3])
def test_seqs_that_pass_a_power_of_ten(before, between):
    bench = Bench(a=DISK)
    for _ in range(before):
        bench.engine.append("a", write())
    bench.turn()
    request = write(*numbered(5))
    blob = run_all(bench.engine.prepare_append("a", request))
    for _ in range(between):
        bench.engine.append("a", write())
    bench.engine.append("a", request, blob)
    bench.turn()
    again = open_engine()
    again.put_topic("a", DISK)
    again.flush()
    for _ in range(before + between):
        again.append("a", write())
    again.append("a", write(*numbered(5)))
    again.flush()
    rows, expected = (objects(read(engine, "a", limit=100)) for engine in (bench.engine, again))
    assert [(row["$seq"], row["data"]) for row in rows] == [(row["$seq"], row["data"]) for row in expected]


def test_write_is_rendered_at_once_after_three_attempts():
    bench = Bench(a=DISK)
    for _ in range(4):
        bench.engine.append("a", write())
    bench.turn()
    request = write(*numbered(40))  # passes seq 10, each time at another record
    attempts, under_way, blob = 0, 0, "none yet"
    steps = bench.engine.prepare_append("a", request)
    while blob == "none yet":
        try:
            next(steps)
        except StopIteration as end:
            blob = end.value
        was, under_way = under_way, bench.engine.commits.pending_bytes
        if under_way and not was:  # another attempt has begun
            attempts += 1
            bench.engine.append("a", write())
            bench.turn()
    ticket = bench.engine.append("a", request, blob)
    bench.turn()
    assert (blob.blob, attempts, ticket.value().first) == (None, LARGE_TRIES, 5 + LARGE_TRIES)


def test_rendering_counts_as_bytes_under_way_until_it_ends():
    engine = open_engine()
    steps = engine.prepare_append("a", write(record('"' + "x" * (3 * PIECE_BYTES) + '"')))
    while not engine.commits.pending_bytes:
        next(steps)
    assert engine.commits.pending_bytes > 3 * PIECE_BYTES
    steps.close()  # the client left
    assert engine.commits.pending_bytes == 0


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "must not be empty"),
        ([record("1", tag="t" * 1000)], "tag is 1000 bytes"),
        ([record("1", node="n" * 1000)], "node is 1000 bytes"),
        ([record("1", meta="[]")], "records[0].meta must be an object"),
        ([record("1"), record('"' + "x" * MIB + '"')], "records[1] has"),
    ],
)
def test_invalid_records_are_refused(records, message):
    engine = open_engine()
    request = write()
    request.records = records
    with pytest.raises(TopicsError) as caught:
        run_all(engine.prepare_append("a", request))
    assert message in caught.value.message
    assert engine.commits.pending_bytes == 0


# --- the log


def test_other_writes_form_the_next_batch_while_a_large_one_is_written():
    bench = Bench(a=DISK, b=DISK)
    bench.log.holds_large = True
    large = append_large(bench.engine, "a", write(*numbered(3)))
    bench.engine.flush()
    later = [bench.engine.append(name, write()) for name in ("a", "b", "a")]
    bench.engine.flush()
    assert not any(ticket.done for ticket in (large, *later))
    assert bench.log.frames == []
    bench.log.finish_large()
    assert [ticket.done for ticket in (large, *later)] == [True, False, False, False]
    bench.engine.flush()
    assert [(ticket.value().first, ticket.value().last) for ticket in (large, *later)] == [
        (1, 3),
        (4, 4),
        (1, 1),
        (5, 5),
    ]
    assert [head.first for blob in bench.log.frames for head in frames(blob)] == [1, 4, 1]


def frames(blob: bytes) -> list[frame.Head]:
    found, at = [], 0
    while at < len(blob):
        part, at = frame.decode(memoryview(blob), at)
        found.append(part.head)
    return found


def test_log_that_refuses_a_large_write_accepts_the_next():
    bench = Bench(a=DISK, e=EPHEMERAL)
    bench.log.holds_large = True
    large = append_large(bench.engine, "a", write(*numbered(3), idempotency_key="k"))
    later = bench.engine.append("a", write())
    small = bench.engine.append("e", write())  # in the same batch; needs no log
    bench.log.write_fails = True
    bench.engine.flush()
    assert is_refused(large)
    assert is_refused(later)
    assert small.value().first == 1
    bench.log.write_fails = False
    bench.log.holds_large = False
    again = append_large(bench.engine, "a", write(*numbered(3), idempotency_key="k"))
    bench.turn()
    assert (again.value().first, again.value().deduped) == (1, False)
    assert bench.engine.commits.pending_bytes == 0


def test_sync_that_fails_during_a_large_write_answers_none():
    bench = Bench(f=FSYNC)
    bench.log.holds_large = True
    waiting = bench.engine.append("f", write())
    bench.engine.flush()  # written; its sync is pending
    large = append_large(bench.engine, "f", write(*numbered(3)))
    bench.engine.flush()
    staged = bench.engine.append("f", write())
    bench.log.sync_fails = True
    with pytest.raises(Halted):
        bench.log.finish()
    assert not any(ticket.done for ticket in (waiting, large, staged))


def test_sync_waits_for_a_large_write():
    bench = Bench(a=DISK)
    bench.log.holds_large = True
    large = append_large(bench.engine, "a", write(*numbered(3)))
    bench.engine.flush()
    later = bench.engine.append("a", write())
    bench.engine.commits.sync()
    assert (large.value().first, later.value().first) == (1, 4)


def test_second_write_with_the_key_of_a_large_one_under_way_gets_its_answer():
    bench = Bench(a=FSYNC)
    bench.log.holds_large = True
    large = append_large(bench.engine, "a", write(*numbered(3), idempotency_key="k"))
    bench.engine.flush()
    twin = bench.engine.append("a", write(*numbered(3), idempotency_key="k"))
    bench.log.finish_large()
    bench.turn()
    assert (large.value().first, large.value().last, large.value().deduped) == (1, 3, False)
    assert (twin.value().first, twin.value().last, twin.value().deduped) == (1, 3, True)


def test_large_append_creates_its_topic_in_one_entry():
    bench = Bench()
    bench.log.holds_large = True
    request = write(*numbered(3), config=DISK)
    large = append_large(bench.engine, "new", request)
    bench.engine.flush()
    assert bench.engine.find("new") is not None  # waits for its creation
    assert large.value().created
    assert bench.kinds() == [log_entry.CREATE, log_entry.APPEND]


@pytest.mark.parametrize("config", [DISK, EPHEMERAL])
def test_large_append_has_a_segment_of_its_own(config):
    bench = Bench()
    engine = open_engine(bench.clock, log=bench.log, segments=SEGMENTS)
    engine.put_topic("a", config)
    engine.append("a", write())
    request = write(*[record('"' + "x" * (MIB // 2) + '"') for _ in range(2 * ALONE_BYTES // MIB)])
    engine.flush()
    append_large(engine, "a", request)
    engine.append("a", write())
    engine.flush()
    segments = engine.topic("a").segments
    assert [segment.count for segment in segments] == [1, len(request.records), 1]
    assert segments[1].rendered.readonly
    rows = objects(read(engine, "a", limit=100, max_bytes=64 * MIB))
    assert [row["$seq"] for row in rows] == list(range(1, 3 + len(request.records)))
    assert engine.topic("a").bytes == sum(segment.live_bytes for segment in segments)
