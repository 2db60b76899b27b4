"""Find the tables and fields in the text of a SQL statement, and rewrite the text so that Spark can run it. Pure.

Spark parses SQL. Here only names are looked at, outside strings and comments. The name of a topic may have dots, colons
and dashes, and needs no backquotes after FROM or JOIN. `data.user.id` is a field of the JSON in `data`: it becomes a
field of the typed column `_data`, while `data` alone stays the JSON text that was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct, field

from topics.spark.failures import BadUsage

JSON_COLUMNS = ("data", "meta")
VARIANT = "value"

_STRINGS = r"""r?'(?:[^'\\]|\\.|'')*'|r?"(?:[^"\\]|\\.|"")*\""""
_QUOTED = r"`(?:[^`]|``)*`"
_NAME = rf"(?:{_QUOTED}|[^\W\d]\w*)"
_TOKEN = re.compile(
    rf"(?P<space>\s+|--[^\n]*|/\*.*?\*/)|(?P<string>{_STRINGS})|(?P<chain>{_NAME}(?:\s*\.\s*{_NAME})*)"
    r"|(?P<number>\d\w*)|(?P<sign>.)",
    re.DOTALL,
)
_PART = re.compile(_NAME)
_TABLE = re.compile(rf"{_QUOTED}|[A-Za-z0-9](?:[A-Za-z0-9._:]|-(?!-))*\*?")
_ALIAS = re.compile(rf"\s+(?:as\s+)?({_NAME})", re.IGNORECASE)
_CLAUSE_ENDS = {
    "select", "where", "group", "having", "order", "sort", "cluster", "distribute", "limit", "offset", "union",
    "intersect", "except", "minus", "window", "qualify",
}  # fmt: skip
_NO_ALIAS = _CLAUSE_ENDS | {
    "on", "using", "join", "inner", "left", "right", "full", "outer", "cross", "natural", "semi", "anti", "lateral",
    "tablesample", "pivot", "unpivot", "version", "timestamp", "for", "with",
}  # fmt: skip
_NO_TABLE = ("lateral", "values", "select")
_QUERIES = {"select", "with", "values", "from", "table", "show", "describe", "desc", "explain"}


class Field(NamedTuple):
    """A field that a statement uses. `of` is the table name or alias before it, if there is one."""

    column: str
    path: tuple[str, ...]
    of: str | None = None


class Statement(Struct, kw_only=True):
    """The text for Spark, and the tables and fields that it uses."""

    text: str = ""
    tables: list[str] = field(default_factory=list)  # topics, and prefixes with a star, once per occurrence
    unknown: list[str] = field(default_factory=list)  # table names that are not topics: a CTE, a view, or a mistake
    missing: str | None = None  # a table name that can only be a topic and is not one
    fields: list[Field] = field(default_factory=list)
    aliases: dict[str, list[str]] = field(default_factory=dict)  # tables by their lower-case name or alias
    words: set[str] = field(default_factory=set)  # every name in the statement, in lower case
    variant: bool = False  # whether `value:a.b` is used


class BadQuery(BadUsage):
    """A statement cannot be run. The message says why."""


def tokens(text: str) -> Iterator[re.Match[str]]:
    """Yield every token that is not a space or a comment."""
    return (match for match in _TOKEN.finditer(text) if match.lastgroup != "space")


def names_in(text: str) -> set[str]:
    """Return every name in a text, in lower case."""
    chains = (match[0] for match in tokens(text) if match.lastgroup == "chain")
    return {_plain(part).lower() for chain in chains for part in _PART.findall(chain)}


def split(text: str) -> list[str]:
    """Return the statements of a text without their semicolons. Empty statements are dropped."""
    ends = [match.start() for match in tokens(text) if match[0] == ";"]
    parts = [text[start:end] for start, end in zip([0, *(end + 1 for end in ends)], [*ends, len(text)], strict=True)]
    return [part.strip() for part in parts if next(tokens(part), None) is not None]


def is_whole(text: str) -> bool:
    """Return whether the text ends with a semicolon that is not inside a comment or an open quotation."""
    found = [match[0] for match in tokens(text)]
    return found[-1:] == [";"] and not {"'", '"', "`"} & set(found) and ("/", "*") not in pairwise(found)


def read(text: str, topics: set[str]) -> Statement:
    """Rewrite a statement; `topics` are the existing ones. Raise `BadQuery` if it is not a query."""
    first = next((match[0] for match in tokens(text) if match[0] != "("), "nothing")
    if first.lower() not in _QUERIES:
        given = "nothing" if first == "nothing" else first.upper()
        raise BadQuery(f"only queries can be run here (SELECT, WITH, VALUES, SHOW, DESCRIBE, EXPLAIN), not {given}")
    return read_condition(text, topics)


