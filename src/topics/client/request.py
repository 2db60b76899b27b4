"""Answers of `/v0` as `Client` returns them. No I/O."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from topics.client.items import End, Page, Tombstone, decode_json, decode_records
from topics.client.items import TopicPut as Put
from topics.client.items import TopicState as State
from topics.model.router import RouterAnswer as Router
from topics.model.wire import TopicSummary as Summary
from topics.model.wire import Written

__all__ = ["Diff", "End", "Put", "Record", "Router", "State", "Summary", "Tombstone", "Written"]


class Record(Struct, rename={"seq": "$seq", "ts": "$ts", "node": "$node", "tag": "$tag", "key": "$key"}):
    """One record. `data` and `meta` are JSON text; `value` decodes `data`."""

    seq: int
    ts: int
    data: Raw
    node: str | None = None
    tag: str | None = None
    meta: Raw | msgspec.UnsetType = msgspec.UNSET
    key: str | None = None

    @property
    def value(self) -> Any:
        return decode_json(self.data)


class Diff(Page, kw_only=True):
    """One answer of `diff`."""

    records: list[Record]  # type: ignore[assignment]  # in another form
    lag: int


_decoder = msgspec.json.Decoder(Diff)


def diff_answer(body: bytes) -> Diff:
    answer = decode_records(_decoder, body, ("data", "meta"))
    if answer.tombstone is not None:
        answer.tombstone.epoch = answer.epoch
    return answer
