"""What readers and workers get: records, gaps and jobs; and what writers send."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, Required, Self, TypedDict, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from topics.keys import Activity, ScopeWord
from topics.model import wire
from topics.model.schedule import CatchUp, Overlap
from topics.model.topic import ArchiveConfig, Discard, Durability, Rate, RetryPolicy, TopicConfig, TopicType

_decode = msgspec.json.decode
_encode = msgspec.json.Encoder().encode
_SEARCHED = {float, dict, list, tuple}  # values of other built-in types hold no numbers, or are finite
T = TypeVar("T")

Match = str | tuple[Literal["tag"], Literal["Eq", "Glob"], str]
"""A tag to match: exactly ("order-7"), or by its beginning (("tag", "Glob", "order-*"))."""

Filter = str | Sequence[Any]
"""Records to return: a tag, or a filter such as ["data.total", "Gt", 100] or ["Where", "total > 100"]."""


class Record(
    Struct,
    rename={
        "seq": "$seq", "ts": "$ts", "node": "$node", "tag": "$tag", "key": "$key", "json": "data", "raw_meta": "meta",
    },
):  # fmt: skip
    """One event of a topic. `json` is the data as it was written; `data` decodes it each time it is asked for."""

    seq: int
    ts: int
    json: Raw = Raw(b"null")
    node: str | None = None
    tag: str | None = None
    raw_meta: Raw | UnsetType = UNSET
    topic: str = ""
    key: str | None = None

    @property
    def data(self) -> Any:
        """The data, decoded."""
        try:
            return _decode(self.json)
        except msgspec.DecodeError:
            return decode_json(self.json)

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata, decoded; empty if there is none."""
        return {} if isinstance(self.raw_meta, UnsetType) else decode_json(self.raw_meta)

    def __repr__(self) -> str:
        return f"Record(topic={self.topic!r}, seq={self.seq}, tag={self.tag!r}, data={self.data!r})"

    def decode(self, type: type[T]) -> T:
        """Decode the data as a dataclass, a Struct, a TypedDict or a pydantic model.

        Raises `msgspec.DecodeError` or `pydantic.ValidationError`.
        """
        found: T = _decoder(type)(self.json)  # type: ignore[arg-type]  # a type is hashable
        return found


class TypedRecord(Record):
    """A record that was read with `type`. `data` is of this type, and was decoded once."""

    value: Any = None

    @property
    def data(self) -> Any:
        return self.value


class Misfit(Record):
    """A record that was read with `type`, and whose data does not fit it. `error` says why; `json` has the data."""

    error: str = ""

    @property
    def data(self) -> Any:
        """Raise `ValueError`."""
        raise ValueError(f"record {self.seq} of {self.topic} is a Misfit: {self.error}")


@lru_cache
def _decoder(type: Any) -> Callable[[Raw], Any]:
    if hasattr(type, "model_validate_json"):  # a pydantic model
        return lambda text: type.model_validate_json(bytes(text))
    return msgspec.json.Decoder(type).decode


def typed(records: Iterable[Record], type: Any) -> Iterable[Record]:
    """Return the records with their data decoded as `type`, and a `Misfit` for each that does not fit. None: as is."""
    return records if type is None else (_typed(record, _decoder(type)) for record in records)


def _typed(record: Record, decode: Callable[[Raw], Any]) -> Record:
    fields = structs.asdict(record)
    try:
        return TypedRecord(**fields, value=decode(record.json))
    except (msgspec.DecodeError, ValueError) as error:
        return Misfit(**fields, error=str(error))


class Gap(Struct, frozen=True):
    """A range of records that were lost before this reader got them. Both ends are included.

    `reason` is the cause, on every kind of read: `cap`, `ttl`, `mixed`, `recreated`, `restart`, `failover`,
    `corrupt` or `source_trim`. `missed` is about how many records were lost.
    """

    topic: str
    first_seq: int
    last_seq: int
    reason: str
    missed: int = 0


