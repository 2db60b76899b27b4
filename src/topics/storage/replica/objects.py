"""Objects of a replica: names, encode and decode. Pure: no files, no clock.

    replica                    JSON: format, id. Created once; everything else belongs to this id
    log/<20 digits>            the sequence; each object is created only if absent, and never changed
    files/<32 hex digits>      files of checkpoints; never changed
    latest                     JSON: the number of a late checkpoint. A hint where to begin a list: it may be outdated
    standbys/<name>            JSON (`Announced`), overwritten every few seconds: a server that follows the sequence
    promote                    JSON (`Promote`): the writer ends, and a standby takes over

An object of the sequence:

    offset  size  field
    0       8     magic   b"TOPICRPL"
    8       4     format  u32 LE; 1
    12      4     size    u32 LE; h
    16      h     head    MessagePack of `Head`
    16+h    n     body
    16+h+n  8     sum     u64 LE; XXH3-64 of everything before

    kind        body
    term        nothing. A server writes from here on; all objects after it with a lower term are void
    bytes       bytes of log files (`Head.pieces`), whole frames as they are on the disk
    checkpoint  MessagePack of `Checkpoint`: the files that are the state at the beginning of a log file
    alive       nothing

The state at an object is that of its checkpoint (`Head.base`, or the object itself), and then the bytes of the same
term from object `Checkpoint.since` on, as far as they belong to log file `Checkpoint.snapshot` or a later one.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Literal

import msgspec
import xxhash
from msgspec import Struct

from topics.storage.datadir import FORMAT_VERSION, OLDEST_FORMAT, DataDirError

MAGIC = b"TOPICRPL"
FORMAT = 1
REPLICA, LATEST, LOG, FILES = "replica", "latest", "log/", "files/"
STANDBYS, PROMOTE = "standbys/", "promote"

Kind = Literal["term", "bytes", "checkpoint", "alive"]
Position = tuple[int, int]  # number of a log file, and an offset in it
Piece = tuple[int, int, int]  # number of a log file, offset, size in bytes

_FRONT = struct.Struct("<8sII")
sum64 = xxhash.xxh3_64_intdigest


class ReplicaError(DataDirError):
    """A replica cannot be used. The text has the reason, and after `; ` the next step."""


class Damaged(ReplicaError):
    """An object is damaged, missing or foreign. The text names it."""


class Head(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The head of an object."""

    replica: str  # id of the replica
    number: int
    term: int
    kind: Kind
    at_ms: int  # never lower than that of the object before
    instance: str  # of the process that wrote it: two processes never have the same
    host: str = ""
    address: str = ""  # where clients reach the writer
    base: int = 0  # number of the last checkpoint before this object; 0 if there is none
    upto: Position = (0, 0)  # where the log in the bucket ends
    as_of_ms: int = 0  # everything that happened before is in the log up to there
    followed: bool = False  # whether the writer knows of a server that would take over
    pieces: tuple[Piece, ...] = ()
    reason: str = ""  # of a term: `start`, `gap` or `takeover`
    version: str = ""  # of a term: that of topics
    stored: int = OLDEST_FORMAT  # the format of the data directory that the bytes and files are from


class Announced(Struct, kw_only=True, frozen=True):
    """A server that follows the sequence."""

    name: str
    address: str  # where clients reach it
    takes_over: bool
    object: int  # the last one that it has applied
    lag_ms: int
    at_ms: int


class Promote(Struct, frozen=True):
    """The request that a standby takes over: once the writer of `term` has ended, or `now`."""

    standby: str
    term: int
    now: bool = False


class FileRef(Struct, frozen=True, array_like=True, gc=False):
    """A file of a checkpoint: its path in a data directory, and the object that has its bytes."""

    path: str
    name: str
    size_bytes: int
    sum: int  # XXH3-64 of the bytes


