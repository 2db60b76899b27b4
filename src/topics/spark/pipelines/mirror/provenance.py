"""The provenance of a mirrored record, in its meta. Bytes in, bytes out.

The meta of a copy lists the servers and topics that the record was in, oldest first; its other members stay:

    {"trace": "abc", "_topics_mirror": [{"at": "5f0c…", "topic": "shop.orders", "epoch": 1794715944778, "seq": 17, …}]}

The first entry is where the record was written, the last one where the copy was taken from. A record is not copied to a
topic of a server that is in its list. This ends the loops of mirrors, with or without a `node`.

Routers, `replay` and `compact` copy the meta of a record to the records that they derive from it, the list included. A
derived record was not in these topics itself. It is recognised by its topic, which differs from the last entry.

A record that reports a gap (`"kind": "gap"` beside the list) has the last lost seq as `to`. The first record after the
gap reports it again, as `lost`: if the target has a cap, the gap record is older than the records after it and is
evicted first.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType

from topics.model import surrogates
from topics.spark.pipelines.run import delivery

KEY = "_topics_mirror"
_MARK = f'"{KEY}"'.encode()


class LostSeqs(Struct, frozen=True, kw_only=True):
    """Lost seqs of the source, both ends inclusive."""

    gap_from: int
    gap_to: int
    reason: str


class Hop(Struct, frozen=True, kw_only=True):
    """One server that a record was on, with its topic, epoch and seq there."""

    at: str  # the server's id
    topic: str | UnsetType = UNSET  # missing in copies by earlier releases: then it is the topic of the record
    epoch: int
    seq: int
    ts: int | UnsetType = UNSET  # when it was committed there
    to: int | UnsetType = UNSET
    lost: LostSeqs | UnsetType = UNSET  # the gap right before it on that server

    def was_in(self, topic: str) -> bool:
        return isinstance(self.topic, UnsetType) or self.topic == topic

    @property
    def last(self) -> int:
        return self.seq if isinstance(self.to, UnsetType) else self.to


_decode_hops = msgspec.json.Decoder(list[Hop]).decode


def hops_of(meta: bytes | None) -> list[Hop]:
    """Return the servers that the record was on; an empty list if it was written here, or the entry is invalid."""
    if meta is None or _MARK not in meta:
        return []
    try:
        found = surrogates.members(meta).get(KEY)
        return [] if found is None else _decode_hops(found)
    except msgspec.MsgspecError:
        return []


def is_copy(hops: list[Hop], topic: str) -> bool:
    """Return whether a record with this list was mirrored to its topic, and not derived there from a mirrored one."""
    return bool(hops) and hops[-1].was_in(topic)


def stamped(meta: bytes | None, hops: list[Hop]) -> bytes:
    """Return the meta with this list."""
    return delivery.stamped(meta, KEY, hops)
