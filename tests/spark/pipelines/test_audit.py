"""The audit: finds every seq, or says which ones it does not find.

The first test and the command use Spark. The others run the tasks in this process.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw, structs
from pyspark.sql import SparkSession

from tests.spark.lakes import archive
from tests.spark.streams import numbers
from topics.cli.main import main
from topics.client import Client
from topics.client.request import Record
from topics.lake import Change, Lake
from topics.spark.pipelines.audit import audit, describe
from topics.spark.pipelines.run.job import BadUsage


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def run(spark: Any, client: Client, lake: Path, topic: str) -> Any:
    return audit(url=client.url, lake=str(lake), topics=[topic], spark=spark)


def counts(row: Any) -> dict[str, int]:
    return {name: row.figures[name] for name in ("live", "archived", "deleted", "in_gaps", "lost")}


def test_every_seq_of_a_topic_with_history_is_explained(spark: SparkSession, client: Client, topic: str, lake: Path):
    numbers(client, topic, range(50), tag="a")
    client.put_topic(topic, cap_records=40)  # 1 to 10 are evicted before they are archived
    archive(client, lake, topic, upto=30)
    numbers(client, topic, range(10), tag="b")  # 11 to 20 are evicted, and archived
    client.delete(topic, match="b")
    archive(client, lake, topic, upto=55)
    report = run(spark, client, lake, topic)
    [row] = report.topics
    assert (row.from_seq, row.to_seq) == (1, 60)
    assert counts(row) == {"live": 30, "archived": 10, "deleted": 10, "in_gaps": 10, "lost": 0}
    assert report.ok
    assert describe(report).splitlines()[-1].endswith(": 0 unexplained")


@pytest.mark.torture
def test_missing_file_leaves_trimmed_seqs_unexplained(here: Any, client: Client, topic: str, lake: Path):
    numbers(client, topic, range(20))
    archive(client, lake, topic, upto=8)
    archived_epoch = archive(client, lake, topic, upto=20)
    client.put_topic(topic, cap_records=5)
    (lake / archived_epoch.files[1].path).unlink()
    report = run(here, client, lake, topic)
    assert not report.ok
    assert report.figures["unexplained"] == 7
    assert report.topics[0].figures["unexplained"] == [(9, 15)]
    text = describe(report)
    assert "  unexplained: seqs 9 to 15" in text
    assert "is missing" in text
    assert text.endswith("7 unexplained, 1 file missing or damaged")


def test_damaged_file_is_found_though_its_records_are_live(here: Any, client: Client, topic: str, lake: Path):
    numbers(client, topic, range(20))
    [file] = archive(client, lake, topic).files
    content = bytearray((lake / file.path).read_bytes())
    content[len(content) // 2] ^= 1
    (lake / file.path).write_bytes(content)
    report = run(here, client, lake, topic)
    assert (report.ok, report.figures["unexplained"], report.figures["damaged_files"]) == (False, 0, 1)


def test_differing_and_missing_records_are_listed(here: Any, client: Client, topic: str, lake: Path):
    numbers(client, topic, range(20), tag="x")

    def spoil(records: list[Record]) -> list[Record]:
        changed = [structs.replace(one, data=Raw(b'{"n": 6}'), tag=None) if one.seq == 7 else one for one in records]
        return [one for one in changed if one.seq != 9]

    archive(client, lake, topic, spoil=spoil)
    report = run(here, client, lake, topic)
    assert (report.ok, report.figures["unexplained"]) == (False, 0)
    assert (report.figures["differing"], report.figures["missing"]) == (1, 1)
    text = describe(report)
    assert "  seq 7 differs in tag, data" in text
    assert "  seq 9 is live but missing in the lake" in text


def test_seqs_trimmed_without_archive_are_unexplained(here: Any, client: Client, topic: str, lake: Path):
    numbers(client, topic, range(20))
    archived_epoch = archive(client, lake, topic, upto=10)
    opened = Lake(str(lake))
    change = Change(op="trim", topic=topic, epoch=archived_epoch.epoch, trimmed_to=12)
    opened.commit(opened.table(topic).state(), [change])
    client.delete(topic, before_seq=13)
    report = run(here, client, lake, topic)
    assert report.topics[0].figures["unexplained"] == [(11, 12)]


def test_earlier_epoch_and_unarchived_seqs_are_audited(here: Any, client: Client, topic: str, lake: Path):
    numbers(client, topic, range(10))
    archive(client, lake, topic)
    client.drop_topic(topic)
    numbers(client, topic, range(10))
    client.put_topic(topic, cap_records=4)  # the lake has nothing of this epoch yet; the server reports its gap
    report = run(here, client, lake, topic)
    old, new = report.topics
    assert counts(old) == {"live": 0, "archived": 10, "deleted": 0, "in_gaps": 0, "lost": 0}
    assert counts(new) == {"live": 4, "archived": 0, "deleted": 0, "in_gaps": 0, "lost": 6}
    assert report.ok


def test_command_prints_findings_and_sets_the_status(
    spark: SparkSession, client: Client, topic: str, lake: Path, capsys: pytest.CaptureFixture[str]
):
    numbers(client, topic, range(10))
    archived_epoch = archive(client, lake, topic, trim=True)
    command = ["pipeline", "audit", "--url", client.url, "--lake", str(lake), "--topic", topic]
    assert main(command) == 0
    assert capsys.readouterr().out.endswith(": 0 unexplained\n")
    (lake / archived_epoch.files[0].path).unlink()
    assert main([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["topics"][0]["figures"]["unexplained"] == [[1, 10]]
    assert main([*command[:-1], "nothing"]) == 2
    assert "neither on" in capsys.readouterr().err


def test_audit_has_no_dry_run(lake: Path):
    with pytest.raises(BadUsage, match="changes nothing"):
        audit(url="http://127.0.0.1:1", lake=str(lake), dry_run=True)


def test_unknown_topic_is_an_error(here: Any, client: Client, lake: Path):
    Lake(str(lake)).create()
    with pytest.raises(BadUsage, match="neither on"):
        audit(url=client.url, lake=str(lake), topics=["nothing"], spark=here)
