"""Exceptions of the clients: one class per error code, and a few for answers that never came.

TopicsError
    TopicNotFound, TopicFull, Throttled, …    the server refused: one class per code, see `BY_CODE`
    InvalidRequest                            the base of all refusals of a malformed request
    Unavailable                               the base of NotReady, ShuttingDown, ReadOnly, StorageUnavailable
                                              and RequestTimeout
    Unreachable                               no answer: wrong address, stopped, or the connection broke
        TimedOut                              no answer in time
    BadUrl                                    the address is not the URL of a server
    OutcomeUnknown                            a write that may or may not have happened
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from topics.errors import BY_WIRE, Code


class TopicsError(Exception):
    """An expected failure. `code` is its stable name, `detail` what the server says beside the message."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int = 0,
        detail: dict[str, Any] | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.detail = detail
        self.retryable = retryable
        self.retry_after = retry_after  # seconds


class InvalidRequest(TopicsError):
    """The request is malformed: `detail["field"]` names the field."""


class BatchTooLarge(TopicsError):
    """The batch has too many records or bytes."""


class RecordTooLarge(TopicsError):
    """One record is larger than the server or the topic allows."""


class Unauthorized(TopicsError):
    """The key is missing or unknown."""


class Forbidden(TopicsError):
    """The key lacks a scope, or the name lies outside its prefixes."""


class MethodNotAllowed(InvalidRequest):
    """The path does not have this method. An older server answers so to a newer client."""


class NotAcceptable(InvalidRequest):
    """The server cannot answer in the format that was asked for."""


class UnsupportedMediaType(InvalidRequest):
    """The content type of the body is not JSON."""


class HeadersTooLarge(InvalidRequest):
    """The headers of the request are larger than the server allows."""


class NotFound(TopicsError):
    """The path or the watch session does not exist."""


class SessionGone(NotFound):
    """The watch session has ended."""


class TopicNotFound(TopicsError):
    """The topic does not exist."""


class RouterNotFound(TopicsError):
    """The router does not exist."""


class ConsumerNotFound(TopicsError):
    """The topic has no consumer of this name."""


class ConsumerMoved(TopicsError):
    """The consumer does not stand where `if_seq` says: `detail["seq"]` is where it stands."""


class RouterCycle(TopicsError):
    """The router would close a cycle: `detail["cycle"]` lists its topics."""


class TopicExistsIncompatible(TopicsError):
    """The topic or router exists with a configuration that excludes this one."""


class TopicNotEmpty(TopicsError):
    """The topic holds records, and `if_empty` was set."""


class NotAQueue(TopicsError):
    """The topic is not a queue."""


class EpochMismatch(TopicsError):
    """The topic was created again since this epoch."""


class PayloadTooLarge(TopicsError):
    """The body is larger than the server allows."""


class TopicFull(TopicsError):
    """The topic is full and rejects writes."""


class Throttled(TopicsError):
    """The server is busy, or a limit is reached: retry after `retry_after` seconds."""


class Unavailable(TopicsError):
    """The server recovers its data, shuts down, or cannot write: retry after `retry_after` seconds."""


class NotReady(Unavailable):
    """The server recovers its data after a start."""


class ShuttingDown(Unavailable):
    """The server shuts down."""


class ReadOnly(Unavailable):
    """The server cannot write to its disk: `detail["reason"]` says why."""


class StorageUnavailable(Unavailable):
    """The server cannot read stored records now, because a disk is not mounted, for example: see `detail["file"]`."""


class RequestTimeout(Unavailable):
    """The server did not get the whole request in time."""


class InternalError(TopicsError):
    """The server failed: see its log."""


class Unreachable(TopicsError):
    """No answer came: the address is wrong, the server is stopped, or the connection broke."""

    def __init__(self, message: str, *, code: str = "unreachable") -> None:
        super().__init__(message, code=code, retryable=True)


