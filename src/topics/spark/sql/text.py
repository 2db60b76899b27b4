"""Split statements, quote the names of topics in them, and find the fields of `data` that they use. Pure.

The engine parses SQL. Here three things are found outside strings and comments, each by one pattern:

- a name after FROM or JOIN. If it is a topic, it is quoted as the engine wants it, so that `from shop:orders-eu` works.
- a path below `data` or `meta`, such as `o.data.items[0].qty`. It becomes a field of the typed column `_data`, while
  `data` alone stays the JSON text that was written.
- `value:path::type`, for which Spark gets a tolerant cast.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec import Struct, field

from topics.spark.failures import BadUsage

JSON_COLUMNS = ("data", "meta")
VARIANT = "value"

_STRINGS = r"""r?'(?:[^'\\]|\\.|'')*'|r?"(?:[^"\\]|\\.|"")*\""""
_COMMENTS = r"--[^\n]*|/\*.*?\*/"
_QUOTED = r"`(?:[^`]|``)*`"
_KEPT = rf"(?P<kept>{_STRINGS}|{_COMMENTS}|{_QUOTED})"
_NAME = rf"""(?:{_QUOTED}|"(?:[^"]|"")*"|[^\W\d]\w*+)"""
_TOPIC = rf"""(?:{_QUOTED}|"(?:[^"]|"")*"|[A-Za-z0-9](?:[A-Za-z0-9._:]|-(?!-))*+\*?)"""
_FOUND = re.compile(
    rf"(?P<before>(?<!distinct\s)(?<![\w.])(?:from|join)\s+|\A\s*desc(?:ribe)?\s+)(?P<table>{_TOPIC})"
    rf"|(?P<field>(?<![\w`])(?P<column>data|meta)(?:(?P<path>(?:\s*\.\s*{_NAME}(?!\s*\()|\s*\[\s*\d+\s*\])+)|(?=\s*\[)))"
    rf"|{_KEPT}",
    re.DOTALL | re.IGNORECASE,
)
_HIDDEN = re.compile(rf"{_STRINGS}|{_COMMENTS}|{_QUOTED}", re.DOTALL)
_PATH_NAME = re.compile(rf"\.\s*({_NAME})")
_INDEX = re.compile(r"\[\s*(\d+)\s*\]")
_WORD = re.compile(r"[^\W\d]\w*")
_NO_TABLE = {"lateral", "values", "select", "unnest", "only"}
_QUERIES = {"select", "with", "values", "from", "table", "show", "describe", "desc", "explain", "summarize"}


class Field(NamedTuple):
    """A field that a statement uses."""

    column: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join((self.column, *self.path))


class Dialect(NamedTuple):
    """How an engine writes names and paths."""

    quote: str
    first_index: int  # of an array


SPARK, DUCKDB = Dialect("`", 0), Dialect('"', 1)


class Statement(Struct, kw_only=True):
    """The text for the engine, and what it uses."""

    text: str = ""
    tables: list[str] = field(default_factory=list)  # topics, and prefixes with a star, after FROM and JOIN
    missing: str | None = None  # a table name that can only be a topic and is not one
    fields: list[Field] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # in lower case, without those in strings


class BadQuery(BadUsage):
    """A statement cannot be run. The message says why."""


def without_strings(text: str) -> str:
    """Return the text with spaces for strings, comments and quoted names."""
    return _HIDDEN.sub(lambda match: " " * len(match[0]), text)


def split(text: str) -> list[str]:
    """Return the statements of a text without their semicolons. Empty statements are dropped."""
    ends = [match.start() for match in re.finditer(";", without_strings(text))]
    parts = [text[start:end] for start, end in zip([0, *(end + 1 for end in ends)], [*ends, len(text)], strict=True)]
    return [part.strip() for part in parts if re.sub(_COMMENTS, "", part, flags=re.DOTALL).strip()]


def is_whole(text: str) -> bool:
    """Return whether the text ends with a semicolon that is not inside a comment or an open quotation."""
    blank = without_strings(text).rstrip()
    return blank.endswith(";") and not any(begin in blank for begin in ("'", '"', "`", "/*"))


def read(text: str, topics: set[str], dialect: Dialect = SPARK) -> Statement:
    """Prepare a statement; `topics` are the existing ones. Raise `BadQuery` if it is not a query."""
    first = next(iter(_WORD.findall(without_strings(text))), "nothing")
    if first.lower() not in _QUERIES:
        given = "nothing" if first == "nothing" else first.upper()
        raise BadQuery(f"only queries can be run here (SELECT, WITH, VALUES, SHOW, DESCRIBE, EXPLAIN), not {given}")
    return read_condition(text, topics, dialect)


