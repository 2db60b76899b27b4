"""What each field of a request or an answer means, for the OpenAPI document and the reference pages.

`EVERYWHERE` has the meaning of a name that means the same in every type. `FIELDS` has the rest, by type. A field in
neither fails `tests/contract/test_openapi.py`. Limits that the settings can change show their default.
"""

from topics.config import Settings
from topics.model import consumer, inspection, queue, records, router, topic, watch

_LIMITS = records.Limits()


def _clamped(bounds: tuple[int, int]) -> str:
    return f"{bounds[0]} to {bounds[1]}; a value outside is clamped"


_TIME = "in milliseconds since 1970"
_EPOCH_IS = "changes when the topic is created again or restored"
_MATCH = 'a tag, or `["tag", "Eq", tag]`, or `["tag", "Glob", prefix + "*"]`'
_WAIT = f"clamped to {records.MAX_WAIT_MS}"
_SHOWN_NODE = f"at most {_LIMITS.max_node_bytes} bytes"
_NODES = f"skip the records of this node, or of up to {records.MAX_NODES} nodes"
_HELD_SEQS = f"the jobs, 1 to {_LIMITS.max_claim}"
_COMMIT = "`true`: everything that the last answer to this consumer had is processed; a seq: everything up to this one"

EVERYWHERE = {
    "performance": "timings of the request",
    "warnings": "unknown fields and query parameters that the server ignored; absent if there are none",
    "topic": "the name of the topic",
    "epoch": f"the epoch of the topic; {_EPOCH_IS}",
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
    "reason": "why: `cap`, `ttl`, `mixed`, `recreated`, `source_trim`, `corrupt` or `restart`; there may be new ones",
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
}

_CONFIG = {
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
}
_HOLD = {"hold": "keep records past their TTL until an archive reports that it has them"}
_RECORD_READ = {"meta": "the object that the writer sent with the record"}
_READ = {
    "from_seq": "the cursor: return records after this seq; 0 is before the first record",
    "node": _NODES,
    "filter": f"only records whose tag matches: {_MATCH}",
    "from_ts": f"skip records that were written before this time, {_TIME}",
    "epoch": "the epoch that `from_seq` belongs to; if it is another one, the answer has a `recreated` tombstone",
    "include_meta": "whether records have `meta`",
}
_CONSUMER_STATE = {
    "seq": "the position: every record up to this seq is processed",
    "meta": "the object that was stored with the consumer",
    "hold": "whether the caps evict no records that this consumer has not read",
    "epoch": f"the epoch that the position belongs to; {_EPOCH_IS}",
}
_VIEW = {
    "node": _NODES,
    "limit": f"the maximum number of records in a frame; clamped to {_LIMITS.max_limit}",
    "max_batch_bytes": f"the maximum size of a frame; clamped to {records.MAX_BATCH_BYTES}",
    "include_meta": "whether records have `meta`; as `include_data` by default",
    "include_data": "whether records have `data`",
    "consistency": "`strong` delivers a record only after it is synced to disk",
}
_POSITION = {
    "from_seq": "deliver records after this seq; 0 starts at the earliest record",
    "tail": "deliver only records that are written from now on",
    "filter": f"deliver only records whose tag matches: {_MATCH}",
    "epoch": _READ["epoch"].replace("answer has", "stream starts with"),
    "consumer": "begin at the position of this consumer, instead of `from_seq`",
    "commit": _COMMIT,
}
_WRITE = {
    "records": f"1 to {_LIMITS.max_batch_records} records; all are stored or none",
    "node": f"the node of records without one, {_SHOWN_NODE}",
    "idempotency_key": "a repeated write with the same key stores nothing, "
    f"1 to {records.MAX_IDEMPOTENCY_KEY_CHARS} characters; the header `Idempotency-Key` has the same effect",
    "create": "whether the write may create the topic; true by default, unless `config` has `auto_create` false",
    "config": "the configuration of the topic if this write creates it; otherwise ignored",
    "disable_backpressure": "under pressure, wait instead of getting 429",
}
_HELD = {"node": "the worker that holds the leases", "seqs": _HELD_SEQS}
_ROUTER = {
    "filter": "only records whose tag matches are copied; null is all",
    "cursor": "the last seq of the source that the router has processed",
    "lag": "the number of source records that the router has not processed",
}
_TIMELINE_COUNTS = {
    "live": "the number of stored records",
    "deleted": "the number of deleted records",
    "lost": "the number of lost records",
}

