/** An expected failure. Each error code of the server is a subclass. */
export class TopicsError extends Error {
    /**
     * @param {string} message
     * @param {{code?: string, status?: number, detail?: any, retryable?: boolean, retryAfterMs?: number|null, cause?: unknown}} [fields]
     */
    constructor(message: string, fields?: {
        code?: string;
        status?: number;
        detail?: any;
        retryable?: boolean;
        retryAfterMs?: number | null;
        cause?: unknown;
    });
    /** The stable name of the error, for example `topic_not_found`. */
    code: string;
    /** The HTTP status; 0 if the server did not answer. */
    status: number;
    /** What the server says beside the message. @type {any} */
    detail: any;
    /** Whether the same request can succeed later. */
    retryable: boolean;
    /** How long the server asks to wait, in ms. @type {number|null} */
    retryAfterMs: number | null;
    /** Whether the client has another address: a server there may take the request, now or soon. */
    hasOthers: boolean;
}
/** The request is malformed: see `detail.field`. */
export class InvalidRequest extends TopicsError {
}
/** The batch has too many records or bytes. */
export class BatchTooLarge extends TopicsError {
}
/** One record is larger than the server or the topic allows. */
export class RecordTooLarge extends TopicsError {
}
/** The key is missing or unknown. */
export class Unauthorized extends TopicsError {
}
/** The key lacks a scope, or the name lies outside its prefixes. */
export class Forbidden extends TopicsError {
}
/** The path does not have this method: the server is older than the client. */
export class MethodNotAllowed extends InvalidRequest {
}
/** The server cannot answer in the format that was asked for. */
export class NotAcceptable extends InvalidRequest {
}
/** The content type of the body is not JSON. */
export class UnsupportedMediaType extends InvalidRequest {
}
/** The headers of the request are larger than the server allows. */
export class HeadersTooLarge extends InvalidRequest {
}
/** The path or the watch session does not exist. */
export class NotFound extends TopicsError {
}
/** The watch session has ended. */
export class SessionGone extends NotFound {
}
/** The topic does not exist. */
export class TopicNotFound extends TopicsError {
}
/** The router does not exist. */
export class RouterNotFound extends TopicsError {
}
/** The schedule does not exist. */
export class ScheduleNotFound extends TopicsError {
}
/** The topic has no consumer of this name. */
export class ConsumerNotFound extends TopicsError {
}
/** The consumer is not where `ifSeq` says: it is at `detail.seq`. */
export class ConsumerMoved extends TopicsError {
}
/** The router would close a cycle: see `detail.cycle`. */
export class RouterCycle extends TopicsError {
}
/** The topic or router exists with a configuration that excludes this one. */
export class TopicExistsIncompatible extends TopicsError {
}
/** The topic holds records, and `ifEmpty` was set. */
export class SchemaViolation extends TopicsError {
}
export class SchemaIncompatible extends TopicsError {
}
export class TopicNotEmpty extends TopicsError {
}
/** The topic is not a queue. */
export class NotAQueue extends TopicsError {
}
/** The topic was created again since this epoch. */
export class EpochMismatch extends TopicsError {
}
/** The body is larger than the server allows. */
export class PayloadTooLarge extends TopicsError {
}
/** The server follows another one and takes no writes: `detail.writer` is the address of that one. */
export class NotWriter extends TopicsError {
}
/** The topic is full and rejects writes. */
export class TopicFull extends TopicsError {
}
/** The statement is wrong, takes too long or needs too much memory: the message says which. */
export class QueryFailed extends TopicsError {
}
/** The server cannot answer SQL: the message says why. */
export class SqlUnavailable extends TopicsError {
}
/** The server is busy, or a limit is reached: retry after `retryAfterMs`. */
export class Throttled extends TopicsError {
}
/** The server failed: see its log. */
export class InternalError extends TopicsError {
}
/** The server recovers its data, shuts down, or cannot write: retry after `retryAfterMs`. */
export class Unavailable extends TopicsError {
}
/** The server recovers its data after a start. */
export class NotReady extends Unavailable {
}
/** The server shuts down. */
export class ShuttingDown extends Unavailable {
}
/** The server cannot write to its disk: see `detail.reason`. */
export class ReadOnly extends Unavailable {
}
/** The server cannot read stored records now, because a disk is not mounted, for example: see `detail.file`. */
export class StorageUnavailable extends Unavailable {
}
/** The write needs the replica, which does not answer: `detail.outcome` says whether it may take effect. */
export class ReplicaUnavailable extends Unavailable {
}
/** Another server has taken over: this one accepts no writes. */
export class Fenced extends Unavailable {
}
/** The server did not get the whole request in time. */
export class RequestTimeout extends Unavailable {
}
/** The server did not answer: wrong address, stopped, or the connection broke. */
export class Unreachable extends TopicsError {
}
/** The answer did not come within the time limit. */
export class TimedOut extends Unreachable {
}
/** A write was not confirmed before its idempotency key expired: it may or may not have happened. */
export class OutcomeUnknown extends TopicsError {
}
/** The address is not the URL of a server. */
export class BadUrl extends TopicsError {
}
/**
 * One record of a topic. `T` is the type of its data, as in `topics.read<Order>("orders")`; nothing checks it at run time.
 * @template [T=any]
 */
export class TopicRecord<T = any> {
    /**
     * @param {string} topic
     * @param {any} wire
     */
    constructor(topic: string, wire: any);
    topic: string;
    /** @type {number} */
    seq: number;
    /** When the server committed the record, in ms since 1970. @type {number} */
    ts: number;
    /** Who wrote it. @type {string|undefined} */
    node: string | undefined;
    /** @type {string|undefined} */
    tag: string | undefined;
    /** @type {string|undefined} */
    key: string | undefined;
    /** @type {Record<string, any>|undefined} */
    meta: Record<string, any> | undefined;
    /** @type {T} */
    data: T;
}
/** A range of records that were lost before this reader got them. Both ends are included. */
export class Gap {
    /**
     * @param {string} topic
     * @param {any} wire
     */
    constructor(topic: string, wire: any);
    topic: string;
    /** The first missing seq. @type {number} */
    firstSeq: number;
    /** The last missing seq. @type {number} */
    lastSeq: number;
    /** The cause: `cap`, `ttl`, `mixed`, `recreated`, `restart`, `failover`, `corrupt` or `source_trim`. @type {string} */
    reason: string;
    /** About how many records were lost. @type {number|undefined} */
    missed: number | undefined;
}
/**
 * How far the worker of a job has come: a share from 0 to 1.
 * @typedef {{share: number, text?: string}} Progress
 */
/**
 * Why one delivery of a job failed. Only the last reason of a job has an `error`.
 * @typedef {{at: number, node: string, delivery: number, reason: string, error?: {type?: string, message?: string, stack?: string}}} Reason
 */
/** One job of a queue, leased to this worker. */
export class Job extends TopicRecord<any> {
    /**
     * @param {Topics} topics
     * @param {string} topic
     * @param {string} node
     * @param {any} wire
     */
    constructor(topics: Topics, topic: string, node: string, wire: any);
    /** @type {string} */
    leaseId: string;
    /** When the lease ends, in ms since 1970. @type {number} */
    deadline: number;
    /** How often the job was delivered, this time included. @type {number} */
    deliveries: number;
    /** Why earlier deliveries failed, the last one last. @type {Reason[]} */
    reasons: Reason[];
    /** True until `ack` or `nack` was answered. */
    isOpen: boolean;
    /** Whether the job was deleted: a worker notices when it extends the lease. */
    isCancelled: boolean;
    /**
     * Complete the job. Return false if the lease had ended: another worker may have got the job.
     * @param {{retries?: number}} [options]
     */
    ack(options?: {
        retries?: number;
    }): Promise<boolean>;
    /**
     * Give the job back, to be delivered again after `delayMs`: by default as the retry policy of the queue says, or at
     * once if it has none, or with `retry` after a delay that grows with the deliveries. `error` is what the job failed with.
     * @param {number} [delayMs]
     * @param {{retry?: boolean, reason?: string, error?: unknown, retries?: number}} [options]
     */
    nack(delayMs?: number, options?: {
        retry?: boolean;
        reason?: string;
        error?: unknown;
        retries?: number;
    }): Promise<boolean>;
    /**
     * Hold the job for `leaseMs` from now. Return false if the lease had ended.
     * @param {number} leaseMs
     * @param {{retries?: number}} [options]
     */
    extend(leaseMs: number, options?: {
        retries?: number;
    }): Promise<boolean>;
    /**
     * Report how far the job is, from 0 to 1: the console and `listJobs` show it. Return false if the lease had ended. The
     * lease stays as it is, and a restart of the server forgets the progress. Each call is one request: a job does not fail
     * because a busy server, or none, answers it.
     * @param {number} share
     * @param {string} [text]
     */
    progress(share: number, text?: string): Promise<boolean>;
    #private;
}
/**
 * A position in one topic: the last seq that was processed, and the epoch of the topic it belongs to.
 * @typedef {{seq: number, epoch?: number|null}} Position
 */
