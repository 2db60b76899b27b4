"""The option `where`: conditions as text, tested on Arrow columns, without Spark."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from topics.model.records import TagMatch
from topics.spark.options import BadOption
from topics.spark.source.where import narrowing, parse

KINDS = {
    "seq": pa.int64(), "tag": pa.string(), "ts": pa.timestamp("us", tz="UTC"), "price": pa.float64(), "ok": pa.bool_(),
    "odd name": pa.int32(),
}  # fmt: skip
ROWS: dict[str, list[Any]] = {
    "seq": [1, 2, 3, 4],
    "tag": ["web", "web:x", None, "it's"],
    "ts": [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)],
    "price": [0.5, 2.5, None, -1.0],
    "ok": [True, False, None, True],
    "odd name": [7, 8, 9, None],
}


def chosen(text: str) -> list[int]:
    columns = {name: pa.array(values, KINDS[name]) for name, values in ROWS.items()}
    condition = parse(text, KINDS)
    assert condition.columns <= KINDS.keys()
    return pa.array(ROWS["seq"]).take(condition.rows(columns)).to_pylist()


@pytest.mark.parametrize(
    ("text", "seqs"),
    [
        ("seq = 2", [2]),
        ("SEQ >= 2 and seq <> 3", [2, 4]),
        ("seq > 2.5", [3, 4]),
        ("tag = 'web' OR tag = 'it''s'", [1, 4]),
        ("tag LIKE 'web%'", [1, 2]),
        ("tag NOT LIKE 'web%'", [4]),
        ("NOT tag = 'web'", [2, 4]),
        ("tag != 'web'", [2, 4]),
        ("tag IS NULL", [3]),
        ("price BETWEEN -1 AND 0.5", [1, 4]),
        ("seq NOT BETWEEN 2 AND 3", [1, 4]),
        ("seq IN (1, 3, 9)", [1, 3]),
        ("price NOT IN (0.5)", [2, 4]),
        ("ts >= TIMESTAMP '2024-01-03'", [3, 4]),
        ("ts < '2024-01-02T01:00:00+01:00'", [1]),
        ("ok = true", [1, 4]),
        ("ok = TRUE AND (seq = 1 OR seq = 2)", [1]),
        ("`odd name` = 8", [2]),
        ("price > 0 OR tag IS NULL", [1, 2, 3]),
        ("price < 0 AND tag = 'it''s' OR seq = 3", [3, 4]),
    ],
)
def test_condition_chooses_rows_as_sql_does(text: str, seqs: list[int]):
    assert chosen(text) == seqs


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "is empty"),
        ("seq", "too early"),
        ("seq =", "too early"),
        ("seq = 'x'", "seq is of type int64, and 'x' is not a value"),
        ("tag = 5", "tag is of type string, and 5 is not a value"),
        ("ts = 'soon'", "is not a value of that type"),
        ("sequence = 5", "there is no column 'sequence'; there are seq, tag"),
        ("5 = seq", "a column is expected, not '5'"),
        ("seq = 5 seq = 6", "'seq' is not expected there"),
        ("seq = 5)", r"'\)' is not expected"),
        ("(seq = 5", "too early"),
        ("seq = 5 AND ok", "too early"),
        ("seq ~ 5", "is not part of a condition"),
        ("seq LIKE '5%'", "is not a value of that type"),
        ("ok NOT = true", "not expected"),
    ],
)
def test_invalid_condition_is_refused(text: str, shown: str):
    with pytest.raises(BadOption, match=shown):
        parse(text, KINDS)


def test_only_what_each_match_implies_narrows_the_plan():
    implied = parse("seq > 4 AND tag LIKE 'a%' AND (seq < 9 OR tag = 'ab') AND NOT seq = 3", KINDS).implied
    found = narrowing(implied)
    assert (found.low_seq, found.high_seq) == (5, None)
    assert found.tag == TagMatch("Glob", "a")
    assert narrowing(parse("seq = 4 OR tag = 'x'", KINDS).implied).low_seq is None
    assert narrowing(parse("tag LIKE 'a%b%'", KINDS).implied).tag is None
