"""Columns of a read: of the record, of its data, or both; read from a real server without a Spark session."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from tests.conftest import ServerProcess
from topics.client import Client
from topics.spark.options import BadOption, ReadOptions, read_options
from topics.spark.source.plan import Span
from topics.spark.source.read import Incomplete, read_span
from topics.spark.source.readers import TopicsReader
from topics.spark.source.schema_layout import layout_of

NAMES = {"STRING": t.StringType(), "BIGINT": t.LongType(), "INT": t.IntegerType()}


def schema(text: str) -> t.StructType:
    found = t.StructType()
    for column in text.split(", "):
        name, kind = column.split(" ")
        found.add(name, NAMES[kind])
    return found


def read(url: str, ddl: str | None = None, **options: str) -> list[dict[str, Any]]:
    reader = TopicsReader(read_options({"url": url} | options), None if ddl is None else schema(ddl))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.fixture
def shop(client: Client, topic: str) -> str:
    client.put_topic(topic, cap_records=4)
    rows = [
        {"sku": "lost"},
        {"sku": "A", "qty": 2, "seq": "x"},
        {"sku": "B", "qty": 1},
        "none",
        {"sku": "C", "qty": "3"},
    ]
    client.append(topic, [{"data": row, "tag": f"t{at % 2}"} for at, row in enumerate(rows)])
    return topic


def test_schema_of_other_names_reads_fields_of_data(server: ServerProcess, shop: str):
    rows = read(server.url, "qty INT, _seq BIGINT, sku STRING, _malformed STRING", subscribe=shop)
    assert [tuple(row.values()) for row in rows] == [
        (2, 2, "A", None), (1, 3, "B", None), (None, 4, None, '"none"'), (None, 5, "C", '{"sku":"C","qty":"3"}'),
    ]  # fmt: skip


def test_epoch_tells_records_of_a_recreated_topic_apart(server: ServerProcess, client: Client, topic: str):
    keys = set()
    for _ in range(2):
        client.drop_topic(topic)
        client.put_topic(topic, cap_records=1)
        client.append(topic, [{"data": 1}, {"data": 2}])
        options = {"subscribe": topic, "failOnDataLoss": "false", "startingOffsets": f'{{"{topic}": 1}}'}
        rows = read(server.url, **options)
        assert {row["epoch"] for row in rows} == {client.topic(topic).epoch}
        assert [row["_epoch"] for row in read(server.url, "n INT, _epoch BIGINT", **options)] == [rows[0]["epoch"]] * 2
        keys |= {(row["topic"], row["epoch"], row["seq"]) for row in rows}
    assert len(keys) == 4  # of each epoch a gap and a record


def test_malformed_without_a_field_is_refused(server: ServerProcess, shop: str):
    with pytest.raises(BadOption, match="_malformed needs fields of data"):
        read(server.url, "_malformed STRING, _seq BIGINT", subscribe=shop)


def test_schema_of_source_columns_reads_only_these(server: ServerProcess, shop: str):
    rows = read(server.url, "data STRING, seq BIGINT", subscribe=shop)
    assert rows[1] == {"data": '{"sku":"B","qty":1}', "seq": 3}
    assert [set(row) for row in read(server.url, "tag STRING, seq BIGINT", subscribe=shop)] == [{"tag", "seq"}] * 4


def test_typed_option_reads_a_field_with_the_name_of_a_column(server: ServerProcess, shop: str):
    rows = read(server.url, "seq STRING, _seq BIGINT", subscribe=shop, typed="true")
    assert rows[:2] == [{"seq": "x", "_seq": 2}, {"seq": None, "_seq": 3}]


@pytest.mark.parametrize("seqs", [[1, 2], [3, 9]], ids=["before", "after"])
def test_answer_outside_the_requested_range_fails(seqs: list[int], monkeypatch: pytest.MonkeyPatch):
    """A faulty server or lake must not lead to doubled or foreign records."""
    columns = {name: pa.nulls(2, pa.string()) for name in ("node", "tag", "meta", "data")}
    batch = pa.record_batch({"seq": pa.array(seqs), "ts": pa.nulls(2, pa.timestamp("us", "UTC")), **columns})
    monkeypatch.setattr("topics.spark.source.read._from_server", lambda span, options: iter([batch]))
    span = Span(server="s", topic="t", epoch=1, start=2, stop=9)
    with pytest.raises(Incomplete, match=f"returned seqs {seqs[0]} to {seqs[1]}, where seqs from 2 to 8"):
        list(read_span(span, ReadOptions()))


def test_gap_is_a_row_of_a_typed_read(server: ServerProcess, shop: str):
    options = {"subscribe": shop, "failOnDataLoss": "false", "startingOffsets": f'{{"{shop}": 1}}'}
    [gap] = read(server.url, "sku STRING, _kind STRING, _seq BIGINT, _gap_to BIGINT", **options)[:1]
    assert gap == {"sku": None, "_kind": "gap", "_seq": 1, "_gap_to": 1}


@pytest.mark.parametrize(
    ("ddl", "options", "message"),
    [
        ("seq BIGINT, sku STRING", {}, r"seq \(bigint\) is a column of the record"),
        ("seq STRING", {}, "set the option typed to true"),
        ("sku STRING, _seq STRING", {}, "_seq is of type bigint"),
        (None, {"typed": "true"}, r"give them with \.schema"),
    ],
)
def test_invalid_layout_is_refused(ddl: str | None, options: dict[str, str], message: str):
    with pytest.raises(BadOption, match=message):
        layout_of(read_options({"subscribe": "t"} | options), None if ddl is None else schema(ddl))