class Tombstone(Struct):
    """A lost range as the server reports it, both ends inclusive. It was evicted, expired or corrupt, not deleted."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int = 0
    earliest_seq: int = 0
    head_seq: int = 0
    epoch: int = 0  # the epoch that the reader continues with, if the answer contains it
    cause: str | None = None  # of a gap whose `reason` is `from_seq_too_old`
    topic: str = ""  # of a pushed one

    def gap(self, topic: str) -> Gap:
        return Gap(topic, self.gap_from, self.gap_to, self.cause or self.reason, self.missed_estimate)

    @property
    def resume_seq(self) -> int:
        """The seq after which a reader goes on. Another epoch begins with its first record."""
        return max(self.earliest_seq - 1, 0) if self.reason == "recreated" else self.gap_to


class Position(Struct, frozen=True):
    """How far a reader has come: the last seq it has processed, and the epoch of the topic that the seq belongs to."""

    seq: int
    epoch: int | None = None


class Page(Struct):
    """One answer of `diff`. `gap` is what was lost before the first record.

    `committed_seq` is the position of the consumer, if the request named one.
    """

    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    epoch: int = 0
    tombstone: Tombstone | None = None
    topic: str = ""
    committed_seq: int | None = None

    @property
    def gap(self) -> Gap | None:
        return None if self.tombstone is None else self.tombstone.gap(self.topic)


class End(Struct):
    """The end of a bulk read: every seq up to `next_from_seq` was delivered, reported as lost, deleted or filtered."""

    next_from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int


class KnownArchive(ArchiveConfig, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The archive settings of a topic that this client knows. A newer server may have others."""


