"""A SQL statement with topics as tables and fields of `data` by their path, as Spark can run it. Pure: text to text.

Two things in a statement are ours. A name of a topic may have dots, colons and dashes, and needs no backquotes where a
table is expected: `from orders.eu`. And `data.user.id` is a field of a JSON text; it is asked of a typed twin of the
column, `_data`, while `data` alone stays the text that was written. Everything else is Spark's, word for word.
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


class Token(NamedTuple):
    kind: str
    text: str
    at: int

    @property
    def end(self) -> int:
        return self.at + len(self.text)

    @property
    def word(self) -> str:
        """The keyword it may be."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def name(self) -> str:
        return self.text[1:-1].replace("``", "`") if self.kind == "quoted" else self.text

    @property
    def is_name(self) -> bool:
        return self.kind in ("word", "quoted")


class TableName(NamedTuple):
    """A name where a table is expected."""

    name: str
    at: int
    end: int
    alias: str | None = None


class Field(NamedTuple):
    """A field that a statement asks for, and of whom: the name or alias before it, if there is one."""

    column: str
    path: tuple[str, ...]
    of: str | None = None


class Statement(Struct, kw_only=True):
    """A statement that was read: Spark's form of it, and what it needs."""

    text: str
    tables: list[str]  # topics and prefixes with a star, in their order, each time they occur
    unknown: list[str] = field(default_factory=list)  # names that are no topic: a CTE, a view, or a mistake
    paths: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)  # fields asked of `data` and of `meta`
    fields: list[Field] = field(default_factory=list)  # the same, with whom they are asked of
    aliases: dict[str, list[str]] = field(default_factory=dict)  # tables by what they may be called, in small letters
    words: set[str] = field(default_factory=set)  # every name in it, in small letters
    variant: bool = False  # whether `value:a.b` is used
    has_with: bool = False


class NoQuery(ValueError):
    """A statement that would change something, or is nothing at all."""


def split(text: str) -> list[str]:
    """The statements of a text, without their semicolons and without those that say nothing."""
    parts, start = [], 0
    for token in tokens(text):
        if token.text == ";":
            parts.append(text[start : token.at])
            start = token.end
    parts.append(text[start:])
    return [part.strip() for part in parts if any(token.kind != "space" for token in tokens(part))]


def is_whole(text: str) -> bool:
    """Whether a semicolon ends it, and not one in a comment or in quotes that are still open."""
    found = list(tokens(text))
    said = [token for token in found if token.kind != "space"]
    opened = any(token.kind == "sign" and token.text in "'\"`" for token in said)
    comment = any(one.text + other.text == "/*" for one, other in pairwise(found))
    return bool(said) and said[-1].text == ";" and not opened and not comment


def read(text: str, topics: set[str]) -> Statement:
    """The statement, for a world with these topics. Raises `NoQuery`."""
    found = [token for token in tokens(text) if token.kind != "space"]
    first = next((token for token in found if token.text != "("), None)
    if first is None or first.word not in _QUERIES:
        said = "nothing" if first is None else first.text.upper()
        raise NoQuery(f"only queries can be run here (SELECT, WITH, VALUES, SHOW, DESCRIBE, EXPLAIN), not {said}")
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
    """A condition alone, as in `where`."""
    statement = Statement(text=text, tables=[])
    found = [token for token in tokens(text) if token.kind != "space"]
    for start, stop, new in sorted(_paths(found, set(), set(), statement), reverse=True):
        text = text[:start] + new + text[stop:]
    statement.text = text
    return statement


def surely_missing(text: str, topics: set[str]) -> str | None:
    """A name that can be nothing but a topic, and is none. Where that is not certain, Spark knows better.

    `from` has other meanings inside of functions (`extract(year from ts)`), behind DISTINCT, and before a function or
    a file; what a WITH names is a table as well.
    """
    found = [token for token in tokens(text) if token.kind != "space"]
    if any(token.word == "with" for token in found):
        return None
    depth = 0
    for at, token in enumerate(found[:-1]):
        depth += (token.text == "(") - (token.text == ")")
        is_place = token.word == "join" or (token.word == "from" and found[at - 1].word != "distinct")
        is_place |= at == 0 and len(found) == 2 and token.word in ("describe", "desc")
        if depth or not is_place or not found[at + 1].is_name or found[at + 1].word in ("lateral", "values", "select"):
            continue
        table = _table_at(text, found[at + 1])
        follows = next((other.text for other in found[at + 2 :] if other.at >= table.end), "")
        if follows not in ("(", ".") and known(table.name, topics) is None:
            return table.name
    return None


def known(name: str, topics: set[str]) -> str | None:
    """The topic that is meant: with these letters, or with others where only one fits. A star makes it a prefix."""
    if name.endswith("*"):
        return name if any(topic.startswith(name[:-1]) for topic in topics) else None
    if name in topics:
        return name
    alike = [topic for topic in topics if topic.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, "the last alternative takes any character"
        yield Token(str(match.lastgroup), match[0], at)
        at = match.end()


def _tables(text: str, found: list[Token]) -> Iterator[TableName]:
    """Every name that stands behind FROM or JOIN, or behind a comma in such a list."""
    in_from = [False]
    expected = False
    behind = 0  # what was taken as a name, though it has several tokens
    for at, token in enumerate(found):
        if token.at < behind:
            continue
        if expected and (token.is_name or token.kind == "number") and token.word not in ("lateral", "values", "select"):
            expected = False
            table = _table_at(text, token)
            behind = table.end
            rest = [other for other in found[at + 1 :] if other.at >= table.end][:2]
            if not rest or rest[0].text != "(":  # a function that makes a table
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


def _table_at(text: str, token: Token) -> TableName:
    if token.kind == "quoted":
        return TableName(token.name, token.at, token.end)
    match = _TABLE.match(text, token.at)
    if match is None:
        return TableName(token.text, token.at, token.end)
    name = match[0].rstrip(".:-")
    return TableName(name, token.at, token.at + len(name))


def _alias(rest: list[Token]) -> str | None:
    """What a table is called in its statement, by what stands behind its name."""
    if rest and rest[0].word == "as":
        rest = rest[1:]
    return rest[0].name if rest and rest[0].is_name and rest[0].word not in _NO_ALIAS else None


def _paths(
    found: list[Token], taken: set[int], topics: set[str], statement: Statement
) -> Iterator[tuple[int, int, str]]:
    """What to put in place of `data` and `meta` where a field of them is asked for."""
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


def _chain(found: list[Token], at: int) -> list[Token]:
    """Names with dots between, from here on."""
    chain = [found[at]]
    while at + 2 < len(found) and found[at + 1].text == "." and found[at + 2].is_name:
        at += 2
        chain.append(found[at])
    return chain


def _root(chain: list[Token], topics: set[str], *, indexed: bool) -> int | None:
    """Which part of a chain is the column of JSON whose field the rest asks for."""
    for at, token in enumerate(chain):
        if token.name.lower() in JSON_COLUMNS and (at + 1 < len(chain) or indexed):
            before = ".".join(other.name for other in chain[:at])
            if at <= 1 or before in topics:
                return at
    return None
