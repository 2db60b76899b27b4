"""Records and the requests that write, read and delete them."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from topics.errors import Code, TopicsError, invalid
from topics.model.topic import U64, ConfigPatch

DEFAULT_LIMIT = 256
MAX_WAIT_MS = 30_000
MAX_META_KEYS = 64
MAX_IDEMPOTENCY_KEY_CHARS = 256
DEFAULT_BATCH_BYTES = 1 << 20
MAX_BATCH_BYTES = 8 << 20
MAX_EXAMINED = 10_000
MAX_NODES = 256  # names in one request's `node`

JobPriority = Annotated[int, Meta(ge=0, le=9, description="9 is served first")]


class NewRecord(Struct, gc=False):
    """One record of a write. `data` and `meta` stay the bytes that the client sent: checked, never rebuilt."""

    data: Raw
    tag: str | None = None
    node: str | None = None
    meta: Raw | UnsetType = UNSET
    priority: JobPriority | None = None  # these three on queues only
    delay_ms: U64 | None = None
    deliver_at: U64 | None = None


class WriteRequest(Struct, gc=False):
    """Body of `POST /v0/topics/:topic`."""

    records: list[NewRecord]
    node: str | None = None
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

    records: list[PlainRecord]  # type: ignore[assignment]  # the missing fields of `NewRecord` are never read


class TagMatch(Struct, frozen=True):
    """A condition on the tag: equal to `text`, or starting with it. A record without a tag never matches."""

    op: Literal["Eq", "Glob"]
    text: str

    def covers(self, tag: str | None) -> bool:
        if tag is None:
            return False
        return tag == self.text if self.op == "Eq" else tag.startswith(self.text)

    def wire(self) -> list[str]:
        """Return the condition as a client would send it."""
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


CommitWire = Annotated[
    bool | U64,
    Meta(description="true: everything that the last answer to this consumer had is processed; a seq: up to this one"),
]


class DiffRequest(Struct, gc=False):
    """Body of `POST /v0/topics/:topic/diff`."""

    from_seq: U64 = 0
    limit: U64 = 0
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: U64 = 0
    max_batch_bytes: U64 = 0
    filter: MatchWire = None
    from_ts: U64 | None = None
    epoch: U64 | None = None
    consumer: str | None = None  # read from the position of this consumer, instead of `from_seq`
    commit: CommitWire = False


class ScanRequest(Struct, gc=False):
    """Body of `POST /v0/topics/:topic/scan`: the fields of `diff`, and the last seq."""

    from_seq: U64 = 0
    upto_seq: U64 | None = None
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    filter: MatchWire = None
    from_ts: U64 | None = None
    epoch: U64 | None = None


class DeleteRequest(Struct, gc=False, forbid_unknown_fields=True):
    """Body of `POST /v0/topics/:topic/delete`."""

    before_seq: U64 | None = None
    match: MatchWire | UnsetType = UNSET
    dry_run: bool = False
    seqs: list[U64] | None = None  # instead of `before_seq` and `match`
    epoch: U64 | None = None  # delete only if the topic has this epoch


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
    max_total_bytes: int = 0
    max_idempotency_keys: int = 1_000_000
    max_consumers: int = 1000


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
