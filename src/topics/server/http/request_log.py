"""The request log: a line per request at level debug, and a line per slow request at level info.

`waited_ms` is the part of the time that the server did not work: it waited for the rest of the request, for requests of
the same connection before it, or for as long as the client asked for (`wait_ms`, and the window in which a queue
gathers claims). A request is slow if the rest is above the threshold. A stream is logged when it opens.

A key in the query string is left out, as in every log line. So is a path outside the API, which may be a mistyped key.
"""

import logging
import sys
import time
from urllib.parse import parse_qsl, quote

from topics import logs
from topics.config import Settings
from topics.server.http.messages import REQUEST_ID, Request, Response, Stream, body_bytes

log = logs.Log("http")

_now_ns = time.perf_counter_ns
_SHOWN_BYTES = 2048  # of a query string
_SECRET = "token"
_KNOWN_STARTS = (b"/v0/", b"/console", b"/client.js", b"/client.d.ts", b"/metrics", b"/healthz")


class RequestLog:
    """Counts requests, and decides which are logged: `log` must see every answer that took longer than `noted_ns`."""

    def __init__(self, *, every: bool = False, slow_ms: int = 0) -> None:
        self._every = every
        self._slow_ns = slow_ms * 1_000_000
        self.noted_ns = 1 if every else self._slow_ns or sys.maxsize

    @classmethod
    def of(cls, settings: "Settings") -> "RequestLog":
        return cls(
            every=log.is_enabled(logging.DEBUG), slow_ms=settings.slow_request_ms if log.is_enabled(logging.INFO) else 0
        )

    def begin(self, request: Request) -> None:
        """Note that the server begins to work on a request that did not come at once, or had to wait its turn."""
        request.waited_ns = _now_ns() - request.started_ns

    def note(self, request: Request, answer: Response | Stream) -> None:
        """Count an answer, and log it."""
        head = answer if isinstance(answer, Response) else answer.head
        took_ns = _now_ns() - request.started_ns - request.waited_ns if request.started_ns else 0
        counts = request.timings[head.status]
        counts[0] += took_ns
        counts[took_ns.bit_length()] += 1
        self.log(request, answer)

    def log(self, request: Request, answer: Response | Stream) -> None:
        took_ns = _now_ns() - request.started_ns if request.started_ns else 0
        is_slow = 0 < self._slow_ns < took_ns - request.waited_ns
        if not self._every and not is_slow:
            return
        head = answer if isinstance(answer, Response) else answer.head
        fields: dict[str, logs.Field] = {
            "method": request.method,
            "path": shown_path(request),
            "status": head.status,
            "bytes": 0 if request.method == "HEAD" else body_bytes(head.body),
            "ms": round(took_ns / 1e6, 3),
        }
        if (request_id := dict(head.headers).get(REQUEST_ID)) is not None:  # the checked one: see `request_id_of`
            fields["request_id"] = request_id.decode()
        if request.waited_ns:
            fields["waited_ms"] = round(request.waited_ns / 1e6, 3)
        if self._every:
            log.debug("request", **fields)
        if is_slow:
            log.info("slow_request", **fields)


def shown_path(request: Request) -> str:
    """Return the path and the query string for a log line, without the key."""
    if request.path != b"/" and not request.path.startswith(_KNOWN_STARTS):
        return f"/{logs.HIDDEN}"
    path = request.path.decode("ascii", "backslashreplace")
    if not request.query:
        return path
    try:
        text = request.query.decode("ascii")
        pairs = parse_qsl(text[:_SHOWN_BYTES], keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        return f"{path}?{logs.HIDDEN}"
    shown = (
        f"{quote(name)}={logs.HIDDEN if name.lower() == _SECRET else quote(value, safe='*:,')}" for name, value in pairs
    )
    return f"{path}?{'&'.join(shown)}"
