"""Statements that DuckDB runs in this process: a view for each topic that a statement names.

A view is a dataset of Arrow: DuckDB asks it for the columns that it needs, and the records are read while it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from topics.engine.offline.directory import Excerpt
from topics.lake.columns import JsonFields
from topics.spark.options import ReadOptions, read_options
from topics.spark.source import plan
from topics.spark.source.catalog import catalog_of
from topics.spark.source.filters import Narrowing, narrowing_of
from topics.spark.source.layout import Layout, OutputColumn, record_column
from topics.spark.source.plan import Span, TopicExtent
from topics.spark.source.read import read_span
from topics.spark.sql import kinds
from topics.spark.sql.tables import HIDDEN, Answer, Tables, no_topic
from topics.spark.sql.text import DUCKDB, BadQuery, Statement, known

BATCH_ROWS = 10_000
ELEMENT = "v"
# Without files: a statement of somebody else, in the memory that a server leaves it.
ALONE: dict[str, Any] = {"enable_external_access": "false", "memory_limit": "1GB", "threads": "2", "temp_directory": ""}
SETUP = (
    "SET TimeZone = 'UTC'",
    "SET default_null_order = 'nulls_first_on_asc_last_on_desc'",  # as Spark
    "SET autoinstall_known_extensions = false",
    "SET python_enable_replacements = false",
    "CREATE MACRO get_json_object(json, path) AS json ->> path",
)


class DuckTables(Tables):
    """The tables of an empty database in memory."""

    engine, dialect = "DuckDB", DUCKDB

    def __init__(self, options: Mapping[str, str], *, gaps: bool = False, files: bool = True) -> None:
        """Without `files`, a statement reads topics and lakes, and no other file of this machine."""
        super().__init__(options, gaps=gaps)
        self._database = duckdb.connect(config={} if files else ALONE)
        self._views: dict[str, _Topic] = {}
        for statement in (*SETUP, *(() if files else ("SET lock_configuration = true",))):
            self._database.execute(statement)

    def close(self) -> None:
        self._database.close()

    def cancel(self) -> None:
        self._database.interrupt()

    def _run(self, statement: Statement) -> Answer:
        for view in self._views:
            self._database.unregister(view)
        self._views.clear()
        try:
            for name in self._database.get_table_names(statement.text):
                table = known(name, self._names)
                if table is not None and table not in statement.tables:
                    statement.tables.append(table)
            for table in dict.fromkeys(statement.tables):
                view = self._topic(statement, table)
                self._views[table] = view
                self._database.register(table, view)
            found = self._database.sql(statement.text)
        except duckdb.Error as error:
            raise self._explained(error, statement) from None
        if found is None:
            return Answer.of([], [])
        shown = [at for at, name in enumerate(found.columns) if name not in HIDDEN] or [*range(len(found.columns))]

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                for batch in found.to_arrow_reader(BATCH_ROWS):
                    yield batch.select(shown)
            except (duckdb.Error, OSError, pa.ArrowException) as error:
                raise self._explained(error, statement) from None

        def rows(limit: int | None) -> Iterator[tuple[Any, ...]]:
            given = 0
            for batch in batches() if limit != 0 else ():
                part = batch if limit is None else batch.slice(0, limit - given)
                yield from zip(*map(_values, part.columns), strict=True)
                given += part.num_rows
                if given == limit:
                    return

        def whole() -> pa.Table:
            held = [*batches()]
            return pa.Table.from_batches(held) if held else found.limit(0).to_arrow_table().select(shown)

        return Answer(columns=[found.columns[at] for at in shown], rows=rows, arrow=whole)

    def _explained(self, error: Exception, statement: Statement) -> Exception:
        """Return the error of a topic that could not be read, or DuckDB's without its kind."""
        for view in self._views.values():
            if view.failure is not None:
                return view.failure
        if isinstance(error, duckdb.CatalogException) and (
            name := re.search(r"Table with name (\S+) does", str(error))
        ):
            return BadQuery(no_topic(name[1], self._names))
        if isinstance(error, duckdb.ParserException) and statement.missing is not None:
            return BadQuery(no_topic(statement.missing, self._names))
        return BadQuery(str(error).strip().partition("Error: ")[2] or str(error))

    def _topic(self, statement: Statement, table: str) -> _Topic:
        options = read_options(self._subscription(table))
        typed = self._typed_columns(table)
        return _Topic(options, self._columns(), typed.arrow_fields, self._used(statement.fields, table))


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column. A timestamp without a time zone is in UTC, as in Spark."""
    is_local = pa.types.is_timestamp(column.type) and column.type.tz is None
    found: list[Any] = (column.cast(pa.timestamp("us", tz="UTC")) if is_local else column).to_pylist()
    return found


class _Topic(dataset.Dataset):  # type: ignore[misc]
    """The records of a topic up to now, which every scan reads again."""

    def __init__(
        self, options: ReadOptions, columns: tuple[str, ...], typed: list[pa.Field], parsed: Mapping[str, kinds.Kind]
    ) -> None:
        self.failure: Exception | None = None
        self._options = options
        self._outputs = {name: record_column(name) for name in columns}
        self._outputs |= {field.name: OutputColumn(field.name, "field", "data", field.type) for field in typed}
        self._parsed = {f"_{name}": pa.field(f"_{name}", kinds.arrow(kind)) for name, kind in parsed.items()}
        self._spans: list[tuple[Span, TopicExtent, Excerpt | None]] = []
        with catalog_of(options) as catalog:
            extents = {extent.topic: extent for extent in catalog.extents()}
            for span in plan.spans(options, extents.values(), catalog.seq_at):
                self._spans.append((span, extents[span.topic], catalog.excerpt(span)))

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*(pa.field(name, one.arrow) for name, one in self._outputs.items()), *self._parsed.values()])

    def scanner(
        self, columns: list[str] | None = None, filter: pc.Expression | None = None, **_: object
    ) -> dataset.Scanner:
        """Return a scan of these columns. DuckDB calls it from a thread of its own."""
        names = self.schema.names if columns is None else columns
        used = [
            name for name in self.schema.names if name in names or re.search(rf"\b{re.escape(name)}\b", str(filter))
        ]
        schema = pa.schema([self.schema.field(name) for name in used])
        return dataset.Scanner.from_batches(
            self._batches(used, schema, filter), schema=schema, columns=names, filter=filter
        )

    def _spans_of(self, filter: pc.Expression | None) -> Iterator[tuple[Span, Excerpt | None]]:
        """Yield the spans that may have matching rows."""
        narrow = Narrowing() if filter is None else narrowing_of(filter, self.schema)
        with catalog_of(self._options) as catalog:
            for whole, extent, excerpt in self._spans:
                if narrow.wants(whole.topic):
                    for span in narrow.spans([whole], extent, catalog.seq_at):
                        yield plan.located(span, extent), excerpt

    def _batches(self, names: list[str], schema: pa.Schema, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Yield the records. DuckDB turns an exception into a text, so the exception is kept."""
        read = [name for name in names if name in self._outputs]
        texts = [name[1:] for name in names if name in self._parsed and name[1:] not in read]
        outputs = tuple(self._outputs[name] for name in [*read, *texts] or ["seq"])
        fields = tuple(pa.field(one.name, one.arrow) for one in outputs if one.of == "field")
        layout = Layout(outputs=outputs, fields=fields, typed=bool(fields))
        parsers = {name: _Parser(self._parsed[name].type) for name in names if name in self._parsed}
        try:
            for span, excerpt in self._spans_of(filter):
                for batch in read_span(span, self._options, layout, excerpt):
                    columns = [
                        parsers[name].parse(batch.column(name[1:])) if name in parsers else batch.column(name)
                        for name in names
                    ]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)
        except Exception as error:
            self.failure = error
            raise


class _Parser:
    """Parses a column of JSON texts into one type. A text that does not fit is NULL, or has fields that are NULL."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._fields = JsonFields([*kind] if pa.types.is_struct(kind) else [pa.field(ELEMENT, kind)])

    def parse(self, texts: pa.Array) -> pa.Array:
        is_null, texts = texts.is_null(), texts.fill_null("null")
        if not pa.types.is_struct(self._kind):
            texts = pc.binary_join_element_wise(f'{{"{ELEMENT}":', texts, "}", "")
            [[column], _] = self._fields.parse(texts)
            return column
        columns, _ = self._fields.parse(texts)
        return pa.StructArray.from_arrays(columns, fields=[*self._kind], mask=is_null)
