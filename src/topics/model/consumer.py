"""Named consumers: their requests, their answers, and the limits of their fields."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Struct, UnsetType

from topics.errors import Code, TopicsError, invalid
from topics.model.topic import U64
from topics.model.wire import Json, Performance

MAX_META_BYTES = 1024
MAX_GAPS = 100  # ranges of lost records in one answer


class ConsumerRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `PUT /v0/topics/:topic/consumers/:consumer`. An omitted field keeps its value."""

    seq: Annotated[
        U64 | UnsetType,
        "the position: every record up to this seq is processed; at most the head; a new consumer begins at 0",
    ] = UNSET
    epoch: Annotated[U64 | None, "change the consumer only if the topic has this epoch, else 409"] = None
    if_seq: Annotated[
        U64 | UnsetType | None,
        "change the consumer only if it is at this seq, else 409; null: only if it does not exist",
    ] = UNSET
    meta: Annotated[dict[str, Json] | UnsetType | None, "any object of at most 1024 bytes"] = UNSET
    expire_ms: U64 | UnsetType = UNSET  # forget it after so long without use; 0 is never
    hold: Annotated[
        bool | UnsetType, "let the caps evict no records that this consumer has not read; needs the scope `admin`"
    ] = UNSET
    max_hold_bytes: U64 | UnsetType = UNSET


class Commit(Struct, forbid_unknown_fields=True, gc=False):
    """One consumer has processed every record up to `seq`."""

    topic: str
    consumer: str
    seq: Annotated[U64, "every record up to this seq is processed"]


class CommitRequest(Struct, forbid_unknown_fields=True):
    """Body of `POST /v0/consumers`: commits of consumers of any topics, each by itself."""

    commits: Annotated[list[Commit], "1 to 10000 commits, each by itself"]


class RefusedCommit(Struct):
    """A commit that changed nothing, and why."""

    topic: str
    consumer: str
    code: Annotated[str, "the name of the error"]
    message: Annotated[str, "an explanation for people"]


class CommitAnswer(Struct):
    """How many commits took effect, or had before, and those that did not."""

    committed: Annotated[U64, "the number of commits that took effect, or had before"]
    refused: Annotated[list[RefusedCommit], "the commits that changed nothing"]
    performance: Performance


class ConsumerPut(Struct):
    """A consumer after a change."""

    topic: str
    consumer: str
    created: bool
    epoch: Annotated[U64, "the epoch that the position belongs to; changes when the topic is created again or restored"]
    seq: U64
    head_seq: U64
    performance: Performance


class Gap(Struct):
    """A range of lost records, both ends inclusive."""

    gap_from: U64
    gap_to: U64
    reason: str


class Lost(Struct):
    """Records behind the position that were lost: how many, and where, at most the first 100 ranges."""

    records: Annotated[U64, "how many"]
    gaps: Annotated[list[Gap], "the ranges, at most the first 100"]


class LastRead(Struct):
    """Who has read as a consumer or committed its position last, since the server started."""

    key: Annotated[str | None, "the name of the key; null on a server without keys"]
    address: Annotated[str | None, "where from; only for keys with `admin`"]
    client: Annotated[str, "its `User-Agent`"]
    at_ms: Annotated[U64, "when the request arrived"]


class ConsumerSummary(Struct):
    """A consumer of a topic: its position, and how far it is behind."""

    topic: str
    consumer: str
    epoch: Annotated[U64, "the epoch that the position belongs to; changes when the topic is created again or restored"]
    seq: U64
    head_seq: U64
    lag_records: U64
    lag_ms: U64  # age of the oldest unread record
    lost: Lost | None
    meta: Annotated[msgspec.Raw | None, "the object that was stored with the consumer"]
    expire_ms: U64
    hold: Annotated[bool, "whether the caps evict no records that this consumer has not read"]
    max_hold_bytes: U64
    updated_ms: U64  # when the position or a field was last stored
    last_read: Annotated[LastRead | None, "who has read or committed last; null if nobody has since the server started"]


class ConsumerState(ConsumerSummary):
    """The state of a consumer."""

    performance: Performance


class ConsumerList(Struct, omit_defaults=True):
    """A page of consumers, by topic and name."""

    consumers: Annotated[list[ConsumerSummary], "a page of consumers by topic and name"]
    performance: Performance
    next_cursor: str | None = None


class ConsumerDropped(Struct):
    topic: str
    consumer: str
    deleted: Annotated[bool, "whether the consumer existed"]
    performance: Performance


def encode_meta(meta: dict[str, Json] | None) -> bytes | None:
    """Return the stored form of `meta`. Raise `invalid_request` if it is too large."""
    if meta is None:
        return None
    try:
        text = msgspec.json.encode(meta)
    except (RecursionError, OverflowError):
        raise invalid("meta is nested too deeply, or has a number that is too large", field="meta") from None
    if len(text) > MAX_META_BYTES:
        raise invalid(f"meta is {len(text)} bytes long; the limit is {MAX_META_BYTES}", field="meta")
    return text


def consumer_not_found(topic: str, name: str) -> TopicsError:
    return TopicsError(
        Code.CONSUMER_NOT_FOUND, f'topic "{topic}" has no consumer "{name}"', detail={"topic": topic, "consumer": name}
    )


def consumer_moved(topic: str, name: str, seq: int | None) -> TopicsError:
    """Return the error of a compare-and-set: the consumer is at `seq`; None if it does not exist."""
    where = "does not exist" if seq is None else f"is at {seq}"
    return TopicsError(
        Code.CONSUMER_MOVED,
        f'consumer "{name}" of topic "{topic}" is not where if_seq says: it {where}; read on from there',
        detail={"topic": topic, "consumer": name, "seq": seq},
    )
