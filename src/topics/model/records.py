"""Records and the requests that write, read and delete them."""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from topics.errors import Code, TopicsError, invalid
from topics.model.topic import U64, ConfigPatch

DEFAULT_LIMIT = 256
MAX_WAIT_MS = 30_000
MAX_META_KEYS = 64
MAX_IDEMPOTENCY_KEY_CHARS = 256
MAX_KEY_BYTES = 256
DEFAULT_BATCH_BYTES = 1 << 20
MAX_BATCH_BYTES = 8 << 20
MAX_EXAMINED = 10_000
MAX_NODES = 256  # names in one request's `node`
MAX_FILTER_BYTES = 16 << 10

JobPriority = Annotated[int, Meta(ge=0, le=9, description="9 is served first")]


class Unique(Struct, gc=False, rename={"for_": "for"}):
    """A key that no other job of the queue gets."""

    key: Annotated[str, "1 to 256 bytes"]
    for_: Annotated[
        Literal["pending"] | U64, "`pending`: until this job has left the queue; or for this time, in milliseconds"
    ] = "pending"


class NewRecord(Struct, gc=False):
    """One record of a write. `data` and `meta` stay the bytes that the client sent: checked, never rebuilt."""

    data: Annotated[Raw, "any JSON value; with `meta` at most 1048576 bytes"]
    tag: Annotated[str | None, "a text to filter and delete by, at most 256 bytes; many records can share one"] = None
    node: Annotated[str | None, "the writer of the record, at most 128 bytes"] = None
    meta: Annotated[Raw | UnsetType, "an object with at most 64 keys and 16384 bytes"] = UNSET
    priority: Annotated[JobPriority | None, "queues: 0 to 9; 9 is served first"] = None
    delay_ms: Annotated[U64 | None, "queues: deliver the job after this time"] = None
    deliver_at: Annotated[
        U64 | None, "queues: do not deliver the job before this time, in milliseconds since 1970; instead of `delay_ms`"
    ] = None
    key: Annotated[str | None, "1 to 256 bytes; a queue delivers jobs of one key in order, one at a time"] = None
    unique: Annotated[
        Unique | None, "queues: if another job has this key, return the seq of that one; the write has one record"
    ] = None


class WriteRequest(Struct, gc=False):
    """Body of `POST /v0/topics/:topic`."""

    only_plain: ClassVar[bool] = False
    records: list[NewRecord]
    node: Annotated[str | None, "the node of records without one, at most 128 bytes"] = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: ConfigPatch | None = None
    disable_backpressure: bool = False


class PlainRecord(Struct, gc=False, forbid_unknown_fields=True):
    """A `NewRecord` that has only data and a tag."""

    data: Raw
    tag: str | None = None


class PlainWriteRequest(WriteRequest, gc=False, forbid_unknown_fields=True):
    """A write whose records are all plain."""

    only_plain: ClassVar[bool] = True
    records: list[PlainRecord]  # type: ignore[assignment]  # the missing fields of `NewRecord` are never read


class TagMatch(Struct, frozen=True):
    """A condition on the tag: equal to `text`, or starting with it. A record without a tag never matches.

    `Where` is a condition on any fields: `text` is a filter as JSON text, see `filters`.
    """

    op: Literal["Eq", "Glob", "Where"]
    text: str

    def covers(self, tag: str | None) -> bool:
        if tag is None:
            return False
        return tag == self.text if self.op == "Eq" else tag.startswith(self.text)

    def wire(self) -> Any:
        """Return the condition as a client would send it."""
        if self.op == "Where":
            return Raw(self.text.encode())
        return ["tag", self.op, self.text if self.op == "Eq" else self.text + "*"]


def parse_match(value: Any, *, field: str = "match") -> TagMatch:
    """Return the condition of `["tag","Eq","x"]`, `["tag","Glob","x*"]`, or `"x"`. Raise `invalid_request`."""
    if isinstance(value, str):
        return TagMatch("Eq", value)
    if not isinstance(value, list) or len(value) != 3 or not all(isinstance(part, str) for part in value):
        raise invalid(f'{field} must be a string or ["tag", "Eq" | "Glob", text]', field=field)
    key, op, text = value
    if key != "tag":
        raise invalid(f'{field} can only test "tag", not {key[:64]!r}; use ["tag", "Eq" | "Glob", text]', field=field)
    if op == "Eq":
        return TagMatch("Eq", text)
    if op != "Glob":
        raise invalid(f'{field}: {op[:64]!r} is not one of "Eq", "Glob"', field=field)
    if not text.endswith("*") or "*" in text[:-1]:
        raise invalid(f'{field}: a Glob must be a prefix followed by one "*", such as "order-*"', field=field)
    return TagMatch("Glob", text[:-1])


def node_set(given: str | list[str] | None) -> frozenset[str] | None:
    """Return the nodes whose records are skipped, or None. Raise `invalid_request` for too many names.

    The number is limited, because each segment looks up every name and a watch session stores them.
    """
    if given is None:
        return None
    if isinstance(given, str):
        return frozenset((given,))
    if len(given) > MAX_NODES:
        raise invalid(f"node has {len(given)} names; the limit is {MAX_NODES}", field="node")
    return frozenset(given) or None


