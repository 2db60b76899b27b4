"""Filters on the fields of records: what a client sends, checked, as conditions. Pure.

    "order-7"                            the tag, as ["tag", "Eq", "order-7"]
    ["data.customer.id", "Eq", 7]        a member of `data` or `meta`, or the tag
    [["data", "a.b", 0], "Exists"]       the same with a name that has a dot, and with an element of an array
    ["And", [f, g]]  ["Or", [f, g]]  ["Not", f]
    ["Where", "customer.id = 7"]         the same as text

A filter on the tag alone is a `TagMatch`, for which segments have an index. Any other one is a `TagMatch` with the
operator `Where`: its text is the JSON text of the filter, so that it can be stored, compared and sent as it is.

Filters as text:

    filter     = any ("or" any)*              any = each ("and" each)*
    each       = "not" each | "(" filter ")" | condition
    condition  = field sign value | field ["not"] "in" "(" value, … ")" | field "exists"
                 | field ("glob" | "contains" | "grep") text
    sign       = "=" | "!=" | "<" | "<=" | ">" | ">="
    value      = a number | a text in ' or " | "true" | "false" | "null"
    field      = names with dots between them; any other name in backticks. It is a field of `data` unless it begins
                 with `data`, `meta` or `tag`

Each position in an error counts characters from 1.
"""

from __future__ import annotations

import json
import re
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

from msgspec import Raw, Struct

from topics.errors import Code, TopicsError
from topics.model.records import MAX_FILTER_BYTES, TagMatch, parse_match

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


# --- filters as JSON


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


# --- filters as text

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.`]))
    | (?P<text>'(?:[^']|'')*' | "(?:[^"\\]|\\.)*")
    | (?P<sign><=|>=|!=|<>|==|[=<>(),])
    | (?P<name>(?:[^\W\d][\w$@-]*|`[^`]+`)(?:\.(?:[\w$@-]+|`[^`]+`))*)
    | (?P<end>$))""",
    re.VERBOSE,
)
_PART = re.compile(r"`([^`]+)`|([^.`]+)")
_SIGNS = {"=": "Eq", "==": "Eq", "!=": "Ne", "<>": "Ne", "<": "Lt", "<=": "Le", ">": "Gt", ">=": "Ge"}
_WORDS = {"glob": "Glob", "contains": "Contains", "grep": "Grep"}
_CONSTANTS = {"true": True, "false": False, "null": None}
_RESERVED = {"and", "or", "not", "in", "exists", *_WORDS, *_CONSTANTS}


def parse_text(text: str, checker: Checker, at: str, depth: int) -> Tests:
    """Return the conditions of a text. Raise `invalid_request` with the position of the first part that is wrong."""
    reader = _Reader(text, checker, at)
    found = reader.any_of(depth)
    if reader.kind != "end":
        raise reader.refused("expected and, or, or the end")
    return found


class _Reader:
    """The tokens of a text, one at a time."""

    def __init__(self, text: str, checker: Checker, at: str) -> None:
        self._text, self._checker, self._at = text, checker, at
        self._next = 0
        self._move()

    def _move(self) -> None:
        found = _TOKEN.match(self._text, self._next)
        if found is None or found.lastgroup is None:
            self._start = self._next + len(self._text[self._next :]) - len(self._text[self._next :].lstrip())
            raise self.refused(f"unexpected {self._text[self._start : self._start + 1]!r}")
        self.kind, self._start, self._next = found.lastgroup, found.start(found.lastgroup), found.end()
        self.token = found[found.lastgroup]
        self._word = self.token.lower() if self.kind == "name" else None

    def refused(self, what: str, start: int | None = None) -> Exception:
        return self._checker.refused(self._at, what, (self._start if start is None else start) + 1)

    def _takes(self, *words: str) -> str | None:
        """Move on if the next token is one of these words or signs, and return it."""
        found = self._word if self.kind == "name" else self.token if self.kind == "sign" else None
        if found not in words:
            return None
        self._move()
        return found

    def any_of(self, depth: int) -> Tests:
        if depth > MAX_DEPTH:
            raise self.refused(f"the filter is nested deeper than {MAX_DEPTH} levels")
        parts = [self._all_of(depth)]
        while self._takes("or"):
            parts.append(self._all_of(depth))
        return parts[0] if len(parts) == 1 else Junction("Or", tuple(parts))

    def _all_of(self, depth: int) -> Tests:
        parts = [self._each(depth)]
        while self._takes("and"):
            parts.append(self._each(depth))
        return parts[0] if len(parts) == 1 else Junction("And", tuple(parts))

    def _each(self, depth: int) -> Tests:
        if depth > MAX_DEPTH:
            raise self.refused(f"the filter is nested deeper than {MAX_DEPTH} levels")
        if self._takes("not"):
            return Junction("Not", (self._each(depth + 1),))
        if self._takes("("):
            found = self.any_of(depth + 1)
            if not self._takes(")"):
                raise self.refused("expected )")
            return found
        return self._condition()

    def _condition(self) -> Tests:
        if self.kind != "name" or self._word in _RESERVED:
            raise self.refused("expected a field, such as customer.id")
        path, start = [name or plain for name, plain in _PART.findall(self.token)], self._start
        whole = path if path[0] in ROOTS and not self.token.startswith("`") else ["data", *path]
        checked = self._checker.path(whole, self._at)
        self._move()
        if self._takes("exists"):
            return self._checker.condition(checked, "Exists", None, self._at, start + 1)
        negated = self._takes("not") is not None
        if self._takes("in"):
            values_at = self._start
            found: Tests = self._checker.condition(checked, "In", self._values(), self._at, values_at + 1)
            if not negated:
                return found
            exists = self._checker.condition(checked, "Exists", None, self._at)  # as for `!=`, the field has to exist
            return Junction("And", (exists, Junction("Not", (found,))))
        signs = () if negated else (*_SIGNS, *_WORDS)
        sign = self._takes(*signs)
        if sign is None:
            raise self.refused("expected in" if negated else f"expected one of {' '.join(_SIGNS)} in exists glob "
                               "contains grep")  # fmt: skip
        value_at = self._start
        return self._checker.condition(checked, _SIGNS.get(sign) or _WORDS[sign], self._value(), self._at, value_at + 1)

    def _values(self) -> list[Any]:
        if not self._takes("("):
            raise self.refused("expected (")
        values = [self._value()]
        while self._takes(","):
            values.append(self._value())
        if not self._takes(")"):
            raise self.refused("expected , or )")
        return values

    def _value(self) -> Any:
        token = self.token
        value: Any
        if self.kind == "number":
            value = number(token)
        elif self.kind == "text":
            try:
                value = token[1:-1].replace("''", "'") if token[0] == "'" else json.loads(token, strict=False)
            except ValueError:
                raise self.refused("this text has an invalid escape; write it in '") from None
        elif self._word in _CONSTANTS:
            value = _CONSTANTS[self._word]
        else:
            raise self.refused("expected a value: a number, a text in quotes, true, false or null")
        self._move()
        return value
