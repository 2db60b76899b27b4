"""Topics as tables: the names of tables, the types of their fields, and the statements that need no engine.

An engine makes a view of each topic that a statement names, with the fields that the statement uses.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from msgspec import Struct

from topics.clock import SystemClock
from topics.engine.offline import directory
from topics.lake import Lake, TypedColumns
from topics.lake.columns import type_name
from topics.lake.files import NO_COLUMNS
from topics.plurals import counted
from topics.spark.options import READ as KNOWN_OPTIONS
from topics.spark.options import ReadOptions, connection, known, read_options, with_absolute_paths
from topics.spark.source.catalog import catalog_of, client_for, state_of
from topics.spark.source.layout import RECORD_SCHEMA
from topics.spark.source.plan import Span
from topics.spark.source.read import read_span
from topics.spark.sql import kinds
from topics.spark.sql.text import JSON_COLUMNS, SPARK, BadQuery, Dialect, Field, Statement, read
from topics.spark.topic_names import nearest
from topics.storage.fs import Fs

if TYPE_CHECKING:
    from topics.spark.sql.kinds import Kind

SAMPLE = 1000  # records from both ends of the topics that are read to infer their fields
RECORD_COLUMNS = ("topic", "seq", "ts", "node", "tag", "meta", "data")
GAP_COLUMNS = ("kind", "gap_to", "reason")
HIDDEN = tuple(f"_{name}" for name in JSON_COLUMNS)


class Answer(Struct, kw_only=True):
    """The result of a statement. It is computed while rows are taken, at most `limit` of them."""

    columns: list[str]
    rows: Callable[[int | None], Iterable[Sequence[Any]]]
    arrow: Callable[[], pa.Table]
    notes: list[str] = []

    @classmethod
    def of(cls, columns: list[str], found: Sequence[tuple[str, ...]]) -> Answer:
        """Return an answer of texts, which needs no engine."""
        by_column = [list(column) for column in zip(*found, strict=True)] or [[] for _ in columns]
        return cls(
            columns=columns,
            rows=lambda limit: islice(found, limit),
            arrow=lambda: pa.table([pa.array(column, pa.string()) for column in by_column], names=columns),
        )


def names_of(options: Mapping[str, str]) -> set[str]:
    """Return the names of all tables."""
    found: set[str] = set()
    if (path := options.get("path")) is not None:
        cold = options.get("coldPath")
        with directory.Directory(Fs(), path, cold_dir=cold, now_ms=SystemClock().now_ms()) as opened:
            return set(opened.topics)
    if (lake := options.get("lake")) is not None:
        found |= {*Lake(lake).snapshot().topics()}
    if options.get("lakeOnly") != "true":
        reached = connection(known(options, KNOWN_OPTIONS))
        with client_for(reached) as client:
            found |= {row.topic for row in client.topics()}
    return found


def declared(options: ReadOptions) -> Kind:
    """Return the type that the schema of a topic of a server gives to `data`, or None."""
    if options.path is not None or options.lake_only or not options.topics:
        return None
    with client_for(options.connection) as client:
        state = state_of(client, options.topics[0])
    return None if state is None else kinds.of_schema(state.config.schema)


def check(text: str, names: set[str]) -> None:
    """Raise `BadQuery` if a statement certainly fails. Needs no engine."""
    if (missing := read(text, names).missing) is not None:
        raise BadQuery(no_topic(missing, names))


class Tables:
    """The tables that a statement can name. `options` are those of the source: url, token, lake, path …"""

    engine: ClassVar[str]
    dialect: ClassVar[Dialect] = SPARK

    def __init__(self, options: Mapping[str, str], *, gaps: bool = False) -> None:
        self._options = {**with_absolute_paths(options), "failOnDataLoss": "false" if gaps else "true"}
        self._gaps = gaps
        self._kinds: dict[tuple[str, str], tuple[Kind, int]] = {}
        self._names: set[str] = set()

    def run(self, text: str) -> Answer:
        """Run one statement. Raise `BadQuery` if it cannot be run."""
        names = self._names = names_of(self._options)
        statement = read(text, names, self.dialect)
        words = text.lower().split()
        if words == ["show", "tables"]:
            return Answer.of(
                ["table"], sorted(((name,) for name in names), key=lambda row: (row[0].startswith("sys:"), row))
            )
        if words[:1] in (["describe"], ["desc"]) and len(words) == 2 and statement.tables:
            return self._describe(statement.tables[0])
        answer = self._run(statement)
        answer.notes = self._missing(statement)
        return answer

    def _run(self, statement: Statement) -> Answer:
        raise NotImplementedError

    def cancel(self) -> None:
        """Cancel the running statement. Called from another thread than the one that waits for it."""
        raise NotImplementedError

    def words(self) -> list[str]:
        """Return the names that a prompt completes: tables, columns, and fields of tables that were sampled."""
        fields = [
            f"{column}.{name}"
            for (_, column), (kind, _) in self._kinds.items()
            for name in (kind if isinstance(kind, dict) else ())
        ]
        return [*sorted(self._names or names_of(self._options)), *self._columns(), *dict.fromkeys(fields)]

    def _describe(self, table: str) -> Answer:
        rows = [(name, type_name(RECORD_SCHEMA.field(name).type).lower()) for name in self._columns()]
        rows += [(name, kind.lower()) for name, kind in self._typed_columns(table).fields]
        for column in JSON_COLUMNS:
            kind, _ = self._infer(table, column)
            if isinstance(kind, dict):
                rows += [(f"{column}.{name}", kinds.ddl(inner, quote="")) for name, inner in kind.items()]
        return Answer.of(["column", "type"], rows)

    # --- what a view needs

    def _used(self, fields: Iterable[Field], table: str) -> dict[str, dict[str, Any] | list[Any]]:
        """Return the type of each JSON column that a statement uses fields of.

        A table also gets the fields that the statement uses of other tables: only the engine resolves which table a
        name belongs to.
        """
        paths: dict[str, list[tuple[str, ...]]] = {}
        for field in fields:
            paths.setdefault(field.column, []).append(field.path)
        return {column: kinds.used(self._infer(table, column)[0], found) for column, found in paths.items()}

    def _typed_columns(self, table: str) -> TypedColumns:
        lake = self._options.get("lake")
        if lake is None or table.endswith("*"):
            return NO_COLUMNS
        found = Lake(lake).table(table)
        found.state()
        return found.typed()

    def _columns(self) -> tuple[str, ...]:
        return (*RECORD_COLUMNS, *GAP_COLUMNS) if self._gaps else RECORD_COLUMNS

    def _subscription(self, table: str) -> dict[str, str]:
        if table.endswith("*"):
            return {**self._options, "subscribePrefix": table[:-1]}
        return {**self._options, "subscribe": table}

    # --- notes and samples

    def _missing(self, statement: Statement) -> list[str]:
        """Return a note for each used field that is in none of the tables."""
        notes: list[str] = []
        for field in dict.fromkeys(statement.fields):
            seen = [(table, *self._infer(table, field.column)) for table in dict.fromkeys(statement.tables)]
            if (
                not field.path
                or not seen
                or any(kind is not None and kinds.has(kind, field.path) for _, kind, _ in seen)
            ):
                continue
            where = " and ".join(f"{counted(sampled, 'record')} of {table}" for table, _, sampled in seen)
            known_fields = [name for _, kind, _ in seen if isinstance(kind, dict) for name in kind]
            near = difflib.get_close_matches(field.path[0], known_fields, n=1)
            hint = f"; did you mean {field.column}.{near[0]}?" if near else ""
            if any(isinstance(kind, dict) for _, kind, _ in seen):
                notes.append(f"{field} is in none of {where} that were sampled{hint}")
            else:
                notes.append(f"none of {where} has an object in {field.column}: its fields are NULL")
        return list(dict.fromkeys(notes))

    def _infer(self, table: str, column: str) -> tuple[Kind, int]:
        """Return the type of the JSON in a column, from the first and last records, and the number of samples."""
        if (table, column) not in self._kinds:
            texts = [text for text in self._sample(table, column) if text is not None]
            given = declared(read_options(self._subscription(table))) if column == "data" else None
            self._kinds[table, column] = kinds.merged(given, kinds.of_texts(texts)), len(texts)
        return self._kinds[table, column]

    def _sample(self, table: str, column: str) -> Iterable[str | None]:
        """Yield values from both ends of each topic."""
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


def no_topic(name: str, names: set[str]) -> str:
    if near := difflib.get_close_matches(name, names, n=3):
        return f"there is no topic {name}; did you mean {' or '.join(near)}?"
    shown = nearest(name, names)
    more = len(names) - len(shown)
    others = f" and {counted(more, 'other')}; SHOW TABLES lists them" if more else ""
    listed = f"{'is' if len(shown) == 1 else 'are'} {', '.join(shown)}{others}" if shown else "is none yet"
    return f"there is no topic {name}; there {listed}"