_SOCKET = {
    "op": "the name of the message",
    "request_id": "repeated in the answer",
}
_ANSWERED = {
    "op": "the name of the message",
    "request_id": "that of the command; absent if it had none",
}
_RETRY = "wait so long before the next attempt; absent if that does not help"
_SEQS_OF_WRITE = {
    "created": "whether this request created the topic",
    "deduped": "whether the write repeats an earlier one with the same idempotency key",
    "seqs": "the seq of each record; absent with `return_seqs` false",
}

FIELDS: dict[str, dict[str, str]] = {
    "ErrorAnswer": {"error": "what went wrong"},
    "ErrorBody": {
        "code": "the name of the error; its meaning never changes",
        "message": "an explanation for people; may change",
        "detail": "depends on the code: the invalid field, a limit, how long to wait",
    },
    "Performance": {
        "server_total_ms": "time from the request to its answer",
        "wal_append_ms": "time until the write was in the log",
        "fsync_ms": "time that the write waited for the disk",
        "records_scanned": "the number of records that a read examined",
        "throttle_wait_ms": "time that a write was held back under pressure",
    },
    "ConfigPatch": _CONFIG,
    "TopicConfig": _CONFIG,
    "ArchivePatch": _HOLD,
    "ArchiveConfig": _HOLD,
    "TopicPut": {"config": "the complete configuration after the request"},
    "TopicState": {
        "type": "`log` or `queue`",
        "next_seq": "the seq of the next record",
        "config": "the configuration",
        "last_read_ts": f"the time of the last read, {_TIME}; null if there was none",
        "archived_seq": "the last seq that an archive has reported; absent without an archive",
        "trimmed_seq": "the last seq that an archive has deleted from the topic; absent without an archive",
        "archive": "the backlog of the archive; absent without an archive",
    },
    "QueueCounts": {
        "dead_lettered": "the number of jobs that moved to the dead-letter topic",
        "dead_letter_error": "why jobs cannot move to the dead-letter topic; absent if they can",
    },
    "ArchiveStanding": {
        "unarchived": "the number of live records that are not archived",
        "overdue": "those of them that `hold` keeps past their TTL",
        "evicted": "the number of records that a cap evicted before they were archived",
    },
    "TopicList": {"topics": "a page of topics by name"},
    "TopicSummary": {
        "type": "`log` or `queue`",
        "durable": "whether the durability is `fsync`",
        "config": "the configuration; with `details=true`",
        "lost": "the number of records that the topic lost; with `details=true`",
    },
    "TimelineAnswer": {
        "archived_seq": "the last seq that an archive has reported; 0 if none",
        "from_seq": "the first seq of the window",
        "to_seq": "the last seq of the window",
        "resolution": "1 if the ranges are exact; otherwise ranges shorter than this may be merged",
        "ranges": f"the ranges in order; about {inspection.RANGES} by default, at most {inspection.MAX_RANGES}",
        **_TIMELINE_COUNTS,
    },
    "TimelineRange": {
        "from_seq": "the first seq of the range",
        "to_seq": "the last seq of the range",
        "state": "`live`, `deleted`, `archived`, the reason of a loss, or `merged`",
        **{name: f"{text}, if the state is `merged`" for name, text in _TIMELINE_COUNTS.items()},
    },
    "TopicDropped": {
        "deleted": "whether the topic existed",
        "routers_removed": "the routers from and to the topic, which were deleted with it",
    },
    "WriteRequest": _WRITE,
    "NewRecord": {
        "data": f"any JSON value; with `meta` at most {_LIMITS.max_record_bytes} bytes",
        "tag": f"a text to filter and delete by, at most {_LIMITS.max_tag_bytes} bytes; many records can share one",
        "node": f"the writer of the record, {_SHOWN_NODE}",
        "meta": f"an object with at most {records.MAX_META_KEYS} keys and {_LIMITS.max_meta_bytes} bytes",
        "priority": "queues: 0 to 9; 9 is served first",
        "delay_ms": "queues: deliver the job after this time",
        "deliver_at": f"queues: do not deliver the job before this time, {_TIME}; instead of `delay_ms`",
    },
    "Written": _SEQS_OF_WRITE | {"count": "the number of records written"},
    "DiffRequest": _READ
    | {
        "limit": f"the maximum number of records; 0 is {records.DEFAULT_LIMIT}; clamped to {_LIMITS.max_limit}",
        "wait_ms": f"wait for new records if there are none; {_WAIT}",
        "max_batch_bytes": f"the maximum size of the records; 0 is {records.DEFAULT_BATCH_BYTES}; clamped to "
        f"{records.MAX_BATCH_BYTES}; the answer has at least one record",
        "consumer": "read from the position of this consumer, instead of `from_seq`",
        "commit": _COMMIT,
    },
    "Diff": {
        "records": "the records in the order of their seqs",
        "tombstone": "the range that was lost before the records; null if nothing was",
        "consumer": "the consumer of the request; absent without one",
        "committed_seq": "the position of the consumer; absent without one",
    },
    "Record": _RECORD_READ,
    "TombstoneAnswer": {"missed_estimate": "the number of lost records in the range; with `restart`, an upper bound"},
    "ScanRequest": _READ | {"upto_seq": "the last seq to read; the head at the start of the scan by default"},
    "DeleteRequest": {
        "before_seq": "delete records below this seq",
        "match": f"delete records whose tag matches: {_MATCH}",
        "seqs": f"delete these records, instead of `before_seq` and `match`; at most {_LIMITS.max_batch_records}",
        "epoch": "delete only if the topic has this epoch, else 409",
    },
    "RecordsDeleted": {"deleted": "the number of deleted records; with `dry_run`, of those that match"},
    "ArchivedRequest": {
        "seq": "the archive has every record up to this seq",
        "epoch": "the epoch of the archived records",
        "trimmed_seq": "the archive has deleted the records up to this seq from the topic",
    },
    "ArchivedAnswer": {
        "archived_seq": "the last seq that the archive has",
        "moved": "whether this request advanced it",
    },
    "ConsumerRequest": _CONSUMER_STATE
    | {
        "seq": "the position: every record up to this seq is processed; at most the head; a new consumer begins at 0",
        "epoch": "change the consumer only if the topic has this epoch, else 409",
        "if_seq": "change the consumer only if it stands at this seq, else 409; null: only if it does not exist",
        "meta": f"any object of at most {consumer.MAX_META_BYTES} bytes",
        "hold": "let the caps evict no records that this consumer has not read; needs the scope `admin`",
    },
    "ConsumerPut": {name: _CONSUMER_STATE[name] for name in ("seq", "epoch")},
    "ConsumerState": _CONSUMER_STATE,
    "ConsumerSummary": _CONSUMER_STATE,
    "Lost": {
        "records": "how many",
        "gaps": f"the ranges, at most the first {consumer.MAX_GAPS}",
    },
    "ConsumerDropped": {"deleted": "whether the consumer existed"},
    "ConsumerList": {"consumers": "a page of consumers by topic and name"},
    "CommitRequest": {"commits": f"1 to {_LIMITS.max_batch_records} commits, each by itself"},
    "Commit": {"seq": "every record up to this seq is processed"},
    "CommitAnswer": {
        "committed": "the number of commits that took effect, or had before",
        "refused": "the commits that changed nothing",
    },
    "RefusedCommit": {"code": "the name of the error", "message": "an explanation for people"},
    "WatchRequest": _VIEW
    | {
        "topics": f"1 to {Settings.max_watch_topics} names with their options; a name that ends in `*` is a "
        "pattern for all current and future topics with this prefix",
        "heartbeat_ms": f"the time between two heartbeats, {_clamped(watch.HEARTBEAT_MS_RANGE)}",
        "cursor": "the event id of an earlier session, to continue there",
    },
    "TopicOptions": _POSITION,
    "WatchCreated": {
        "wid": "the id of the session",
        "stream_url": "the path of the event stream",
        "session_ttl_ms": "the session expires so long after its last stream closes",
        "topics": "the position of each topic",
    },
    "WatchedTopic": {"from_seq": "the position at which delivery begins"},
    "ClaimRequest": {
        "node": f"the name of the worker, {_SHOWN_NODE}",
        "max": f"the maximum number of jobs; clamped to {_LIMITS.max_claim}",
        "lease_ms": f"the lease of each job; the topic's by default; {_clamped(topic.LEASE_MS_RANGE)}",
        "wait_ms": f"wait for a job if there is none; {_WAIT}",
    },
    "ClaimAnswer": {"claimed": "the jobs that the worker now holds", "count": "the number of these jobs"},
    "ClaimedJob": _RECORD_READ,
    "AckRequest": _HELD,
    "AckAnswer": {"acked": "the number of jobs that were deleted"},
    "NackRequest": _HELD | {"delay_ms": f"the jobs are ready after this time; clamped to {queue.MAX_DELAY_MS}"},
    "NackAnswer": {"nacked": "the number of jobs that returned to the queue"},
    "ExtendRequest": _HELD | {"lease_ms": f"the leases run for this time from now, {_clamped(topic.LEASE_MS_RANGE)}"},
    "ExtendAnswer": {
        "extended": "the number of extended leases",
        "deadlines": f"the new deadline by seq, {_TIME}",
    },
    "JobList": {"jobs": "a page of jobs in the order of the log"},
    "ListedJob": _RECORD_READ
    | {
        "state": "the state of the job",
        "priority": "0 to 9; 9 is served first",
        "deliver_at": f"when a delayed job becomes ready, {_TIME}",
        "node": "the worker that holds the job",
    },
    "RedriveRequest": {
        "match": f"move only dead letters whose tag matches: {_MATCH}",
        "seqs": "move these dead letters: seqs of the dead-letter topic",
        "from_seq": "start after this seq of the dead-letter topic",
        "limit": f"the maximum number of dead letters to move; clamped to {queue.MAX_REDRIVE}",
        "dead_letter": "the dead-letter topic; the one of the queue by default",
    },
    "RedriveAnswer": {
        "dead_letter": "the dead-letter topic",
        "redriven": "the number of moved dead letters",
        "seqs": "their seqs in the dead-letter topic",
    },
    "RouterRequest": {
        "dest": "the topic that the router writes; another one than `source`, with no other source",
        "create_dest": "whether the server creates the destination if it does not exist",
        "filter": f"copy only records whose tag matches: {_MATCH}",
        "from_seq": "where a new router starts: after this seq of the source; the head by default",
        "from_ts": f"where a new router starts: at the first record of this time, {_TIME}",
    },
    "RouterAnswer": _ROUTER,
    "RouterPutAnswer": _ROUTER,
    "RouterSummary": {name: _ROUTER[name] for name in ("cursor", "lag")},
    "RouterList": {"routers": "a page of routers by name"},
    "RouterDropped": {"deleted": "whether the router existed"},
    "PreviewRequest": {
        "source": "the topic to examine; the source of the router by default",
        "filter": f"the filter to try; the one of the router by default: {_MATCH}",
        "from_seq": "examine records after this seq",
        "from_ts": f"skip records that were written before this time, {_TIME}",
    },
    "PreviewAnswer": {
        "filter": "the filter that was tried; null is none",
        "from_seq": "records after this seq were examined",
        "matched": "the number of records that the router would copy",
        "bytes": "the size of these records",
        "scanned": "the number of live records examined",
        "first_seq": "the first matching seq; null if there is none",
        "last_seq": "the last matching seq; null if there is none",
    },
    "Health": {"status": "the process is alive", "uptime_ms": "time since the start"},
    "Ready": {
        "status": "the server can serve",
        "wal_replay_complete": "whether the log has been replayed",
        "topics": "the number of topics",
    },
    "Whoami": {
        "key": "the short name of the key; null on a server without keys",
        "scopes": "what the key may do",
        "prefixes": "the names of topics that the key may use; empty: all",
    },
    "Samples": {
        "interval_ms": "time between two rows",
        "capacity": "the number of rows that the server keeps",
        "columns": "the names of the values of a row",
        "rows": "the values, oldest first",
    },
    "Index": {
        "name": "`topics`",
        "console": "the path of the console; null if it is turned off",
        "openapi": "the path of the OpenAPI document",
        "client": "the path of the JavaScript client",
        "health": "the path of the health probe",
    },
}

