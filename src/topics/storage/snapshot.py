"""Snapshots: the state of all topics without their records, at one point of the log. Pure: no files, no clock.

    offset  size  field
    0       8     magic    b"TOPICSNP"
    8       4     version  u32 LE; 1
    12      4     zero
    16      8     size     u64 LE; n
    24      n     body     MessagePack of `Snapshot`
    24+n    8     sum      u64 LE; XXH3-64 of everything before

The file holds this twice: without a snapshot the topics of the records are unknown, so one copy is not enough.

The records are in segments. A topic with too few records for a file of its own has them in the tails file of the same
or an earlier number: segments as in `segment.py`, one after the other, found by offset and size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import xxhash
from msgspec import Struct
from msgspec.structs import astuple

from topics.errors import Corrupt, UnknownFormat
from topics.model.topic import TopicConfig
from topics.storage.fs import reader_of
from topics.storage.worker import INLINE, Worker, rested

MAGIC = b"TOPICSNP"
# in `Snapshot.extra`: when this directory was restored from a backup, in ms; the first start of a server removes it
RESTORED = "restored"
# in `Snapshot.extra`: the time of the last object of a replica that this directory was restored from, in ms; the same
FAILOVER = "failover"
# in `Snapshot.extra`: the number of a ledger that was written before the snapshot, or True for its own number
LEDGER = "ledger"
# in `Snapshot.extra`: frames of log entries that waited for the replica; they take effect behind the rest
WAITING = "waiting"
COPIED_BOOT_ID = "copied"  # of a snapshot that another machine may have written
VERSION = 1
TOPICS_A_PART = 64
KEYS_A_PART = 4096
MAX_CONFIGS = 1000  # that `unpack` remembers
READ_BYTES = 1 << 20
_HEADER = struct.Struct("<8sIIQ")


class SegmentRef(Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """One sealed segment. `pending` are marks (u32 position, then 0x01 deleted or 0x02 lost) that its file may lack."""

    first: int
    count: int
    live: int
    live_bytes: int
    footer: tuple[int, ...]  # the fields of `segment.Footer`
    cold: bool = False
    pending: bytes = b""

    @property
    def generation(self) -> int:
        """How often the segment was rewritten: a part of the name of its file."""
        return self.footer[0] >> 8


class TailRef(Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """The records of a topic that has too few for a file of its own."""

    tails: int  # number of the tails file
    offset: int
    size: int
    opened_ms: int
    live: int
    live_bytes: int


class TopicSnapshot(Struct, array_like=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """One topic. `engine.state.topic.Topic` explains the fields."""

    topic_id: int
    name: str
    epoch: int
    config: TopicConfig
    head: int
    earliest: int
    evict_floor: int
    lost_ts: int
    last_ts: int
    last_write_ts: int | None
    ceiling: int
    count: int
    bytes: int
    losses: tuple[tuple[int, int, str], ...]
    keys: tuple[tuple[str, int, int, int], ...]
    segments: tuple[SegmentRef, ...]
    tail: TailRef | None = None
    extra: dict[str, msgspec.Raw] = {}

    @property
    def tail_first(self) -> int:
        """The seq of the first record that is in no segment."""
        return max([ref.first + ref.count for ref in self.segments] + [self.earliest])


class Snapshot(Struct, array_like=True, kw_only=True, forbid_unknown_fields=True):
    """The state at the beginning of log file `wal_number`."""

    wal_number: int
    boot_id: str
    clean: bool  # written at an orderly stop: nothing follows in the log
    next_topic_id: int
    last_epoch: int
    topics: list[TopicSnapshot]
    extra: dict[str, msgspec.Raw] = {}


class _PackedSnapshot(Snapshot, array_like=True, kw_only=True, forbid_unknown_fields=True):
    topics: list[msgspec.Raw]  # type: ignore[assignment]


class _PackedTopic(TopicSnapshot, array_like=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    config: msgspec.Raw  # type: ignore[assignment]


Encoded = bytes | Callable[[], bytes]  # a part of a file, or what returns it

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Snapshot)
_packed_decoder = msgspec.msgpack.Decoder(_PackedSnapshot)
_topic_decoder = msgspec.msgpack.Decoder(_PackedTopic)
_config_decoder = msgspec.msgpack.Decoder(TopicConfig)


class KeyLists(Struct, gc=False):
    """The idempotency keys of a topic and their writes, each in a list: a row for each key would take more memory."""

    names: list[str]
    writes: list[Any]  # structs of first seq, last seq and time

    def parts(self) -> Iterator[Encoded]:
        """Yield the field `keys` of a topic: the head of the array, then its rows."""
        yield _array_of(len(self.names))
        yield from (partial(self.encode, at) for at in range(0, len(self.names), KEYS_A_PART))

    def encode(self, at: int) -> bytes:
        """Return one part of the rows, from row `at` on."""
        upto = at + KEYS_A_PART
        rows = [(name, *astuple(write)) for name, write in zip(self.names[at:upto], self.writes[at:upto], strict=True)]
        return _encoder.encode(rows)[len(_array_of(len(rows))) :]


def mark_copy(snapshot: Snapshot, *, ledger: int, **since_ms: int) -> None:
    """Mark the snapshot of a copy, whose ledger has this number: with the time of `restored` or of `failover`."""
    snapshot.boot_id = COPIED_BOOT_ID
    for name, value in {LEDGER: ledger, **since_ms}.items():
        snapshot.extra[name] = msgspec.Raw(_encoder.encode(value))


def empty() -> Snapshot:
    """Return the empty snapshot of a directory without snapshots. It is the only one with number 0."""
    return Snapshot(wal_number=0, boot_id="", clean=False, next_topic_id=0, last_epoch=0, topics=[])


def ledger_number(snapshot: Snapshot) -> int | None:
    """Return the number of the ledger that must exist beside the snapshot; None if it names none."""
    if LEDGER not in snapshot.extra:
        return None
    number = msgspec.msgpack.decode(snapshot.extra[LEDGER], type=int | bool)
    return snapshot.wal_number if number is True else number


def encode(snapshot: Snapshot) -> bytes:
    topics = ((topic, None) for topic in snapshot.topics)
    return b"".join(encode_parts(snapshot, topics, len(snapshot.topics), INLINE))


def encode_parts(
    snapshot: Snapshot, topics: Iterator[tuple[TopicSnapshot, KeyLists | None]], count: int, worker: Worker
) -> Iterator[bytes]:
    """Yield the whole file in parts, with these topics instead of `snapshot.topics`. Keys beside a topic are its keys.

    With many topics or keys, no single call takes long, and the worker rests in between. Many keys of one topic are
    encoded again in each of four rounds (size, checksum, two copies): to keep the result would take much memory.
    """
    head = (snapshot.wal_number, snapshot.boot_id, snapshot.clean, snapshot.next_topic_id, snapshot.last_epoch)
    parts: list[Encoded] = [b"\x97", *map(_encoder.encode, head), _array_of(count)]  # an array of seven: see `Snapshot`
    while some := list(islice(topics, TOPICS_A_PART)):
        joined = bytearray()
        for topic, keys in some:
            before, after = (_encoder.encode(topic), b"") if keys is None else _around_keys(topic)
            joined += before
            if keys is not None and len(keys.names) > KEYS_A_PART:
                parts += [bytes(joined), *keys.parts()]
                joined.clear()
            elif keys is not None:
                joined += b"".join(_encoded(keys.parts()))
            joined += after
        parts.append(bytes(joined))
        worker.rest()
    parts.append(_encoder.encode(snapshot.extra))
    size_bytes = sum(len(part) for part in rested(worker, _encoded(parts)))
    parts.insert(0, _HEADER.pack(MAGIC, VERSION, 0, size_bytes))
    checksum = xxhash.xxh3_64()
    for part in rested(worker, _encoded(parts)):
        checksum.update(part)
    parts.append(checksum.intdigest().to_bytes(8, "little"))
    for _ in range(2):
        yield from _encoded(parts)


def _encoded(parts: Iterable[Encoded]) -> Iterator[bytes]:
    return (part if isinstance(part, bytes) else part() for part in parts)


def _around_keys(topic: TopicSnapshot) -> tuple[bytes, bytes]:
    """Return the fields of a topic before and after its keys, encoded, with the head of the array before them."""
    values = [_encoder.encode(value) for value in astuple(topic)]
    at = TopicSnapshot.__struct_fields__.index("keys")
    return b"".join([_array_of(len(values)), *values[:at]]), b"".join(values[at + 1 :])


def encode_array(items: Iterable[Any], count: int) -> Iterator[bytes]:
    """Yield the MessagePack array of `count` items, one item at a time."""
    yield _array_of(count)
    yield from map(_encoder.encode, items)


def _array_of(count: int) -> bytes:
    """Return the head of a MessagePack array, in its shortest form."""
    if count < 16:
        return bytes([0x90 | count])
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


def decode(
    data: bytes, *, path: str, number: int | None = None, packed: bool = False, bad: list[int] | None = None
) -> Snapshot:
    """Decode the first copy that is complete. Raise `Corrupt` if neither is, or if it is not snapshot `number`.

    Raise `UnknownFormat` if another version of topics wrote it: its checksum is right. If `packed`, only `unpack`
    reads the topics. `bad` is the result of `damaged_copies`, if that was called.
    """
    half, odd = divmod(len(data), 2)
    bad = damaged_copies(reader_of(data), len(data)) if bad is None else bad
    for copy in (0, half) if not odd and half >= _HEADER.size + 8 else ():
        if copy not in bad:
            snapshot = _decode_one(data[copy : copy + half], path, packed=packed)
            if number is not None and snapshot.wal_number != number:
                raise Corrupt(path, copy, f"the file has the bytes of snapshot {snapshot.wal_number}")
            return snapshot
    raise Corrupt(path, 0, "both copies of a snapshot are damaged or cut short")


def damaged_copies(read: Callable[[int, int], bytes], size_bytes: int) -> list[int]:
    """Return the offsets of the copies that do not match their checksum. `read` takes a size and an offset."""
    half, bad = size_bytes // 2, []
    for start in (0, half):
        checksum, end = xxhash.xxh3_64(), start + half - 8
        for at in range(start, end, READ_BYTES):
            checksum.update(read(min(READ_BYTES, end - at), at))
        if checksum.intdigest() != int.from_bytes(read(8, end), "little"):
            bad.append(start)
    return bad


def _decode_one(data: bytes, path: str, *, packed: bool) -> Snapshot:
    magic, version, _, size = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or size != len(data) - _HEADER.size - 8:
        raise UnknownFormat(f"{path} is not a snapshot of version {VERSION}")
    try:
        return (_packed_decoder if packed else _decoder).decode(memoryview(data)[_HEADER.size : -8])
    except msgspec.MsgspecError as error:
        raise UnknownFormat(f"{path} has unknown parts ({error})") from error


def unpack(snapshot: Snapshot, *, path: str) -> Iterator[TopicSnapshot]:
    """Decode the topics of a packed snapshot one by one. Raise `UnknownFormat` like `decode`.

    All at once would need about as much memory as the engine needs for them. Equal configurations are one object.
    """
    configs: dict[bytes, TopicConfig] = {}
    try:
        for raw in snapshot.topics:
            topic: TopicSnapshot = _topic_decoder.decode(raw)  # type: ignore[arg-type]
            encoded = bytes(topic.config)  # type: ignore[call-overload]
            if (config := configs.get(encoded)) is None:
                if len(configs) == MAX_CONFIGS:
                    configs.clear()
                config = configs[encoded] = _config_decoder.decode(encoded)
            topic.config = config
            yield topic
    except msgspec.MsgspecError as error:
        raise UnknownFormat(f"{path} has unknown parts ({error})") from error
