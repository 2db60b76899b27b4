"""Unknown fields of requests that carry on in spite of them: found by a strict decoder, reported as warnings. Pure.

Each request type has a strict twin, a subclass that refuses unknown fields. Decoding with the twin takes the same time,
so a request without unknown fields pays nothing. Only if the twin refuses the request is it decoded a second time, with
the lenient type. The warning names the first unknown field, which is the one that the twin reports.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, Generic, Protocol, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct, defstruct, structs

from topics.model import surrogates
from topics.model.wire import MAX_PLAIN_BODY_BYTES, UnknownField, body_too_large, check_text, decode_error, did_you_mean

MAX_WARNINGS = 16
MAX_NAME = 64  # characters of an unknown name that a warning quotes

_INDEX = re.compile(r"\[\d+\]")

T = TypeVar("T")


class Noted(Protocol):
    """A request in progress, which collects warnings. None means an empty list."""

    warnings: list[str] | None


class Notes(Struct):
    """Warnings of a request that has no other object to collect them."""

    warnings: list[str] | None = None


def note(noted: Noted, warnings: Iterable[str]) -> None:
    """Add warnings, up to `MAX_WARNINGS`. Items of one list with the same unknown field get one warning."""
    found = {_INDEX.sub("", warning): warning for warning in noted.warnings or ()}
    for warning in warnings:
        if len(found) >= MAX_WARNINGS:
            break
        found.setdefault(_INDEX.sub("", warning), warning)
    noted.warnings = list(found.values()) or None


def warning_of(name: str, known: list[str], *, kind: str = "field", path: str = "") -> str:
    """Return the warning about an unknown field of the object at `path`, which may have the `known` fields."""
    shown = name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…"
    similar = did_you_mean(name, known)
    hint = "" if similar is None else f'; did you mean "{similar}"?'
    return f'unknown {kind} "{path and path + "."}{shown}" ignored{hint}'


class RequestDecoder(Generic[T]):
    """Decodes the requests of one type. Those that write may have escapes of lone surrogates."""

    __slots__ = ("_decode_strict", "_lenient", "_strict", "_writes")

    def __init__(self, kind: Any, *, writes: bool = False) -> None:
        self._strict = msgspec.json.Decoder(strict(kind))
        self._lenient = msgspec.json.Decoder(kind)
        self._decode_strict = self._strict.decode
        self._writes = writes

    def decode(self, body: bytes, noted: Noted) -> T:
        """Return the decoded body, and note its unknown fields. Raise `invalid_request` with the invalid field.

        The decoder checks the syntax of raw parts but not their encoding, so the encoding is checked here. Raise
        `payload_too_large` for a body above the limit of requests other than writes.
        """
        if len(body) > MAX_PLAIN_BODY_BYTES:
            raise body_too_large(len(body))
        if not body.isascii():
            check_text(body)
        try:
            found: T = self._decode_strict(body or b"{}")
            return found
        except (msgspec.DecodeError, RecursionError):
            pass  # decoded again: only a request that is refused pays for that
        return surrogates.finish(self.decode_steps(body or b"{}", noted))

    def decode_steps(self, text: bytes, noted: Noted) -> Generator[None, None, T]:
        """Return the decoded text, in steps, and note its unknown fields. Raise `invalid_request`."""
        try:
            return (yield from self._decode(self._strict, text))
        except UnknownField as unknown:
            refused = unknown.with_traceback(None)  # it would refer to this frame, and the frame to it
            refused.__context__ = None  # the same
        yield
        found = yield from self._decode(self._lenient, text)
        note(noted, [warning_of(refused.name, refused.known, path=refused.path)])
        return found

    def _decode(self, decoder: msgspec.json.Decoder[Any], text: bytes) -> Generator[None, None, T]:
        try:
            try:
                found: T = decoder.decode(text)
            except msgspec.DecodeError as error:
                if isinstance(error, msgspec.ValidationError) or not self._writes:
                    raise
                found = yield from surrogates.decode_steps(decoder, text)
                if found is None:
                    raise
            return found
        except (msgspec.MsgspecError, RecursionError) as error:
            raise decode_error(error, decoder.type) from None


# --- the strict twin


_TWINS: dict[type[Struct], type[Struct]] = {}


def strict(kind: Any) -> Any:
    """Return the type with a strict twin in the place of each request type: subclasses that refuse unknown fields."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        if kind not in _TWINS:
            _TWINS[kind] = _twin(kind)
        return _TWINS[kind]
    parts = get_args(kind)
    twins = tuple(strict(part) if isinstance(part, type) or get_args(part) else part for part in parts)
    if twins == parts:
        return kind
    origin = get_origin(kind)
    return reduce(or_, twins) if origin in (Union, UnionType) else origin[twins]


def _twin(kind: type[Struct]) -> type[Struct]:
    config = kind.__struct_config__
    changed: list[Any] = []
    for field in structs.fields(kind):
        if (twin := strict(field.type)) != field.type:
            assert field.default_factory is NODEFAULT, f"{kind.__name__}.{field.name}: a default factory is not copied"
            changed.append((field.name, twin) if field.required else (field.name, twin, field.default))
    if config.forbid_unknown_fields and not changed:
        return kind
    return defstruct(
        f"Strict{kind.__name__}",
        changed,
        bases=(kind,),
        module=kind.__module__,
        tag=config.tag,
        tag_field=config.tag_field,
        forbid_unknown_fields=True,
        kw_only=True,
        gc=config.gc,
    )
