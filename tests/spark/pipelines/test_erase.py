"""Erase: a tag is removed from topics, from copies with and without tags, and from the lake; the rest stays."""

from __future__ import annotations

import json
import random
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conftest import SMALL_PARTS, ServerProcess, StartServer
from tests.spark.lakes import archive
from tests.spark.processes import Process, wait_for
from topics.cli.main import main
from topics.client import Client
from topics.client.request import Record
from topics.lake import Lake
from topics.lake.lake import LakeErasure
from topics.spark.pipelines import erase as module
from topics.spark.pipelines.erase import erase, parse
from topics.spark.pipelines.run.job import BadUsage, Failed

GOES = "user-42:*"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without the topics of other tests: an erase looks at all of them."""
    directory = tmp_path_factory.mktemp("alone")
    server = ServerProcess(directory, {"data_dir": directory / "data", **SMALL_PARTS})
    yield server
    server.stop()


@pytest.fixture
def world(alone: ServerProcess, tmp_path: Path) -> Iterator[World]:
    with Client(alone.url) as client:
        yield World(client, alone.url, tmp_path / "lake")
        for one in client.topics():
            client.drop_topic(one.topic)


class World:
    """Topics, routers and a lake."""

    def __init__(self, client: Client, url: str, lake: Path) -> None:
        self.client, self.url, self.lake = client, url, lake

    def write(self, topic: str, *rows: tuple[str | None, Any], **more: Any) -> None:
        records = [{"data": data, **({} if tag is None else {"tag": tag}), **more} for tag, data in rows]
        self.client.append(topic, records)

    def route(self, source: str, dest: str, **config: Any) -> None:
        body = json.dumps({"source": source, "dest": dest, **config}).encode()
        asked = urllib.request.Request(
            f"{self.url}/v0/routers/{source}-{dest}", body, {"content-type": "application/json"}, method="PUT"
        )
        urllib.request.urlopen(asked).close()

    def forwarded(self) -> None:
        def done() -> bool:
            return all(one.lag == 0 for one in self.client.routers())

        wait_for(done, "the routers", every_s=0.01)

    def live(self, topic: str) -> list[Any]:
        return [item.value for item in self.client.read(topic) if isinstance(item, Record)]

    def archived(self, topic: str) -> list[Any]:
        lake = Lake(str(self.lake))
        epochs = lake.snapshot().epochs(topic)
        batches = [batch for archived_epoch in epochs for batch in lake.read(topic, archived_epoch.epoch)]
        return [json.loads(text) for batch in batches for text in batch.column("data").to_pylist()]

    def erase(self, match: str = GOES, **options: Any) -> Any:
        return erase(url=self.url, match=match, lake=str(self.lake) if self.lake.exists() else None, **options)

    def everything(self) -> dict[str, list[Any]]:
        topics = [one.topic for one in self.client.topics() if not one.topic.startswith("sys:")]
        found = {name: self.live(name) for name in topics}
        if self.lake.exists():
            found |= {f"lake {name}": self.archived(name) for name in Lake(str(self.lake)).snapshot().topics()}
        return found


def counts_by_store(report: Any) -> dict[str, int]:
    return {("lake " if row.into else "") + row.topic: row.records for row in report.topics if row.records}


def test_tag_is_erased_from_topics_copies_and_lake(world: World):
    world.route("orders", "audit")
    world.route("audit", "audit2", preserve_node=False)
    world.write("orders", ("user-42:a", 1), ("user-7", 2), ("user-42:b", 3), (None, 4), ("user-420", 5))
    world.write("other", ("user-42:c", 6), ("x", 7))
    world.forwarded()
    for topic in ("orders", "audit2"):
        archive(world.client, world.lake, topic)
    dry = world.erase(dry_run=True)
    expected = {"orders": 2, "audit": 2, "audit2": 2, "other": 1, "lake orders": 2, "lake audit2": 2}
    assert counts_by_store(dry) == expected
    assert world.live("orders") == [1, 2, 3, 4, 5]
    assert world.archived("orders") == [1, 2, 3, 4, 5]
    report = world.erase()
    assert counts_by_store(report) == expected
    assert (report.figures["topics"], report.figures["lake"], report.figures["lake_files"]) == (7, 4, 2)
    stays = {"orders": [2, 4, 5], "audit": [2, 4, 5], "audit2": [2, 4, 5], "other": [7]}
    assert world.everything() == stays | {"lake orders": [2, 4, 5], "lake audit2": [2, 4, 5]}
    reported = [item.value for item in world.client.read("sys:pipelines") if isinstance(item, Record)]
    assert (reported[-1]["pipeline"], reported[-1]["figures"]["topics"]) == ("erase", 7)
    assert counts_by_store(world.erase()) == {}


STAMPED = {"preserve_tag": False, "guarantee": "exactly_once"}


@pytest.mark.parametrize("further", [pytest.param(STAMPED, marks=pytest.mark.torture), {}])
def test_copies_without_tags_are_found_by_origin(world: World, further: dict[str, Any]):
    world.route("a", "b", **STAMPED)
    world.route("b", "c", **further)
    world.write("a", ("user-42:x", {"n": 1}), ("user-7:x", {"n": 2}), meta={"k": 1})
    world.write("a", ("user-42:x", {"n": 3}), (None, {"n": 4}))
    world.forwarded()
    for topic in "abc":
        archive(world.client, world.lake, topic)
    report = world.erase()
    assert report.ok
    assert world.everything() == {
        store: [{"n": 2}, {"n": 4}] for store in ("a", "b", "c", "lake a", "lake b", "lake c")
    }
    assert {row.topic: row.figures["copies"] for row in report.topics if not row.into} == {"a": 0, "b": 2, "c": 2}


def test_copies_without_tags_are_looked_for_in_tasks(spark: Any, world: World, monkeypatch: pytest.MonkeyPatch):
    """The driver reads no records: there, a scan of a topic or of a file of the lake fails."""
    monkeypatch.setattr(module, "TASK_BYTES", 100)
    world.route("a", "b", **STAMPED)
    world.write("a", *((f"user-{42 + n % 2}:x", {"n": n}) for n in range(20)), meta=msgspec.Raw(rb'{"k\ud83d": 1}'))
    world.forwarded()
    archive(world.client, world.lake, "a")

    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Client, "scan", fail)
        patch.setattr(Lake, "read", fail)
        report = world.erase(spark=spark)
    assert report.figures["copies"] == 10
    assert report.execution.engine == "spark"
    assert world.everything() == {store: [{"n": n} for n in range(1, 20, 2)] for store in ("a", "b", "lake a")}


def test_same_content_without_an_erased_origin_stays(world: World):
    world.route("a", "b", **STAMPED)
    world.write("a", ("user-7", "same"), ("user-42:x", "same"))
    world.forwarded()
    world.write("b", (None, "same"))
    archive(world.client, world.lake, "b")
    report = world.erase(topics=["a"])
    assert counts_by_store(report) == {"a": 1, "b": 1, "lake b": 1}
    assert [item.seq for item in world.client.read("b") if isinstance(item, Record)] == [1, 3]
    assert (report.ok, len(world.archived("b"))) == (True, 2)


def test_copies_without_tag_and_origin_are_kept_and_reported(world: World, capsys: pytest.CaptureFixture[str]):
    world.route("a", "b", preserve_tag=False)
    world.write("a", ("user-42:x", "same"), ("user-7", "same"), ("user-42:y", "own"))
    world.forwarded()
    assert main(["pipeline", "erase", "--url", world.url, "--match", GOES, "--dry-run"]) == 1
    warning = "router a-b has forwarded 2 erased records without tag and origin: the copies are still in b"
    assert f"warning: {warning}" in capsys.readouterr().out
    report = world.erase()
    assert (report.ok, report.figures["untraceable"], report.warnings[0][: len(warning)]) == (False, 2, warning)
    assert (world.live("a"), world.live("b")) == (["same"], ["same", "same", "own"])


@pytest.mark.parametrize("routed", [False, True])
def test_dead_jobs_are_traced_to_their_dead_letter_topic(world: World, routed: bool):
    world.client.put_topic("jobs", type="queue", max_deliveries=1, lease_ms=100, dead_letter="jobs.dead")
    if routed:
        world.route("orders", "jobs", **STAMPED)
    source = "orders" if routed else "jobs"
    world.write(source, ("user-42:x", "secret"), ("user-7", "other"), meta={"k": 1})
    world.forwarded()

    def died() -> bool:
        asked = urllib.request.Request(
            f"{world.url}/v0/topics/jobs/claim", b'{"node":"w","max":9}', {"content-type": "application/json"}
        )
        urllib.request.urlopen(asked).close()
        return any(one.topic == "jobs.dead" and one.count == 2 for one in world.client.topics())

    wait_for(died, "jobs to die", every_s=0.05)
    report = world.erase(topics=[source])
    assert world.live("jobs.dead") == ["other"]
    assert (counts_by_store(report)["jobs.dead"], report.ok) == (1, True)


def test_originals_only_in_the_lake_identify_copies(world: World):
    world.client.put_topic("a", cap_records=2)
    world.route("a", "b", **STAMPED)
    for n in range(6):
        world.write("a", (f"user-{42 if n % 2 else 7}:x", n))
        world.forwarded()
        archive(world.client, world.lake, "a")
    report = world.erase()
    assert world.live("b") == [0, 2, 4]
    assert world.archived("a") == [0, 2, 4]
    assert report.warnings == []


def test_untraceable_copies_are_warned_about(world: World):
    world.client.put_topic("a", cap_records=2)
    world.route("a", "b", **STAMPED)
    for n in range(6):
        world.write("a", ("user-42:x", n))
        world.forwarded()
    report = world.erase()
    assert world.live("b") == [0, 1, 2, 3]
    assert report.figures["untraceable"] == 4
    assert "a no longer has 4 records that no lake has" in report.warnings[0]


def test_records_written_after_the_start_stay(world: World, monkeypatch: pytest.MonkeyPatch):
    world.write("a", ("user-42:x", 1))
    archive(world.client, world.lake, "a")
    real = Client.delete

    def late(self: Client, topic: str, **how: Any) -> Any:
        if not getattr(late, "done", False):
            late.done = True  # type: ignore[attr-defined]
            world.write("a", ("user-42:x", 2))
            archive(world.client, world.lake, "a")
        return real(self, topic, **how)

    monkeypatch.setattr(Client, "delete", late)
    world.erase()
    assert (world.live("a"), world.archived("a")) == ([2], [2])


def test_only_selected_topics_and_their_copies_are_erased(world: World):
    world.route("a", "b")
    for topic in ("a", "c"):
        world.write(topic, ("user-42:x", 1))
    world.forwarded()
    world.erase(topics=["a"])
    assert world.everything() == {"a": [], "b": [], "c": [1]}
    with pytest.raises(BadUsage, match="does not exist"):
        world.erase(topics=["nobody"])


def test_stuck_router_stops_the_run_before_any_delete(world: World):
    world.client.put_topic("b", cap_records=1, discard="reject")
    world.route("a", "b", preserve_tag=False)
    world.write("a", ("user-42:x", 1), ("user-42:x", 2))
    wait_for(lambda: next(world.client.routers()).last_error, "the router to be held")
    with pytest.raises(Failed, match="a-b has not forwarded everything"):
        world.erase()
    assert world.live("a") == [1, 2]


@pytest.mark.parametrize("match", ["*", "", "a*b", "a**"])
def test_invalid_match_is_refused(match: str):
    with pytest.raises(BadUsage):
        parse(match)


class Cut(Exception):
    """Where the test pulls the plug."""


def family(world: World) -> dict[str, list[Any]]:
    """Create topics with copies of both kinds, in the lake or not. Return the records that must stay."""
    world.route("a", "b", **STAMPED)
    world.route("b", "c")
    world.route("a", "d")
    for n in range(12):
        world.write("a", (f"user-{42 if n % 3 == 0 else n % 3}:x", n))
    world.forwarded()
    for topic in "bd":  # the lake has copies whose originals it never had
        archive(world.client, world.lake, topic)
    left = [n for n in range(12) if n % 3]
    return dict.fromkeys(("a", "b", "c", "d", "lake b", "lake d"), left)


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.torture)])
@pytest.mark.parametrize(
    "step", [step if step in (0, 5, 9, 11) else pytest.param(step, marks=pytest.mark.torture) for step in range(12)]
)
def test_run_killed_anywhere_is_finished_by_the_next(
    world: World, step: int, after: bool, monkeypatch: pytest.MonkeyPatch
):
    """Cut off before or after a delete or a rewriting."""
    left = family(world)
    steps = iter(range(100))

    def cut(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **options: Any) -> Any:
            is_last = next(steps) == step
            if is_last and not after:
                raise Cut
            answer = real(*args, **options)
            if is_last:
                raise Cut
            return answer

        return act

    with monkeypatch.context() as patched:
        patched.setattr(Client, "delete", cut(Client.delete))
        patched.setattr(LakeErasure, "commit", cut(LakeErasure.commit))
        with pytest.raises(Cut):
            world.erase()
    report = world.erase()
    assert world.everything() == left
    assert report.ok


def test_killed_run_without_a_lake_leaves_a_report(world: World, monkeypatch: pytest.MonkeyPatch):
    for topic in "ab":
        world.write(topic, ("user-42:x", 1))
    real = Client.delete

    def cut(self: Client, topic: str, **how: Any) -> Any:
        if topic == "b" and not how.get("dry_run"):
            raise Cut
        return real(self, topic, **how)

    with monkeypatch.context() as patched:
        patched.setattr(Client, "delete", cut)
        with pytest.raises(Cut):
            world.erase()
    before_the_cut, _ = [item.value for item in world.client.read("sys:pipelines") if isinstance(item, Record)]
    [row] = before_the_cut["topics"]
    assert (before_the_cut["state"], row["topic"], row["records"]) == ("running", "a", 1)
    assert counts_by_store(world.erase())["b"] == 1
    assert (world.live("a"), world.live("b")) == ([], [])


def test_dry_run_needs_no_right_to_delete(start_server: StartServer, capsys: pytest.CaptureFixture[str]):
    server = start_server(api_keys="all,reader:read+write,some:read+write+delete:a")
    with Client(server.url, token="all") as client:
        for topic in ("a", "b"):
            client.append(topic, [{"data": 1, "tag": "user-42:x"}, {"data": 2}])
        command = ["pipeline", "erase", "--url", server.url, "--match", GOES]

        assert main([*command, "--token", "reader", "--dry-run", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["figures"]["topics"] == 2

        assert main([*command, "--token", "reader", "--json"]) == 1
        shown = capsys.readouterr()
        reported = f"the key lacks the scope delete for topic a on {server.url}"
        assert json.loads(shown.out)["error"]["message"] == reported
        assert f"topics: {reported}\nnext: use a key that has the scope delete, with --token-file" in shown.err
        assert main([*command, "--topic", "a", "--topic", "b", "--token", "some"]) == 1
        assert f"the key may not use b on {server.url}" in capsys.readouterr().err
        assert [client.topic(topic).count for topic in ("a", "b")] == [2, 2]

        assert main([*command, "--topic", "a", "--token", "some"]) == 0
        assert client.topic("a").count == 1


def test_damaged_file_of_the_lake_is_reported_as_such(world: World, capsys: pytest.CaptureFixture[str]):
    world.write("a", ("user-42:x", 1), (None, 2))
    archive(world.client, world.lake, "a")
    [file] = world.lake.glob("a/*/*/*.parquet")
    file.write_bytes(b"no parquet")
    command = ["pipeline", "erase", "--url", world.url, "--lake", str(world.lake), "--match", GOES, "--json"]
    assert main(command) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["error"]["kind"] == "lake"
    assert file.name in report["error"]["message"]
    with pytest.raises(Failed, match=file.name):
        world.erase()


@pytest.mark.torture
def test_random_kills_end_in_the_same_state(world: World, tmp_path: Path):
    left = family(world)
    command = [sys.executable, "-m", "topics", "pipeline", "erase", "--url", world.url, "--lake", str(world.lake)]
    rng = random.Random(7)
    for _ in range(3):
        run = Process([*command, "--match", GOES], tmp_path / "log")
        time.sleep(rng.uniform(0.3, 1.2))
        run.kill()
    Process([*command, "--match", GOES, "--json"], tmp_path / "log").succeed()
    assert world.everything() == left
