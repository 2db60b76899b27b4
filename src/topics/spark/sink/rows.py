"""Convert the columns of a DataFrame to records: the meaning of each column, and the JSON of each record.

    data          the payload: a string or binary column holds JSON text, any other type is converted to JSON
    tag, node     strings
    meta          a string with a JSON object, or a struct or map
    topic         the destination, unless the option `topic` is set
    seq, topic    the source of the row, as the reader gives it; `source_topic` if `topic` is the destination

Kafka's names `value`, `key` and `offset` mean data, tag and seq. Columns of this source and of Kafka's that are
not part of a record (`kind`, `ts`, `partition` …) are ignored. Any other column is an error, because ignoring it would
lose data.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from math import isfinite, isnan
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw
from pyspark.sql import types as t

from topics.errors import TopicsError
from topics.model import surrogates
from topics.model.names import check_topic
from topics.spark.options import DataFormat
from topics.spark.sink.chunks import Plain, Sourced
from topics.spark.source.layout import RECORD_SCHEMA

ALIASES = {"value": "data", "key": "tag", "offset": "seq"}
USED = ("data", "tag", "node", "meta", "topic", "seq", "source_topic", "kind", "gap_to", "reason")
IGNORED = {*RECORD_SCHEMA.names, *ALIASES, "partition", "timestamp", "timestamptype"}

_check = msgspec.json.Decoder(Raw).decode
_TEXT = (t.StringType, t.CharType, t.VarcharType)


class BadColumns(ValueError):
    """A DataFrame cannot be written. The message names the column and the remedy."""


class BadValue(ValueError):
    """A value cannot be written."""


class Renderer:
    """Converts Arrow batches to records. Built on the driver, which finds a wrong schema at once; used by tasks."""

    def __init__(self, schema: t.StructType, topic: str | None = None, data_format: DataFormat = "json") -> None:
        self._arguments = schema, topic, data_format
        self._at = _positions(schema)
        self._topic = topic
        kinds = {name: schema.fields[at].dataType for name, at in self._at.items()}
        _check_kinds(kinds, topic)
        self._data: Texts = lambda column: _json_texts("data", column)
        if not isinstance(kinds["data"], (*_TEXT, t.BinaryType)):
            self._data = json_column(kinds["data"], "data")
        elif data_format == "text":
            self._data = lambda column: quoted(_strings("data", column))
        self._meta: Texts | None = None
        if "meta" in self._at and isinstance(kinds["meta"], _TEXT):
            self._meta = lambda column: _json_texts("meta", column)
        elif "meta" in self._at:
            self._meta = json_column(kinds["meta"], "meta")
        self.has_source = "seq" in kinds and ("source_topic" in kinds or "topic" in kinds)
        self._has_gaps = self.has_source and {"kind", "gap_to", "reason"} <= kinds.keys()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments: the functions built for a schema cannot be pickled, so a task builds its own."""
        return Renderer, self._arguments

    def rows(self, batch: pa.RecordBatch) -> tuple[list[Sourced], list[Plain]]:
        """Return the rows with a source, and the rows without one."""
        records = self._records(batch)
        topics = self._destinations(batch)
        if not self.has_source:
            return [], list(map(Plain, topics, records))
        sources, seqs = self._sources(batch), self._column(batch, "seq").to_pylist()
        if None not in seqs and None not in sources:
            return list(map(Sourced, topics, cast(list[str], sources), seqs, records)), []
        sourced, plain = [], []
        for topic, source, seq, record in zip(topics, sources, seqs, records, strict=True):
            if seq is None or source is None:
                plain.append(Plain(topic, record))
            else:
                sourced.append(Sourced(topic, source, seq, record))
        return sourced, plain

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        return batch.column(self._at[name])

    def _records(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the record of each row. Columns are joined as a whole: formatting each row takes twice as long."""
        data = self._data(self._column(batch, "data"))
        gaps = self._gaps(batch, data)
        if gaps:
            data = pa.array([gaps.get(at, text) for at, text in enumerate(data.to_pylist())], pa.binary())
        parts = [pc.fill_null(data, b"null") if data.null_count else data]
        for name in ("tag", "node"):
            if name in self._at and (column := self._column(batch, name)).null_count < len(column):
                parts.append(_member(name, quoted(_strings(name, column))))
        if self._meta is not None and (column := self._column(batch, "meta")).null_count < len(column):
            parts.append(_member("meta", self._meta(column)))
        if gaps:
            kinds = [b'{"kind":"gap"}' if at in gaps else None for at in range(batch.num_rows)]
            parts.append(_member("meta", pa.array(kinds, pa.binary())))
        return cast(list[bytes], _byte_list(pc.binary_join_element_wise(b'{"data":', *parts, b"}", b"")))

    def _gaps(self, batch: pa.RecordBatch, data: pa.Array) -> dict[int, bytes]:
        """Return data that reports the gap for each row of kind gap: a copy with gaps must not look complete."""
        if not self._has_gaps:
            return {}
        is_gap = pc.and_kleene(pc.equal(self._column(batch, "kind"), "gap"), pc.is_null(data))
        names, found = {"gap_from": "seq", "gap_to": "gap_to", "reason": "reason"}, {}
        for at in pc.indices_nonzero(pc.fill_null(is_gap, False)).to_pylist():
            lost = {name: self._column(batch, column)[at].as_py() for name, column in names.items()}
            found[at] = encode({"topic": self._sources(batch.slice(at, 1))[0], **lost})
        return found

    def _destinations(self, batch: pa.RecordBatch) -> list[str]:
        if self._topic is not None:
            return [self._topic] * batch.num_rows
        column = self._column(batch, "topic")
        for name in pc.unique(column).to_pylist():
            if name is None:
                raise BadValue("a row without a topic to write to: the column topic is NULL")
            try:
                check_topic(name)
            except TopicsError as error:
                raise BadValue(f"column topic: {error.message}") from None
        return cast(list[str], column.to_pylist())

    def _sources(self, batch: pa.RecordBatch) -> list[str | None]:
        column = self._column(batch, "source_topic" if "source_topic" in self._at else "topic")
        return cast(list[str | None], column.to_pylist())


def _positions(schema: t.StructType) -> dict[str, int]:
    """Return the index of each used column. Raise `BadColumns` for a column that is not part of a record."""
    given = {field.name.lower(): at for at, field in enumerate(schema.fields)}
    found = {name: at for name, at in given.items() if name in USED}
    for alias, name in ALIASES.items():
        if alias in given:
            found.setdefault(name, given[alias])
    for name in given:
        if name not in USED and name not in IGNORED:
            raise BadColumns(
                f"column {name!r} is not part of a record: drop it, or put it into data, "
                f'such as df.select(struct("{name}", …).alias("data"))'
            )
    if "data" not in found:
        raise BadColumns('the column "data" is missing; create it, such as struct("*").alias("data")')
    return found


def _check_kinds(kinds: dict[str, t.DataType], topic: str | None) -> None:
    if topic is None and "topic" not in kinds:
        raise BadColumns("the destination is missing: set the option topic, or add a column topic")
    for name in ("topic", "source_topic", "node"):
        if name in kinds and not isinstance(kinds[name], _TEXT):
            raise BadColumns(f"column {name!r} must be a string, not {kinds[name].simpleString()}")
    if "tag" in kinds and not isinstance(kinds["tag"], (*_TEXT, t.BinaryType)):
        raise BadColumns(f"column 'tag' must be a string, not {kinds['tag'].simpleString()}")
    if "seq" in kinds and not isinstance(kinds["seq"], t.LongType):
        raise BadColumns(f"column 'seq' must be a bigint, as the reader gives it, not {kinds['seq'].simpleString()}")


def _member(name: str, texts: pa.Array) -> pa.Array:
    """Return `,"name":text` for each text, and nothing for null."""
    member = pc.binary_join_element_wise(f',"{name}":'.encode(), texts, b"")
    return pc.fill_null(member, b"") if member.null_count else member


def _byte_list(column: pa.Array) -> list[bytes | None]:
    """Return the values as bytes. Twice as fast as `to_pylist`, which creates a scalar for each value."""
    return cast(list[bytes | None], column.to_numpy(zero_copy_only=False).tolist())


def _json_texts(name: str, column: pa.Array) -> pa.Array:
    """Return JSON texts as they are, after a check: an incomplete value would corrupt the records beside it."""
    texts = column.cast(pa.binary())
    for text in _byte_list(texts):
        if text is not None:
            try:
                _check(text)
            except (msgspec.MsgspecError, RecursionError) as error:
                if not _is_json(text):
                    shown = text[:80].decode(errors="replace")
                    hint = '; to write plain strings, set the option dataFormat to "text"' if name == "data" else ""
                    raise BadValue(f"column {name}: {shown!r} is not JSON text ({error}){hint}") from None
    return texts


def _is_json(text: bytes) -> bool:
    """Check a text as a server does: half surrogate pairs are valid, and the decoder rejects them."""
    with suppress(msgspec.MsgspecError, RecursionError, TopicsError):
        masked = surrogates.mask(text)
        _check(text if masked is None else masked.text)
        return True
    return False


def _strings(name: str, column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise BadValue(f"column {name}: {error}") from None


# --- columns as JSON text
#
# A column at a time takes a third of the time that rows as dicts take. The text has the form of Spark's `to_json`,
# except where `to_json` loses information: here a timestamp keeps its microseconds, and is always in UTC.

Values = Callable[[pa.Array], list[Any]]  # the values of a column, as the encoder takes them
Texts = Callable[[pa.Array], pa.Array]  # JSON text as bytes, null where the value is null

_encoder = msgspec.json.Encoder(decimal_format="number")
encode = _encoder.encode

_AS_THEY_ARE = (  # the encoder writes bytes as base64, and dates and times in ISO 8601
    t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.BooleanType, t.StringType, t.CharType, t.VarcharType,
    t.DecimalType, t.NullType, t.DateType, t.TimeType, t.BinaryType,
)  # fmt: skip
_MS_CHARS = len("2024-01-01T00:00:00.000")


def json_column(kind: t.DataType, where: str) -> Texts:
    """Return a function that converts a column of type `kind`. Raise `BadColumns` if the type has no JSON form."""
    values = _values(kind, where)
    return lambda column: _texts(values(column), column)


def quoted(column: pa.Array) -> pa.Array:
    """Return strings as JSON."""
    return _texts(column.to_pylist(), column)


def _texts(values: list[Any], column: pa.Array) -> pa.Array:
    texts = pa.array(_encoder.encode_lines(values).split(b"\n")[: len(values)], pa.binary())
    return texts if column.null_count == 0 else pc.if_else(pc.is_valid(column), texts, None)


def _values(kind: t.DataType, where: str) -> Values:
    if isinstance(kind, _AS_THEY_ARE):
        return lambda column: column.to_pylist()
    if isinstance(kind, t.DoubleType | t.FloatType):
        return lambda column: [_number(value) for value in column.to_pylist()]
    if isinstance(kind, t.TimestampType | t.TimestampNTZType):
        zone = "" if isinstance(kind, t.TimestampNTZType) else "Z"
        return lambda column: _moments(column, zone)
    if isinstance(kind, t.ArrayType):
        return _lists(_values(kind.elementType, f"{where}[]"))
    if isinstance(kind, t.MapType):
        return _maps(_values(kind.keyType, f"{where} (keys)"), _values(kind.valueType, f"{where} (values)"))
    if isinstance(kind, t.StructType):
        return _structs(kind.names, [_values(field.dataType, f"{where}.{field.name}") for field in kind.fields])
    if isinstance(kind, t.VariantType):
        return lambda column: [_variant(value) for value in column.to_pylist()]
    raise BadColumns(f"{where} is of type {kind.simpleString()}, which has no JSON form; cast it to a string")


def _number(value: float | None) -> float | str | None:
    """Return a number. NaN and the infinities are strings, as `to_json` does: JSON has none."""
    if value is None or isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _variant(value: dict[str, bytes] | None) -> Raw | None:
    return None if value is None else Raw(t.VariantVal(value["value"], value["metadata"]).toJson().encode())


def _structs(names: list[str], members: list[Values]) -> Values:
    """Return a function for structs. Fields that are null are left out, as `to_json` does."""
    slots = [f"f{at}" for at in range(len(names))]
    try:
        row: Any = msgspec.defstruct(
            "Row", [(slot, Any, None) for slot in slots], rename=dict(zip(slots, names, strict=True)),
            omit_defaults=True, gc=False,
        )  # fmt: skip
    except ValueError:  # a name with a quotation mark, or one name twice

        def row(*values: Any) -> dict[str, Any]:
            return {name: value for name, value in zip(names, values, strict=True) if value is not None}

    def values(column: pa.StructArray) -> list[Any]:
        found = [of(pc.struct_field(column, [at])) for at, of in enumerate(members)]  # names may be the same
        rows = list(map(row, *found)) if found else [{}] * len(column)
        return _where_valid(column, rows)

    return values


def _lists(elements: Values) -> Values:
    def values(column: pa.ListArray) -> list[Any]:
        sizes = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        flat = elements(column.flatten())
        ends = [0, *np.cumsum(sizes, dtype=np.int64).tolist()]
        return _where_valid(column, [flat[low:high] for low, high in pairwise(ends)])

    return values


def _maps(keys: Values, members: Values) -> Values:
    """Return a function for maps: objects whose names are the keys, or their JSON text."""

    def pairs(column: pa.StructArray) -> list[Any]:
        names = [name if isinstance(name, str) else encode(name).decode().strip('"') for name in keys(column.field(0))]
        return list(zip(names, members(column.field(1)), strict=True))

    objects = _lists(pairs)

    def values(column: pa.MapArray) -> list[Any]:
        found = objects(column.cast(pa.list_(pa.struct(list(column.type.field(0).type)))))
        return [None if one is None else dict(one) for one in found]

    return values


def _moments(column: pa.Array, zone: str) -> list[Any]:
    """Return timestamps in ISO 8601, with milliseconds, or with microseconds if there are any."""
    plain = column.cast(pa.timestamp("us"))  # without its zone, a UTC timestamp shows the time in UTC
    years = pc.min_max(pc.year(plain))
    if plain.null_count < len(plain) and not 1000 <= years["min"].as_py() <= years["max"].as_py() < 9999:
        return [None if value is None else _moment(value) + zone for value in plain.to_pylist()]
    shown = pc.binary_replace_slice(plain.cast(pa.string()), start=10, stop=11, replacement="T")
    short = pc.utf8_slice_codeunits(shown, 0, _MS_CHARS)
    exact = pc.if_else(pc.equal(pc.microsecond(plain), 0), short, shown)
    return pc.binary_join_element_wise(exact, zone, "").to_pylist()  # type: ignore[no-any-return]


def _moment(value: datetime) -> str:
    return value.isoformat(timespec="microseconds" if value.microsecond % 1000 else "milliseconds")


def _where_valid(column: pa.Array, values: list[Any]) -> list[Any]:
    if column.null_count:
        for at in np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False)).tolist():
            values[at] = None
    return values
