"""Extras: what is kept of a record beside its columns, as MessagePack. Readers get the key alone, with the tags.

{"q": [priority, due_ms, key, unique], "r": [topic id, …]}    of a job, or of a record with a key
b"r" and a MessagePack list of topic ids                      of a record that has only come through a cycle
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

PATH = b"r"


class Terms(Struct, array_like=True, frozen=True, gc=False):
    """The terms of a job. Those behind `due_ms` are not in files of earlier versions."""

    priority: int = 0
    due_ms: int = 0  # the time before which it is not delivered; 0: at once
    key: str | None = None
    unique: tuple[str, int] | None = None  # a key, and the time at which another job may have it; 0: once this one left


class Extra(Struct, frozen=True, omit_defaults=True, gc=False):
    q: Terms | None = None
    r: list[int] | None = None  # ids of the topics that the record has passed on a cycle of routers


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Extra).decode
_decode_path = msgspec.msgpack.Decoder(list[int]).decode


def pack(terms: Terms | None, path: list[int] | None = None) -> bytes:
    return PATH + _encode(path) if terms is None else _encode(Extra(terms, path))


def has_terms(extra: bytes) -> bool:
    return not extra.startswith(PATH)


def terms_of(extra: bytes | None) -> Terms:
    return (_decode(extra).q if extra is not None and has_terms(extra) else None) or Terms()


def path_of(extra: bytes | None) -> list[int]:
    if extra is None:
        return []
    return (_decode(extra).r or []) if has_terms(extra) else _decode_path(extra[1:])
