"""A topic that holds for its archive: what is not archived does not expire, and what is makes room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.engine.harness import SMALL_SEGMENTS, Sealer, append, done, open_engine, put, read, record, seqs, write
from tests.engine.test_histories import Append, Archive, Delete, Pair, Put, Turn, matches, requests, run
from tests.sampling import amount
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from topics.engine.engine import Engine
from topics.engine.state.topics import SegmentLimits
from topics.engine.write import archived
from topics.errors import Code, TopicsError
from topics.model.records import Limits
from topics.model.topic import ArchiveConfig, ConfigPatch
from topics.model.wire import ArchiveStanding

HOLD = ArchiveConfig(hold=True)


def report(engine: Engine, name: str, seq: int) -> archived.Reported:
    found: archived.Reported = done(engine, engine.report_archived(name, seq=seq, epoch=engine.topic(name).epoch))
    return found


def gap(page: Any) -> tuple[int, int, str]:
    gap = page.tombstone
    return gap.gap_from, gap.gap_to, gap.reason


def test_unarchived_record_outlives_its_ttl():
    clock = SimClock(ms=1000)
    engine = open_engine(clock)
    put(engine, "a", ttl_ms=50, archive=HOLD)
    append(engine, "a", *[record()] * 10)
    clock.advance(ms=1_000)
    assert seqs(read(engine, "a")) == list(range(1, 11))
    assert archived.standing(engine.topic("a"), clock.now_ms()) == ArchiveStanding(10, 10, 0)
    report(engine, "a", 7)
    page = read(engine, "a")
    assert (gap(page), seqs(page)) == ((1, 7, "ttl"), [8, 9, 10])
    assert archived.standing(engine.topic("a"), clock.now_ms()) == ArchiveStanding(3, 3, 0)


def test_archived_records_live_as_long_as_their_ttl_says():
    clock = SimClock(ms=1000)
    engine = open_engine(clock)
    put(engine, "a", ttl_ms=50, archive=HOLD)
    append(engine, "a", record(), record())
    report(engine, "a", 2)
    clock.advance(ms=50)
    assert seqs(read(engine, "a")) == [1, 2]
    clock.advance(ms=1)
    assert seqs(read(engine, "a")) == []


def test_topic_without_hold_expires_what_it_held():
    clock = SimClock()
    engine = open_engine(clock)
    put(engine, "a", ttl_ms=50, archive=HOLD)
    append(engine, "a", record(), record())
    clock.advance(ms=51)
    assert engine.expire_and_get("a", touch=False).count == 2
    put(engine, "a", archive=None)
    assert gap(read(engine, "a")) == (1, 2, "ttl")


def test_a_full_topic_that_rejects_makes_room_of_what_is_archived():
    engine = open_engine()
    put(engine, "a", cap_records=5, discard="reject", archive=HOLD)
    append(engine, "a", *[record()] * 5)
    with pytest.raises(TopicsError) as refused:
        append(engine, "a")
    assert refused.value.code is Code.TOPIC_FULL
    report(engine, "a", 3)
    append(engine, "a", record(), record())
    page = read(engine, "a")
    assert (gap(page), seqs(page)) == ((1, 2, "cap"), [3, 4, 5, 6, 7])
    with pytest.raises(TopicsError):
        append(engine, "a", record(), record())  # only one of five is archived
    append(engine, "a")
    assert archived.standing(engine.topic("a"), 0) == ArchiveStanding(5, 0, 0)


def test_room_is_counted_with_what_waits_for_the_log():
    engine = open_engine()
    put(engine, "a", cap_records=4, discard="reject", archive=HOLD)
    append(engine, "a", *[record()] * 4)
    report(engine, "a", 1)
    first = engine.append("a", write(record()))
    with pytest.raises(TopicsError):
        engine.append("a", write(record()))
    done(engine, first)
    assert engine.topic("a").count == 4


def test_a_byte_cap_makes_room_too():
    engine = open_engine(SimClock(ms=5))
    size_bytes = len(b'{"$seq":1,"$ts":5,"data":1},')
    put(engine, "a", cap_bytes=3 * size_bytes, discard="reject", archive=HOLD)
    append(engine, "a", record(), record(), record())
    with pytest.raises(TopicsError):
        append(engine, "a")
    report(engine, "a", 2)
    append(engine, "a", record("10"))  # one byte more than one record leaves behind
    assert seqs(read(engine, "a")) == [3, 4]


def test_evicting_cap_holds_and_counts_unarchived_records():
    engine = open_engine()
    put(engine, "a", cap_records=4, archive=HOLD)
    append(engine, "a", *[record()] * 4)
    report(engine, "a", 2)
    append(engine, "a", *[record()] * 3)
    assert gap(read(engine, "a")) == (1, 3, "cap")
    assert archived.standing(engine.topic("a"), 0) == ArchiveStanding(4, 0, 1)


def test_without_hold_a_report_is_only_kept():
    clock = SimClock()
    engine = open_engine(clock)
    put(engine, "a", ttl_ms=50)
    append(engine, "a", *[record()] * 3)
    report(engine, "a", 2)
    clock.advance(ms=51)
    topic = engine.expire_and_get("a", touch=False)
    assert (topic.count, topic.archived) == (0, 2)
    append(engine, "b")
    assert archived.standing(engine.topic("b"), 0) is None


def test_a_report_never_moves_back_and_never_runs_ahead():
    engine = open_engine()
    append(engine, "a", *[record()] * 5)
    assert report(engine, "a", 4).moved
    again = report(engine, "a", 2)
    assert (again.archived, again.moved) == (4, False)
    with pytest.raises(TopicsError) as ahead:
        report(engine, "a", 6)
    assert ahead.value.code is Code.INVALID_REQUEST
    assert ahead.value.detail == {"field": "seq"}


def test_report_about_another_epoch_is_refused():
    engine = open_engine()
    append(engine, "a", record())
    epoch = engine.topic("a").epoch
    done(engine, engine.drop_topic("a"))
    append(engine, "a", record())
    with pytest.raises(TopicsError) as refused:
        engine.report_archived("a", seq=1, epoch=epoch)
    assert refused.value.code is Code.EPOCH_MISMATCH
    assert engine.topic("a").archived == 0


def test_a_full_queue_keeps_jobs_that_are_archived_and_not_done():
    engine = open_engine()
    put(engine, "q", type="queue", cap_records=2, discard="reject", archive=HOLD)
    append(engine, "q", record(), record())
    report(engine, "q", 2)
    with pytest.raises(TopicsError):
        append(engine, "q")
    assert engine.topic("q").count == 2


def test_evicted_records_make_room_in_a_full_server():
    engine = open_engine(SimClock(ms=5), limits=Limits(max_total_bytes=3 * 28))
    put(engine, "a", cap_records=3, discard="reject", archive=HOLD)
    append(engine, "a", record(), record(), record())
    report(engine, "a", 3)
    append(engine, "a")
    assert seqs(read(engine, "a")) == [2, 3, 4]


@dataclass
class Report:
    """An archive that is `behind` the head by so many seqs."""

    behind: int


configs = st.builds(
    ConfigPatch,
    ttl_ms=st.sampled_from([0, 40, 40, 100]),
    cap_records=st.sampled_from([0, 3, 5, 9]),
    cap_bytes=st.sampled_from([0, 0, 250, 600]),
    discard=st.sampled_from(["old", "reject"]),
    archive=st.sampled_from([HOLD, HOLD, HOLD, None]),
)
steps = st.one_of(
    st.builds(Append, st.just("a"), requests),
    st.builds(Append, st.just("a"), requests),
    st.builds(Report, st.sampled_from([0, 0, 1, 3, 6])),
    st.builds(Report, st.sampled_from([0, 0, 1, 3, 6])),
    st.builds(Put, st.just("a"), configs),
    st.builds(Delete, st.just("a"), st.none(), matches),
)
HISTORY = st.tuples(
    configs, st.lists(st.tuples(st.sampled_from([0, 1, 41, 101]), steps, st.booleans()), min_size=4, max_size=14)
)


def play(pair: Pair, history: Any) -> None:
    config, rest = history
    pair.play(Turn(0, [Put("a", config)]))
    for clock_ms, step, seal in rest:
        if isinstance(step, Report):
            step = Archive("a", max(pair.oracle.topics["a"].head - step.behind, 0))
        pair.play(Turn(clock_ms, [step], seal=seal))


@pytest.mark.parametrize("examples", [75, pytest.param(amount(600, 5_000), marks=pytest.mark.torture)])
def test_histories_of_a_holding_topic_match_the_model(examples):
    def in_memory(history: Any, segments: SegmentLimits) -> None:
        play(Pair(segments=segments), history)

    run(examples, in_memory, history=HISTORY, segments=st.sampled_from([SMALL_SEGMENTS, SegmentLimits()]))


@pytest.mark.parametrize("examples", [40, pytest.param(amount(600, 5_000), marks=pytest.mark.torture)])
def test_histories_of_a_holding_topic_in_files_match_the_model(examples):
    def in_files(history: Any, cold: bool) -> None:
        play(Pair(Sealer(SimDisk(cold=cold), columns_bytes=1 << 20 if cold else 400)), history)

    run(examples, in_files, history=HISTORY, cold=st.booleans())
