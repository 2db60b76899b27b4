"""Random histories with crashes and restarts, compared with the reference model.

Between two crashes every verb is answered, so the model knows the exact state. A crash inside a turn interrupts its
verbs: the restart must then show the model's state after the first n verbs of that turn, where n is at least the number
of answered verbs.

The topics of a history have one durability class or change it. An ephemeral topic is empty after a restart; the model
then copies the lost seqs from the engine, after a check that the engine reports enough of them.

`make torture` plays 4,000 histories, `TORTURE=all make torture` 30,000.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Counts
from tests.faults.syncs import Syncs
from tests.reference.oracle import Oracle
from tests.sampling import SEED, amount
from tests.simulated.clock import SimClock
from tests.simulated.disk import Crashed, SimDisk
from tests.simulated.harness import SimServer, request
from tests.simulated.inode import CrashMode
from topics.engine.state import idempotency
from topics.engine.steps import run_all
from topics.engine.write.commit import Ticket
from topics.errors import Code, TopicsError
from topics.model.consumer import ConsumerRequest
from topics.model.records import TagMatch
from topics.model.topic import ArchiveConfig, ConfigPatch
from topics.storage.segments.cold import waiting

NAMES = ["a", "b"]
Verb = tuple[Any, ...]

names = st.sampled_from(NAMES)
tags = st.none() | st.sampled_from(["x", "x:1", "y"])
patches = st.fixed_dictionaries(
    {},
    optional={
        "ttl_ms": st.sampled_from([0, 40, 100]),
        "cap_records": st.sampled_from([0, 1, 3, 9]),
        "cap_bytes": st.sampled_from([0, 100, 250]),
        "discard": st.sampled_from(["old", "reject"]),
        "idempotency_window_ms": st.sampled_from([0, 50, 1000]),
        "archive": st.sampled_from([None, ArchiveConfig(hold=True), ArchiveConfig(hold=True)]),
    },
)
mixed_patches = st.tuples(patches, st.sampled_from(["ephemeral", "ephemeral", "memory", "disk", "fsync"])).map(
    lambda pair: pair[0] | {"durability": pair[1]}
)
appends = st.tuples(
    st.just("append"),
    names,
    st.integers(1, 5),
    tags,
    st.sampled_from([None, None, "k1", "k2"]),
    st.sampled_from([0, 0, 900]),
)
deletes = st.tuples(st.just("delete"), names, st.none() | st.integers(0, 30), st.none() | st.sampled_from(["x", "y"]))
puts = st.tuples(st.just("put"), names, patches)
drops = st.tuples(st.just("drop"), names)
archives = st.tuples(st.just("archive"), names, st.sampled_from([0, 0, 1, 3]))
consumers = st.sampled_from(["c1", "c2"])
stores = st.tuples(
    st.just("store"),
    names,
    consumers,
    st.fixed_dictionaries(
        {"behind": st.sampled_from([0, 1, 3, 9])},
        optional={
            "if_seq": st.sampled_from([None, 0, 3]),
            "expire_ms": st.sampled_from([0, 40]),
            "hold": st.booleans(),
            "max_hold_bytes": st.sampled_from([150, 400, 1 << 20]),
        },
    ),
)
commits = st.tuples(st.just("commit"), names, consumers, st.sampled_from([None, 0, 1, 3]))
leaves = st.tuples(st.just("leave"), names, consumers)
consuming = st.one_of(stores, stores, commits, leaves)
verbs = st.one_of(appends, appends, appends, deletes, puts, drops, archives, consuming, consuming)
mixed_puts = st.tuples(st.just("put"), names, mixed_patches)
mixed_verbs = st.one_of(appends, appends, deletes, mixed_puts, mixed_puts, drops, archives, consuming)
CONSUMING = ("store", "commit", "leave")


@dataclass
class Turn:
    clock_ms: int
    jump_ms: int  # what the wall clock jumps forward by, as NTP can make it
    verbs: list[Verb]
    checkpoint: str  # "whole", or its "begin" or "end" alone; "" for none
    tick: bool
    end: str  # "on", "stop", or a crash mode
    crash_call: int | None  # the call of the turn at which the crash happens, if the turn makes that many
    slow: bool  # whether the syncs of the turn end after all its verbs have arrived, one by one
    look: str  # the first request after a restart: "list", "replay" (part of the deferred replay), or none


def turns_of(verbs: st.SearchStrategy[Verb], crash_calls: st.SearchStrategy[int | None]) -> st.SearchStrategy[Turn]:
    return st.builds(
        Turn,
        st.sampled_from([0, 1, 40, 41, 101]),
        st.sampled_from([*[0] * 8, 60_000, 3_600_000]),
        st.lists(verbs, max_size=4),
        st.sampled_from(["", "", "whole", "whole", "begin", "end"]),
        st.booleans(),
        st.sampled_from(["on", "on", "on", "stop", "keep", "lose", "tear"]),
        crash_calls,
        st.booleans(),
        st.sampled_from(["", "list", "replay"]),
    )


turns = turns_of(verbs, st.none() | st.integers(0, 30))


class Pair:
    """The engine on its disk, and the model. All topics have the class `durability` until a verb changes it."""

    def __init__(self, durability: str, seed: int) -> None:
        self.durability = durability
        self.clock = SimClock()
        self.syncs = Syncs()
        self.server = self.start(SimDisk(seed=seed, cold=seed % 2 == 1))
        self.oracle = Oracle(self.clock)
        self.number = 0
        self.deleted: set[str] = set()
        self.before = ""  # the verb before this one in the turn

    def start(self, disk: SimDisk) -> SimServer:
        self.syncs = Syncs()
        return SimServer.start(disk, clock=self.clock, sync_worker=self.syncs)

    def play(self, turn: Turn) -> None:
        self.clock.advance(ms=turn.clock_ms)
        self.clock.set(ms=self.clock.now_ms() + turn.jump_ms)
        self.deleted.clear()
        self.before = ""
        crash = turn.end if turn.end in ("keep", "lose", "tear") else None
        if crash is not None and turn.crash_call is not None:
            disk = self.server.disk
            when = ("before", "during", "after")[turn.crash_call % 3]
            disk.crash_at(len(disk.calls) + turn.crash_call, when=when)  # type: ignore[arg-type]
        states = [(0, copy.deepcopy(self.oracle))]
        tickets: list[Ticket] = []
        died = False
        try:
            self.forget_unused(states)
            self.syncs.slow = turn.slow
            for verb in turn.verbs:
                self.stage(verb, states, tickets)
                if turn.slow:
                    self.server.engine.flush()
            self.server.engine.flush()
            self.syncs.release()
            if not all(ticket.done for ticket in tickets):
                self.server.steps.release()  # a verb can wait for the snapshot of the checkpoint that is held
            if turn.tick:
                self.server.tick()
            self.checkpoint(turn.checkpoint)
        except Crashed:
            died = True
        # A verb without effect is answered at once, even if the verbs before it are not.
        answered = max(
            (at for at, ticket in enumerate(tickets, 1) if ticket.done and (ticket.apply or ticket.entry) is not None),
            default=0,
        )
        assert died or all(ticket.done for ticket in tickets)
        self.end(turn, states, answered, died=died)

    def forget_unused(self, states: list[tuple[int, Oracle]]) -> None:
        """Delete unused consumers in both, as the periodic work of a server does."""
        self.oracle.forget_unused()
        states.append((0, copy.deepcopy(self.oracle)))
        self.server.engine.consumers.sweep(topics=10)
        self.server.engine.flush()

    def checkpoint(self, part: str) -> None:
        if part == "begin":
            self.server.begin_checkpoint(topics=1)
        elif part:
            self.server.steps.release()
        if part == "whole":
            self.server.checkpoint()

    def stage(self, verb: Verb, states: list[tuple[int, Oracle]], tickets: list[Ticket]) -> None:
        """Apply one verb to the model and stage it in the engine. A refused verb changes neither."""
        if verb[0] in CONSUMING and self.before not in CONSUMING:
            self.settle()  # a consumer cannot be at records that are not visible yet
        self.before = verb[0]
        in_model, in_engine = self.both(verb)
        before = copy.deepcopy(self.oracle)
        refused = _code(in_model)
        if refused is None:
            if verb[0] == "append" and verb[1] not in before.topics:  # a crash between the creation and the first write
                before.put(verb[1], ConfigPatch(durability=self.durability))  # type: ignore[arg-type]
                states.append((states[-1][0], before))
            states.append((states[-1][0] + 1, copy.deepcopy(self.oracle)))
        if verb[0] == "append" and verb[1] in self.deleted:
            self.settle()  # a full topic rejects a write before a delete of the same turn takes effect
        if verb[0] in ("delete", "archive", *CONSUMING):
            self.deleted.add(verb[1])
        answer = _ticket(in_engine)
        if isinstance(answer, Ticket):
            assert refused is None, verb
            tickets.append(answer)
        else:
            assert answer is refused, verb

    def settle(self) -> None:
        """Let everything that is staged take effect."""
        if self.syncs.slow:
            self.server.engine.commits.sync()
        self.server.engine.flush()

    def both(self, verb: Verb) -> tuple[Callable[[], object], Callable[[], Ticket]]:
        engine, oracle = self.server.engine, self.oracle
        match verb:
            case ("append", name, n, tag, key, size):
                data = []
                for _ in range(n):
                    self.number += 1
                    data.append(f'"{self.number}{"x" * size}"')
                write = request(*data, tag=tag, key=key, durability=self.durability)
                return lambda: oracle.append(name, write), lambda: engine.append(name, write)
            case ("delete", name, before, tag):
                match = None if tag is None else TagMatch("Eq", tag)
                return (
                    lambda: oracle.delete(name, before_seq=before, match=match),
                    lambda: run_all(engine.delete_records(name, before_seq=before, match=match)),
                )
            case ("put", name, config):
                patch = ConfigPatch(**({"durability": self.durability} | config))
                return lambda: oracle.put(name, patch), lambda: engine.put_topic(name, patch)
            case ("archive", name, behind):
                topic = engine.find(name)
                seq, epoch = (0, 0) if topic is None else (max(topic.head - behind, 0), topic.epoch)
                return (
                    lambda: oracle.archive(name, seq),
                    lambda: engine.report_archived(name, seq=seq, epoch=epoch),
                )
            case ("store", name, who, fields):
                wanted = self.wanted(name, **fields)
                return lambda: oracle.put_consumer(name, who, wanted), lambda: engine.consumers.put(name, who, wanted)
            case ("commit", name, who, behind):
                seq = 0 if behind is None else self.seq(name, behind)
                return (
                    lambda: oracle.commit(name, who, seq),
                    lambda: engine.consumers.open(name, who, commit=seq),
                )
            case ("leave", name, who):
                return lambda: oracle.drop_consumer(name, who), lambda: engine.consumers.drop(name, who)
            case _:
                return lambda: oracle.drop(verb[1]), lambda: waiting(lambda: engine.drop_topic(verb[1]))

    def wanted(self, name: str, *, behind: int, **fields: Any) -> ConsumerRequest:
        return ConsumerRequest(seq=self.seq(name, behind), **fields)

    def seq(self, name: str, behind: int) -> int:
        topic = self.oracle.topics.get(name)
        return 0 if topic is None else max(topic.head - behind, 0)

    def end(self, turn: Turn, states: list[tuple[int, Oracle]], answered: int, *, died: bool) -> None:
        if turn.end == "on":
            self.compare([self.oracle])
            return
        self.clock.advance(ms=1)
        if turn.end == "stop":
            self.server.close()
            disk = self.server.disk
        else:
            mode: CrashMode = turn.end  # type: ignore[assignment]
            disk = self.server.disk.crash(mode)
        self.server = self.start(disk)
        assert self.server.recovered is not None
        assert self.server.recovered.damage == []
        listed = self.server.listing() if turn.look == "list" else None
        if turn.look == "replay":
            self.server.engine.replay_some(1)
        possible = [state for done, state in states if done >= answered]
        for state in possible:
            state.clock = self.clock
        for oracle in [self.oracle, *possible]:
            oracle.restarted()
        self.forget(self.oracle, orderly=turn.end == "stop")
        self.oracle = self.compare(possible if died else [self.oracle])
        assert listed in (None, self.server.listing()), "the first list after a start differs"

    def forget(self, oracle: Oracle, *, orderly: bool) -> None:
        """Copy the state of ephemeral topics from the engine to the model, after a check that it is allowed."""
        for name, model in oracle.topics.items():
            if model.config.durability == "ephemeral":
                topic = self.server.engine.topics[name]
                assert topic.config.durability == "ephemeral"
                assert topic.head == model.head if orderly else topic.head >= model.head
                lost = {seq: why for low, high, why in topic.losses.runs for seq in range(low, high + 1)}
                model.forget([lost.get(seq, "deleted") for seq in range(1, topic.head + 1)])
                expired_ms = self.clock.now_ms() - topic.config.idempotency_window_ms
                assert {key for key, seen in topic.keys.items() if seen.at_ms >= expired_ms} <= model.keys.keys()
                model.keys = {key: seen for key, seen in model.keys.items() if key in topic.keys}
                assert topic.archived <= model.archived
                model.archived = topic.archived

    def compare(self, candidates: list[Oracle]) -> Oracle:
        """Return the first candidate that equals the state of the engine."""
        shown = {name: self.in_engine(name) for name in sorted(self.server.engine.topics)}
        states = [{name: self.in_model(oracle, name) for name in sorted(oracle.topics)} for oracle in candidates]
        assert shown in states, f"{shown}\nis none of\n" + "\n".join(map(str, states))
        return candidates[states.index(shown)]

    def in_engine(self, name: str) -> tuple[Any, ...]:
        topic = waiting(lambda: self.server.engine.expire_and_get(name, touch=False))
        rows, gaps = self.server.walk(name)
        topic = self.server.engine.topic(name)
        keys = {
            key: (seen.first, seen.last)
            for key in topic.keys
            if (seen := idempotency.find(topic, key, self.clock.now_ms())) is not None
        }
        marks = topic.head, topic.earliest, topic.evict_floor, topic.archived
        own = [one for _, one in self.server.engine.consumers.of_topic(topic)]
        consumers = {one.name: (one.seq, one.expire_ms, one.hold, one.max_hold_bytes) for one in own}
        return topic.config, marks, topic.count, rows, gaps, keys, consumers

    def in_model(self, oracle: Oracle, name: str) -> tuple[Any, ...]:
        model = oracle.topic(name)
        rows, gaps, at = [], [], 0
        while at < model.head:
            page = oracle.read(name, from_seq=at, limit=1000, max_bytes=1 << 20, examine=10_000)
            if page.tombstone is not None:
                gaps.append((page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason))
            rows += [row[:-1] for row in page.records]
            at = page.next_from_seq
        keys = {
            key: (seen.first, seen.last)
            for key in model.keys
            if (seen := model.written_with(key, self.clock.now_ms())) is not None
        }
        marks = model.head, model.earliest, model.evict_floor, model.archived
        consumers = {name: one.shown() for name, one in sorted(model.consumers.items())}
        return model.config, marks, model.count, rows, gaps, keys, consumers


def _ticket(verb: Callable[[], Ticket]) -> Ticket | Code:
    try:
        return verb()
    except TopicsError as error:
        return error.code


def _code(verb: Callable[[], object]) -> Any:
    try:
        verb()
    except TopicsError as error:
        return error.code
    return None


def check(history: list[Turn], durability: str, seed: int) -> None:
    pair = Pair(durability, seed)
    for turn in history:
        mixed = any(verb[0] == "put" and "durability" in verb[2] for turn in history for verb in turn.verbs)
        if (mixed or durability != "fsync") and turn.end in ("lose", "tear"):
            turn.end = "keep"  # a power loss may lose unsynced records: the crash matrix covers that
        pair.play(turn)


def examples(number: int) -> settings:
    return settings(
        max_examples=number,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        print_blob=True,
    )


@contextmanager
def low_ceilings() -> Iterator[None]:
    """Use ceilings of a few seqs: histories pass many of them, and a model with one object per seq stays small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topics.engine.state.topic.FIRST_CEILING", 8)
        patch.setattr("topics.engine.write.staging.FIRST_CEILING", 8)
        patch.setattr("topics.engine.write.ceilings.FIRST_CEILING", 8)
        patch.setattr("topics.engine.write.ceilings.MAX_STEP", 32)
        yield


