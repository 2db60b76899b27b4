"""`archive --expect`: records that do not meet a condition are counted, copied to a topic, or end the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.conftest import ServerProcess
from topics.client import Client
from topics.client.request import Record
from topics.lake import Lake
from topics.spark.failures import BadUsage, Failed
from topics.spark.pipelines.archive import archive, driver
from topics.spark.pipelines.audit import audit
from topics.spark.pipelines.run.report import RunReport

EXPECT = "value:qty::int > 0"
Run = Callable[..., RunReport]


@pytest.fixture
def run(spark: SparkSession, server: ServerProcess, topic: str, tmp_path: Path) -> Run:
    def once(**options: Any) -> RunReport:
        given = {"url": server.url, "topics": [topic], "lake": str(tmp_path / "lake"), "expect": EXPECT, "spark": spark}
        return archive(**given | options)

    return once


def write(client: Client, topic: str) -> list[int]:
    """Append records, and return the seqs of those that do not meet the condition."""
    data = [{"qty": 1}, {"qty": 0}, {"qty": "many"}, {"qty": 2}, "plain", None, {}]
    written = client.append(topic, [{"data": one, "tag": "t", "meta": {"k": 1}} for one in data], return_seqs=True)
    return [seq for seq, one in zip(written.seqs or (), data, strict=True) if one not in ({"qty": 1}, {"qty": 2})]


def test_check_keeps_to_the_limit_of_the_run(
    run: Run, client: Client, spark: SparkSession, topic: str, monkeypatch: pytest.MonkeyPatch
):
    reader, given = type(spark.read), list[dict[str, Any]]()
    before = reader.options
    monkeypatch.setattr(reader, "options", lambda self, **options: given.append(options) or before(self, **options))
    write(client, topic)
    assert run(dry_run=True, max_bytes_per_second=1_000_000).topics[0].figures == {"unexpected": 5}
    assert [options["maxBytesPerSecond"] for options in given if options] == ["1000000"]


def die(*_: Any) -> None:
    raise MemoryError


def rejected(client: Client, topic: str) -> list[tuple[Any, str | None, Any]]:
    found = [one for one in client.read(topic, include_tags=True) if isinstance(one, Record)]
    return [(one.value, one.tag, msgspec.json.decode(one.meta)) for one in found]


def test_unexpected_records_are_counted_and_archived(
    run: Run, client: Client, server: ServerProcess, topic: str, tmp_path: Path
):
    write(client, topic)
    assert run(dry_run=True).topics[0].figures == {"unexpected": 5}
    [row] = run().topics
    assert (row.records, row.figures) == (7, {"unexpected": 5})
    client.append(topic, [{"data": {"qty": 3}}])
    assert run().topics[0].figures == {}
    assert audit(url=server.url, lake=str(tmp_path / "lake"), topics=[topic], spark=False).ok


def test_unexpected_records_are_copied_once_with_their_origin(
    run: Run, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
):
    seqs, into = write(client, topic), f"{topic}.rejected"
    with monkeypatch.context() as patch:
        patch.setattr(driver._ArchiveRun, "_commit", die)
        with pytest.raises(MemoryError):
            run(reject_to=into)
    run(reject_to=into)
    seqs += write(client, topic)
    assert run(reject_to=into).topics[0].figures == {"unexpected": 5}
    epoch = client.topic(topic).epoch
    found = rejected(client, into)
    assert [meta["_topics_rejected"] for *_, meta in found] == [
        {"topic": topic, "epoch": epoch, "seq": seq} for seq in seqs
    ]
    assert found[0][:2] == ({"qty": 0}, "t")
    assert found[0][2]["meta"] == {"k": 1}


def test_strict_run_archives_nothing_with_unexpected_records(run: Run, client: Client, topic: str, tmp_path: Path):
    bad = write(client, topic)
    with pytest.raises(Failed, match=f"5 records of topic {topic}, the first with seq 2, do not meet 'value:qty"):
        run(strict=True)
    assert Lake(str(tmp_path / "lake")).snapshot().state(topic).epochs == {}
    client.delete(topic, seqs=bad)
    assert run(strict=True).topics[0].records == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expect": None, "strict": True}, "they need --expect"),
        ({"reject_to": "other", "strict": True}, "give one of them"),
        ({"reject_to": "not a name"}, "--reject-to: 'not a name' is not a topic name"),
        ({"reject_to": "orders", "topics": ["orders"]}, "is archived itself"),
        ({"spark": False}, "--no-spark: --expect is a condition of Spark SQL"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    run: Run, client: Client, topic: str, options: dict[str, Any], message: str
):
    client.append(topic, [{"data": 1}])
    with pytest.raises(BadUsage, match=message):
        run(**options)


def test_invalid_condition_is_a_usage_error(run: Run, client: Client, topic: str):
    client.append(topic, [{"data": 1}])
    with pytest.raises(Exception, match="nosuch") as failed:
        run(expect="nosuch > 0")
    report = failed.value.__dict__["report"]
    assert report.error.kind == "usage"
