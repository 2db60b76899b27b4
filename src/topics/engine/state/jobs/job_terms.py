"""Terms of a job: the priority and the earliest time that its producer asked for."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from topics.errors import invalid
from topics.model.queue import MAX_DELIVER_AT
from topics.model.records import NewRecord


class Terms(Struct, array_like=True, frozen=True, gc=False):
    """The terms of a job: its priority, and the time before which it is not delivered (0: at once)."""

    priority: int = 0
    due_ms: int = 0


class Extra(Struct, frozen=True, omit_defaults=True, gc=False):
    """What the engine keeps of a record and no reader sees. Other modules have keys of their own in it."""

    q: Terms | None = None


_encode_extra = msgspec.msgpack.Encoder().encode
_decode_extra = msgspec.msgpack.Decoder(Extra).decode


def pack_terms(terms: Terms) -> bytes:
    return _encode_extra(Extra(terms))


def terms_of(extra: bytes) -> Terms | None:
    """Return the terms of a job out of its extra, if it has terms."""
    try:
        return _decode_extra(extra).q
    except msgspec.MsgspecError:
        return None


def job_terms(records: Sequence[NewRecord], ts: int) -> dict[int, bytes] | None:
    """Return the extras of the jobs that have terms, by position. None if no producer asked for terms."""
    found: dict[int, bytes] | None = None
    for at, record in enumerate(records):
        priority, delay_ms, deliver_at = record.priority, record.delay_ms, record.deliver_at
        if priority is None and delay_ms is None and deliver_at is None:
            continue
        found = found or {}
        if delay_ms is not None and deliver_at is not None:
            raise invalid("a job takes delay_ms or deliver_at, not both", field=f"records[{at}].deliver_at")
        due_ms = (deliver_at or 0) if delay_ms is None else ts + delay_ms
        if due_ms > MAX_DELIVER_AT:
            field = "deliver_at" if delay_ms is None else "delay_ms"
            raise invalid(f"{field} is too far away", field=f"records[{at}].{field}")
        if priority or due_ms > ts:
            found[at] = pack_terms(Terms(priority or 0, due_ms))
    return found
