"""Exceptions of the clients: one class per error code (`BY_CODE`), and a few for answers that never came.

`InvalidRequest` is the base of all refusals of a malformed request, and `Unavailable` of those that can pass.
"""

from __future__ import annotations

import json
from urllib.parse import unquote

from topics.errors import BY_WIRE, Code, OtherCode
from topics.errors import TopicsError as TopicsError


class InvalidRequest(TopicsError):
    """The request is malformed: `detail["field"]` names the field."""


class BatchTooLarge(TopicsError): ...


class RecordTooLarge(TopicsError): ...


class Unauthorized(TopicsError):
    """The key is missing or unknown."""


class Forbidden(TopicsError):
    """The key lacks a scope, or the name lies outside its prefixes."""


class MethodNotAllowed(InvalidRequest):
    """The path does not have this method. An older server answers so to a newer client."""


class NotAcceptable(InvalidRequest):
    """The server cannot answer in the format that was asked for."""


class UnsupportedMediaType(InvalidRequest): ...


class HeadersTooLarge(InvalidRequest): ...


class NotFound(TopicsError):
    """The path or the watch session does not exist."""


class SessionGone(NotFound): ...


class TopicNotFound(TopicsError): ...


class RouterNotFound(TopicsError): ...


class ScheduleNotFound(TopicsError): ...


class ConsumerNotFound(TopicsError): ...


class ConsumerMoved(TopicsError):
    """The consumer is not at `if_seq`: `detail["seq"]` is its position."""


class RouterCycle(TopicsError):
    """The router would close a cycle: `detail["cycle"]` lists its topics."""


class TopicExistsIncompatible(TopicsError):
    """The topic or router exists with a configuration that excludes this one."""


class SchemaViolation(TopicsError): ...


class SchemaIncompatible(TopicsError): ...


class TopicNotEmpty(TopicsError): ...


class NotAQueue(TopicsError): ...


class EpochMismatch(TopicsError):
    """The topic was created again since this epoch."""


class PayloadTooLarge(TopicsError): ...


class NotWriter(TopicsError):
    """The server follows another one and takes no writes: send the request to `detail["writer"]`."""

    @property
    def retryable(self) -> bool:
        """Whether another server may take the write. Without a takeover, this one never does."""
        return self.has_others


class TopicFull(TopicsError): ...


class QueryFailed(TopicsError):
    """The statement is wrong, takes too long or needs too much memory: the message says which."""


class SqlUnavailable(TopicsError): ...


class Throttled(TopicsError):
    """The server is busy, or a limit is reached: retry after `retry_after` seconds."""


class Unavailable(TopicsError):
    """The server recovers its data, shuts down, or cannot write: retry after `retry_after` seconds."""


class NotReady(Unavailable):
    """The server recovers its data after a start."""


class ShuttingDown(Unavailable): ...


class ReadOnly(Unavailable):
    """The server cannot write to its disk: `detail["reason"]` says why."""


class StorageUnavailable(Unavailable):
    """The server cannot read stored records now, because a disk is not mounted, for example: see `detail["file"]`."""


class ReplicaUnavailable(Unavailable):
    """The write needs the replica, which does not answer. `detail["outcome"]` says whether it may take effect."""


class Fenced(Unavailable):
    """Another server has taken over: this one accepts no writes."""


class RequestTimeout(Unavailable): ...


class InternalError(TopicsError):
    """The server failed: see its log."""


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


class BadContext(TopicsError, ValueError):
    """The contexts of this user, or the file of a key, cannot be used: the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(OtherCode("bad_context"), message)


class OutcomeUnknown(TopicsError):
    """A write was not confirmed before its idempotency key expired: it may or may not have happened."""

    def __init__(self, message: str) -> None:
        super().__init__(OtherCode("outcome_unknown"), message)


def may_have_happened(error: TopicsError) -> bool:
    """Return whether a request that failed so may have taken effect, or may do so later."""
    if isinstance(error, Unreachable):
        return error.sent
    return (error.detail or {}).get("outcome") not in (None, "refused")


# The name of a class is that of its code: `topic_full` is `TopicFull`.
BY_CODE: dict[Code, type[TopicsError]] = {
    code: InternalError if code is Code.INTERNAL else globals()["".join(map(str.capitalize, code.split("_")))]
    for code in Code
}
PROXY_STATUSES = (429, 502, 503, 504)  # a proxy's way to say that the server did not answer, or not now


def from_answer(status: int, retry_after: str | None, body: bytes) -> TopicsError:
    """Return the exception for an answer that is not 2xx. An answer that is not the server's goes by its status.

    `retry_after` is the header of this name.
    """
    request_id = None
    try:
        found = json.loads(body)
        error, request_id = found["error"], found.get("request_id")
        code, message, detail = str(error["code"]), error.get("message", ""), error.get("detail")
        wait_ms = (detail or {}).get("retry_after_ms")
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message, detail, wait_ms = f"http_{status}", f"the server answered {status}", None, None
    if not isinstance(wait_ms, int):
        wait_ms = int(retry_after) * 1000 if retry_after is not None and retry_after.isdigit() else None
    known = BY_WIRE.get(code)
    if known is None:
        other = OtherCode(code, status, retryable=status in PROXY_STATUSES)
        return TopicsError(other, message, detail=detail, retry_after_ms=wait_ms)
    refused = BY_CODE[known](known, message, detail=detail, retry_after_ms=wait_ms)
    refused.request_id = request_id
    return refused


def refusal(error: TopicsError, path: str, url: str, *, has_key: bool) -> str:
    """Return the message for a 401 or 403: which right is missing, for what, and on which server."""
    if error.code is Code.UNAUTHORIZED:
        return f"{url} does not know the key" if has_key else f"{url} asks for a key, and none was given"
    detail = error.detail or {}
    if "scope" in detail:
        parts = path.partition("?")[0].split("/")
        what = f" for {parts[2].removesuffix('s')} {unquote(parts[3])}" if len(parts) > 3 else ""
        if len(detail["scope"]) > 1:
            return f"the key lacks one of the scopes {', '.join(detail['scope'])}, which this needs{what} on {url}"
        return f"the key lacks the scope {detail['scope'][0]}{what} on {url}"
    if "name" in detail:
        return f"the key may not use {detail['name']} on {url}: its prefixes do not cover that name"
    return f"{url}: {error.message}"