class Checkpoint(Struct, kw_only=True, frozen=True):
    """A complete state: the snapshot with this number, and every file that it names."""

    snapshot: int
    since: int  # the first object with bytes after the snapshot, or the number of this object
    clean: bool  # taken at an orderly stop: nothing follows
    files: list[FileRef]


class Object(Struct, frozen=True):
    head: Head
    body: bytes

    @property
    def checkpoint(self) -> Checkpoint:
        """The body of a checkpoint."""
        return _decode_checkpoint(self.body)


class Identity(Struct, frozen=True):
    """The object `replica`."""

    format: int
    id: str


_encode = msgspec.msgpack.encode
_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_checkpoint = msgspec.msgpack.Decoder(Checkpoint).decode


def log_name(number: int) -> str:
    return f"{LOG}{number:020d}"


def number_of(name: str) -> int | None:
    """Return the number of an object of the sequence; None for another name."""
    digits = name.removeprefix(LOG)
    return int(digits) if name.startswith(LOG) and len(digits) == 20 and digits.isdigit() else None


def encode(head: Head, body: bytes = b"") -> bytes:
    packed = _encode(head)
    front = _FRONT.pack(MAGIC, FORMAT, len(packed)) + packed
    digest = xxhash.xxh3_64(front)
    digest.update(body)
    return b"".join((front, body, digest.intdigest().to_bytes(8, "little")))  # a body has megabytes: one copy


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    return _encode(checkpoint)


def decode(data: bytes, number: int) -> Object:
    """Return the object. Raise `Damaged` if it is not object `number`, or not whole."""
    name = log_name(number)
    if len(data) < _FRONT.size + 8 or not data.startswith(MAGIC):
        raise Damaged(f"{name} is no object of a replica")
    _, version, size = _FRONT.unpack_from(data)
    if version > FORMAT:
        raise Damaged(f"{name} has format {version}, and this version knows {FORMAT}; use a newer version of topics")
    if sum64(memoryview(data)[:-8]) != int.from_bytes(data[-8:], "little"):
        raise Damaged(f"{name} is damaged: its checksum is wrong")
    try:
        head = _decode_head(data[_FRONT.size : _FRONT.size + size])
    except msgspec.MsgspecError as error:
        raise Damaged(f"{name} has an unknown head ({error})") from error
    if head.number != number:
        raise Damaged(f"{name} has the bytes of object {head.number}")
    if head.stored > FORMAT_VERSION:
        raise Damaged(
            f"{name} has data in format {head.stored}, and formats up to {FORMAT_VERSION} are known; "
            "use the version of topics that wrote it, or a newer one"
        )
    return Object(head, data[_FRONT.size + size : -8])


def pieces_of(found: Object) -> list[tuple[int, int, bytes]]:
    """Return the number of the log file, the offset and the bytes of each piece."""
    parts, at = [], 0
    for number, offset, size in found.head.pieces:
        parts.append((number, offset, found.body[at : at + size]))
        at += size
    return parts


def encode_identity(replica_id: str) -> bytes:
    return msgspec.json.encode(Identity(FORMAT, replica_id)) + b"\n"


def decode_identity(data: bytes) -> Identity:
    """Return the identity of a replica. Raise `Damaged` if another program wrote the object."""
    try:
        found = msgspec.json.decode(data, type=Identity)
    except msgspec.MsgspecError as error:
        raise Damaged(f"the object `{REPLICA}` is not ours ({error}); choose another prefix") from error
    if found.format > FORMAT:
        raise Damaged(f"the replica has format {found.format}, and this version knows {FORMAT}; use a newer version")
    return found


def read_promote(data: bytes | None) -> Promote | None:
    """Return the request in an object; None if there is none that can be read."""
    try:
        return None if data is None else msgspec.json.decode(data, type=Promote)
    except msgspec.MsgspecError:
        return None


def shown_time(at_ms: int) -> str:
    """Return a time of an object as people read it."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
