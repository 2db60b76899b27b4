"""`topics pipeline archive` as it is called; what it does is in tests/spark."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import StartServer
from topics.cli.main import main
from topics.client import Client

pytestmark = pytest.mark.skipif(not find_spec("pyspark"), reason="needs the extra spark")


def test_a_dry_run_prints_its_report_as_json_and_makes_nothing(
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


def test_a_topic_that_does_not_exist_ends_with_a_message_and_what_to_do(
    start_server: StartServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start_server()
    assert (
        main(["pipeline", "archive", "--url", server.url, "--topic", "no", "--lake", str(tmp_path), "--dry-run"]) == 1
    )
    told = capsys.readouterr().err
    assert "topic no does not exist" in told
    assert "next: see that its name is right" in told


@pytest.mark.parametrize(
    "arguments",
    [
        ["--lake", "x"],
        ["--topic", "a"],
        ["--topic", "a", "--prefix", "b", "--lake", "x"],
        ["--pattern", "(", "--lake", "x"],
        ["--topic", "a", "--lake", "x", "--token", "a", "--token-file", "b"],
    ],
)
def test_arguments_that_cannot_be_meant_end_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["pipeline", "archive", *arguments])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    assert capsys.readouterr().err


def test_a_lake_in_a_place_that_is_no_directory_is_told(
    start_server: StartServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start_server()
    assert main(["pipeline", "archive", "--url", server.url, "--prefix", "a", "--lake", "s3://bucket/lake"]) == 1
    assert "a lake is a directory" in capsys.readouterr().err