def read_condition(text: str, topics: set[str] | None = None) -> Statement:
    """Rewrite a statement, or a part of one, such as the text after WHERE."""
    found, topics = list(tokens(text)), topics or set()
    statement = Statement(words=names_in(text))
    edits: list[tuple[int, int, str]] = []
    in_from, table_end = [False], 0  # whether a comma begins another table, for each open parenthesis
    expected = ""  # the word before the name of a table
    for at, match in enumerate(found):
        word, is_chain = match[0].lower(), match.lastgroup == "chain"
        if match.start() < table_end:
            continue
        if expected and (is_chain or match.lastgroup == "number") and word not in _NO_TABLE:
            whole = _TABLE.match(text, match.start()) or _PART.match(text, match.start()) or match
            name = whole[0] if whole[0].startswith("`") else whole[0].rstrip(".:-")
            name, end = _plain(name), match.start() + len(name)
            rest = text[end:].lstrip()
            topic = known(name, topics)
            if topic is not None and not rest.startswith("("):
                statement.tables.append(topic)
                alias = _ALIAS.match(text, end)
                called = topic if alias is None or alias[1].lower() in _NO_ALIAS else _plain(alias[1])
                statement.aliases.setdefault(called.lower(), []).append(topic)
                edits.append((match.start(), end, quoted(topic)))
                table_end = end
            elif not rest.startswith("("):
                statement.unknown.append(name)
                is_sure = is_chain and len(in_from) == 1 and expected == found[at - 1][0].lower() != ","
                statement.missing = statement.missing or (name if is_sure and not rest.startswith(".") else None)
            if is_chain and table_end != end:  # perhaps no table, as in extract(year from data.at)
                edits += _path(match, _text(found, at + 1), topics, statement)
            expected = ""
        elif word in ("from", "join") and not (at and found[at - 1][0].lower() == "distinct"):
            in_from[-1], expected = True, word
        elif word in ("(", ")", ",") or word in _CLAUSE_ENDS:
            if word == "(":
                in_from.append(False)
            elif word == ")":
                in_from = in_from[:-1] or [False]
            elif word != ",":
                in_from[-1] = False
            expected = "," if word == "," and in_from[-1] else ""
        elif word in ("describe", "desc") and at == 0:
            expected = word if len(found) == 2 else ","
        elif is_chain:
            edits += _path(match, _text(found, at + 1), topics, statement)
    if "with" in statement.words:
        statement.missing = None  # the names of a WITH clause are tables as well
    for start, stop, new in reversed(edits):
        text = text[:start] + new + text[stop:]
    statement.text = text
    return statement


def _text(found: list[re.Match[str]], at: int) -> str:
    return found[at][0] if at < len(found) else ""


def known(name: str, topics: set[str]) -> str | None:
    """Return the topic with this name, or the only one that differs in case. A name with a star is a prefix."""
    if name.endswith("*"):
        return name if any(topic.startswith(name[:-1]) for topic in topics) else None
    alike = [topic for topic in topics if topic.lower() == name.lower()]
    return name if name in topics else alike[0] if len(alike) == 1 else None


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _plain(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") else part


def _path(match: re.Match[str], after: str, topics: set[str], statement: Statement) -> Iterator[tuple[int, int, str]]:
    """Yield the replacements for names joined by dots, if they are a field of `data` or `meta`."""
    parts = list(_PART.finditer(match[0]))
    names = [_plain(part[0]) for part in parts]
    statement.variant |= names == [VARIANT] and after == ":"
    for at, name in enumerate(names):
        of = ".".join(names[:at])
        has_field = at + 1 < len(names) or after == "["
        if name.lower() in JSON_COLUMNS and has_field and (at <= 1 or of in topics) and after != "(":
            statement.fields.append(Field(name.lower(), tuple(names[at + 1 :]), of or None))
            start = match.start()
            if at > 1:
                yield start, start + parts[at - 1].end(), quoted(of)
            yield start + parts[at].start(), start + parts[at].end(), f"_{name.lower()}"
            return


# --- casts

_VALUE = rf"{VARIANT}(?:\s*:(?!:)\s*(?:{_NAME}|\[[^]]*\])(?:\.{_NAME}|\[[^]]*\])*)?"
_NESTED = r"<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>"
_TYPE = rf"(?:(?:array|map|struct)\s*{_NESTED}|(?:decimal|dec|numeric|char|varchar)\s*\([^)]*\)|\w+)"
_CAST = re.compile(
    rf"(?P<kept>{_STRINGS}|{_QUOTED}|--[^\n]*|/\*.*?\*/)|\bcast(?=\s*\(\s*{VARIANT}\s*:)"
    rf"|\b(?P<value>{_VALUE})(?P<casts>(?:\s*::\s*{_TYPE})+)",
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
