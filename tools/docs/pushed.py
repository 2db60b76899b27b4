"""The events of streams and the messages of a WebSocket from the server, for the reference pages and for checks.

The server renders records into these by hand. A test decodes what a real server sends as these types.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from topics.model.queue import ClaimedJob
from topics.model.topic import U64
from topics.model.watch import PublishAck, RequestId, WatchedTopic
from topics.model.wire import Record


class RecordEvent(Struct, forbid_unknown_fields=True):
    """New records of one topic, in order. The id of the event is the position of the whole session after them."""

    topic: str
    records: Annotated[list[Record], "one or more records in the order of their seqs"]
    from_seq: Annotated[U64, "the position before these records"]
    to_seq: Annotated[U64, "the position after these records: where to resume"]
    head_seq: U64


class TombstoneEvent(Struct, forbid_unknown_fields=True):
    """Records were lost before they were delivered. Delivery goes on after them."""

    topic: str
    reason: Annotated[
        str, "why; `from_seq_too_old` if the gap was there when an event stream began: then `cause` says why"
    ]
    gap_from: U64
    gap_to: U64
    missed_estimate: Annotated[U64, "how many records this reader missed at most"]
    earliest_seq: U64
    head_seq: U64
    cause: Annotated[str | UnsetType, "why, if `reason` is `from_seq_too_old`; absent otherwise"] = UNSET


class CaughtUpEvent(Struct, forbid_unknown_fields=True):
    """All records of the topic up to its head are delivered. What follows is live."""

    topic: str
    head_seq: U64


class TopicDeletedEvent(Struct, forbid_unknown_fields=True):
    """The topic was deleted while it was watched. The other topics go on."""

    topic: str
    head_seq: Annotated[U64, "the last seq that the topic had"]
    reason: Annotated[str, "`deleted`"]


class JobEvent(ClaimedJob, kw_only=True):
    """One leased job, in the stream of `GET /v0/topics/{topic}/work`. The id of the event is the seq of the job."""

    topic: str


class ErrorEvent(Struct, forbid_unknown_fields=True):
    """A problem of the stream. It has no id.

    The server closes the stream after it, unless the problem passes: delivery is paused, or jobs cannot be claimed now.
    """

    code: Annotated[int, "an HTTP status"]
    error: Annotated[str, "an explanation for people; may change"]
    topic: Annotated[str | UnsetType, "the queue that was deleted"] = UNSET
    topics: Annotated[list[str] | UnsetType, "the topics whose delivery is paused"] = UNSET
    retry_after_ms: int | UnsetType = UNSET


EVENTS: dict[str, type[Struct]] = {
    "record": RecordEvent,
    "tombstone": TombstoneEvent,
    "caught-up": CaughtUpEvent,
    "topic-deleted": TopicDeletedEvent,
    "job": JobEvent,
    "error": ErrorEvent,
}


class Answered(Struct, kw_only=True, forbid_unknown_fields=True):
    """What every answer to a command may have."""

    request_id: Annotated[RequestId | UnsetType, "that of the command; absent if it had none"] = UNSET
    warnings: list[str] | UnsetType = UNSET


class Subscribed(Answered, tag_field="op", tag="subscribed"):
    """The answer to `subscribe`."""

    topics: Annotated[dict[str, WatchedTopic], "the position of each topic that is delivered now"]


class Unsubscribed(Answered, tag_field="op", tag="unsubscribed"):
    """The answer to `unsubscribe`."""

    topic: Annotated[str, "the topic, or the pattern"]


class Committed(Answered, tag_field="op", tag="committed"):
    """The answer to `commit`."""

    topic: str
    consumer: str
    seq: Annotated[U64, "the position of the consumer"]


class Pong(Answered, tag_field="op", tag="pong"):
    """The answer to `ping`."""


class SocketError(Answered, tag_field="op", tag="error"):
    """A command failed, or delivery is paused. The connection stays open, unless it is closed for this reason."""

    code: str
    message: str
    detail: dict[str, Any] | UnsetType = UNSET
    topics: Annotated[list[str] | UnsetType, "the topics whose delivery is paused, or that are not delivered"] = UNSET
    retry_after_ms: int | UnsetType = UNSET


ANSWERS: dict[str, type[Struct]] = {
    "subscribed": Subscribed,
    "unsubscribed": Unsubscribed,
    "ack": PublishAck,
    "committed": Committed,
    "pong": Pong,
    "error": SocketError,
}
# The other messages are the events of the same names: `op` is "record", "tombstone", "caught_up" or "topic_deleted".
DELIVERIES: dict[str, type[Struct]] = {
    name.replace("-", "_"): kind for name, kind in EVENTS.items() if name not in ("job", "error")
}