/**
 * Anything that keeps a position.
 * @template P
 * @typedef {{load(): P|null|undefined|Promise<P|null|undefined>, save(position: P): void|Promise<void>}} Cursor
 */
/** Keep a position in the browser's `localStorage`, or in any object with `getItem` and `setItem`. */
export class StorageCursor {
    /**
     * @param {string} key
     * @param {{getItem(key: string): string|null, setItem(key: string, value: string): void}} [storage]
     */
    constructor(key: string, storage?: {
        getItem(key: string): string | null;
        setItem(key: string, value: string): void;
    });
    key: string;
    storage: {
        getItem(key: string): string | null;
        setItem(key: string, value: string): void;
    };
    load(): any;
    /** @param {any} position */
    save(position: any): void;
}
/** Keep a position in a file (Node). A crash leaves the old position or the new one, never half of one. */
export class FileCursor {
    /** @param {string} path */
    constructor(path: string);
    path: string;
    load(): Promise<any>;
    /** @param {any} position */
    save(position: any): Promise<void>;
}
/**
 * Keep the position of `follow` on the server, as the consumer `name` of the topic.
 *
 *     topics.follow("orders", { cursor: new ServerCursor("billing") })
 *
 * With `hold`, the server keeps records until the consumer has read them, up to `maxHoldBytes`. A consumer that is not used
 * for `expireMs` is forgotten.
 */
export class ServerCursor {
    /**
     * @param {string} name
     * @param {{hold?: boolean, maxHoldBytes?: number, expireMs?: number}} [settings]
     */
    constructor(name: string, settings?: {
        hold?: boolean;
        maxHoldBytes?: number;
        expireMs?: number;
    });
    name: string;
    settings: {
        hold?: boolean;
        maxHoldBytes?: number;
        expireMs?: number;
    };
    /**
     * Return `load` and `save` of the consumer in one topic.
     * @param {Topics} topics
     * @param {string} topic
     * @param {AbortSignal|null|undefined} signal
     * @returns {Cursor<Position>}
     */
    in(topics: Topics, topic: string, signal: AbortSignal | null | undefined): Cursor<Position>;
}
/**
 * @typedef {object} TopicConfig
 * @property {"log"|"queue"} [type]
 * @property {number} [ttlMs]
 * @property {number} [capRecords]
 * @property {number} [capBytes]
 * @property {"old"|"reject"} [discard]
 * @property {"ephemeral"|"memory"|"disk"|"fsync"|"replicated"} [durability]
 * @property {boolean} [durable]
 * @property {number|null} [priority]
 * @property {boolean} [autoPriority]
 * @property {boolean} [autoCreate]
 * @property {number} [idempotencyWindowMs]
 * @property {boolean} [dedupeNode]
 * @property {number} [leaseMs]
 * @property {number} [claimJitterMs]
 * @property {number} [maxDeliveries]
 * @property {string|null} [deadLetter]
 * @property {boolean} [leasesDurable]
 * @property {{minMs?: number, maxMs?: number, factor?: number, jitter?: number}|null} [retry] the delay of a nack without `delayMs`
 * @property {number} [maxInFlight] the most jobs of the queue that workers hold at a time
 * @property {number} [maxInFlightPerKey] the same for jobs of one key; 1 by default
 * @property {{perS: number, burst?: number}|null} [rate] the most deliveries in a second
 * @property {{perS: number, burst?: number}|null} [ratePerKey] the same for jobs of one key
 * @property {boolean} [paused] the queue gives out no jobs
 * @property {"contract"|"safe"} [defaults] of a new queue: `safe` by default, which is `discard: "reject"` and `leasesDurable`
 * @property {{hold?: boolean}|null} [archive] with `hold`, records do not expire before they are archived
 * @property {Record<string, any>|null} [schema] JSON Schema 2020-12 for `data`; null is none
 * @property {"reject"|"warn"|"off"} [schemaMode] what becomes of a record that does not match: `reject` by default
 * @property {"backward"|"forward"|"full"|"none"} [compatibility] which changes of the schema are allowed
 * @property {boolean} [force] set a schema that is not compatible with the last one
 */
/**
 * A tag to match: exactly, or by its beginning.
 * @typedef {string|["tag", "Eq"|"Glob", string]} Match
 */
/**
 * Records to return: a tag, or a filter such as `["data.total", "Gt", 100]` or `["Where", "total > 100"]`.
 * @typedef {string|[unknown, string, unknown?]|["And"|"Or", unknown[]]|["Not", unknown]} Filter
 */
/**
 * @typedef {object} CallOptions
 * @property {number} [retries] attempts after the first one, instead of the number of the client
 * @property {AbortSignal|null} [signal] ends the call
 */
/**
 * @typedef {object} JobLoopOptions
 * @property {string} [node] the name of the worker; made up if left out
 * @property {number} [leaseMs]
 * @property {(deliveries: number) => number} [retryDelayMs] how long a job that failed waits, instead of the policy of the queue
 * @property {AbortSignal} [signal] ends the loop when its body has finished its job
 * @property {(error: TopicsError, waitMs: number) => void} [onRetry] called before each new attempt
 */
/**
 * @typedef {object} NewRecord
 * @property {any} data
 * @property {string} [tag]
 * @property {string} [node]
 * @property {Record<string, any>} [meta]
 * @property {number} [priority] of a job, 0 to 9
 * @property {number} [delayMs] of a job
 * @property {number} [deliverAt] of a job, in ms since 1970
 * @property {string} [key] a queue delivers jobs of one key in order, one at a time
 * @property {{key: string, for?: "pending"|number}} [unique] of a job: a key that no other job gets, while it is pending or for a time in ms
 */
/**
 * @typedef {object} WriteOptions
 * @property {string} [idempotencyKey] a retry with the same key is not written twice; made up if left out
 * @property {boolean} [create]
 * @property {TopicConfig} [config] of a topic that this write creates
 * @property {boolean} [disableBackpressure]
 * @property {AbortSignal} [signal]
 */
/**
 * @typedef {object} Appended
 * @property {number} firstSeq
 * @property {number} lastSeq
 * @property {number} headSeq
 * @property {boolean} created whether this write created the topic
 * @property {boolean} deduped whether an earlier attempt had written the records
 */
/**
 * @typedef {object} ReadOptions
 * @property {number} [fromSeq] deliver records after this seq; 0 begins at the earliest
 * @property {number|null} [epoch] the epoch that `fromSeq` belongs to
 * @property {number} [limit]
 * @property {number} [maxBatchBytes]
 * @property {string|string[]} [node] leave out records of these writers
 * @property {Filter} [filter]
 * @property {number} [fromTs] leave out records from before this time, in ms since 1970
 * @property {boolean} [includeTags] true by default
 * @property {boolean} [includeMeta]
 * @property {AbortSignal} [signal]
 */
/**
 * @typedef {object} ScanOptions
 * @property {number} [fromSeq] deliver records after this seq; 0 begins at the earliest
 * @property {number} [uptoSeq] the last seq to read; the head by default
 * @property {number|null} [epoch] the epoch that `fromSeq` belongs to
 * @property {string|string[]} [node] leave out records of these writers
 * @property {Filter} [filter]
 * @property {number} [fromTs] leave out records from before this time, in ms since 1970
 * @property {boolean} [includeTags] true by default
 * @property {boolean} [includeMeta]
 * @property {AbortSignal} [signal]
 */
/**
 * The state of a topic, with the field names of the API.
 * @typedef {object} TopicState
 * @property {string} topic
 * @property {"log"|"queue"} type
 * @property {number} epoch
 * @property {number} head_seq
 * @property {number} earliest_seq
 * @property {number} next_seq
 * @property {number} count
 * @property {number} bytes
 * @property {Record<string, any>} config
 * @property {number} effective_priority
 * @property {number|null} last_write_ts
 * @property {number|null} last_read_ts
 * @property {{ready: number, in_flight: number, delayed: number, dead_lettered: number, dead_letter_error?: string, blocked?: number}} [queue]
 * @property {number} [archived_seq]
 * @property {number} [trimmed_seq]
 * @property {{unarchived: number, overdue: number, evicted: number}} [archive]
 */
