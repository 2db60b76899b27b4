"""Rewrite a SQL statement over topics so that Spark can run it. Pure: text to text.

Two extensions are rewritten; everything else stays as it is. The name of a topic may have dots, colons and dashes, and
needs no backquotes after FROM or JOIN: `from orders.eu`. And `data.user.id` is a field of the JSON in `data`: it
becomes a field of the typed column `_data`, while `data` alone stays the JSON text that was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct, field

JSON_COLUMNS = ("data", "meta")
VARIANT = "value"

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<string>r?'(?:[^'\\]|\\.|'')*'|r?"(?:[^"\\]|\\.|"")*")
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<word>[^\W\d]\w*)
    |(?P<number>\d\w*)
    |(?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_TABLE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:]|-(?!-))*\*?")
_CLAUSE_ENDS = {
    "select", "where", "group", "having", "order", "sort", "cluster", "distribute", "limit", "offset", "union",
    "intersect", "except", "minus", "window", "qualify",
}  # fmt: skip
_NO_ALIAS = _CLAUSE_ENDS | {
    "on", "using", "join", "inner", "left", "right", "full", "outer", "cross", "natural", "semi", "anti", "lateral",
    "tablesample", "pivot", "unpivot", "version", "timestamp", "for", "with",
}  # fmt: skip
_QUERIES = {"select", "with", "values", "from", "table", "show", "describe", "desc", "explain"}


class SqlToken(NamedTuple):
    kind: str
    text: str
    at: int

    @property
    def end(self) -> int:
        return self.at + len(self.text)

    @property
    def word(self) -> str:
        """The token in lower case if it can be a keyword, else an empty string."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def name(self) -> str:
        return self.text[1:-1].replace("``", "`") if self.kind == "quoted" else self.text

    @property
    def is_name(self) -> bool:
        return self.kind in ("word", "quoted")


class TableName(NamedTuple):
    """A name in the position of a table."""

    name: str
    at: int
    end: int
    alias: str | None = None


class Field(NamedTuple):
    """A field that a statement uses. `of` is the table name or alias before it, if there is one."""

    column: str
    path: tuple[str, ...]
    of: str | None = None


class Statement(Struct, kw_only=True):
    """A parsed statement: the text for Spark, and the tables and fields that it uses."""

    text: str
    tables: list[str]  # topics, and prefixes with a star, in order, once per occurrence
    unknown: list[str] = field(default_factory=list)  # table names that are not topics: a CTE, a view, or a mistake
    paths: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)  # used fields of `data` and of `meta`
    fields: list[Field] = field(default_factory=list)  # the same fields with their tables
    aliases: dict[str, list[str]] = field(default_factory=dict)  # tables by their lower-case name or alias
    words: set[str] = field(default_factory=set)  # every name in the statement, in lower case
    variant: bool = False  # whether `value:a.b` is used
    has_with: bool = False


class NoQuery(ValueError):
    """The statement is empty, or is not a query."""


def split(text: str) -> list[str]:
    """Return the statements of a text without their semicolons. Empty statements are dropped."""
    parts, start = [], 0
    for token in tokens(text):
        if token.text == ";":
            parts.append(text[start : token.at])
            start = token.end
    parts.append(text[start:])
    return [part.strip() for part in parts if any(token.kind != "space" for token in tokens(part))]


def is_whole(text: str) -> bool:
    """Return whether the text ends with a semicolon that is not inside a comment or an open quotation."""
    found = list(tokens(text))
    code = [token for token in found if token.kind != "space"]
    opened = any(token.kind == "sign" and token.text in "'\"`" for token in code)
    comment = any(one.text + other.text == "/*" for one, other in pairwise(found))
    return bool(code) and code[-1].text == ";" and not opened and not comment


def read(text: str, topics: set[str]) -> Statement:
    """Parse and rewrite a statement; `topics` are the existing ones. Raise `NoQuery` if it is not a query."""
    found = [token for token in tokens(text) if token.kind != "space"]
    first = next((token for token in found if token.text != "("), None)
    if first is None or first.word not in _QUERIES:
        given = "nothing" if first is None else first.text.upper()
        raise NoQuery(f"only queries can be run here (SELECT, WITH, VALUES, SHOW, DESCRIBE, EXPLAIN), not {given}")
    words = {token.name.lower() for token in found if token.is_name}
    statement = Statement(text=text, tables=[], has_with=any(token.word == "with" for token in found), words=words)
    edits: list[tuple[int, int, str]] = []
    for table in _tables(text, found):
        name = known(table.name, topics)
        if name is None:
            statement.unknown.append(table.name)
        else:
            statement.tables.append(name)
            statement.aliases.setdefault((table.alias or name).lower(), []).append(name)
            edits.append((table.at, table.end, quoted(name)))
    taken = {at for at, _, _ in edits}
    edits += _paths(found, taken, topics, statement)
    for start, stop, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[stop:]
    statement.text = text
    return statement


def read_condition(text: str) -> Statement:
    """Parse and rewrite a condition, such as the text after WHERE."""
    statement = Statement(text=text, tables=[])
    found = [token for token in tokens(text) if token.kind != "space"]
    for start, stop, new in sorted(_paths(found, set(), set(), statement), reverse=True):
        text = text[:start] + new + text[stop:]
    statement.text = text
    return statement


