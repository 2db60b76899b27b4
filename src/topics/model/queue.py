"""Request and response types of queues."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Struct, UnsetType

from topics.errors import Code, TopicsError, invalid
from topics.model.records import Limits, MatchWire, too_long
from topics.model.topic import U64, U64_MAX
from topics.model.wire import Json, Performance, Record

MAX_DELAY_MS = 86_400_000
MAX_DELIVER_AT = 2**53  # the largest integer that every JSON reader represents exactly
MAX_REASON_BYTES = 4096
MAX_ERROR_BYTES = 8192
MAX_PROGRESS_BYTES = 256
REDRIVE_LIMIT = 1000
MAX_REDRIVE = 10_000

JobState = Literal["ready", "in_flight", "delayed"]
JOB_STATES: tuple[JobState, ...] = ("ready", "in_flight", "delayed")


class JobError(Struct, frozen=True, omit_defaults=True, gc=False):
    """An exception as a worker reports it."""

    type: Annotated[str | None, "its class"] = None
    message: Annotated[str | None, "its text"] = None
    stack: Annotated[str | None, "where it was raised"] = None


Why = tuple[str, JobError | None]  # the reason of a nack in words, and the exception


class Reason(Struct, frozen=True, omit_defaults=True, gc=False):
    """Why one delivery of a job failed: a nack with a reason, a lease that expired, a stream that was closed."""

    at: Annotated[U64, "when it failed, in milliseconds since 1970"]
    node: Annotated[str, "the worker that had the job"]
    delivery: Annotated[U64, "the number of the delivery"]
    reason: str
    error: Annotated[JobError | None, "the exception; the last reason of a job alone has it"] = None


class ClaimRequest(Struct, gc=False):
    """Body of `POST /v0/topics/:topic/claim`. With `wait_ms`, the server waits for a job if there is none."""

    node: Annotated[str, "the name of the worker, at most 128 bytes"]
    max: Annotated[U64, "the maximum number of jobs; clamped to 1000"] = 1
    lease_ms: Annotated[
        U64 | None, "the lease of each job; the topic's by default; 100 to 86400000; a value outside is clamped"
    ] = None
    wait_ms: Annotated[U64, "wait for a job if there is none; clamped to 30000"] = 0


class AckRequest(Struct, gc=False, kw_only=True):
    """Body of `POST /v0/topics/:topic/ack`."""

    node: Annotated[str, "the worker that holds the leases"]
    seqs: list[U64]
    lease_ids: list[str] | None = None


class NackRequest(AckRequest, gc=False, kw_only=True):
    """Body of `POST /v0/topics/:topic/nack`."""

    delay_ms: Annotated[
        U64 | None,
        "the jobs are ready after this time; the queue's `retry` by default, or at once; clamped to 86400000",
    ] = None
    retry: Annotated[bool, "without `delay_ms`, follow the default policy if the queue has none"] = False
    reason: Annotated[str | None, "why the jobs failed, at most 4096 bytes"] = None
    error: Annotated[JobError | None, "the exception, at most 8192 bytes in all"] = None


class Progress(Struct, frozen=True, omit_defaults=True, gc=False):
    """How far the worker of a job has come."""

    share: Annotated[float, "0 to 1"]
    text: Annotated[str | None, "what the worker does, at most 256 bytes"] = None


class ExtendRequest(AckRequest, gc=False, kw_only=True):
    """Body of `POST /v0/topics/:topic/extend`. Has `lease_ms`, or `progress`, or both."""

    lease_ms: Annotated[
        U64 | None,
        "the leases run for this time from now, 100 to 86400000; a value outside is clamped; unchanged by default",
    ] = None
    progress: Annotated[Progress | None, "how far the jobs are: shown while these leases last"] = None


class RedriveRequest(Struct, gc=False, forbid_unknown_fields=True):
    """Body of `POST /v0/topics/:topic/redrive`. `seqs` are seqs of the dead-letter topic."""

    match: Annotated[
        MatchWire | UnsetType,
        'move only dead letters whose tag matches: a tag, or `["tag", "Eq", tag]`, or `["tag", "Glob", prefix + "*"]`',
    ] = UNSET
    seqs: Annotated[list[U64] | None, "move these dead letters: seqs of the dead-letter topic"] = None
    from_seq: Annotated[U64, "start after this seq of the dead-letter topic"] = 0
    limit: Annotated[U64, "the maximum number of dead letters to move; clamped to 10000"] = REDRIVE_LIMIT
    dry_run: bool = False
    dead_letter: Annotated[str | None, "the dead-letter topic; the one of the queue by default"] = None


class ClaimedJob(Record, kw_only=True):
    """One leased job."""

    lease_id: str
    deadline: U64
    deliveries: U64
    reasons: Annotated[
        tuple[Reason, ...], "why earlier deliveries failed, the last one last; absent if none is known"
    ] = ()


class ClaimAnswer(Struct):
    topic: str
    claimed: Annotated[list[ClaimedJob], "the jobs that the worker now holds"]
    count: Annotated[U64, "the number of these jobs"]
    ready: U64
    performance: Performance


class AckAnswer(Struct):
    topic: str
    acked: Annotated[U64, "the number of jobs that were deleted"]
    skipped: list[U64]
    ready: U64
    in_flight: U64
    performance: Performance
    cancelled: Annotated[list[U64] | UnsetType, "skipped jobs that were deleted while the worker held them"] = UNSET


class NackAnswer(Struct):
    topic: str
    nacked: Annotated[U64, "the number of jobs that the worker gave back"]
    skipped: list[U64]
    ready: U64
    in_flight: U64
    performance: Performance
    cancelled: Annotated[list[U64] | UnsetType, "skipped jobs that were deleted while the worker held them"] = UNSET
    dead_lettered: Annotated[U64, "of these, jobs that moved to the dead-letter topic; absent if none did"] = 0


class ExtendAnswer(Struct):
    topic: str
    extended: Annotated[U64, "the number of extended leases"]
    skipped: list[U64]
    deadlines: Annotated[dict[str, U64], "the new deadline by seq, in milliseconds since 1970"]
    performance: Performance
    cancelled: Annotated[list[U64] | UnsetType, "skipped jobs that were deleted while the worker held them"] = UNSET


class RedriveAnswer(Struct):
    """The dead letters that were moved. Repeat the request from `next_from_seq` until `caught_up`."""

    topic: str
    dead_letter: Annotated[str, "the dead-letter topic"]
    redriven: Annotated[U64, "the number of moved dead letters"]
    seqs: Annotated[list[U64], "their seqs in the dead-letter topic"]
    dry_run: bool
    next_from_seq: U64
    caught_up: bool
    performance: Performance


class ListedJob(Struct, rename={"seq": "$seq", "ts": "$ts", "tag": "$tag", "key": "$key", "sender": "$node"}):
    """One job with its state, and the lease fields if it is leased."""

    seq: U64
    state: Annotated[JobState, "the state of the job"]
    deliveries: U64
    priority: Annotated[U64, "0 to 9; 9 is served first"]
    ts: U64
    data: Json
    blocked: Annotated[bool, "whether a ready job waits for an earlier one of its key"] = False
    deliver_at: Annotated[U64 | None, "when a delayed job becomes ready, in milliseconds since 1970"] = None
    node: Annotated[str | None, "the worker that holds the job"] = None
    lease_id: str | None = None
    deadline: U64 | None = None
    progress: Annotated[Progress | None, "how far the worker has come, if it says so"] = None
    reasons: Annotated[list[Reason], "why earlier deliveries failed, the last one last; absent if none is known"] = []
    tag: str | None = None
    key: str | None = None
    sender: str | None = None
    meta: dict[str, Json] | None = None


class JobList(Struct):
    topic: str
    jobs: Annotated[list[ListedJob], "a page of jobs in the order of the log"]
    ready: U64
    in_flight: U64
    delayed: U64
    performance: Performance
    next_cursor: str | None = None


def not_a_queue(name: str) -> TopicsError:
    return TopicsError(Code.NOT_A_QUEUE, f'topic "{name}" is a log, not a queue', detail={"topic": name})


def check_worker(node: str, limits: Limits) -> str:
    if not node:
        raise invalid("node must not be empty", field="node")
    if len(node) * 4 > limits.max_node_bytes and len(node.encode()) > limits.max_node_bytes:
        raise too_long("node", len(node.encode()), limits.max_node_bytes)
    return node


def check_held(node: str, seqs: list[int], lease_ids: list[str] | None, limits: Limits) -> None:
    """Check the fields that ack, nack and extend share. Raise `invalid_request` or `batch_too_large`."""
    check_worker(node, limits)
    if not seqs:
        raise invalid("seqs must not be empty", field="seqs")
    if len(seqs) > limits.max_claim:
        raise TopicsError(
            Code.BATCH_TOO_LARGE,
            f"seqs has {len(seqs)} jobs; the limit is {limits.max_claim}; send several requests",
            detail={"seqs": len(seqs), "max": limits.max_claim},
        )
    if max(seqs) > U64_MAX:
        raise invalid("seqs: a seq does not fit in 64 bits", field="seqs")
    if lease_ids is not None and len(lease_ids) != len(seqs):
        raise invalid("lease_ids must have one entry per seq", field="lease_ids")


def why_of(wanted: NackRequest) -> Why | None:
    """Return the reason of a nack, or else its error in one line, and the error. Raise if one is too long."""
    error = wanted.error or JobError()
    if len((wanted.reason or "").encode()) > MAX_REASON_BYTES:
        raise invalid(f"reason may have at most {MAX_REASON_BYTES} bytes", field="reason")
    if sum(len((text or "").encode()) for text in (error.type, error.message, error.stack)) > MAX_ERROR_BYTES:
        raise invalid(f"error may have at most {MAX_ERROR_BYTES} bytes in all", field="error")
    reason = wanted.reason or ": ".join(text for text in (error.type, error.message) if text)[:MAX_REASON_BYTES]
    return (reason, wanted.error) if reason or wanted.error else None


def check_extend(wanted: ExtendRequest) -> None:
    progress = wanted.progress
    if wanted.lease_ms is None and progress is None:
        raise invalid("set lease_ms or progress", field="lease_ms")
    if progress is not None and not 0 <= progress.share <= 1:
        raise invalid("progress.share must be a number from 0 to 1", field="progress.share")
    if progress is not None and len((progress.text or "").encode()) > MAX_PROGRESS_BYTES:
        raise invalid(f"progress.text may have at most {MAX_PROGRESS_BYTES} bytes", field="progress.text")
