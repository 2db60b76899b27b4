"""The command line of `topics pipeline archive`; tests/spark checks its work."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import StartServer
from topics.cli.main import main
from topics.client import Client

pytestmark = pytest.mark.skipif(not find_spec("pyspark"), reason="needs the extra spark")


def test_dry_run_prints_a_json_report_and_creates_nothing(
    start_server: StartServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, lake = start_server(), tmp_path / "lake"
    with Client(server.url) as client:
        client.append("shop:a", [{"data": 1}, {"data": 2}])
        client.append("other", [{"data": 1}])
        command = ["pipeline", "archive", "--url", server.url, "--prefix", "shop:", "--lake", str(lake)]
        assert main([*command, "--dry-run", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert [topic.topic for topic in client.topics()] == ["other", "shop:a"]
    assert [(row["topic"], row["records"]) for row in report["topics"]] == [("shop:a", 2)]
    assert (report["pipeline"], report["dry_run"], report["state"]) == ("archive", True, "done")
    assert not lake.exists()


def test_dry_run_of_trim_reports_archived_and_trimmed_ranges(
    start_server: StartServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, lake = start_server(), tmp_path / "lake"
    with Client(server.url) as client:
        client.put_topic("shop:a", cap_records=5)
        for number in range(9):
            client.append("shop:a", [{"data": number}])
        client.append("shop:b", [{"data": 1}, {"data": 2}, {"data": 3}])
        client.delete("shop:b", seqs=[2])
        client.put_topic("shop:jobs", type="queue")
        client.append("shop:jobs", [{"data": 1}])
        command = ["pipeline", "archive", "--url", server.url, "--prefix", "shop:", "--lake", str(lake)]
        assert main([*command, "--trim", "--dry-run"]) == 0
        assert [row.count for row in client.topics("shop:")] == [5, 2, 1]
    said = capsys.readouterr().out.splitlines()
    assert said[:-1] == [
        "  shop:a: seqs 1 to 9, 5 records to write, to trim 5",
        "    would delete seqs 5 to 9 from the topic once the lake has them, 5 records",
        "  shop:b: seqs 1 to 3, 2 records to write, to trim 2",
        "    would delete seqs 1 to 3 from the topic once the lake has them, 2 records",
        "  shop:jobs: seqs 1 to 1, 1 record to write",
        "  warning: topic shop:jobs is a queue and is not trimmed: its jobs are left to its workers",
    ]
    assert said[-1].startswith("archive: would write 8 records of 3 topics, ")
    assert said[-1].endswith(": a dry run, nothing was changed")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--lake", "x"],
        ["--topic", "a"],
        ["--pattern", "(", "--lake", "x"],
        ["--topic", "a", "--lake", "x", "--token", "a", "--token-file", "b"],
    ],
)
def test_invalid_arguments_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["pipeline", "archive", *arguments])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    assert capsys.readouterr().err


def test_lake_path_that_is_a_file_is_reported(start_server: StartServer, capsys: pytest.CaptureFixture[str]) -> None:
    server = start_server()
    assert main(["pipeline", "archive", "--url", server.url, "--prefix", "a", "--lake", "hdfs:///lake"]) == 2
    assert "a lake is a directory" in capsys.readouterr().err


def test_prefix_and_topics_combine_on_the_server_of_topics_url(
    start_server: StartServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server()
    monkeypatch.setenv("TOPICS_URL", server.url)
    with Client(server.url) as client:
        for topic in ("shop:a", "shop:b", "users", "users2"):
            client.append(topic, [{"data": 1}])
    command = ["pipeline", "archive", "--lake", str(tmp_path / "lake"), "--dry-run", "--json"]
    assert main([*command, "--prefix", "shop:", "--topic", "users"]) == 0
    assert [row["topic"] for row in json.loads(capsys.readouterr().out)["topics"]] == ["users", "shop:a", "shop:b"]
    assert main([*command, "--prefix", "shp:", "--topic", "users"]) == 2
    assert "begins with 'shp:'" in capsys.readouterr().err
    assert main(command) == 2
    assert "no topics selected" in capsys.readouterr().err


def test_key_without_admin_archives_and_warns_that_it_cannot_report(
    start_server: StartServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start_server(api_keys="all,some:read+write")
    with Client(server.url, token="all") as client:
        client.append("a", [{"data": 1}, {"data": 2}])
        command = [
            "pipeline",
            "archive",
            "--url",
            server.url,
            "--topic",
            "a",
            "--lake",
            str(tmp_path / "lake"),
            "--no-spark",
        ]
        assert main([*command, "--token", "some", "--json"]) == 0
        assert "could not be reported" in str(json.loads(capsys.readouterr().out)["warnings"])
        assert client.topic("a").archived_seq is None
        assert main([*command, "--token", "all", "--json"]) == 0
        assert client.topic("a").archived_seq == 2
