"""Statements that Spark runs: a view for each topic that a statement names."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from topics.lake import ArchivedEpoch, Lake, TypedColumns
from topics.lake.files import NO_COLUMNS
from topics.spark.failures import explain
from topics.spark.source.readers import PUSHDOWN
from topics.spark.source.schema_layout import RECORD
from topics.spark.sql import kinds
from topics.spark.sql.tables import HIDDEN, Answer, Tables, no_topic
from topics.spark.sql.text import VARIANT, BadQuery, Statement, known, quoted, read_condition

NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
VIEWS = "topics.sql.views"  # a session setting: the views of the last statement


class SparkTables(Tables):
    """The tables of a session."""

    engine = "Spark"

    def __init__(self, spark: SparkSession, options: Mapping[str, str], *, gaps: bool = False) -> None:
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)  # `BadQuery` reports errors
        super().__init__(options, gaps=gaps)
        self._spark = spark
        self._views: list[str] = []

    def _run(self, statement: Statement) -> Answer:
        # The last statement of the session may have been that of another command, with another server.
        for view in json.loads(self._spark.conf.get(VIEWS, None) or "[]"):
            self._spark.catalog.dropTempView(quoted(view))
        self._views.clear()
        self._make_views(statement, statement.tables)
        while True:
            try:
                frame = self._spark.sql(statement.text)
                names = frame.columns
                break
            except PySparkException as error:
                table = self._not_found(error)
                if table is None or table in self._views:
                    raise BadQuery(_explain(error, statement, self._names)) from None
                statement.tables.append(table)
                self._make_views(statement, [table])
        hidden = [name for name in names if name in HIDDEN]
        frame = frame.drop(*hidden) if hidden and len(hidden) < len(names) else frame
        return Answer(
            columns=frame.columns,
            rows=lambda limit: frame.toLocalIterator() if limit is None else frame.limit(limit).collect(),
            arrow=frame.toArrow,
        )

    def cancel(self) -> None:
        if hasattr(self._spark, "_jsparkSession"):
            self._spark.sparkContext.cancelAllJobs()
        else:
            self._spark.interruptAll()

    def matching(self, frame: DataFrame, topic: str, text: str, note: Callable[[str], None]) -> DataFrame:
        """Return the rows of a topic for which a condition holds. It may use fields of `data` and `meta` by path."""
        statement = read_condition(text)
        for field in statement.fields:
            kind, _ = self._infer(topic, field.column)
            if field.path and not kinds.has(kind if kind is not None else {}, field.path):
                note(f"{field} is in none of the sampled records")
        wide = frame.select("*", *self._parsed(statement, topic))
        try:
            return wide.where(statement.text).select(*frame.columns)
        except PySparkException as error:
            raise BadQuery(_explain(error, statement, set())) from None

    def _not_found(self, error: PySparkException) -> str | None:
        """Return the topic that Spark has no view of yet, such as one after a comma, or None."""
        if error.getCondition() != NOT_FOUND:
            return None
        return known((error.getMessageParameters() or {}).get("relationName", "").replace("`", ""), self._names)

    # --- views

    def _make_views(self, statement: Statement, tables: Iterable[str]) -> None:
        self._spark.conf.set(PUSHDOWN, "true")
        self._views += dict.fromkeys(tables)
        self._spark.conf.set(VIEWS, json.dumps(self._views))
        for table in dict.fromkeys(tables):
            # Spark reuses a plan with its first filters, so filters are pushed only for a table that is read once.
            push = statement.tables.count(table) == 1 and "with" not in statement.words
            typed = self._typed_columns(table)
            frame = self._from_files(table, typed)
            if frame is None:
                frame = self._load(table, push=push, typed=typed)
            columns = [F.col(quoted(name)) for name in (*self._columns(), *(name for name, _ in typed.fields))]
            frame.select(*columns, *self._parsed(statement, table)).createOrReplaceTempView(quoted(table))

    def _parsed(self, statement: Statement, table: str) -> Iterable[Column]:
        """Yield the typed columns `_data` and `_meta`, and `value`, if the statement uses them."""
        for column, kind in self._used(statement.fields, table).items():
            yield F.from_json(column, kinds.ddl(kind) if kind else StructType()).alias(f"_{column}")
        if VARIANT in statement.words:
            yield F.try_parse_json("data").alias(VARIANT)

    def _from_files(self, table: str, typed: TypedColumns) -> DataFrame | None:
        """Return the rows of a table with typed columns from its files, which Spark reads without parsing JSON.

        Return None if the source must read it: with a server, in an object store, if seqs of the epoch are lost, or if
        a file is older than a column.
        """
        if not typed.fields or self._gaps or self._options.get("lakeOnly") != "true":
            return None
        lake = Lake(self._options["lake"])
        [archived] = lake.snapshot().epochs(table)[-1:] or [ArchivedEpoch(topic=table, epoch=0)]
        if archived.gaps or not archived.files or not lake.storage.is_local:
            return None
        if not lake.table(table).has_in_every_file([name for name, _ in typed.fields]):
            return None
        paths = [lake.storage.uri(file.path) for file in archived.files]
        schema = f"seq BIGINT, ts TIMESTAMP, node STRING, tag STRING, meta STRING, data STRING, {typed.ddl}"
        return self._spark.read.schema(schema).parquet(*paths).withColumn("topic", F.lit(table))

    def _load(self, table: str, *, push: bool, typed: TypedColumns = NO_COLUMNS) -> DataFrame:
        """Return the rows from the source, which parses typed columns by the rules that the files are written by."""
        reader = self._spark.read.format("topics").options(**self._subscription(table), pushFilters=push)
        if not typed.fields:
            return reader.load()
        schema, shown = StructType(), list[Column]()
        for name in self._columns():
            schema.add(f"_{name}", RECORD[name].dataType)
            shown.append(F.col(f"_{name}").alias(name))
        for name, kind in typed.fields:
            schema.add(name, DataType.fromDDL(kind))
            shown.append(F.col(quoted(name)))
        return reader.schema(schema).option("typed", "true").load().select(*shown)


def _explain(error: PySparkException, statement: Statement, names: set[str]) -> str:
    """Return Spark's message without its plans; for a missing table, the names of existing tables."""
    if error.getCondition() == NOT_FOUND:
        return no_topic((error.getMessageParameters() or {}).get("relationName", "").replace("`", ""), names)
    if "PARSE" in (error.getCondition() or "") and statement.missing is not None:
        return no_topic(statement.missing, names)
    if not isinstance(error, AnalysisException):
        return explain(error)
    head, _, rest = str(error).strip().partition(" SQLSTATE:")
    head = head.partition("] ")[2] if head.startswith("[") else head
    position = re.search(r"line (\d+), pos (\d+)\)", rest)
    lines = statement.text.splitlines()
    if position is None or int(position[1]) > len(lines):
        return head
    return f"{head}\n  {lines[int(position[1]) - 1]}\n  {' ' * int(position[2])}^"
