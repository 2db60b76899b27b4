"""Typed columns: fields of `data` as columns of their own."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest
from deltalake import DeltaTable

from tests.lake.making import EPOCH, archive, merge, records, seqs_of
from topics.lake import BadColumns, Change, Lake, TypedColumns, write_files
from topics.lake.archived import Unfit
from topics.lake.files import FILE_SCHEMA


def typed(kind: str, *texts: str) -> list[Any]:
    """Return the values of a column `x` of this type for JSON texts of its field."""
    batch = records(1, len(texts)).set_column(5, "data", pa.array([f'{{"x": {text}}}' for text in texts]))
    found, unfit = TypedColumns.parse(f"x {kind}").extended(batch, FILE_SCHEMA)
    values = found.column("x").to_pylist()
    is_unfit = [text != "null" and value is None for text, value in zip(texts, values, strict=True)]
    assert unfit.get("x", []) == [at for at, one in enumerate(is_unfit) if one]
    return values


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        ("STRING", ['"a\\u00fc\\n"', "5", "1.50", '{"a": 1}', "null"], ["aü\n", "5", "1.50", '{"a": 1}', None]),
        ("INT", ["5", "-2147483648", "2147483648", "1.0", '"5"', "true", "null"], [5, -2147483648, *[None] * 5]),
        ("SMALLINT", ["32767", "32768"], [32767, None]),
        ("BIGINT", ["9223372036854775807", "9223372036854775808"], [9223372036854775807, None]),
        ("DOUBLE", ["1", "1.5", "-2e3", "1e999", '"1"'], [1.0, 1.5, -2000.0, math.inf, None]),
        ("FLOAT", ["1.5", "1e39"], [1.5, math.inf]),
        ("BOOLEAN", ["true", "false", "1", '"true"'], [True, False, None, None]),
        (
            "DECIMAL(4,2)", ["12.34", "12.345", "123.4", "1e1", '"0.10"', "-99.99", '"x"', "[]"],
            [Decimal("12.34"), Decimal("12.35"), None, Decimal(10), Decimal("0.10"), Decimal("-99.99"), None, None],
        ),
        ("DATE", ['"2024-02-29"', '"2023-02-29"', "1"], [date(2024, 2, 29), None, None]),
        (
            "TIMESTAMP", ['"2024-02-29T12:00:00Z"', '"2024-02-29T12:00:00+02:00"', '"2024-02-29"', '"noon"'],
            [*(datetime(2024, 2, 29, hour, tzinfo=UTC) for hour in (12, 10, 0)), None],
        ),
    ],
)  # fmt: skip
def test_value_that_does_not_fit_is_null(kind: str, texts: list[str], values: list[Any]):
    assert typed(kind, *texts) == values


def test_record_that_is_no_object_or_lacks_the_field_is_null():
    texts = ['"text"', "[1]", "17", "null", '{"y": 1}', '{"x": 1, "x": 2}', '{\n "x": 3}']
    batch = records(1, 7).set_column(5, "data", pa.array(texts))
    found, unfit = TypedColumns.parse("x INT").extended(batch, FILE_SCHEMA)
    assert not unfit
    assert found.column("x").to_pylist() == [None] * 5 + [2, 3]
    assert found.column("data").to_pylist() == texts


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "no columns"), ("sku", "is not a column"), ("sku TEXT", "TEXT is not a type"), ("a INT, A INT", "twice"),
        ("seq INT", "column of every table"), ("x DECIMAL(50,2)", "precision"), ("x INT(5)", "only DECIMAL"),
    ],
)  # fmt: skip
def test_wrong_list_of_columns_is_refused(text: str, reported: str):
    with pytest.raises(BadColumns, match=reported):
        TypedColumns.parse(text)


def test_list_of_columns_allows_quotes_and_precisions():
    found = TypedColumns.parse("`order id` string, total DECIMAL(10, 2), n decimal")
    assert found.fields == (("order id", "STRING"), ("total", "DECIMAL(10,2)"), ("n", "DECIMAL(10,0)"))
    assert TypedColumns.of_schema(pa.schema([*FILE_SCHEMA, *found.arrow_fields])) == found


def orders(first: int, last: int) -> pa.RecordBatch:
    texts = [json.dumps({"sku": f"s{seq:03}", "qty": seq, "total": seq + 0.5}) for seq in range(first, last + 1)]
    return records(first, last).set_column(5, "data", pa.array(texts))


def fill(lake: Lake, first: int, last: int) -> None:
    table = lake.table("a")
    files = write_files(lake.storage, "a", EPOCH, [orders(first, last)], typed=table.typed())
    lake.commit(table.state(), [Change(op="archive", topic="a", epoch=EPOCH, adds=files, covered=(first, last))])


def test_columns_are_added_later_and_filled_by_merges(lake: Lake):
    fill(lake, 1, 10)
    assert lake.table("a").add_columns(TypedColumns.parse("sku STRING, qty INT")) == ["sku", "qty"]
    fill(lake, 11, 20)
    assert lake.table("a").add_columns(TypedColumns.parse("qty INT, total DECIMAL(10,2)")) == ["total"]
    fill(lake, 21, 30)
    table = DeltaTable(f"{lake.path}/a").to_pyarrow_table().sort_by("seq")
    assert table["qty"].to_pylist() == [None] * 10 + list(range(11, 31))
    assert table["total"].to_pylist() == [None] * 20 + [Decimal(f"{seq}.50") for seq in range(21, 31)]
    assert seqs_of(lake.read("a", EPOCH)) == list(range(1, 31))
    assert merge(lake, "a", min_files=2) == 3
    table = DeltaTable(f"{lake.path}/a").to_pyarrow_table().sort_by("seq")
    assert table["qty"].to_pylist() == list(range(1, 31))
    assert table["sku"].to_pylist()[:2] == ["s001", "s002"]


def test_values_that_do_not_fit_are_counted_by_column(lake: Lake):
    """An absent field and null fit. The records are in files of several dates."""
    texts = ['{"qty": 1, "total": 1.5}', '{"qty": "1"}', '{"qty": null, "total": "x"}', "{}", '"no"', '{"qty": [2]}']
    batch = records(1, 6, step_us=10 * 3600 * 1_000_000).set_column(5, "data", pa.array(texts))
    table = lake.table("a")

    def fill(first: int) -> None:
        part = batch.set_column(0, "seq", pa.array(range(first, first + 6), pa.int64()))
        files = write_files(lake.storage, "a", EPOCH, [part], typed=table.typed())
        change = Change(op="archive", topic="a", epoch=EPOCH, adds=files, covered=(first, first + 5))
        lake.commit(table.state(), [change])

    fill(1)
    assert lake.unfit_in("a") == {}
    table.add_columns(TypedColumns.parse("qty INT, total DECIMAL(4,1)"))
    fill(7)
    qty = Unfit(type="INT", records=2, epoch=EPOCH, first_seq=8)
    assert lake.unfit_in("a") == {"qty": qty, "total": Unfit(type="DECIMAL(4,1)", records=1, epoch=EPOCH, first_seq=9)}
    assert lake.unfit_in("b") == {}


def test_merge_counts_what_does_not_fit_a_column_that_it_fills(lake: Lake):
    batch = records(1, 2).set_column(5, "data", pa.array(['{"qty": 1}', '{"qty": "1"}']))
    files = write_files(lake.storage, "a", EPOCH, [batch])
    table = lake.table("a")
    lake.commit(table.state(), [Change(op="archive", topic="a", epoch=EPOCH, adds=files, covered=(1, 2))])
    table.add_columns(TypedColumns.parse("qty INT"))
    fill(lake, 3, 4)
    assert lake.unfit_in("a") == {}
    assert merge(lake, "a") == 2
    assert lake.unfit_in("a") == {"qty": Unfit(type="INT", records=1, epoch=EPOCH, first_seq=2)}


def test_columns_of_files_that_another_program_merged_are_read_from_data(lake: Lake):
    """The other program leaves the column NULL for the records of files that did not have it."""
    table = lake.table("a")
    archive(lake, "a", 1, 3)
    table.add_columns(TypedColumns.parse("n INT"))
    archive(lake, "a", 4, 6, typed=table.typed())
    DeltaTable(f"{lake.path}/a").optimize.compact()
    assert not Lake(lake.path).table("a").has_in_every_file(["n"])
    assert all("n" not in batch.schema.names for batch in lake.read("a", EPOCH, columns=["seq", "n"]))
    archive(lake, "a", 7, 60, typed=table.typed())
    archive(lake, "a", 61, 120, typed=table.typed())
    assert merge(lake, "a") == 3
    assert table.has_in_every_file(["n"])
    [batch] = lake.read("a", EPOCH, columns=["seq", "n"])
    assert batch.column("n").to_pylist() == list(range(1, 121))


def test_column_of_another_type_is_refused(lake: Lake):
    lake.table("a").add_columns(TypedColumns.parse("qty INT"))
    with pytest.raises(BadColumns, match="column qty of topic a is INT in the lake, not STRING"):
        lake.table("a").add_columns(TypedColumns.parse("qty STRING"))


def test_statistics_leave_out_files(lake: Lake):
    lake.table("a").add_columns(TypedColumns.parse("sku STRING, qty INT, total DECIMAL(10,2)"))
    for at in range(5):
        fill(lake, 1 + 10 * at, 10 + 10 * at)
    delta = DeltaTable(f"{lake.path}/a")
    actions = pa.table(delta.get_add_actions(flatten=True)).sort_by("min.seq")
    assert actions["min.qty"].to_pylist() == [1, 11, 21, 31, 41]
    assert actions["max.sku"].to_pylist() == ["s010", "s020", "s030", "s040", "s050"]
    assert actions["max.total"].to_pylist() == [Decimal(f"{10 * at}.50") for at in range(1, 6)]
    dataset = delta.to_pyarrow_dataset()
    for predicate in (pa.dataset.field("qty") > 45, pa.dataset.field("sku") > "s045"):
        assert len(list(dataset.get_fragments(predicate))) == 1
        assert dataset.to_table(filter=predicate)["seq"].to_pylist() == [46, 47, 48, 49, 50]


def test_table_without_columns_stays_as_it_is(lake: Lake):
    archive(lake, "a", 1, 10)
    assert lake.table("a").typed() == TypedColumns(())
