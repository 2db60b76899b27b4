"""What each error code means and what to do about it, for the documentation and the OpenAPI document."""

from topics.errors import Code

MEANINGS = {
    Code.INVALID_REQUEST: "The request is not JSON, lacks a field, or has a value of the wrong type or out of range.",
    Code.BATCH_TOO_LARGE: "Too many records in a write, or too many seqs in an `ack`, `nack` or `extend`; or the write "
    'is larger than the topic (with `discard: "reject"`) or the server can hold. Send smaller batches.',
    Code.RECORD_TOO_LARGE: "A record exceeds the size limit of the server, or the `cap_bytes` of the topic.",
    Code.UNAUTHORIZED: "The API key is missing or unknown.",
    Code.FORBIDDEN: "The API key lacks the scope or the name prefix, or a browser page may not send this request.",
    Code.NOT_FOUND: "The path does not exist, or the watch session has expired. Create a new session.",
    Code.TOPIC_NOT_FOUND: "The topic does not exist. Create it, or write to it without `create: false`.",
    Code.ROUTER_NOT_FOUND: "The router does not exist.",
    Code.CONSUMER_NOT_FOUND: "The topic has no consumer of this name: it was deleted, expired, or never stored.",
    Code.METHOD_NOT_ALLOWED: "The path does not support this method. `Allow` lists the supported ones.",
    Code.NOT_ACCEPTABLE: "The route cannot return what `Accept` names. Streams return `text/event-stream`.",
    Code.REQUEST_TIMEOUT: "The request did not arrive completely in time.",
    Code.ROUTER_CYCLE: "The router would close a cycle (`detail.cycle`). Set `allow_cycle` if this is intended.",
    Code.TOPIC_EXISTS_INCOMPATIBLE: "The `type` of a topic cannot change. A router destination has only one source.",
    Code.TOPIC_NOT_EMPTY: "The topic has records, and the request has `if_empty`.",
    Code.NOT_A_QUEUE: "The operation needs a topic of type `queue`.",
    Code.EPOCH_MISMATCH: "The topic has another epoch: it was deleted and created again, or restored.",
    Code.CONSUMER_MOVED: "The consumer is not at `if_seq`, but at `detail.seq`: another instance has moved it. "
    "Continue from there.",
    Code.SESSION_GONE: "The watch session ended while its stream was open. Create a new session.",
    Code.PAYLOAD_TOO_LARGE: (
        "The body exceeds `TOPICS_MAX_BODY_BYTES`, compressed or decompressed, or 1 MiB for requests other than "
        "writes. Split it."
    ),
    Code.UNSUPPORTED_MEDIA_TYPE: "The body needs `content-type: application/json`; gzip is the only encoding.",
    Code.NOT_WRITER: (
        "The server is a standby: it follows another one and takes no writes. `detail.writer` is the address of the "
        "writer, `null` if that is unknown. Send the request there."
    ),
    Code.TOPIC_FULL: 'The topic is full and has `discard: "reject"`. None of the records was stored.',
    Code.THROTTLED: "The server is overloaded, or a cap (`detail.limit`) is reached. Wait, then retry.",
    Code.HEADERS_TOO_LARGE: "The request has too many headers, or they are too large.",
    Code.INTERNAL: "The server failed unexpectedly. Its log has the details.",
    Code.NOT_READY: "The server is starting and replays its log; `detail.replay_progress` goes from 0 to 1.",
    Code.SHUTTING_DOWN: "The server is stopping. Reconnect later.",
    Code.READ_ONLY: (
        "The log has no space for the write (`detail.reason`). Reads continue, and writes resume by themselves when "
        "the disk has space."
    ),
    Code.STORAGE_UNAVAILABLE: (
        "Stored records cannot be read now (`detail.file`, `detail.reason`): a disk is not mounted, or fails. Nothing "
        "is lost; retry once the disk works again."
    ),
    Code.REPLICA_UNAVAILABLE: (
        "The write needs the replica (`durability: replicated`, or a topic that has used up the seqs it may give out "
        "without), and the bucket does not answer. `detail.outcome` is `refused` if nothing was written, and `unknown` "
        "if the write takes effect once it is uploaded: the same idempotency key then returns its seqs."
    ),
    Code.FENCED: "Another server has taken over the replica (`detail.reason` says which). This one accepts no writes.",
}
