"""Ephemeral topics over restarts: records are lost and reported, and no seq is given out again."""

from __future__ import annotations

import errno
import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.contract.api import Api
from tests.live.events import Events
from tests.queues.harness import Workshop
from tests.simulated.disk import FOREVER, SimDisk
from tests.simulated.draining import drain
from tests.simulated.harness import SimServer
from tests.simulated.inode import CrashMode
from topics.errors import TopicsError
from topics.model.router import RouterRequest

CRASHES: list[CrashMode] = ["keep", "lose", "tear", "reorder", "zero"]


def route(server: SimServer, source: str, dest: str, **fields: object) -> None:
    server.done(server.engine.routers.put(f"{source}->{dest}", RouterRequest(source=source, dest=dest, **fields)))


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


@pytest.mark.parametrize("mode", CRASHES)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_crash_never_reuses_an_ephemeral_seq(mode: CrashMode, checkpoint: bool) -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.put("e", durability="ephemeral")
    server.append("e", *numbers(1, 30))
    if checkpoint:
        server.checkpoint()
    server.append("e", *numbers(31, 60))

    after = server.crash(mode)
    tombstone = after.read("e", 60).tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.reason) == (61, "restart")
    assert after.append("e", "61").first > 60
    assert after.engine.topic("e").epoch == server.engine.topic("e").epoch


@pytest.mark.parametrize("mode", CRASHES)
def test_ephemeral_seqs_past_many_ceilings_are_never_reused(mode: CrashMode) -> None:
    server = SimServer.start(SimDisk(seed=7))
    given: set[int] = set()
    for _ in range(3):
        for _ in range(12):
            landed = server.append("e", *numbers(1, 1_000), durability="ephemeral")
            seqs = set(range(landed.first, landed.last + 1))
            assert not seqs & given
            given |= seqs
        server = server.crash(mode)
        if "e" not in server.engine.topics:
            return  # the disk forgot the topic itself: the next one of that name has another epoch


def test_first_write_above_the_first_ceiling_keeps_its_seqs() -> None:
    for mode in CRASHES:
        server = SimServer.start(SimDisk(seed=7))
        landed = server.append("e", *numbers(1, 9_000), durability="ephemeral")
        after = server.crash(mode)
        assert "e" in after.engine.topics
        assert after.append("e", "1").first > landed.last


def test_orderly_stop_skips_no_ephemeral_seq() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.append("e", *numbers(1, 20), durability="ephemeral")
    after = server.stop()
    assert after.walk("e") == ([], [(1, 20, "restart")])
    assert after.append("e", "21").first == 21
    again = after.crash("keep")
    assert again.append("e", "22").first > 21


def test_start_that_cannot_write_its_log_reuses_no_ephemeral_seq() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.append("e", "1", durability="ephemeral")
    server.close()
    server.disk.fail(at=len(server.disk.calls), op="allocate", error=errno.ENOSPC, times=FOREVER)
    full = server.next(server.disk)
    with pytest.raises(TopicsError, match="nothing can be written"):
        full.append("e", "2")
    server.disk.heal()
    after = full.next(full.disk.crash("keep"))
    assert after.append("e", "3").first == 2


def test_ephemeral_topic_on_a_full_disk_is_writable_up_to_its_ceiling() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.append("e", "1", durability="ephemeral")
    server.fill_log()
    while (last := server.engine.topic("e").head) < 3_500:
        server.append("e", *numbers(1, 500))
    with pytest.raises(TopicsError, match="nothing can be written"):
        server.append("e", *numbers(1, 1_000))
    server.disk.heal()
    after = server.next(server.disk.crash("keep"))
    assert after.append("e", "2").first > last


def test_exactly_once_stamps_of_an_ephemeral_source_never_repeat() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.put("e", durability="ephemeral")
    route(server, "e", "d", guarantee="exactly_once")
    for start in range(3):
        server.append("e", *numbers(start * 10, start * 10 + 4))
        drain(server.engine)
        server = server.crash("keep")
    rows = [json.loads(row) for row in server.walk("d")[0]]
    keys = [row["meta"]["_topics_router"]["key"] for row in rows]
    assert len(keys) == len(set(keys)) == 15
    assert [row["data"] for row in rows] == [start * 10 + at for start in range(3) for at in range(5)]


def test_records_not_forwarded_from_an_ephemeral_source_are_reported() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.put("e", durability="ephemeral")
    route(server, "e", "d")
    server.append("e", "1", "2")
    drain(server.engine)
    server.append("e", "3")
    after = server.crash("keep")
    after.append("e", "4")
    drain(after.engine)
    assert after.data("d") == ["1", "2", "4"]
    [(first, _, reason)] = after.walk("d")[1]
    assert (first, reason) == (3, "source_trim")


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory", "ephemeral"])
def test_copies_into_an_ephemeral_topic_never_reuse_its_seqs(durability: str) -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.put("a", durability=durability)
    server.put("e", durability="ephemeral")
    route(server, "a", "e")
    for mode in ("keep", "keep", "lose"):
        before = server.engine.topic("e").head
        server.append("e", *numbers(1, 3_000))
        server.append("a", *numbers(1, 4_000))
        server.append("a", *numbers(1, 4_000))
        drain(server.engine)
        head = server.engine.topic("e").head
        assert head == before + 11_000
        server = server.crash(mode)  # type: ignore[arg-type]
        assert server.append("e", "1").first > head


