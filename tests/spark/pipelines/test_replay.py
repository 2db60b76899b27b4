"""Replays: the chosen records once more, each once, in their order, with their origin."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.lakes import archive
from tests.spark.processes import Process, Server, slim_home, wait_for
from tests.spark.streams import numbers, read_numbers
from topics.cli.main import main
from topics.client import Client
from topics.client.request import Record
from topics.errors import TopicsError
from topics.spark.options import ConnectionOptions
from topics.spark.pipelines.replay import (
    KEY,
    Origin,
    ReplayPosition,
    ReplayRequest,
    Sender,
    origin_of,
    replay,
)
from topics.spark.pipelines.run import delivery
from topics.spark.pipelines.run.delivery import DeliveryResult, OutgoingRow, Pace, stamped
from topics.spark.pipelines.run.job import BadUsage, Failed
from topics.spark.pipelines.run.positions import Positions
from topics.spark.pipelines.run.report import RunReport
from topics.storage import backup
from topics.storage.fs import Fs

Play = Callable[..., RunReport]


@pytest.fixture
def play(spark: SparkSession, client: Client, topic: str) -> Play:
    def run(**arguments: Any) -> RunReport:
        return replay(**({"url": client.url, "topic": topic, "into": f"{topic}.again", "spark": spark} | arguments))

    return run


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def records(client: Client, topic: str) -> list[Record]:
    return [item for item in client.read(topic, include_tags=True) if isinstance(item, Record)]


def seqs(client: Client, topic: str) -> list[int]:
    """The source seqs of replayed records, in the order in which they were written."""
    origins = [origin_of(bytes(record.meta)) for record in records(client, topic) if record.meta]
    return [origin.seq for origin in origins if origin is not None]


def test_archived_records_are_replayed_unchanged_with_their_origin(play: Play, client: Client, topic: str, lake: Path):
    client.append(
        topic,
        [
            {"data": {"x": 1.50}, "tag": "a", "node": "n", "meta": {"trace": "z", "n": 1.0}},
            {"data": "text"},
            {"data": None, "node": "m"},
        ],
    )
    archived_epoch = archive(client, lake, topic)
    written = records(client, topic)
    client.drop_topic(topic)
    report = play(lake=str(lake))
    [row] = report.topics
    assert (row.from_seq, row.to_seq, row.records, row.repeated) == (1, 3, 3, 0)
    again = records(client, f"{topic}.again")
    assert [(one.tag, one.node, bytes(one.data)) for one in again] == [
        (one.tag, one.node, bytes(one.data)) for one in written
    ]
    for one, other in zip(again, written, strict=True):
        assert origin_of(bytes(one.meta)) == Origin(
            id=row.figures["id"], topic=topic, epoch=archived_epoch.epoch, seq=other.seq, ts=other.ts, node=other.node
        )
    assert bytes(again[0].meta).startswith(b'{"trace":"z","n":1.0,"_topics_replay":')


def test_seqs_times_tags_and_conditions_select_records(play: Play, client: Client, topic: str, lake: Path):
    for n in range(30):
        client.append(topic, [{"data": {"n": n, "by": {"name": f"p{n % 3}"}}, "tag": f"t{n % 2}"}])
    archive(client, lake, topic)
    at = records(client, topic)[19].ts
    chosen = {
        "tag": {"tag": "t1", "from_seq": 5, "to_seq": 9},
        "where": {"where": "data.by.name = 'p1' AND data.n < 12 AND value:n::int > 3"},
        "time": {"since": str(at), "to_seq": 25},
    }
    for name, arguments in chosen.items():
        play(lake=str(lake), into=f"{topic}.{name}", **arguments)
    assert seqs(client, f"{topic}.tag") == [6, 8]
    assert seqs(client, f"{topic}.where") == [5, 8, 11]
    expected = [one.seq for one in records(client, topic) if one.ts >= at and one.seq <= 25]
    assert seqs(client, f"{topic}.time") == expected


def test_second_call_continues_and_repeats_nothing(play: Play, client: Client, topic: str, lake: Path):
    numbers(client, topic, range(2500))
    archive(client, lake, topic)
    assert play(lake=str(lake), step_seqs=1000).records == 2500
    second = play(lake=str(lake))
    assert second.records == 0
    assert "were replayed before (2500)" in second.warnings[0]
    numbers(client, topic, range(2500, 2600))
    archive(client, lake, topic)
    assert play(lake=str(lake)).records == 100
    assert read_numbers(client, f"{topic}.again") == list(range(2600))
    assert play(lake=str(lake), name="once more", to_seq=10).records == 10
    client.delete(f"{topic}.again", before_seq=100)
    assert play(lake=str(lake)).records == 0, "what was deleted there does not come back"
    client.drop_topic(f"{topic}.again")  # a deleted target is filled again
    assert play(lake=str(lake)).records == 2600


def test_interrupted_plan_is_finished_exactly_without_idempotency_keys(
    play: Play, client: Client, topic: str, lake: Path
):
    """The plan is saved and half done. The topic has no idempotency window, so only its records show the progress."""
    numbers(client, topic, range(3000))
    archived_epoch = archive(client, lake, topic)
    into = f"{topic}.again"
    client.put_topic(into, idempotency_window_ms=0)
    wanted = ReplayRequest(lake=str(lake), topic=topic, into=into)
    position = ReplayPosition(epoch=archived_epoch.epoch, done=0, plan=3000, target_epoch=client.topic(into).epoch)
    Positions(client, f"replay:{wanted.id}:", run="killed").save({"at": position})
    sender = Sender(
        target=ConnectionOptions(server=client.url), into=into, id=wanted.id, topic=topic,
        epoch=archived_epoch.epoch, start=1, stop=3001,
    )  # fmt: skip
    origin = {"id": wanted.id, "topic": topic, "epoch": archived_epoch.epoch}
    rows = [
        OutgoingRow(seq, seq, b'{"data":{"n":%d},"meta":%b}' % (seq - 1, stamped(None, KEY, Origin(**origin, seq=seq))))
        for seq in range(1, 1500)
    ]
    assert sender.send(rows, DeliveryResult()).records == 1499
    numbers(client, into, [-1])  # an unrelated record in the target
    report = play(lake=str(lake))
    assert (report.topics[0].records, report.topics[0].repeated) == (3000, 1499)
    assert [n for n in read_numbers(client, into) if n >= 0] == list(range(3000))


def test_rejected_record_becomes_a_gap_and_blocks_nothing(client: Client, topic: str):
    """One that fits as it was, and does not with its origin in its meta."""
    into = f"{topic}.again"
    origin = {"id": "x", "topic": topic, "epoch": 7}
    data = {seq: b"%d" % seq for seq in range(1, 10)} | {5: b'"%b"' % (b"x" * (1024 * 1024 - 60))}
    rows = [
        OutgoingRow(seq, seq, b'{"data":%b,"meta":%b}' % (text, stamped(None, KEY, Origin(**origin, seq=seq))))
        for seq, text in data.items()
    ]
    sender = Sender(target=ConnectionOptions(server=client.url), into=into, start=1, stop=10, **origin)
    outcome = sender.send(rows, DeliveryResult())
    [gap] = outcome.gaps
    assert (outcome.records, gap.from_seq, gap.to_seq, gap.epoch) == (9, 5, 5, 7)
    assert gap.reason.startswith("refused: ")
    reported = records(client, into)[4]
    assert reported.value == {"topic": topic, "gap_from": 5, "gap_to": 5, "reason": gap.reason}
    assert origin_of(bytes(reported.meta)) == Origin(**origin, seq=5, to=5)
    assert seqs(client, into) == list(range(1, 10))
    assert sender.send(rows, DeliveryResult()).repeated == 9


def test_directory_and_server_can_be_replayed(play: Play, client: Client, topic: str, tmp_path: Path):
    server = Server(tmp_path)
    try:
        with Client(server.url) as other:
            numbers(other, topic, range(10))
        backup.copy(Fs(), str(tmp_path / "data"), str(tmp_path / "backup"))
        assert play(source_url=server.url, into=f"{topic}.a").records == 10
        assert play(path=str(tmp_path / "backup"), into=f"{topic}.b", from_seq=4).records == 7
    finally:
        server.kill()
    assert read_numbers(client, f"{topic}.a") == list(range(10))
    assert read_numbers(client, f"{topic}.b") == list(range(3, 10))


@pytest.mark.torture
def test_gap_fails_a_replay_unless_allowed(play: Play, client: Client, topic: str, lake: Path):
    numbers(client, topic, range(10))
    client.put_topic(topic, cap_records=6)
    archive(client, lake, topic)
    shown = play(lake=str(lake), from_seq=2, dry_run=True)
    assert (shown.ok, shown.records, [(gap.from_seq, gap.to_seq) for gap in shown.topics[0].gaps]) == (
        False,
        6,
        [(2, 4)],
    )
    with pytest.raises(Failed, match=r"seqs 2 to 4 of topic .* are lost \(cap\)"):
        play(lake=str(lake), from_seq=2)
    assert play(lake=str(lake), from_seq=2, allow_gaps=True, dry_run=True).records == 7
    report = play(lake=str(lake), from_seq=2, allow_gaps=True)
    [gap] = report.topics[0].gaps
    assert (gap.from_seq, gap.to_seq, gap.reason) == (2, 4, "cap")
    first, *rest = records(client, f"{topic}.again")
    assert json.loads(bytes(first.data)) == {"topic": topic, "gap_from": 2, "gap_to": 4, "reason": "cap"}
    assert [one.value["n"] for one in rest] == list(range(4, 10))


def test_pace_keeps_its_rate_even_after_a_pause():
    for pace, count, size_bytes in ((Pace(10), 2, 99), (Pace(bytes_per_second=500), 99, 100), (Pace(10, 999), 2, 50)):
        assert [pace.pause_s(count, size_bytes, now_s=100.0) for _ in range(3)] == pytest.approx([0.0, 0.2, 0.4])
        assert [pace.pause_s(count, size_bytes, now_s=200.0) for _ in range(2)] == pytest.approx([0.0, 0.2])
    assert Pace().pause_s(1000, 1 << 30, now_s=0.0) == 0


def test_rate_is_kept(play: Play, client: Client, topic: str, lake: Path):
    numbers(client, topic, range(12))
    archive(client, lake, topic)
    began = time.monotonic()
    play(lake=str(lake), into=f"{topic}.slow", rate=20)
    assert time.monotonic() - began > 0.39  # 12 records at 20 a second, the first four of them at once
    assert read_numbers(client, f"{topic}.slow") == list(range(12))


def test_limit_of_bytes_holds_for_what_is_written(
    client: Client, topic: str, lake: Path, monkeypatch: pytest.MonkeyPatch
):
    numbers(client, topic, range(100), tag="x" * 80)
    archive(client, lake, topic)
    sent: list[tuple[float, int]] = []
    now_s, append = [0.0], Client.append

    def timed(self: Client, into: str, records: list[Any], **options: Any) -> Any:
        if into == f"{topic}.slow":
            sent.append((now_s[0], sum(len(bytes(one)) for one in records)))
        return append(self, into, records, **options)

    monkeypatch.setattr(Client, "append", timed)
    monkeypatch.setattr(
        delivery, "time",
        SimpleNamespace(monotonic=lambda: now_s[0], sleep=lambda s: now_s.__setitem__(0, now_s[0] + s)),
    )  # fmt: skip
    replay(
        url=client.url, topic=topic, into=f"{topic}.slow", lake=str(lake), spark=False, max_bytes_per_second=10_000,
    )  # fmt: skip
    assert read_numbers(client, f"{topic}.slow") == list(range(100))
    assert sum(size for _, size in sent) > 20_000
    for at_s, _ in sent:
        assert sum(size for other_s, size in sent if at_s <= other_s < at_s + 1) <= 10_000 + max(s for _, s in sent)


def test_dry_run_counts_and_writes_nothing(play: Play, client: Client, topic: str, lake: Path):
    numbers(client, topic, range(20))
    archive(client, lake, topic)
    report = play(lake=str(lake), where="data.n >= 15 AND data.m IS NULL", dry_run=True)
    assert report.topics[0].records == 5
    assert report.topics[0].would == [f"create topic {topic}.again in {client.url}"]
    assert report.warnings == ["data.m is in none of the sampled records"]
    with pytest.raises(TopicsError):
        client.topic(f"{topic}.again")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "choose one source"),
        ({"lake": "/l", "path": "/p"}, "choose one source"),
        ({"source_url": "URL", "into": "TOPIC"}, "into itself"),
        ({"lake": "/l", "from_seq": 1, "since": "0"}, "give one of them"),
        ({"lake": "/l", "into": "no name"}, "is not a topic name"),
        ({"lake": "/l", "rate": 0}, "rate"),
        ({"lake": "/l", "max_bytes_per_second": 0}, "max-bytes-per-second"),
        ({"lake": "/l", "dryrun": True}, "replay has no option dryrun"),
    ],
)
def test_invalid_arguments_are_refused(play: Play, client: Client, topic: str, arguments: dict[str, Any], message: str):
    meant = {"URL": client.url, "TOPIC": topic}
    with pytest.raises(BadUsage, match=message):
        play(**{name: meant.get(value, value) for name, value in arguments.items()})


def test_command_reports_results_and_errors_in_conditions(
    spark: SparkSession, client: Client, topic: str, lake: Path, capsys: pytest.CaptureFixture[str]
):
    numbers(client, topic, range(5))
    archive(client, lake, topic)
    command = ["pipeline", "replay", "--lake", str(lake), "--topic", topic, "--url", client.url, "--into", f"{topic}.x"]
    assert main([*command, "--where", "data.n = 1 ORR 2"]) == 2
    assert "Syntax error" in capsys.readouterr().err
    assert main([*command, "--where", "data.n > 2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["topics"][0]["records"] == 2
    assert main([*command[:5], "nothing", *command[6:]]) == 2
    assert "topic nothing does not exist" in capsys.readouterr().err


@pytest.mark.torture
def test_replay_killed_at_random_points_is_exact(tmp_path: Path, lake: Path):
    server = Server(tmp_path)
    try:
        with Client(server.url, retries=10) as client:
            numbers(client, "in", range(40_000))
            archive(client, lake, "in")
            command = [
                "-m", "topics", "pipeline", "replay", "--lake", str(lake), "--topic", "in", "--url", server.url,
                "--into", "out", "--rate", "4000", "--master", "local[1]",
            ]  # fmt: skip
            for stop_at in (3_300, 11_111, 22_000, None):
                _run(client, command, tmp_path, stop_at)
            assert read_numbers(client, "out") == list(range(40_000))
    finally:
        server.kill()


def _run(client: Client, command: list[str], tmp_path: Path, stop_at: int | None) -> None:
    import sys

    running = Process([sys.executable, *command], tmp_path / "replay.log", SPARK_HOME=slim_home())
    try:
        if stop_at is None:
            running.succeed()
            return

        def reached() -> bool:
            assert running.is_alive(), running.log()[-4000:]
            try:
                return client.topic("out").head_seq >= stop_at
            except TopicsError:
                return False

        wait_for(reached, f"{stop_at} records", every_s=0.01)
        time.sleep(0.001 * (stop_at % 7))
    finally:
        running.kill()


def test_record_of_another_type_does_not_match_a_condition(play: Play, client: Client, topic: str) -> None:
    client.append(topic, [{"data": {"price": 5}}, {"data": {"price": "cheap"}}, {"data": {"price": 9}}])
    play(source_url=client.url, where="value:price::int > 3")
    assert seqs(client, f"{topic}.again") == [1, 3]
