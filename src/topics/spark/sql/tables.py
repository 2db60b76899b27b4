"""Topics as tables of a session: views that are made for one statement, with the fields it asks for."""

from __future__ import annotations

import difflib
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from topics.clock import SystemClock
from topics.engine.offline import directory
from topics.lake import Lake
from topics.model.records import TagMatch
from topics.spark.options import READ as KNOWN_OPTIONS
from topics.spark.options import connection, known, read_options
from topics.spark.pipelines.run.failures import BadUsage, explain
from topics.spark.pipelines.run.unknown_names import nearest
from topics.spark.source.batch import TopicsReader
from topics.spark.source.catalog import catalog_of, client_for
from topics.spark.source.filters import Narrowing
from topics.spark.sql.rewrite import (
    JSON_COLUMNS,
    Field,
    NoQuery,
    Statement,
    quoted,
    read,
    read_condition,
    surely_missing,
)
from topics.storage.fs import RealFs

SAMPLE = 1000  # records from either end that tell which fields there are
GAP_LOOK_S = 2.0  # that may pass until a query begins, to find out whether gaps are among its rows
RECORD_COLUMNS = ("topic", "seq", "ts", "node", "tag", "meta", "data")
GAP_COLUMNS = ("kind", "gap_to", "reason")
Nested = StructType | ArrayType
LEDGER = "lake.gaps"  # a table that is no topic: what was lost before it could be archived
HIDDEN = tuple(f"_{name}" for name in JSON_COLUMNS)


class BadQuery(BadUsage):
    """A statement that cannot be run: what is wrong with it."""


class Answer(Struct):
    """Rows to come, and what the person should know about them."""

    frame: DataFrame
    notes: list[str]


def names_of(options: Mapping[str, str]) -> set[str]:
    """The tables that there are; needs no Spark."""
    found: set[str] = set()
    if (path := options.get("path")) is not None:
        cold = options.get("coldPath")
        with directory.Directory(RealFs(), path, cold_dir=cold, now_ms=SystemClock().now_ms()) as opened:
            return set(opened.topics)
    if (lake := options.get("lake")) is not None:
        found |= {*Lake(lake).snapshot().topics(), LEDGER}
    if options.get("lakeOnly") != "true":
        reached = connection(known(options, KNOWN_OPTIONS))
        for server in reached.servers:
            with client_for(reached, server) as client:
                found |= {row.topic for row in client.topics()}
    return found


def check(text: str, names: set[str]) -> None:
    """Raises `BadQuery` where it is plain without Spark that a statement cannot be run."""
    try:
        read(text, names)
    except NoQuery as error:
        raise BadQuery(str(error)) from None
    if (missing := surely_missing(text, names)) is not None:
        raise BadQuery(_no_topic(missing, names))


