"""Answers of `/v0` as `Client` returns them. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct, structs

from topics.model import surrogates
from topics.model.topic import ArchiveConfig, TopicConfig
from topics.model.wire import Written as Written

__all__ = ["Diff", "End", "Put", "Record", "Router", "State", "Summary", "Tombstone", "Written"]


class Record(Struct, rename={"seq": "$seq", "ts": "$ts", "node": "$node", "tag": "$tag"}):
    """One record. `data` and `meta` are JSON text; `value` decodes `data`."""

    seq: int
    ts: int
    data: Raw
    node: str | None = None
    tag: str | None = None
    meta: Raw | msgspec.UnsetType = msgspec.UNSET

    @property
    def value(self) -> Any:
        return surrogates.value(self.data)


class Tombstone(Struct):
    """A lost range, both ends inclusive: evicted, expired or corrupt, not deleted on request."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int = 0
    earliest_seq: int = 0
    head_seq: int = 0
    epoch: int = 0  # the epoch that the reader continues with, if the answer contains it


class KnownArchive(ArchiveConfig, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The archive settings of a topic that this client knows. A newer server may have others."""


class KnownConfig(TopicConfig, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The settings of a topic that this client knows. A newer server may have others."""

    archive: KnownArchive | None = None


class State(Struct):
    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: KnownConfig
    type: str = "log"
    effective_priority: int = 0
    last_write_ts: int | None = None
    last_read_ts: int | None = None
    archived_seq: int | None = None
    trimmed_seq: int | None = None


class Summary(Struct):
    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    type: str = "log"


class Put(Struct):
    topic: str
    created: bool
    epoch: int
    config: KnownConfig


class Diff(Struct):
    topic: str
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int
    epoch: int = 0
    tombstone: Tombstone | None = None


class Router(Struct):
    """A router. Those of a list have no filter and no `preserve_*`."""

    router: str
    source: str
    dest: str
    guarantee: str
    cursor: int
    lag: int
    last_error: str | None = None
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: list[str] | None = None


class End(Struct):
    """The end of a bulk read: every seq up to `next_from_seq` was delivered, reported as lost, deleted or filtered."""

    next_from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int


_decode_diff = msgspec.json.Decoder(Diff).decode


def diff_answer(body: bytes) -> Diff:
    """Decode the answer of `diff`. Half surrogate pairs, which the decoder rejects, are masked and then restored."""
    try:
        answer = _decode_diff(body)
    except msgspec.DecodeError:
        masked = surrogates.mask(body)
        if masked is None:
            raise
        answer = _decode_diff(masked.text)
        for record in answer.records:
            record.data = masked.restore(record.data)
            if not isinstance(record.meta, msgspec.UnsetType):
                record.meta = masked.restore(record.meta)
    if answer.tombstone is not None:
        answer.tombstone.epoch = answer.epoch
    return answer


def upto(items: Iterable[Record | Tombstone], last: int) -> Iterator[Record | Tombstone]:
    """Yield the items of a read up to the seq `last`, without reading further. A gap across `last` is clipped."""
    for item in items:
        if isinstance(item, Record):
            if item.seq > last:
                return
        elif item.reason != "recreated":  # which reports a new epoch, not a range
            if item.gap_from > last:
                return
            if item.gap_to > last:
                missed = min(item.missed_estimate, last - item.gap_from + 1)
                item = structs.replace(item, gap_to=last, missed_estimate=missed)
        yield item
