"""Where a mirrored record has been, in its meta. Bytes in, bytes out.

A copy carries the servers and topics it was in, oldest first, under a key of our own; all else in its meta stays:

    {"trace": "abc", "_topics_mirror": [{"at": "5f0c…", "topic": "shop.orders", "epoch": 1794715944778, "seq": 17, …}]}

The first entry is where the record was written, the last one where the copy was taken from. A record goes to no topic
of a server that is in its list: that ends a mirror's loops, with or without a `node`, and whoever else writes there.

Routers, `replay` and `compact` write the meta of a record into the new ones that they make of it, the list included.
Such a record was in none of those places itself, and the topic tells: its own is another than that of the list's end.

A record that tells of a loss (`"kind": "gap"` beside the list) has the last seq it stands for as `to`. The first record
behind the loss tells of it once more, as `lost`: where the target has a cap, the record that stands for the loss is
older than all that came behind it and goes first.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType

from topics.model import surrogates
from topics.spark.pipelines.run import delivery

KEY = "_topics_mirror"
_MARK = f'"{KEY}"'.encode()


class LostSeqs(Struct, frozen=True, kw_only=True):
    """Seqs of the source that are gone, both ends inclusive."""

    gap_from: int
    gap_to: int
    reason: str


class Hop(Struct, frozen=True, kw_only=True):
    """One server that a record was on, and where it stood there."""

    at: str  # the server's id
    topic: str | UnsetType = UNSET  # copies of earlier versions do not say; they count as of the topic they are in
    epoch: int
    seq: int
    ts: int | UnsetType = UNSET  # when it was committed there
    to: int | UnsetType = UNSET
    lost: LostSeqs | UnsetType = UNSET  # what was lost there right before it

    def was_in(self, topic: str) -> bool:
        return isinstance(self.topic, UnsetType) or self.topic == topic

    @property
    def last(self) -> int:
        return self.seq if isinstance(self.to, UnsetType) else self.to


_decode_hops = msgspec.json.Decoder(list[Hop]).decode


def hops_of(meta: bytes | None) -> list[Hop]:
    """Where the record has been. Empty for one that was written where it is; what is not ours is taken for absent."""
    if meta is None or _MARK not in meta:
        return []
    try:
        found = surrogates.members(meta).get(KEY)
        return [] if found is None else _decode_hops(found)
    except msgspec.MsgspecError:
        return []


def is_copy(hops: list[Hop], topic: str) -> bool:
    """Whether a record with this list was mirrored to the topic it is in, and not made there of one that was."""
    return bool(hops) and hops[-1].was_in(topic)


def stamped(meta: bytes | None, hops: list[Hop]) -> bytes:
    """The meta with this list in it."""
    return delivery.stamped(meta, KEY, hops)
