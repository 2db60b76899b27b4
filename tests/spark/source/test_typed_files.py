"""Typed reads of a lake: the column of a file and the field of its `data` are the same answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_type

from tests.lake.making import EPOCH, records
from topics.lake import Change, Lake, TypedColumns, write_files
from topics.lake.columns import JsonFields, arrow_type
from topics.spark.options import read_options
from topics.spark.source.plan import Span
from topics.spark.source.read import read_span
from topics.spark.source.schema_layout import layout_of

KINDS = {
    "s": "STRING", "h": "SMALLINT", "i": "INT", "l": "BIGINT", "f": "FLOAT", "d": "DOUBLE", "b": "BOOLEAN",
    "c": "DECIMAL(6,2)", "day": "DATE", "at": "TIMESTAMP",
}  # fmt: skip
VALUES = [
    "null", "true", '"x"', '"é\\ud800"', "7", "-1.0", "1.5", "1e3", "1e400", "70000", "12345678901234567890",
    '"12.345"', '"NaN"', '"Infinity"', '{"a": 1.50}', "[1, 2]", '"2024-02-29"', '"2024-02-30"',
    '"2024-02-29T12:00:00.123456Z"', '"2024-02-29T12:00:00+01:00"', '"9999-12-31T23:59:59Z"', '"AAE="',
]  # fmt: skip
TEXTS = [
    *(f'{{"{name}": {value}, "other": {value}}}' for name in KINDS for value in VALUES),
    *("{" + ", ".join(f'"{name}": {value}' for name in KINDS) + "}" for value in VALUES),
    "[]", "null", '"no object"', "{}", '{"i": 1, "i": "2"}',
]  # fmt: skip
SIZE = len(TEXTS)


def add(lake: Lake, first: int, columns: Iterable[str], **kinds: str) -> None:
    """Archive the texts once more, with these typed columns."""
    kinds = {name: KINDS[name] for name in columns} | kinds
    typed = TypedColumns.parse(", ".join(f"{name} {kind}" for name, kind in kinds.items())) if kinds else TypedColumns()
    batch = records(first, first + SIZE - 1)
    at = batch.schema.get_field_index("data")
    files = write_files(lake.storage, "a", EPOCH, [batch.set_column(at, "data", pa.array(TEXTS))], typed=typed)
    covered = (first, first + SIZE - 1)
    lake.commit(lake.table("a").state(), [Change(op="archive", topic="a", epoch=EPOCH, adds=files, covered=covered)])


def rows(lake: Lake, *, where: str | None = None, more: Iterable[str] = (), only: Iterable[str] = KINDS) -> list[Any]:
    schema = t.StructType([t.StructField(name, from_arrow_type(arrow_type(KINDS[name]))) for name in only])
    for name in more:
        schema.add(name, {"_seq": "long"}.get(name, "string"))
    given = {"lake": lake.path, "lakeOnly": "true", "subscribe": "a"} | ({} if where is None else {"where": where})
    options = read_options(given)
    archived = lake.snapshot().archived("a", EPOCH)
    assert archived is not None
    span = Span(server=lake.path, topic="a", epoch=EPOCH, start=1, stop=archived.archived_to + 1)
    return [str(row) for batch in read_span(span, options, layout_of(options, schema)) for row in batch.to_pylist()]


@pytest.fixture
def make(tmp_path: Any) -> Callable[[], Lake]:
    def lake() -> Lake:
        made = Lake(str(tmp_path / f"lake-{len(list(tmp_path.iterdir()))}"))
        made.create()
        return made

    return lake


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of records of each batch that is parsed."""
    counts, parse = list[int](), JsonFields.parse
    monkeypatch.setattr(JsonFields, "parse", lambda self, data: counts.append(len(data)) or parse(self, data))
    return counts


def test_columns_of_files_are_the_fields_of_data(make: Callable[[], Lake], parsed: list[int]):
    texts, typed = make(), make()
    add(texts, 1, ())
    add(typed, 1, KINDS)
    for more in ((), ("_seq", "_data"), ("_seq", "_malformed")):
        parsed.clear()
        expected = rows(texts, more=more)
        assert parsed == [SIZE]
        parsed.clear()
        assert rows(typed, more=more) == expected
        assert parsed == ([SIZE] if "_malformed" in more else [])
    for name in KINDS:  # whether a value fits does not depend on the other fields
        assert rows(typed, only=[name]) == rows(texts, only=[name])
    assert rows(typed, where="other = 7", more=["_seq"]) == rows(texts, where="other = 7", more=["_seq"])


def test_file_without_a_column_or_with_another_type_is_parsed(make: Callable[[], Lake], parsed: list[int]):
    texts, mixed = make(), make()
    for first in range(1, 4 * SIZE, SIZE):
        add(texts, first, ())
    add(mixed, 1, ())
    add(mixed, SIZE + 1, [name for name in KINDS if name != "at"])
    add(mixed, 2 * SIZE + 1, KINDS)
    add(mixed, 3 * SIZE + 1, [name for name in KINDS if name != "i"], i="BIGINT")
    expected = rows(texts, more=["_seq"])
    parsed.clear()
    assert rows(mixed, more=["_seq"]) == expected
    assert parsed == [SIZE] * 3


def test_file_that_another_program_merged_is_parsed(make: Callable[[], Lake], parsed: list[int]):
    texts, optimized = make(), make()
    for first in (1, SIZE + 1):
        add(texts, first, ())
    add(optimized, 1, ())
    optimized.table("a").add_columns(TypedColumns.parse("i INT"))
    add(optimized, SIZE + 1, ["i"])
    assert DeltaTable(f"{optimized.path}/a").optimize.compact()["numFilesRemoved"] == 2
    expected = rows(texts, only=["i"])
    parsed.clear()
    assert rows(Lake(optimized.path), only=["i"]) == expected
    assert parsed == [2 * SIZE]


def test_field_with_the_name_of_a_column_of_the_record_is_a_field(make: Callable[[], Lake]):
    lake = make()
    add(lake, 1, ["s"])
    schema = t.StructType().add("s", "string").add("tag", "string")
    options = read_options({"lake": lake.path, "lakeOnly": "true", "subscribe": "a", "typed": "true"})
    span = Span(server=lake.path, topic="a", epoch=EPOCH, start=1, stop=SIZE + 1)
    [batch] = read_span(span, options, layout_of(options, schema))
    assert batch.column("tag").null_count == SIZE
