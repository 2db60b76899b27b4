"""Filters on the fields of records, compiled: whether a record matches, and the bytes without which none does. Pure.

A record is first searched for bytes (`CompiledFilter.needles`), and decoded only if it has them. Of a value, only the
members that the filter names are decoded. The meaning is that of a decoder that makes objects: the last of equal names
counts, numbers compare by their exact values, texts by their code points.

A condition on a field that the record lacks is false, whatever its operator; `Not` is true where its filter is false.
Values of different types are not equal, and have no order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, defstruct, structs

from topics.model.conditions import MAX_INDEX, Condition, Junction, Tests, number
from topics.model.filters import tests_of
from topics.model.nesting import decode_again

EXPONENT = b"1e"  # stands for a digit with the `e` of an exponent behind it
UNICODE = b"\\u"  # how an escape of any character begins
BACKSLASH = b"\\"
_FORMS = (EXPONENT, UNICODE, BACKSLASH)
MAX_NEEDLES = 16
MAX_PLAIN_DIGITS = 40

Values = list[Any]  # by place: a part of the record as JSON text, a decoded value, or UNSET
Test = Callable[[Values, str | None], bool]  # of the values and the tag of a record

_decode = msgspec.json.Decoder(float_hook=number).decode
_ORDERS = {"Lt": lt, "Le": le, "Gt": gt, "Ge": ge}
_INDEX = re.compile(r"(?:0|[1-9][0-9]{0,2})")
_ESCAPED = re.compile(r'["\\/\x00-\x1f]')  # characters that an escape other than \u can express
_OPENING = _OBJECT, _ARRAY = b"{["
_OTHER = object()  # stands for an object or an array


class CompiledFilter:
    """A filter that is ready to use."""

    def __init__(self, text: str) -> None:
        tests = tests_of(text)
        self._root = _Place()
        self._size = 0
        self._test = self._compiled(tests)
        needles = _needles(tests)
        self.needles = None if needles is None else tuple(dict.fromkeys(needles.texts))
        self.cost = self._size
        self.has_meta = "meta" in self._root.members

    def matches(self, data: bytes, meta: bytes | None, tag: str | None) -> bool:
        """Return whether a record with this JSON text matches."""
        values: Values = [UNSET] * self._size
        members = self._root.members
        if (place := members.get("data")) is not None:
            place.fill(data, values)
        if meta is not None and (place := members.get("meta")) is not None:
            place.fill(meta, values)
        return self._test(values, tag)

    def _compiled(self, tests: Tests) -> Test:
        if isinstance(tests, Junction):
            parts = [self._compiled(part) for part in tests.parts]
            if tests.op == "Not":
                [part] = parts
                return lambda values, tag: not part(values, tag)
            if tests.op == "And":
                return lambda values, tag: all(part(values, tag) for part in parts)
            return lambda values, tag: any(part(values, tag) for part in parts)
        holds = _holds(tests)
        if tests.path == ("tag",):
            return lambda _, tag: tag is not None and holds(tag)
        place = self._root
        for name in tests.path:
            place = place.members.setdefault(name, _Place())
        if place.slot is None:
            place.slot, self._size = self._size, self._size + 1
        slot, whole = place.slot, tests.op == "Contains"
        if tests.op == "Exists":
            return lambda values, _: values[slot] is not UNSET
        if tests.op == "Grep":
            return lambda values, _: values[slot] is not UNSET and holds(values[slot])

        def test(values: Values, _: str | None) -> bool:
            value = values[slot]
            if value is UNSET:
                return False
            if type(value) is Raw or type(value) is bytes:
                value = _value(value, whole=whole)
            return holds(value)

        return test


@lru_cache(256)
def compiled(text: str) -> CompiledFilter:
    """Return the filter of a `Where`."""
    return CompiledFilter(text)


class _Place:
    """A value that conditions look at, and the members of it that are places, too."""

    __slots__ = ("members", "slot")

    def __init__(self) -> None:
        self.members: dict[str, _Place] = {}
        self.slot: int | None = None

    def fill(self, value: Any, values: Values) -> None:
        """Note the value of this place and of its members. It is JSON text, or a decoded value."""
        if self.slot is not None:
            values[self.slot] = value
        if self.members:
            names = tuple(self.members)
            found = _members(value, names) if type(value) is Raw or type(value) is bytes else _items(value, names)
            for place, member in zip(self.members.values(), found, strict=True):
                if member is not UNSET:
                    place.fill(member, values)


def _members(text: Raw | bytes, names: tuple[str, ...]) -> Iterable[Any]:
    """Return the members of an object or elements of an array as JSON text; UNSET for each that is missing."""
    start = memoryview(text)[0]
    try:
        if start == _OBJECT:
            return decode_again(_object_decoder(names), text)
        if start == _ARRAY:
            indexes = [_index(name) for name in names]
            elements = decode_again(_array_decoder(max(indexes)), text)
            return [elements[at] if at >= 0 else UNSET for at in indexes]
    except msgspec.DecodeError:  # lone surrogates, which only the standard library decodes
        return _items(_loads(text), names)
    return [UNSET] * len(names)


def _items(value: Any, names: tuple[str, ...]) -> list[Any]:
    """Return the same of a decoded value."""
    if isinstance(value, dict):
        return [value.get(name, UNSET) for name in names]
    if isinstance(value, list):
        indexes = map(_index, names)
        return [value[at] if 0 <= at < len(value) else UNSET for at in indexes]
    return [UNSET] * len(names)


def _index(name: str) -> int:
    """Return the index of an element that a name can mean, or -1."""
    return int(name) if _INDEX.fullmatch(name) and int(name) <= MAX_INDEX else -1


@lru_cache(1024)
def _object_decoder(names: tuple[str, ...]) -> Callable[[bytes | Raw], Iterable[Any]]:
    """Return a decoder of an object that makes nothing of its other members."""
    fields = [(f"f{n}", Raw | UnsetType, UNSET) for n in range(len(names))]
    try:
        members = defstruct("Members", fields, rename=dict(zip((f[0] for f in fields), names, strict=True)), gc=False)
    except ValueError:  # msgspec does not take names with characters that need an escape
        decode = msgspec.json.Decoder(dict[str, Raw]).decode
        return lambda text: _items(decode(text), names)
    return _tuples_of(members)


@lru_cache(MAX_INDEX + 2)
def _array_decoder(last: int) -> Callable[[bytes | Raw], tuple[Any, ...]]:
    fields = [(f"f{n}", Raw | UnsetType, UNSET) for n in range(last + 1)]
    return _tuples_of(defstruct("Elements", fields, array_like=True, gc=False))


def _tuples_of(kind: type[Struct]) -> Callable[[bytes | Raw], tuple[Any, ...]]:
    decode = msgspec.json.Decoder(kind).decode
    return lambda text: structs.astuple(decode(text))


def _loads(text: bytes | Raw) -> Any:
    try:
        return decode_again(lambda one: json.loads(one, parse_float=number), bytes(text))
    except ValueError:  # a whole number of thousands of digits
        return decode_again(lambda one: json.loads(one, parse_int=number, parse_float=number), bytes(text))


def _value(text: bytes | Raw, *, whole: bool) -> Any:
    """Return the decoded value. Without `whole`, an object or an array is `_OTHER`."""
    if not whole and memoryview(text)[0] in _OPENING:
        return _OTHER
    try:
        return decode_again(_decode, text)
    except msgspec.DecodeError:  # lone surrogates, or whole numbers of thousands of digits
        return _loads(text)


# --- conditions


def _holds(condition: Condition) -> Callable[[Any], bool]:
    """Return whether the condition is true of a decoded value; for `Grep`, of JSON text."""
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
        case "Grep":
            forms = _written_forms(wanted)
            return lambda text: any(form in bytes(text) for form in forms)
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
        if _index(name) < 0:
            texts = _of_text(name, whole=True)
            return _Needles(False, texts)
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