# Messages of a WebSocket, by type.
MESSAGES: dict[str, dict[str, str]] = {
    "Subscribe": _SOCKET
    | _VIEW
    | _POSITION
    | {
        "topic": "one topic, or a pattern, with the options beside it",
        "topics": "several topics and patterns, each with its options; instead of `topic`",
        "lenient": "skip topics that do not exist instead of failing",
    },
    "Unsubscribe": _SOCKET | {"topic": "the topic, or the pattern"},
    "Publish": _SOCKET | _WRITE | {"return_seqs": "whether the answer lists every seq"},
    "CommitCommand": _SOCKET
    | {
        "seq": "every record up to this seq is processed",
        "consumer": "the consumer; that of the subscription by default",
    },
    "Ping": _SOCKET,
    "PublishAck": _ANSWERED | _SEQS_OF_WRITE,
    "Subscribed": _ANSWERED | {"topics": "the position of each topic that is delivered now"},
    "Unsubscribed": _ANSWERED | {"topic": "the topic, or the pattern"},
    "Committed": _ANSWERED | {"seq": "the position of the consumer"},
    "Pong": _ANSWERED,
    "SocketError": _ANSWERED
    | FIELDS["ErrorBody"]
    | {"topics": "the topics whose delivery is paused, or that are not delivered", "retry_after_ms": _RETRY},
    "RecordEvent": {
        "records": "one or more records in the order of their seqs",
        "from_seq": "the position before these records",
        "to_seq": "the position after these records: where to resume",
    },
    "TombstoneEvent": {
        "missed_estimate": "how many records this reader missed at most",
        "reason": "why; `from_seq_too_old` if the gap was there when an event stream began: then `cause` says why",
        "cause": "why, if `reason` is `from_seq_too_old`; absent otherwise",
    },
    "TopicDeletedEvent": {"reason": "`deleted`", "head_seq": "the last seq that the topic had"},
    "JobEvent": _RECORD_READ,
    "ErrorEvent": {
        "code": "an HTTP status",
        "error": "an explanation for people; may change",
        "topic": "the queue that was deleted",
        "topics": "the topics whose delivery is paused",
        "retry_after_ms": _RETRY,
    },
}


def meaning(type_name: str, field: str) -> str | None:
    """Return what a field of a request or an answer means, or None if the table does not have it."""
    return FIELDS.get(type_name, {}).get(field) or EVERYWHERE.get(field)


def message_meaning(type_name: str, field: str) -> str | None:
    """Return what a field of a WebSocket message means, or None if the table does not have it."""
    return MESSAGES.get(type_name, {}).get(field) or EVERYWHERE.get(field)
