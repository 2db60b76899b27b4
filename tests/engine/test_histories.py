"""Random histories: the engine and the reference model give every reader the same answers.

Segments roll after four records and, in half of the histories, are sealed at once, so that reads often cross boundaries
between segments and between memory and disk. `make torture` plays 800 histories per test, `TORTURE=all make torture`
5,000.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from tests.engine.harness import SMALL_SEGMENTS, FakeLog, Sealer, open_engine, read, record, waiting, write
from tests.reference import oracle_consumers
from tests.reference.model_topic import ModelTopic
from tests.reference.oracle import Landed, Oracle
from tests.sampling import amount
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from topics.engine.consumers.lag import lag_of, lost_of
from topics.engine.consumers.verbs import StoredConsumer
from topics.engine.engine import Configured, Dropped
from topics.engine.state.topic import Topic
from topics.engine.state.topics import SegmentLimits
from topics.engine.steps import run_all
from topics.engine.write import archived
from topics.engine.write.append import Appended
from topics.engine.write.commit import Ticket
from topics.engine.write.delete import Deleted
from topics.errors import Code, TopicsError
from topics.model.consumer import ConsumerRequest
from topics.model.records import Projection, TagMatch, WriteRequest
from topics.model.topic import ArchiveConfig, ConfigPatch

NAMES = st.sampled_from(["a", "b"])
TAGS = ["x", "x:1", "x:2", "y", ""]
REFUSED = Code.READ_ONLY.wire
NODES = ["n1", "n2", 'quo"te', "Köln"]


@dataclass
class Append:
    name: str
    request: WriteRequest


@dataclass
class Delete:
    name: str
    before_seq: int | None
    match: TagMatch | None


@dataclass
class Put:
    name: str
    patch: ConfigPatch


@dataclass
class Drop:
    name: str
    if_empty: bool


@dataclass
class Archive:
    name: str
    seq: int


@dataclass
class Store:
    """Store a consumer."""

    name: str
    consumer: str
    wanted: ConsumerRequest


@dataclass
class Commit:
    """Read as a consumer, after a commit of `seq`."""

    name: str
    consumer: str
    seq: int


@dataclass
class Leave:
    """Delete a consumer."""

    name: str
    consumer: str


Verb = Append | Delete | Put | Drop | Archive | Store | Commit | Leave


@dataclass
class Turn:
    """The steps between two comparisons: the clock advances, verbs share a commit, files are written or reopened."""

    clock_ms: int
    verbs: list[Verb]
    queries: list[dict[str, Any]] = field(default_factory=list)
    seal: bool = False
    reopen: bool = False
    fault: str | None = None
    jump_ms: int = 0  # of the wall clock


maybe_tag = st.none() | st.sampled_from(TAGS)
maybe_node = st.none() | st.sampled_from(NODES)
records = st.builds(
    record,
    st.sampled_from(["1", "null", '"a }, b"', '{"k": [1, 2.50, "\\u00e9"]}', "[\n1 ,\r\n2]", '"' + "w" * 90 + '"']),
    tag=maybe_tag,
    node=maybe_node,
    meta=st.sampled_from([None, None, None, "{}", '{"m":\n1}', "null"]),
)
SCHEMAS = (
    {"type": ["integer", "string", "null", "object", "array"]},
    {"type": ["integer", "string", "object"]},
    {"type": "object", "properties": {"k": {"maxItems": 3}}},
)
patches = st.builds(
    ConfigPatch,
    ttl_ms=st.sampled_from([0, 0, 40, 100]),
    cap_records=st.sampled_from([0, 0, 1, 3, 9]),
    cap_bytes=st.sampled_from([0, 0, 100, 250, 600]),
    discard=st.sampled_from(["old", "old", "reject"]),
    dedupe_node=st.sampled_from([True, True, False]),
    idempotency_window_ms=st.sampled_from([0, 50, 1000]),
    durability=st.sampled_from(["ephemeral", "memory", "disk", "fsync", "fsync"]),
    schema=st.sampled_from([UNSET, UNSET, UNSET, UNSET, None, *SCHEMAS]),
    schema_mode=st.sampled_from([UNSET, UNSET, "reject", "warn", "off"]),
    compatibility=st.sampled_from([UNSET, UNSET, "none", "full"]),
    archive=st.sampled_from([None, None, ArchiveConfig(), ArchiveConfig(hold=True), ArchiveConfig(hold=True)]),
)
matches = st.builds(TagMatch, st.just("Eq"), st.sampled_from([*TAGS, "nobody"])) | st.builds(
    TagMatch, st.just("Glob"), st.sampled_from(["", "x", "x:", "z"])
)
requests = st.builds(
    lambda batch, **fields: write(*batch, **fields),
    st.lists(records, min_size=1, max_size=7),
    node=maybe_node,
    idempotency_key=st.sampled_from([None, None, "k1", "k2"]),
    create=st.sampled_from([None, None, None, True, False]),
    config=st.none() | patches,
)
cursors = st.integers(0, 40)
CONSUMERS = st.sampled_from(["c1", "c2"])
stored = st.builds(
    Store,
    NAMES,
    CONSUMERS,
    st.builds(
        ConsumerRequest,
        seq=st.just(UNSET) | st.integers(0, 25),
        if_seq=st.sampled_from([UNSET, UNSET, UNSET, None, 0, 3]),
        expire_ms=st.sampled_from([UNSET, UNSET, 0, 40]),
        hold=st.sampled_from([UNSET, True, True, False]),
        max_hold_bytes=st.sampled_from([UNSET, 200, 400, 1 << 20]),
    ),
)
deletes = st.builds(Delete, NAMES, cursors, st.none() | matches) | st.builds(Delete, NAMES, st.none(), matches)
appends = st.builds(Append, NAMES, requests)
verbs = st.one_of(
    appends,
    appends,
    appends,
    deletes,
    st.builds(Put, NAMES, patches),
    st.builds(Drop, NAMES, st.booleans()),
    st.builds(Archive, NAMES, st.integers(0, 25)),
    stored,
    stored,
    st.builds(Commit, NAMES, CONSUMERS, st.sampled_from([0, 0, 2, 5, 12])),
    st.builds(Leave, NAMES, CONSUMERS),
)
queries = st.fixed_dictionaries(
    {
        "from_seq": cursors,
        "limit": st.sampled_from([1, 2, 3, 5, 256]),
        "max_bytes": st.sampled_from([1, 60, 100, 200, 1 << 20]),
        "examine": st.sampled_from([1, 3, 10_000]),
        "nodes": st.sampled_from([(), ("n1",), ("n2", "Köln", "nobody")]),
        "match": st.none() | matches,
        "projection": st.builds(Projection, tags=st.booleans(), meta=st.booleans(), data=st.just(True) | st.booleans()),
        "since_ms": st.none() | st.integers(-150, 10),
        "other_epoch": st.sampled_from([None, False, False, True]),
    }
)
turns = st.builds(
    Turn,
    st.sampled_from([0, 0, 1, 10, 40, 41, 100, 101]),
    st.lists(verbs, min_size=1, max_size=4),
    st.lists(queries, max_size=3),
    st.booleans(),
    st.booleans(),
    jump_ms=st.sampled_from([0, 0, 0, 0, 0, 0, -30, 500]),
)


class Pair:
    """The engine and its model, driven by the same turns."""

    def __init__(
        self, sealer: Sealer | None = None, *, logged: bool = False, segments: SegmentLimits = SMALL_SEGMENTS
    ) -> None:
        self.clock = SimClock()
        self.log = FakeLog()
        self.engine = open_engine(self.clock, log=self.log if logged else None, segments=segments)
        self.oracle = Oracle(self.clock)
        self.sealer = sealer
        self.floors: dict[str, dict[int, tuple[int, int]]] = {"a": {}, "b": {}}  # by epoch: earliest and evict_floor

    def play(self, turn: Turn) -> None:
        self.clock.advance(ms=turn.clock_ms)
        self.clock.set(ms=self.clock.now_ms() + turn.jump_ms)
        self.engine.consumers.sweep(topics=10)
        self.commit()
        self.oracle.forget_unused()
        self.log.write_fails = turn.fault == "write"
        tickets = []
        before: Verb | None = None
        for verb in turn.verbs:
            waits_for = Delete | Archive | Store | Commit | Leave
            if isinstance(verb, Append) and any(isinstance(earlier, waits_for) for earlier in turn.verbs):
                self.commit()  # a full topic rejects a write before a delete of the same turn takes effect
            if isinstance(verb, Archive):
                self.commit()  # an archive cannot have records that are not visible yet
            if isinstance(verb, Store | Commit | Leave) and not isinstance(before, Store | Commit | Leave):
                self.commit()  # neither can a consumer; changes to consumers in a row share an entry
            before = verb
            tickets.append(outcome(lambda verb=verb: self.in_engine(verb)))
        self.commit()
        self.log.write_fails = False
        results = [ticket if isinstance(ticket, str) else outcome(ticket.value) for ticket in tickets]
        self.play_model(turn, results)
        for name in ("a", "b"):
            self.seal(name, turn)
            self.compare(name, turn)

    def commit(self) -> None:
        self.engine.flush()
        self.log.finish()

    def play_model(self, turn: Turn, results: list[Any]) -> None:
        """Apply to the model the verbs that the log accepted. The results must agree."""
        refused = REFUSED in results
        assert not refused or turn.fault is not None
        for verb, result in zip(turn.verbs, results, strict=True):
            if result == REFUSED or (refused and isinstance(result, str)):
                continue  # the error may be due to an earlier write that was refused later
            want, got = outcome(lambda verb=verb: self.in_model(verb)), self.seen(result)
            if isinstance(want, Landed) and want.deduped and isinstance(got, Landed):
                got.head = (
                    want.head
                )  # the head at the time of the repeated write: later writes of this turn may have raised it
            assert got == want, verb

    def in_model(self, verb: Verb) -> Any:
        match verb:
            case Append(name, request):
                return self.oracle.append(name, request)
            case Delete(name, before_seq, match):
                return self.oracle.delete(name, before_seq=before_seq, match=match)
            case Put(name, patch):
                return self.oracle.put(name, patch)
            case Drop(name, if_empty):
                return self.oracle.drop(name, if_empty=if_empty)
            case Archive(name, seq):
                return self.oracle.archive(name, seq)
            case Store(name, consumer, wanted):
                return self.oracle.put_consumer(name, consumer, wanted)
            case Commit(name, consumer, seq):
                return self.oracle.commit(name, consumer, seq)
            case Leave(name, consumer):
                return self.oracle.drop_consumer(name, consumer)

    def in_engine(self, verb: Verb) -> Ticket:
        match verb:
            case Append(name, request):
                return self.engine.append(name, request)
            case Delete(name, before_seq, match):
                return run_all(self.engine.delete_records(name, before_seq=before_seq, match=match))
            case Put(name, patch):
                return self.engine.put_topic(name, patch)
            case Drop(name, if_empty):
                return self.engine.drop_topic(name, if_empty=if_empty)
            case Archive(name, seq):
                topic = self.engine.find(name)
                return self.engine.report_archived(name, seq=seq, epoch=0 if topic is None else topic.epoch)
            case Store(name, consumer, wanted):
                return self.engine.consumers.put(name, consumer, wanted)
            case Commit(name, consumer, seq):
                return self.engine.consumers.open(name, consumer, commit=seq)
            case Leave(name, consumer):
                return self.engine.consumers.drop(name, consumer)

    def seen(self, result: Any) -> Any:
        match result:
            case Appended(_, first, last, head, created, deduped):
                return Landed(first, last, head, created, deduped)
            case Deleted():
                return result.deleted
            case Configured():
                return result.created
            case Dropped():
                return result.deleted
            case archived.Reported():
                return result.archived
            case StoredConsumer():
                return result.seq, result.created
        return result

    def seal(self, name: str, turn: Turn) -> None:
        topic = self.engine.topics.get(name)
        if self.sealer is not None and topic is not None:
            if turn.seal:
                self.sealer.seal(topic)
            if turn.reopen:
                self.sealer.reopen(topic)

    def compare(self, name: str, turn: Turn) -> None:
        assert (name in self.engine.topics) == (name in self.oracle.topics)
        if name not in self.oracle.topics:
            return
        model = self.oracle.topic(name)
        topic = waiting(lambda: self.engine.expire_and_get(name, touch=False))
        assert topic.config == model.config
        assert (topic.head, topic.count, topic.bytes) == (model.head, model.count, model.bytes)
        assert (topic.earliest, topic.evict_floor) == (model.earliest, model.evict_floor)
        assert topic.archived == model.archived
        self.compare_consumers(topic, model)
        assert topic.next_seq == topic.head + 1
        assert (topic.pending, topic.staged_count, topic.staged_bytes, topic.staged_keys) == (0, 0, 0, {})
        self.watermarks_only_rise(topic)
        self.totals_add_up()
        edges = {0, topic.evict_floor - 2, topic.evict_floor - 1, topic.earliest - 1, topic.earliest, topic.head - 1}
        plain = {"limit": 256, "max_bytes": 1 << 20, "examine": 10_000}
        for cursor in sorted(edges | {topic.head, topic.head + 1}):
            if cursor >= 0:
                self.compare_read(name, {"from_seq": cursor} | plain)
        for query in turn.queries:
            self.compare_read(name, query)
        self.account(name)

    def compare_consumers(self, topic: Topic, model: ModelTopic) -> None:
        now_ms, found = self.clock.now_ms(), [one for _, one in self.engine.consumers.of_topic(topic)]
        shown = {one.name: (one.seq, one.expire_ms, one.hold, one.max_hold_bytes) for one in found}
        assert shown == {name: one.shown() for name, one in model.consumers.items()}
        for one in found:
            lag = waiting(lambda one=one: lag_of(topic, one, now_ms))
            assert (lag.records, lag.age_ms) == oracle_consumers.lag(model, one.name, now_ms)
            gaps = lost_of(topic, one)
            lost = [] if gaps is None else [seq for gap in gaps.gaps for seq in range(gap.gap_from, gap.gap_to + 1)]
            assert lost == oracle_consumers.lost(model, one.name)

    def watermarks_only_rise(self, topic: Topic) -> None:
        epochs = self.floors[topic.name]
        if topic.epoch not in epochs:
            assert all(topic.epoch > other for other in epochs), "a recreated topic needs a higher epoch"
        earliest, evict_floor = epochs.get(topic.epoch, (1, 1))
        assert earliest <= topic.earliest
        assert evict_floor <= topic.evict_floor <= topic.earliest
        epochs[topic.epoch] = (topic.earliest, topic.evict_floor)

    def totals_add_up(self) -> None:
        topics, totals = self.engine.topics.values(), self.engine.state.totals
        assert totals.records == sum(topic.count for topic in topics)
        assert totals.lost.total == sum(topic.losses.total for topic in topics)
        assert totals.bytes == sum(topic.bytes for topic in topics)

    def compare_read(self, name: str, asked: dict[str, Any]) -> None:
        query, epoch = dict(asked), self.engine.topics[name].epoch
        since_ms, other = query.pop("since_ms", None), query.pop("other_epoch", None)
        if since_ms is not None:
            query["from_ts"] = self.clock.now_ms() + since_ms
        want = self.oracle.read(name, **query, other_epoch=bool(other))
        query["nodes"] = frozenset(query.get("nodes", ())) or None
        got = read(self.engine, name, **query, epoch=None if other is None else epoch + other)
        assert b"".join(got.parts) == b"".join(want.records), query
        assert (got.count, got.next_from_seq, got.scanned) == (len(want.records), want.next_from_seq, want.scanned), (
            query
        )
        gap = got.tombstone
        if want.tombstone is None or gap is None:
            assert gap is want.tombstone, query
        else:
            assert (gap.earliest_seq, gap.head_seq) == (
                self.oracle.topics[name].earliest,
                self.oracle.topics[name].head,
            )
            seen = (gap.gap_from, gap.gap_to, gap.reason, gap.missed_estimate)
            expected = want.tombstone
            assert seen == (expected.gap_from, expected.gap_to, expected.reason, expected.missed_estimate), query

    def account(self, name: str) -> None:
        """Read all pages: each seq is delivered, in a reported gap, or was deleted."""
        model = self.oracle.topic(name)
        for limit in (1, 3):
            cursor, delivered, missing = 0, [], set()
            while True:
                page = read(self.engine, name, from_seq=cursor, limit=limit)
                if page.tombstone is not None:
                    missing.update(range(page.tombstone.gap_from, page.tombstone.gap_to + 1))
                delivered.append(b"".join(page.parts))
                assert page.next_from_seq > cursor or page.next_from_seq == model.head
                cursor = page.next_from_seq
                if cursor == model.head:
                    break
            assert b"".join(delivered) == b"".join(fact.rendered() for fact in model.live)
            for fact in model.facts:
                assert not (fact.live and fact.seq in missing)
                assert not fact.lost or fact.seq in missing


def outcome(act: Callable[[], Any]) -> Any:
    """Return the result of `act`, or the code of its error."""
    try:
        return act()
    except TopicsError as error:
        return error.code.wire


HISTORIES = st.lists(turns, min_size=1, max_size=12)
LONG = pytest.param(amount(800, 5_000), marks=pytest.mark.torture)


def run(examples: int, test: Callable[..., None], **strategies: st.SearchStrategy[Any]) -> None:
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings(max_examples=examples, suppress_health_check=quiet)(given(**strategies)(test))()


@pytest.mark.parametrize("examples", [50, LONG])
def test_history_in_memory_matches_the_model(examples, monkeypatch):
    # A filtered read then takes many small steps through a segment.
    monkeypatch.setattr("topics.engine.read.read.STRETCH", 1)

    def play(history: list[Turn], segments: SegmentLimits) -> None:
        pair = Pair(segments=segments)
        for turn in history:
            pair.play(turn)

    run(examples, play, history=HISTORIES, segments=st.sampled_from([SMALL_SEGMENTS, SegmentLimits()]))


@pytest.mark.parametrize("examples", [40, LONG])
def test_history_with_sealed_segments_matches_the_model(examples):
    def play(history: list[Turn], cold: bool) -> None:
        # Without cold reads there is room for the columns of one segment only: they are loaded and dropped often.
        pair = Pair(Sealer(SimDisk(cold=cold), columns_bytes=1 << 20 if cold else 400))
        for turn in history:
            pair.play(turn)

    run(examples, play, history=HISTORIES, cold=st.booleans())


@pytest.mark.parametrize("examples", [50, LONG])
def test_turn_refused_by_the_log_has_no_effect(examples):
    def play(history: list[Turn], faults: list[str | None]) -> None:
        pair = Pair(logged=True)
        for turn, fault in zip(history, faults, strict=False):
            pair.play(replace(turn, fault=fault))

    faults = st.lists(st.sampled_from([None, None, "write"]), min_size=12, max_size=12)
    run(examples, play, history=HISTORIES, faults=faults)
