"""The columns of a query's result as the columns of a Delta table. Spark and Delta describe types by the same JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from topics.spark.failures import BadUsage

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SIMPLE = {
    "string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date", "timestamp",
}  # fmt: skip
BAD_CHARACTERS = " ,;{}()\n\t="  # many programs do not accept them in the name of a column


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the columns of a table for these results. Raise `BadUsage` if a table cannot have a name or type."""
    from deltalake import Schema

    told = _nullable(json.loads(schema.json()))
    for field in told["fields"]:
        _check(field["name"], field)
    return pa.schema(Schema.from_json(json.dumps(told)).to_arrow())


def _check(column: str, field: dict[str, Any]) -> None:
    if not field["name"] or any(one in BAD_CHARACTERS for one in field["name"]):
        raise BadUsage(
            f"column {field['name']!r} of the result: a table cannot have this name", next="rename it with AS …"
        )
    _check_type(column, field["type"])


def _check_type(column: str, kind: Any) -> None:
    if isinstance(kind, str):
        if kind not in SIMPLE and not kind.startswith("decimal("):
            raise BadUsage(
                f"column {column} of the result: a table cannot have the type {kind}",
                next="cast it, for example to STRING, or to TIMESTAMP",
            )
    elif kind["type"] == "struct":
        for field in kind["fields"]:
            _check(column, field)
    else:
        for part in ("elementType", "keyType", "valueType"):
            if part in kind:
                _check_type(column, kind[part])


def _nullable(value: Any) -> Any:
    """Return the JSON of a type that accepts NULL everywhere, without metadata."""
    if isinstance(value, list):
        return [_nullable(one) for one in value]
    if not isinstance(value, dict):
        return value
    always: dict[str, Any] = {"nullable": True, "containsNull": True, "valueContainsNull": True, "metadata": {}}
    return {key: always[key] if key in always else _nullable(one) for key, one in value.items()}
