/**
 * The JavaScript client of topics: one ES module for browsers and Node 20 or newer, without dependencies.
 *
 *     import { Topics, Gap } from "http://127.0.0.1:4000/client.js"
 *
 *     const topics = new Topics("http://127.0.0.1:4000")
 *     await topics.append("orders", { sku: "V60", qty: 1 }, { tag: "order-1" })
 *     for await (const item of topics.follow("orders")) {
 *       if (item instanceof Gap) console.warn(`missed ${item.firstSeq} to ${item.lastSeq}: ${item.reason}`)
 *       else console.log(item.seq, item.data)
 *     }
 *
 * Readers get `TopicRecord` and `Gap` objects. A gap is a range of records that were lost before this reader got them:
 * a reader that does not look at gaps does not know what it missed.
 *
 * @module topics
 */

const JSON_TYPE = "application/json"
const FIRST_WAIT_MS = 100
const MAX_WAIT_MS = 10_000
const TAKEOVER_WAIT_MS = 1_000 // the longest wait with several addresses: a client should notice the end of a takeover
const WATCHDOG_SLACK_MS = 5_000
const MAX_TIMER_MS = 2 ** 31 - 1
const FIRST_RETRIES = 5 // until the first answer: a wrong address fails within about three seconds
const BRIEFLY = -1 // retries of a worker, which ends within seconds if it is stopped while the server is away
const NODE_FILES = /** @type {string} */ ("node:fs/promises") // a variable, so that bundlers for browsers leave it alone

// --- errors

/** An expected failure. Each error code of the server is a subclass. */
export class TopicsError extends Error {
  /**
   * @param {string} message
   * @param {{code?: string, status?: number, detail?: any, retryable?: boolean, retryAfterMs?: number|null, cause?: unknown}} [fields]
   */
  constructor(message, fields = {}) {
    super(message, fields.cause === undefined ? undefined : { cause: fields.cause })
    this.name = new.target.name
    /** The stable name of the error, for example `topic_not_found`. */
    this.code = fields.code ?? "unknown"
    /** The HTTP status; 0 if the server did not answer. */
    this.status = fields.status ?? 0
    /** What the server says beside the message. @type {any} */
    this.detail = fields.detail ?? null
    /** Whether the same request can succeed later. */
    this.retryable = fields.retryable ?? false
    /** How long the server asks to wait, in ms. @type {number|null} */
    this.retryAfterMs = fields.retryAfterMs ?? null
    /** Whether the client has another address: a server there may take the request, now or soon. */
    this.hasOthers = false
  }
}

/** The request is malformed: see `detail.field`. */
export class InvalidRequest extends TopicsError {}
/** The batch has too many records or bytes. */
export class BatchTooLarge extends TopicsError {}
/** One record is larger than the server or the topic allows. */
export class RecordTooLarge extends TopicsError {}
/** The key is missing or unknown. */
export class Unauthorized extends TopicsError {}
/** The key lacks a scope, or the name lies outside its prefixes. */
export class Forbidden extends TopicsError {}
/** The path does not have this method: the server is older than the client. */
export class MethodNotAllowed extends InvalidRequest {}
/** The server cannot answer in the format that was asked for. */
export class NotAcceptable extends InvalidRequest {}
/** The content type of the body is not JSON. */
export class UnsupportedMediaType extends InvalidRequest {}
/** The headers of the request are larger than the server allows. */
export class HeadersTooLarge extends InvalidRequest {}
/** The path or the watch session does not exist. */
export class NotFound extends TopicsError {}
/** The watch session has ended. */
export class SessionGone extends NotFound {}
/** The topic does not exist. */
export class TopicNotFound extends TopicsError {}
/** The router does not exist. */
export class RouterNotFound extends TopicsError {}
/** The schedule does not exist. */
export class ScheduleNotFound extends TopicsError {}
/** The topic has no consumer of this name. */
export class ConsumerNotFound extends TopicsError {}
/** The consumer is not where `ifSeq` says: it is at `detail.seq`. */
export class ConsumerMoved extends TopicsError {}
/** The router would close a cycle: see `detail.cycle`. */
export class RouterCycle extends TopicsError {}
/** The topic or router exists with a configuration that excludes this one. */
export class TopicExistsIncompatible extends TopicsError {}
/** The topic holds records, and `ifEmpty` was set. */
export class SchemaViolation extends TopicsError {}
export class SchemaIncompatible extends TopicsError {}
export class TopicNotEmpty extends TopicsError {}
/** The topic is not a queue. */
export class NotAQueue extends TopicsError {}
/** The topic was created again since this epoch. */
export class EpochMismatch extends TopicsError {}
/** The body is larger than the server allows. */
export class PayloadTooLarge extends TopicsError {}
/** The server follows another one and takes no writes: `detail.writer` is the address of that one. */
export class NotWriter extends TopicsError {}
/** The topic is full and rejects writes. */
export class TopicFull extends TopicsError {}
/** The statement is wrong, takes too long or needs too much memory: the message says which. */
export class QueryFailed extends TopicsError {}
/** The server cannot answer SQL: the message says why. */
export class SqlUnavailable extends TopicsError {}
/** The server is busy, or a limit is reached: retry after `retryAfterMs`. */
export class Throttled extends TopicsError {}
/** The server failed: see its log. */
export class InternalError extends TopicsError {}
/** The server recovers its data, shuts down, or cannot write: retry after `retryAfterMs`. */
export class Unavailable extends TopicsError {}
/** The server recovers its data after a start. */
export class NotReady extends Unavailable {}
/** The server shuts down. */
export class ShuttingDown extends Unavailable {}
/** The server cannot write to its disk: see `detail.reason`. */
export class ReadOnly extends Unavailable {}
/** The server cannot read stored records now, because a disk is not mounted, for example: see `detail.file`. */
export class StorageUnavailable extends Unavailable {}
/** The write needs the replica, which does not answer: `detail.outcome` says whether it may take effect. */
export class ReplicaUnavailable extends Unavailable {}
/** Another server has taken over: this one accepts no writes. */
export class Fenced extends Unavailable {}
/** The server did not get the whole request in time. */
export class RequestTimeout extends Unavailable {}
/** The server did not answer: wrong address, stopped, or the connection broke. */
export class Unreachable extends TopicsError {}
/** The answer did not come within the time limit. */
export class TimedOut extends Unreachable {}
/** A write was not confirmed before its idempotency key expired: it may or may not have happened. */
export class OutcomeUnknown extends TopicsError {}
/** The address is not the URL of a server. */
export class BadUrl extends TopicsError {}

/** @type {Record<string, typeof TopicsError>} */
const ERRORS = {
  invalid_request: InvalidRequest,
  batch_too_large: BatchTooLarge,
  record_too_large: RecordTooLarge,
  unauthorized: Unauthorized,
  forbidden: Forbidden,
  not_found: NotFound,
  session_gone: SessionGone,
  method_not_allowed: MethodNotAllowed,
  not_acceptable: NotAcceptable,
  unsupported_media_type: UnsupportedMediaType,
  headers_too_large: HeadersTooLarge,
  request_timeout: RequestTimeout,
  topic_not_found: TopicNotFound,
  router_not_found: RouterNotFound,
  schedule_not_found: ScheduleNotFound,
  consumer_not_found: ConsumerNotFound,
  consumer_moved: ConsumerMoved,
  router_cycle: RouterCycle,
  topic_exists_incompatible: TopicExistsIncompatible,
  schema_violation: SchemaViolation,
  schema_incompatible: SchemaIncompatible,
  topic_not_empty: TopicNotEmpty,
  not_a_queue: NotAQueue,
  epoch_mismatch: EpochMismatch,
  payload_too_large: PayloadTooLarge,
  not_writer: NotWriter,
  topic_full: TopicFull,
  query_failed: QueryFailed,
  sql_unavailable: SqlUnavailable,
  throttled: Throttled,
  internal: InternalError,
  not_ready: NotReady,
  shutting_down: ShuttingDown,
  read_only: ReadOnly,
  storage_unavailable: StorageUnavailable,
  replica_unavailable: ReplicaUnavailable,
  fenced: Fenced,
}

const RETRYABLE = new Set([
  "request_timeout", "topic_full", "throttled", "not_ready", "shutting_down", "read_only",
  "storage_unavailable", "replica_unavailable", "fenced",
])

/**
 * @param {string} code
 * @param {number} status
 * @param {string} message
 * @param {any} detail
 * @param {number|null} retryAfterMs
 */
function errorOf(code, status, message, detail, retryAfterMs) {
  const Class = ERRORS[code] ?? TopicsError
  return new Class(message, { code, status, detail, retryable: RETRYABLE.has(code), retryAfterMs })
}

// --- what readers get

/**
 * One record of a topic. `T` is the type of its data, as in `topics.read<Order>("orders")`; nothing checks it at run time.
 * @template [T=any]
 */
export class TopicRecord {
  /**
   * @param {string} topic
   * @param {any} wire
   */
  constructor(topic, wire) {
    this.topic = topic
    /** @type {number} */
    this.seq = wire.$seq
    /** When the server committed the record, in ms since 1970. @type {number} */
    this.ts = wire.$ts
    /** Who wrote it. @type {string|undefined} */
    this.node = wire.$node
    /** @type {string|undefined} */
    this.tag = wire.$tag
    /** @type {string|undefined} */
    this.key = wire.$key
    /** @type {Record<string, any>|undefined} */
    this.meta = wire.meta
    /** @type {T} */
    this.data = wire.data
  }
}

/** A range of records that were lost before this reader got them. Both ends are included. */
export class Gap {
  /**
   * @param {string} topic
   * @param {any} wire
   */
  constructor(topic, wire) {
    this.topic = topic
    /** The first missing seq. @type {number} */
    this.firstSeq = wire.gap_from
    /** The last missing seq. @type {number} */
    this.lastSeq = wire.gap_to
    /** The cause: `cap`, `ttl`, `mixed`, `recreated`, `restart`, `failover`, `corrupt` or `source_trim`. @type {string} */
    this.reason = wire.cause ?? wire.reason
    /** About how many records were lost. @type {number|undefined} */
    this.missed = wire.missed_estimate
  }
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
export class Job extends TopicRecord {
  /** @type {Topics} */
  #topics
  /** @type {string} */
  #node

  /**
   * @param {Topics} topics
   * @param {string} topic
   * @param {string} node
   * @param {any} wire
   */
  constructor(topics, topic, node, wire) {
    super(topic, wire)
    this.#topics = topics
    this.#node = node
    /** @type {string} */
    this.leaseId = wire.lease_id
    /** When the lease ends, in ms since 1970. @type {number} */
    this.deadline = wire.deadline
    /** How often the job was delivered, this time included. @type {number} */
    this.deliveries = wire.deliveries
    /** Why earlier deliveries failed, the last one last. @type {Reason[]} */
    this.reasons = wire.reasons ?? []
    /** True until `ack` or `nack` was answered. */
    this.isOpen = true
    /** Whether the job was deleted: a worker notices when it extends the lease. */
    this.isCancelled = false
  }

  #held() {
    return { node: this.#node, seqs: [this.seq], leaseIds: [this.leaseId] }
  }

  /**
   * Complete the job. Return false if the lease had ended: another worker may have got the job.
   * @param {{retries?: number}} [options]
   */
  async ack(options = {}) {
    const { retries } = checked("job.ack", options)
    const answer = await this.#topics.ack(this.topic, { ...this.#held(), retries })
    this.isOpen = false
    return answer.acked === 1
  }

