"""Changes of one turn to the consumers of many topics: one log entry per durability class, each as durable as asked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.harness import FakeLog, open_engine
from tests.simulated.harness import ROOT, SimServer, request
from topics.engine.consumers.consumer_log import ConsumersChanged
from topics.engine.engine import Engine
from topics.engine.offline.verify import verify
from topics.engine.steps import run_all
from topics.errors import Code
from topics.model.consumer import Commit, CommitRequest, ConsumerRequest
from topics.model.router import RouterRequest
from topics.server.api.handlers import consumers as handlers
from topics.storage.log import entry as entries
from topics.storage.log import frame, walfile

CLASSES = ["ephemeral", "memory", "disk", "fsync"]


def opened(log: FakeLog, topics: list[str], *classes: str) -> Engine:
    """Return an engine with topics of three records, each with a consumer `c` at 0."""
    engine = open_engine(log=log)
    for name, durability in zip(topics, classes or ["disk"] * len(topics), strict=True):
        engine.append(name, request("1", "2", "3", durability=durability))
    engine.flush()
    log.finish()
    for name in topics:
        engine.consumers.put(name, "c", ConsumerRequest())
    engine.flush()
    log.finish()
    log.frames.clear()
    return engine


def seqs(engine: Engine) -> dict[str, int]:
    return {topic.name: one.seq for topic, one in engine.consumers.everywhere()}


def logged(frames: list[bytes]) -> Iterator[Any]:
    for data in frames:
        at = 0
        while at < len(data):
            found = frame.decode(memoryview(data), at)
            assert found is not None
            yield entries.decode(found[0], path="", at=at)
            at = found[1]


def test_moves_in_many_topics_share_one_small_entry():
    log = FakeLog()
    names = [f"t{at}" for at in range(100)]
    engine = opened(log, names)
    batches = {engine.consumers.move(name, "c", 2) for name in names}
    engine.flush()
    [entry] = logged(log.frames)
    assert isinstance(entry, ConsumersChanged)
    assert entry.topic_ids() == {topic.topic_id for topic in engine.topics.values()}
    assert len(log.frames[0]) < 500
    assert seqs(engine) == dict.fromkeys(names, 2)
    assert [batch.parts for batch in batches] == [[]], "parts are freed without the garbage collector"  # type: ignore[union-attr]


def test_each_durability_class_has_an_entry_of_its_own():
    log = FakeLog()
    engine = opened(log, CLASSES, *CLASSES)
    tickets = {name: engine.consumers.open(name, "c", commit=2) for name in CLASSES}
    engine.flush()
    assert [entry.topic_ids() for entry in logged(log.frames)] == [
        {engine.topics[name].topic_id} for name in CLASSES[1:]
    ]
    assert [name for name, ticket in tickets.items() if ticket.done] == CLASSES[:3]
    assert seqs(engine) == {"ephemeral": 2, "memory": 2, "disk": 2, "fsync": 0}
    log.finish()
    assert tickets["fsync"].value().seq == 2
    assert seqs(engine)["fsync"] == 2


def test_refused_batch_leaves_no_trace_in_any_topic():
    log = FakeLog()
    engine = opened(log, ["a", "b"], "fsync", "fsync")
    log.write_fails = True
    tickets = [engine.consumers.open(name, "c", commit=2) for name in "ab"]
    created = engine.consumers.put("b", "new", ConsumerRequest(seq=1))
    engine.flush()
    staged = engine.consumers.open("a", "c", commit=3)  # of the next turn
    log.write_fails = False
    engine.flush()
    log.finish()
    assert [ticket.error.code for ticket in [*tickets, created]] == [Code.READ_ONLY] * 3
    assert staged.error is None
    assert seqs(engine) == {"a": 3, "b": 0}
    for topic in engine.topics.values():
        assert (topic.pending, topic.waiting, topic.consumers.pending) == (0, 0, [])  # type: ignore[union-attr]
    again = engine.consumers.open("b", "c", commit=1)
    engine.flush()
    log.finish()
    assert again.value().seq == 1


def test_topic_with_an_entry_that_waits_does_not_delay_the_others():
    log = FakeLog()
    engine = opened(log, ["a", "b", "c"])
    wide = engine.append("a", request(*["1"] * 5000))  # more seqs than a ceiling in the log covers: it waits for a sync
    moved = [engine.consumers.open(name, "c", commit=2) for name in "bac"]
    engine.flush()
    assert [wide.done, *(ticket.done for ticket in moved)] == [False, True, False, True]
    log.finish()
    assert [ticket.value().seq for ticket in moved] == [2, 2, 2]
    changed = [sorted(entry.topic_ids()) for entry in logged(log.frames) if isinstance(entry, ConsumersChanged)]
    ids = {name: engine.topics[name].topic_id for name in "abc"}
    assert changed == [[ids["b"], ids["c"]], [ids["a"]]]


def test_commit_behind_a_batch_that_waits_is_answered_with_it():
    log = FakeLog()
    engine = opened(log, ["a", "b"], "fsync", "fsync")
    engine.consumers.move("a", "c", 1)
    engine.consumers.move("b", "c", 2)
    engine.flush()
    same, more = engine.consumers.open("b", "c", commit=2), engine.consumers.open("b", "c", commit=3)
    engine.flush()
    assert not same.done
    log.syncs.pop(0)()
    assert (same.value().seq, more.done) == (2, False)
    log.finish()
    assert (more.value().seq, seqs(engine)) == (3, {"a": 1, "b": 3})


def test_snapshot_hears_of_every_topic_before_its_consumers_change():
    log = FakeLog()
    engine = opened(log, ["a", "b", "c"])
    seen: list[tuple[str, int]] = []
    engine.commits.before_change = lambda topic: seen.append((topic.name, seqs(engine)[topic.name]))
    for name in "abc":
        engine.consumers.move(name, "c", 1)
        engine.consumers.move(name, "c", 2)
    engine.flush()
    assert seen == [("a", 0), ("b", 0), ("c", 0)]


def test_topic_with_a_router_gets_an_entry_of_its_own_behind_a_mark():
    log = FakeLog()
    engine = opened(log, ["a", "b", "c"])
    log.sync = lambda done: done()  # type: ignore[method-assign]
    engine.routers.put("r", RouterRequest(source="a", dest="b"))
    engine.flush()
    log.frames.clear()
    for name in "cb":
        engine.consumers.move(name, "c", 1)
    engine.flush()
    kinds = [type(entry).__name__ for entry in logged(log.frames)]
    assert kinds == ["ConsumersChanged", "Mark", "ConsumersChanged"]
    assert seqs(engine) == {"a": 0, "b": 1, "c": 1}


# --- after a restart


def positions(server: SimServer) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for topic, one in server.engine.consumers.everywhere():
        found.setdefault(topic.name, {})[one.name] = one.seq
    return found


def filled(topics: str, durability: str = "fsync", **config: Any) -> SimServer:
    server = SimServer.start()
    for name in topics:
        server.append(name, *"123456", durability=durability, **config)
        server.engine.consumers.put(name, "c", ConsumerRequest())
    server.engine.flush()
    return server


@pytest.mark.parametrize("how", ["stop", "keep", "lose", "tear", "reorder"])
def test_batch_over_topics_is_recovered(how: Any):
    server = filled("abc")
    for name, seq in zip("abc", (1, 2, 3), strict=True):
        server.engine.consumers.move(name, "c", seq)
        server.engine.consumers.put(name, "late", ConsumerRequest(seq=6, meta={"a": 1}))
    last = server.engine.consumers.drop("b", "c")
    server.done(last)
    want = {"a": {"c": 1, "late": 6}, "b": {"late": 6}, "c": {"c": 3, "late": 6}}
    assert positions(server) == want
    after = server.stop() if how == "stop" else server.crash(how)
    assert positions(after) == want


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_topic_dropped_in_the_turn_of_a_batch_takes_only_its_own_consumers(durability: str):
    server = filled("abc", durability)
    engine = server.engine
    for name in "abc":
        engine.consumers.move(name, "c", 4)
    engine.drop_topic("b")
    engine.append("b", request("1", durability=durability))
    begun = engine.consumers.put("b", "c", ConsumerRequest(seq=1))
    engine.consumers.move("c", "c", 5)
    server.done(begun)
    want = {"a": {"c": 4}, "b": {"c": 1}, "c": {"c": 5}}
    assert positions(server) == want
    assert positions(server.crash("keep")) == want


def test_snapshot_begun_between_two_changes_of_a_turn_keeps_both():
    server = filled("abcd")
    engine = server.engine
    engine.consumers.move("a", "c", 2)
    server.begin_checkpoint(topics=1)
    for name in "abcd":
        last = engine.consumers.open(name, "c", commit=3)
    server.done(last)
    server.steps.release()
    want = {name: {"c": 3} for name in "abcd"}
    assert positions(server) == want
    assert positions(server.crash("keep")) == want


def test_hold_of_a_memory_topic_is_replayed_in_the_order_of_the_log():
    """An entry that names topic `b` in second place finds the records that were written before it."""
    server = filled("a", "memory")
    server.append("b", *"12", durability="memory", cap_records=2)
    wanted = ConsumerRequest(hold=True, max_hold_bytes=1 << 20)
    server.done(server.engine.consumers.put("b", "c", wanted))
    server.append("b", *"3456")
    for name in "ab":
        moved = server.engine.consumers.open(name, "c", commit=5)
    server.done(moved)
    before, data = positions(server), server.data("b")
    assert len(data) == 6, "nothing was appended since the hold ended"
    after = server.crash("keep")
    assert positions(after) == before == {"a": {"c": 5}, "b": {"c": 5}}
    assert after.data("b") == data


def test_batch_of_other_topics_leaves_records_of_memory_topics_waiting():
    server = filled("ab", "disk")
    server.append("m", *"123", durability="memory")
    for name in "ab":
        moved = server.engine.consumers.open(name, "c", commit=5)
    server.done(moved)
    after = server.crash("keep")
    assert after.recovered is not None
    assert len(after.recovered.backlog) > 0
    assert after.data("m") == list("123")


def test_hold_released_in_a_batch_evicts_the_same_after_a_restart():
    server = SimServer.start()
    for name in "ab":
        server.append(name, *"12", cap_records=2)
        wanted = ConsumerRequest(hold=True, max_hold_bytes=1 << 20)
        server.done(server.engine.consumers.put(name, "c", wanted))
        server.append(name, *"345")
    engine = server.engine
    engine.consumers.move("a", "c", 1)
    engine.append("b", request("6"))
    engine.consumers.move("b", "c", 4)  # joins the entry before the append
    engine.append("a", request("6"))
    engine.flush()
    assert [server.data(name) for name in "ab"] == [list("23456"), list("56")]
    after = server.crash("keep")
    assert [after.data(name) for name in "ab"] == [list("23456"), list("56")]
    assert positions(after) == {"a": {"c": 1}, "b": {"c": 4}}


def test_log_of_an_earlier_version_is_replayed():
    server = SimServer.start()
    server.append("a", *"123456789", durability="fsync")
    assert server.engine.topics["a"].topic_id == 1
    # Two entries as the version before `ConsumersChanged` wrote them: x, y and z begin; x and z move, and y ends.
    begin = "95014690939801a1780246c000c2009802a1790346c000c2009803a17a0146c000c20090"
    move = "9501509401070308909102"
    server.wal.write([frame.encode(40, 1, 0, 0, bytes.fromhex(body)) for body in (begin, move)])
    after = server.crash("keep")
    assert positions(after) == {"a": {"x": 7, "z": 8}}
    assert after.engine.consumers.get("a", "x")[1].at_ms == 80
    assert positions(after.stop()) == {"a": {"x": 7, "z": 8}}


def test_damaged_entry_of_many_topics_leaves_earlier_positions():
    server = filled("abc")
    server.done(server.engine.consumers.open("a", "c", commit=1))
    for name in "abc":
        moved = server.engine.consumers.open(name, "c", commit=4)
    server.done(moved)
    server.append("a", "7")
    path = server.store.dir.wal_path(server.wal.number)
    data = server.disk.contents(path)
    kinds = [(item.at, item.frame.head.kind) for item in walfile.scan(data) if isinstance(item, walfile.FoundFrame)]
    at = max(at for at, kind in kinds if kind == entries.CONSUMERS_CHANGED)
    server.disk.flip(path, (at + frame.BODY_AT + 2) * 8)
    [problem] = verify(server.disk.crash("keep"), ROOT).damage
    assert problem.what.endswith("changes of consumers of topic a and perhaps of others")
    assert positions(server.crash("keep")) == {"a": {"c": 1}, "b": {"c": 0}, "c": {"c": 0}}


def test_verify_reads_entries_of_many_topics():
    server = filled("abc")
    assert verify(server.disk.crash("keep"), ROOT).clean


# --- requests with many commits


def commit(engine: Engine, *commits: tuple[str, str, int]) -> Any:
    """Call `POST /v0/consumers`, without a server. Return the deferred answer."""
    body = CommitRequest([Commit(*one) for one in commits])
    slices = SimpleNamespace(answer=lambda _, steps, cause: run_all(steps))
    runtime = SimpleNamespace(clock=SimpleNamespace(now_ms=lambda: 0))
    services: Any = SimpleNamespace(engine=engine, slices=slices, runtime=runtime)
    call: Any = SimpleNamespace(request=SimpleNamespace(started_ns=0), body=lambda: body, reader=lambda at_ms: at_ms)
    return handlers.commit_consumers(services, call)


def test_request_is_answered_when_the_last_of_its_batches_has_ended():
    log = FakeLog()
    engine = opened(log, CLASSES, *CLASSES)
    answers: list[Any] = []
    commit(engine, *((name, "c", 2) for name in CLASSES), ("disk", "none", 1)).then(answers.append)
    assert Counter(len(batch.ticket.followers) for batch in pending(engine)) == {1: 4}
    engine.flush()
    assert not answers
    log.finish()
    [answer] = [json.loads(one.body) for one in answers]
    assert (answer["committed"], [row["consumer"] for row in answer["refused"]]) == (4, ["none"])


def pending(engine: Engine) -> set[Any]:
    return {part.batch for topic in engine.topics.values() for part in topic.consumers.pending}  # type: ignore[union-attr]


def test_commits_that_the_log_refuses_are_named_one_by_one():
    log = FakeLog()
    engine = opened(log, ["a", "b", "e"], "fsync", "disk", "ephemeral")
    log.write_fails = True
    answers: list[Any] = []
    commit(engine, ("a", "c", 1), ("b", "c", 1), ("b", "c", 2), ("e", "c", 1)).then(answers.append)
    engine.flush()
    [answer] = [json.loads(one.body) for one in answers]
    assert answer["committed"] == 1
    assert [(row["topic"], row["code"]) for row in answer["refused"]] == [
        ("a", "read_only"), ("b", "read_only"), ("b", "read_only"),
    ]  # fmt: skip
