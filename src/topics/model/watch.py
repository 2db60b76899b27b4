"""Request and response types of watch sessions, and the commands of a WebSocket."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType, structs

from topics.errors import invalid
from topics.model.filters import parse_filter
from topics.model.names import AUDIT, check_topic
from topics.model.records import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_LIMIT,
    MAX_BATCH_BYTES,
    CommitWire,
    FilterWire,
    PlainRecord,
    Projection,
    TagMatch,
    WriteRequest,
    node_set,
)
from topics.model.topic import U64, U64_MAX
from topics.model.wire import Performance, check_u64

DEFAULT_FRAME_BYTES = 256 << 10
DEFAULT_HEARTBEAT_MS = 15_000
HEARTBEAT_MS_RANGE = (1000, 60_000)

Consistency = Literal["eventual", "strong"]
RequestId = str | int | None

_Epoch = Annotated[
    U64 | None,
    "the epoch that `from_seq` belongs to; if it is another one, the stream starts with a `recreated` tombstone",
]
_Consumer = Annotated[str | None, "begin at the position of this consumer, instead of `from_seq`"]


class TopicOptions(Struct, gc=False):
    """Start and filter of one watched topic."""

    from_seq: Annotated[U64, "deliver records after this seq; 0 starts at the earliest record"] = 0
    tail: bool = False
    filter: FilterWire = None  # type: ignore[assignment]  # msgspec has no optional `Raw`
    epoch: _Epoch = None
    consumer: _Consumer = None
    commit: CommitWire = False

    @property
    def by_name(self) -> bool:
        """Whether the position is that of a consumer, or should be moved."""
        return self.consumer is not None or self.commit is not False


class ViewOptions(Struct, kw_only=True):
    """Delivery options that apply to all topics of a request."""

    node: str | list[str] | None = None
    limit: Annotated[U64, "the maximum number of records in a frame; clamped to 1000"] = DEFAULT_LIMIT
    max_batch_bytes: Annotated[U64, "the maximum size of a frame; clamped to 8388608"] = DEFAULT_FRAME_BYTES
    include_meta: Annotated[bool | UnsetType, "whether records have `meta`; as `include_data` by default"] = UNSET
    include_tags: bool = False
    include_data: Annotated[bool, "whether records have `data`"] = True
    consistency: Annotated[Consistency, "`strong` delivers a record only after it is synced to disk"] = "eventual"


class WatchRequest(ViewOptions, kw_only=True):
    """Body of `POST /v0/watch`. A name that ends in `*` matches all current and future topics with the prefix."""

    topics: Annotated[
        dict[str, TopicOptions],
        "1 to 256 names with their options; a name that ends in `*` is a pattern for all current and "
        "future topics with this prefix",
    ]
    heartbeat_ms: Annotated[U64, "the time between two heartbeats, 1000 to 60000; a value outside is clamped"] = (
        DEFAULT_HEARTBEAT_MS
    )
    cursor: Annotated[str | None, "the event id of an earlier session, to continue there"] = None

    def watched(self) -> dict[str, TopicOptions]:
        return self.topics


class View(Struct, frozen=True):
    """Everything except the range that determines the bytes of a frame. Watchers with equal views share frames."""

    limit: int
    max_bytes: int
    nodes: frozenset[str] | None
    match: TagMatch | None
    projection: Projection
    strong: bool


def make_view(options: ViewOptions, *, max_limit: int) -> View:
    """Return the view for topics without a filter. `with_filter` adds a filter."""
    check_u64(options.limit, "limit")
    check_u64(options.max_batch_bytes, "max_batch_bytes")
    # Without data, `meta` is omitted too unless the request asks for it, so that frames stay small.
    meta = options.include_data if options.include_meta is UNSET else options.include_meta
    return View(
        limit=min(options.limit or DEFAULT_LIMIT, max_limit),
        max_bytes=min(options.max_batch_bytes or DEFAULT_BATCH_BYTES, MAX_BATCH_BYTES),
        nodes=node_set(options.node),
        match=None,
        projection=Projection(tags=options.include_tags, meta=meta, data=options.include_data),
        strong=options.consistency == "strong",
    )


def with_filter(view: View, name: str, options: TopicOptions) -> View:
    """Return the view with the filter of a topic. Views of one request share their set of nodes."""
    match = parse_filter(options.filter, field=f"topics.{name}.filter")
    return view if match is None else structs.replace(view, match=match)


def without_nodes(view: View) -> View:
    """Return the view of readers without nodes of their own."""
    return view if view.nodes is None else structs.replace(view, nodes=None)


def is_pattern(name: str) -> bool:
    return name.endswith("*")


def check_watched(topics: dict[str, TopicOptions], *, max_topics: int) -> None:
    """Raise `invalid_request` if the map of topics is invalid. Missing topics are not checked."""
    if not topics:
        raise invalid("topics must name at least one topic", field="topics")
    if len(topics) > max_topics:
        raise invalid(f"topics names {len(topics)} topics; the limit is {max_topics}", field="topics")
    for name, options in topics.items():
        check_name(name)
        if options.from_seq > U64_MAX:
            raise invalid(f"topics.{name}.from_seq does not fit in 64 bits", field=f"topics.{name}.from_seq")


def check_by_name(name: str, options: TopicOptions) -> None:
    """Raise `invalid_request` if the other options of a topic cannot go with a consumer or a commit."""
    field = f"topics.{name}.consumer"
    if options.consumer is None:
        raise invalid("commit needs consumer: whose position to move", field=f"topics.{name}.commit")
    if is_pattern(name):
        raise invalid("a pattern cannot have a consumer: name each topic", field=field)
    if options.from_seq or options.tail:
        raise invalid("consumer goes without from_seq and tail: its position says where to begin", field=field)
    if type(options.commit) is int:
        check_u64(options.commit, f"topics.{name}.commit")


def check_name(name: str) -> None:
    """Raise `invalid_request` unless the name is a topic name, or a name prefix followed by `*`."""
    if not is_pattern(name):
        if name != AUDIT:
            check_topic(name, field="topics")
    elif name != "*":
        check_topic(name[:-1], field="topics")


# --- WebSocket commands


class Subscribe(ViewOptions, kw_only=True, tag_field="op", tag="subscribe"):
    """Command `subscribe`: `topic` with its options, or `topics` as in a watch session."""

    request_id: RequestId = None
    topic: Annotated[str | None, "one topic, or a pattern, with the options beside it"] = None
    from_seq: Annotated[U64, "deliver records after this seq; 0 starts at the earliest record"] = 0
    tail: bool = False
    filter: FilterWire = None  # type: ignore[assignment]
    epoch: _Epoch = None
    consumer: _Consumer = None
    commit: CommitWire = False
    topics: Annotated[
        dict[str, TopicOptions] | None, "several topics and patterns, each with its options; instead of `topic`"
    ] = None
    lenient: Annotated[bool, "skip topics that do not exist instead of failing"] = False

    def watched(self) -> dict[str, TopicOptions]:
        if (self.topic is None) == (self.topics is None):
            raise invalid("subscribe needs either topic or topics, not both", field="topic")
        if self.topic is None:
            assert self.topics is not None
            return self.topics
        return {self.topic: TopicOptions(self.from_seq, self.tail, self.filter, self.epoch, self.consumer, self.commit)}


class Authenticate(Struct, kw_only=True, tag_field="op", tag="authenticate"):
    """Command `authenticate`: the key of the connection, or a newer token with the same rights."""

    token: Annotated[str, "a key or a token"]
    request_id: RequestId = None


class Unsubscribe(Struct, kw_only=True, tag_field="op", tag="unsubscribe"):
    """Command `unsubscribe`: deliver no more records of a topic or a pattern."""

    topic: Annotated[str, "the topic, or the pattern"]
    request_id: RequestId = None


class Publish(WriteRequest, kw_only=True, tag_field="op", tag="publish", gc=True):
    """Command `publish`: a write, with the fields of `POST /v0/topics/:topic` and its query string."""

    topic: str
    request_id: RequestId = None
    return_seqs: Annotated[bool, "whether the answer lists every seq"] = True


class PlainPublish(Publish, forbid_unknown_fields=True):
    """A `publish` whose records are all plain."""

    only_plain: ClassVar[bool] = True
    records: list[PlainRecord]  # type: ignore[assignment]  # as in `PlainWriteRequest`


class CommitCommand(Struct, kw_only=True, tag_field="op", tag="commit", forbid_unknown_fields=True):
    """Command `commit`: the consumer of a subscription has processed every record up to `seq`."""

    topic: str
    seq: Annotated[U64, "every record up to this seq is processed"]
    request_id: RequestId = None
    consumer: Annotated[str | None, "the consumer; that of the subscription by default"] = None


class Ping(Struct, kw_only=True, tag_field="op", tag="ping"):
    """Command `ping`: the server answers `pong`."""

    request_id: RequestId = None


Command = Authenticate | Subscribe | Unsubscribe | Publish | CommitCommand | Ping


class Addressed(Struct):
    """The `request_id` of an invalid command, for the error message."""

    request_id: RequestId = None


# --- answers


class WatchedTopic(Struct):
    """The position of a topic when it was subscribed to."""

    from_seq: Annotated[U64, "the position at which delivery begins"]
    head_seq: U64
    earliest_seq: U64
    epoch: U64


class PublishTimes(Struct, gc=False):
    """The `performance` of a publish."""

    wal_append_ms: float
    fsync_ms: float


class PublishAck(Struct, tag_field="op", tag="ack", gc=False):
    """The answer to a `publish` command."""

    topic: str
    first_seq: U64
    last_seq: U64
    head_seq: U64
    created: Annotated[bool, "whether this request created the topic"]
    deduped: bool
    performance: PublishTimes
    seqs: Annotated[list[int] | UnsetType, "the seq of each record; absent with `return_seqs` false"] = UNSET
    request_id: Annotated[str | int | UnsetType, "that of the command; absent if it had none"] = UNSET
    warnings: list[str] | UnsetType = UNSET


class WatchCreated(Struct):
    wid: Annotated[str, "the id of the session"]
    stream_url: Annotated[str, "the path of the event stream"]
    session_ttl_ms: Annotated[U64, "the session expires so long after its last stream closes"]
    topics: Annotated[dict[str, WatchedTopic], "the position of each topic"]
    performance: Performance
