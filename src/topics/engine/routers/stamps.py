"""Stamps in the `meta` of `exactly_once` copies, and the search for them in a destination. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from topics.engine.routers.source_records import BATCH_RECORDS, read_ahead
from topics.engine.state.topic import Topic
from topics.model import surrogates
from topics.model.nesting import decode_again
from topics.model.record_bytes import (
    meta_of,
)
from topics.model.router import STAMP
from topics.storage.segments.segment import Segment


class Stamp(Struct):
    """The origin of an `exactly_once` copy."""

    router: str
    source: str
    epoch: int
    seq: int
    key: str


_decode_stamp = msgspec.json.Decoder(Stamp).decode


class Stamps:
    """The stamps in a destination. The search looks at all of its records, and continues where it stopped."""

    def __init__(self, dest: Topic) -> None:
        self._dest = dest
        self._upto = 0  # the last seq that was looked at
        self._found: dict[str, tuple[int, ...]] = {}  # by key: a writer may have put the same one into several records

    def has(self, key: str) -> bool:
        """Return whether a live record has the key."""
        return any(map(self._dest.is_live, self._found.get(key, ())))

    def look_on(self) -> None:
        """Look at new records of the destination. Raises `Cold`; the next call continues where this one stopped."""
        dest = self._dest
        for segment, low, high in dest.spans(max(self._upto + 1, dest.earliest), dest.head + 1):
            if segment.live and segment.columns.metas is not None:
                for at in range(low, high, BATCH_RECORDS):
                    self._look_at(segment, at, min(at + BATCH_RECORDS, high))
            self._upto = segment.first + high - 1

    def _look_at(self, segment: Segment, low: int, high: int) -> None:
        columns = segment.columns
        metas = columns.metas
        assert metas is not None
        ats = [at for at in segment.live_positions(low, high).tolist() if metas[at]]
        if ats:
            base = columns.offsets[ats[0]]
            block = read_ahead(segment, ats[0], ats[-1] + 1)
            for at in ats:
                row = bytes(block[columns.offsets[at] - base : columns.offsets[at + 1] - base])
                meta = meta_of(row, metas[at])
                if b"_topics_router" in meta:
                    for key in _key_in(meta):
                        self._found[key] = (*self._found.get(key, ()), segment.first + at)
        self._upto = segment.first + high - 1


def _key_in(meta: bytes) -> Iterator[str]:
    """Yield the key of a stamp. A client may have written anything under that name: skip what is no stamp."""
    raw = surrogates.members(meta).get(STAMP)
    if raw is not None:
        try:
            yield decode_again(_decode_stamp, raw).key
        except msgspec.MsgspecError:
            return