/**
 * A named consumer of a topic, with the field names of the API.
 * @typedef {object} ConsumerState
 * @property {string} topic
 * @property {string} consumer
 * @property {number} epoch
 * @property {number} seq the last record that it has processed
 * @property {number} head_seq
 * @property {number} lag_records
 * @property {number} lag_ms age of the oldest record that it has not read
 * @property {{records: number, gaps: {gap_from: number, gap_to: number, reason: string}[]}|null} lost
 * @property {Record<string, any>|null} meta
 * @property {number} expire_ms
 * @property {boolean} hold
 * @property {number} max_hold_bytes
 * @property {number} updated_ms
 */
/**
 * @typedef {object} TopicSummary
 * @property {string} topic
 * @property {"log"|"queue"} type
 * @property {number} epoch
 * @property {number} head_seq
 * @property {number} earliest_seq
 * @property {number} count
 * @property {number} bytes
 * @property {boolean} durable
 * @property {number} effective_priority
 */
/**
 * @typedef {object} RouterSummary
 * @property {string} router
 * @property {string} source
 * @property {string} dest
 * @property {"at_least_once"|"exactly_once"} guarantee
 * @property {number} forwarded_total
 * @property {number} cursor
 * @property {number} lag
 * @property {string|null} last_error
 */
/**
 * @typedef {RouterSummary & {preserve_node: boolean, preserve_tag: boolean, filter: unknown[]|null, allow_cycle: boolean}} RouterState
 */
/**
 * @typedef {object} ScheduleState
 * @property {string} schedule
 * @property {string} topic
 * @property {any} record
 * @property {string|null} cron
 * @property {number|null} every_ms
 * @property {string} timezone
 * @property {number|null} starts_at
 * @property {number|null} ends_at
 * @property {number} jitter_ms
 * @property {boolean} paused
 * @property {"allow"|"skip"} overlap
 * @property {"none"|"last"|"all"} catch_up
 * @property {number|null} last_at
 * @property {number|null} last_seq
 * @property {number|null} next_at
 * @property {number} skipped_total
 * @property {number} failures_total
 * @property {string|null} last_error
 */
/**
 * What a key or a token allows. One that is left out is that of the key that creates it.
 * @typedef {object} RightsOptions
 * @property {("read"|"write"|"delete"|"admin")[]} [scopes]
 * @property {string[]} [prefixes]
 * @property {string[]} [names]
 * @property {("watch"|"diff"|"publish"|"work")[]} [operations]
 * @property {boolean} [create] topics, by writing to them
 * @property {string|null} [node]
 * @property {string[]} [origins]
 * @property {number} [maxStreams]
 * @property {number} [maxInflight]
 * @property {number} [rate]
 */
/**
 * @typedef {object} KeyState
 * @property {string} key
 * @property {"stored"|"settings"} source
 * @property {Record<string, any>} rights
 * @property {string} note
 * @property {number|null} created_at
 * @property {string|null} created_by
 * @property {number|null} expires_at
 * @property {number|null} last_used_at
 * @property {number|null} rotating_until
 */
/**
 * @typedef {object} ListedJob
 * @property {number} $seq
 * @property {"ready"|"in_flight"|"delayed"} state
 * @property {number} deliveries
 * @property {number} priority
 * @property {number} $ts
 * @property {any} data
 * @property {number} [deliver_at]
 * @property {string} [node] the worker that holds it
 * @property {string} [lease_id]
 * @property {boolean} [blocked] whether it waits for an earlier job of its key
 * @property {number} [deadline]
 * @property {Progress} [progress] how far the worker has come
 * @property {Reason[]} [reasons] why earlier deliveries failed
 * @property {string} [$tag]
 * @property {string} [$key]
 * @property {string} [$node] the node that wrote it
 * @property {Record<string, any>} [meta]
 */
/**
 * @typedef {object} Page
 * @property {TopicRecord[]} records
 * @property {Gap|null} gap records that were lost before the first one of this page
 * @property {number} nextFromSeq where the next page begins
 * @property {number} headSeq
 * @property {number} earliestSeq
 * @property {number} epoch
 * @property {boolean} caughtUp
 * @property {number} [committedSeq] the position of the consumer, if the request named one
 */
/**
 * @typedef {object} FollowOptions
 * @property {number} [fromSeq] where to begin if the cursor has no position yet
 * @property {number} [epoch] the epoch that `fromSeq` belongs to
 * @property {boolean} [tail] begin at the head instead
 * @property {Cursor<Position>|ServerCursor} [cursor] where the position is kept
 * @property {Filter} [filter]
 * @property {string|string[]} [node]
 * @property {boolean} [includeTags] true by default
 * @property {boolean} [includeMeta]
 * @property {boolean} [includeData]
 * @property {"eventual"|"strong"} [consistency]
 * @property {number} [heartbeatMs]
 * @property {boolean} [waitForTopic] wait for a topic that does not exist instead of throwing `TopicNotFound`
 * @property {AbortSignal} [signal] ends the loop
 * @property {(error: TopicsError, waitMs: number) => void} [onRetry] called before each new attempt
 * @property {() => unknown} [onCaughtUp] called when the loop has processed everything up to the head: the first time, and
 *   each time after it had fallen behind or lost its connection
 */
