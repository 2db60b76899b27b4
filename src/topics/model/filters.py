"""Filters on the fields of records: what a client sends, checked, as conditions. Pure.

    "order-7"                            the tag, as ["tag", "Eq", "order-7"]
    ["data.customer.id", "Eq", 7]        a member of `data` or `meta`, or the tag
    [["data", "a.b", 0], "Exists"]       the same with a name that has a dot, and with an element of an array
    ["And", [f, g]]  ["Or", [f, g]]  ["Not", f]
    ["Where", "customer.id = 7"]         the same as text: see `filter_text`

A filter on the tag alone is a `TagMatch`, for which segments have an index. Any other one is a `TagMatch` with the
operator `Where`: its text is the JSON text of the filter, so that it can be stored, compared and sent as it is.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw

from topics.model.conditions import MAX_DEPTH, OPERATORS, Checker, Junction, Tests, number, refused
from topics.model.filter_text import parse_text
from topics.model.records import MAX_FILTER_BYTES, TagMatch, parse_match


def parse_filter(value: Any, *, field: str = "filter") -> TagMatch | None:
    """Return the condition of a filter as it came, or None for null. Raise `invalid_request` with the position."""
    if isinstance(value, Raw):
        text = _checked_text(bytes(value), field)
    elif value is None:
        return None
    else:
        text = _checked_text(json.dumps(value, ensure_ascii=False).encode(), field)
    decoded = _decoded(text, field)
    if not isinstance(decoded, list) or (decoded[:1] == ["tag"] and decoded[1:2] in (["Eq"], ["Glob"])):
        return None if decoded is None else parse_match(decoded, field=field)
    parse_tests(decoded, field=field)
    return TagMatch("Where", text)


def parse_tests(value: Any, *, field: str) -> Tests:
    """Return the conditions of a decoded filter. Raise `invalid_request` with the position in it."""
    return _tests(Checker(field), value, "", 0)


def tests_of(text: str) -> Tests:
    """Return the conditions of the text of a `Where`."""
    return parse_tests(_decoded(text, "filter"), field="filter")


def _checked_text(text: bytes, field: str) -> str:
    if len(text) > MAX_FILTER_BYTES:
        raise refused(field, "", f"the filter has {len(text)} bytes; the limit is {MAX_FILTER_BYTES}")
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise refused(field, "", f"the filter is not UTF-8: {error.reason}") from None


def _decoded(text: str, field: str) -> Any:
    try:
        return json.loads(text, parse_int=number, parse_float=number)
    except RecursionError:
        raise refused(field, "", "the filter is nested too deeply") from None


def _tests(checker: Checker, value: Any, at: str, depth: int) -> Tests:
    if depth > MAX_DEPTH:
        raise checker.refused(at, f"the filter is nested deeper than {MAX_DEPTH} levels")
    if not isinstance(value, list) or len(value) not in (2, 3):
        raise checker.refused(at, 'expected [field, operator, value], ["And" | "Or", [filters]] or ["Not", filter]')
    if len(value) == 2 and value[0] in ("And", "Or"):
        if not isinstance(value[1], list) or not value[1]:
            raise checker.refused(f"{at}[1]", "expected an array with at least one filter")
        parts = [_tests(checker, part, f"{at}[1][{n}]", depth + 1) for n, part in enumerate(value[1])]
        return Junction(value[0], tuple(parts))
    if len(value) == 2 and value[0] == "Not":
        return Junction("Not", (_tests(checker, value[1], f"{at}[1]", depth + 1),))
    if len(value) == 2 and value[0] == "Where":
        if not isinstance(value[1], str):
            raise checker.refused(f"{at}[1]", 'expected a text such as "customer.id = 7 and total > 100"')
        return parse_text(value[1], checker, f"{at}[1]", depth)
    path, op = checker.path(value[0], f"{at}[0]"), value[1]
    if op not in OPERATORS:
        shown = json.dumps(op, default=str)[:64]
        raise checker.refused(f"{at}[1]", f"{shown} is not one of {', '.join(OPERATORS)}")
    if len(value) == 2 and op != "Exists":
        raise checker.refused(at, f"{op} needs a value: [field, {json.dumps(op)}, value]")
    return checker.condition(path, op, value[2] if len(value) == 3 else None, f"{at}[2]")
