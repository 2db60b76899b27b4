"""Log entries: every change of state that must outlive the process, as the body of one WAL frame. Pure.

An entry says what was decided, never what to decide: applying it needs no clock and no choice, so that a replay ends in
the state the live server had. Bodies are MessagePack arrays of the fields below, except that an `Append` has its
rendered records behind the array:

    0   4   size   u32 LE; of the array
    4   s   array  [ts, sizes, tags, nodes, metas, key, extras]
    4+s …   blob   the rendered records

Kinds are permanent: a number that was used is never given another meaning.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec
from msgspec import Struct

from topics.errors import Corrupt, UnknownFormat
from topics.model.topic import TopicConfig
from topics.storage.log import frame

CREATE, CONFIGURE, DROP, APPEND, DELETE, CEILING = 1, 2, 3, 4, 5, 6
ARCHIVED = 32
CONSUMED, CONSUMERS_CHANGED = 40, 41
# 7 is `walfile.FOLLOWS`. 16 to 23 belong to routers, 24 to 31 to queues, 32 to 39 to archives, 40 to 47 to consumers;
# 48 to 55 to schedules; 56 to keys; 8 to 15 and 57 to 63 are free,
# except 60, which tests use. A scan does not trust a higher number at the end of a damaged frame.

EntryType = TypeVar("EntryType", bound=Struct)

_pack_size = struct.Struct("<I").pack
_unpack_size = struct.Struct("<I").unpack_from
_encode = msgspec.msgpack.encode


class Create(Struct, array_like=True):
    """A topic is created under `name`: an epoch begins."""

    kind: ClassVar[int] = CREATE
    topic_id: int
    name: str
    epoch: int
    config: TopicConfig
    at_ms: int


class Configure(Struct, array_like=True):
    """A topic has this configuration from now on. `head` is the last seq that the topic has assigned so far."""

    kind: ClassVar[int] = CONFIGURE
    topic_id: int
    config: TopicConfig
    at_ms: int
    head: int | None = None  # not in frames of earlier versions


class Drop(Struct, array_like=True):
    """A topic and all its records are deleted."""

    kind: ClassVar[int] = DROP
    topic_id: int


class Delete(Struct, array_like=True):
    """Delete the records below `before_seq` that match, all of them without a match, or the records in `seqs`."""

    kind: ClassVar[int] = DELETE
    topic_id: int
    before_seq: int
    op: str | None
    text: str
    at_ms: int
    seqs: list[int] | None = None
    done: bool = False  # the workers of these jobs have finished them; not in frames of earlier versions


class Ceiling(Struct, array_like=True):
    """No seq above `ceiling` is acknowledged until a higher one has been synced."""

    kind: ClassVar[int] = CEILING
    topic_id: int
    ceiling: int


class Append(Struct, gc=False):
    """Records with contiguous seqs from `first` on and one commit time. See `columns.extend` for the lists."""

    kind: ClassVar[int] = APPEND
    topic_id: int
    first: int
    ts: int
    sizes: Sequence[int]
    blob: bytes  # or a view of a large one, see `engine.write.render`; decoders know bytes alone
    tags: Sequence[str | None] | None = None
    nodes: Sequence[str | None] | str | None = None
    metas: Sequence[int] | None = None
    key: str | None = None
    extras: dict[int, bytes] | None = None

    @property
    def last(self) -> int:
        return self.first + len(self.sizes) - 1


class Entry(Protocol):
    """The fields of every kind. Other kinds are defined in the part of the engine that applies them."""

    kind: ClassVar[int]
    topic_id: int


def records_of(entry: Entry) -> Append | None:
    """Return the records that the entry adds to a topic, if it adds any."""
    made = entry if isinstance(entry, Append) else getattr(entry, "append", None)
    return made() if callable(made) else made  # a field of some kinds, and a method of others


_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {}


def known(entry: type[EntryType]) -> type[EntryType]:
    """Register the class of a kind of entry for decoding. A decorator."""
    kind: int = entry.kind  # type: ignore[attr-defined]
    assert kind not in _DECODERS, f"two kinds of entry have the number {kind}"
    _DECODERS[kind] = msgspec.msgpack.Decoder(entry)
    return entry


for _entry in (Create, Configure, Drop, Delete, Ceiling):
    known(_entry)


_Parts = tuple[int, list[int], list[str | None] | None, list[str | None] | str | None, list[int] | None, str | None,
               dict[int, bytes] | None]  # fmt: skip
_decode_parts = msgspec.msgpack.Decoder(_Parts).decode


def encode(entry: Entry, *, after: bytes = b"") -> bytes:
    """Return the entry as a whole WAL frame, behind the frames `after`."""
    if type(entry) is Append:
        parts = _encode((entry.ts, entry.sizes, entry.tags, entry.nodes, entry.metas, entry.key, entry.extras))
        size = _pack_size(len(parts))
        return frame.encode(APPEND, entry.topic_id, entry.first, len(entry.sizes), size, parts, entry.blob, after=after)
    return frame.encode(entry.kind, entry.topic_id, 0, 0, _encode(entry), after=after)


def encode_begun(entries: Sequence[Entry]) -> bytes:
    """Return the entries as the first frames of a write: they take effect with the frame after them, or never."""
    return b"".join([frame.encode(entry.kind | frame.MORE, entry.topic_id, 0, 0, _encode(entry)) for entry in entries])


def encode_all(entries: Sequence[Entry]) -> bytes:
    """Return the entries as the frames of one write: they take effect together, or not at all."""
    *begun, last = entries
    return encode(last, after=encode_begun(begun) if begun else b"")


def encode_large(entry: Append, *, after: bytes = b"") -> frame.Frames:
    """Return the same without a copy of the records, if these are a view."""
    if not isinstance(entry.blob, memoryview):
        return encode(entry, after=after)
    parts = _encode((entry.ts, entry.sizes, entry.tags, entry.nodes, entry.metas, entry.key, entry.extras))
    body = _pack_size(len(parts)), parts, entry.blob
    return frame.LargeFrame(APPEND, entry.topic_id, entry.first, len(entry.sizes), *body, after=after)


def decode(found: frame.Frame, *, path: str, at: int) -> Entry:
    """Return the entry in a verified frame. Raise `UnknownFormat` if this version does not know its kind."""
    head, body, _ = found
    try:
        if head.kind == APPEND:
            size = _unpack_size(body)[0]
            ts, sizes, tags, nodes, metas, key, extras = _decode_parts(body[4 : 4 + size])
            return Append(
                head.topic_id, head.first, ts, sizes, bytes(body[4 + size :]), tags, nodes, metas, key, extras
            )
        decoder = _DECODERS.get(head.kind)
        if decoder is None:
            raise UnknownFormat(f"{path} at byte {at} has a log entry of kind {head.kind}")
        entry: Entry = decoder.decode(body)
        return entry
    except (msgspec.MsgspecError, struct.error) as error:
        raise Corrupt(path, at, f"an entry cannot be decoded: {error}") from error