/** A server. Methods throw a subclass of `TopicsError`. */
export class Topics {
    /**
     * @param {string|Record<string, string>} [url] of the server, or of several by prefixes of names (`{"eu.": url1, "us.": url2}`), and those of its standbys after commas; without it, in a page the page's own origin, and
     *   in Node `TOPICS_URL` or http://127.0.0.1:4000. The
     *   client stays with the first one that answers. A write moves it to the writer, and after a takeover to the new one.
     * @param {object} [options]
     * @param {string|null|(() => string|null|Promise<string|null>)} [options.token] the API key, or a function that gets a token:
     *   it is called again before that expires
     * @param {number|null} [options.retries] attempts after the first one; by default, a request that can succeed later is
     *   repeated for `retryForMs`, but by a client that never got an answer five times only: its address may be wrong
     * @param {number} [options.timeoutMs] for one answer
     * @param {number} [options.retryForMs] a write is not repeated for longer; less than `idempotencyWindowMs` of its topic
     * @param {typeof fetch} [options.fetch]
     * @param {any} [options.WebSocket] a class like the browser's, for Node before 22
     * @param {(text: string) => any} [options.parse] instead of `JSON.parse`, to keep numbers as they were written
     */
    constructor(url?: string | Record<string, string>, options?: {
        token?: string | (() => string | null | Promise<string | null>) | null | undefined;
        retries?: number | null | undefined;
        timeoutMs?: number | undefined;
        retryForMs?: number | undefined;
        fetch?: typeof fetch | undefined;
        WebSocket?: any;
        parse?: ((text: string) => any) | undefined;
    });
    /**
     * Return the client of one server of a map of prefixes.
     * @param {string} prefix
     * @returns {Topics}
     */
    server(prefix: string): Topics;
    /**
     * Create a topic, or change its configuration. A new queue has safe defaults: see `TopicConfig.defaults`. The answer has
     * `warnings` about what the configuration does not do.
     *
     *     await topics.putTopic("orders", { durability: "fsync", capRecords: 1_000_000 })
     *
     * @param {string} topic
     * @param {TopicConfig} [config]
     * @returns {Promise<{topic: string, created: boolean, epoch: number, config: Record<string, any>, warnings?: string[]}>}
     */
    putTopic(topic: string, config?: TopicConfig): Promise<{
        topic: string;
        created: boolean;
        epoch: number;
        config: Record<string, any>;
        warnings?: string[];
    }>;
    /**
     * Return the state of a topic. With `touch`, the request counts as a read of the topic, which raises its automatic
     * priority.
     * @param {string} topic
     * @param {{touch?: boolean, signal?: AbortSignal}} [options]
     * @returns {Promise<TopicState>}
     */
    topic(topic: string, options?: {
        touch?: boolean;
        signal?: AbortSignal;
    }): Promise<TopicState>;
    /**
     * List topics by name, page after page.
     *
     *     for await (const row of topics.topics({ prefix: "orders." })) console.log(row.topic, row.count)
     *
     * @param {{prefix?: string, pageSize?: number}} [options]
     * @returns {AsyncGenerator<TopicSummary, void>}
     */
    topics(options?: {
        prefix?: string;
        pageSize?: number;
    }): AsyncGenerator<TopicSummary, void>;
    /**
     * Remove a topic and everything in it. Return false if it did not exist.
     * @param {string} topic
     * @param {{ifEmpty?: boolean}} [options]
     * @returns {Promise<boolean>}
     */
    dropTopic(topic: string, options?: {
        ifEmpty?: boolean;
    }): Promise<boolean>;
    /**
     * Append one record, and return its seq. A retry after a broken connection does not write it twice.
     *
     *     const seq = await topics.append("orders", { sku: "V60" }, { tag: "order-7" })
     *
     * @param {string} topic
     * @param {any} data
     * @param {Omit<NewRecord, "data"> & WriteOptions & {recordKey?: string}} [options] `recordKey` is the `key` of the record
     * @returns {Promise<number>}
     */
    append(topic: string, data: any, options?: Omit<NewRecord, "data"> & WriteOptions & {
        recordKey?: string;
    }): Promise<number>;
    /**
     * Append many records: all of them or none.
     * @param {string} topic
     * @param {NewRecord[]} records
     * @param {WriteOptions & {node?: string}} [options]
     * @returns {Promise<Appended>}
     */
    appendMany(topic: string, records: NewRecord[], options?: WriteOptions & {
        node?: string;
    }): Promise<Appended>;
    /**
     * Return one page of records after a seq. With `waitMs`, wait for a record at the head of the topic. `consumer` reads
     * from the position of a named consumer instead of `fromSeq`, and `commit` first moves it: to a seq, or with true behind
     * all that it was sent.
     * @param {string} topic
     * @param {ReadOptions & {waitMs?: number, consumer?: string, commit?: boolean|number}} [options]
     * @returns {Promise<Page>}
     */
    diff(topic: string, options?: ReadOptions & {
        waitMs?: number;
        consumer?: string;
        commit?: boolean | number;
    }): Promise<Page>;
    /**
     * Read records and gaps up to the head of the topic, and end there.
     * @template [T=any]
     * @param {string} topic
     * @param {ReadOptions} [options]
     * @returns {AsyncGenerator<TopicRecord<T>|Gap, void>}
     */
    read<T = any>(topic: string, options?: ReadOptions): AsyncGenerator<TopicRecord<T> | Gap, void>;
    /**
     * Read a range of records and gaps in one streamed answer: faster than `read` for many records. After a broken
     * connection it continues where it was.
     *
     *     for await (const item of topics.scan("orders", { uptoSeq: 1_000_000 })) …
     *
     * @template [T=any]
     * @param {string} topic
     * @param {ScanOptions} [options]
     * @returns {AsyncGenerator<TopicRecord<T>|Gap, void>}
     */
    scan<T = any>(topic: string, options?: ScanOptions): AsyncGenerator<TopicRecord<T> | Gap, void>;
    /**
     * Delete records by seq, by tag, or both; or a list of `seqs`. Readers see no gap where records were deleted.
     *
     *     await topics.delete("orders", { match: ["tag", "Glob", "customer-7:*"] })
     *
     * @param {string} topic
     * @param {{beforeSeq?: number, match?: Match, seqs?: number[], epoch?: number, dryRun?: boolean}} which
     * @returns {Promise<{topic: string, deleted: number, earliest_seq: number, head_seq: number, count: number, bytes: number}>}
     */
    delete(topic: string, which: {
        beforeSeq?: number;
        match?: Match;
        seqs?: number[];
        epoch?: number;
        dryRun?: boolean;
    }): Promise<{
        topic: string;
        deleted: number;
        earliest_seq: number;
        head_seq: number;
        count: number;
        bytes: number;
    }>;
    /**
     * Return what has become of each seq of a window: live, deleted, archived, or lost and why. Short ranges are merged.
     * @param {string} topic
     * @param {{fromSeq?: number, toSeq?: number, ranges?: number, signal?: AbortSignal}} [options]
     * @returns {Promise<{topic: string, epoch: number, head_seq: number, earliest_seq: number, archived_seq: number, from_seq: number, to_seq: number, resolution: number, ranges: {from_seq: number, to_seq: number, state: string, live?: number, deleted?: number, lost?: number}[], live: number, deleted: number, lost: number}>}
     */
    timeline(topic: string, options?: {
        fromSeq?: number;
        toSeq?: number;
        ranges?: number;
        signal?: AbortSignal;
    }): Promise<{
        topic: string;
        epoch: number;
        head_seq: number;
        earliest_seq: number;
        archived_seq: number;
        from_seq: number;
        to_seq: number;
        resolution: number;
        ranges: {
            from_seq: number;
            to_seq: number;
            state: string;
            live?: number;
            deleted?: number;
            lost?: number;
        }[];
        live: number;
        deleted: number;
        lost: number;
    }>;
    /**
     * Return a version of the schema of a topic, by default the last one.
     * @param {string} topic
     * @param {{version?: number, signal?: AbortSignal}} [options]
     * @returns {Promise<{topic: string, version: number, versions: number, active: boolean, schema: Record<string, any>, schema_mode: string, compatibility: string}>}
     */
    schema(topic: string, options?: {
        version?: number;
        signal?: AbortSignal;
    }): Promise<{
        topic: string;
        version: number;
        versions: number;
        active: boolean;
        schema: Record<string, any>;
        schema_mode: string;
        compatibility: string;
    }>;
    /**
     * Report that an archive has every record of this epoch of the topic up to `seq`. An archive that deletes archived
     * records from the topic reports the last one first, as `trimmedSeq`.
     * @param {string} topic
     * @param {{seq: number, epoch: number, trimmedSeq?: number}} position
     * @returns {Promise<{topic: string, epoch: number, archived_seq: number, head_seq: number, moved: boolean}>}
     */
    reportArchived(topic: string, position: {
        seq: number;
        epoch: number;
        trimmedSeq?: number;
    }): Promise<{
        topic: string;
        epoch: number;
        archived_seq: number;
        head_seq: number;
        moved: boolean;
    }>;
    /**
     * Store the position of a named consumer, or change its settings. What is not given keeps its value.
     *
     *     await topics.putConsumer("orders", "billing", { seq: 480, ifSeq: 420 })
     *
     * Throws `ConsumerMoved` if the consumer is not at `ifSeq`; null means that it must not exist.
     *
     * @param {string} topic
     * @param {string} name
     * @param {{seq?: number, epoch?: number, ifSeq?: number|null, meta?: Record<string, any>, expireMs?: number, hold?: boolean, maxHoldBytes?: number} & CallOptions} [position]
     * @returns {Promise<{topic: string, consumer: string, created: boolean, epoch: number, seq: number, head_seq: number}>}
     */
    putConsumer(topic: string, name: string, position?: {
        seq?: number;
        epoch?: number;
        ifSeq?: number | null;
        meta?: Record<string, any>;
        expireMs?: number;
        hold?: boolean;
        maxHoldBytes?: number;
    } & CallOptions): Promise<{
        topic: string;
        consumer: string;
        created: boolean;
        epoch: number;
        seq: number;
        head_seq: number;
    }>;
    /**
     * Move consumers of any topics. They never move back. A commit that cannot take effect is listed in `refused`.
     *
     *     await topics.commit([{ topic: "orders", consumer: "billing", seq: 480 }])
     *
     * @param {{topic: string, consumer: string, seq: number}[]} commits
     * @returns {Promise<{committed: number, refused: {topic: string, consumer: string, code: string, message: string}[]}>}
     */
    commit(commits: {
        topic: string;
        consumer: string;
        seq: number;
    }[]): Promise<{
        committed: number;
        refused: {
            topic: string;
            consumer: string;
            code: string;
            message: string;
        }[];
    }>;
    /**
     * Return a consumer: its position, its lag, and what it has lost. Throws `ConsumerNotFound`.
     * @param {string} topic
     * @param {string} name
     * @param {CallOptions} [options]
     * @returns {Promise<ConsumerState>}
     */
    consumer(topic: string, name: string, options?: CallOptions): Promise<ConsumerState>;
    /**
     * List the consumers of a topic by name, or those of all topics whose names begin with `prefix`.
     *
     *     for await (const row of topics.consumers("orders")) console.log(row.consumer, row.lag_records)
     *
     * @param {string|null} [topic]
     * @param {{prefix?: string}} [options]
     * @returns {AsyncGenerator<ConsumerState, void>}
     */
    consumers(topic?: string | null, options?: {
        prefix?: string;
    }): AsyncGenerator<ConsumerState, void>;
    /**
     * Forget a consumer, and end its hold. Return false if it did not exist.
     * @param {string} topic
     * @param {string} name
     * @returns {Promise<boolean>}
     */
    dropConsumer(topic: string, name: string): Promise<boolean>;
    /**
     * Follow a topic: yield its records as they come, and a gap wherever records were lost.
     *
     * The loop resumes after a broken connection, a restart of the server and a dropped session. Its position is saved
     * when the next batch is asked for, so a record counts as processed once the loop's body has ended: after a crash the
     * last batch comes again, and none is skipped. A topic that was created again comes as a gap with the reason
     * `recreated`.
     *
     * @template [T=any]
     * @param {string} topic
     * @param {FollowOptions} [options]
     * @returns {AsyncGenerator<TopicRecord<T>|Gap, void>}
     */
    follow<T = any>(topic: string, options?: FollowOptions): AsyncGenerator<TopicRecord<T> | Gap, void>;
    /**
     * Follow many topics over one stream. A name that ends in `*` stands for every topic that begins so, now and later.
     *
     *     for await (const item of topics.watch({ orders: { tail: true }, "chat-*": {} })) …
     *
     * @template [T=any]
     * @param {string[]|Record<string, {fromSeq?: number, tail?: boolean, filter?: Filter, epoch?: number, consumer?: string}>} wanted
     * @param {Omit<FollowOptions, "fromSeq"|"epoch"|"tail"|"filter"|"cursor"|"onCaughtUp"> & {cursor?: Cursor<{id: string|null, epochs: Record<string, number>}>}} [options]
     * @returns {AsyncGenerator<TopicRecord<T>|Gap, void>}
     */
    watch<T = any>(wanted: string[] | Record<string, {
        fromSeq?: number;
        tail?: boolean;
        filter?: Filter;
        epoch?: number;
        consumer?: string;
    }>, options?: Omit<FollowOptions, "fromSeq" | "epoch" | "tail" | "filter" | "cursor" | "onCaughtUp"> & {
        cursor?: Cursor<{
            id: string | null;
            epochs: Record<string, number>;
        }>;
    }): AsyncGenerator<TopicRecord<T> | Gap, void>;
    /**
     * Lease up to `max` jobs to a worker.
     * @param {string} queue
     * @param {{node: string, max?: number, leaseMs?: number, waitMs?: number} & CallOptions} options
     * @returns {Promise<Job[]>}
     */
    claim(queue: string, options: {
        node: string;
        max?: number;
        leaseMs?: number;
        waitMs?: number;
    } & CallOptions): Promise<Job[]>;
    /**
     * Complete jobs. Seqs that `node` does not hold are returned as `skipped`.
     * @param {string} queue
     * @param {{node: string, seqs: number[], leaseIds?: string[]} & CallOptions} held
     * @returns {Promise<{acked: number, skipped: number[], ready: number, in_flight: number}>}
     */
    ack(queue: string, held: {
        node: string;
        seqs: number[];
        leaseIds?: string[];
    } & CallOptions): Promise<{
        acked: number;
        skipped: number[];
        ready: number;
        in_flight: number;
    }>;
    /**
     * Give jobs back.
     * @param {string} queue
     * @param {{node: string, seqs: number[], leaseIds?: string[], delayMs?: number, retry?: boolean, reason?: string, error?: unknown} & CallOptions} held
     * @returns {Promise<{nacked: number, skipped: number[], ready: number, in_flight: number, dead_lettered?: number}>}
     */
    nack(queue: string, held: {
        node: string;
        seqs: number[];
        leaseIds?: string[];
        delayMs?: number;
        retry?: boolean;
        reason?: string;
        error?: unknown;
    } & CallOptions): Promise<{
        nacked: number;
        skipped: number[];
        ready: number;
        in_flight: number;
        dead_lettered?: number;
    }>;
    /**
     * Hold jobs for `leaseMs` from now, or report the progress of their worker, or both.
     * @param {string} queue
     * @param {{node: string, seqs: number[], leaseIds?: string[], leaseMs?: number, progress?: Progress} & CallOptions} held
     * @returns {Promise<{extended: number, skipped: number[], deadlines: Record<string, number>, cancelled?: number[]}>}
     */
    extend(queue: string, held: {
        node: string;
        seqs: number[];
        leaseIds?: string[];
        leaseMs?: number;
        progress?: Progress;
    } & CallOptions): Promise<{
        extended: number;
        skipped: number[];
        deadlines: Record<string, number>;
        cancelled?: number[];
    }>;
    /**
     * List jobs with their state, in the order of the log.
     * @param {string} queue
     * @param {{state?: "ready"|"in_flight"|"delayed"}} [options]
     * @returns {AsyncGenerator<ListedJob, void>}
     */
    listJobs(queue: string, options?: {
        state?: "ready" | "in_flight" | "delayed";
    }): AsyncGenerator<ListedJob, void>;
    /**
     * Move dead letters of a queue back into it.
     * @param {string} queue
     * @param {{match?: Match, seqs?: number[], fromSeq?: number, limit?: number, dryRun?: boolean, deadLetter?: string}} [which]
     * @returns {Promise<{redriven: number, seqs: number[], dead_letter: string, next_from_seq: number, caught_up: boolean}>}
     */
    redrive(queue: string, which?: {
        match?: Match;
        seqs?: number[];
        fromSeq?: number;
        limit?: number;
        dryRun?: boolean;
        deadLetter?: string;
    }): Promise<{
        redriven: number;
        seqs: number[];
        dead_letter: string;
        next_from_seq: number;
        caught_up: boolean;
    }>;
    /**
     * Yield jobs one by one until `signal` aborts.
     *
     *     for await (const job of topics.jobs("emails")) await send(job.data)
     *
     * The lease is extended while the loop's body runs. A job is acked when the loop asks for the next one. It is given
     * back, as the retry policy of the queue says, when the body throws or leaves the loop. A body can also call
     * `job.ack()` or `job.nack()` itself.
     *
     * @param {string} queue
     * @param {JobLoopOptions} [options]
     * @returns {AsyncGenerator<Job, void>}
     */
    jobs(queue: string, options?: JobLoopOptions): AsyncGenerator<Job, void>;
    /**
     * Yield jobs as `jobs` does, but let the server push them over a stream. When the connection ends, the server gives the
     * job to another worker at once.
     *
     *     for await (const job of topics.pushedJobs("emails")) await send(job.data)
     *
     * @param {string} queue
     * @param {JobLoopOptions} [options]
     * @returns {AsyncGenerator<Job, void>}
     */
    pushedJobs(queue: string, options?: JobLoopOptions): AsyncGenerator<Job, void>;
    /**
     * Work through a queue: call `handler` for each job, `concurrency` at a time, until `signal` aborts.
     *
     * The lease is extended while the handler runs. A job whose handler returns is acked; one whose handler throws goes
     * back with the reason, and waits longer each time: as the retry policy of the queue says, or `retryDelayMs`. When `signal` aborts, jobs that are under way are finished first.
     *
     * @param {string} queue
     * @param {(job: Job, signal: AbortSignal) => unknown} handler
     * @param {object} [options]
     * @param {number} [options.concurrency]
     * @param {string} [options.node]
     * @param {number} [options.leaseMs]
     * @param {number} [options.timeoutMs] for one job; the handler's signal aborts, and the job goes back
     * @param {(deliveries: number) => number} [options.retryDelayMs]
     * @param {AbortSignal} [options.signal]
     * @param {(job: Job) => void} [options.onStart] called before a handler
     * @param {(job: Job, ms: number) => void} [options.onDone] called when a handler has ended
     * @param {(job: Job, error: unknown) => void} [options.onError] called when a handler has failed; without it, the failure is logged with `console.error`
     * @param {(error: TopicsError, waitMs: number) => void} [options.onRetry]
     * @returns {Promise<void>}
     */
    work(queue: string, handler: (job: Job, signal: AbortSignal) => unknown, options?: {
        concurrency?: number | undefined;
        node?: string | undefined;
        leaseMs?: number | undefined;
        timeoutMs?: number | undefined;
        retryDelayMs?: ((deliveries: number) => number) | undefined;
        signal?: AbortSignal | undefined;
        onStart?: ((job: Job) => void) | undefined;
        onDone?: ((job: Job, ms: number) => void) | undefined;
        onError?: ((job: Job, error: unknown) => void) | undefined;
        onRetry?: ((error: TopicsError, waitMs: number) => void) | undefined;
    }): Promise<void>;
    /**
     * Create a router, or change it.
     * @param {string} router
     * @param {{source: string, dest: string, filter?: Filter|null, preserveNode?: boolean, preserveTag?: boolean, createDest?: boolean, allowCycle?: boolean, guarantee?: "at_least_once"|"exactly_once", fromSeq?: number, fromTs?: number}} config
     * @returns {Promise<RouterState & {created: boolean}>}
     */
    putRouter(router: string, config: {
        source: string;
        dest: string;
        filter?: Filter | null;
        preserveNode?: boolean;
        preserveTag?: boolean;
        createDest?: boolean;
        allowCycle?: boolean;
        guarantee?: "at_least_once" | "exactly_once";
        fromSeq?: number;
        fromTs?: number;
    }): Promise<RouterState & {
        created: boolean;
    }>;
    /**
     * Return a router: what it forwards, how far it has come, and what holds it up.
     * @param {string} router
     * @returns {Promise<RouterState>}
     */
    router(router: string): Promise<RouterState>;
    /**
     * List routers by name.
     * @param {{prefix?: string, source?: string, dest?: string}} [options]
     * @returns {AsyncGenerator<RouterSummary, void>}
     */
    routers(options?: {
        prefix?: string;
        source?: string;
        dest?: string;
    }): AsyncGenerator<RouterSummary, void>;
    /**
     * Remove a router. Records that it has forwarded stay. Return false if it did not exist.
     * @param {string} router
     * @returns {Promise<boolean>}
     */
    dropRouter(router: string): Promise<boolean>;
    /**
     * Count the records that a filter would forward.
     * @param {string} router
     * @param {{source?: string, filter?: Filter|null, fromSeq?: number, fromTs?: number}} [which]
     * @returns {Promise<{router: string, source: string, matched: number, bytes: number, scanned: number, first_seq: number|null, last_seq: number|null, head_seq: number}>}
     */
    previewRouter(router: string, which?: {
        source?: string;
        filter?: Filter | null;
        fromSeq?: number;
        fromTs?: number;
    }): Promise<{
        router: string;
        source: string;
        matched: number;
        bytes: number;
        scanned: number;
        first_seq: number | null;
        last_seq: number | null;
        head_seq: number;
    }>;
    /**
     * Create a schedule, or change it: `record` is appended to `topic` at each tick. Set `cron` or `everyMs`.
     * @param {string} schedule
     * @param {{topic: string, record: NewRecord, cron?: string, everyMs?: number, timezone?: string, startsAt?: number|null, endsAt?: number|null, jitterMs?: number, paused?: boolean, overlap?: "allow"|"skip", catchUp?: "none"|"last"|"all"}} config
     * @returns {Promise<ScheduleState & {created: boolean}>}
     */
    putSchedule(schedule: string, config: {
        topic: string;
        record: NewRecord;
        cron?: string;
        everyMs?: number;
        timezone?: string;
        startsAt?: number | null;
        endsAt?: number | null;
        jitterMs?: number;
        paused?: boolean;
        overlap?: "allow" | "skip";
        catchUp?: "none" | "last" | "all";
    }): Promise<ScheduleState & {
        created: boolean;
    }>;
    /**
     * Return a schedule: its last and its next tick, and its last error.
     * @param {string} schedule
     * @returns {Promise<ScheduleState>}
     */
    schedule(schedule: string): Promise<ScheduleState>;
    /**
     * List schedules by name.
     * @param {{prefix?: string, topic?: string}} [options]
     * @returns {AsyncGenerator<ScheduleState, void>}
     */
    schedules(options?: {
        prefix?: string;
        topic?: string;
    }): AsyncGenerator<ScheduleState, void>;
    /**
     * Remove a schedule. Records that it has appended stay. Return false if it did not exist.
     * @param {string} schedule
     * @returns {Promise<boolean>}
     */
    dropSchedule(schedule: string): Promise<boolean>;
    /**
     * Append the record of a schedule now, and return its seq. The ticks go on as before.
     * @param {string} schedule
     * @returns {Promise<number>}
     */
    runSchedule(schedule: string): Promise<number>;
    /**
     * Let a schedule have no ticks, or with `false` have them again. Missed ticks are not caught up.
     * @param {string} schedule
     * @param {boolean} [paused]
     * @returns {Promise<ScheduleState>}
     */
    pauseSchedule(schedule: string, paused?: boolean): Promise<ScheduleState>;
    /**
     * Return the next ten ticks of a schedule, or those that another timing would have. Nothing is stored.
     * @param {string} schedule
     * @param {{cron?: string, everyMs?: number, timezone?: string, startsAt?: number|null, endsAt?: number|null, after?: number}} [timing]
     * @returns {Promise<{at: number, local: string}[]>}
     */
    previewSchedule(schedule: string, timing?: {
        cron?: string;
        everyMs?: number;
        timezone?: string;
        startsAt?: number | null;
        endsAt?: number | null;
        after?: number;
    }): Promise<{
        at: number;
        local: string;
    }[]>;
    /**
     * Return the version and the uptime of the server.
     * @returns {Promise<{status: "ok", version: string, uptime_ms: number}>}
     */
    health(): Promise<{
        status: "ok";
        version: string;
        uptime_ms: number;
    }>;
    /**
     * Return the readiness of the server. Throws `NotReady`, `ShuttingDown` or `ReadOnly` if it cannot serve.
     * @returns {Promise<{status: "ready", wal_replay_complete: boolean, topics: number}>}
     */
    ready(): Promise<{
        status: "ready";
        wal_replay_complete: boolean;
        topics: number;
    }>;
    /** Return whether the server answers and can serve. */
    isReady(): Promise<boolean>;
    /**
     * Return gauges and counters as an object: a number by the name of the metric, or numbers by label.
     * @returns {Promise<Record<string, any>>}
     */
    metrics(): Promise<Record<string, any>>;
    /**
     * Return the metrics as Prometheus text.
     * @returns {Promise<string>}
     */
    metricsText(): Promise<string>;
    /**
     * Return figures of the last hour, a row every few seconds, from after a time in ms since 1970: of a queue, or of the server.
     * @param {{after?: number, queue?: string}} [options]
     * @returns {Promise<{interval_ms: number, capacity: number, columns: string[], rows: number[][]}>}
     */
    samples(options?: {
        after?: number;
        queue?: string;
    }): Promise<{
        interval_ms: number;
        capacity: number;
        columns: string[];
        rows: number[][];
    }>;
    /**
     * Return the rows of a statement, in which topics are tables. The server needs the extra `sql`.
     * @param {string} query
     * @param {{limit?: number}} [options]
     * @returns {Promise<{columns: string[], rows: any[][], more: boolean}>}
     */
    sql(query: string, options?: {
        limit?: number;
    }): Promise<{
        columns: string[];
        rows: any[][];
        more: boolean;
    }>;
    /**
     * Return how far the replica of the server is behind, what it has, and which servers follow.
     * @returns {Promise<Record<string, any>>}
     */
    replica(): Promise<Record<string, any>>;
    /**
     * Let a standby take over. The writer stops in order, and nothing is lost.
     * @param {string} to
     * @returns {Promise<{standby: string}>}
     */
    promote(to: string): Promise<{
        standby: string;
    }>;
    /**
     * Return the scopes and prefixes of the API key. Throws `Unauthorized` if the server does not know it.
     * @returns {Promise<{key: string|null, scopes: string[], prefixes: string[]}>}
     */
    whoami(): Promise<{
        key: string | null;
        scopes: string[];
        prefixes: string[];
    }>;
    /**
     * Return the OpenAPI document of the server.
     * @returns {Promise<Record<string, any>>}
     */
    openapi(): Promise<Record<string, any>>;
    /**
     * Return a token with at most the rights of this key: for a page, for example.
     *
     *     const { token } = await topics.createToken({ names: ["orders"], operations: ["watch"], subject: "user-7" })
     *
     * @param {RightsOptions & {ttlMs?: number, subject?: string}} [options]
     * @returns {Promise<{token: string, id: string, expiresAt: number, rights: Record<string, any>}>}
     */
    createToken(options?: RightsOptions & {
        ttlMs?: number;
        subject?: string;
    }): Promise<{
        token: string;
        id: string;
        expiresAt: number;
        rights: Record<string, any>;
    }>;
    /**
     * Revoke a token by its id, the tokens of a key, or all; those that were issued before a time in ms since 1970.
     * @param {{id?: string, key?: string, before?: number}} [options]
     */
    revokeTokens(options?: {
        id?: string;
        key?: string;
        before?: number;
    }): Promise<void>;
    /**
     * Create a key. The answer has its secret, which is never shown again.
     * @param {string} key
     * @param {RightsOptions & {ttlMs?: number|null, note?: string}} [options]
     * @returns {Promise<KeyState & {secret: string}>}
     */
    createKey(key: string, options?: RightsOptions & {
        ttlMs?: number | null;
        note?: string;
    }): Promise<KeyState & {
        secret: string;
    }>;
    /**
     * List the keys that this key covers, without their secrets.
     * @returns {Promise<KeyState[]>}
     */
    keys(): Promise<KeyState[]>;
    /**
     * Give a key a new secret. The old one is valid for another day, or for `overlapMs`.
     * @param {string} key
     * @param {{overlapMs?: number}} [options]
     * @returns {Promise<KeyState & {secret: string}>}
     */
    rotateKey(key: string, options?: {
        overlapMs?: number;
    }): Promise<KeyState & {
        secret: string;
    }>;
    /**
     * Remove a key: its requests, streams and tokens end. Return false if it did not exist.
     * @param {string} key
     * @returns {Promise<boolean>}
     */
    revokeKey(key: string): Promise<boolean>;
    /**
     * Open a WebSocket, to publish and subscribe over one connection. With a function for the token, the connection gets each
     * new token before the one before it expires.
     * @param {{onClose?: (event: any) => void}} [options]
     * @returns {Promise<Socket>}
     */
    connect(options?: {
        onClose?: (event: any) => void;
    }): Promise<Socket>;
    #private;
}
/** One WebSocket: `publish` and `subscribe`, and an async iterator over all that comes. */
export class Socket {
    /**
     * @param {any} socket
     * @param {((event: any) => void)|undefined} onClose
     * @param {(text: string) => any} [parse]
     * @param {(error: TopicsError) => void} [onRefused]
     * @returns {Promise<Socket>}
     */
    static opened(socket: any, onClose: ((event: any) => void) | undefined, parse?: (text: string) => any, onRefused?: (error: TopicsError) => void): Promise<Socket>;
    /**
     * @param {any} socket
     * @param {(text: string) => any} [parse]
     * @param {(error: TopicsError) => void} [onRefused] called with each error of the server
     */
    constructor(socket: any, parse?: (text: string) => any, onRefused?: (error: TopicsError) => void);
    /**
     * Append records, and return once they are as safe as their topic promises.
     * @param {string} topic
     * @param {NewRecord|NewRecord[]} records
     * @param {WriteOptions & {node?: string}} [options]
     * @returns {Promise<{firstSeq: number, lastSeq: number}>}
     */
    publish(topic: string, records: NewRecord | NewRecord[], options?: WriteOptions & {
        node?: string;
    }): Promise<{
        firstSeq: number;
        lastSeq: number;
    }>;
    /**
     * Deliver records of a topic, or of all topics that a name ending in `*` stands for, to this socket's iterator.
     * @param {string} topic
     * @param {{fromSeq?: number, tail?: boolean, epoch?: number, filter?: Filter, consumer?: string, node?: string|string[], includeTags?: boolean, includeMeta?: boolean, includeData?: boolean}} [options]
     */
    subscribe(topic: string, options?: {
        fromSeq?: number;
        tail?: boolean;
        epoch?: number;
        filter?: Filter;
        consumer?: string;
        node?: string | string[];
        includeTags?: boolean;
        includeMeta?: boolean;
        includeData?: boolean;
    }): Promise<any>;
    /**
     * Move the position of a consumer: of the subscription, or the one that is named.
     * @param {string} topic
     * @param {number} seq
     * @param {{consumer?: string}} [options]
     */
    commit(topic: string, seq: number, options?: {
        consumer?: string;
    }): Promise<void>;
    /**
     * Deliver no more records of a topic.
     * @param {string} topic
     */
    unsubscribe(topic: string): Promise<void>;
    /**
     * Go on with another token: of the same key and subject, and with the same rights.
     * @param {string} token
     */
    authenticate(token: string): Promise<void>;
    get isClosed(): boolean;
    /** Return how long a ping took, in ms. */
    ping(): Promise<number>;
    close(): void;
    /** @returns {AsyncGenerator<TopicRecord|Gap, void>} */
    [Symbol.asyncIterator](): AsyncGenerator<TopicRecord | Gap, void>;
    #private;
}
/**
 * How far the worker of a job has come: a share from 0 to 1.
 */