def surely_missing(text: str, topics: set[str]) -> str | None:
    """Return a table name that can only be a topic and is not one, or None if that is not certain.

    FROM has other meanings inside functions (`extract(year from ts)`), after DISTINCT, and before a function or a
    file; the names of a WITH clause are tables as well. In these cases Spark reports the error.
    """
    found = [token for token in tokens(text) if token.kind != "space"]
    if any(token.word == "with" for token in found):
        return None
    depth = 0
    for at, token in enumerate(found[:-1]):
        depth += (token.text == "(") - (token.text == ")")
        expects_table = token.word == "join" or (token.word == "from" and found[at - 1].word != "distinct")
        expects_table |= at == 0 and len(found) == 2 and token.word in ("describe", "desc")
        following = found[at + 1]
        if depth or not expects_table or not following.is_name or following.word in ("lateral", "values", "select"):
            continue
        table = _table_at(text, found[at + 1])
        follows = next((other.text for other in found[at + 2 :] if other.at >= table.end), "")
        if follows not in ("(", ".") and known(table.name, topics) is None:
            return table.name
    return None


def known(name: str, topics: set[str]) -> str | None:
    """Return the topic with this name, or the only one that differs in case. A name with a star is a prefix."""
    if name.endswith("*"):
        return name if any(topic.startswith(name[:-1]) for topic in topics) else None
    if name in topics:
        return name
    alike = [topic for topic in topics if topic.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def tokens(text: str) -> Iterator[SqlToken]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, "the last alternative takes any character"
        yield SqlToken(str(match.lastgroup), match[0], at)
        at = match.end()


def _tables(text: str, found: list[SqlToken]) -> Iterator[TableName]:
    """Yield every name after FROM or JOIN, or after a comma in such a list."""
    in_from = [False]
    expected = False
    name_end = 0  # end of the last table name, which may consist of several tokens
    for at, token in enumerate(found):
        if token.at < name_end:
            continue
        if expected and (token.is_name or token.kind == "number") and token.word not in ("lateral", "values", "select"):
            expected = False
            table = _table_at(text, token)
            name_end = table.end
            rest = [other for other in found[at + 1 :] if other.at >= table.end][:2]
            if not rest or rest[0].text != "(":  # a parenthesis means a table function
                yield table._replace(alias=_alias(rest))
        elif token.text == "(":
            in_from.append(False)
            expected = False
        elif token.text == ")":
            in_from = in_from[:-1] or [False]
        elif token.word in ("from", "join"):
            in_from[-1] = expected = True
        elif token.text == ",":
            expected = in_from[-1]
        elif token.word in _CLAUSE_ENDS:
            in_from[-1] = expected = False
        elif token.word in ("describe", "desc") and at == 0:
            expected = True


def _table_at(text: str, token: SqlToken) -> TableName:
    if token.kind == "quoted":
        return TableName(token.name, token.at, token.end)
    match = _TABLE.match(text, token.at)
    if match is None:
        return TableName(token.text, token.at, token.end)
    name = match[0].rstrip(".:-")
    return TableName(name, token.at, token.at + len(name))


def _alias(rest: list[SqlToken]) -> str | None:
    """Return the alias of a table; `rest` are the tokens after its name."""
    if rest and rest[0].word == "as":
        rest = rest[1:]
    return rest[0].name if rest and rest[0].is_name and rest[0].word not in _NO_ALIAS else None


def _paths(
    found: list[SqlToken], taken: set[int], topics: set[str], statement: Statement
) -> Iterator[tuple[int, int, str]]:
    """Yield the replacements of `data` and `meta` where one of their fields is used."""
    at = 0
    while at < len(found):
        if found[at].at in taken or not found[at].is_name:
            at += 1
            continue
        chain = _chain(found, at)
        after = found[at + 2 * len(chain) - 1].text if at + 2 * len(chain) - 1 < len(found) else ""
        if chain[0].word == VARIANT and after == ":":
            statement.variant = True
        root = _root(chain, topics, indexed=after == "[")
        if root is not None and after != "(":
            column = chain[root].name.lower()
            path = tuple(token.name for token in chain[root + 1 :])
            before = ".".join(token.name for token in chain[:root])
            statement.paths.setdefault(column, []).append(path)
            statement.fields.append(Field(column, path, before or None))
            if root > 1:
                yield chain[0].at, chain[root - 1].end, quoted(before)
            yield chain[root].at, chain[root].end, f"_{column}"
        at += 2 * len(chain) - 1


def _chain(found: list[SqlToken], at: int) -> list[SqlToken]:
    """Return the names joined by dots that start at index `at`."""
    chain = [found[at]]
    while at + 2 < len(found) and found[at + 1].text == "." and found[at + 2].is_name:
        at += 2
        chain.append(found[at])
    return chain


def _root(chain: list[SqlToken], topics: set[str], *, indexed: bool) -> int | None:
    """Return the index of the JSON column in a chain whose field the rest names, or None."""
    for at, token in enumerate(chain):
        if token.name.lower() in JSON_COLUMNS and (at + 1 < len(chain) or indexed):
            before = ".".join(other.name for other in chain[:at])
            if at <= 1 or before in topics:
                return at
    return None