  /**
   * Give the job back, to be delivered again after `delayMs`: by default as the retry policy of the queue says, or at
   * once if it has none, or with `retry` after a delay that grows with the deliveries. `error` is what the job failed with.
   * @param {number} [delayMs]
   * @param {{retry?: boolean, reason?: string, error?: unknown, retries?: number}} [options]
   */
  async nack(delayMs, options = {}) {
    const answer = await this.#topics.nack(this.topic, { ...this.#held(), delayMs, ...checked("job.nack", options) })
    this.isOpen = false
    return answer.nacked === 1
  }

  /**
   * Hold the job for `leaseMs` from now. Return false if the lease had ended.
   * @param {number} leaseMs
   * @param {{retries?: number}} [options]
   */
  async extend(leaseMs, options = {}) {
    return this.#extend({ leaseMs, ...checked("job.extend", options) })
  }

  /**
   * Report how far the job is, from 0 to 1: the console and `listJobs` show it. Return false if the lease had ended. The
   * lease stays as it is, and a restart of the server forgets the progress. Each call is one request: a job does not fail
   * because a busy server, or none, answers it.
   * @param {number} share
   * @param {string} [text]
   */
  async progress(share, text) {
    try {
      return await this.#extend({ progress: { share, text }, retries: 0 })
    } catch (error) {
      if (!(error instanceof TopicsError && error.retryable)) throw error
      return true
    }
  }

  /** @param {{leaseMs?: number, progress?: Progress, retries?: number}} held */
  async #extend(held) {
    const answer = await this.#topics.extend(this.topic, { ...this.#held(), ...held })
    if (answer.extended === 1) this.deadline = answer.deadlines[this.seq]
    this.isCancelled ||= answer.cancelled?.includes(this.seq) ?? false
    return answer.extended === 1
  }
}

// --- cursors: where a reader keeps its position

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
  constructor(key, storage = globalThis.localStorage) {
    this.key = key
    this.storage = storage
  }

  load() {
    const text = this.storage.getItem(this.key)
    return text === null ? null : JSON.parse(text)
  }

  /** @param {any} position */
  save(position) {
    this.storage.setItem(this.key, JSON.stringify(position))
  }
}

/** Keep a position in a file (Node). A crash leaves the old position or the new one, never half of one. */
export class FileCursor {
  /** @param {string} path */
  constructor(path) {
    this.path = path
  }

  async load() {
    const { readFile } = await import(NODE_FILES)
    try {
      return JSON.parse(await readFile(this.path, "utf8"))
    } catch (error) {
      if (/** @type {any} */ (error).code === "ENOENT") return null
      throw error
    }
  }

  /** @param {any} position */
  async save(position) {
    const { open, rename } = await import(NODE_FILES)
    const file = await open(`${this.path}.new`, "w")
    try {
      await file.writeFile(JSON.stringify(position))
      await file.sync()
    } finally {
      await file.close()
    }
    await rename(`${this.path}.new`, this.path)
  }
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
  constructor(name, settings = {}) {
    this.name = name
    this.settings = checked("new ServerCursor", settings)
  }

  /**
   * Return `load` and `save` of the consumer in one topic.
   * @param {Topics} topics
   * @param {string} topic
   * @param {AbortSignal|null|undefined} signal
   * @returns {Cursor<Position>}
   */
  in(topics, topic, signal) {
    const { name, settings } = this
    return {
      async load() {
        const once = { retries: 0, signal }
        const created = Object.keys(settings).length > 0 && (await topics.putConsumer(topic, name, { ...settings, ...once })).created
        try {
          const { seq, epoch } = await topics.consumer(topic, name, once)
          return created ? null : { seq, epoch }
        } catch (error) {
          if (error instanceof ConsumerNotFound) return null
          throw error
        }
      },
      async save({ seq, epoch }) {
        const backoff = new Backoff()
        for (;;) {
          try {
            await topics.putConsumer(topic, name, { seq, epoch: epoch ?? undefined, retries: 0, signal })
            return
          } catch (error) {
            // The consumer ends with its topic: the next read reports that the topic was deleted or created again.
            if (error instanceof EpochMismatch || error instanceof TopicNotFound) return
            if (signal?.aborted) return
            await retryOrThrow(error, false, backoff, undefined, signal)
          }
        }
      },
    }
  }
}

// --- waiting

/**
 * @param {number} ms
 * @param {AbortSignal|null|undefined} [signal]
 * @returns {Promise<void>}
 */
function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason)
    const end = () => {
      clearTimeout(timer)
      reject(signal?.reason)
    }
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", end)
      resolve()
    }, ms)
    signal?.addEventListener("abort", end, { once: true })
  })
}

const LOCAL_HOSTS = ["127.0.0.1", "localhost", "[::1]"]
const ELSEWHERE = new Set(["not_writer", "fenced", "replica_unavailable", "shutting_down", "not_ready", "http_502", "http_503", "http_504"])

/**
 * Return whether another server of the same replica may take a request that failed so.
 * @param {TopicsError} error
 */
function mayHelpElsewhere(error) {
  return error instanceof Unreachable || ELSEWHERE.has(error.code)
}

/**
 * Return whether a request that failed so may have taken effect, or may do so later.
 * @param {TopicsError} error
 */
function mayHaveHappened(error) {
  if (error instanceof Unreachable) {
    const cause = /** @type {any} */ (error.cause)?.cause?.code // of Node; browsers do not say why
    return cause !== "ECONNREFUSED" && cause !== "ENOTFOUND"
  }
  return !["refused", undefined].includes(error.detail?.outcome)
}

/**
 * The addresses of a server and of its standbys, and the one that the next request goes to.
 *
 * A client stays with an address until a request fails that another server may answer. Only a standby sends it away for a
 * write, so it stays with the writer after its first write, and later reads see what it wrote.
 */
class Addresses {
  #at = 0 // of the last address that was chosen from the list

  /** @param {string} text addresses separated by commas */
  constructor(text) {
    this.all = text.split(",").map((url) => url.trim().replace(/\/+$/, ""))
    for (const url of this.all) {
      try {
        const parsed = new URL(url)
        if (!/^https?:$/.test(parsed.protocol)) throw new TypeError("not http")
        if (parsed.username || parsed.password) throw new TypeError("fetch takes no credentials in a URL")
      } catch (cause) {
        throw new BadUrl(`"${url}" is not the URL of a server: use http://HOST:PORT`, { code: "bad_url", cause })
      }
    }
    this.url = this.all[0]
  }