class Tables:
    """What a statement can name. `options` are those of the source: url, token, lake, path …"""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], *, gaps: bool = False) -> None:
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)  # mistakes are told by us
        self._spark = spark
        self._options = {**options, "failOnDataLoss": "false" if gaps else "true"}
        self._gaps = gaps
        self._schemas: dict[tuple[str, str], tuple[Nested | None, int]] = {}

    def names(self) -> list[str]:
        """Every table: topics first, then those of the server's own that begin with `sys:`, and the ledger last."""
        found = names_of(self._options)
        return sorted(found, key=lambda name: (self._is_ledger(name), name.startswith("sys:"), name))

    def run(self, text: str) -> Answer:
        """The answer to one statement. Raises `BadQuery`."""
        names = names_of(self._options)
        if (own := self._own(text, names)) is not None:
            return own
        try:
            statement = read(text, names)
        except NoQuery as error:
            raise BadQuery(str(error)) from None
        self._make_views(statement)
        notes = [*self._missing(statement), *self._gap_notes(statement)]
        try:
            frame = self._spark.sql(statement.text)
        except PySparkException as error:
            raise BadQuery(_explain(error, statement, names)) from None
        hidden = [name for name in frame.columns if name in HIDDEN]
        return Answer(frame.drop(*hidden) if hidden and len(hidden) < len(frame.columns) else frame, notes)

    def cancel(self) -> None:
        """Ends what runs, from another thread than the one that waits for it."""
        self._spark.sparkContext.cancelAllJobs()

    def fields(self, topic: str, column: str) -> StructType | None:
        """The fields of `data` or `meta` by a sample; None where there is no object in it."""
        kind, _ = self._infer(topic, column)
        return kind if isinstance(kind, StructType) else None

    # --- names

    def _own(self, text: str, names: set[str]) -> Answer | None:
        """Statements about the tables themselves."""
        words = text.lower().split()
        if words == ["show", "tables"]:
            rows = [(name,) for name in self.names()]
            return Answer(self._spark.createDataFrame(rows, "table STRING"), [])
        if len(words) == 2 and words[0] in ("describe", "desc"):
            statement = read(text, names)
            if statement.tables and not self._is_ledger(statement.tables[0]):
                return self._describe(statement.tables[0])
        return None

    def _describe(self, table: str) -> Answer:
        frame = self._load(table, push=False)
        kinds = dict(frame.select(*self._columns()).dtypes)
        rows = [(name, kinds[name]) for name in self._columns()]
        for column in JSON_COLUMNS:
            kind, _ = self._infer(table, column)
            if isinstance(kind, StructType):
                rows += [(f"{column}.{field.name}", field.dataType.simpleString()) for field in kind.fields]
        return Answer(self._spark.createDataFrame(rows, "column STRING, type STRING"), [])

    # --- views

    def _make_views(self, statement: Statement) -> None:
        for table in dict.fromkeys(statement.tables):
            if self._is_ledger(table):
                self._ledger().createOrReplaceTempView(quoted(table))
                continue
            # A plan keeps the filters it was first made with: pushing them is for tables that are read once only.
            push = statement.tables.count(table) == 1 and not statement.has_with
            frame = self._load(table, push=push)
            columns = [F.col(name) for name in self._columns()]
            for column, paths in statement.paths.items():
                columns.append(F.from_json(column, self._typed(table, column, paths)).alias(f"_{column}"))
            if statement.variant:
                columns.append(F.try_parse_json("data").alias("value"))
            frame.select(*columns).createOrReplaceTempView(quoted(table))

    def _is_ledger(self, table: str) -> bool:
        """Unless there is a topic of that name."""
        lake = self._options.get("lake")
        return table == LEDGER and lake is not None and LEDGER not in Lake(lake).snapshot().topics()

    def _ledger(self) -> DataFrame:
        return self._spark.createDataFrame(Lake(self._options["lake"]).ledger())

    def _columns(self) -> tuple[str, ...]:
        return (*RECORD_COLUMNS, *GAP_COLUMNS) if self._gaps else RECORD_COLUMNS

    def _load(self, table: str, *, push: bool) -> DataFrame:
        return self._spark.read.format("topics").options(**self._subscription(table), pushFilters=push).load()

    def _subscription(self, table: str) -> dict[str, str]:
        if table.endswith("*"):
            return {**self._options, "subscribePrefix": table[:-1]}
        return {**self._options, "subscribe": table}

    def _typed(self, table: str, column: str, paths: list[tuple[str, ...]]) -> Nested:
        """The type that `column` is read with: what a sample shows, and text for fields that are not in the sample.

        A table is given the fields of its neighbours in the statement, too: which of them a name means is for Spark to
        say.
        """
        kind, _ = self._infer(table, column)
        if isinstance(kind, ArrayType):
            return kind
        kind = kind or StructType()
        for path in paths:
            if path and not _has(kind, path):
                kind = _with(kind, path)
        return kind

    # --- notes

    def _missing(self, statement: Statement) -> list[str]:
        """A line for each field that none of the tables has which it may be asked of."""
        notes: list[str] = []
        for field in statement.fields:
            asked = statement.aliases.get((field.of or "").lower(), statement.tables)
            tables = [table for table in dict.fromkeys(asked) if not self._is_ledger(table)]
            seen = [(table, *self._infer(table, field.column)) for table in tables]
            if field.path and seen and not any(kind is not None and _has(kind, field.path) for _, kind, _ in seen):
                notes.append(_missing_note(field, seen))
        return list(dict.fromkeys(notes))

    def _gap_notes(self, statement: Statement) -> list[str]:
        """Where gap rows are taken for records: they are counted, and their fields are NULL."""
        if not self._gaps or statement.words & {"kind", "gap_to"}:
            return []
        notes = []
        for table in dict.fromkeys(statement.tables):
            count = 0 if self._is_ledger(table) else self._gap_rows(table)
            if count != 0:
                rows = "gap rows may be" if count is None else "1 gap row is" if count == 1 else f"{count} gap rows are"
                notes.append(f"{rows} among the rows of {table}; add where kind = 'record' to leave them out")
        return notes

    def _gap_rows(self, table: str) -> int | None:
        """How many rows tell of a loss; None where it takes too long to find out.

        Planned as the query is, since a gap is cut where partitions are. A tag that no record has leaves gaps only.
        """
        reader = TopicsReader(read_options(self._subscription(table)))
        reader.narrowing = Narrowing(tag=TagMatch("Eq", uuid.uuid4().hex))
        until, count = time.monotonic() + GAP_LOOK_S, 0
        for part in reader.partitions():
            if time.monotonic() > until:
                return None
            count += sum(batch.num_rows for batch in reader.read(part))
        return count

    # --- samples

    def _infer(self, table: str, column: str) -> tuple[Nested | None, int]:
        """The type of the JSON in a column by its first and last records, and how many that were."""
        if (table, column) not in self._schemas:
            texts = [text for text in self._sample(table, column) if text is not None]
            objects = [text for text in texts if text.lstrip()[:1] == "{"]
            chosen = objects or [text for text in texts if text.lstrip()[:1] == "["]
            kind = self._schema_of(chosen) if chosen else None
            self._schemas[table, column] = kind, len(texts)
        return self._schemas[table, column]

    def _schema_of(self, texts: list[str]) -> Nested | None:
        # One literal array of all samples: Spark merges its elements into one type.
        [(ddl,)] = self._spark.range(1).select(F.schema_of_json(F.lit(f"[{','.join(texts)}]"))).collect()
        found = ArrayType.fromDDL(ddl)
        assert isinstance(found, ArrayType)
        return found.elementType if isinstance(found.elementType, Nested) else None

    def _sample(self, table: str, column: str) -> Iterable[str | None]:
        """From both ends of each topic, read here: no job has to be started for a few records."""
        options = read_options({**self._subscription(table), "failOnDataLoss": "false"})
        with catalog_of(options) as catalog:
            extents = catalog.extents()
        share = max(SAMPLE // max(len(extents), 1), 10)
        for place in extents[:SAMPLE]:
            head = range(place.earliest, min(place.earliest + share, place.end))
            tail = range(max(head.stop, place.end - share), place.end)
            for part in (head, tail):
                if part:
                    yield from self._read(place.topic, part, column)

    def _read(self, topic: str, seqs: range, column: str) -> Iterable[str | None]:
        given = {**self._options, "subscribe": topic, "failOnDataLoss": "false"}
        given["startingOffsets"], given["endingOffsets"] = f'{{"{topic}":{seqs.start}}}', f'{{"{topic}":{seqs.stop}}}'
        reader = TopicsReader(read_options(given))
        for part in reader.partitions():
            for batch in reader.read(part):
                yield from batch.column(column).to_pylist()


def condition(
    frame: DataFrame, text: str, schema_of: Callable[[str], StructType | None], note: Callable[[str], None]
) -> DataFrame:
    """The rows for which a condition holds, which may ask for fields of `data` and `meta` by their path."""
    statement = read_condition(text)
    wide = frame
    for column, paths in statement.paths.items():
        kind = schema_of(column) or StructType()
        for path in paths:
            if path and not _has(kind, path):
                note(f"{'.'.join((column, *path))} is in none of the records that were looked at")
                kind = _with(kind, path)
        wide = wide.withColumn(f"_{column}", F.from_json(column, kind))
    if statement.variant:
        wide = wide.withColumn("value", F.try_parse_json("data"))
    try:
        return wide.where(statement.text).select(*frame.columns)
    except PySparkException as error:
        raise BadQuery(_explain(error, statement, set())) from None


def _has(kind: DataType, path: tuple[str, ...]) -> bool:
    if not path:
        return True
    while isinstance(kind, ArrayType):
        kind = kind.elementType
    if not isinstance(kind, StructType):
        return True  # Spark says what is wrong with asking a number for its fields
    inner = next((field.dataType for field in kind.fields if field.name.lower() == path[0].lower()), None)
    return inner is not None and _has(inner, path[1:])


def _with(kind: DataType, path: tuple[str, ...]) -> StructType:
    """The type with one more field, of type text."""
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


def _missing_note(field: Field, seen: Sequence[tuple[str, Nested | None, int]]) -> str:
    where = " and ".join(f"{sampled} records of {table}" for table, _, sampled in seen)
    kinds = [kind for _, kind, _ in seen if isinstance(kind, StructType)]
    if not kinds:
        return f"none of {where} has an object in {field.column}: its fields are NULL"
    names = [name for kind in kinds for name in kind.fieldNames()]
    near = difflib.get_close_matches(field.path[0], names, n=1)
    hint = f"; did you mean {field.column}.{near[0]}?" if near else ""
    return f"{'.'.join((field.column, *field.path))} is in none of {where} that were looked at{hint}"


def _no_topic(name: str, names: set[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3)
    return f"there is no topic {name}; " + (f"did you mean {' or '.join(near)}?" if near else _there_is(name, names))


def _there_is(name: str, names: set[str]) -> str:
    shown = nearest(name, names - {LEDGER})
    if not shown:
        return "there is none yet"
    more = len(names - {LEDGER}) - len(shown)
    others = f" and {more} other{'s' if more > 1 else ''}; SHOW TABLES lists them" if more else ""
    return f"there {'is' if len(shown) == 1 else 'are'} {', '.join(shown)}{others}"


def _explain(error: PySparkException, statement: Statement, names: set[str]) -> str:
    """What Spark says, without its plans; of a table that is not there, which ones there are."""
    condition = error.getCondition() or ""
    odd = [name for name in statement.unknown if not name.replace("_", "").isalnum()]  # Spark stumbles over these
    missing = statement.unknown if condition == "TABLE_OR_VIEW_NOT_FOUND" else odd if "PARSE" in condition else []
    if missing:
        return _no_topic(missing[0], names)
    if not isinstance(error, AnalysisException):
        return explain(error)
    head, _, rest = str(error).strip().partition(" SQLSTATE:")
    head = head.partition("] ")[2] if head.startswith("[") else head
    place = re.search(r"line (\d+), pos (\d+)\)", rest)
    lines = statement.text.splitlines()
    if place is None or int(place[1]) > len(lines):
        return head
    return f"{head}\n  {lines[int(place[1]) - 1]}\n  {' ' * int(place[2])}^"