export type Progress = {
    share: number;
    text?: string;
};
/**
 * Why one delivery of a job failed. Only the last reason of a job has an `error`.
 */
export type Reason = {
    at: number;
    node: string;
    delivery: number;
    reason: string;
    error?: {
        type?: string;
        message?: string;
        stack?: string;
    };
};
/**
 * A position in one topic: the last seq that was processed, and the epoch of the topic it belongs to.
 */
export type Position = {
    seq: number;
    epoch?: number | null;
};
/**
 * Anything that keeps a position.
 */
export type Cursor<P> = {
    load(): P | null | undefined | Promise<P | null | undefined>;
    save(position: P): void | Promise<void>;
};
export type TopicConfig = {
    type?: "queue" | "log" | undefined;
    ttlMs?: number | undefined;
    capRecords?: number | undefined;
    capBytes?: number | undefined;
    discard?: "old" | "reject" | undefined;
    durability?: "ephemeral" | "memory" | "disk" | "fsync" | "replicated" | undefined;
    durable?: boolean | undefined;
    priority?: number | null | undefined;
    autoPriority?: boolean | undefined;
    autoCreate?: boolean | undefined;
    idempotencyWindowMs?: number | undefined;
    dedupeNode?: boolean | undefined;
    leaseMs?: number | undefined;
    claimJitterMs?: number | undefined;
    maxDeliveries?: number | undefined;
    deadLetter?: string | null | undefined;
    leasesDurable?: boolean | undefined;
    /**
     * the delay of a nack without `delayMs`
     */
    retry?: {
        minMs?: number;
        maxMs?: number;
        factor?: number;
        jitter?: number;
    } | null | undefined;
    /**
     * the most jobs of the queue that workers hold at a time
     */
    maxInFlight?: number | undefined;
    /**
     * the same for jobs of one key; 1 by default
     */
    maxInFlightPerKey?: number | undefined;
    /**
     * the most deliveries in a second
     */
    rate?: {
        perS: number;
        burst?: number;
    } | null | undefined;
    /**
     * the same for jobs of one key
     */
    ratePerKey?: {
        perS: number;
        burst?: number;
    } | null | undefined;
    /**
     * the queue gives out no jobs
     */
    paused?: boolean | undefined;
    /**
     * of a new queue: `safe` by default, which is `discard: "reject"` and `leasesDurable`
     */
    defaults?: "contract" | "safe" | undefined;
    /**
     * with `hold`, records do not expire before they are archived
     */
    archive?: {
        hold?: boolean;
    } | null | undefined;
    /**
     * JSON Schema 2020-12 for `data`; null is none
     */
    schema?: Record<string, any> | null | undefined;
    /**
     * what becomes of a record that does not match: `reject` by default
     */
    schemaMode?: "reject" | "warn" | "off" | undefined;
    /**
     * which changes of the schema are allowed
     */
    compatibility?: "backward" | "forward" | "full" | "none" | undefined;
    /**
     * set a schema that is not compatible with the last one
     */
    force?: boolean | undefined;
};
/**
 * A tag to match: exactly, or by its beginning.
 */
