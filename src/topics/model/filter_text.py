"""Filters as text: `customer.id = 7 and total > 100`. Pure.

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
from typing import Any

from topics.model.conditions import MAX_DEPTH, ROOTS, Checker, Junction, Tests, number

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
