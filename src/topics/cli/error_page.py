"""The page about errors, made from the table of codes: a code without an explanation does not get past `make docs`.

`python -m topics.cli.error_page` prints it.
"""

import sys

from topics.errors import Code

INTRODUCTION = """\
# Errors

Made from the table of error codes by `make docs`.

<!-- expect: 404 -->
```sh
curl localhost:4000/v0/topics/nowhere
```

<!-- answer -->
```json
{"error": {"code": "topic_not_found", "message": "topic \\"nowhere\\" does not exist", "detail": {"topic": "nowhere"}}}
```

An answer with a top-level `error` is a failure; every other answer is a success. Branch on `error.code`, which never
changes its meaning. `error.message` is for people and may change. `error.detail` is there when there is more to say:

- `field`: the part of the request that is wrong, as in `records[3].data`.
- `limit` and `max`: the cap that was reached, and how large it is.
- `retry_after_ms`: how long to wait. The `Retry-After` header says the same in whole seconds.

## What is not an error

- **A lost record**: it comes as a [tombstone](tombstones.md) in an answer with status 200.
- **A field that the server does not know**: it is ignored, in every request, so that clients and servers of different
  ages get along. That includes misspelt ones: a write with `"idempotencykey"` has no key, a delete with `"dryrun"`
  deletes. Where it matters, look at the answer, which shows what was understood. A *known* field of the wrong type or
  out of range is `invalid_request`, with `detail.field`.
- **A number above its maximum** where a smaller one is as good: `limit` and `wait_ms` are cut, not refused.

## Codes

**Again** says whether the very same request may succeed later.

| status | code | again | what it means, and what to do |
|---|---|---|---|
"""

AFTERWORD = """
## When to try again

- **No answer at all**: the connection broke, and the request may have been carried out or not. Repeat reads, `PUT` and
  `DELETE` freely. Repeat a write only if it carried an [idempotency key](writing.md#send-it-once); it then counts once.
- **429 and 503**: nothing was changed. Wait as long as `Retry-After` says, then twice as long each time, with some
  chance in it so that not every client comes back at the same moment.
- **422 `topic_full`**: nothing was written. It helps to wait only if somebody makes room.
- **Everything else**: the same request will fail the same way.

The Python client does all of this by itself, but for `topic_full`, which it leaves to you.

## In streams

Once a stream is open there is no status left to give, and each kind has its own form:

| where | form | `code` is |
|---|---|---|
| an HTTP answer | `{"error": {"code": "throttled", "message": "…", "detail": {…}}}` | the name |
| a scan, as its last line | `{"error": {"code": "internal", "message": "…"}}` | the name |
| a WebSocket message | `{"op": "error", "request_id": "p2", "code": "forbidden", "message": "…"}` | the name |
| an event stream | `event: error` with `{"code": 429, "error": "…", "retry_after_ms": 500}` | the *status* |

The differences are part of the contract. See [watching](../watch.md) and [reading](reading.md#all-of-it-at-once).
"""

MEANINGS = {
    Code.INVALID_REQUEST: "The request is not JSON, lacks a field, or has a value of the wrong type or out of range.",
    Code.BATCH_TOO_LARGE: "Too many records in one write, or seqs in one `ack`, `nack` or `extend`; or a write "
    "larger than all that a topic that rejects, or the server, may ever hold. Send fewer.",
    Code.RECORD_TOO_LARGE: "A record is larger than the server takes, or than the whole topic (`cap_bytes`) may hold.",
    Code.UNAUTHORIZED: "The server asks for an API key, and this is none that it knows.",
    Code.FORBIDDEN: "The key lacks the scope, or the name is beyond its prefixes; or a browser page may not do this.",
    Code.NOT_FOUND: "Nothing is at this path, or the watch session is over. Make a new session.",
    Code.TOPIC_NOT_FOUND: "The topic does not exist. Only writes make topics, unless they say `create: false`.",
    Code.ROUTER_NOT_FOUND: "The router does not exist.",
    Code.METHOD_NOT_ALLOWED: "The path exists, the method does not; `Allow` lists those that do.",
    Code.NOT_ACCEPTABLE: "The answer has no such form as `Accept` asks for. Streams want `text/event-stream`.",
    Code.REQUEST_TIMEOUT: "The rest of the request did not arrive in time.",
    Code.ROUTER_CYCLE: "The router would close a circle, shown in `detail.cycle`. Meant so? Set `allow_cycle`.",
    Code.TOPIC_EXISTS_INCOMPATIBLE: "A topic keeps its `type`, and the destination of a router keeps its one source.",
    Code.TOPIC_NOT_EMPTY: "`if_empty` was asked for, and there are records.",
    Code.NOT_A_QUEUE: "Only a topic of type `queue` can do this.",
    Code.EPOCH_MISMATCH: "The request speaks of another life of the topic: it was dropped and made again, or restored.",
    Code.SESSION_GONE: "The watch session ended while its stream was open. Make a new one.",
    Code.PAYLOAD_TOO_LARGE: (
        "The body is larger than `TOPICS_MAX_BODY_BYTES`, as sent or once unpacked, or than 1 MiB where it is no "
        "write. Split it."
    ),
    Code.UNSUPPORTED_MEDIA_TYPE: "A body needs `content-type: application/json`, and no encoding but gzip.",
    Code.TOPIC_FULL: 'The topic has `discard: "reject"` and no room. Nothing of the write was kept.',
    Code.THROTTLED: "The server runs late, or a cap (`detail.limit`) is reached. Wait, then try again.",
    Code.HEADERS_TOO_LARGE: "The request's headers are too many or too large.",
    Code.INTERNAL: "A mistake of the server's. Its log says which.",
    Code.NOT_READY: "The server has just started and replays its log; `detail.replay_progress` goes from 0 to 1.",
    Code.SHUTTING_DOWN: "The server is stopping. Connect again in a moment.",
    Code.READ_ONLY: (
        "The disk takes no writes (`detail.reason`). Reads go on, and writes will once it works again. A write with "
        "`detail.outcome` `unknown` could come back after a power loss: send it again with the same `idempotency_key`."
    ),
}


def page() -> str:
    """docs/guide/errors.md, whole."""
    return INTRODUCTION + "".join(map(_row, Code)) + AFTERWORD


def _row(code: Code) -> str:
    return f"| {code.status} | `{code.wire}` | {'yes' if code.retryable else 'no'} | {MEANINGS[code]} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
