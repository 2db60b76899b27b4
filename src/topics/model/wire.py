"""Answers of `/v0`, as types: what the OpenAPI document shows, and what the cold half of the handlers encodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from topics.errors import Code, TopicsError, invalid
from topics.model.choices import choices
from topics.model.topic import U64, TopicConfig

Json = Annotated[Any, Meta(description="any JSON value")]

# Of a request that is no write. The largest that can be right, a delete of 10,000 seqs, has a fifth of that; to decode
# this much takes 15 ms at most.
MAX_PLAIN_BODY_BYTES = 1 << 20


class Performance(Struct, omit_defaults=True):
    """Where the time of this request went. Any subset may be there."""

    server_total_ms: float
    wal_append_ms: float | None = None
    fsync_ms: float | None = None
    records_scanned: int | None = None
    throttle_wait_ms: float | None = None


class ErrorBody(Struct):
    code: str
    message: str
    detail: dict[str, Json] | None = None


class ErrorAnswer(Struct):
    """Every answer that is not a success."""

    error: ErrorBody
    performance: Performance | None = None


class Record(Struct, rename={"seq": "$seq", "ts": "$ts", "node": "$node", "tag": "$tag"}):
    """One immutable event as readers see it."""

    seq: U64
    ts: U64
    data: Json
    node: str | None = None
    tag: str | None = None
    meta: dict[str, Json] | None = None


class TombstoneAnswer(Struct):
    """A range of seqs that was lost without anybody asking for it; both ends inclusive."""

    gap_from: U64
    gap_to: U64
    reason: str
    missed_estimate: U64
    earliest_seq: U64
    head_seq: U64


class TopicPut(Struct):
    topic: str
    created: bool
    epoch: U64
    config: TopicConfig
    performance: Performance


class QueueCounts(Struct, omit_defaults=True):
    """`dead_letter_error` says why jobs wait to be moved to the dead-letter topic."""

    ready: U64
    in_flight: U64
    dead_lettered: U64
    delayed: U64
    dead_letter_error: str | None = None


class ArchiveStanding(Struct):
    """How a topic stands to its archive: live records that it lacks, those of them past their TTL (kept by `hold`
    alone), and how many a cap took, against `hold`, before they were archived.
    """

    unarchived: U64
    overdue: U64
    evicted: U64


class ArchivedRequest(Struct, kw_only=True):
    """An archive has every record of this life of the topic up to `seq`, and deletes those up to `trimmed_seq`."""

    seq: U64
    epoch: U64
    trimmed_seq: U64 = 0


class ArchivedAnswer(Struct):
    """What counts as archived now; `moved` tells whether that is more than before."""

    topic: str
    epoch: U64
    archived_seq: U64
    head_seq: U64
    moved: bool
    performance: Performance


class TopicState(Struct, omit_defaults=True):
    topic: str
    type: str
    epoch: U64
    head_seq: U64
    earliest_seq: U64
    next_seq: U64
    count: U64
    bytes: U64
    config: TopicConfig
    effective_priority: int
    last_write_ts: U64 | None
    last_read_ts: U64 | None
    performance: Performance
    queue: QueueCounts | None = None
    archived_seq: U64 | None = None
    trimmed_seq: U64 | None = None
    archive: ArchiveStanding | None = None


class TopicSummary(Struct):
    topic: str
    type: str
    epoch: U64
    head_seq: U64
    earliest_seq: U64
    count: U64
    bytes: U64
    durable: bool
    effective_priority: int


class TopicList(Struct, omit_defaults=True):
    topics: list[TopicSummary]
    performance: Performance
    next_cursor: str | None = None


class TopicDropped(Struct):
    topic: str
    deleted: bool
    routers_removed: list[str]
    performance: Performance


class Written(Struct):
    """Where a write landed; `seqs` is left out when asked for."""

    topic: str
    first_seq: U64
    last_seq: U64
    head_seq: U64
    count: U64
    created: bool
    deduped: bool
    performance: Performance
    seqs: list[U64] | None = None


class Diff(Struct):
    topic: str
    epoch: U64
    records: list[Record]
    next_from_seq: U64
    head_seq: U64
    earliest_seq: U64
    caught_up: bool
    tombstone: TombstoneAnswer | None
    lag: U64
    performance: Performance


class RecordsDeleted(Struct, omit_defaults=True):
    """State of the topic after a delete. With `dry_run` nothing went: `deleted` says how many would have."""

    topic: str
    deleted: U64
    earliest_seq: U64
    head_seq: U64
    count: U64
    bytes: U64
    performance: Performance
    dry_run: bool = False


class Health(Struct):
    status: Literal["ok"]
    version: str
    uptime_ms: U64
    performance: Performance


class Ready(Struct):
    status: Literal["ready"]
    wal_replay_complete: bool
    topics: U64
    performance: Performance


Rescue = Callable[[msgspec.json.Decoder[Any], bytes], Any]


def decode_body(decoder: msgspec.json.Decoder[Any], body: bytes, rescue: Rescue | None = None) -> Any:
    """A request body as its type, or `invalid_request` with the field at fault.

    The decoder checks the syntax of parts it keeps as raw bytes but not their encoding, so that is checked here.
    `rescue` may know better than the decoder; it gives None where it does not. Raises `payload_too_large` for a body
    that would take long to decode and cannot be right: only the bodies of writes may be larger, and come elsewhere.
    """
    if len(body) > MAX_PLAIN_BODY_BYTES:
        raise TopicsError(
            Code.PAYLOAD_TOO_LARGE,
            f"the body of this request has {len(body)} bytes; the limit is {MAX_PLAIN_BODY_BYTES}",
            detail={"max": MAX_PLAIN_BODY_BYTES},
        )
    if not body.isascii():
        check_text(body)
    try:
        try:
            return decoder.decode(body or b"{}")
        except msgspec.DecodeError:
            if rescue is None or (rescued := rescue(decoder, body)) is None:
                raise
            return rescued
    except (msgspec.MsgspecError, RecursionError) as error:
        raise decode_error(error, decoder.type) from None


def check_text(body: bytes) -> None:
    """Raise `invalid_request` unless the body is UTF-8."""
    try:
        if not body.isascii():
            body.decode()
    except UnicodeDecodeError as error:
        raise invalid(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None


def decode_error(error: Exception, request_type: Any) -> TopicsError:
    """Return the `invalid_request` for an exception of the decoder of `request_type`."""
    if isinstance(error, msgspec.ValidationError):
        return _wrong_type(error, request_type)
    if isinstance(error, RecursionError):
        return invalid("the body is nested too deeply")
    return invalid(f"the body is not valid JSON: {error}")


_PART_OF_MATCH = re.compile(r"\b(match|filter)\[.*")  # a client gives these as a whole


_NOT_A_CHOICE = re.compile(r"Invalid (?:enum )?value (.*)")


def _wrong_type(error: msgspec.ValidationError, request_type: Any) -> TopicsError:
    """Return the error for a message of msgspec.

    It has the form `Expected …, got … - at `$.path``, or names a missing field of the object at that path.
    """
    what, _, where = str(error).partition(" - at `$")
    path = _PART_OF_MATCH.sub(r"\1", where.rstrip("`").lstrip("."))
    if "missing required field" in what:
        missing = what.split("`")[1]
        path = f"{path}.{missing}" if path else missing
        return invalid(f"{path} is required", field=path)
    name = path or "the body"
    if (given := _NOT_A_CHOICE.fullmatch(what)) is not None and (allowed := choices(request_type, where)):
        return invalid(f"{name} must be one of {', '.join(allowed)}, not {given[1]}", field=path or None)
    return invalid(f"{name}: {_in_plain_words(what)}", field=path or None)


_WORDS = {
    "`str": "`string", "`int": "`whole number", "`bool": "`true or false", "`float": "`number",
    "| str": "| string", "| int": "| whole number", "| bool": "| true or false", "| ": "or ",
}  # fmt: skip


def _in_plain_words(what: str) -> str:
    """The decoder speaks of Python's types; a client knows JSON's."""
    for theirs, plain in _WORDS.items():
        what = what.replace(theirs, plain)
    return what[:1].lower() + what[1:].replace("`", "")


def check_u64(value: int, field: str) -> int:
    if value > 2**64 - 1:
        raise invalid(f"{field} does not fit in 64 bits", field=field)
    return value
