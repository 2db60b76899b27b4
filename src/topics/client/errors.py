"""Exceptions of the clients: one class per error code (`BY_CODE`), and a few for answers that never came.

`InvalidRequest` is the base of all refusals of a malformed request, and `Unavailable` of those that can pass.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from topics.errors import BY_WIRE, Code, OtherCode
from topics.errors import TopicsError as TopicsError

BY_CODE: dict[Code, type[TopicsError]] = {}


def _kind(code: Code, base: type[TopicsError] = TopicsError, about: str = "", name: str = "") -> type[TopicsError]:
    """Return the class of an error code. Its name is that of the code: `topic_full` is `TopicFull`."""
    name = name or "".join(map(str.capitalize, code.split("_")))
    BY_CODE[code] = kind = type(name, (base,), {"__module__": __name__, "__doc__": about or None})
    return kind


class Unavailable(TopicsError):
    """The server recovers its data, shuts down, or cannot write: retry after `retry_after` seconds."""


class NotWriter(TopicsError):
    """The server follows another one and takes no writes: send the request to `detail["writer"]`."""

    @property
    def retryable(self) -> bool:
        """Whether another server may take the write. Without a takeover, this one never does."""
        return self.has_others


BY_CODE[Code.NOT_WRITER] = NotWriter
InvalidRequest = _kind(Code.INVALID_REQUEST, about="The request is malformed: `detail['field']` names the field.")
BatchTooLarge = _kind(Code.BATCH_TOO_LARGE)
RecordTooLarge = _kind(Code.RECORD_TOO_LARGE)
Unauthorized = _kind(Code.UNAUTHORIZED, about="The key is missing or unknown.")
Forbidden = _kind(Code.FORBIDDEN, about="The key lacks a scope, or the name lies outside its prefixes.")
NotFound = _kind(Code.NOT_FOUND, about="The path or the watch session does not exist.")
TopicNotFound = _kind(Code.TOPIC_NOT_FOUND)
RouterNotFound = _kind(Code.ROUTER_NOT_FOUND)
ScheduleNotFound = _kind(Code.SCHEDULE_NOT_FOUND)
ConsumerNotFound = _kind(Code.CONSUMER_NOT_FOUND)
# An older server answers so to a newer client.
MethodNotAllowed = _kind(Code.METHOD_NOT_ALLOWED, InvalidRequest, "The path does not have this method.")
NotAcceptable = _kind(Code.NOT_ACCEPTABLE, InvalidRequest, "The server cannot answer in the format that was asked for.")
RequestTimeout = _kind(Code.REQUEST_TIMEOUT, Unavailable)
RouterCycle = _kind(Code.ROUTER_CYCLE, about="The router would close a cycle: `detail['cycle']` lists its topics.")
TopicExistsIncompatible = _kind(
    Code.TOPIC_EXISTS_INCOMPATIBLE, about="The topic or router exists with a configuration that excludes this one."
)
TopicNotEmpty = _kind(Code.TOPIC_NOT_EMPTY)
NotAQueue = _kind(Code.NOT_A_QUEUE)
EpochMismatch = _kind(Code.EPOCH_MISMATCH, about="The topic was created again since this epoch.")
ConsumerMoved = _kind(Code.CONSUMER_MOVED, about="The consumer is not at `if_seq`: `detail['seq']` is its position.")
SessionGone = _kind(Code.SESSION_GONE, NotFound)
PayloadTooLarge = _kind(Code.PAYLOAD_TOO_LARGE)
UnsupportedMediaType = _kind(Code.UNSUPPORTED_MEDIA_TYPE, InvalidRequest)
TopicFull = _kind(Code.TOPIC_FULL)
Throttled = _kind(Code.THROTTLED, about="The server is busy, or a limit is reached: retry after `retry_after` seconds.")
HeadersTooLarge = _kind(Code.HEADERS_TOO_LARGE, InvalidRequest)
InternalError = _kind(Code.INTERNAL, about="The server failed: see its log.", name="InternalError")
NotReady = _kind(Code.NOT_READY, Unavailable, "The server recovers its data after a start.")
ShuttingDown = _kind(Code.SHUTTING_DOWN, Unavailable)
ReadOnly = _kind(Code.READ_ONLY, Unavailable, "The server cannot write to its disk: `detail['reason']` says why.")
StorageUnavailable = _kind(
    Code.STORAGE_UNAVAILABLE, Unavailable,
    "The server cannot read stored records now, because a disk is not mounted, for example: see `detail['file']`.",
)  # fmt: skip
ReplicaUnavailable = _kind(
    Code.REPLICA_UNAVAILABLE, Unavailable,
    "The write needs the replica, which does not answer. `detail['outcome']` says whether it may take effect.",
)  # fmt: skip
Fenced = _kind(Code.FENCED, Unavailable, "Another server has taken over: this one accepts no writes.")


class Unreachable(TopicsError):
    """No answer came: the address is wrong, the server is stopped, or the connection broke."""

    def __init__(self, message: str, *, code: str = "unreachable", sent: bool = True) -> None:
        super().__init__(OtherCode(code, retryable=True), message)
        self.sent = sent  # False if there was no connection: the server did not get the request


class TimedOut(Unreachable):
    """No answer came in time."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message, code="timed_out", sent=sent)