export type Match = string | ["tag", "Eq" | "Glob", string];
/**
 * Records to return: a tag, or a filter such as `["data.total", "Gt", 100]` or `["Where", "total > 100"]`.
 */
export type Filter = string | [unknown, string, unknown?] | ["And" | "Or", unknown[]] | ["Not", unknown];
export type CallOptions = {
    /**
     * attempts after the first one, instead of the number of the client
     */
    retries?: number | undefined;
    /**
     * ends the call
     */
    signal?: AbortSignal | null | undefined;
};
export type JobLoopOptions = {
    /**
     * the name of the worker; made up if left out
     */
    node?: string | undefined;
    leaseMs?: number | undefined;
    /**
     * how long a job that failed waits, instead of the policy of the queue
     */
    retryDelayMs?: ((deliveries: number) => number) | undefined;
    /**
     * ends the loop when its body has finished its job
     */
    signal?: AbortSignal | undefined;
    /**
     * called before each new attempt
     */
    onRetry?: ((error: TopicsError, waitMs: number) => void) | undefined;
};
export type NewRecord = {
    data: any;
    tag?: string | undefined;
    node?: string | undefined;
    meta?: Record<string, any> | undefined;
    /**
     * of a job, 0 to 9
     */
    priority?: number | undefined;
    /**
     * of a job
     */
    delayMs?: number | undefined;
    /**
     * of a job, in ms since 1970
     */
    deliverAt?: number | undefined;
    /**
     * a queue delivers jobs of one key in order, one at a time
     */
    key?: string | undefined;
    /**
     * of a job: a key that no other job gets, while it is pending or for a time in ms
     */
    unique?: {
        key: string;
        for?: "pending" | number;
    } | undefined;
};
export type WriteOptions = {
    /**
     * a retry with the same key is not written twice; made up if left out
     */
    idempotencyKey?: string | undefined;
    create?: boolean | undefined;
    /**
     * of a topic that this write creates
     */
    config?: TopicConfig | undefined;
    disableBackpressure?: boolean | undefined;
    signal?: AbortSignal | undefined;
};
export type Appended = {
    firstSeq: number;
    lastSeq: number;
    headSeq: number;
    /**
     * whether this write created the topic
     */
    created: boolean;
    /**
     * whether an earlier attempt had written the records
     */
    deduped: boolean;
};
export type ReadOptions = {
    /**
     * deliver records after this seq; 0 begins at the earliest
     */
    fromSeq?: number | undefined;
    /**
     * the epoch that `fromSeq` belongs to
     */
    epoch?: number | null | undefined;
    limit?: number | undefined;
    maxBatchBytes?: number | undefined;
    /**
     * leave out records of these writers
     */
    node?: string | string[] | undefined;
    filter?: Filter | undefined;
    /**
     * leave out records from before this time, in ms since 1970
     */
    fromTs?: number | undefined;
    /**
     * true by default
     */
    includeTags?: boolean | undefined;
    includeMeta?: boolean | undefined;
    signal?: AbortSignal | undefined;
};
export type ScanOptions = {
    /**
     * deliver records after this seq; 0 begins at the earliest
     */
    fromSeq?: number | undefined;
    /**
     * the last seq to read; the head by default
     */
    uptoSeq?: number | undefined;
    /**
     * the epoch that `fromSeq` belongs to
     */
    epoch?: number | null | undefined;
    /**
     * leave out records of these writers
     */
    node?: string | string[] | undefined;
    filter?: Filter | undefined;
    /**
     * leave out records from before this time, in ms since 1970
     */
    fromTs?: number | undefined;
    /**
     * true by default
     */
    includeTags?: boolean | undefined;
    includeMeta?: boolean | undefined;
    signal?: AbortSignal | undefined;
};
/**
 * The state of a topic, with the field names of the API.
 */
