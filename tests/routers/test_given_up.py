"""Records that routers give up: a restart gives up the same ones, and reports them under the same seqs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ServerProcess
from tests.contract.api import Api, eventually
from tests.routers.random_history import drain
from tests.simulated.disk import SimDisk
from tests.simulated.harness import DeferredWorker, SimServer, request
from tests.simulated.inode import CrashMode
from topics.model.router import RouterRequest
from topics.model.topic import ConfigPatch

MODES: list[CrashMode] = ["keep", "lose", "tear"]
Seen = tuple[dict[int, str], list[tuple[int, int, str]]]


def route(server: SimServer, source: str, dest: str, *, number: int = 1, **fields: object) -> None:
    wanted = RouterRequest(source=source, dest=dest, **fields)  # type: ignore[arg-type]
    server.done(server.engine.routers.put(f"{source}>{dest}{number}", wanted))


def seen(server: SimServer, name: str) -> Seen:
    return server.by_seq(name), list(server.engine.topics[name].losses.runs)


def restarted(server: SimServer, mode: CrashMode) -> SimServer:
    after = server.next(server.disk.clone().crash(mode))
    after.engine.replay_all()
    after.engine.routers.attach()
    return after


def change_cap(server: SimServer) -> None:
    server.put("t", cap_records=3)


def change_ttl(server: SimServer) -> None:
    server.put("t", ttl_ms=35)


def delete_after_expiry(server: SimServer) -> None:
    server.clock.advance(ms=20)
    server.done(server.engine.delete_seqs("t", [6]))


@pytest.mark.parametrize(
    ("cyclic", "dest", "mode"),
    [
        *((False, dest, mode) for dest in ("disk", "fsync") for mode in MODES),
        *((True, "fsync", mode) for mode in MODES),  # copies on a cycle are as durable as their own topic
        (True, "disk", "keep"),
    ],
)
@pytest.mark.parametrize(
    ("config", "change"),
    [
        pytest.param({}, change_cap, id="cap"),
        pytest.param({}, change_ttl, id="ttl"),
        pytest.param({"ttl_ms": 55}, delete_after_expiry, id="delete"),
    ],
)
def test_filtered_router_gives_up_the_same_after_a_crash(
    config: dict[str, Any], change: Callable[[SimServer], None], dest: str, mode: CrashMode, cyclic: bool
) -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.put("t", durability="fsync", **config)
    server.put("s", durability=dest)
    route(server, "t", "s", filter="a")
    if cyclic:
        route(server, "s", "t", filter="z", allow_cycle=True)
    for number, tag in enumerate("caaaaacc", 1):
        server.append("t", str(number), tag=tag)
        server.clock.advance(ms=10)
    change(server)
    early = restarted(server, mode)  # before the server has logged what the router gives up
    drain(server)
    given_up = [(1, 4, "source_trim")]
    assert server.engine.topic("s").losses.runs == given_up

    for after in (early, restarted(server, mode)):
        drain(after)
        records, losses = seen(after, "s")
        assert ([run for run in losses if run[2] != "restart"], records) == (given_up, server.by_seq("s"))
        assert after.recovered is not None
        again = restarted(after, "keep")
        drain(again)
        assert (seen(again, "s"), again.recovered and again.recovered.damage) == ((records, losses), [])


def chain(mode: str = "disk", **last: Any) -> SimServer:
    """Return a server with a chain of three topics: the second keeps three records, and the third rejects."""
    server = SimServer.start(SimDisk(seed=7))
    server.put("t", durability=mode)
    server.put("s", durability=mode, cap_records=3)
    server.put("q", durability=mode, cap_records=4, discard="reject", **last)
    route(server, "t", "s")
    route(server, "s", "q")
    return server


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("forwards", [False, True])
def test_restart_respects_the_cap_of_a_topic_that_rejects(forwards: bool, mode: CrashMode) -> None:
    server = chain("fsync")
    server.append("t", *map(str, range(1, 11)))
    before = server.disk.clone()
    drain(server)
    assert seen(server, "q") == ({number: str(number) for number in range(1, 5)}, [(5, 7, "source_trim")])

    after = restarted(server, mode) if forwards else restarted(server.next(before), mode)
    assert after.engine.topic("q").count == 4, "a start keeps to the cap"
    drain(after)
    assert [seen(after, name) for name in "tsq"] == [seen(server, name) for name in "tsq"]
    assert after.engine.routers.get("s>q1").edge.last_error is not None
    after.delete("q", before_seq=4)
    drain(after)
    assert seen(after, "q") == ({4: "4", 8: "8", 9: "9", 10: "10"}, [(5, 7, "source_trim")])


def test_restart_leaves_records_to_a_topic_that_has_room_by_now() -> None:
    server = chain(ttl_ms=100)
    server.append("t", *map(str, range(1, 11)))
    after = server.next(server.disk.clone().crash("keep"))
    after.clock.advance(ms=1000)
    after.engine.routers.attach()
    drain(after)
    assert seen(after, "q") == ({number: str(number) for number in range(5, 9)}, [(1, 4, "ttl")])


def test_restart_keeps_to_the_caps_of_several_topics_behind_a_small_one() -> None:
    server = chain()
    server.put("p", cap_records=2, discard="reject")
    route(server, "s", "p")
    route(server, "s", "old")
    server.append("t", *map(str, range(1, 500)))
    after = restarted(server, "keep")
    assert [after.engine.topic(name).count for name in ("q", "p")] == [4, 2]
    drain(after)
    drain(server)
    assert [seen(after, name) for name in ("s", "q", "p", "old")] == [
        seen(server, name) for name in ("s", "q", "p", "old")
    ]


def test_seqs_that_expiry_took_are_shown_only_once_they_are_safe() -> None:
    sync = DeferredWorker()
    server = SimServer.start(SimDisk(seed=7), sync_worker=sync)
    for name in "ts":
        server.engine.put_topic(name, ConfigPatch(durability="fsync", ttl_ms=50 if name == "t" else 0))
        server.engine.commits.sync()
    server.engine.routers.put("t>s", RouterRequest(source="t", dest="s"))
    server.engine.append("t", request("1", "2", "3"))
    server.engine.commits.sync()
    server.clock.advance(ms=100)
    assert server.data("t") == []
    server.engine.flush()
    shown = seen(server, "s")
    after = restarted(server, "lose")
    assert shown == ({}, [])
    assert after.engine.topic("s").head == 3

    sync.run_all()
    assert seen(server, "s") == seen(restarted(server, "lose"), "s") == ({}, [(1, 3, "source_trim")])


def test_kill_leaves_a_topic_that_rejects_within_its_cap(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "1", {"data_dir": tmp_path / "data"})
    api = Api(server.url)
    for name, config in {"t": {}, "s": {"cap_records": 100}, "q": {"cap_records": 500, "discard": "reject"}}.items():
        api.put(name, **config)
    for source, dest in ("ts", "sq"):
        api.call("PUT", f"/v0/routers/{source}-{dest}", {"source": source, "dest": dest})
    api.write("t", *range(10_000))
    server.kill()
    api.close()

    server = ServerProcess(tmp_path / "2", {"data_dir": tmp_path / "data"})
    api = Api(server.url)
    eventually(lambda: api.state("s"), lambda state: state["head_seq"] == 10_000)
    assert api.state("q")["count"] == 500
    api.refused(422, "topic_full", "POST", "/v0/topics/q", {"records": [{"data": 1}]})
    api.close()
    server.stop()


def test_copies_keep_their_time_when_a_full_topic_took_them_later() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.put("t", durability="fsync")
    server.put("q", durability="fsync", cap_records=1, discard="reject")
    route(server, "t", "q")
    server.append("t", "1", "2")
    drain(server)
    server.clock.advance(ms=5000)
    server.delete("q", before_seq=2)
    drain(server)
    rows = server.walk("q")[0]
    assert rows
    assert restarted(server, "lose").walk("q")[0] == rows
