"""Filters on the fields of records, compiled: whether a record matches, and the bytes without which none does. Pure.

A record is first searched for bytes (`CompiledFilter.needles`), and decoded only if it has them. The last of equal
names counts, numbers compare by their exact values, texts by their code points.

A condition on a field that the record lacks is false, whatever its operator; `Not` is true where its filter is false.
Values of different types are not equal, and have no order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from topics.model.filters import OPERATORS, Condition, Junction, Tests, number, tests_of
from topics.nesting import decode_again

EXPONENT = b"1e"  # means a digit with the `e` of an exponent behind it
UNICODE = b"\\u"  # how an escape of any character begins
BACKSLASH = b"\\"
_FORMS = (EXPONENT, UNICODE, BACKSLASH)
MAX_NEEDLES = 16
MAX_PLAIN_DIGITS = 40

_decode = msgspec.json.Decoder(float_hook=number).decode
_ORDERS = {"Lt": lt, "Le": le, "Gt": gt, "Ge": ge}
_INDEX = re.compile(r"(?:0|[1-9][0-9]{0,8})")
_ESCAPED = re.compile(r'["\\/\x00-\x1f]')  # characters that an escape other than \u can express


class Fields:
    """The fields of one record: its tag, and its data and meta as JSON text, which are decoded when they are needed."""

    __slots__ = ("_values", "texts")

    def __init__(self, data: bytes, meta: bytes | None, tag: str | None) -> None:
        self.texts = {"data": data, "meta": meta}
        self._values: dict[str, Any] = {"tag": UNSET if tag is None else tag}

    def value(self, path: tuple[str, ...]) -> Any:
        """Return the value of a field, or UNSET."""
        root, *names = path
        value = self._values.get(root)
        if value is None and root not in self._values:
            text = self.texts[root]
            value = self._values[root] = UNSET if text is None else _decoded(text)
        for name in names:
            if type(value) is dict:
                value = value.get(name, UNSET)
            elif type(value) is list and _INDEX.fullmatch(name) and int(name) < len(value):
                value = value[int(name)]
            else:
                return UNSET
        return value


def _decoded(text: bytes) -> Any:
    with suppress(msgspec.DecodeError):  # lone surrogates, or whole numbers of thousands of digits
        return decode_again(_decode, text)
    with suppress(ValueError):  # such numbers
        return decode_again(lambda one: json.loads(one, parse_float=number), text)
    return decode_again(lambda one: json.loads(one, parse_int=number, parse_float=number), text)


class CompiledFilter:
    """A filter that is ready to use: whether the fields of a record match, and the texts that such a record has."""

    def __init__(self, text: str) -> None:
        tests = tests_of(text)
        self.matches = _compiled(tests)
        needles = _needles(tests)
        self.needles = None if needles is None else tuple(dict.fromkeys(needles.texts))
        self.conditions = _count(tests, OPERATORS)
        self.scans = _count(tests, ("Contains", "Grep", "Glob"))


@lru_cache(256)
def compiled(text: str) -> CompiledFilter:
    """Return the filter of a `Where`."""
    return CompiledFilter(text)


def _count(tests: Tests, ops: tuple[str, ...]) -> int:
    return sum(_count(one, ops) for one in tests.parts) if isinstance(tests, Junction) else tests.op in ops


def _compiled(tests: Tests) -> Callable[[Fields], bool]:
    if isinstance(tests, Junction):
        parts = [_compiled(part) for part in tests.parts]
        if tests.op == "Not":
            [part] = parts
            return lambda fields: not part(fields)
        if tests.op == "And":
            return lambda fields: all(part(fields) for part in parts)
        return lambda fields: any(part(fields) for part in parts)
    path = tests.path
    if tests.op == "Grep":
        forms = _written_forms(tests.value)
        return lambda fields: (text := fields.texts[path[0]]) is not None and any(form in text for form in forms)
    holds = _holds(tests)
    return lambda fields: (value := fields.value(path)) is not UNSET and holds(value)


# --- conditions


def _holds(condition: Condition) -> Callable[[Any], bool]:
    """Return whether the condition is true of the value of its field."""
    wanted = condition.value
    match condition.op:
        case "Eq":
            return _equal_to(wanted)
        case "Ne":
            equal = _equal_to(wanted)
            return lambda value: not equal(value)
        case "In":
            tests = [_equal_to(one) for one in wanted]
            return lambda value: any(test(value) for test in tests)
        case "Lt" | "Le" | "Gt" | "Ge":
            order = _ORDERS[condition.op]
            if isinstance(wanted, str):
                return lambda value: type(value) is str and order(value, wanted)
            return lambda value: (type(value) is int or type(value) is Decimal) and order(value, wanted)
        case "Glob":
            pieces = wanted.split("*")
            return lambda value: type(value) is str and _globs(value, pieces)
        case "Contains":
            equal = _equal_to(wanted)
            is_text = isinstance(wanted, str)
            return lambda value: (
                wanted in value
                if is_text and type(value) is str
                # The first search is fast, and takes 1 for true.
                else type(value) is list and wanted in value and any(equal(one) for one in value)
            )
        case _:  # Exists
            return lambda value: True


def _equal_to(wanted: Any) -> Callable[[Any], bool]:
    if wanted is None or isinstance(wanted, bool):
        return lambda value: value is wanted
    if isinstance(wanted, str):
        return lambda value: type(value) is str and value == wanted
    return lambda value: (type(value) is int or type(value) is Decimal) and bool(value == wanted)


def _globs(value: str, pieces: list[str]) -> bool:
    """Return whether a text has the pieces in this order, the first at its beginning and the last at its end."""
    if len(pieces) == 1:
        return value == pieces[0]
    first, *between, last = pieces
    at, end = len(first), len(value) - len(last)
    if end < at or not (value.startswith(first) and value.endswith(last)):
        return False
    for piece in between:
        found = value.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _written_forms(text: str) -> list[bytes]:
    """Return the forms in which encoders write a text in JSON: as it is, and with escapes of all but ASCII."""
    forms = (json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1])
    return list(dict.fromkeys([text.encode(errors="surrogatepass"), *(form.encode() for form in forms)]))


# --- needles


class _Needles(NamedTuple):
    """Texts of which each matching record has at least one. Those of a value are rarer than those of a name."""

    is_value: bool
    texts: list[bytes]

    @property
    def rarity(self) -> tuple[bool, int]:
        return self.is_value, min((len(text) for text in self.texts if text not in _FORMS), default=0)


def _needles(tests: Tests) -> _Needles | None:
    """Return the best needles, or None if there is no text that a matching record must have."""
    if isinstance(tests, Condition):
        return _needles_of(tests)
    found = [_needles(part) for part in tests.parts] if tests.op != "Not" else [None]
    known = [needles for needles in found if needles is not None]
    if tests.op == "And":
        return max(known, key=lambda needles: needles.rarity, default=None)
    either = [text for needles in known for text in needles.texts]
    if len(known) < len(found) or len(either) > MAX_NEEDLES:
        return None
    return _Needles(all(needles.is_value for needles in known), either)


def _needles_of(condition: Condition) -> _Needles | None:
    path, op, value = condition.path, condition.op, condition.value
    if path == ("tag",):
        return None
    if op == "Grep":
        return _Needles(True, _written_forms(value))
    if op in ("Eq", "In", "Contains", "Glob"):
        choices = value if op == "In" else (max(value.split("*"), key=len),) if op == "Glob" else (value,)
        found = [text for one in choices for text in _of_scalar(one, whole=op in ("Eq", "In"))]
        if len(found) <= MAX_NEEDLES and all(found):
            return _Needles(True, found)
    for name in reversed(path[1:]):
        if not _INDEX.fullmatch(name):
            return _Needles(False, _of_text(name, whole=True))
    return None


def _of_scalar(value: Any, *, whole: bool) -> list[bytes]:
    if isinstance(value, str):
        return _of_text(value, whole=whole)
    if value is None or isinstance(value, bool):
        return [json.dumps(value).encode()]
    if value == 0:
        return [b"0"]
    if isinstance(value, Decimal) and not (
        value.is_finite() and len(value.as_tuple().digits) + abs(value.adjusted()) < MAX_PLAIN_DIGITS
    ):
        return [b""]  # could have any form
    plain = f"{value:f}" if isinstance(value, Decimal) else str(value)
    plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return [plain.encode(), EXPONENT]


def _of_text(text: str, *, whole: bool) -> list[bytes]:
    """Return the forms of a text in JSON: as it is, and with escapes."""
    special = _ESCAPED.findall(text)
    plain = text.encode(errors="surrogatepass")
    plain = b'"%b"' % plain if whole else plain
    if not special:
        return [plain, UNICODE] if plain else [b""]
    return [plain, BACKSLASH] if set(special) == {"/"} else [BACKSLASH]