export type TopicState = {
    topic: string;
    type: "log" | "queue";
    epoch: number;
    head_seq: number;
    earliest_seq: number;
    next_seq: number;
    count: number;
    bytes: number;
    config: Record<string, any>;
    effective_priority: number;
    last_write_ts: number | null;
    last_read_ts: number | null;
    queue?: {
        ready: number;
        in_flight: number;
        delayed: number;
        dead_lettered: number;
        dead_letter_error?: string;
        blocked?: number;
    } | undefined;
    archived_seq?: number | undefined;
    trimmed_seq?: number | undefined;
    archive?: {
        unarchived: number;
        overdue: number;
        evicted: number;
    } | undefined;
};
/**
 * A named consumer of a topic, with the field names of the API.
 */
export type ConsumerState = {
    topic: string;
    consumer: string;
    epoch: number;
    /**
     * the last record that it has processed
     */
    seq: number;
    head_seq: number;
    lag_records: number;
    /**
     * age of the oldest record that it has not read
     */
    lag_ms: number;
    lost: {
        records: number;
        gaps: {
            gap_from: number;
            gap_to: number;
            reason: string;
        }[];
    } | null;
    meta: Record<string, any> | null;
    expire_ms: number;
    hold: boolean;
    max_hold_bytes: number;
    updated_ms: number;
};
export type TopicSummary = {
    topic: string;
    type: "log" | "queue";
    epoch: number;
    head_seq: number;
    earliest_seq: number;
    count: number;
    bytes: number;
    durable: boolean;
    effective_priority: number;
};
export type RouterSummary = {
    router: string;
    source: string;
    dest: string;
    guarantee: "at_least_once" | "exactly_once";
    forwarded_total: number;
    cursor: number;
    lag: number;
    last_error: string | null;
};
export type RouterState = RouterSummary & {
    preserve_node: boolean;
    preserve_tag: boolean;
    filter: unknown[] | null;
    allow_cycle: boolean;
};
export type ScheduleState = {
    schedule: string;
    topic: string;
    record: any;
    cron: string | null;
    every_ms: number | null;
    timezone: string;
    starts_at: number | null;
    ends_at: number | null;
    jitter_ms: number;
    paused: boolean;
    overlap: "allow" | "skip";
    catch_up: "none" | "last" | "all";
    last_at: number | null;
    last_seq: number | null;
    next_at: number | null;
    skipped_total: number;
    failures_total: number;
    last_error: string | null;
};
/**
 * What a key or a token allows. One that is left out is that of the key that creates it.
 */