def read_condition(text: str, topics: set[str] | None = None, dialect: Dialect = SPARK) -> Statement:
    """Prepare a statement, or a part of one, such as the text after WHERE."""
    blank, topics = without_strings(text), topics or set()
    statement = Statement(words=_WORD.findall(blank.lower()))

    def edit(match: re.Match[str]) -> str:
        if match["table"] is not None:
            name = _table(match, blank, topics, statement, dialect)
            return match["before"] + (name or _FOUND.sub(edit, match["table"]))  # as in extract(year from data.at)
        if match["field"] is not None:
            return _field(match, statement, dialect)
        return match[0]

    statement.text = _FOUND.sub(edit, text)
    if "with" in statement.words:
        statement.missing = None  # the names of a WITH clause are tables as well
    return statement


def _table(match: re.Match[str], blank: str, topics: set[str], statement: Statement, dialect: Dialect) -> str:
    """Return the quoted name of a topic, or nothing for other names."""
    whole = match["table"]
    name = whole if whole[0] in '`"' else whole.rstrip(".:-")
    rest = blank[match.start("table") + len(name) :].lstrip()
    topic = known(_plain(name), topics)
    if topic is not None and not rest.startswith("("):
        statement.tables.append(topic)
        return quoted(topic, dialect.quote) + whole[len(name) :]
    before = blank[: match.start()]
    is_sure = before.count("(") == before.count(")") and not rest.startswith(("(", "."))
    if is_sure and name.lower() not in _NO_TABLE and not whole.startswith('"'):
        statement.missing = statement.missing or _plain(name)
    return ""


def _field(match: re.Match[str], statement: Statement, dialect: Dialect) -> str:
    column, path = match["column"].lower(), match["path"] or ""
    statement.fields.append(Field(column, tuple(map(_plain, _PATH_NAME.findall(path)))))
    path = _PATH_NAME.sub(
        lambda name: "." + (quoted(_plain(name[1]), dialect.quote) if name[1][0] in '`"' else name[1]), path
    )
    return f"_{column}" + _INDEX.sub(lambda index: f"[{int(index[1]) + dialect.first_index}]", path)


def known(name: str, topics: set[str]) -> str | None:
    """Return the topic with this name, or the only one that differs in case. A name with a star is a prefix."""
    if name.endswith("*"):
        return name if any(topic.startswith(name[:-1]) for topic in topics) else None
    alike = [topic for topic in topics if topic.lower() == name.lower()]
    return name if name in topics else alike[0] if len(alike) == 1 else None


def quoted(name: str, quote: str = "`") -> str:
    return quote + name.replace(quote, quote * 2) + quote


def _plain(part: str) -> str:
    return part[1:-1].replace(part[0] * 2, part[0]) if part[0] in '`"' else part


# --- casts

_PATH_STEP = r"(?:`(?:[^`]|``)*`|[^\W\d]\w*)"
_VALUE = rf"{VARIANT}(?:\s*:(?!:)\s*(?:{_PATH_STEP}|\[[^]]*\])(?:\.{_PATH_STEP}|\[[^]]*\])*)?"
_NESTED = r"<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>"
_TYPE = rf"(?:(?:array|map|struct)\s*{_NESTED}|(?:decimal|dec|numeric|char|varchar)\s*\([^)]*\)|\w+)"
_CAST = re.compile(
    rf"{_KEPT}|\bcast(?=\s*\(\s*{VARIANT}\s*:)|\b(?P<value>{_VALUE})(?P<casts>(?:\s*::\s*{_TYPE})+)",
    re.DOTALL | re.IGNORECASE,
)


def lenient(text: str) -> str:
    """Rewrite `value:price::int` and `CAST(value:price AS int)` to `try_cast(value:price AS int)`.

    Spark fails at `value:price::int` for a price of "cheap", and one such record would end every run. Topics have no
    schema, so records of another type are expected. Other errors in an expression are still reported.
    """

    def cast(match: re.Match[str]) -> str:
        if match["value"] is None:
            return match["kept"] or "try_cast"
        new = match["value"]
        for kind in re.split(r"\s*::\s*", match["casts"])[1:]:
            new = f"try_cast({new} AS {kind})"
        return new

    return _CAST.sub(cast, text)
