"""Request and response types of queues."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from topics.errors import Code, TopicsError, invalid
from topics.model.records import Limits, MatchWire, too_long
from topics.model.topic import LEASE_MS_RANGE, U64, U64_MAX, clamp
from topics.model.wire import Json, Performance

MAX_DELAY_MS = 86_400_000
MAX_DELIVER_AT = 2**53  # the largest integer that every JSON reader represents exactly
REDRIVE_LIMIT = 1000
MAX_REDRIVE = 10_000

JobState = Literal["ready", "in_flight", "delayed"]
JOB_STATES: tuple[JobState, ...] = ("ready", "in_flight", "delayed")


class ClaimRequest(Struct, gc=False):
    """Body of `POST /v0/topics/:topic/claim`. With `wait_ms`, the server waits for a job if there is none."""

    node: str
    max: U64 = 1
    lease_ms: U64 | None = None
    wait_ms: U64 = 0


class AckRequest(Struct, gc=False):
    """Body of `POST /v0/topics/:topic/ack`."""

    node: str
    seqs: list[U64]
    lease_ids: list[str] | None = None


class NackRequest(Struct, gc=False):
    """Body of `POST /v0/topics/:topic/nack`."""

    node: str
    seqs: list[U64]
    lease_ids: list[str] | None = None
    delay_ms: U64 = 0


class ExtendRequest(Struct, gc=False):
    """Body of `POST /v0/topics/:topic/extend`. The leases run for `lease_ms` from now."""

    node: str
    seqs: list[U64]
    lease_ms: U64
    lease_ids: list[str] | None = None


class RedriveRequest(Struct, gc=False, forbid_unknown_fields=True):
    """Body of `POST /v0/topics/:topic/redrive`. `seqs` are seqs of the dead-letter topic."""

    match: MatchWire | UnsetType = UNSET
    seqs: list[U64] | None = None
    from_seq: U64 = 0
    limit: U64 = REDRIVE_LIMIT
    dry_run: bool = False
    dead_letter: str | None = None


class ClaimedJob(Struct, rename={"seq": "$seq", "ts": "$ts", "tag": "$tag", "sender": "$node"}):
    """One leased job."""

    seq: U64
    lease_id: str
    deadline: U64
    deliveries: U64
    ts: U64
    data: Json
    tag: str | None = None
    sender: str | None = None
    meta: dict[str, Json] | None = None


class ClaimAnswer(Struct):
    topic: str
    claimed: list[ClaimedJob]
    count: U64
    ready: U64
    performance: Performance


class AckAnswer(Struct):
    topic: str
    acked: U64
    skipped: list[U64]
    ready: U64
    in_flight: U64
    performance: Performance


class NackAnswer(Struct):
    topic: str
    nacked: U64
    skipped: list[U64]
    ready: U64
    in_flight: U64
    performance: Performance


class ExtendAnswer(Struct):
    topic: str
    extended: U64
    skipped: list[U64]
    deadlines: dict[str, U64]
    performance: Performance


class RedriveAnswer(Struct):
    """The dead letters that were moved. Repeat the request from `next_from_seq` until `caught_up`."""

    topic: str
    dead_letter: str
    redriven: U64
    seqs: list[U64]
    dry_run: bool
    next_from_seq: U64
    caught_up: bool
    performance: Performance


class ListedJob(Struct, rename={"seq": "$seq", "ts": "$ts", "tag": "$tag", "sender": "$node"}):
    """One job with its state, and the lease fields if it is leased."""

    seq: U64
    state: JobState
    deliveries: U64
    priority: U64
    ts: U64
    data: Json
    deliver_at: U64 | None = None
    node: str | None = None
    lease_id: str | None = None
    deadline: U64 | None = None
    tag: str | None = None
    sender: str | None = None
    meta: dict[str, Json] | None = None


class JobList(Struct):
    topic: str
    jobs: list[ListedJob]
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


def lease_ms_or(default_ms: int, given_ms: int | None) -> int:
    return default_ms if given_ms is None else clamp(given_ms, *LEASE_MS_RANGE)