class KnownRetry(RetryPolicy, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same of the retry policy of a queue."""


class KnownRate(Rate, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The same of a rate."""


class KnownConfig(TopicConfig, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The settings of a topic that this client knows. A newer server may have others."""

    retry: KnownRetry | None = None
    rate: KnownRate | None = None
    rate_per_key: KnownRate | None = None
    archive: KnownArchive | None = None


class TopicState(wire.TopicState):
    """The state of a topic."""

    config: KnownConfig


class TopicPut(wire.TopicPut):
    """A topic that was created or changed."""

    config: KnownConfig


UniqueFields = TypedDict("UniqueFields", {"key": Required[str], "for": Literal["pending"] | int}, total=False)
"""A key that no other job of the queue gets: while the job is `pending`, or for so many milliseconds."""


class NewRecord(Struct, omit_defaults=True, kw_only=True):
    """One record to write. `priority`, `delay_ms`, `deliver_at` and `unique` are for jobs of a queue."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: dict[str, Any] | None = None
    priority: int | None = None
    delay_ms: int | None = None
    deliver_at: int | None = None
    key: str | None = None
    unique: UniqueFields | None = None


class RecordOptions(TypedDict, total=False):
    """Options of one record, by the names that the methods of the clients have for them.

    `priority`, `delay_ms`, `deliver_at` and `unique` are for jobs of a queue, which delivers jobs of one `record_key`
    in order.
    """

    tag: str | None
    node: str | None
    meta: Mapping[str, Any] | None
    priority: int | None
    delay_ms: int | None
    deliver_at: int | None
    record_key: str | None
    unique: UniqueFields | None


def new_record(data: object, options: RecordOptions) -> NewRecord:
    fields: dict[str, Any] = {**options, "key": options.get("record_key")}
    fields.pop("record_key", None)
    if (meta := fields.get("meta")) is not None:
        fields["meta"] = dict(meta)
    return NewRecord(data=data, **fields)


class Appended(Struct):
    """Where records were written. `deduped` says that an earlier attempt had written them."""

    first_seq: int
    last_seq: int
    head_seq: int
    created: bool = False
    deduped: bool = False

    @property
    def seq(self) -> int:
        """The seq of the only record."""
        return self.first_seq


class Config(TypedDict, total=False):
    """Settings of a topic. A setting that is left out keeps its value."""

    type: TopicType
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Discard
    durable: bool
    durability: Durability
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: int
    dedupe_node: bool
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    leases_durable: bool
    retry: RetryPolicy | dict[str, float] | None
    max_in_flight: int
    max_in_flight_per_key: int
    rate: Rate | dict[str, float] | None
    rate_per_key: Rate | dict[str, float] | None
    paused: bool
    defaults: Literal["contract", "safe"]
    archive: ArchiveConfig | None
    schema: dict[str, Any] | None
    schema_mode: Literal["reject", "warn", "off"]
    compatibility: Literal["backward", "forward", "full", "none"]
    force: bool


class ScheduleOptions(TypedDict, total=False):
    """Settings of a schedule. One that is left out has its default. `after` is for a preview."""

    cron: str
    every_ms: int
    timezone: str
    starts_at: int | None
    ends_at: int | None
    jitter_ms: int
    paused: bool
    overlap: Overlap
    catch_up: CatchUp
    after: int


class RightsOptions(TypedDict, total=False):
    """What a key or a token allows. One that is left out is that of the key that creates it."""

    scopes: Sequence[ScopeWord]
    prefixes: Sequence[str]
    names: Sequence[str]
    operations: Sequence[Activity]
    create: bool
    node: str | None
    origins: Sequence[str]
    max_streams: int
    max_inflight: int
    rate: int


class TokenOptions(RightsOptions, total=False):
    """A token: for how long, and for whom."""

    ttl_ms: int
    subject: str


class KeyOptions(RightsOptions, total=False):
    """A key: for how long, and what for."""

    ttl_ms: int | None
    note: str


def decode_records(decoder: msgspec.json.Decoder[T], body: bytes, fields: Sequence[str] = ("json", "raw_meta")) -> T:
    """Decode an answer that holds records. They keep half a surrogate pair, which the decoder itself refuses.

    `fields` are those of a record that hold JSON text.
    """
    try:
        return decoder.decode(body)
    except msgspec.DecodeError:
        from topics.model import surrogates  # rare, and it loads numpy

        masked = surrogates.mask(body)
        if masked is None:
            raise
        answer = decoder.decode(masked.text)
        for record in getattr(answer, "records", None) or getattr(answer, "claimed", []):
            for field in fields:
                if not isinstance(text := getattr(record, field), UnsetType):
                    setattr(record, field, masked.restore(text))
        return answer


def decode_json(text: Raw) -> Any:
    """Decode JSON. Half a surrogate pair, which only the standard library accepts, is kept as it is."""
    try:
        return _decode(text)
    except msgspec.DecodeError:
        return json.loads(bytes(text))


def encode(value: object) -> bytes:
    """Return the JSON text of a value. Raise `ValueError` for NaN and infinities, which JSON does not have."""
    text = _encode(value)
    if text.find(b"null") >= 0:  # msgspec writes such numbers as null. `find` takes half the time of `in`.
        _check_numbers(value)
    return text


def _check_numbers(value: object) -> None:
    found = _path([msgspec.to_builtins(value, enc_hook=lambda raw: None)])  # the hook is called for JSON text (`Raw`)
    if found is not None:
        _, *path, number = found
        where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")
        raise ValueError(f"{where or 'the value'} is {number}, which JSON does not have: send None or a string")


def _path(value: Any) -> list[Any] | None:
    """Return the first number that is not finite, after the keys that lead to it, or None."""
    if type(value) is float:
        return None if math.isfinite(value) else [value]
    for key, one in value.items() if type(value) is dict else enumerate(value):
        if type(one) in _SEARCHED and (found := _path(one)) is not None:
            return [key, *found]
    return None


# --- the seqs of the records of one batch

Seqs = Sequence[int | Exception]
"""One seq for each record, or the reason why the record was not written."""


class SeqFuture(Struct, gc=False, eq=False):
    """The seq of one record of a batch, for both clients. `seqs` is a future of `Seqs`."""

    seqs: Any
    index: int

    def __await__(self) -> Generator[Any, None, int]:
        import asyncio

        # The future belongs to the batch: a caller that is cancelled must not cancel it for the others.
        yield from asyncio.shield(self.seqs).__await__()
        return self.result()

    def done(self) -> bool:
        return bool(self.seqs.done())

    def result(self, timeout_s: float | None = None) -> int:
        """Return the seq. Raise the error of the write.

        The sync client waits for it, and raises `TimeoutError` after `timeout_s`. The async client raises
        `asyncio.InvalidStateError` if it is not done.
        """
        found = self._found(timeout_s)
        if isinstance(found, Exception):
            raise found
        return found

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Return the error of the write, or None if it succeeded. Wait as `result` does."""
        error: BaseException | None = self.seqs.exception(*_waits(timeout_s))
        if error is not None:
            return error
        found = self._found(timeout_s)
        return found if isinstance(found, Exception) else None

    def add_done_callback(self, function: Callable[[Self], object]) -> None:
        """Call a function with this future once it is done."""
        self.seqs.add_done_callback(lambda _: function(self))

    def _found(self, timeout_s: float | None) -> int | Exception:
        seqs: Seqs = self.seqs.result(*_waits(timeout_s))
        return seqs[self.index]


def _waits(timeout_s: float | None) -> tuple[float, ...]:
    """Return the arguments of a call that waits for a future: those of asyncio take none."""
    return () if timeout_s is None else (timeout_s,)
