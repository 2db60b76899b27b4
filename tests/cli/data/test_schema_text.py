"""Types of TypeScript and Python for schemas, and schemas for records."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.cli.data.schema_text import infer, type_name, types
from topics.model.records import NewRecord
from topics.model.schemas import violation

SCHEMA = {
    "type": "object",
    "description": "An order.",
    "properties": {
        "sku": {"type": "string", "description": "the article"},
        "qty": {"type": ["integer", "null"]},
        "state": {"enum": ["new", "paid", None, True]},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "number"}}}},
        "by": {"$ref": "#/$defs/person"},
        "more": {"type": "object", "additionalProperties": {"type": "boolean"}},
        "any": {},
    },
    "required": ["sku", "by"],
    "$defs": {"person": {"properties": {"name": {"type": "string"}, "boss": {"$ref": "#/$defs/person"}}}},
}


def test_types_of_typescript():
    assert types(SCHEMA, "Order", "ts").split("\n\n") == [
        """/** An order. */
export interface Order {
  /** the article */
  sku: string
  qty?: number | null
  state?: "new" | "paid" | null | true
  lines?: Array<OrderLinesItem>
  by: Person
  more?: Record<string, boolean>
  any?: unknown
}""",
        "export interface OrderLinesItem {\n  n?: number\n}",
        "export interface Person {\n  name?: string\n  boss?: Person\n}\n",
    ]


def test_types_of_python_can_be_imported_and_decode_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "order_types.py").write_text(types(SCHEMA, "Order", "python"))
    monkeypatch.syspath_prepend(str(tmp_path))
    names = vars(importlib.import_module("order_types"))
    order = {"sku": "a", "by": {"name": "x", "boss": {"name": "y"}}, "state": "paid", "lines": [{"n": 1.5}]}
    assert set(names["Order"].__annotations__) == set(SCHEMA["properties"])
    assert msgspec.convert(order, names["Order"]) == order
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"sku": "a"}, names["Order"])


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "array", "items": {"type": "string"}}, "export type T = Array<string>\n"),
        ({"properties": {"a-b": {"type": "null"}}}, 'export interface T {\n  "a-b"?: null\n}\n'),
        ({"anyOf": [{"type": "string"}, {"const": 5}]}, "export type T = string | 5\n"),
        ({}, "export type T = unknown\n"),
    ],
)
def test_types_of_other_schemas(schema: dict[str, Any], shown: str):
    assert types(schema, "T", "ts") == shown
    compile(types(schema, "T", "python"), "types", "exec")


def test_names_of_types_come_from_topics():
    assert [type_name(name) for name in ("orders", "shop:orders-eu", "a_b", "7up")] == [
        "Orders", "ShopOrdersEu", "AB", "T7up",
    ]  # fmt: skip


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(JSON, min_size=1, max_size=5))
def test_inferred_schema_matches_its_records(values: list[Any]):
    records = [NewRecord(msgspec.Raw(msgspec.json.encode(value))) for value in values]
    assert violation(infer(values), records) is None
    compile(types(infer(values), "T", "python"), "types", "exec")
