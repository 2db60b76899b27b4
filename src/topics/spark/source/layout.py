"""The columns that a read returns: those of the record, fields of its `data`, or both. Imports no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import pyarrow as pa
from msgspec import Struct

from topics.spark.source.conditions import Comparison, Narrowing, narrowing
from topics.spark.source.schema import Shape
from topics.spark.source.where import parse

if TYPE_CHECKING:
    from pyspark.sql.types import StructField


class OutputColumn(NamedTuple):
    """One column: a column of the record called `source`, a field of data, or the text of a malformed record."""

    name: str
    of: Literal["record", "field", "malformed"]
    source: str
    arrow: pa.DataType


class Layout(Struct, frozen=True, kw_only=True):
    """The columns of a read, the fields of data among them, and the condition on records."""

    shape: Shape = Shape()
    outputs: tuple[OutputColumn, ...] = ()  # none: all columns of the shape
    fields: tuple[StructField, ...] = ()
    typed: bool = False
    where: str | None = None

    @property
    def columns(self) -> tuple[OutputColumn, ...]:
        return self.outputs or tuple(OutputColumn(name, "record", name, kind) for name, _, kind in self.shape.rows)

    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(one.name, one.arrow) for one in self.columns])

    def kinds(self) -> dict[str, pa.DataType]:
        """Return the columns that a condition can use: those of the read, and all columns of the record."""
        prefix = "_" if self.typed else ""
        record = {f"{prefix}{name}": kind for name, _, kind in self.shape.rows}
        return {one.name: one.arrow for one in self.columns} | record

    def implied(self) -> tuple[Comparison, ...]:
        """Return comparisons that hold for each record that matches the condition."""
        return () if self.where is None else parse(self.where, self.kinds()).implied

    def narrowing(self) -> Narrowing:
        """Return what the condition implies for the plan of the read."""
        return narrowing(self.implied(), kafka=self.shape.kafka, typed=self.typed)