  /**
   * Choose the address of the next request, after one to `url` failed.
   * @param {string} url
   * @param {TopicsError} error
   */
  leave(url, error) {
    if (!mayHelpElsewhere(error)) return
    const writer = error instanceof NotWriter ? error.detail?.writer?.replace(/\/+$/, "") : null
    const named = writer && isFollowed(url, writer) ? writer : url
    error.hasOthers = [named, ...this.all].some((other) => other !== url)
    if (error instanceof NotWriter) error.retryable = error.hasOthers
    if (url !== this.url) return // another request has chosen already
    if (named !== url) {
      this.url = named
      return
    }
    // Go on in the list after the last address of it, so that no other is left out if writers are away.
    const order = [...this.all.slice(this.#at + 1), ...this.all.slice(0, this.#at + 1)]
    this.url = order.find((other) => other !== url) ?? url
    this.#at = this.all.indexOf(this.url)
  }
}

/** Several servers, each with the names that begin with its prefix. The longest prefix of a name counts. */
class Prefixes {
  /** @param {Record<string, string>} urls by prefix */
  constructor(urls) {
    /** @type {[string, Addresses][]} */
    this.all = Object.keys(urls).sort((a, b) => b.length - a.length).map((prefix) => [prefix, new Addresses(urls[prefix])])
  }

  /**
   * @param {string} name
   * @returns {Addresses}
   */
  ofName(name) {
    const found = this.all.find(([prefix]) => name.startsWith(prefix))
    if (!found) throw refusedHere(`no server has "${name}": the prefixes are ${this.all.map(([prefix]) => `"${prefix}"`).join(", ")}`)
    return found[1]
  }

  /**
   * Return the server of a request. A watch and a router name topics in their bodies: all must be on one server.
   * @param {string} path
   * @param {string} [text] the body
   * @returns {Addresses}
   */
  of(path, text) {
    const url = new URL(path, "http://any")
    const [, , kind, part = ""] = url.pathname.split("/")
    const prefix = url.searchParams.get("prefix")
    let names = part ? [decodeURIComponent(part)] : prefix ? [prefix] : []
    if (text && (kind === "watch" || kind === "routers")) {
      const { topics = {}, source, dest } = JSON.parse(text)
      names = [...names, ...Object.keys(topics), source, dest].filter(Boolean)
    }
    if (!names.length) throw refusedHere(`${path} concerns one server: ask it with server(prefix)`)
    const [first, ...others] = names.map((name) => this.ofName(name))
    if (others.some((other) => other !== first)) throw refusedHere(`${names.join(", ")} are on several servers, and ${kind} is on one`)
    return first
  }
}

/** @param {string} message */
function refusedHere(message) {
  return new InvalidRequest(message, { code: "invalid_request" })
}

/**
 * Return whether a client may go where a standby sends it: the key is sent there, too. A loopback address means another
 * machine than this one, unless the standby is here.
 * @param {string} standby
 * @param {string} writer
 */
function isFollowed(standby, writer) {
  const [here, there] = [new URL(standby), new URL(writer)]
  return here.protocol === there.protocol && (LOCAL_HOSTS.includes(here.hostname) || !LOCAL_HOSTS.includes(there.hostname))
}

/** How long to wait before the next attempt: longer each time, with jitter, and no less than the server asks. */
class Backoff {
  attempts = 0
  /** Addresses that were tried since the last wait. @type {Set<string>} */
  tried = new Set()
  #began = performance.now()

  /** Begin again: the last attempt succeeded. */
  reset() {
    this.attempts = 0
    this.#began = performance.now()
  }

  /** The time since the first attempt. */
  get passedMs() {
    return performance.now() - this.#began
  }

  /** @param {TopicsError|null} [error] */
  nextMs(error = null) {
    const most = Math.min(FIRST_WAIT_MS * 2 ** this.attempts++, error?.hasOthers ? TAKEOVER_WAIT_MS : MAX_WAIT_MS)
    this.tried.clear()
    return Math.max(error?.retryAfterMs ?? 0, most / 2) + Math.random() * (most / 2)
  }
}

/**
 * Return a signal that aborts with any of the given ones.
 * @param {...(AbortSignal|null|undefined)} signals
 */
function anySignal(...signals) {
  const controller = new AbortController()
  for (const signal of signals) {
    if (signal?.aborted) controller.abort(signal.reason)
    signal?.addEventListener("abort", () => controller.abort(signal.reason), { once: true, signal: controller.signal })
  }
  return controller.signal
}

// --- tokens

/** The key of a client, or the token that a function returns, until shortly before it expires. */
class Token {
  /** @type {(() => string|null|Promise<string|null>)|null} */
  #fetch
  /** @type {Promise<string|null>} */
  #now
  /** When to get the next one, in ms since 1970. */
  #renewAt = Infinity

  /** @param {string|null|(() => string|null|Promise<string|null>)} given */
  constructor(given) {
    if (typeof given === "string") new Headers({ authorization: given }) // Throws a TypeError for a key that no header can hold.
    this.#fetch = typeof given === "function" ? given : null
    this.#now = Promise.resolve(typeof given === "function" ? null : given)
    if (this.#fetch) this.#renewAt = 0
  }

  get isRenewed() {
    return this.#fetch !== null
  }

  /** Return the token. Requests that come while it is renewed wait for the same one. */
  async get() {
    if (this.#fetch && Date.now() >= this.#renewAt) {
      this.#renewAt = Infinity // until the new one is here
      this.#now = this.#renewed(this.#fetch)
      this.#now.catch(() => (this.#renewAt = 0))
    }
    return this.#now
  }

  /** @param {() => string|null|Promise<string|null>} fetch */
  async #renewed(fetch) {
    const token = await fetch()
    if (token && !isHeaderValue(token)) {
      const what = `the function for the token returned no token, but ${JSON.stringify(String(token).slice(0, 60))}…`
      throw new Unauthorized(what, { code: "unauthorized" })
    }
    this.#renewAt = renewAt(token)
    return token
  }

  /**
   * Get another token for the next request: the server has refused this one. Return whether there can be another one.
   * @param {string|null} token
   */
  async refused(token) {
    if (this.#fetch && (await this.#now) === token) this.#renewAt = 0
    return this.isRenewed
  }

  /** Return how long the token is used before it is renewed, in ms. */
  get leftMs() {
    return this.#renewAt - Date.now()
  }
}

/**
 * Return whether a header can hold a text: an error page that a function returns as its token has line breaks.
 * @param {unknown} text
 */
function isHeaderValue(text) {
  return typeof text === "string" && /^[!-~]+$/.test(text)
}

/**
 * Return when to renew a token: after four fifths of its time. A text that is no JWT never expires.
 * @param {string|null} token
 */
function renewAt(token) {
  try {
    const { iat, exp } = JSON.parse(atob((token ?? "").split(".")[1].replaceAll("-", "+").replaceAll("_", "/")))
    if (!Number.isFinite(exp)) return Infinity
    const [now, lifeMs] = [Date.now(), 1000 * (exp - (iat ?? Date.now() / 1000))]
    return Math.max(now + 1000, Math.min(now + 0.8 * lifeMs, 1000 * exp - 0.2 * lifeMs)) // it may have been kept for a while
  } catch {
    return Infinity
  }
}

/**
 * Say in the console what to set if the server is there and CORS alone keeps a page from it: the browser does not tell the page.
 * @param {string} url
 */
async function explainCors(url) {
  const origin = globalThis.location?.origin
  if (!origin || origin === url) return
  const isThere = await globalThis.fetch(`${url}/client.js`, { method: "HEAD" }).then((response) => response.ok, () => false)
  if (isThere) console.error(`topics: pages of ${origin} may not call ${url}; set TOPICS_CORS_ORIGINS=${origin} on the server`)
}

// --- server-sent events

/**
 * Yield the text of a stream as it comes.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<string, void>}
 */
async function* texts(body) {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  try {
    for (;;) {
      const { value, done } = await reader.read()
      if (done) return
      yield decoder.decode(value, { stream: true })
    }
  } finally {
    await reader.cancel().catch(() => {})
  }
}

/**
 * Parse a `text/event-stream`. Comments come as events without a name, so that a reader notices heartbeats.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<{event: string, data: string, id: string|null}, void>}
 */
async function* parseEvents(body) {
  let held = ""
  for await (const text of texts(body)) {
    held += text
    let end
    let start = 0
    while ((end = held.indexOf("\n\n", start)) >= 0) {
      const event = { event: "", data: "", id: /** @type {string|null} */ (null) }
      for (const line of held.slice(start, end).split("\n")) {
        if (line.startsWith("data: ")) event.data += line.slice(6)
        else if (line.startsWith("event: ")) event.event = line.slice(7)
        else if (line.startsWith("id: ")) event.id = line.slice(4)
      }
      start = end + 2
      yield event
    }
    held = held.slice(start)
  }
}

// --- options

const CALL = ["retries", "signal"]
const CONFIG = [
  "type", "ttlMs", "capRecords", "capBytes", "discard", "durable", "durability", "priority", "autoPriority", "autoCreate",
  "idempotencyWindowMs", "dedupeNode", "leaseMs", "claimJitterMs", "maxDeliveries", "deadLetter", "leasesDurable", "retry", "maxInFlight",
  "maxInFlightPerKey", "rate", "ratePerKey", "paused", "defaults", "archive",
  "schema", "schemaMode", "compatibility", "force",
]
const TIMING = ["cron", "everyMs", "timezone", "startsAt", "endsAt"]
const RECORD = ["tag", "node", "meta", "priority", "delayMs", "deliverAt", "key", "unique"]
const WRITE = ["node", "idempotencyKey", "create", "config", "disableBackpressure", "signal"]
const RANGE = ["fromSeq", "epoch", "node", "filter", "fromTs", "includeTags", "includeMeta", "signal"]
const START = ["fromSeq", "tail", "filter", "epoch", "consumer"]
const VIEW = ["cursor", "node", "includeTags", "includeMeta", "includeData", "consistency", "heartbeatMs", "waitForTopic", "signal", "onRetry"]
const HELD = ["node", "seqs", "leaseIds", ...CALL]
const RIGHTS = ["scopes", "prefixes", "names", "operations", "create", "node", "origins", "maxStreams", "maxInflight", "rate"]
const LOOP = ["node", "leaseMs", "retryDelayMs", "signal", "onRetry"]

const QUERY_MS = 100_000 // a query may wait for others

/** The options of each method. @type {Record<string, string[]>} */
const OPTIONS = {
  "new Topics": ["token", "retries", "timeoutMs", "retryForMs", "fetch", "WebSocket", "parse"],
  "new ServerCursor": ["hold", "maxHoldBytes", "expireMs"],
  "job.ack": ["retries"],
  "job.nack": ["retry", "reason", "error", "retries"],
  "job.extend": ["retries"],
  "socket.publish": WRITE,
  "socket.subscribe": [...START, "node", "includeTags", "includeMeta", "includeData"],
  "socket.commit": ["consumer"],
  record: ["data", ...RECORD],
  config: CONFIG,
  putTopic: CONFIG,
  topic: ["touch", "signal"],
  topics: ["prefix", "pageSize"],
  dropTopic: ["ifEmpty"],
  append: [...RECORD, "recordKey", ...WRITE],
  appendMany: WRITE,
  diff: [...RANGE, "limit", "maxBatchBytes", "waitMs", "consumer", "commit"],
  read: [...RANGE, "limit", "maxBatchBytes"],
  scan: [...RANGE, "uptoSeq"],
  delete: ["beforeSeq", "match", "seqs", "epoch", "dryRun"],
  schema: ["version", "signal"],
  timeline: ["fromSeq", "toSeq", "ranges", "signal"],
  reportArchived: ["seq", "epoch", "trimmedSeq"],
  putConsumer: ["seq", "epoch", "ifSeq", "meta", "expireMs", "hold", "maxHoldBytes", ...CALL],
  commit: ["topic", "consumer", "seq"],
  consumer: CALL,
  consumers: ["prefix"],
  follow: ["fromSeq", "epoch", "tail", "filter", "onCaughtUp", ...VIEW],
  watch: VIEW,
  "a topic of watch": START,
  claim: ["node", "max", "leaseMs", "waitMs", ...CALL],
  ack: HELD,
  nack: ["delayMs", "retry", "reason", "error", ...HELD],
  extend: ["leaseMs", "progress", ...HELD],
  listJobs: ["state"],
  redrive: ["match", "seqs", "fromSeq", "limit", "dryRun", "deadLetter"],
  jobs: LOOP,
  pushedJobs: LOOP,
  work: [...LOOP, "concurrency", "timeoutMs", "onStart", "onDone", "onError"],
  putRouter: ["source", "dest", "filter", "preserveNode", "preserveTag", "createDest", "allowCycle", "guarantee", "fromSeq", "fromTs"],
  routers: ["prefix", "source", "dest"],
  previewRouter: ["source", "filter", "fromSeq", "fromTs"],
  putSchedule: ["topic", "record", ...TIMING, "jitterMs", "paused", "overlap", "catchUp"],
  schedules: ["prefix", "topic"],
  previewSchedule: [...TIMING, "after"],
  samples: ["after", "queue"],
  sql: ["limit"],
  createToken: [...RIGHTS, "ttlMs", "subject"],
  revokeTokens: ["id", "key", "before"],
  createKey: [...RIGHTS, "ttlMs", "note"],
  rotateKey: ["overlapMs"],
  connect: ["onClose"],
}

/**
 * Return a parser whose failure ends the call. Any other failure to read an answer counts as a broken connection.
 * @param {(text: string) => any} parse
 * @returns {(text: string) => any}
 */
function final(parse) {
  return (text) => {
    try {
      return parse(text)
    } catch (cause) {
      throw new TopicsError(`the option parse failed: ${cause instanceof Error ? cause.message : cause}`, { code: "parse_failed", cause })
    }
  }
}

/**
 * Return options. Throw a `TypeError` for one that the method does not have: a misspelled option must not be ignored.
 * @template {object} Given
 * @param {string} method
 * @param {Given} options
 * @returns {Given}
 */
function checked(method, options) {
  const known = OPTIONS[method]
  for (const name of Object.keys(options)) {
    if (!known.includes(name)) throw new TypeError(`${method}: there is no option "${name}"; ${suggestion(name, known)}`)
  }
  return options
}

/** Return the origin of the page, or the address in `TOPICS_URL`, or that of a server on this machine. */
function defaultUrl() {
  const variables = /** @type {any} */ (globalThis).process?.env
  return globalThis.location?.origin ?? (variables?.TOPICS_URL || "http://127.0.0.1:4000")
}

/**
 * Name the option that was probably meant, or all of them.
 * @param {string} name
 * @param {string[]} known
 */
function suggestion(name, known) {
  const plain = (/** @type {string} */ text) => text.toLowerCase().replaceAll("_", "")
  const given = plain(name)
  const near =
    known.find((other) => plain(other) === given) ??
    known.find((other) => plain(other).includes(given) || given.includes(plain(other))) ??
    known.find((other) => distance(plain(other), given) <= 2)
  return near ? `did you mean "${near}"?` : `the options are ${known.join(", ")}`
}

/**
 * Return the number of letters to insert, remove or replace to get from one text to the other.
 * @param {string} one
 * @param {string} other
 */
function distance(one, other) {
  let row = Array.from({ length: other.length + 1 }, (_, index) => index)
  for (let i = 1; i <= one.length; i++) {
    const next = [i]
    for (let j = 1; j <= other.length; j++) {
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (one[i - 1] === other[j - 1] ? 0 : 1))
    }
    row = next
  }
  return row[other.length]
}

// --- names on the wire

/**
 * Return records as the server takes them.
 * @param {NewRecord[]} records
 */
function wireRecords(records) {
  return records.map((record) => {
    if (!(record instanceof TopicRecord)) checked("record", record) // A record that was read has more: it can be copied as it is.
    return { ...wire({ ...record, data: undefined }), data: record.data ?? null }
  })
}

/**
 * Rename the keys of an object from camelCase to snake_case, and leave out those that are undefined.
 * @param {Record<string, any>} fields
 */
function wire(fields) {
  /** @type {Record<string, any>} */
  const out = {}
  for (const [key, value] of Object.entries(fields)) {
    const inner = ["retry", "rate", "ratePerKey"].includes(key) && value !== null && typeof value === "object" ? wire(value) : value
    if (value !== undefined) out[key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)] = inner
  }
  return out
}

/**
 * Return a value as JSON text. Throw a `TypeError` if JSON cannot hold it: a BigInt, a circle, NaN, an infinity.
 * @param {any} value
 */
function jsonText(value) {
  try {
    const text = JSON.stringify(value)
    if (text.includes("null")) JSON.stringify(value, finite) // The first pass has written NaN and infinities as null.
    return text
  } catch (cause) {
    throw new TypeError(`JSON cannot hold this request: ${cause instanceof Error ? cause.message : cause}`, { cause })
  }
}

/**
 * @param {string} key
 * @param {any} value
 */
function finite(key, value) {
  if (typeof value === "number" && !Number.isFinite(value)) throw new TypeError(`"${key}" is ${value}`)
  return value
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
  /** @type {Addresses} */
  #addresses
  /** @type {Prefixes|null} */
  #prefixes
  /** @type {{url: string|Record<string, string>, options: object}} */
  #given
  /** @type {Token} */
  #token
  #explained = false
  /** @type {typeof fetch} */
  #fetch
  /** @type {number|null} */
  #retries
  /** Whether the server has answered yet. */
  #answered = false
  /** @type {number} */
  #timeoutMs
  /** @type {number} */
  #retryForMs
  /** @type {any} */
  #WebSocket
  /** @type {(text: string) => any} */
  #parse

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
  constructor(url = defaultUrl(), options = {}) {
    checked("new Topics", options)
    this.#given = { url, options }
    this.#prefixes = typeof url === "string" ? null : new Prefixes(url)
    this.#addresses = this.#prefixes ? this.#prefixes.all[0][1] : new Addresses(String(url))
    this.#token = new Token(options.token ?? null)
    this.#fetch = options.fetch ?? ((...args) => globalThis.fetch(...args))
    this.#retries = options.retries ?? null
    this.#timeoutMs = options.timeoutMs ?? 30_000
    this.#retryForMs = options.retryForMs ?? 100_000
    this.#WebSocket = options.WebSocket ?? globalThis.WebSocket
    this.#parse = options.parse ? final(options.parse) : JSON.parse
  }

  /**
   * Return the client of one server of a map of prefixes.
   * @param {string} prefix
   * @returns {Topics}
   */
  server(prefix) {
    const { url, options } = this.#given
    if (typeof url === "string" || !(prefix in url)) throw refusedHere(`the client has no map with the prefix "${prefix}"`)
    return new Topics(url[prefix], options)
  }

  /**
   * Return where a request goes.
   * @param {string} path
   * @param {string} [text]
   */
  #at(path, text) {
    return this.#prefixes ? this.#prefixes.of(path, text) : this.#addresses
  }