export type RightsOptions = {
    scopes?: ("read" | "delete" | "write" | "admin")[] | undefined;
    prefixes?: string[] | undefined;
    names?: string[] | undefined;
    operations?: ("watch" | "diff" | "work" | "publish")[] | undefined;
    /**
     * topics, by writing to them
     */
    create?: boolean | undefined;
    node?: string | null | undefined;
    origins?: string[] | undefined;
    maxStreams?: number | undefined;
    maxInflight?: number | undefined;
    rate?: number | undefined;
};
export type KeyState = {
    key: string;
    source: "stored" | "settings";
    rights: Record<string, any>;
    note: string;
    created_at: number | null;
    created_by: string | null;
    expires_at: number | null;
    last_used_at: number | null;
    rotating_until: number | null;
};
export type ListedJob = {
    $seq: number;
    state: "ready" | "in_flight" | "delayed";
    deliveries: number;
    priority: number;
    $ts: number;
    data: any;
    deliver_at?: number | undefined;
    /**
     * the worker that holds it
     */
    node?: string | undefined;
    lease_id?: string | undefined;
    /**
     * whether it waits for an earlier job of its key
     */
    blocked?: boolean | undefined;
    deadline?: number | undefined;
    /**
     * how far the worker has come
     */
    progress?: Progress | undefined;
    /**
     * why earlier deliveries failed
     */
    reasons?: Reason[] | undefined;
    $tag?: string | undefined;
    $key?: string | undefined;
    /**
     * the node that wrote it
     */
    $node?: string | undefined;
    meta?: Record<string, any> | undefined;
};
export type Page = {
    records: TopicRecord[];
    /**
     * records that were lost before the first one of this page
     */
    gap: Gap | null;
    /**
     * where the next page begins
     */
    nextFromSeq: number;
    headSeq: number;
    earliestSeq: number;
    epoch: number;
    caughtUp: boolean;
    /**
     * the position of the consumer, if the request named one
     */
    committedSeq?: number | undefined;
};
export type FollowOptions = {
    /**
     * where to begin if the cursor has no position yet
     */
    fromSeq?: number | undefined;
    /**
     * the epoch that `fromSeq` belongs to
     */
    epoch?: number | undefined;
    /**
     * begin at the head instead
     */
    tail?: boolean | undefined;
    /**
     * where the position is kept
     */
    cursor?: ServerCursor | Cursor<Position> | undefined;
    filter?: Filter | undefined;
    node?: string | string[] | undefined;
    /**
     * true by default
     */
    includeTags?: boolean | undefined;
    includeMeta?: boolean | undefined;
    includeData?: boolean | undefined;
    consistency?: "eventual" | "strong" | undefined;
    heartbeatMs?: number | undefined;
    /**
     * wait for a topic that does not exist instead of throwing `TopicNotFound`
     */
    waitForTopic?: boolean | undefined;
    /**
     * ends the loop
     */
    signal?: AbortSignal | undefined;
    /**
     * called before each new attempt
     */
    onRetry?: ((error: TopicsError, waitMs: number) => void) | undefined;
    /**
     * called when the loop has processed everything up to the head: the first time, and
     * each time after it had fallen behind or lost its connection
     */
    onCaughtUp?: (() => unknown) | undefined;
};
