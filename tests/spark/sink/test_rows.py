"""Columns to records, without a session: the written JSON, and columns that are refused."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from topics.spark.sink.chunks import Plain, Sourced
from topics.spark.sink.rows import BadColumns, BadValue, Renderer

KINDS: dict[str, t.DataType] = {
    "STRING": t.StringType(),
    "BINARY": t.BinaryType(),
    "BIGINT": t.LongType(),
    "INT": t.IntegerType(),
    "INTERVALS": t.StructType().add("a", t.DayTimeIntervalType()),
}


def columns(ddl: str) -> t.StructType:
    """A schema as Spark would write it; Spark itself can read that only in a session."""
    found = t.StructType()
    for column in ddl.split(", "):
        name, kind = column.split(" ")
        found.add(name, KINDS[kind])
    return found


def render(schema: str, arrow: dict[str, Any], **options: Any) -> tuple[list[Sourced], list[Plain]]:
    return Renderer(columns(schema), **options).rows(pa.RecordBatch.from_pydict(arrow))


def records(schema: str, arrow: dict[str, Any], **options: Any) -> list[str]:
    sourced, plain = render(schema, arrow, **({"topic": "out"} | options))
    return [row.record.decode() for row in (*sourced, *plain)]


def test_json_string_is_written_token_for_token():
    texts = ['{"b": 1e2, "a":"\\u00e9", "a":2}', "17", '"text"', "null", " [1,\n2] ", '"\\ud83d"']
    assert records("data STRING", {"data": texts}) == [f'{{"data":{text}}}' for text in texts]


def test_json_bytes_are_written_as_json():
    assert records("data BINARY", {"data": [b'{"a":1}']}) == ['{"data":{"a":1}}']


def test_data_format_text_writes_a_string():
    assert records("data STRING", {"data": ['say "hi"', None]}, data_format="text") == [
        '{"data":"say \\"hi\\""}', '{"data":null}',
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "hello", "{", '{"a":1}}', '1},{"data":2', "NaN", "'a'", '{"a":1} {"b":2}', "[" * 100_000, "01"]
)
def test_string_that_is_not_json_is_refused(text: str):
    with pytest.raises(BadValue, match=r"is not JSON text.*dataFormat"):
        records("data STRING", {"data": ['{"fine":1}', text]})


def test_tag_node_and_meta_are_written_if_present():
    schema = "data BIGINT, tag STRING, node STRING, meta STRING"
    arrow = {"data": [1, 2], "tag": ['a"b', None], "node": [None, "n"], "meta": [None, '{"k":[1]}']}
    assert records(schema, arrow) == ['{"data":1,"tag":"a\\"b"}', '{"data":2,"node":"n","meta":{"k":[1]}}']


def test_kafka_names_are_accepted():
    arrow = {"key": [b"k"], "value": [b"{}"], "offset": [7], "topic": ["in"], "partition": [0]}
    sourced, _ = render("key BINARY, value BINARY, offset BIGINT, topic STRING, partition INT", arrow, topic="out")
    assert sourced == [Sourced("out", "in", 7, b'{"data":{},"tag":"k"}')]


def test_rows_follow_their_topic_column_and_keep_their_source():
    schema = "data BIGINT, topic STRING, source_topic STRING, seq BIGINT"
    sourced, plain = render(schema, {"data": [1, 2], "topic": ["a", "b"], "source_topic": ["x", None], "seq": [5, 6]})
    assert sourced == [Sourced("a", "x", 5, b'{"data":1}')]
    assert plain == [Plain("b", b'{"data":2}')]


def test_gap_row_becomes_a_gap_record():
    schema = "kind STRING, topic STRING, seq BIGINT, data STRING, gap_to BIGINT, reason STRING"
    arrow = {
        "kind": ["record", "gap"], "topic": ["in", "in"], "seq": [1, 2], "data": ["1", None],
        "gap_to": pa.array([None, 9], pa.int64()), "reason": [None, "evicted_cap"],
    }  # fmt: skip
    assert records(schema, arrow) == [
        '{"data":1}',
        '{"data":{"topic":"in","gap_from":2,"gap_to":9,"reason":"evicted_cap"},"meta":{"kind":"gap"}}',
    ]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id BIGINT, data STRING", "column 'id' is not part of a record"),
        ("topic STRING", 'the column "data" is missing'),
        ("data STRING, tag BIGINT", "column 'tag' must be a string"),
        ("data STRING, seq STRING, topic STRING", "column 'seq' must be a bigint"),
        ("data INTERVALS", r"data.a is of type interval day to second"),
    ],
)
def test_invalid_columns_are_refused(schema: str, message: str):
    with pytest.raises(BadColumns, match=message):
        Renderer(columns(schema), topic="out")


def test_missing_topic_is_refused():
    with pytest.raises(BadColumns, match="the destination is missing"):
        Renderer(columns("data STRING"))


@pytest.mark.parametrize("name", [None, "a/b", ""])
def test_invalid_topic_name_is_refused(name: str | None):
    with pytest.raises(BadValue, match="topic"):
        render("data STRING, topic STRING", {"data": ["1"], "topic": pa.array([name], pa.string())})
