"""What a field of a request, an answer or a message means, for the OpenAPI document and the reference pages.

The meaning is in the annotation of the field, or in `EVERYWHERE` if a name means the same in several types. A field
without either fails `tests/contract/test_openapi.py`. Limits that the settings can change show their default.
"""

from types import ModuleType
from typing import get_type_hints

from msgspec import Struct

from topics.model import consumer, inspection, queue, records, router, topic, watch, wire

_LIMITS = records.Limits()
_TIME = "in milliseconds since 1970"


def _clamped(bounds: tuple[int, int]) -> str:
    return f"{bounds[0]} to {bounds[1]}; a value outside is clamped"


EVERYWHERE = {
    "performance": "timings of the request",
    "warnings": "unknown fields and query parameters that the server ignored; absent if there are none",
    "topic": "the name of the topic",
    "epoch": "the epoch of the topic; changes when the topic is created again or restored",
    "head_seq": "the highest seq assigned so far; 0 if none",
    "earliest_seq": "the first record that is still stored; `head_seq + 1` if there is none",
    "consumer": "the name of the consumer",
    "created": "whether this request created it",
    "next_cursor": "pass it as `cursor` to get the next page; absent on the last page",
    "$seq": "the sequence number of the record in its topic, from 1",
    "$ts": f"when the record was committed, {_TIME}; never decreases within a topic",
    "$node": "the node that wrote the record",
    "$tag": "the tag of the record; with `include_tags`, and in jobs",
    "data": "any JSON value, as the client sent it, token for token",
    "router": "the name of the router",
    "source": "the topic that the router reads",
    "dest": "the topic that the router writes",
    "preserve_node": "whether copies keep the node",
    "preserve_tag": "whether copies keep the tag",
    "allow_cycle": f"whether the router may close a cycle; a record passes at most {router.MAX_HOPS} topics",
    "guarantee": "`exactly_once` gives each copy a key in `meta`, and skips records whose key the destination has",
    "forwarded_total": "the number of records that the router has copied",
    "lag": "the number of seqs between the position and the head",
    "last_error": "why the router does not proceed; null if it does",
    "gap_from": "the first lost seq",
    "gap_to": "the last lost seq",
    "reason": "why: `cap`, `ttl`, `mixed`, `recreated`, `source_trim`, `corrupt`, `restart` or `failover`; there may "
    "be new ones",
    "ready": "the number of jobs that can be claimed",
    "in_flight": "the number of leased jobs",
    "delayed": "the number of jobs whose time has not come",
    "skipped": "seqs that this worker does not hold, or whose lease has another id",
    "lease_ids": "one per seq: only these leases count; for a worker that may have lost its leases",
    "deadline": f"when the lease expires, {_TIME}",
    "deliveries": "how often the job was leased, this time included",
    "lease_id": "the id of the lease",
    "dry_run": "count and change nothing",
    "caught_up": "whether there is nothing more to read",
    "next_from_seq": "the position for the next request: the last seq examined",
    "effective_priority": "the priority in force: the configured one, or 500 halved every 30 seconds without a read",
    "last_write_ts": f"the time of the last write, {_TIME}; null if there was none",
    "queue": "the numbers of jobs; only if the topic is a queue",
    "version": "the version of the server",
    "include_tags": "whether records have `$tag`",
    "lag_records": "the number of unread records",
    "lag_ms": "the age of the oldest unread record; 0 if there is none",
    "lost": "unread records that were lost; null if there are none",
    "updated_ms": f"when the position or a field was last stored, {_TIME}",
    "expire_ms": "forget the consumer after so long without use; 0 is never",
    "max_hold_bytes": "`hold` keeps records past the caps while the topic has at most this size; 0 is unlimited",
    "first_seq": "the seq of the first record",
    "last_seq": "the seq of the last record",
    "bytes": "the size of the stored records",
    "count": "the number of stored records",
    "code": "the name of the error; its meaning never changes",
    "message": "an explanation for people; may change",
    "detail": "depends on the code: the invalid field, a limit, how long to wait",
    "retry_after_ms": "wait so long before the next attempt; absent if that does not help",
    "type": "`queue` makes the topic a queue, whose records are jobs; cannot change later",
    "ttl_ms": "records older than this expire; 0 is off",
    "cap_records": "the maximum number of records; 0 is off",
    "cap_bytes": "the maximum size of the records as they are read; 0 is off",
    "discard": "at the cap, `old` evicts the oldest records and `reject` refuses the write with 422",
    "durable": "shorthand: `true` is the durability `fsync`, `false` is `disk`; `durability` wins if both are set",
    "durability": "when a write is acknowledged, and what survives a crash",
    "priority": f"the order of service under pressure, {_clamped((-topic.PRIORITY_LIMIT, topic.PRIORITY_LIMIT))}; "
    "null is automatic",
    "auto_priority": "if `priority` is null, serve recently read topics first",
    "auto_create": "in the `config` of a write: whether it may create the topic; on a queue: whether the server may "
    "create the `dead_letter` topic",
    "idempotency_window_ms": "how long the topic remembers an idempotency key",
    "dedupe_node": "whether readers can skip the records of their own node",
    "lease_ms": f"queues: the lease of a claimed job, {_clamped(topic.LEASE_MS_RANGE)}",
    "claim_jitter_ms": "queues: collect claims for this long and share the jobs evenly, "
    f"{_clamped(topic.CLAIM_JITTER_MS_RANGE)}",
    "max_deliveries": "queues: after so many deliveries without an ack, the job moves to `dead_letter`; 0 is off",
    "dead_letter": "queues: the dead-letter topic, another one than the queue; null is none",
    "leases_durable": "queues: whether leases and delivery counts survive a restart",
    "archive": "the settings of an archive; null is none",
    "from_seq": "the cursor: return records after this seq; 0 is before the first record",
    "from_ts": f"skip records that were written before this time, {_TIME}",
    "filter": 'only records whose tag matches: a tag, or `["tag", "Eq", tag]`, or `["tag", "Glob", prefix + "*"]`',
    "node": f"skip the records of this node, or of up to {records.MAX_NODES} nodes",
    "include_meta": "whether records have `meta`",
    "meta": "the object that the writer sent with the record",
    "records": f"1 to {_LIMITS.max_batch_records} records; all are stored or none",
    "idempotency_key": "a repeated write with the same key stores nothing, "
    f"1 to {records.MAX_IDEMPOTENCY_KEY_CHARS} characters; the header `Idempotency-Key` has the same effect",
    "create": "whether the write may create the topic; true by default, unless `config` has `auto_create` false",
    "config": "the configuration of the topic if this write creates it; otherwise ignored",
    "disable_backpressure": "under pressure, wait instead of getting 429",
    "deduped": "whether the write repeats an earlier one with the same idempotency key",
    "seqs": f"the jobs, 1 to {_LIMITS.max_claim}",
    "seq": "the position: every record up to this seq is processed",
    "commit": "`true`: everything that the last answer to this consumer had is processed; a seq: everything up to this "
    "one",
    "cursor": "the last seq of the source that the router has processed",
    "tail": "deliver only records that are written from now on",
    "op": "the name of the message",
    "request_id": "repeated in the answer",
}


def types_in(*modules: ModuleType) -> dict[str, type[Struct]]:
    return {
        name: kind
        for module in modules
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, Struct)
    }


TYPES = types_in(consumer, inspection, queue, records, router, topic, watch, wire)


def described(type_name: str) -> dict[str, str]:
    """Return the meanings of the fields of a type that its annotations have, by their names in JSON."""
    kind = TYPES.get(type_name)
    if kind is None:
        return {}
    hints = get_type_hints(kind, include_extras=True)
    texts = {field: getattr(hints[field], "__metadata__", ()) for field in kind.__struct_fields__}
    return {
        name: text
        for name, field in zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
        for text in texts[field]
        if isinstance(text, str)
    }


def meaning(type_name: str, field: str) -> str | None:
    return described(type_name).get(field) or EVERYWHERE.get(field)
