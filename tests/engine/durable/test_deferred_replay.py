"""Topics whose records still wait in the log after a start: no verb meets one of which a part is missing."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.queues.harness import Workshop
from tests.simulated.disk import FOREVER
from tests.simulated.draining import drain
from tests.simulated.harness import SimServer
from topics.engine.engine import Engine
from topics.engine.read.read import Query
from topics.engine.state.topic import Topic
from topics.engine.steps import run_all
from topics.errors import TopicsError
from topics.model.records import Limits, TagMatch
from topics.model.router import RouterRequest
from topics.storage.log import entry as entries
from topics.storage.log import frame, walfile

HEADS = {"a": 5, "b": 3, "d": 2, "f": 2}


def killed() -> SimServer:
    """A server with topics of each class that keeps records, about to be killed."""
    server = SimServer.start()
    server.append("a", "1", "2", durability="memory")
    server.append("a", "3", key="k")
    server.append("b", "1", "2", "3", durability="memory")
    server.append("a", "4", "5")
    server.append("d", "1", "2", durability="disk")
    server.append("f", "1", "2", durability="fsync")
    return server


def started(server: SimServer | None = None) -> SimServer:
    """The next start after a kill, with records of `memory` topics that wait."""
    after = (server or killed()).crash("keep")
    assert after.recovered is not None
    assert len(after.recovered.backlog) > 0
    return after


def waiting(server: SimServer) -> int:
    assert server.recovered is not None
    return len(server.recovered.backlog)


WAYS: Mapping[str, Callable[[Engine], dict[str, Topic]]] = {
    "find": lambda engine: {"a": engine.find("a")},  # type: ignore[dict-item]
    "topic": lambda engine: {"a": engine.topic("a")},
    "get": lambda engine: {"a": engine.topics.get("a")},  # type: ignore[dict-item]
    "item": lambda engine: {"a": engine.topics["a"]},
    "values": lambda engine: {topic.name: topic for topic in engine.topics.values()},
    "items": lambda engine: dict(engine.topics.items()),
    "copy": lambda engine: dict(engine.topics),
    "state": lambda engine: {"a": engine.expire_and_get("a", touch=False)},
    "read": lambda engine: {"a": engine.read("a", Query())[0]},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_a_topic_returns_it_with_all_records(way: str) -> None:
    found = WAYS[way](started().engine)
    assert {name: topic.head for name, topic in found.items()} == {name: HEADS[name] for name in found}


def test_names_and_their_number_replay_nothing() -> None:
    server = started()
    before = waiting(server)
    assert (sorted(server.engine.topics), len(server.engine.topics)) == (sorted(HEADS), len(HEADS))
    assert "a" in server.engine.topics
    assert "nothing" not in server.engine.topics
    assert waiting(server) == before


def test_a_topic_that_is_asked_for_does_not_replay_the_others() -> None:
    server = started()
    before = waiting(server)
    server.engine.topic("b")
    assert waiting(server) == before - 1


def test_a_few_entries_at_a_time_bring_back_everything() -> None:
    server = started()
    turns = 0
    while server.engine.replay_some(1):
        turns += 1
    assert turns == 3
    assert server.engine.topics is server.engine.state.by_name
    assert server.listing() == killed().listing()


def test_a_kill_while_records_wait_loses_and_repeats_none() -> None:
    server = started()
    server.engine.replay_some(2)
    server.append("b", "4")
    after = started(server)
    assert after.data("a") == ["1", "2", "3", "4", "5"]
    assert after.data("b") == ["1", "2", "3", "4"]
    assert not any(view.losses for view in after.view().values())


def test_checkpoint_does_not_begin_while_records_wait() -> None:
    """It would remove the log, which alone has these records."""
    server = started()
    assert not server.store.checkpoint()
    server.engine.replay_all()
    assert server.store.checkpoint()


def test_an_append_goes_on_behind_the_records_that_waited() -> None:
    server = started()
    again = server.append("a", "3", key="k")
    assert (again.first, again.deduped) == (3, True)
    assert server.append("a", "6").first == 6


# --- routers


@pytest.mark.parametrize("dest", ["a", "b"])
def test_a_router_into_a_waiting_topic_writes_behind_its_records(dest: str) -> None:
    server = started()
    server.done(server.engine.routers.put("r", RouterRequest(source="f", dest=dest)))
    server.append("f", '"copied"')
    drain(server.engine)
    assert server.by_seq(dest)[HEADS[dest] + 1] == '"copied"'
    found = server.by_seq(dest)
    assert list(found) == list(range(1, HEADS[dest] + 2))
    assert server.crash("keep").by_seq(dest) == found


def test_a_router_out_of_a_waiting_topic_begins_at_its_head() -> None:
    server = started()
    router, _ = server.done(server.engine.routers.put("r", RouterRequest(source="a", dest="new")))
    assert router.cursor == 5
    server.append("a", '"later"')
    drain(server.engine)
    assert server.data("new") == ['"later"']


# --- verbs that change a topic


CHANGES: Mapping[str, Callable[[SimServer], Any]] = {
    "delete": lambda server: server.delete("a", before_seq=4).deleted,
    "delete by seq": lambda server: server.done(server.engine.delete_seqs("a", [2, 5, 9])).deleted,
    "count": lambda server: (
        run_all(server.engine.delete_records("a", before_seq=4, match=None, dry_run=True)).value().deleted
    ),
    "configure": lambda server: server.put("a", cap_records=2).topic.count,
    "drop": lambda server: (server.drop("a").deleted, server.append("a", "1").first),
    "archive": lambda server: (
        server.done(server.engine.report_archived("a", seq=5, epoch=server.engine.topic("a").epoch)).archived
    ),
    "preview": lambda server: (
        run_all(
            server.engine.preview(server.engine.topic("a"), TagMatch("Glob", "*"), from_seq=0, from_ts=None)
        ).scanned
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_verb_does_the_same_to_a_waiting_topic_as_to_any(change: str) -> None:
    before, after = killed(), started()
    assert CHANGES[change](after) == CHANGES[change](before)
    assert after.listing() == before.listing()
    assert after.crash("keep").listing() == before.listing()


def test_dead_letters_go_behind_the_records_that_waited_and_come_back() -> None:
    first = Workshop(max_deliveries=1, dead_letter="dead")
    first.server.append("dead", '"old"', durability="memory")
    first.write('"job"')
    second = Workshop(started(first.server))
    second.claim()
    second.clock.advance(ms=2_000)
    assert second.claim() == []
    assert second.server.by_seq("dead") == {1: '"old"', 2: '"job"'}
    third = Workshop(second.server.crash("keep"))
    assert third.redrive().seqs == [2]
    assert third.server.data("dead") == ['"old"']


# --- what does not wait


def test_a_quota_counts_the_records_of_every_topic_from_the_start() -> None:
    server = started()
    assert server.recovered is not None
    limited = Engine(clock=server.clock, limits=Limits(max_total_bytes=1 << 20), state=server.engine.state)
    limited.await_replay(server.recovered.backlog)
    assert limited.state.totals.records == sum(HEADS.values())


def test_a_power_loss_leaves_nothing_waiting() -> None:
    server = killed()
    server.tick()
    after = server.crash("lose")
    assert after.recovered is not None
    assert not after.recovered.backlog


def test_damage_behind_waiting_records_costs_none_of_them() -> None:
    """Which seqs the damaged entry held is counted from where the topic ends."""
    server = killed()
    [path] = [path for path in server.disk.files() if path.endswith(".wal")]
    data = server.disk.contents(path)
    last = [
        found for found in walfile.scan(data)
        if isinstance(found, walfile.FoundFrame) and found.frame.head.topic_id == server.engine.topic("a").topic_id
    ][-1]  # fmt: skip
    server.disk.flip(path, (last.at + frame.BODY_AT + 8) * 8)
    after = server.crash("keep")
    assert after.recovered is not None
    assert len(after.recovered.damage) == 1
    assert after.data("a") == ["1", "2", "3"]
    assert after.engine.topic("a").losses.runs == [(4, 5, "corrupt")]


def test_missing_seqs_of_a_memory_topic_are_reported_as_damage() -> None:
    server = killed()
    a = server.engine.topic("a")
    a.next_seq, a.head = 9, 8  # as if an entry between the two had never been written
    a.segments[-1].first = 9
    server.append("a", '"nine"')
    after = server.crash("keep")
    assert after.recovered is not None
    assert [text.partition(": ")[2] for text in after.recovered.damage] == [
        "before this, topic a, seqs 6 to 8 are missing"
    ]
    assert after.by_seq("a") == {1: "1", 2: "2", 3: "3", 4: "4", 5: "5", 9: '"nine"'}


def test_an_entry_that_cannot_be_decoded_is_lost_alone() -> None:
    server = killed()
    a = server.engine.topic("a")
    server.wal.write([frame.encode(entries.APPEND, a.topic_id, 6, 2, b"not an entry")])
    after = started(server)
    assert after.data("a") == ["1", "2", "3", "4", "5"]
    assert after.engine.topic("a").losses.runs == [(6, 7, "corrupt")]
    assert after.append("a", "8").first == 8


def test_a_topic_whose_end_was_in_a_missing_log_file_does_not_stop_the_start() -> None:
    server = killed()
    server.append("f", f'"{"x" * 4_000}"')  # enough for the log to begin another file
    server.drop("a")
    server.tick()
    last = max(path for path in server.disk.files() if path.endswith(".wal"))
    disk = server.disk.crash("keep")
    disk.unlink(last)
    after = server.next(disk)
    assert "a" not in after.engine.topics
    assert after.by_seq("b") == {1: "1", 2: "2", 3: "3"}


def test_records_written_after_a_topic_left_ephemeral_come_back() -> None:
    """Its seqs go on behind a gap, because what it had in memory is lost."""
    server = killed()
    server.append("t", "1", durability="ephemeral")
    server.disk.fail(at=len(server.disk.calls), op="rename", path="*.snap.tmp", error=errno.EIO, times=FOREVER)
    with pytest.raises(TopicsError):
        server.put("t", durability="memory")
    server.append("t", "2")
    server.disk.heal()
    after = server.crash("keep")
    assert after.by_seq("t") == {2: "2"}
    third = after.append("t", "3").first
    assert third > 2
    losses = after.view()["t"].losses
    assert {reason for _, _, reason in losses} == {"restart"}
    again = after.crash("keep")
    assert again.by_seq("t") == {2: "2", third: "3"}
    assert again.view()["t"].losses == losses


def test_only_recovery_and_storage_read_the_raw_map_of_topics() -> None:
    """Everything else goes through `Engine.topics`, which returns whole topics."""
    allowed = {
        "deferred_replay",
        "directory",
        "engine",
        "lost_log",
        "recovery",
        "staging",
        "storage",
        "verify",
    }
    package = Path(topics.__file__).parent
    users = {path.stem for path in package.rglob("*.py") if "state.by_name" in path.read_text()}
    assert users == allowed


def test_topic_dropped_behind_a_gap_in_the_log_does_not_stop_the_start() -> None:
    server = killed()
    server.append("f", '"third"')
    server.append("f", "4")
    server.done(server.engine.drop_topic("a"))
    disk = server.disk.crash("keep")
    [path] = [path for path in disk.files() if path.endswith(".wal")]
    data = disk.contents(path)
    frames = [item for item in walfile.scan(data) if isinstance(item, walfile.FoundFrame)]
    [third] = [item for item in frames if b'"third"' in data[item.at : item.end]]
    for bit in range(8):  # a frame with this last byte counts as refused
        disk.flip(path, 8 * (third.end - 1) + bit)
    after = server.next(disk)
    assert after.recovered is not None
    assert len(after.recovered.damage) == 1
    assert sorted(after.engine.topics) == ["b", "d", "f"]
    assert after.data("f") == ["1", "2", "4"]
