"""Forwarding step by step, on a simulated clock and disk."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.draining import drain
from tests.simulated.harness import DeferredWorker, SimServer, request
from topics.engine.queue.verbs import Want
from topics.engine.read.read import Query
from topics.engine.state.topics import SegmentLimits
from topics.engine.steps import run_all
from topics.errors import Code, TopicsError
from topics.model.records import TagMatch
from topics.model.router import RouterRequest
from topics.model.topic import ConfigPatch


def route(server: SimServer, source: str, dest: str, **fields: Any) -> None:
    server.done(server.engine.routers.put(f"{source}->{dest}", RouterRequest(source=source, dest=dest, **fields)))


def forward(server: SimServer) -> None:
    drain(server.engine)


class BusyClock(SimClock):
    """A clock on which every look takes a microsecond, so that work without an end runs out of time."""

    def monotonic_ns(self) -> int:
        self._monotonic_ns += 1_000
        return self._monotonic_ns


def rests(server: SimServer) -> bool:
    """Forward for some time. Whether nothing is left to do at once."""
    server.engine.routers.attach()
    return server.engine.routers.forwarder.run(20_000_000) != 0


def wal_bytes(server: SimServer) -> int:
    return server.wal.stats.bytes_written_total


def test_write_to_a_source_is_answered_before_its_copies() -> None:
    server = SimServer.start()
    route(server, "a", "b")
    server.append("a", "1")
    assert server.engine.topic("b").head == 0
    forward(server)
    assert server.data("b") == ["1"]


def test_copies_write_nothing_to_the_log() -> None:
    server = SimServer.start()
    for number in range(20):
        route(server, "a", f"d{number}")
    server.append("plain", "1")
    before = wal_bytes(server)
    server.append("plain", "1")
    alone = wal_bytes(server) - before
    server.append("a", "1")
    before = wal_bytes(server)
    server.append("a", "1")
    forward(server)
    assert wal_bytes(server) - before == alone


def test_routers_go_on_after_a_delete_whose_callback_was_replaced() -> None:
    server = SimServer.start()
    route(server, "a", "b")
    server.append("a", "1", "2")
    ticket = run_all(server.engine.delete_records("a", before_seq=2, match=None))
    ticket.then = None  # as an answer does that sets its own
    server.done(ticket)
    forward(server)
    assert server.data("b") == ["2"]


def test_a_diamond_brings_each_record_down_both_sides() -> None:
    server = SimServer.start()
    for source, dest in (("top", "left"), ("top", "right"), ("left", "l2"), ("right", "r2")):
        route(server, source, dest)
    server.append("top", "1", "2")
    forward(server)
    assert [server.data(name) for name in ("left", "right", "l2", "r2")] == [["1", "2"]] * 4


def test_two_routers_into_one_destination_take_turns_by_record() -> None:
    server = SimServer.start()
    server.done(server.engine.routers.put("r1", RouterRequest(source="a", dest="b")))
    server.done(server.engine.routers.put("r2", RouterRequest(source="a", dest="b", filter="x")))
    server.append("a", "1", "2", tag="x")
    server.append("a", "3")
    forward(server)
    assert server.data("b") == ["1", "1", "2", "2", "3"]
    assert server.crash("keep").data("b") == ["1", "1", "2", "2", "3"]


def test_record_deleted_before_forwarding_leaves_no_gap() -> None:
    server = SimServer.start()
    route(server, "a", "b")
    server.append("a", "1", tag="x")
    server.append("a", "2")
    server.delete("a", match=TagMatch("Eq", "x"))
    forward(server)
    assert server.by_seq("b") == {1: "2"}
    assert server.walk("b")[1] == []


def test_what_is_deleted_at_the_source_later_stays_at_the_destination() -> None:
    server = SimServer.start()
    route(server, "a", "b")
    server.append("a", "1", tag="x")
    forward(server)
    server.delete("a", match=TagMatch("Eq", "x"))
    after = server.crash("keep")
    forward(after)
    assert (after.data("a"), after.data("b")) == ([], ["1"])


def test_dropped_router_forwards_nothing_after_a_restart() -> None:
    server = SimServer.start()
    route(server, "a", "b")
    server.append("a", "1")
    forward(server)
    server.append("a", "2")
    server.done(server.engine.routers.drop("a->b"))
    after = server.crash("keep")
    forward(after)
    assert after.data("b") == ["1"]


def test_changed_filter_applies_from_the_cursor_on() -> None:
    server = SimServer.start()
    route(server, "a", "b")
    server.append("a", "1", tag="x")
    forward(server)
    server.append("a", "2", tag="y")
    server.append("a", "3", tag="x")
    route(server, "a", "b", filter="x")
    forward(server)
    assert server.data("b") == ["1", "3"]
    assert server.crash("keep").data("b") == ["1", "3"]


def test_copies_keep_the_time_of_their_source_but_never_go_back() -> None:
    server = SimServer.start()
    route(server, "a", "b")
    server.append("a", "1")
    server.clock.advance(ms=50)
    server.append("b", '"direct"')
    server.append("a", "2")
    forward(server)
    times = [msgspec.json.decode(row)["$ts"] for row in server.walk("b")[0]]
    assert times == sorted(times)


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_copies_of_an_ephemeral_source_outlive_it(durability: str) -> None:
    server = SimServer.start()
    server.put("a", durability="ephemeral")
    server.put("b", durability=durability)
    route(server, "a", "b")
    server.append("a", "1", "2")
    forward(server)
    after = server.crash("keep")
    assert (after.data("b"), after.engine.topic("a").count) == (["1", "2"], 0)
    after.append("a", "3")
    forward(after)
    assert after.data("b") == ["1", "2", "3"]


def test_copy_does_not_overtake_a_staged_direct_write() -> None:
    server = SimServer.start()
    server.put("a", durability="fsync")
    server.put("b", durability="fsync")
    route(server, "a", "b")
    server.append("a", "1")
    staged = server.engine.append("b", request('"direct"'))
    server.engine.routers.forwarder.run(0)
    forward(server)
    assert staged.value().first == 1
    assert server.by_seq("b") == {1: '"direct"', 2: "1"}
    assert server.crash("lose").by_seq("b") == {1: '"direct"', 2: "1"}


def test_held_router_backs_off_until_there_is_room() -> None:
    server = SimServer.start()
    server.put("b", cap_records=1, discard="reject", ttl_ms=10_000)
    route(server, "a", "b")
    server.append("a", "1", "2")
    waits = [server.engine.routers.forwarder.run(0)]
    for _ in range(8):
        server.clock.advance(ms=waits[-1] or 1)
        waits.append(server.engine.routers.forwarder.run(0))
    assert waits == sorted(waits, key=lambda wait: wait or 0)
    assert waits[-1] == 1000
    server.clock.advance(ms=10_001)
    forward(server)
    assert server.by_seq("b") == {2: "2"}, "time made room"
    assert server.crash("keep").by_seq("b") == {2: "2"}


def test_record_goes_around_a_cycle_once() -> None:
    server = SimServer.start()
    ring = [("a", "b"), ("b", "c"), ("c", "a")]
    for source, dest in ring:
        route(server, source, dest, allow_cycle=True)
    server.append("a", "1")
    server.append("b", "2")
    forward(server)
    assert [sorted(server.data(name)) for name in "abc"] == [["1", "2"]] * 3
    after = server.crash("keep")
    forward(after)
    assert after.view() == server.next(server.disk.clone()).view()


def test_routers_log_their_steps_only_on_a_cycle() -> None:
    server = SimServer.start()
    for source, dest in (("a", "b"), ("b", "c"), ("b", "side")):
        route(server, source, dest)

    def logged(name: str) -> int:
        server.append(name, "1")
        before = wal_bytes(server)
        forward(server)
        return wal_bytes(server) - before

    assert logged("a") == 0
    route(server, "c", "a", allow_cycle=True)
    assert logged("a") > 0
    assert [edge.dest.name for edge in server.engine.routers.table.edges.values() if not edge.cyclic] == ["side"]
    server.done(server.engine.routers.drop("b->c"))
    assert logged("a") == 0


def test_copy_on_a_cycle_is_visible_once_it_is_synced() -> None:
    sync = DeferredWorker()
    server = SimServer.start(sync_worker=sync)
    for name in "ab":
        server.engine.put_topic(name, ConfigPatch(durability="fsync"))
        server.engine.flush()
        sync.run_all()
    route(server, "a", "b", allow_cycle=True)
    route(server, "b", "a", allow_cycle=True)
    for data in "12":
        server.engine.append("a", request(data))
        server.engine.flush()
        sync.run_all()
    server.engine.routers.forwarder.run(0)
    server.engine.flush()
    assert server.engine.topic("b").next_seq == 3
    assert (server.data("b"), server.engine.routers.get("a->b").cursor) == ([], 0)
    sync.run_all()
    assert (server.data("b"), server.engine.routers.get("a->b").cursor) == (["1", "2"], 2)


def test_refused_copies_on_a_cycle_are_made_later() -> None:
    server = SimServer.start()
    for name in "ab":
        server.put(name, durability="fsync")
    route(server, "a", "b", allow_cycle=True)
    route(server, "b", "a", allow_cycle=True)
    server.append("a", "1", "2")
    server.fill_log()
    forward(server)
    assert (server.data("b"), server.engine.routers.get("a->b").cursor) == ([], 0)
    wait = server.engine.routers.forwarder.run(0)
    assert wait, "it does not ask again and again"
    server.disk.heal()
    server.tick()
    server.tick()
    server.clock.advance(ms=wait)
    forward(server)
    assert server.by_seq("b") == {1: "1", 2: "2"}
    assert server.by_seq("a") == {1: "1", 2: "2"}
    assert server.crash("lose").by_seq("b") == {1: "1", 2: "2"}


def test_records_of_an_ephemeral_topic_on_a_cycle_stay_off_the_disk() -> None:
    server = SimServer.start()
    server.put("b", durability="ephemeral")
    route(server, "a", "b", allow_cycle=True)
    route(server, "b", "a", allow_cycle=True)
    server.append("a", '"from a"')
    server.append("b", '"from b"')
    forward(server)
    assert server.data("a") == ['"from a"', '"from b"']
    assert sorted(server.data("b")) == ['"from a"', '"from b"']
    after = server.crash("keep")
    forward(after)
    assert (after.data("a"), after.data("b")) == (['"from a"', '"from b"'], [])
    after.append("b", '"more"')
    forward(after)
    assert after.data("a") == ['"from a"', '"from b"', '"more"']


def test_reader_that_waits_for_the_destination_gets_copies() -> None:
    server = SimServer.start()
    route(server, "a", "b")
    woken: list[int] = []
    server.engine.listen(server.engine.topic("b"), lambda topic: woken.append(1))
    server.append("a", "1")
    forward(server)
    server.engine.staging.notify()
    assert woken == [1]
    assert server.engine.read("b", Query())[1].count == 1


# --- copies that the destination could never hold

LARGE = f'"{"x" * 400}"'


def lost(server: SimServer, name: str) -> list[tuple[int, int, str]]:
    return server.walk(name)[1]


def test_copy_larger_than_its_destination_is_a_loss_along_a_chain() -> None:
    server = SimServer.start(clock=BusyClock())
    server.put("b", cap_bytes=200)
    for pair in ("ab", "bc", "cd"):
        route(server, *pair)
    server.append("a", "1", LARGE, "2")
    server.append("a", LARGE)
    assert rests(server)
    server.append("a", "3")
    assert rests(server)
    for name in "bcd":
        assert server.by_seq(name) == {1: "1", 3: "2", 5: "3"}, name
    assert lost(server, "b") == [(2, 2, "cap"), (4, 4, "cap")]
    assert lost(server, "c") == lost(server, "d") == [(2, 2, "source_trim"), (4, 4, "source_trim")]
    assert [server.engine.routers.get(name).lag for name in ("a->b", "b->c", "c->d")] == [0, 0, 0]
    assert server.engine.routers.get("a->b").forwarded_total == 3
    assert server.next(server.disk.clone().crash("keep")).view() == server.view()


@pytest.mark.parametrize("durability", ["disk", "fsync", "ephemeral"])
def test_too_large_copies_of_an_ephemeral_source_stay_lost(durability: str) -> None:
    server = SimServer.start(clock=BusyClock())
    server.put("a", durability="ephemeral")
    server.put("b", durability=durability, cap_bytes=200)
    route(server, "a", "b")
    route(server, "b", "c")
    server.append("a", "1", LARGE, "2")
    assert rests(server)
    server.engine.commits.sync()
    assert rests(server)
    assert (server.by_seq("b"), lost(server, "b")) == ({1: "1", 3: "2"}, [(2, 2, "cap")])
    after = server.crash("keep")
    if durability != "ephemeral":
        assert (after.by_seq("b"), lost(after, "b")[:1]) == ({1: "1", 3: "2"}, [(2, 2, "cap")])
    after.append("a", LARGE, "3")
    forward(after)
    assert after.data("b")[-1:] == after.data("c")[-1:] == ["3"]


def test_copy_too_large_for_a_topic_on_a_cycle_is_lost_once() -> None:
    server = SimServer.start(clock=BusyClock())
    server.put("b", cap_bytes=200)
    for pair in ("ab", "bc", "ca"):
        route(server, *pair, allow_cycle=True)
    server.append("a", "1", LARGE, "2")
    server.append("c", LARGE)
    forward(server)
    assert server.by_seq("b") == {1: "1", 3: "2"}
    assert lost(server, "b") == [(2, 2, "cap"), (4, 4, "cap")]
    assert [reason for _, _, reason in lost(server, "c")] == ["source_trim"] * 2
    view = server.view()
    after = server.crash("keep")
    forward(after)
    assert after.view() == view


def test_copy_too_large_for_a_rejecting_topic_holds_the_router() -> None:
    server = SimServer.start(clock=BusyClock())
    server.put("b", cap_bytes=200, discard="reject")
    route(server, "a", "b")
    route(server, "b", "c")
    server.append("a", "1", LARGE, "2", tag="x")
    assert rests(server)
    held = server.engine.routers.get("a->b")
    assert (held.cursor, held.lag) == (1, 2)
    assert held.edge.last_error is not None
    assert held.edge.last_error.startswith("record_too_large: ")
    assert "cap_bytes" in held.edge.last_error
    assert server.data("c") == ["1"]
    after = server.next(server.disk.clone().crash("keep"))
    assert rests(after)
    assert after.engine.routers.get("a->b").edge.last_error == held.edge.last_error
    server.put("b", cap_bytes=2_000, discard="reject")
    forward(server)
    assert server.data("b") == server.data("c") == ["1", LARGE, "2"]
    assert held.edge.last_error is None


def test_copy_too_large_for_a_queue_is_no_job_there() -> None:
    server = SimServer.start(clock=BusyClock())
    server.put("b", type="queue", cap_bytes=250)
    route(server, "a", "b")
    route(server, "b", "c")
    server.append("a", "1", LARGE, "2")
    assert rests(server)
    for one in (server, server.crash("keep")):
        topic = one.engine.topic("b")
        [(claimed, _)] = [one.engine.queues.claim(topic, [Want(node="w", max=9, lease_ms=1_000)])]
        assert [job.seq for job in claimed[0].jobs] == [1, 3]
        assert (one.data("c"), lost(one, "c")) == (["1", "2"], [(2, 2, "source_trim")])


def test_router_waits_for_a_log_that_refuses_writes() -> None:
    server = SimServer.start(clock=BusyClock())
    server.put("b", cap_records=1, discard="reject", ttl_ms=10_000)
    route(server, "a", "b")
    server.append("a", "1", "2")
    assert rests(server)
    server.clock.advance(ms=10_001)  # there is room now, which the log has to hear of
    server.fill_log()
    assert rests(server)
    assert server.data("b") == []
    server.disk.heal()
    server.tick()
    server.tick()
    server.clock.advance(ms=2_000)
    forward(server)
    assert server.by_seq("b") == {2: "2"}
    assert server.crash("keep").by_seq("b") == {2: "2"}


def test_router_behind_a_waiting_one_does_not_poll() -> None:
    server = SimServer.start()
    server.put("b", cap_records=1, cap_bytes=200)
    route(server, "a", "b")
    route(server, "b", "c")
    server.append("a", LARGE, "1", "2")
    server.fill_log()
    waits = [
        server.engine.routers.forwarder.run(0) or 0
    ]  # b->c has to log that it passes a loss, and a->b waits for it
    while sum(waits) < 5_000:
        server.clock.advance(ms=waits[-1])
        waits.append(server.engine.routers.forwarder.run(0) or 0)
    assert len(waits) < 20
    server.disk.heal()
    server.tick()
    server.tick()
    server.clock.advance(ms=1_000)
    forward(server)
    assert (server.by_seq("b"), server.by_seq("c")) == ({3: "2"}, {2: "1", 3: "2"})


def test_writes_staged_behind_a_reported_loss_keep_their_seqs() -> None:
    server = SimServer.start(segments=SegmentLimits())
    server.put("a", cap_records=1)
    route(server, "a", "b")
    engine = server.engine
    for name, data in (("a", ["1"]), ("a", ["2", "3"]), ("b", ["4"]), ("b", ["5"])):  # in one turn
        engine.append(name, request(*data))
    engine.flush()
    assert server.append("b", "6").first == 5
    forward(server)
    assert server.by_seq("b") == server.crash("keep").by_seq("b") == {3: "4", 4: "5", 5: "6", 6: "3"}


@pytest.mark.parametrize("made", [True, False])
def test_dead_job_is_not_copied_after_a_restart(made: bool) -> None:
    server = SimServer.start()
    server.put("q", type="queue", max_deliveries=1, dead_letter="dead")
    if made:
        server.put("dead")
    route(server, "q", "copy")
    server.append("q", "1", "2", "3")
    engine = server.engine
    for _ in range(2):
        engine.queues.claim(engine.queues.get("q"), [Want(node="w", max=1, lease_ms=100)])
        engine.flush()
        server.clock.advance(ms=101)
    forward(server)
    assert (server.data("dead"), server.data("copy")) == (["1"], ["2", "3"])
    after = server.next(server.disk.clone().crash("keep"))
    forward(after)
    assert (after.data("dead"), after.by_seq("copy")) == (["1"], server.by_seq("copy"))


def test_redriven_job_is_not_copied_after_a_restart() -> None:
    server = SimServer.start()
    server.put("q", type="queue", max_deliveries=1, dead_letter="dead")
    server.append("q", "1", "2")
    engine = server.engine
    for _ in range(2):
        engine.queues.claim(engine.queues.get("q"), [Want(node="w", max=2, lease_ms=100)])
        engine.flush()
        server.clock.advance(ms=101)
    route(server, "dead", "copy", from_seq=0)
    queue = engine.queues.get("q")
    server.done(
        engine.queues.dead_letters.redrive(
            queue, dead_letter=None, match=None, seqs=[1], from_seq=0, limit=9, dry_run=False
        )
    )
    forward(server)
    assert (server.data("dead"), server.data("copy")) == (["2"], ["2"])
    after = server.crash("keep")
    forward(after)
    assert (after.data("dead"), after.by_seq("copy")) == (["2"], {1: "2"})


def test_fourteen_levels_of_twins_are_refused() -> None:
    server = SimServer.start(SimDisk(seed=7))
    routers = server.engine.routers
    for name, level in ((f"{level}{twin}", level) for level in range(12) for twin in "xy"):
        server.done(routers.put(name, RouterRequest(source=f"t{level}", dest=f"t{level + 1}")))
    with pytest.raises(TopicsError) as refused:
        routers.put("12x", RouterRequest(source="t12", dest="t13"))
    assert (refused.value.code, refused.value.detail) == (Code.THROTTLED, {"limit": "max_copies", "max": 10_000})


def copies_with(limit: int, pairs: list[str]) -> tuple[str | None, int]:
    """Return the first pair of topics whose router is refused, and the most copies that one record gets without it."""
    server = SimServer.start(SimDisk(seed=7), max_copies=limit)
    refused = None
    for number, (source, dest) in enumerate(pairs):
        wanted = RouterRequest(source=source, dest=dest, allow_cycle=True)
        try:
            server.done(server.engine.routers.put(f"r{number}", wanted))
        except TopicsError:
            refused = f"{source}{dest} {number}"
            break
    most = 0
    for name in list(server.engine.topics):
        before = sum(topic.head for topic in server.engine.topics.values())
        server.append(name, "1")
        forward(server)
        most = max(most, sum(topic.head for topic in server.engine.topics.values()) - before - 1)
    return refused, most


@pytest.mark.parametrize(
    ("limit", "pairs", "refused", "most"),
    [
        pytest.param(100, ["BC"] * 7 + ["CD"] * 7 + ["BA"] + ["AB"] * 50, "AB 16", 57, id="twins after the ring"),
        pytest.param(100, ["AB"] * 9 + ["BC"] * 9 + ["CA"] + ["CD"] * 9, "CD 19", 90, id="tail of a ring"),
        pytest.param(40, ["AB", "BA"] + ["AC"] * 5 + ["CE"] * 5 + ["BD"] * 20, "BD 21", 40, id="tails of two topics"),
    ],
)
def test_copies_are_limited_wherever_the_record_is_written(
    limit: int, pairs: list[str], refused: str, most: int
) -> None:
    assert copies_with(limit, pairs) == (refused, most)


def test_ring_longer_than_the_hop_limit_counts_hops() -> None:
    ring = "ABCDEFGHIJKLMNOPQRSTUVWX"
    pairs = [f"{a}{b}" for a, b in zip(ring, ring[1:] + ring[0], strict=True)]
    assert copies_with(25, [*pairs, *pairs[:1] * 9]) == ("AB 24", 16)


def test_clock_that_is_set_back_does_not_delay_a_retry() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.put("full", cap_records=1, discard="reject")
    route(server, "source", "full")
    server.append("source", "1", "2")
    forward(server)
    edge = server.engine.routers.table.by_name["source->full"].edge
    assert edge.last_error is not None
    server.clock.set(ms=server.clock.now_ms() - 3_600_000)
    server.put("full", cap_records=2)
    server.clock.advance(ms=1_000)
    server.engine.routers.forwarder.run(0)
    server.engine.flush()
    server.engine.routers.forwarder.run(0)
    assert server.engine.topic("full").count == 2


def test_source_without_routers_again_costs_what_any_topic_does() -> None:
    server = SimServer.start()
    route(server, "source", "dest")
    server.done(server.engine.routers.drop("source->dest"))
    source = server.engine.topic("source")
    assert (source.links, source.listeners) == (None, {})