histories = st.lists(turns, max_size=12)
mixed_histories = st.lists(turns_of(mixed_verbs, st.none()), max_size=12)
seeds = st.integers(0, 1 << 16)


@examples(100)
@given(histories, seeds)
def test_fsync_history_with_crashes_matches_the_model(history: list[Turn], seed: int) -> None:
    check(history, "fsync", seed)


@examples(80)
@given(histories, seeds, st.sampled_from(["disk", "memory"]))
def test_history_with_kills_matches_the_model(history: list[Turn], seed: int, durability: str) -> None:
    check(history, durability, seed)


@examples(100)
@given(mixed_histories, seeds, st.sampled_from(["ephemeral", "memory", "disk", "fsync"]))
def test_history_with_class_changes_matches_the_model(history: list[Turn], seed: int, durability: str) -> None:
    with low_ceilings():
        check(history, durability, seed)


@pytest.mark.torture
@pytest.mark.parametrize("block", range(10))
def test_many_histories_with_class_changes_match_the_model(block: int, counts: Counts) -> None:
    classes = st.sampled_from(["ephemeral", "memory", "disk", "fsync"])
    number = amount(100, 1_000)
    test = examples(number)(given(mixed_histories, classes, seeds)(check))
    with low_ceilings():
        hypothesis.seed(SEED * 100 + block)(test)()
    counts(f"with class changes in block {block} (seed {SEED})", histories=number)


@pytest.mark.torture
@pytest.mark.parametrize("block", range(20))
def test_many_histories_with_crashes_match_the_model(block: int, counts: Counts) -> None:
    number = amount(150, 1_000)
    test = examples(number)(given(histories, st.sampled_from(["fsync", "disk"]), seeds)(check))
    hypothesis.seed(SEED * 100 + block)(test)()
    counts(f"in block {block} (seed {SEED})", histories=number)