def test_full_disk_stops_copies_into_an_ephemeral_topic_at_its_ceiling() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.put("e", durability="ephemeral")
    server.put("a", durability="disk")
    route(server, "a", "e")
    server.append("a", *numbers(1, 9_000))
    server.fill_log()
    drain(server.engine)
    held = server.engine.topic("e").head
    assert 0 < held < 9_000
    assert server.engine.routers.forwarder.run(0), "it comes back later instead of trying again and again"
    assert server.crash("keep").append("e", "1").first > held


def test_chain_through_an_ephemeral_topic_copies_each_record_once() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.put("e", durability="ephemeral")
    route(server, "a", "e")
    route(server, "e", "d")
    server.append("a", "1", "2", "3")
    drain(server.engine)
    after = server.crash("keep")
    drain(after.engine)
    assert after.data("d") == ["1", "2", "3"]
    after.append("a", "4")
    drain(after.engine)
    assert after.data("d") == ["1", "2", "3", "4"]


def test_jobs_of_an_ephemeral_queue_get_new_seqs_after_a_crash() -> None:
    shop = Workshop(durability="ephemeral")
    before = shop.write("1", "2", "3")
    shop.claim("a", 2)
    after = shop.restart("keep")
    assert after.counts == (0, 0, 0)
    assert min(after.write("4")) > max(before)
    assert [one["data"] for one in after.claim("a", 9)] == [4]


def test_dead_letters_in_an_ephemeral_topic_never_reuse_its_seqs() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.put("grave", durability="ephemeral")
    shop = Workshop(server, max_deliveries=1, dead_letter="grave")
    for mode in ("keep", "stop", "keep"):
        seqs = shop.write(*numbers(1, 5_000))
        for _ in range(60):
            shop.claim("a", 10_000, lease_ms=10)
            shop.server.engine.flush()
            shop.clock.advance(ms=20)
        grave = shop.server.engine.topic("grave")
        assert grave.count >= len(seqs)
        head = grave.head
        shop = shop.restart(mode)
        assert shop.server.append("grave", "1").first > head


def test_losses_of_an_ephemeral_topic_never_overlap() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.put("a", cap_records=1)
    server.put("e", durability="ephemeral")
    route(server, "a", "e")
    for number in range(1, 6):
        server.append("a", str(number), str(-number), str(number))  # two of three are gone before they are copied
        drain(server.engine)
    assert len(server.engine.topic("e").losses.runs) > 1
    server.checkpoint()
    for after in (server.next(server.disk.clone().crash("keep")), server.stop()):
        runs = after.engine.topic("e").losses.runs
        assert all(before[1] < behind[0] for before, behind in pairwise(runs))
        assert runs[-1][1] == after.engine.topic("e").head


def test_readers_of_a_killed_server_get_a_gap_for_ephemeral_records(start_server: StartServer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start_server(data_dir=data)
    api = Api(server.url)
    api.put("e", durability="ephemeral")
    api.write("e", *range(60))
    session = api.call("POST", "/v0/watch", {"topics": {"e": {"from_seq": 0}}}).json()
    events = Events(server.url, session["stream_url"])
    while events.next().event != "caught-up":
        pass
    cursor, last_id = events.last_id, events.last_id
    events.close()
    api.close()
    server.kill()

    again = start_server(data_dir=data)
    api = Api(again.url)
    api.write("e", *range(80))
    answer = api.diff("e", from_seq=60)
    assert answer["tombstone"]["gap_from"] == 61
    assert answer["tombstone"]["reason"] == "restart"
    assert answer["tombstone"]["gap_to"] == answer["records"][0]["$seq"] - 1
    assert len(answer["records"]) == 80
    session = api.call("POST", "/v0/watch", {"topics": {"e": {}}, "cursor": cursor}).json()
    resumed = Events(again.url, session["stream_url"], last_id=last_id)
    first = resumed.next()
    assert (first.event, first.data["gap_from"]) == ("tombstone", 61)
    assert resumed.next().seqs[0] == answer["records"][0]["$seq"]
    resumed.close()
    api.close()


def test_start_without_log_to_replay_keeps_its_reports() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.put("e", durability="ephemeral")
    route(server, "e", "d")
    server.append("e", "1")
    server.checkpoint()
    after = server.crash("keep")
    after.append("d", '"direct"')
    found = after.walk("d")
    assert found[1][0][2] == "source_trim"
    again = after.crash("keep")
    assert again.walk("d") == found
    assert again.recovered is not None
    assert again.recovered.damage == []
