"""Response types of `/v0`, for the OpenAPI document and for all handlers except the hot ones."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Generator, Iterator
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, inspect

from topics.errors import Code, TopicsError, invalid
from topics.model.schemas import Compatibility, SchemaMode
from topics.model.topic import U64, TopicConfig

Json = Annotated[Any, Meta(description="any JSON value")]

# Limit of requests other than writes. The largest valid one, a delete of 10,000 seqs, has a fifth of this. Decoding
# this much takes at most 15 ms.
MAX_PLAIN_BODY_BYTES = 1 << 20
TEXT_STEP_BYTES = 1 << 20  # of a body, checked per step


class Performance(Struct, omit_defaults=True):
    """Timings of the request. Fields may be absent."""

    server_total_ms: Annotated[float, "time from the request to its answer"]
    wal_append_ms: Annotated[float | None, "time until the write was in the log"] = None
    fsync_ms: Annotated[float | None, "time that the write waited for the disk"] = None
    records_scanned: Annotated[int | None, "the number of records that a read examined"] = None
    throttle_wait_ms: Annotated[float | None, "time that a write was held back under pressure"] = None
    replica_lag_ms: Annotated[int | None, "how far a standby is behind; only in its answers"] = None


class ErrorBody(Struct):
    code: str
    message: str
    detail: dict[str, Json] | None = None


class ErrorAnswer(Struct):
    """The body of every error answer."""

    error: Annotated[ErrorBody, "what went wrong"]
    request_id: Annotated[str | UnsetType, "that of the request (`X-Request-Id`), or a new one; the log has it"] = UNSET
    performance: Performance | None = None


class Record(Struct, rename={"seq": "$seq", "ts": "$ts", "node": "$node", "tag": "$tag", "key": "$key"}):
    """One immutable record as readers get it."""

    seq: U64
    ts: U64
    data: Json
    node: str | None = None
    tag: str | None = None
    key: str | None = None
    meta: dict[str, Json] | None = None


class TombstoneAnswer(Struct, gc=False):
    """A range of lost records, both ends inclusive: evicted, expired or damaged, not deleted by a client."""

    gap_from: U64
    gap_to: U64
    reason: str
    missed_estimate: Annotated[U64, "the number of lost records in the range; with `restart`, an upper bound"]
    earliest_seq: U64
    head_seq: U64


class TopicPut(Struct):
    topic: str
    created: bool
    epoch: U64
    config: Annotated[TopicConfig, "the complete configuration after the request"]
    performance: Performance
    warnings: Annotated[list[str] | UnsetType, "what the configuration does not do, although it may seem so"] = UNSET


class SchemaState(Struct):
    """A version of the schema of a topic."""

    topic: str
    version: U64
    versions: Annotated[U64, "the number of versions that the topic has had; they are counted from 1"]
    active: Annotated[bool, "whether new records are checked against this version"]
    schema: Annotated[dict[str, Any], "JSON Schema 2020-12"]
    schema_mode: SchemaMode
    compatibility: Compatibility
    performance: Performance


class QueueCounts(Struct, omit_defaults=True):
    """Numbers of jobs. `dead_letter_error` is the reason why jobs cannot move to the dead-letter topic."""

    ready: U64
    in_flight: U64
    dead_lettered: Annotated[U64, "the number of jobs that moved to the dead-letter topic"]
    delayed: U64
    dead_letter_error: Annotated[str | None, "why jobs cannot move to the dead-letter topic; absent if they can"] = None
    blocked: Annotated[U64, "of the ready jobs, those that wait for another job of their key; absent if none does"] = 0


class ArchiveStanding(Struct):
    """Archive backlog of a topic: live records that are not archived, those of them that `hold` keeps past their TTL,
    and the number of records that a cap evicted before they were archived.
    """

    unarchived: Annotated[U64, "the number of live records that are not archived"]
    overdue: Annotated[U64, "those of them that `hold` keeps past their TTL"]
    evicted: Annotated[U64, "the number of records that a cap evicted before they were archived"]


class ArchivedRequest(Struct, kw_only=True):
    """Body of `archived`: every record of the epoch up to `seq` is safe; those up to `trimmed_seq` are deleted."""

    seq: Annotated[U64, "the archive has every record up to this seq"]
    epoch: Annotated[U64, "the epoch of the archived records"]
    trimmed_seq: Annotated[U64, "the archive has deleted the records up to this seq from the topic"] = 0


class ArchivedAnswer(Struct):
    """The archived position. `moved` says whether this request advanced it."""

    topic: str
    epoch: U64
    archived_seq: Annotated[U64, "the last seq that the archive has"]
    head_seq: U64
    moved: Annotated[bool, "whether this request advanced it"]
    performance: Performance


class TopicState(Struct, omit_defaults=True):
    topic: str
    type: Annotated[str, "`log` or `queue`"]
    epoch: U64
    head_seq: U64
    earliest_seq: U64
    next_seq: Annotated[U64, "the seq of the next record"]
    count: U64
    bytes: U64
    config: Annotated[TopicConfig, "the configuration"]
    effective_priority: int
    last_write_ts: U64 | None
    last_read_ts: Annotated[U64 | None, "the time of the last read, in milliseconds since 1970; null if there was none"]
    performance: Performance
    queue: QueueCounts | None = None
    archived_seq: Annotated[U64 | None, "the last seq that an archive has reported; absent without an archive"] = None
    trimmed_seq: Annotated[
        U64 | None, "the last seq that an archive has deleted from the topic; absent without an archive"
    ] = None
    archive: Annotated[ArchiveStanding | None, "the backlog of the archive; absent without an archive"] = None


class TopicSummary(Struct, omit_defaults=True):
    """A topic in a list. The fields after `effective_priority` come with `details=true`."""

    topic: str
    type: Annotated[str, "`log` or `queue`"]
    epoch: U64
    head_seq: U64
    earliest_seq: U64
    count: U64
    bytes: U64
    durable: Annotated[bool, "whether the durability is `fsync` or `replicated`"]
    effective_priority: int
    config: Annotated[TopicConfig | None, "the configuration; with `details=true`"] = None
    last_write_ts: U64 | None = None
    lost: Annotated[U64 | None, "the number of records that the topic lost; with `details=true`"] = None
    queue: QueueCounts | None = None


class TopicList(Struct, omit_defaults=True):
    topics: Annotated[list[TopicSummary], "a page of topics by name"]
    performance: Performance
    next_cursor: str | None = None


class TopicDropped(Struct):
    topic: str
    deleted: Annotated[bool, "whether the topic existed"]
    routers_removed: Annotated[list[str], "the routers from and to the topic, which were deleted with it"]
    performance: Performance


class Written(Struct):
    """The seqs of a write. `seqs` is omitted with `return_seqs=false`."""

    topic: str
    first_seq: U64
    last_seq: U64
    head_seq: U64
    count: Annotated[U64, "the number of records written"]
    created: Annotated[bool, "whether this request created the topic"]
    deduped: bool
    performance: Performance
    seqs: Annotated[list[U64] | None, "the seq of each record; absent with `return_seqs` false"] = None


class Diff(Struct):
    topic: str
    epoch: U64
    records: Annotated[list[Record], "the records in the order of their seqs"]
    next_from_seq: U64
    head_seq: U64
    earliest_seq: U64
    caught_up: bool
    tombstone: Annotated[TombstoneAnswer | None, "the range that was lost before the records; null if nothing was"]
    lag: U64
    performance: Performance
    consumer: Annotated[str | None, "the consumer of the request; absent without one"] = None
    committed_seq: Annotated[U64 | None, "the position of the consumer; absent without one"] = None


class RecordsDeleted(Struct, omit_defaults=True):
    """The topic after a delete. With `dry_run`, `deleted` is the number of matching records."""

    topic: str
    deleted: Annotated[U64, "the number of deleted records; with `dry_run`, of those that match"]
    earliest_seq: U64
    head_seq: U64
    count: U64
    bytes: U64
    performance: Performance
    dry_run: bool = False


class Health(Struct):
    status: Annotated[Literal["ok"], "the process is alive"]
    version: str
    uptime_ms: Annotated[U64, "time since the start"]
    performance: Performance


class Ready(Struct):
    status: Annotated[Literal["ready"], "the server can serve"]
    wal_replay_complete: Annotated[bool, "whether the log has been replayed"]
    topics: Annotated[U64, "the number of topics"]
    performance: Performance
    warnings: list[str] | UnsetType = UNSET
    follows: Annotated[str | UnsetType, "of a standby: the address of the writer"] = UNSET
    replica_lag_ms: Annotated[
        U64 | UnsetType, "how far a standby may be behind the replica, or the replica behind the writer"
    ] = UNSET


def body_too_large(size_bytes: int) -> TopicsError:
    return TopicsError(
        Code.PAYLOAD_TOO_LARGE,
        f"the body of this request has {size_bytes} bytes; the limit is {MAX_PLAIN_BODY_BYTES}",
        detail={"max": MAX_PLAIN_BODY_BYTES},
    )


def check_text(body: bytes) -> None:
    """Raise `invalid_request` unless the body is UTF-8."""
    for _ in check_text_steps(body):
        pass


def check_text_steps(body: bytes) -> Generator[None, None, None]:
    """Do the same in steps of about a tenth of a millisecond."""
    decoder = getincrementaldecoder("utf-8")()
    for at in range(0, len(body), TEXT_STEP_BYTES):
        piece = body[at : at + TEXT_STEP_BYTES]
        carried = len(decoder.getstate()[0])
        try:
            if carried or not piece.isascii():
                decoder.decode(piece, at + len(piece) == len(body))
        except UnicodeDecodeError as error:
            start = at - carried + error.start
            raise invalid(f"the body is not UTF-8: {error.reason} at byte {start}") from None
        yield


def decode_error(error: Exception, request_type: Any) -> TopicsError:
    """Return the `invalid_request` for an exception of the decoder of `request_type`."""
    if isinstance(error, msgspec.ValidationError):
        return _wrong_type(error, request_type)
    if isinstance(error, RecursionError):
        return invalid("the body is nested too deeply")
    return invalid(f"the body is not valid JSON: {error}")


_PART_OF_MATCH = re.compile(r"\b(match|filter)\[.*")  # report these fields as a whole
_NOT_A_CHOICE = re.compile(r"Invalid (?:enum )?value (.*)")
_WORDS = {
    "`str": "`string", "`int": "`whole number", "`bool": "`true or false", "`float": "`number",
    "| str": "| string", "| int": "| whole number", "| bool": "| true or false", "| ": "or ",
}  # fmt: skip


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
    if "unknown field" in what:
        return UnknownField(what.split("`")[1], path, field_names(request_type, where))
    name = path or "the body"
    if (given := _NOT_A_CHOICE.fullmatch(what)) is not None and (allowed := choices(request_type, where)):
        return invalid(f"{name} must be one of {', '.join(allowed)}, not {given[1]}", field=path or None)
    for theirs, plain in _WORDS.items():
        what = what.replace(theirs, plain)
    return invalid(f"{name}: {what[:1].lower()}{what[1:].replace('`', '')}", field=path or None)


class UnknownField(TopicsError):
    """The refusal of a field, or of a query parameter, that a request does not have."""

    def __init__(self, name: str, path: str, known: list[str], *, kind: str = "field") -> None:
        self.name = name
        self.path = path  # of the object that has the field; "" for the request itself
        self.known = known
        field = f"{path}.{name}" if path else name
        similar = did_you_mean(name, known)
        hint = f"; there are {', '.join(known)}" if known else ""
        if similar is not None:
            hint = f"; did you mean {similar}?"
        super().__init__(Code.INVALID_REQUEST, f"there is no {kind} {field}{hint}", detail={"field": field})


def did_you_mean(name: str, known: list[str]) -> str | None:
    """Return the known name that is most similar: one that begins with the unknown name, or with few differences."""
    begun = [one for one in known if len(name) > 1 and one.startswith(f"{name}_")]
    similar = begun or get_close_matches(name[:64], known, n=1)
    return similar[0] if similar else None


def check_u64(value: int, field: str) -> int:
    if value > 2**64 - 1:
        raise invalid(f"{field} does not fit in 64 bits", field=field)
    return value


def check_u64s(request: Struct, *fields: str) -> None:
    """Raise `invalid_request` if a number in one of these fields does not fit in 64 bits."""
    for field in fields:
        if type(value := getattr(request, field)) is int:
            check_u64(value, field)


# --- the fields and values that a request type allows: for error messages, after decoding has failed

_PART = re.compile(r"\.(\w+)|\[[^\]]*\]")

# Kept, because `msgspec` leaves cycles of references with each description.
_type_info = cache(inspect.type_info)


def choices(request_type: Any, path: str) -> list[str]:
    """Return the allowed values of the field at `path`, as `$.config.durability`; empty if it is no enumeration."""
    types, tags = _at(request_type, path)
    values = [str(value) for one in types if isinstance(one, inspect.LiteralType) for value in one.values]
    return list(dict.fromkeys(values or tags))


def field_names(request_type: Any, path: str) -> list[str]:
    """Return the names of the fields that the object at `path` may have."""
    types, _ = _at(request_type, path)
    names = [field.encode_name for one in types if isinstance(one, inspect.StructType) for field in one.fields]
    return list(dict.fromkeys(names))


def _at(request_type: Any, path: str) -> tuple[list[inspect.Type], list[str]]:
    """Return the types that the value at `path` may have, and the tags if it is the tag field of a union."""
    types, tags = list(_alternatives(_type_info(request_type))), list[str]()
    for part in _PART.finditer(path):
        structs = [one for one in types if isinstance(one, inspect.StructType)]
        tags = [str(one.tag) for one in structs if one.tag_field == part[1]]
        if part[1] is not None:
            inner = [field.type for one in structs for field in one.fields if field.encode_name == part[1]]
        else:
            inner = [one.item_type for one in types if isinstance(one, inspect.ListType)]
            inner += [one.value_type for one in types if isinstance(one, inspect.DictType)]
        types = [one for each in inner for one in _alternatives(each)]
    return types, tags


def _alternatives(one: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the types that a value of the type may have, each without its annotations."""
    if isinstance(one, inspect.UnionType):
        for alternative in one.types:
            yield from _alternatives(alternative)
    elif isinstance(one, inspect.Metadata):
        yield from _alternatives(one.type)
    else:
        yield one