# Not `Any`: building a megabyte of nested lists would take a tenth of a second, only to refuse it.
MatchWire = Annotated[
    str | list[str] | None, Meta(description='a tag, or ["tag", "Eq", tag], or ["tag", "Glob", prefix + "*"]')
]


# Raw: it is checked once its size is known.
FilterWire = Annotated[
    Raw,
    Meta(
        description='only records that match: a tag, or a filter such as `["data.total", "Gt", 100]`',
        extra_json_schema={"anyOf": [{"type": "string"}, {"type": "array", "items": {}}, {"type": "null"}]},
    ),
]


CommitWire = Annotated[
    bool | U64,
    Meta(description="true: everything that the last answer to this consumer had is processed; a seq: up to this one"),
]


class ReadRequest(Struct, gc=False, kw_only=True):
    """The fields that `diff` and `scan` share."""

    from_seq: U64 = 0
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    filter: FilterWire = None  # type: ignore[assignment]  # msgspec has no optional `Raw`
    from_ts: U64 | None = None
    epoch: Annotated[
        U64 | None, "the epoch that `from_seq` belongs to; if it is another one, the answer has a `recreated` tombstone"
    ] = None


class DiffRequest(ReadRequest, gc=False, kw_only=True):
    """Body of `POST /v0/topics/:topic/diff`."""

    limit: Annotated[U64, "the maximum number of records; 0 is 256; clamped to 1000"] = 0
    wait_ms: Annotated[U64, "wait for new records if there are none; clamped to 30000"] = 0
    max_batch_bytes: Annotated[
        U64, "the maximum size of the records; 0 is 1048576; clamped to 8388608; the answer has at least one record"
    ] = 0
    consumer: Annotated[str | None, "read from the position of this consumer, instead of `from_seq`"] = None
    commit: CommitWire = False


class ScanRequest(ReadRequest, gc=False, kw_only=True):
    """Body of `POST /v0/topics/:topic/scan`: the fields of `diff`, and the last seq."""

    upto_seq: Annotated[U64 | None, "the last seq to read; the head at the start of the scan by default"] = None


class DeleteRequest(Struct, gc=False, forbid_unknown_fields=True):
    """Body of `POST /v0/topics/:topic/delete`."""

    before_seq: Annotated[U64 | None, "delete records below this seq"] = None
    match: Annotated[
        MatchWire | UnsetType,
        'delete records whose tag matches: a tag, or `["tag", "Eq", tag]`, or `["tag", "Glob", prefix + "*"]`',
    ] = UNSET
    dry_run: bool = False
    seqs: Annotated[list[U64] | None, "delete these records, instead of `before_seq` and `match`; at most 10000"] = None
    epoch: Annotated[U64 | None, "delete only if the topic has this epoch, else 409"] = None


class Projection(Struct, frozen=True):
    """The parts of a record that a reader wants. The default is the stored form."""

    tags: bool = False
    meta: bool = True
    data: bool = True

    @property
    def is_stored_form(self) -> bool:
        return self.meta and self.data and not self.tags


STORED_FORM = Projection()


class Limits(Struct, frozen=True, kw_only=True):
    """Limits that the engine enforces. The server takes them from its settings."""

    max_batch_records: int = 10_000
    max_record_bytes: int = 1 << 20
    max_meta_bytes: int = 16 << 10
    max_tag_bytes: int = 256
    max_node_bytes: int = 128
    max_limit: int = 1000
    max_claim: int = 1000
    max_topics: int = 100_000
    max_routers: int = 10_000
    max_copies: int = 10_000
    max_schedules: int = 10_000
    max_total_bytes: int = 0
    max_idempotency_keys: int = 1_000_000
    max_consumers: int = 1000
    auto_create: tuple[str, ...] = ("all",)

    def may_create(self, name: str) -> bool:
        """Return whether a write may create a topic of this name."""
        return "all" in self.auto_create or any(
            rule == name or (rule.endswith("*") and name.startswith(rule[:-1])) for rule in self.auto_create
        )


def too_many_records(limits: Limits) -> TopicsError:
    most = limits.max_batch_records
    return TopicsError(
        Code.BATCH_TOO_LARGE, f"a write can have at most {most} records; send several writes", detail={"max": most}
    )


def record_too_large(at: int, size_bytes: int, limits: Limits) -> TopicsError:
    return TopicsError(
        Code.RECORD_TOO_LARGE,
        f"records[{at}] has {size_bytes} bytes of data and meta; the limit is {limits.max_record_bytes}",
        detail={"record": at, "size_bytes": size_bytes, "max": limits.max_record_bytes},
    )


def too_long(field: str, size_bytes: int, limit_bytes: int) -> TopicsError:
    return invalid(f"{field} is {size_bytes} bytes long; the limit is {limit_bytes}", field=field)
