"""Routers and a crash at every file call: copies agree with their source, and keep their seqs on a cycle."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.routers.random_history import Film, check_unchanged, looks
from tests.sampling import SEED
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.draining import drain
from tests.simulated.harness import SimServer, TopicView, request
from tests.simulated.inode import CrashMode
from topics.engine.delays import FEW_STEPS
from topics.model.records import TagMatch
from topics.model.router import RouterRequest
from topics.storage.segments.cold import waiting

BOTH = ["And", [["tag", "Eq", "x"], ["Or", [["data", "Ge", 1], ["data", "Eq", "direct"]]]]]


def scene(server: SimServer) -> Iterator[None]:
    """Appends, forwards and cursors in every order that matters, with a chain, a filter and a direct write."""
    routers = server.engine.routers
    server.put("a", durability="fsync")
    server.put("b", durability="fsync")
    yield
    server.done(routers.put("ab", RouterRequest(source="a", dest="b")))
    server.done(routers.put("bc", RouterRequest(source="b", dest="c", filter=BOTH, guarantee="exactly_once")))
    yield
    server.append("a", "1", "2", tag="x")
    yield
    drain(server.engine)
    yield
    server.append("b", '"direct"', tag="x")
    server.append("a", "3")
    yield
    server.delete("a", match=TagMatch("Eq", "x"))
    drain(server.engine)
    yield
    server.checkpoint()
    server.append("a", "4", "5", tag="x")
    server.delete("b", before_seq=3)
    yield
    drain(server.engine)
    server.put("a", durability="fsync", cap_records=2)
    server.append("a", "6", "7", tag="x")
    yield
    drain(server.engine)
    server.done(routers.drop("bc"))
    server.append("a", "8")
    drain(server.engine)
    yield


MODES: list[CrashMode] = ["keep", "lose", "tear", "reorder", "zero"]


def scene_in_turns(server: SimServer) -> Iterator[None]:
    """Writes whose copies are made in the same turn of the loop, before they are answered, as `Forwarding` does."""
    engine, commits = server.engine, server.engine.commits
    routers, forwarder = engine.routers, engine.routers.forwarder

    def turn(*writes: tuple[str, str]) -> None:
        for name, data in writes:
            engine.append(name, request(data, tag="x"))
        commits.copy_now = lambda: waiting(lambda: forwarder.run(0, most=FEW_STEPS))
        commits.end_turn()
        commits.copy_now = None

    server.put("a", durability="fsync")
    server.put("b", durability="disk")
    server.put("c", durability="fsync", cap_records=3)
    server.done(routers.put("ab", RouterRequest(source="a", dest="b")))
    server.done(routers.put("bc", RouterRequest(source="b", dest="c", filter=BOTH, guarantee="exactly_once")))
    for number in range(3, 6):
        turn(("a", str(number)))
        yield
        turn(("a", str(number) + "1"), ("b", '"direct"'), ("a", str(number) + "2"))
        yield
    assert server.engine.topic("b").head == 12, "the copies were made in these turns"
    server.checkpoint()
    engine.append("a", request("61"))
    server.done(routers.drop("bc"))
    turn(("a", "62"))
    yield
    server.done(routers.put("bc", RouterRequest(source="b", dest="c", guarantee="exactly_once", from_seq=0)))
    turn(("a", "63"))
    yield


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.torture)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scene", [scene, scene_in_turns])
def test_copies_agree_with_their_source_after_any_crash(
    scene: Callable[[SimServer], Iterator[None]], mode: CrashMode, every: int
) -> None:
    disk = Film(seed=SEED)
    moments: list[SimDisk] = []
    server = SimServer.start(disk)
    disk.on_call = moments.append
    for _ in scene(server):
        moments.append(disk.clone())
    disk.on_call = None
    for at in range(MODES.index(mode) % every, len(moments), every):
        try:
            check_copies(SimServer(moments[at], clock=SimClock(server.clock.now_ms())).crash(mode))
        except BaseException as error:
            error.add_note(f"seed {SEED}, moment {at} of {len(moments)}, {mode}")
            raise


def check_copies(after: SimServer) -> None:
    """The source is `fsync`: every record that it still has was copied exactly once, in order."""
    engine = after.engine
    drain(engine)
    if "ab" in engine.routers.table.by_name:
        assert engine.routers.get("ab").lag == 0
        source, copies = after.data("a"), [data for data in after.data("b") if data != '"direct"']
        assert copies == sorted(copies) == sorted(set(copies)), "in order, and none twice"
        assert set(source) <= set(copies) | {"1", "2"}, "what is there was forwarded, or went with b's own delete"
    found = after.view()
    again = after.crash("keep")
    drain(again.engine)
    assert again.view() == found


def ring(server: SimServer) -> Iterator[None]:
    """Three topics in a circle, two of them with bounds, written to on all sides, opened and closed again."""
    routers = server.engine.routers
    server.put("a", durability="fsync")
    server.put("b", durability="fsync", cap_records=4)
    server.put("c", durability="fsync", cap_bytes=150)
    circle = ["ab", "bc", "ca"]
    for pair in circle:
        server.done(routers.put(pair, RouterRequest(source=pair[0], dest=pair[1], allow_cycle=True)))
    yield
    for number in range(3):
        for name in "abc":
            server.append(name, str(number), f'"{name}{number}"')
        yield
        drain(server.engine)
        yield
    server.checkpoint()
    server.append("b", "7")
    server.put("a", durability="fsync", cap_records=3)
    drain(server.engine)
    yield
    server.done(routers.drop("ca"))
    server.append("a", "8")
    drain(server.engine)
    yield
    server.done(routers.put("ca", RouterRequest(source="c", dest="a", allow_cycle=True, guarantee="exactly_once")))
    server.append("c", "9")
    drain(server.engine)
    yield


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.torture)])
@pytest.mark.parametrize("mode", MODES)
def test_records_on_a_cycle_keep_their_seqs_after_any_crash(mode: CrashMode, every: int) -> None:
    disk = Film(seed=SEED)
    server = SimServer.start(disk)
    seen: dict[str, TopicView] = {}
    moments: list[tuple[SimDisk, dict[str, TopicView]]] = []
    disk.on_call = lambda copy: moments.append((copy, seen))
    for _ in ring(server):
        seen = looks(server)
        moments.append((disk.clone(), seen))
    disk.on_call = None
    for at, (moment, before) in enumerate(moments):
        if at % every != MODES.index(mode) % every:
            continue
        try:
            after = SimServer(moment, clock=SimClock(server.clock.now_ms())).crash(mode)
            check_unchanged({**looks(after), **before}, after)
            drain(after.engine)
            check_unchanged({**looks(after), **before}, after)
            found = looks(after)
            assert looks(after.crash("keep")) == found
            if mode in ("keep", "lose", "tear"):
                reasons = {run[2] for view in found.values() for run in view.losses}
                assert reasons <= {"evicted", "source_trim"}
        except BaseException as error:
            error.add_note(f"seed {SEED}, moment {at} of {len(moments)}, {mode}")
            raise