  // --- requests

  /**
   * Send one request, once. `text` is its body. `take` reads the answer within the same time limit; without it, its body is
   * left to the caller.
   * @template T
   * @param {string} method
   * @param {string} path
   * @param {{text?: string, accept?: string, signal?: AbortSignal|null, timeoutMs?: number}} options
   * @param {(response: Response) => Promise<T>|T} take
   * @returns {Promise<T>}
   */
  async #send(method, path, options, take) {
    const token = await this.#token.get()
    try {
      return await this.#sendWith(token, method, path, options, take)
    } catch (error) {
      if (!(error instanceof Unauthorized && (await this.#token.refused(token)))) throw error
      return await this.#sendWith(await this.#token.get(), method, path, options, take)
    }
  }

  /**
   * @template T
   * @param {string|null} token
   * @param {string} method
   * @param {string} path
   * @param {{text?: string, accept?: string, signal?: AbortSignal|null, timeoutMs?: number}} options
   * @param {(response: Response) => Promise<T>|T} take
   * @returns {Promise<T>}
   */
  async #sendWith(token, method, path, { text, accept = JSON_TYPE, signal, timeoutMs = this.#timeoutMs }, take) {
    const limit = new AbortController()
    const timer = setTimeout(() => limit.abort(), timeoutMs)
    /** @type {Record<string, string>} */
    const sent = { accept }
    if (text !== undefined) sent["content-type"] = JSON_TYPE
    if (token) sent.authorization = `Bearer ${token}`
    const addresses = this.#at(path, text)
    const url = addresses.url
    try {
      const response = await this.#fetch(url + path, {
        method,
        headers: sent,
        body: text,
        signal: anySignal(signal, limit.signal),
        cache: "no-store",
      })
      if (!response.ok) throw await this.#failure(response)
      this.#answered = true
      return await take(response)
    } catch (cause) {
      if (signal?.aborted && !(cause instanceof TopicsError)) throw signal.reason
      let error = cause instanceof TopicsError ? cause : null
      if (!error && limit.signal.aborted) {
        error = new TimedOut(`no answer from ${url} within ${timeoutMs} ms`, { code: "timed_out", retryable: true, cause })
      }
      if (!error && !this.#explained && cause instanceof TypeError) {
        this.#explained = true
        void explainCors(url)
      }
      error ??= new Unreachable(`no answer from ${url}: is the server running?`, { code: "unreachable", retryable: true, cause })
      addresses.leave(url, error)
      throw error
    } finally {
      clearTimeout(timer)
    }
  }

  /**
   * @param {Response} response
   * @returns {Promise<any>}
   */
  async #json(response) {
    return this.#parse === JSON.parse ? response.json() : this.#parse(await response.text())
  }

  /** @param {Response} response */
  async #failure(response) {
    const seconds = Number(response.headers.get("retry-after"))
    let error = /** @type {any} */ ({})
    try {
      error = (await response.json()).error ?? {}
    } catch {
      // A proxy answered, not the server: the status has to do.
    }
    const code = error.code ?? `http_${response.status}`
    if (code in ERRORS) this.#answered = true // A proxy in front of a wrong address answers with other codes.
    const waitMs = error.detail?.retry_after_ms ?? (seconds ? seconds * 1000 : null)
    const failure = errorOf(code, response.status, error.message ?? `HTTP ${response.status}`, error.detail, waitMs)
    if ([502, 503, 504].includes(response.status)) failure.retryable = true
    return failure
  }

  /**
   * Send a request, and repeat it while that can help. `safe` says that a repetition cannot do harm even if the server
   * has carried out the first one; a `keyed` request is safe for as long as the server remembers its key. `retries`
   * replaces the number of the client.
   * @param {string} method
   * @param {string} path
   * @param {{body?: any, signal?: AbortSignal|null, safe?: boolean, keyed?: boolean, timeoutMs?: number, retries?: number}} [options]
   * @returns {Promise<any>}
   */
  async #call(method, path, { body, signal, safe = true, keyed = false, timeoutMs, retries } = {}) {
    const backoff = new Backoff()
    const text = body === undefined ? undefined : jsonText(body)
    let answerLost = false
    const addresses = this.#at(path, text)
    for (;;) {
      backoff.tried.add(addresses.url)
      try {
        return await this.#send(method, path, { text, signal, timeoutMs }, (response) => this.#json(response))
      } catch (error) {
        if (!(error instanceof TopicsError)) throw error
        const lost = mayHaveHappened(error)
        if (lost && !safe) throw error
        answerLost ||= lost
        if (mayHelpElsewhere(error) && !backoff.tried.has(addresses.url)) continue // another server, at once
        if (!error.retryable || backoff.attempts >= this.#mostRetries(retries)) throw error
        const waitMs = backoff.nextMs(error)
        const limited = keyed || (this.#retries === null && retries === undefined)
        if (limited && backoff.passedMs + waitMs > this.#retryForMs) {
          if (!keyed || !answerLost) throw error
          throw new OutcomeUnknown(`no confirmation for ${this.#retryForMs} ms: ${error.message}`, { code: "outcome_unknown", cause: error })
        }
        await sleep(waitMs, signal)
      }
    }
  }

  /**
   * Return how often a request is repeated: as the call says, then as the client says. If neither says so, a client that
   * has had an answer repeats it for `retryForMs`.
   * @param {number} [retries]
   */
  #mostRetries(retries) {
    if (retries === BRIEFLY) return this.#retries ?? FIRST_RETRIES
    return retries ?? this.#retries ?? (this.#answered ? Infinity : FIRST_RETRIES)
  }

  // --- topics

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
  async putTopic(topic, config = {}) {
    return this.#call("PUT", `/v0/topics/${encodeURIComponent(topic)}`, { body: { defaults: "safe", ...wire(checked("putTopic", config)) } })
  }

  /**
   * Return the state of a topic. With `touch`, the request counts as a read of the topic, which raises its automatic
   * priority.
   * @param {string} topic
   * @param {{touch?: boolean, signal?: AbortSignal}} [options]
   * @returns {Promise<TopicState>}
   */
  async topic(topic, options = {}) {
    const { touch = false, signal } = checked("topic", options)
    return this.#call("GET", `/v0/topics/${encodeURIComponent(topic)}?touch=${touch}`, { signal })
  }

  /**
   * List topics by name, page after page.
   *
   *     for await (const row of topics.topics({ prefix: "orders." })) console.log(row.topic, row.count)
   *
   * @param {{prefix?: string, pageSize?: number}} [options]
   * @returns {AsyncGenerator<TopicSummary, void>}
   */
  topics(options = {}) {
    const { prefix, pageSize = 1000 } = checked("topics", options)
    return this.#pages("/v0/topics", "topics", { prefix, page_size: pageSize })
  }

  /**
   * Remove a topic and everything in it. Return false if it did not exist.
   * @param {string} topic
   * @param {{ifEmpty?: boolean}} [options]
   * @returns {Promise<boolean>}
   */
  async dropTopic(topic, options = {}) {
    const { ifEmpty = false } = checked("dropTopic", options)
    const query = ifEmpty ? "?if_empty=true" : ""
    return (await this.#call("DELETE", `/v0/topics/${encodeURIComponent(topic)}${query}`)).deleted
  }

  /**
   * @param {string} path
   * @param {string} rows
   * @param {Record<string, any>} query
   * @returns {AsyncGenerator<any, void>}
   */
  async *#pages(path, rows, query) {
    let cursor
    do {
      const given = Object.entries({ ...query, cursor }).filter(([, value]) => value !== undefined)
      const page = await this.#call("GET", `${path}?${new URLSearchParams(given.map(([k, v]) => [k, String(v)]))}`)
      yield* page[rows]
      cursor = page.next_cursor
    } while (cursor !== undefined)
  }

  // --- records

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
  async append(topic, data, options = {}) {
    const { tag, node, meta, priority, delayMs, deliverAt, recordKey, key = recordKey, unique, ...write } = checked("append", options)
    const done = await this.appendMany(topic, [{ data, tag, node, meta, priority, delayMs, deliverAt, key, unique }], write)
    return done.firstSeq
  }

  /**
   * Append many records: all of them or none.
   * @param {string} topic
   * @param {NewRecord[]} records
   * @param {WriteOptions & {node?: string}} [options]
   * @returns {Promise<Appended>}
   */
  async appendMany(topic, records, options = {}) {
    const { signal, config, idempotencyKey = crypto.randomUUID(), ...rest } = checked("appendMany", options)
    const body = {
      ...wire({ ...rest, idempotencyKey }),
      ...(config && { config: wire(checked("config", config)) }),
      records: wireRecords(records),
    }
    const path = `/v0/topics/${encodeURIComponent(topic)}?return_seqs=false`
    const done = await this.#call("POST", path, { body, signal, keyed: true })
    if (done.created) console.warn(`topics: ${topic} did not exist; this append has created it`)
    return {
      firstSeq: done.first_seq,
      lastSeq: done.last_seq,
      headSeq: done.head_seq,
      created: done.created === true,
      deduped: done.deduped === true,
    }
  }

  /**
   * Return one page of records after a seq. With `waitMs`, wait for a record at the head of the topic. `consumer` reads
   * from the position of a named consumer instead of `fromSeq`, and `commit` first moves it: to a seq, or with true behind
   * all that it was sent.
   * @param {string} topic
   * @param {ReadOptions & {waitMs?: number, consumer?: string, commit?: boolean|number}} [options]
   * @returns {Promise<Page>}
   */
  async diff(topic, options = {}) {
    const { signal, waitMs = 0, includeTags = true, ...rest } = checked("diff", options)
    const page = await this.#call("POST", `/v0/topics/${encodeURIComponent(topic)}/diff`, {
      body: wire({ ...rest, includeTags, waitMs: waitMs || undefined }),
      signal,
      timeoutMs: this.#timeoutMs + waitMs,
    })
    return {
      records: page.records.map((/** @type {any} */ record) => new TopicRecord(topic, record)),
      gap: page.tombstone ? new Gap(topic, page.tombstone) : null,
      nextFromSeq: page.next_from_seq,
      headSeq: page.head_seq,
      earliestSeq: page.earliest_seq,
      epoch: page.epoch,
      caughtUp: page.caught_up,
      committedSeq: page.committed_seq,
    }
  }

  /**
   * Read records and gaps up to the head of the topic, and end there.
   * @template [T=any]
   * @param {string} topic
   * @param {ReadOptions} [options]
   * @returns {AsyncGenerator<TopicRecord<T>|Gap, void>}
   */
  async *read(topic, options = {}) {
    let { fromSeq = 0, epoch = null, fromTs } = checked("read", options)
    for (;;) {
      const page = await this.diff(topic, { limit: 1000, ...options, fromSeq, epoch, fromTs })
      if (page.gap) yield page.gap
      yield* page.records
      if (page.caughtUp) return
      fromSeq = page.nextFromSeq
      epoch = page.epoch
      fromTs = undefined
    }
  }

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
  async *scan(topic, options = {}) {
    const { signal, includeTags = true, ...range } = checked("scan", options)
    const backoff = new Backoff()
    for (;;) {
      try {
        for await (const line of this.#lines(`/v0/topics/${encodeURIComponent(topic)}/scan`, wire({ ...range, includeTags }), signal)) {
          backoff.reset()
          range.fromTs = undefined
          if (line.$seq !== undefined) {
            yield new TopicRecord(topic, line)
            range.fromSeq = line.$seq
          } else if (line.tombstone) {
            yield new Gap(topic, line.tombstone)
            range.fromSeq = restart(line.tombstone)
            range.epoch = line.tombstone.epoch
          } else if (line.error) {
            throw errorOf(line.error.code, 200, line.error.message, line.error.detail, line.error.detail?.retry_after_ms ?? null)
          } else if (line.end) return
        }
        throw new Unreachable("the scan was cut off", { code: "stream_ended", retryable: true })
      } catch (error) {
        if (signal?.aborted || backoff.attempts >= this.#mostRetries()) throw error
        if (this.#retries === null && backoff.passedMs > this.#retryForMs) throw error
        await retryOrThrow(error, false, backoff, undefined, signal)
      }
    }
  }

  /**
   * Send a body, and parse the JSON lines of the answer.
   * @param {string} path
   * @param {any} body
   * @param {AbortSignal|null|undefined} signal
   * @returns {AsyncGenerator<any, void>}
   */
  async *#lines(path, body, signal) {
    const left = new AbortController()
    const sent = jsonText(body)
    try {
      const options = { text: sent, accept: "application/x-ndjson", signal: anySignal(signal, left.signal) }
      const stream = await this.#send("POST", path, options, (response) => response.body)
      let held = ""
      for await (const text of texts(/** @type {any} */ (stream))) {
        const lines = (held + text).split("\n")
        held = /** @type {string} */ (lines.pop())
        for (const line of lines) yield this.#parse(line)
      }
    } catch (error) {
      if (signal?.aborted) throw signal.reason
      if (error instanceof TopicsError) throw error
      throw new Unreachable("the answer broke off", { code: "stream_broke", retryable: true, cause: error })
    } finally {
      left.abort()
    }
  }

  /**
   * Delete records by seq, by tag, or both; or a list of `seqs`. Readers see no gap where records were deleted.
   *
   *     await topics.delete("orders", { match: ["tag", "Glob", "customer-7:*"] })
   *
   * @param {string} topic
   * @param {{beforeSeq?: number, match?: Match, seqs?: number[], epoch?: number, dryRun?: boolean}} which
   * @returns {Promise<{topic: string, deleted: number, earliest_seq: number, head_seq: number, count: number, bytes: number}>}
   */
  async delete(topic, which) {
    return this.#call("POST", `/v0/topics/${encodeURIComponent(topic)}/delete`, { body: wire(checked("delete", which)) })
  }

  /**
   * Return what has become of each seq of a window: live, deleted, archived, or lost and why. Short ranges are merged.
   * @param {string} topic
   * @param {{fromSeq?: number, toSeq?: number, ranges?: number, signal?: AbortSignal}} [options]
   * @returns {Promise<{topic: string, epoch: number, head_seq: number, earliest_seq: number, archived_seq: number, from_seq: number, to_seq: number, resolution: number, ranges: {from_seq: number, to_seq: number, state: string, live?: number, deleted?: number, lost?: number}[], live: number, deleted: number, lost: number}>}
   */
  async timeline(topic, options = {}) {
    const { signal, ...window } = checked("timeline", options)
    const query = Object.entries(wire(window)).map(([key, value]) => [key, String(value)])
    return this.#call("GET", `/v0/topics/${encodeURIComponent(topic)}/timeline?${new URLSearchParams(query)}`, { signal })
  }

  /**
   * Return a version of the schema of a topic, by default the last one.
   * @param {string} topic
   * @param {{version?: number, signal?: AbortSignal}} [options]
   * @returns {Promise<{topic: string, version: number, versions: number, active: boolean, schema: Record<string, any>, schema_mode: string, compatibility: string}>}
   */
  async schema(topic, options = {}) {
    const { signal, version } = checked("schema", options)
    const query = version === undefined ? "" : `?version=${version}`
    return this.#call("GET", `/v0/topics/${encodeURIComponent(topic)}/schema${query}`, { signal })
  }

  /**
   * Report that an archive has every record of this epoch of the topic up to `seq`. An archive that deletes archived
   * records from the topic reports the last one first, as `trimmedSeq`.
   * @param {string} topic
   * @param {{seq: number, epoch: number, trimmedSeq?: number}} position
   * @returns {Promise<{topic: string, epoch: number, archived_seq: number, head_seq: number, moved: boolean}>}
   */
  async reportArchived(topic, position) {
    const body = wire(checked("reportArchived", position))
    return this.#call("POST", `/v0/topics/${encodeURIComponent(topic)}/archived`, { body })
  }

  // --- consumers

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
  async putConsumer(topic, name, position = {}) {
    const { meta, retries, signal, ...rest } = checked("putConsumer", position)
    const body = { ...wire(rest), ...(meta !== undefined && { meta }) }
    return this.#call("PUT", consumerPath(topic, name), { body, safe: position.ifSeq === undefined, retries, signal })
  }

  /**
   * Move consumers of any topics. They never move back. A commit that cannot take effect is listed in `refused`.
   *
   *     await topics.commit([{ topic: "orders", consumer: "billing", seq: 480 }])
   *
   * @param {{topic: string, consumer: string, seq: number}[]} commits
   * @returns {Promise<{committed: number, refused: {topic: string, consumer: string, code: string, message: string}[]}>}
   */
  async commit(commits) {
    for (const row of commits) checked("commit", row)
    return this.#call("POST", "/v0/consumers", { body: { commits } })
  }

  /**
   * Return a consumer: its position, its lag, and what it has lost. Throws `ConsumerNotFound`.
   * @param {string} topic
   * @param {string} name
   * @param {CallOptions} [options]
   * @returns {Promise<ConsumerState>}
   */
  async consumer(topic, name, options = {}) {
    const { retries, signal } = checked("consumer", options)
    return this.#call("GET", consumerPath(topic, name), { retries, signal })
  }

  /**
   * List the consumers of a topic by name, or those of all topics whose names begin with `prefix`.
   *
   *     for await (const row of topics.consumers("orders")) console.log(row.consumer, row.lag_records)
   *
   * @param {string|null} [topic]
   * @param {{prefix?: string}} [options]
   * @returns {AsyncGenerator<ConsumerState, void>}
   */
  consumers(topic = null, options = {}) {
    const { prefix } = checked("consumers", options)
    const path = topic === null ? "/v0/consumers" : `/v0/topics/${encodeURIComponent(topic)}/consumers`
    return this.#pages(path, "consumers", { prefix, page_size: 1000 })
  }

  /**
   * Forget a consumer, and end its hold. Return false if it did not exist.
   * @param {string} topic
   * @param {string} name
   * @returns {Promise<boolean>}
   */
  async dropConsumer(topic, name) {
    return (await this.#call("DELETE", consumerPath(topic, name))).deleted
  }

  // --- following

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
  async *follow(topic, options = {}) {
    const { cursor: given, fromSeq = 0, tail = false, waitForTopic = false, signal, onRetry, onCaughtUp, filter, epoch: known, ...view } = checked("follow", options)
    const cursor = given instanceof ServerCursor ? given.in(this, topic, signal) : given
    /** @type {Position|null|undefined} */
    let position = null
    let loaded = false
    const backoff = new Backoff()
    let existed = false
    while (!signal?.aborted) {
      try {
        if (!loaded) {
          position = await cursor?.load()
          loaded = true
        }
        const start = position ? { from_seq: position.seq, epoch: position.epoch ?? undefined } : { from_seq: fromSeq, epoch: known, tail }
        const session = await this.#open({ [topic]: { ...start, filter } }, view, signal)
        existed = true
        const { epoch, from_seq } = session.topics[topic]
        position ??= { seq: from_seq, epoch }
        for await (const { event, data } of this.#events(session.stream_url, view.heartbeatMs, signal)) {
          backoff.reset()
          if (event === "topic-deleted") break
          if (event === "caught-up") await onCaughtUp?.()
          const items = itemsOf(event, data)
          if (!items) continue
          yield* items
          position = { seq: event === "tombstone" ? restart(data) : data.to_seq, epoch }
          await cursor?.save(position)
        }
      } catch (error) {
        if (signal?.aborted) return
        const waitable = error instanceof TopicNotFound && (waitForTopic || existed)
        await retryOrThrow(error, waitable, backoff, onRetry, signal)
      }
    }
  }

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
  async *watch(wanted, options = {}) {
    const { cursor, waitForTopic = false, signal, onRetry, ...view } = checked("watch", options)
    /** @type {Record<string, {fromSeq?: number, tail?: boolean, filter?: Filter, epoch?: number, consumer?: string}>} */
    const named = Array.isArray(wanted) ? Object.fromEntries(wanted.map((name) => [name, {}])) : wanted
    for (const start of Object.values(named)) checked("a topic of watch", start)
    /** @type {{id: string|null, epochs: Record<string, number>}} */
    let position = (await cursor?.load()) ?? { id: null, epochs: {} }
    const backoff = new Backoff()
    while (!signal?.aborted) {
      try {
        /** @type {Record<string, any>} */
        const topics = {}
        for (const [name, start] of Object.entries(named)) {
          const epoch = position.id === null ? undefined : position.epochs[name]
          topics[name] = wire(position.id === null ? start : { filter: start.filter, epoch })
        }
        const session = await this.#open(topics, { ...view, cursor: position.id ?? undefined }, signal, waitForTopic)
        const epochs = { ...position.epochs }
        for (const name of Object.keys(named)) {
          if (session.topics[name]) epochs[name] = session.topics[name].epoch
        }
        for await (const { event, data, id } of this.#events(session.stream_url, view.heartbeatMs, signal)) {
          backoff.reset()
          const items = itemsOf(event, data)
          if (items) yield* items
          if (id === null || !event) continue // the id at the beginning says no more than where the session began
          position = { id, epochs }
          await cursor?.save(position)
        }
      } catch (error) {
        if (signal?.aborted) return
        await retryOrThrow(error, error instanceof TopicNotFound && waitForTopic, backoff, onRetry, signal)
      }
    }
  }

  /**
   * Create a watch session.
   * @param {Record<string, any>} topics
   * @param {Record<string, any>} view
   * @param {AbortSignal|null|undefined} signal
   * @param {boolean} [lenient]
   */
  async #open(topics, view, signal, lenient = false) {
    const text = jsonText({ include_tags: true, ...wire(view), topics })
    const path = `/v0/watch${lenient ? "?lenient=true" : ""}`
    return await this.#send("POST", path, { text, signal }, (response) => response.json())
  }

  /**
   * Read an event stream. One that is silent for more than two heartbeats is given up.
   * @param {string} path
   * @param {number|undefined} heartbeatMs
   * @param {AbortSignal|null|undefined} signal
   * @returns {AsyncGenerator<{event: string, data: any, id: string|null}, void>}
   */
  async *#events(path, heartbeatMs = 15_000, signal) {
    const stale = new AbortController()
    const limitMs = 2 * Math.min(Math.max(heartbeatMs, 1000), 60_000) + WATCHDOG_SLACK_MS
    let timer = setTimeout(() => stale.abort(), limitMs)
    const silence = () => new TimedOut(`nothing came for ${limitMs} ms`, { code: "timed_out", retryable: true })
    try {
      const options = { accept: "text/event-stream", signal: anySignal(signal, stale.signal) }
      const stream = await this.#send("GET", path, options, (response) => response.body)
      for await (const { event, data, id } of parseEvents(/** @type {any} */ (stream))) {
        clearTimeout(timer)
        if (event) {
          const parsed = this.#parse(data)
          if (event === "error") throwIfFinal(parsed)
          else yield { event, data: parsed, id }
        }
        timer = setTimeout(() => stale.abort(), limitMs)
      }
      throw new Unreachable("the stream ended", { code: "stream_ended", retryable: true })
    } catch (error) {
      if (signal?.aborted) throw signal.reason
      if (stale.signal.aborted) throw silence()
      if (error instanceof TopicsError) throw error
      throw new Unreachable("the stream broke", { code: "stream_broke", retryable: true, cause: error })
    } finally {
      clearTimeout(timer)
      stale.abort()
    }
  }

  // --- queues

  /**
   * Lease up to `max` jobs to a worker.
   * @param {string} queue
   * @param {{node: string, max?: number, leaseMs?: number, waitMs?: number} & CallOptions} options
   * @returns {Promise<Job[]>}
   */
  async claim(queue, options) {
    const { signal, retries, ...wanted } = checked("claim", options)
    const answer = await this.#call("POST", `/v0/topics/${encodeURIComponent(queue)}/claim`, {
      body: wire(wanted),
      signal,
      retries,
      safe: false,
      timeoutMs: this.#timeoutMs + (wanted.waitMs ?? 0),
    })
    return answer.claimed.map((/** @type {any} */ job) => new Job(this, queue, wanted.node, job))
  }

  /**
   * Complete jobs. Seqs that `node` does not hold are returned as `skipped`.
   * @param {string} queue
   * @param {{node: string, seqs: number[], leaseIds?: string[]} & CallOptions} held
   * @returns {Promise<{acked: number, skipped: number[], ready: number, in_flight: number}>}
   */
  async ack(queue, held) {
    const { retries, signal, ...body } = checked("ack", held)
    return this.#call("POST", `/v0/topics/${encodeURIComponent(queue)}/ack`, { body: wire(body), retries, signal })
  }

  /**
   * Give jobs back.
   * @param {string} queue
   * @param {{node: string, seqs: number[], leaseIds?: string[], delayMs?: number, retry?: boolean, reason?: string, error?: unknown} & CallOptions} held
   * @returns {Promise<{nacked: number, skipped: number[], ready: number, in_flight: number, dead_lettered?: number}>}
   */
  async nack(queue, held) {
    const { retries, signal, error, ...rest } = checked("nack", held)
    const body = { ...failureOf(error), ...rest, reason: rest.reason ?? failureOf(error).reason }
    return this.#call("POST", `/v0/topics/${encodeURIComponent(queue)}/nack`, { body: wire(body), retries, signal })
  }

  /**
   * Hold jobs for `leaseMs` from now, or report the progress of their worker, or both.
   * @param {string} queue
   * @param {{node: string, seqs: number[], leaseIds?: string[], leaseMs?: number, progress?: Progress} & CallOptions} held
   * @returns {Promise<{extended: number, skipped: number[], deadlines: Record<string, number>, cancelled?: number[]}>}
   */
  async extend(queue, held) {
    const { retries, signal, ...body } = checked("extend", held)
    return this.#call("POST", `/v0/topics/${encodeURIComponent(queue)}/extend`, { body: wire(body), retries, signal })
  }

  /**
   * List jobs with their state, in the order of the log.
   * @param {string} queue
   * @param {{state?: "ready"|"in_flight"|"delayed"}} [options]
   * @returns {AsyncGenerator<ListedJob, void>}
   */
  listJobs(queue, options = {}) {
    const { state } = checked("listJobs", options)
    return this.#pages(`/v0/topics/${encodeURIComponent(queue)}/jobs`, "jobs", { state, page_size: 1000 })
  }

  /**
   * Move dead letters of a queue back into it.
   * @param {string} queue
   * @param {{match?: Match, seqs?: number[], fromSeq?: number, limit?: number, dryRun?: boolean, deadLetter?: string}} [which]
   * @returns {Promise<{redriven: number, seqs: number[], dead_letter: string, next_from_seq: number, caught_up: boolean}>}
   */
  async redrive(queue, which = {}) {
    const body = wire(checked("redrive", which))
    return this.#call("POST", `/v0/topics/${encodeURIComponent(queue)}/redrive`, { body, safe: false })
  }

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
  async *jobs(queue, options = {}) {
    const { node = workerName(), leaseMs = 30_000 } = checked("jobs", options)
    const claim = (/** @type {AbortSignal} */ stop) => this.claim(queue, { node, max: 1, leaseMs, waitMs: 20_000, signal: stop, retries: 0 })
    yield* jobLoop(options, async function* (stop) {
      while (!stop.aborted) for (const job of await claim(stop)) yield job
    })
  }

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
  async *pushedJobs(queue, options = {}) {
    const { node = workerName(), leaseMs = 30_000 } = checked("pushedJobs", options)
    const query = new URLSearchParams({ node, max: "1", lease_ms: String(leaseMs) })
    const path = `/v0/topics/${encodeURIComponent(queue)}/work?${query}`
    const events = (/** @type {AbortSignal} */ stop) => this.#events(path, undefined, stop)
    const made = (/** @type {any} */ data) => new Job(this, queue, node, data)
    yield* jobLoop(options, async function* (stop) {
      for await (const { event, data } of events(stop)) if (event === "job") yield made(data)
    })
  }

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
  async work(queue, handler, options = {}) {
    const {
      concurrency = 1, node = workerName(), leaseMs = 30_000, timeoutMs, signal, onStart, onDone, onError, onRetry,
      retryDelayMs,
    } = checked("work", options)
    /** @type {Set<Promise<void>>} */
    const running = new Set()
    const backoff = new Backoff()
    const one = (/** @type {Job} */ job) => runJob(job, handler, { leaseMs, timeoutMs, retryDelayMs, onStart, onDone, onError })
    while (!signal?.aborted) {
      if (running.size >= concurrency) {
        await Promise.race(running)
        continue
      }
      try {
        const claimed = await this.claim(queue, { node, max: concurrency - running.size, leaseMs, waitMs: 20_000, signal, retries: 0 })
        backoff.reset()
        for (const job of claimed) {
          const run = one(job).finally(() => running.delete(run))
          running.add(run)
        }
      } catch (error) {
        if (signal?.aborted) break
        try {
          await retryOrThrow(error, false, backoff, onRetry, signal)
        } catch (final) {
          await Promise.allSettled(running)
          throw final
        }
      }
    }
    await Promise.allSettled(running)
  }

  // --- routers

  /**
   * Create a router, or change it.
   * @param {string} router
   * @param {{source: string, dest: string, filter?: Filter|null, preserveNode?: boolean, preserveTag?: boolean, createDest?: boolean, allowCycle?: boolean, guarantee?: "at_least_once"|"exactly_once", fromSeq?: number, fromTs?: number}} config
   * @returns {Promise<RouterState & {created: boolean}>}
   */
  async putRouter(router, config) {
    return this.#call("PUT", `/v0/routers/${encodeURIComponent(router)}`, { body: wire(checked("putRouter", config)) })
  }

  /**
   * Return a router: what it forwards, how far it has come, and what holds it up.
   * @param {string} router
   * @returns {Promise<RouterState>}
   */
  router(router) {
    return this.#call("GET", `/v0/routers/${encodeURIComponent(router)}`)
  }

  /**
   * List routers by name.
   * @param {{prefix?: string, source?: string, dest?: string}} [options]
   * @returns {AsyncGenerator<RouterSummary, void>}
   */
  routers(options = {}) {
    return this.#pages("/v0/routers", "routers", { ...checked("routers", options), page_size: 1000 })
  }

  /**
   * Remove a router. Records that it has forwarded stay. Return false if it did not exist.
   * @param {string} router
   * @returns {Promise<boolean>}
   */
  async dropRouter(router) {
    return (await this.#call("DELETE", `/v0/routers/${encodeURIComponent(router)}`)).deleted
  }

  /**
   * Count the records that a filter would forward.
   * @param {string} router
   * @param {{source?: string, filter?: Filter|null, fromSeq?: number, fromTs?: number}} [which]
   * @returns {Promise<{router: string, source: string, matched: number, bytes: number, scanned: number, first_seq: number|null, last_seq: number|null, head_seq: number}>}
   */
  async previewRouter(router, which = {}) {
    const body = wire(checked("previewRouter", which))
    return this.#call("POST", `/v0/routers/${encodeURIComponent(router)}/preview`, { body })
  }

  // --- schedules

  /**
   * Create a schedule, or change it: `record` is appended to `topic` at each tick. Set `cron` or `everyMs`.
   * @param {string} schedule
   * @param {{topic: string, record: NewRecord, cron?: string, everyMs?: number, timezone?: string, startsAt?: number|null, endsAt?: number|null, jitterMs?: number, paused?: boolean, overlap?: "allow"|"skip", catchUp?: "none"|"last"|"all"}} config
   * @returns {Promise<ScheduleState & {created: boolean}>}
   */
  async putSchedule(schedule, config) {
    const { record, ...rest } = checked("putSchedule", config)
    const body = { ...wire(rest), record: wireRecords([record])[0] }
    return this.#call("PUT", `/v0/schedules/${encodeURIComponent(schedule)}`, { body })
  }

  /**
   * Return a schedule: its last and its next tick, and its last error.
   * @param {string} schedule
   * @returns {Promise<ScheduleState>}
   */
  schedule(schedule) {
    return this.#call("GET", `/v0/schedules/${encodeURIComponent(schedule)}`)
  }

  /**
   * List schedules by name.
   * @param {{prefix?: string, topic?: string}} [options]
   * @returns {AsyncGenerator<ScheduleState, void>}
   */
  schedules(options = {}) {
    return this.#pages("/v0/schedules", "schedules", { ...checked("schedules", options), page_size: 1000 })
  }

  /**
   * Remove a schedule. Records that it has appended stay. Return false if it did not exist.
   * @param {string} schedule
   * @returns {Promise<boolean>}
   */
  async dropSchedule(schedule) {
    return (await this.#call("DELETE", `/v0/schedules/${encodeURIComponent(schedule)}`)).deleted
  }

  /**
   * Append the record of a schedule now, and return its seq. The ticks go on as before.
   * @param {string} schedule
   * @returns {Promise<number>}
   */
  async runSchedule(schedule) {
    return (await this.#call("POST", `/v0/schedules/${encodeURIComponent(schedule)}/run`)).seq
  }

  /**
   * Let a schedule have no ticks, or with `false` have them again. Missed ticks are not caught up.
   * @param {string} schedule
   * @param {boolean} [paused]
   * @returns {Promise<ScheduleState>}
   */
  async pauseSchedule(schedule, paused = true) {
    return this.#call("POST", `/v0/schedules/${encodeURIComponent(schedule)}/pause`, { body: { paused } })
  }

  /**
   * Return the next ten ticks of a schedule, or those that another timing would have. Nothing is stored.
   * @param {string} schedule
   * @param {{cron?: string, everyMs?: number, timezone?: string, startsAt?: number|null, endsAt?: number|null, after?: number}} [timing]
   * @returns {Promise<{at: number, local: string}[]>}
   */
  async previewSchedule(schedule, timing = {}) {
    const body = wire(checked("previewSchedule", timing))
    return (await this.#call("POST", `/v0/schedules/${encodeURIComponent(schedule)}/preview`, { body })).times
  }

  // --- the server

  /**
   * Return the version and the uptime of the server.
   * @returns {Promise<{status: "ok", version: string, uptime_ms: number}>}
   */
  health() {
    return this.#call("GET", "/v0/health")
  }

  /**
   * Return the readiness of the server. Throws `NotReady`, `ShuttingDown` or `ReadOnly` if it cannot serve.
   * @returns {Promise<{status: "ready", wal_replay_complete: boolean, topics: number}>}
   */
  ready() {
    return this.#call("GET", "/v0/ready", { retries: 0 })
  }

  /** Return whether the server answers and can serve. */
  async isReady() {
    try {
      await this.ready()
      return true
    } catch (error) {
      if (error instanceof Unavailable || error instanceof Unreachable) return false
      throw error
    }
  }

  /**
   * Return gauges and counters as an object: a number by the name of the metric, or numbers by label.
   * @returns {Promise<Record<string, any>>}
   */
  metrics() {
    return this.#call("GET", "/v0/metrics")
  }

  /**
   * Return the metrics as Prometheus text.
   * @returns {Promise<string>}
   */
  metricsText() {
    return this.#send("GET", "/v0/metrics", { accept: "text/plain" }, (response) => response.text())
  }

  /**
   * Return figures of the last hour, a row every few seconds, from after a time in ms since 1970: of a queue, or of the server.
   * @param {{after?: number, queue?: string}} [options]
   * @returns {Promise<{interval_ms: number, capacity: number, columns: string[], rows: number[][]}>}
   */
  async samples(options = {}) {
    const { after = 0, queue } = checked("samples", options)
    return this.#call("GET", `/v0/samples?after=${after}${queue === undefined ? "" : `&queue=${encodeURIComponent(queue)}`}`)
  }

  /**
   * Return the rows of a statement, in which topics are tables. The server needs the extra `sql`.
   * @param {string} query
   * @param {{limit?: number}} [options]
   * @returns {Promise<{columns: string[], rows: any[][], more: boolean}>}
   */
  sql(query, options = {}) {
    return this.#call("POST", "/v0/sql", { body: { query, ...checked("sql", options) }, timeoutMs: QUERY_MS })
  }

  /**
   * Return how far the replica of the server is behind, what it has, and which servers follow.
   * @returns {Promise<Record<string, any>>}
   */
  replica() {
    return this.#call("GET", "/v0/replica")
  }

  /**
   * Let a standby take over. The writer stops in order, and nothing is lost.
   * @param {string} to
   * @returns {Promise<{standby: string}>}
   */
  promote(to) {
    return this.#call("POST", "/v0/replica/promote", { body: { to }, safe: false, timeoutMs: QUERY_MS })
  }

  /**
   * Return the scopes and prefixes of the API key. Throws `Unauthorized` if the server does not know it.
   * @returns {Promise<{key: string|null, scopes: string[], prefixes: string[]}>}
   */
  whoami() {
    return this.#call("GET", "/v0/whoami")
  }

  /**
   * Return the OpenAPI document of the server.
   * @returns {Promise<Record<string, any>>}
   */
  openapi() {
    return this.#call("GET", "/v0/openapi.json")
  }

  // --- keys and tokens

  /**
   * Return a token with at most the rights of this key: for a page, for example.
   *
   *     const { token } = await topics.createToken({ names: ["orders"], operations: ["watch"], subject: "user-7" })
   *
   * @param {RightsOptions & {ttlMs?: number, subject?: string}} [options]
   * @returns {Promise<{token: string, id: string, expiresAt: number, rights: Record<string, any>}>}
   */
  async createToken(options = {}) {
    const made = await this.#call("POST", "/v0/tokens", { body: wire(checked("createToken", options)), safe: false })
    return { token: made.token, id: made.id, expiresAt: made.expires_at, rights: made.rights }
  }

  /**
   * Revoke a token by its id, the tokens of a key, or all; those that were issued before a time in ms since 1970.
   * @param {{id?: string, key?: string, before?: number}} [options]
   */
  async revokeTokens(options = {}) {
    await this.#call("POST", "/v0/tokens/revoke", { body: checked("revokeTokens", options) })
  }

  /**
   * Create a key. The answer has its secret, which is never shown again.
   * @param {string} key
   * @param {RightsOptions & {ttlMs?: number|null, note?: string}} [options]
   * @returns {Promise<KeyState & {secret: string}>}
   */
  async createKey(key, options = {}) {
    return this.#call("POST", "/v0/keys", { body: { key, ...wire(checked("createKey", options)) }, safe: false })
  }

  /**
   * List the keys that this key covers, without their secrets.
   * @returns {Promise<KeyState[]>}
   */
  async keys() {
    return (await this.#call("GET", "/v0/keys")).keys
  }

  /**
   * Give a key a new secret. The old one is valid for another day, or for `overlapMs`.
   * @param {string} key
   * @param {{overlapMs?: number}} [options]
   * @returns {Promise<KeyState & {secret: string}>}
   */
  async rotateKey(key, options = {}) {
    const body = wire(checked("rotateKey", options))
    return this.#call("POST", `/v0/keys/${encodeURIComponent(key)}/rotate`, { body, safe: false })
  }

  /**
   * Remove a key: its requests, streams and tokens end. Return false if it did not exist.
   * @param {string} key
   * @returns {Promise<boolean>}
   */
  async revokeKey(key) {
    return (await this.#call("DELETE", `/v0/keys/${encodeURIComponent(key)}`)).deleted
  }

  /**
   * Open a WebSocket, to publish and subscribe over one connection. With a function for the token, the connection gets each
   * new token before the one before it expires.
   * @param {{onClose?: (event: any) => void}} [options]
   * @returns {Promise<Socket>}
   */
  async connect(options = {}) {
    checked("connect", options)
    if (this.#prefixes) throw refusedHere("a WebSocket belongs to one server: open it with server(prefix).connect()")
    if (!this.#WebSocket) {
      throw new TopicsError("this platform has no WebSocket: pass a class as new Topics(url, { WebSocket })", { code: "no_websocket" })
    }
    const backoff = new Backoff()
    for (;;) {
      const url = this.#addresses.url
      backoff.tried.add(url)
      const target = `${url.replace(/^http/, "ws")}/v0/ws`
      const token = await this.#token.get()
      // A browser can send no header; a token in the first message is in no log of a proxy, unlike one in the handshake.
      const socket = token ? new this.#WebSocket(target, ["topics"]) : new this.#WebSocket(target)
      const failed = (/** @type {TopicsError} */ error) => this.#addresses.leave(url, error)
      try {
        const opened = await Socket.opened(socket, options.onClose, this.#parse, failed)
        if (token) await opened.authenticate(token)
        if (this.#token.isRenewed) this.#renew(opened)
        return opened
      } catch (error) {
        failed(/** @type {TopicsError} */ (error))
        if (backoff.tried.has(this.#addresses.url)) throw error
      }
    }
  }

  /**
   * Give a connection each new token. One that cannot be had leaves it to the server to close the connection.
   * @param {Socket} socket
   */
  #renew(socket) {
    const ms = Math.max(this.#token.leftMs, 100)
    if (ms > MAX_TIMER_MS) return
    const timer = setTimeout(async () => {
      if (socket.isClosed) return
      try {
        const token = await this.#token.get()
        if (token) await socket.authenticate(token)
      } catch {
        // The next attempt is in a moment, while the old token is still valid.
      }
      this.#renew(socket)
    }, ms)
    const handle = /** @type {any} */ (timer)
    handle.unref?.() // Node: an open connection keeps the process, not this
  }
}

// --- WebSocket

/** One WebSocket: `publish` and `subscribe`, and an async iterator over all that comes. */
export class Socket {
  /** @type {any} */
  #socket
  /** @type {(error: TopicsError) => void} */
  #onRefused
  #number = 0
  /** @type {Map<number, {resolve: (answer: any) => void, reject: (error: TopicsError) => void}>} */
  #waiting = new Map()
  /** @type {(TopicRecord|Gap)[]} */
  #items = []
  /** @type {(() => void)|null} */
  #wake = null
  #closed = false

  /**
   * @param {any} socket
   * @param {(text: string) => any} [parse]
   * @param {(error: TopicsError) => void} [onRefused] called with each error of the server
   */
  constructor(socket, parse = JSON.parse, onRefused = () => {}) {
    this.#socket = socket
    this.#onRefused = onRefused
    socket.addEventListener("message", (/** @type {any} */ event) => this.#receive(parse(event.data)))
    socket.addEventListener("close", () => this.#end())
  }

  /**
   * @param {any} socket
   * @param {((event: any) => void)|undefined} onClose
   * @param {(text: string) => any} [parse]
   * @param {(error: TopicsError) => void} [onRefused]
   * @returns {Promise<Socket>}
   */
  static opened(socket, onClose, parse, onRefused) {
    return new Promise((resolve, reject) => {
      const made = new Socket(socket, parse, onRefused)
      socket.addEventListener("open", () => resolve(made))
      socket.addEventListener("error", () => reject(new Unreachable("the WebSocket did not open", { code: "unreachable", retryable: true })))
      if (onClose) socket.addEventListener("close", onClose)
    })
  }

  /**
   * Append records, and return once they are as safe as their topic promises.
   * @param {string} topic
   * @param {NewRecord|NewRecord[]} records
   * @param {WriteOptions & {node?: string}} [options]
   * @returns {Promise<{firstSeq: number, lastSeq: number}>}
   */
  async publish(topic, records, options = {}) {
    const { config, signal, ...rest } = checked("socket.publish", options)
    const ack = await this.#ask("publish", {
      ...wire(rest),
      ...(config && { config: wire(checked("config", config)) }),
      topic,
      return_seqs: false,
      records: wireRecords([records].flat()),
    })
    return { firstSeq: ack.first_seq, lastSeq: ack.last_seq }
  }

  /**
   * Deliver records of a topic, or of all topics that a name ending in `*` stands for, to this socket's iterator.
   * @param {string} topic
   * @param {{fromSeq?: number, tail?: boolean, epoch?: number, filter?: Filter, consumer?: string, node?: string|string[], includeTags?: boolean, includeMeta?: boolean, includeData?: boolean}} [options]
   */
  async subscribe(topic, options = {}) {
    return (await this.#ask("subscribe", { include_tags: true, ...wire(checked("socket.subscribe", options)), topic })).topics
  }

  /**
   * Move the position of a consumer: of the subscription, or the one that is named.
   * @param {string} topic
   * @param {number} seq
   * @param {{consumer?: string}} [options]
   */
  async commit(topic, seq, options = {}) {
    await this.#ask("commit", { ...checked("socket.commit", options), topic, seq })
  }

  /**
   * Deliver no more records of a topic.
   * @param {string} topic
   */
  async unsubscribe(topic) {
    await this.#ask("unsubscribe", { topic })
  }

  /**
   * Go on with another token: of the same key and subject, and with the same rights.
   * @param {string} token
   */
  async authenticate(token) {
    await this.#ask("authenticate", { token })
  }

  get isClosed() {
    return this.#closed
  }

  /** Return how long a ping took, in ms. */
  async ping() {
    const began = performance.now()
    await this.#ask("ping", {})
    return performance.now() - began
  }

  close() {
    this.#socket.close()
  }

  /** @returns {AsyncGenerator<TopicRecord|Gap, void>} */
  async *[Symbol.asyncIterator]() {
    for (;;) {
      while (this.#items.length) yield /** @type {TopicRecord|Gap} */ (this.#items.shift())
      if (this.#closed) return
      await new Promise((resolve) => (this.#wake = () => resolve(undefined)))
    }
  }

  /**
   * @param {string} op
   * @param {Record<string, any>} fields
   * @returns {Promise<any>}
   */
  async #ask(op, fields) {
    if (this.#closed) throw closed()
    const request_id = ++this.#number
    const text = jsonText({ op, request_id, ...fields })
    return new Promise((resolve, reject) => {
      this.#waiting.set(request_id, { resolve, reject })
      this.#socket.send(text)
    })
  }

  /** @param {any} message */
  #receive(message) {
    const waiting = this.#waiting.get(message.request_id)
    if (waiting) {
      this.#waiting.delete(message.request_id)
      if (message.op === "error") {
        const error = errorOf(message.code, 0, message.message, message.detail, message.retry_after_ms ?? null)
        this.#onRefused(error)
        waiting.reject(error)
      } else waiting.resolve(message)
      return
    }
    const items = itemsOf(message.op, message)
    if (items) {
      this.#items.push(...items)
      this.#wake?.()
    }
  }

  #end() {
    this.#closed = true
    for (const { reject } of this.#waiting.values()) reject(closed())
    this.#waiting.clear()
    this.#wake?.()
  }
}

function closed() {
  return new Unreachable("the WebSocket is closed", { code: "closed", retryable: true })
}

// --- helpers of streams and workers

/**
 * @param {string} topic
 * @param {string} name
 */
function consumerPath(topic, name) {
  return `/v0/topics/${encodeURIComponent(topic)}/consumers/${encodeURIComponent(name)}`
}

/**
 * Return the items of an event, or null for an event without any.
 * @param {string} event
 * @param {any} data
 * @returns {(TopicRecord|Gap)[]|null}
 */
function itemsOf(event, data) {
  if (event === "record") return data.records.map((/** @type {any} */ record) => new TopicRecord(data.topic, record))
  return event === "tombstone" ? [new Gap(data.topic, data)] : null
}

/**
 * Return the seq after which a reader goes on behind a tombstone. Another epoch begins at its first seq.
 * @param {any} tombstone
 */
function restart(tombstone) {
  return tombstone.reason === "recreated" ? tombstone.earliest_seq - 1 : tombstone.gap_to
}

/** @param {{code: number, error: string, retry_after_ms?: number}} problem */
function throwIfFinal({ code, error, retry_after_ms }) {
  if (code === 429) return // Advice: the stream stays open, and the named topics come later.
  throw new Unavailable(error, { code: `stream_${code}`, status: code, retryable: true, retryAfterMs: retry_after_ms ?? null })
}

/**
 * @param {unknown} error
 * @param {boolean} waitable
 * @param {Backoff} backoff
 * @param {((error: TopicsError, waitMs: number) => void)|undefined} onRetry
 * @param {AbortSignal|null|undefined} signal
 */
async function retryOrThrow(error, waitable, backoff, onRetry, signal) {
  const expected = error instanceof TopicsError && (error.retryable || error instanceof NotFound || waitable)
  if (!expected) throw error
  const waitMs = backoff.nextMs(/** @type {TopicsError} */ (error))
  onRetry?.(/** @type {TopicsError} */ (error), waitMs)
  await sleep(waitMs, signal).catch(() => {})
}

function workerName() {
  return `js-${crypto.randomUUID()}`
}

/**
 * Return `reason` and `error` of a nack from what a job failed with, shortened to what the server takes.
 * @param {unknown} thrown
 * @returns {{reason?: string, error?: {type: string, message: string, stack: string}}}
 */
function failureOf(thrown) {
  if (thrown === undefined) return {}
  const { name: type, message, stack = "" } = thrown instanceof Error ? thrown : new Error(String(thrown))
  const error = { type: type.slice(0, 100), message: message.slice(0, 500), stack: stack.slice(0, 1200) } // at most four bytes each
  return { reason: message ? `${error.type}: ${error.message}` : error.type, error }
}

/**
 * Extend the lease of a job three times as often as it ends. Return a function that stops this.
 * @param {Job} job
 * @param {number} leaseMs
 * @param {() => void} onLost called when the lease has ended
 */
function keepLease(job, leaseMs, onLost) {
  const timer = setInterval(() => {
    if (job.isOpen) job.extend(leaseMs, { retries: BRIEFLY }).then((held) => held || !job.isOpen || onLost(), () => {})
  }, leaseMs / 3)
  return () => clearInterval(timer)
}

/**
 * Hand out jobs of a source, then ack each job or give it back. Open the source again if it breaks.
 * @param {JobLoopOptions} options
 * @param {(stop: AbortSignal) => AsyncGenerator<Job, void>} open
 * @returns {AsyncGenerator<Job, void>}
 */
async function* jobLoop({ leaseMs = 30_000, retryDelayMs, signal, onRetry }, open) {
  const backoff = new Backoff()
  const stop = new AbortController()
  let busy = false
  const onAbort = () => busy || stop.abort(signal?.reason) // The source stays open until the job in hand is acked.
  signal?.addEventListener("abort", onAbort)
  try {
    while (!signal?.aborted) {
      try {
        for await (const job of open(stop.signal)) {
          backoff.reset()
          const endLease = keepLease(job, leaseMs, () => {})
          busy = true
          let finished = false
          try {
            yield job
            finished = true
          } finally {
            endLease()
            // A failure is left alone: the job comes again when its lease ends.
            if (job.isOpen) await (finished ? job.ack({ retries: BRIEFLY }) : job.nack(retryDelayMs?.(job.deliveries), { retry: true, reason: "the loop over the jobs was left", retries: BRIEFLY })).catch(() => {})
            busy = false
          }
          if (signal?.aborted) return
        }
      } catch (error) {
        if (signal?.aborted) return
        await retryOrThrow(error, false, backoff, onRetry, signal)
      }
    }
  } finally {
    signal?.removeEventListener("abort", onAbort)
    stop.abort()
  }
}

/**
 * @param {Job} job
 * @param {(job: Job, signal: AbortSignal) => unknown} handler
 * @param {{leaseMs: number, timeoutMs: number|undefined, retryDelayMs: ((deliveries: number) => number)|undefined, onStart: ((job: Job) => void)|undefined, onDone: ((job: Job, ms: number) => void)|undefined, onError: ((job: Job, error: unknown) => void)|undefined}} options
 */
async function runJob(job, handler, { leaseMs, timeoutMs, retryDelayMs, onStart, onDone, onError }) {
  const limit = new AbortController()
  const endLease = keepLease(job, leaseMs, () => {
    const [what, code] = job.isCancelled ? ["the job was cancelled", "cancelled"] : ["the lease has ended", "lease_ended"]
    limit.abort(new TopicsError(what, { code }))
  })
  const timer = timeoutMs && setTimeout(() => limit.abort(new TimedOut(`the job took more than ${timeoutMs} ms`, { code: "timed_out" })), timeoutMs)
  const aborted = new Promise((_, reject) => limit.signal.addEventListener("abort", () => reject(limit.signal.reason)))
  const began = performance.now()
  notify(onStart, job)
  // A lost answer to an ack or a nack is left alone: the job comes again when its lease ends.
  try {
    await Promise.race([handler(job, limit.signal), aborted])
  } catch (error) {
    if (onError) notify(onError, job, error)
    else console.error(`job ${job.seq} of ${job.topic} failed (delivery ${job.deliveries}):`, error)
    if (job.isOpen) await job.nack(retryDelayMs?.(job.deliveries), { retry: true, error, retries: BRIEFLY }).catch(() => {})
    return
  } finally {
    endLease()
    if (timer) clearTimeout(timer)
  }
  if (job.isOpen) await job.ack({ retries: BRIEFLY }).catch(() => {})
  notify(onDone, job, performance.now() - began)
}

/**
 * Call a hook of the caller. Its failure is logged: it says nothing about the job.
 * @template {unknown[]} Arguments
 * @param {((...values: Arguments) => void)|undefined} hook
 * @param {Arguments} values
 */
function notify(hook, ...values) {
  try {
    hook?.(...values)
  } catch (error) {
    console.error("a hook of a worker failed:", error)
  }
}
