"""The public error contract: one row per code, and the exception that carries a code."""

from enum import Enum
from typing import Any


class Code(Enum):
    """Wire name, HTTP status, whether the same request can succeed later."""

    INVALID_REQUEST = "invalid_request", 400, False
    BATCH_TOO_LARGE = "batch_too_large", 400, False
    RECORD_TOO_LARGE = "record_too_large", 400, False
    UNAUTHORIZED = "unauthorized", 401, False
    FORBIDDEN = "forbidden", 403, False
    NOT_FOUND = "not_found", 404, False
    TOPIC_NOT_FOUND = "topic_not_found", 404, False
    ROUTER_NOT_FOUND = "router_not_found", 404, False
    CONSUMER_NOT_FOUND = "consumer_not_found", 404, False
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, False
    NOT_ACCEPTABLE = "not_acceptable", 406, False
    REQUEST_TIMEOUT = "request_timeout", 408, True
    ROUTER_CYCLE = "router_cycle", 409, False
    TOPIC_EXISTS_INCOMPATIBLE = "topic_exists_incompatible", 409, False
    TOPIC_NOT_EMPTY = "topic_not_empty", 409, False
    NOT_A_QUEUE = "not_a_queue", 409, False
    EPOCH_MISMATCH = "epoch_mismatch", 409, False
    CONSUMER_MOVED = "consumer_moved", 409, False
    SESSION_GONE = "session_gone", 410, False
    PAYLOAD_TOO_LARGE = "payload_too_large", 413, False
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", 415, False
    TOPIC_FULL = "topic_full", 422, True
    THROTTLED = "throttled", 429, True
    HEADERS_TOO_LARGE = "headers_too_large", 431, False
    INTERNAL = "internal", 500, False
    NOT_READY = "not_ready", 503, True
    SHUTTING_DOWN = "shutting_down", 503, True
    READ_ONLY = "read_only", 503, True
    STORAGE_UNAVAILABLE = "storage_unavailable", 503, True

    def __init__(self, wire: str, status: int, retryable: bool) -> None:
        self.wire = wire
        self.status = status
        self.retryable = retryable


BY_WIRE = {code.wire: code for code in Code}


class TopicsError(Exception):
    """An expected failure that is reported to the client under a stable code."""

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        detail: dict[str, Any] | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail
        self.retry_after_ms = retry_after_ms


class Corrupt(Exception):
    """Damaged bytes on disk: file, offset and what is wrong. The server never guesses a repair."""

    def __init__(self, path: str, offset: int, what: str) -> None:
        super().__init__(f"{path} at byte {offset}: {what}")
        self.path = path
        self.offset = offset
        self.what = what


class UnknownFormat(Exception):
    """Whole bytes that another version of topics wrote. A server that went on without them would lose what they say."""


def invalid(message: str, *, field: str | None = None) -> TopicsError:
    """Return 400 `invalid_request`, with the invalid field if there is one."""
    return TopicsError(Code.INVALID_REQUEST, message, detail=None if field is None else {"field": field})


def storage_unavailable(error: OSError) -> TopicsError:
    """Return 503 `storage_unavailable` with the file that the disk does not give now."""
    why = error.strerror or str(error)
    where = "" if error.filename is None else f": {error.filename}"
    return TopicsError(
        Code.STORAGE_UNAVAILABLE,
        f"stored records cannot be read now: {why}{where}",
        detail={"file": error.filename, "reason": why},
        retry_after_ms=1000,
    )


def topic_not_found(name: str) -> TopicsError:
    return TopicsError(Code.TOPIC_NOT_FOUND, f'topic "{name}" does not exist', detail={"topic": name})
