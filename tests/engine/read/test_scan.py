"""Bulk reads through the engine: whatever happened to a topic, a scan says what paging with `read` says."""

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from tests.engine.harness import Sealer, append, delete, open_engine, read, record, waiting
from tests.engine.test_histories import HISTORIES, LONG, Pair, Turn, matches, run
from tests.simulated.disk import SimDisk
from topics.engine.engine import Engine
from topics.engine.read.read import Query, Tombstone
from topics.engine.read.scan import Scan, ScanStep
from topics.model.records import STORED_FORM, Projection, TagMatch
from topics.storage.segments import record_run as runs
from topics.storage.segments.record_run import Run

TAGGED = Projection(tags=True)


def steps(
    engine: Engine, name: str, *, upto_seq: int | None = None, slice_bytes: int = 200, **query: Any
) -> list[ScanStep]:
    scan = Scan(Query(**query), upto_seq=upto_seq, slice_bytes=slice_bytes)
    found = []
    while True:
        found.append(waiting(lambda: scan.step(lambda asked: engine.read(name, asked))))
        if found[-1].done:
            return found


def events_of(found: list[ScanStep]) -> list[bytes | tuple[int, int, str]]:
    """Records as lines, with their tags, and losses, in order; each run once to bytes and back."""
    events: list[bytes | tuple[int, int, str]] = []
    for step in found:
        if step.tombstone is not None:
            events.append(_gap(step.tombstone))
        for piece in step.slices:
            events += runs.lines(_there_and_back(piece.run()), TAGGED).splitlines()
    return events


def _there_and_back(run: Run) -> Run:
    return runs.decode(b"".join(runs.encode(run, topic_id=7, epoch=9)), source="test")


def _gap(gap: Tombstone) -> tuple[int, int, str]:
    return gap.gap_from, gap.gap_to, gap.reason


def paged(engine: Engine, name: str, **query: Any) -> list[bytes | tuple[int, int, str]]:
    events: list[bytes | tuple[int, int, str]] = []
    query["projection"] = TAGGED
    while True:
        page = read(engine, name, limit=3, **query)
        if page.tombstone is not None:
            events.append(_gap(page.tombstone))
        events += [part.removesuffix(b",") for part in b"".join(page.parts).replace(b"},{", b"},\n{").splitlines()]
        query |= {"from_seq": page.next_from_seq, "from_ts": None, "epoch": engine.topics[name].epoch}
        if page.next_from_seq >= engine.topics[name].head:
            return events


def seqs(found: list[ScanStep]) -> list[int]:
    return [msgspec.json.decode(line)["$seq"] for line in events_of(found) if isinstance(line, bytes)]


@pytest.mark.parametrize("examples", [60, LONG])
def test_a_scan_of_any_history_is_what_paging_gives(examples):
    def play(history: list[Turn], query: dict[str, Any], cold: bool) -> None:
        pair = Pair(Sealer(SimDisk(cold=cold)))
        for turn in history:
            pair.play(turn)
        for name in pair.engine.topics:
            asked = dict(query)
            since_ms = asked.pop("since_ms")
            if since_ms is not None:
                asked["from_ts"] = pair.clock.now_ms() + since_ms
            assert events_of(steps(pair.engine, name, **asked)) == paged(pair.engine, name, **asked)

    query = st.fixed_dictionaries(
        {
            "from_seq": st.integers(0, 30),
            "nodes": st.sampled_from([None, frozenset({"n1", "Köln"})]),
            "match": st.none() | matches,
            "since_ms": st.none() | st.integers(-150, 10),
        }
    )
    run(examples, play, history=HISTORIES, query=query, cold=st.booleans())


def test_a_scan_stops_at_its_last_seq():
    engine = open_engine()
    append(engine, "t", *[record(str(n)) for n in range(20)])
    assert seqs(steps(engine, "t", from_seq=3, upto_seq=9)) == list(range(4, 10))


def test_scan_without_an_end_stops_at_its_first_head():
    engine = open_engine()
    append(engine, "t", *[record(str(n)) for n in range(12)])
    scan = Scan(Query(), upto_seq=None, slice_bytes=100)
    found = [scan.step(lambda asked: engine.read("t", asked))]
    append(engine, "t", *[record("1")] * 5)
    while not found[-1].done:
        found.append(scan.step(lambda asked: engine.read("t", asked)))
    assert seqs(found) == list(range(1, 13))


def test_scan_of_a_recreated_topic_reports_it_and_starts_over():
    engine = open_engine()
    append(engine, "t", *[record(str(n)) for n in range(12)])
    scan = Scan(Query(), upto_seq=None, slice_bytes=100)
    found = [scan.step(lambda asked: engine.read("t", asked))]
    engine.drop_topic("t", if_empty=False)
    engine.flush()
    append(engine, "t", record('"new"'), record('"newer"'))
    while not found[-1].done:
        found.append(scan.step(lambda asked: engine.read("t", asked)))
    events = events_of(found)
    gap = events.index((1, 2, "recreated"))
    assert [msgspec.json.decode(line)["data"] for line in events[gap + 1 :]] == ["new", "newer"]


def test_nothing_of_a_deleted_record_leaves_with_a_run():
    engine = open_engine()
    append(
        engine, "t", record('"keep"', tag="k"), record('"secret"', tag="gone", node="spy"), record('"keep"', tag="k")
    )
    delete(engine, "t", match=TagMatch("Eq", "gone"))
    [step] = steps(engine, "t", slice_bytes=1 << 20)
    [piece] = step.slices
    run = piece.run()
    encoded = b"".join(runs.encode(run, topic_id=1, epoch=1))
    assert (run.first, run.last, run.count, run.present) == (1, 3, 3, 2)
    assert not any(word in encoded for word in (b"secret", b"gone", b"spy"))
    assert runs.lines(run, STORED_FORM).count(b"\n") == 2


def test_a_run_can_be_had_without_meta():
    engine = open_engine()
    append(engine, "t", record("1", meta='{"a":1}'), record("2"))
    [step] = steps(engine, "t", slice_bytes=1 << 20)
    lines = runs.lines(step.slices[0].run(), Projection(meta=False)).splitlines()
    assert [sorted(msgspec.json.decode(line)) for line in lines] == [["$seq", "$ts", "data"]] * 2
