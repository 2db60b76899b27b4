"""A data directory as a source: the same answers without a server, no change, and damage is reported."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from tests.conftest import SMALL_PARTS, StartServer
from tests.spark.world import Seen, by_spark, load
from topics.client import Client

BIG_PARTS = SMALL_PARTS | {"segment_max_events": 2000, "segment_max_bytes": 1 << 20, "segment_max_age_ms": 600_000}


def fingerprint(directory: Path) -> dict[str, str]:
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.torture
def test_stopped_directory_is_read_in_parts_and_left_unchanged(
    spark: SparkSession, start_server: StartServer, tmp_path: Path
):
    data = tmp_path / "data"
    server = start_server(data_dir=data, **BIG_PARTS)
    with Client(server.url) as client:
        for n in range(10):
            client.append("t", [{"data": n, "tag": f"g{n}", "node": "a", "meta": {"n": n}}] * 700)
        client.delete("t", match="g3")
    server.stop()
    before = fingerprint(data)
    frame = load(spark, path=str(data), subscribe="t", minPartitions=3)
    assert frame.rdd.getNumPartitions() == 3
    rows = frame.selectExpr("count(*)", "sum(seq)", "count(distinct seq)", "max(data)", "max(meta)").collect()
    deleted = range(3 * 700 + 1, 4 * 700 + 1)
    assert tuple(rows[0]) == (6300, 7000 * 7001 // 2 - sum(deleted), 6300, "9", '{"n":9}')
    assert load(spark, path=str(data), subscribe="t", tag="g5").count() == 700
    assert load(spark, path=str(data), subscribe="t", where="data = 5 and meta.n < 6").count() == 700
    assert load(spark, path=str(data), subscribe="t", node="a").count() == 0
    assert fingerprint(data) == before


def test_load_accepts_the_directory(spark: SparkSession, start_server: StartServer, tmp_path: Path):
    server = start_server(data_dir=tmp_path / "data")
    with Client(server.url) as client:
        client.append("t", [{"data": "log only"}] * 3)
    server.kill()
    found = spark.read.format("topics").option("subscribe", "t").load(str(tmp_path / "data"))
    assert [row.data for row in found.collect()] == ['"log only"'] * 3


def test_times_are_looked_up_in_the_files(spark: SparkSession, start_server: StartServer, tmp_path: Path):
    server = start_server(data_dir=tmp_path / "data", **SMALL_PARTS)
    with Client(server.url) as client:
        for n in range(30):
            client.append("t", [{"data": n}] * 4)
        records = client.diff("t", limit=1000).records
    server.stop()
    low, high = records[40].ts, records[-1].ts
    options = {"path": str(tmp_path / "data"), "subscribe": "t"}
    found = by_spark(load(spark, **options, startingTimestamp=low, endingTimestamp=high)).get("t", [])
    assert [seen.seq for seen in found] == [record.seq for record in records if low <= record.ts < high]


def test_directory_of_a_running_server_is_refused(spark: SparkSession, start_server: StartServer, tmp_path: Path):
    start_server(data_dir=tmp_path / "data")
    with pytest.raises(AnalysisException, match="is held by"):
        load(spark, path=str(tmp_path / "data"), subscribe="t").count()
    with pytest.raises(AnalysisException, match="is no data directory of ours"):
        load(spark, path=str(tmp_path), subscribe="t").count()


@pytest.mark.torture
def test_damage_is_reported_as_a_gap(spark: SparkSession, start_server: StartServer, tmp_path: Path):
    data = tmp_path / "data"
    server = start_server(data_dir=data, **SMALL_PARTS)
    with Client(server.url) as client:
        for n in range(20):
            client.append("t", [{"data": n}] * 5)
    server.stop()
    segments = sorted((data / "segments").rglob("*.seg"))
    assert len(segments) > 2
    damaged = segments[1]
    content = bytearray(damaged.read_bytes())
    content[60] ^= 0xFF
    damaged.write_bytes(content)
    options = {"path": str(data), "subscribe": "t"}
    with pytest.raises(PySparkException, match=r"of topic t .* are lost \(corrupt\)"):
        load(spark, **options).count()
    found = by_spark(load(spark, **options, failOnDataLoss="false"))["t"]
    [gap] = [seen for seen in found if seen.reason is not None]
    first = int(damaged.stem)
    assert gap == Seen(first, gap_to=int(segments[2].stem) - 1, reason="corrupt")
    assert gap.gap_to is not None
    assert [seen.seq for seen in found if seen.reason is None] == [
        seq for seq in range(1, 101) if not first <= seq <= gap.gap_to
    ]
