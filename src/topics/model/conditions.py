"""Conditions on fields of records, and the checks of their parts. Pure."""

from __future__ import annotations

from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

from msgspec import Struct

from topics.errors import Code, TopicsError

MAX_DEPTH = 16  # of And, Or and Not, and of a path
MAX_CONDITIONS = 64
MAX_CHOICES = 256  # values of an `In`

ORDER = ("Lt", "Le", "Gt", "Ge")
OPERATORS = ("Eq", "Ne", *ORDER, "In", "Glob", "Contains", "Grep", "Exists")
ROOTS = ("tag", "data", "meta")

Scalar = str | int | Decimal | bool | None

# Exact, however many digits a number has. One with an exponent of 19 digits or more counts as infinite, or as 0.
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
_SHORT = 18  # digits


class Condition(Struct, frozen=True):
    """A test of one field. `value` is a tuple for `In`."""

    path: tuple[str, ...]
    op: str
    value: Any


class Junction(Struct, frozen=True):
    """`And`, `Or` or `Not` of other tests."""

    op: str
    parts: tuple[Condition | Junction, ...]


Tests = Condition | Junction


def number(text: str) -> int | Decimal:
    """Return the exact value of a JSON number."""
    if len(text) <= _SHORT and text.lstrip("-").isdigit():
        return int(text)
    return _EXACT.create_decimal(text)


def refused(field: str, at: str, what: str, position: int | None = None) -> TopicsError:
    """Return the `invalid_request` for the part of a filter at `at`, such as `[1][0]`."""
    detail: dict[str, Any] = {"field": field, "at": at}
    if position is not None:
        detail["position"] = position
        what = f"character {position}: {what}"
    return TopicsError(Code.INVALID_REQUEST, f"{field}{at}: {what}", detail=detail)


class Checker:
    """Checks one filter, and counts its conditions."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._conditions = 0

    def path(self, value: Any, at: str) -> tuple[str, ...]:
        parts = value.split(".") if isinstance(value, str) else value
        if not isinstance(parts, list) or not parts or parts[0] not in ROOTS:
            raise self.refused(at, f"a field begins with {', '.join(ROOTS)}, such as data.customer.id")
        if parts[0] == "tag" and len(parts) > 1:
            raise self.refused(at, "the tag is a text without members")
        if len(parts) > MAX_DEPTH:
            raise self.refused(at, f"a field has at most {MAX_DEPTH} parts")
        for part in parts:
            if not isinstance(part, str) and (type(part) is not int or part < 0):
                raise self.refused(at, "the parts of a field are names, and whole numbers for elements of an array")
            if part == "" and isinstance(value, str):
                raise self.refused(at, 'a name is empty; if it is, write the field as an array, such as ["data", ""]')
        return tuple(map(str, parts))

    def condition(self, path: tuple[str, ...], op: str, value: Any, at: str, position: int | None = None) -> Condition:
        """Return a condition. Raise if its operator does not take the value, or if the filter has too many."""
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise self.refused(at, f"the filter has more than {MAX_CONDITIONS} conditions", position)
        what = None
        if op == "In":
            if not isinstance(value, list) or not 0 < len(value) <= MAX_CHOICES or not all(map(_is_scalar, value)):
                what = f"In takes an array of 1 to {MAX_CHOICES} texts, numbers, true, false or null"
            else:
                value = tuple(value)
        elif op == "Exists" and value is not None and value is not True:
            what = "Exists takes no value; for records without the field, use Not"
        elif op in ORDER and (not _is_scalar(value) or value is None or isinstance(value, bool)):
            what = f"{op} takes a number or a text"
        elif op in ("Glob", "Grep") and (not isinstance(value, str) or not value):
            what = f"{op} takes a text"
        elif op == "Grep" and (len(path) > 1 or path[0] == "tag"):
            what = "Grep searches all of data or meta; use Contains for one field"
        elif not _is_scalar(value):
            what = f"{op} takes a text, a number, true, false or null"
        if what is not None:
            raise self.refused(at, what, position)
        return Condition(path, op, value)

    def refused(self, at: str, what: str, position: int | None = None) -> TopicsError:
        return refused(self._field, at, what, position)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | Decimal)
