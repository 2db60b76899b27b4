"""Choose the columns of a read from its schema.

Without a schema, and with one that names only columns of the source, they are columns of the record. With any other
schema the read is typed: a column is a field of `data`, `_seq`, `_ts` … are columns of the record, and `_malformed` has
the text of a record that does not fit. A schema that could mean both is refused.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as t

from topics.lake.layout import UTC_TIMESTAMP
from topics.spark.options import BadOption, ReadOptions
from topics.spark.source.layout import RECORD_SCHEMA, Layout, OutputColumn, record_column

MALFORMED = "_malformed"

_ARROW: dict[type[t.DataType], pa.DataType] = {
    t.StringType: pa.string(), t.CharType: pa.string(), t.VarcharType: pa.string(), t.BooleanType: pa.bool_(),
    t.ByteType: pa.int8(), t.ShortType: pa.int16(), t.IntegerType: pa.int32(), t.LongType: pa.int64(),
    t.FloatType: pa.float32(), t.DoubleType: pa.float64(), t.DateType: pa.date32(), t.BinaryType: pa.binary(),
    t.TimestampType: UTC_TIMESTAMP,
}  # fmt: skip
_SPARK = {pa.string(): t.StringType(), pa.int64(): t.LongType(), UTC_TIMESTAMP: t.TimestampType()}
RECORD = t.StructType([t.StructField(field.name, _SPARK[field.type]) for field in RECORD_SCHEMA])


def layout_of(options: ReadOptions, schema: t.StructType | None = None) -> Layout:
    """Return the layout of a read with these options and this schema. Raise `BadOption` if they do not match."""
    if schema is None and options.typed:
        raise BadOption("typed: the columns are missing; give them with .schema(…)")
    if schema is None or (not options.typed and _is_plain(schema)):
        names = RECORD.names if schema is None else schema.names
        return Layout(outputs=tuple(map(record_column, names)))
    return _typed_layout(schema)


def plain_schema(options: ReadOptions) -> t.StructType:
    layout_of(options)  # a typed read needs a schema
    return RECORD


def _is_plain(schema: t.StructType) -> bool:
    """Return whether all columns are columns of the source. Raise `BadOption` if only some of them are."""
    own = [field for field in schema.fields if field.name in RECORD.names]
    for field in own:
        kind = RECORD[field.name].dataType
        if len(own) < len(schema.fields) or kind != field.dataType:
            raise BadOption(
                f"schema: {field.name} ({kind.simpleString()}) is a column of the record. With fields of data beside "
                f"it, call it _{field.name}; if data has a field {field.name}, set the option typed to true"
            )
    return bool(own)


def _typed_layout(schema: t.StructType) -> Layout:
    outputs, fields = [], []
    for field in schema.fields:
        source = field.name[1:]
        if field.name.startswith("_") and source in RECORD.names:
            kind = RECORD[source].dataType
            if field.dataType != kind:
                raise BadOption(f"schema: {field.name} is of type {kind.simpleString()}")
            outputs.append(record_column(source, field.name))
        elif field.name == MALFORMED and isinstance(field.dataType, t.StringType):
            outputs.append(OutputColumn(field.name, "malformed", "data", pa.string()))
        else:
            fields.append(pa.field(field.name, arrow_type(field.dataType, field.name)))
            outputs.append(OutputColumn(field.name, "field", "data", fields[-1].type))
    if not fields and any(one.of == "malformed" for one in outputs):
        raise BadOption(f"schema: {MALFORMED} needs fields of data: a record is malformed if one of them does not fit")
    return Layout(outputs=tuple(outputs), fields=tuple(fields), typed=True)


def arrow_type(kind: t.DataType, where: str) -> pa.DataType:
    """Return the Arrow type for a field of `data`. Raise `BadOption` if the type cannot be read from JSON here."""
    if isinstance(kind, t.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, t.ArrayType):
        return pa.list_(arrow_type(kind.elementType, f"{where}[]"))
    if isinstance(kind, t.StructType):
        return pa.struct([pa.field(one.name, arrow_type(one.dataType, f"{where}.{one.name}")) for one in kind.fields])
    if type(kind) not in _ARROW:
        raise BadOption(
            f"schema: column {where} is of type {kind.simpleString()}, which a typed read does not support; read it as "
            "STRING"
        )
    return _ARROW[type(kind)]
