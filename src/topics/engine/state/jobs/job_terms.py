"""Terms of a job: the priority and the earliest time that its producer asked for."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from topics.errors import TopicsError, invalid
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
    asked = [
        at
        for at, record in enumerate(records)
        if record.priority is not None or record.delay_ms is not None or record.deliver_at is not None
    ]
    if not asked:
        return None
    found = {}
    for at in asked:
        terms = Terms(records[at].priority or 0, _due_ms(records[at], at, ts))
        if terms.priority or terms.due_ms > ts:
            found[at] = pack_terms(terms)
    return found


def _due_ms(record: NewRecord, at: int, ts: int) -> int:
    if record.delay_ms is not None and record.deliver_at is not None:
        raise invalid("a job takes delay_ms or deliver_at, not both", field=f"records[{at}].deliver_at")
    if record.delay_ms is not None:
        due_ms, field = ts + record.delay_ms, "delay_ms"
    else:
        due_ms, field = record.deliver_at or 0, "deliver_at"
    if due_ms > MAX_DELIVER_AT:
        raise invalid(f"{field} is too far away", field=f"records[{at}].{field}")
    return due_ms


def only_for_queues() -> TopicsError:
    return invalid("priority, delay_ms and deliver_at are for jobs: the topic is a log", field="records")
