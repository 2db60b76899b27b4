"""Topics as tables of a session: views that are created for one statement, with the fields that it uses."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from topics.clock import SystemClock
from topics.engine.offline import directory
from topics.lake import Lake, TypedColumns
from topics.lake.files import NO_COLUMNS
from topics.lake.heal import newest_epoch
from topics.plurals import counted
from topics.spark.failures import explain
from topics.spark.options import READ as KNOWN_OPTIONS
from topics.spark.options import connection, known, read_options, with_absolute_paths
from topics.spark.source.catalog import catalog_of, client_for
from topics.spark.source.layout import PLAIN
from topics.spark.source.plan import Span
from topics.spark.source.read import read_span
from topics.spark.source.readers import PUSHDOWN
from topics.spark.source.schema_layout import SPARK_TYPES
from topics.spark.sql.text import JSON_COLUMNS, VARIANT, BadQuery, Statement, quoted, read, read_condition
from topics.spark.topic_names import nearest
from topics.spark.typed_tables import merged_type
from topics.storage.fs import Fs

SAMPLE = 1000  # records from both ends of the topics that are read to infer their fields
RECORD_COLUMNS = ("topic", "seq", "ts", "node", "tag", "meta", "data")
GAP_COLUMNS = ("kind", "gap_to", "reason")
Nested = StructType | ArrayType
LEDGER = "lake.gaps"  # a table that is not a topic: ranges that were lost before they were archived
HIDDEN = tuple(f"_{name}" for name in JSON_COLUMNS)


class QueryResult(NamedTuple):
    """The rows of a query, and notes about them for the user."""

    frame: DataFrame
    notes: list[str]


def names_of(options: Mapping[str, str]) -> set[str]:
    """Return the names of all tables. Needs no Spark."""
    found: set[str] = set()
    if (path := options.get("path")) is not None:
        cold = options.get("coldPath")
        with directory.Directory(Fs(), path, cold_dir=cold, now_ms=SystemClock().now_ms()) as opened:
            return set(opened.topics)
    if (lake := options.get("lake")) is not None:
        found |= {*Lake(lake).snapshot().topics(), LEDGER}
    if options.get("lakeOnly") != "true":
        reached = connection(known(options, KNOWN_OPTIONS))
        with client_for(reached) as client:
            found |= {row.topic for row in client.topics()}
    return found


def check(text: str, names: set[str]) -> None:
    """Raise `BadQuery` if a statement certainly fails. Needs no Spark."""
    if (missing := read(text, names).missing) is not None:
        raise BadQuery(_no_topic(missing, names))


class Tables:
    """The tables that a statement can name. `options` are those of the source: url, token, lake, path …"""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], *, gaps: bool = False) -> None:
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)  # `BadQuery` reports errors
        self._spark = spark
        self._options = {**with_absolute_paths(options), "failOnDataLoss": "false" if gaps else "true"}
        self._gaps = gaps
        self._schemas: dict[tuple[str, str], tuple[Nested | None, int]] = {}

    def run(self, text: str) -> QueryResult:
        """Run one statement and return its rows. Raise `BadQuery` if it cannot be run."""
        names = names_of(self._options)
        statement = read(text, names)
        if (own := self._own(text, statement)) is not None:
            return own
        self._make_views(statement)
        notes = self._missing(statement)
        try:
            frame = self._spark.sql(statement.text)
        except PySparkException as error:
            raise BadQuery(_explain(error, statement, names)) from None
        hidden = [name for name in frame.columns if name in HIDDEN]
        return QueryResult(frame.drop(*hidden) if hidden and len(hidden) < len(frame.columns) else frame, notes)

    def cancel(self) -> None:
        """Cancel the running statement. Called from another thread than the one that waits for it."""
        if hasattr(self._spark, "_jsparkSession"):
            self._spark.sparkContext.cancelAllJobs()
        else:
            self._spark.interruptAll()

    def matching(self, frame: DataFrame, topic: str, text: str, note: Callable[[str], None]) -> DataFrame:
        """Return the rows of a topic for which a condition holds. It may use fields of `data` and `meta` by path."""
        statement = read_condition(text)
        for field in statement.fields:
            kind, _ = self._infer(topic, field.column)
            if field.path and not _has(kind or StructType(), field.path):
                note(f"{'.'.join((field.column, *field.path))} is in none of the sampled records")
        wide = frame.select("*", *self._parsed(statement, topic))
        try:
            return wide.where(statement.text).select(*frame.columns)
        except PySparkException as error:
            raise BadQuery(_explain(error, statement, set())) from None

    # --- names

    def _own(self, text: str, statement: Statement) -> QueryResult | None:
        """Answer SHOW TABLES and DESCRIBE of a topic; return None for other statements."""
        words = text.lower().split()
        if words == ["show", "tables"]:
            order = sorted((self._is_ledger(name), name.startswith("sys:"), name) for name in names_of(self._options))
            return QueryResult(self._spark.createDataFrame([(name,) for *_, name in order], "table STRING"), [])
        if len(words) == 2 and words[0] in ("describe", "desc") and statement.tables:
            return None if self._is_ledger(statement.tables[0]) else self._describe(statement.tables[0])
        return None

    def _describe(self, table: str) -> QueryResult:
        frame = self._load(table, push=False)
        kinds = dict(frame.select(*self._columns()).dtypes)
        rows = [(name, kinds[name]) for name in self._columns()]
        rows += [(name, kind.lower()) for name, kind in self._typed_columns(table).fields]
        for column in JSON_COLUMNS:
            kind, _ = self._infer(table, column)
            if isinstance(kind, StructType):
                rows += [(f"{column}.{field.name}", field.dataType.simpleString()) for field in kind.fields]
        return QueryResult(self._spark.createDataFrame(rows, "column STRING, type STRING"), [])

    # --- views

    def _make_views(self, statement: Statement) -> None:
        self._spark.conf.set(PUSHDOWN, "true")
        for table in dict.fromkeys(statement.tables):
            if self._is_ledger(table):
                ledger = Lake(self._options["lake"]).ledger()
                self._spark.createDataFrame(ledger).createOrReplaceTempView(quoted(table))
                continue
            # Spark reuses a plan with its first filters, so filters are pushed only for a table that is read once.
            push = statement.tables.count(table) == 1 and "with" not in statement.words
            typed = self._typed_columns(table)
            frame = self._from_files(table, typed)
            if frame is None:
                frame = self._load(table, push=push, typed=typed)
            columns = [F.col(quoted(name)) for name in (*self._columns(), *(name for name, _ in typed.fields))]
            frame.select(*columns, *self._parsed(statement, table)).createOrReplaceTempView(quoted(table))

    def _parsed(self, statement: Statement, table: str) -> Iterable[Column]:
        """Yield the typed columns `_data` and `_meta`, and `value`, if the statement uses them.

        A table also gets the fields that the statement uses of other tables: only Spark resolves which table a name
        belongs to. A field that no sample has is a string.
        """
        for column in dict.fromkeys(field.column for field in statement.fields):
            kind = self._infer(table, column)[0] or StructType()
            for field in statement.fields:
                if isinstance(kind, StructType) and field.column == column and not _has(kind, field.path):
                    kind = _with(kind, field.path)
            yield F.from_json(column, kind).alias(f"_{column}")
        if statement.variant:
            yield F.try_parse_json("data").alias(VARIANT)

    def _typed_columns(self, table: str) -> TypedColumns:
        lake = self._options.get("lake")
        if lake is None or table.endswith("*"):
            return NO_COLUMNS
        found = Lake(lake).table(table)
        found.state()
        return found.typed()

    def _from_files(self, table: str, typed: TypedColumns) -> DataFrame | None:
        """Return the rows of a table with typed columns from its files, which Spark reads without parsing JSON.

        Return None if the source must read it: with a server, in an object store, if seqs of the epoch are lost, or if
        a file is older than a column.
        """
        if not typed.fields or self._gaps or self._options.get("lakeOnly") != "true":
            return None
        lake = Lake(self._options["lake"])
        archived = newest_epoch(lake, table)
        if archived is None or archived.gaps or not archived.files or not lake.storage.is_local:
            return None
        if not lake.table(table).has_in_every_file([name for name, _ in typed.fields]):
            return None
        paths = [lake.storage.uri(file.path) for file in archived.files]
        schema = f"seq BIGINT, ts TIMESTAMP, node STRING, tag STRING, meta STRING, data STRING, {typed.ddl}"
        return self._spark.read.schema(schema).parquet(*paths).withColumn("topic", F.lit(table))

    def _is_ledger(self, table: str) -> bool:
        """Return whether the name is the gap ledger of the lake, and not an archived topic of that name."""
        lake = self._options.get("lake")
        return table == LEDGER and lake is not None and LEDGER not in Lake(lake).snapshot().topics()

    def _columns(self) -> tuple[str, ...]:
        return (*RECORD_COLUMNS, *GAP_COLUMNS) if self._gaps else RECORD_COLUMNS

    def _load(self, table: str, *, push: bool, typed: TypedColumns = NO_COLUMNS) -> DataFrame:
        """Return the rows from the source, which parses typed columns by the rules that the files are written by."""
        reader = self._spark.read.format("topics").options(**self._subscription(table), pushFilters=push)
        if not typed.fields:
            return reader.load()
        kinds = {name: SPARK_TYPES[ddl] for name, ddl, _ in PLAIN}
        schema, shown = StructType(), list[Column]()
        for name in self._columns():
            schema.add(f"_{name}", kinds[name])
            shown.append(F.col(f"_{name}").alias(name))
        for name, kind in typed.fields:
            schema.add(name, DataType.fromDDL(kind))
            shown.append(F.col(quoted(name)))
        return reader.schema(schema).option("typed", "true").load().select(*shown)

    def _subscription(self, table: str) -> dict[str, str]:
        if table.endswith("*"):
            return {**self._options, "subscribePrefix": table[:-1]}
        return {**self._options, "subscribe": table}

    # --- notes

    def _missing(self, statement: Statement) -> list[str]:
        """Return a note for each used field that is in none of its possible tables."""
        notes: list[str] = []
        for field in statement.fields:
            asked = statement.aliases.get((field.of or "").lower(), statement.tables)
            tables = [table for table in dict.fromkeys(asked) if not self._is_ledger(table)]
            seen = [(table, *self._infer(table, field.column)) for table in tables]
            if not field.path or not seen or any(kind is not None and _has(kind, field.path) for _, kind, _ in seen):
                continue
            where = " and ".join(f"{counted(sampled, 'record')} of {table}" for table, _, sampled in seen)
            kinds = [kind for _, kind, _ in seen if isinstance(kind, StructType)]
            near = difflib.get_close_matches(field.path[0], [name for kind in kinds for name in kind.fieldNames()], n=1)
            hint = f"; did you mean {field.column}.{near[0]}?" if near else ""
            if kinds:
                name = ".".join((field.column, *field.path))
                notes.append(f"{name} is in none of {where} that were sampled{hint}")
            else:
                notes.append(f"none of {where} has an object in {field.column}: its fields are NULL")
        return list(dict.fromkeys(notes))

    # --- samples

    def _infer(self, table: str, column: str) -> tuple[Nested | None, int]:
        """Return the type of the JSON in a column, from the first and last records, and the number of samples."""
        if (table, column) not in self._schemas:
            texts = [text for text in self._sample(table, column) if text is not None]
            objects = [text for text in texts if text.lstrip()[:1] == "{"]
            chosen = objects or [text for text in texts if text.lstrip()[:1] == "["]
            kind = merged_type(self._spark, chosen) if chosen else None
            self._schemas[table, column] = kind if isinstance(kind, Nested) else None, len(texts)
        return self._schemas[table, column]

    def _sample(self, table: str, column: str) -> Iterable[str | None]:
        """Yield values from both ends of each topic. They are read on the driver, without a Spark job."""
        options = read_options({**self._subscription(table), "failOnDataLoss": "false"})
        with catalog_of(options) as catalog:
            extents = catalog.extents()
            share = max(SAMPLE // max(len(extents), 1), 10)
            for one in extents[:SAMPLE]:
                head = range(one.earliest, min(one.earliest + share, one.end))
                for seqs in (head, range(max(head.stop, one.end - share), one.end)):
                    span = Span(server=one.server, topic=one.topic, epoch=one.epoch, start=seqs.start, stop=seqs.stop)
                    for batch in read_span(span, options, excerpt=catalog.excerpt(span)) if seqs else ():
                        yield from batch.column(column).to_pylist()


def _has(kind: DataType, path: tuple[str, ...]) -> bool:
    if not path:
        return True
    while isinstance(kind, ArrayType):
        kind = kind.elementType
    if not isinstance(kind, StructType):
        return True  # Spark reports that a number has no fields
    inner = next((field.dataType for field in kind.fields if field.name.lower() == path[0].lower()), None)
    return inner is not None and _has(inner, path[1:])


def _with(kind: DataType, path: tuple[str, ...]) -> StructType:
    """Return the type with one more field, a string."""
    fields = list(kind.fields) if isinstance(kind, StructType) else []
    name, rest = path[0], path[1:]
    for at, field in enumerate(fields):
        if field.name.lower() == name.lower():
            inner = field.dataType
            if isinstance(inner, ArrayType):
                fields[at] = StructField(field.name, ArrayType(_with(inner.elementType, rest)))
            else:
                fields[at] = StructField(field.name, _with(inner, rest))
            return StructType(fields)
    return StructType([*fields, StructField(name, _with(StructType(), rest) if rest else StringType())])


def _no_topic(name: str, names: set[str]) -> str:
    if near := difflib.get_close_matches(name, names, n=3):
        return f"there is no topic {name}; did you mean {' or '.join(near)}?"
    shown = nearest(name, names - {LEDGER})
    more = len(names - {LEDGER}) - len(shown)
    others = f" and {counted(more, 'other')}; SHOW TABLES lists them" if more else ""
    listed = f"{'is' if len(shown) == 1 else 'are'} {', '.join(shown)}{others}" if shown else "is none yet"
    return f"there is no topic {name}; there {listed}"


def _explain(error: PySparkException, statement: Statement, names: set[str]) -> str:
    """Return Spark's message without its plans; for a missing table, the names of existing tables."""
    condition = error.getCondition() or ""
    unparsable = [name for name in statement.unknown if not name.replace("_", "").isalnum()]
    is_parse_error = "PARSE" in condition
    missing = statement.unknown if condition == "TABLE_OR_VIEW_NOT_FOUND" else unparsable if is_parse_error else []
    if missing:
        return _no_topic(missing[0], names)
    if not isinstance(error, AnalysisException):
        return explain(error)
    head, _, rest = str(error).strip().partition(" SQLSTATE:")
    head = head.partition("] ")[2] if head.startswith("[") else head
    position = re.search(r"line (\d+), pos (\d+)\)", rest)
    lines = statement.text.splitlines()
    if position is None or int(position[1]) > len(lines):
        return head
    return f"{head}\n  {lines[int(position[1]) - 1]}\n  {' ' * int(position[2])}^"