class TimedOut(Unreachable):
    """No answer came in time."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="timed_out")


class BadUrl(TopicsError):
    """The address is not the URL of a server."""

    def __init__(self, url: str) -> None:
        super().__init__(f"{url!r} is not the URL of a server: use http://HOST:PORT", code="bad_url")


class OutcomeUnknown(TopicsError):
    """A write was not confirmed before its idempotency key expired: it may or may not have happened."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="outcome_unknown")


BY_CODE: dict[Code, type[TopicsError]] = {
    Code.INVALID_REQUEST: InvalidRequest,
    Code.BATCH_TOO_LARGE: BatchTooLarge,
    Code.RECORD_TOO_LARGE: RecordTooLarge,
    Code.UNAUTHORIZED: Unauthorized,
    Code.FORBIDDEN: Forbidden,
    Code.NOT_FOUND: NotFound,
    Code.SESSION_GONE: SessionGone,
    Code.TOPIC_NOT_FOUND: TopicNotFound,
    Code.ROUTER_NOT_FOUND: RouterNotFound,
    Code.CONSUMER_NOT_FOUND: ConsumerNotFound,
    Code.METHOD_NOT_ALLOWED: MethodNotAllowed,
    Code.NOT_ACCEPTABLE: NotAcceptable,
    Code.REQUEST_TIMEOUT: RequestTimeout,
    Code.ROUTER_CYCLE: RouterCycle,
    Code.TOPIC_EXISTS_INCOMPATIBLE: TopicExistsIncompatible,
    Code.TOPIC_NOT_EMPTY: TopicNotEmpty,
    Code.NOT_A_QUEUE: NotAQueue,
    Code.EPOCH_MISMATCH: EpochMismatch,
    Code.CONSUMER_MOVED: ConsumerMoved,
    Code.PAYLOAD_TOO_LARGE: PayloadTooLarge,
    Code.UNSUPPORTED_MEDIA_TYPE: UnsupportedMediaType,
    Code.TOPIC_FULL: TopicFull,
    Code.THROTTLED: Throttled,
    Code.HEADERS_TOO_LARGE: HeadersTooLarge,
    Code.INTERNAL: InternalError,
    Code.NOT_READY: NotReady,
    Code.SHUTTING_DOWN: ShuttingDown,
    Code.READ_ONLY: ReadOnly,
    Code.STORAGE_UNAVAILABLE: StorageUnavailable,
}
PROXY_STATUSES = (502, 503, 504)  # a proxy's way to say that the server did not answer


class _Error(Struct):
    code: str
    message: str = ""
    detail: dict[str, Any] | None = None


class _Answer(Struct):
    error: _Error


_decode = msgspec.json.Decoder(_Answer).decode


def from_answer(status: int, headers: Mapping[str, str], body: bytes) -> TopicsError:
    """Return the exception for an answer that is not 2xx. An answer that is not the server's goes by its status."""
    try:
        error = _decode(body).error
    except msgspec.MsgspecError:
        error = _Error(f"http_{status}", f"the server answered {status}")
    return from_code(error.code, error.message, status, error.detail, _retry_after_s(headers, error.detail))


def from_code(
    code: str, message: str, status: int, detail: dict[str, Any] | None, retry_after: float | None = None
) -> TopicsError:
    """Return the exception for an error code of the server."""
    known = BY_WIRE.get(code)
    kind = TopicsError if known is None else BY_CODE.get(known, TopicsError)
    retryable = status in PROXY_STATUSES if known is None else known.retryable
    return kind(message, code=code, status=status, detail=detail, retryable=retryable, retry_after=retry_after)


def _retry_after_s(headers: Mapping[str, str], detail: dict[str, Any] | None) -> float | None:
    wait_ms = (detail or {}).get("retry_after_ms")
    if isinstance(wait_ms, int):
        return wait_ms / 1000
    seconds = headers.get("retry-after", "")
    return float(seconds) if seconds.isdigit() else None