class BadUrl(TopicsError, ValueError):
    """The address is not the URL of a server."""

    def __init__(self, url: str) -> None:
        super().__init__(OtherCode("bad_url"), f"{url!r} is not the URL of a server: use http://HOST:PORT")


class OutcomeUnknown(TopicsError):
    """A write was not confirmed before its idempotency key expired: it may or may not have happened."""

    def __init__(self, message: str) -> None:
        super().__init__(OtherCode("outcome_unknown"), message)


def may_have_happened(error: TopicsError) -> bool:
    """Return whether a request that failed so may have taken effect, or may do so later."""
    if isinstance(error, Unreachable):
        return error.sent
    return (error.detail or {}).get("outcome") not in (None, "refused")


PROXY_STATUSES = (429, 502, 503, 504)  # a proxy's way to say that the server did not answer, or not now


def from_answer(status: int, retry_after: str | None, body: bytes) -> TopicsError:
    """Return the exception for an answer that is not 2xx. An answer that is not the server's goes by its status.

    `retry_after` is the header of this name.
    """
    try:
        error = json.loads(body)["error"]
        code, message, detail = str(error["code"]), error.get("message", ""), error.get("detail")
        wait_ms = (detail or {}).get("retry_after_ms")
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message, detail, wait_ms = f"http_{status}", f"the server answered {status}", None, None
    if not isinstance(wait_ms, int):
        wait_ms = int(retry_after) * 1000 if retry_after is not None and retry_after.isdigit() else None
    return from_code(code, message, status, detail, wait_ms)


def from_code(
    wire: str, message: str, status: int, detail: dict[str, Any] | None, retry_after_ms: int | None = None
) -> TopicsError:
    """Return the exception for an error code of the server."""
    known = BY_WIRE.get(wire)
    if known is None:
        other = OtherCode(wire, status, retryable=status in PROXY_STATUSES)
        return TopicsError(other, message, detail=detail, retry_after_ms=retry_after_ms)
    return BY_CODE[known](known, message, detail=detail, retry_after_ms=retry_after_ms)


def refusal(error: TopicsError, path: str, url: str, *, has_key: bool) -> str:
    """Return the message for a 401 or 403: which right is missing, for what, and on which server."""
    if error.code is Code.UNAUTHORIZED:
        return f"{url} does not know the key" if has_key else f"{url} asks for a key, and none was given"
    detail = error.detail or {}
    if "scope" in detail:
        parts = path.partition("?")[0].split("/")
        what = f" for {parts[2].removesuffix('s')} {unquote(parts[3])}" if len(parts) > 3 else ""
        return f"the key lacks the scope {' and '.join(detail['scope'])}{what} on {url}"
    if "name" in detail:
        return f"the key may not use {detail['name']} on {url}: its prefixes do not cover that name"
    return f"{url}: {error.message}"
