"""The public error contract: one row per code, and the exception that carries a code."""

from enum import StrEnum
from typing import Any, Self


class Code(StrEnum):
    """Wire name, HTTP status, whether the same request can succeed later."""

    status: int
    retryable: bool

    INVALID_REQUEST = "invalid_request", 400, False
    SCHEMA_VIOLATION = "schema_violation", 400, False
    BATCH_TOO_LARGE = "batch_too_large", 400, False
    RECORD_TOO_LARGE = "record_too_large", 400, False
    UNAUTHORIZED = "unauthorized", 401, False
    FORBIDDEN = "forbidden", 403, False
    NOT_FOUND = "not_found", 404, False
    TOPIC_NOT_FOUND = "topic_not_found", 404, False
    ROUTER_NOT_FOUND = "router_not_found", 404, False
    SCHEDULE_NOT_FOUND = "schedule_not_found", 404, False
    CONSUMER_NOT_FOUND = "consumer_not_found", 404, False
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, False
    NOT_ACCEPTABLE = "not_acceptable", 406, False
    REQUEST_TIMEOUT = "request_timeout", 408, True
    ROUTER_CYCLE = "router_cycle", 409, False
    TOPIC_EXISTS_INCOMPATIBLE = "topic_exists_incompatible", 409, False
    SCHEMA_INCOMPATIBLE = "schema_incompatible", 409, False
    TOPIC_NOT_EMPTY = "topic_not_empty", 409, False
    NOT_A_QUEUE = "not_a_queue", 409, False
    EPOCH_MISMATCH = "epoch_mismatch", 409, False
    CONSUMER_MOVED = "consumer_moved", 409, False
    SESSION_GONE = "session_gone", 410, False
    PAYLOAD_TOO_LARGE = "payload_too_large", 413, False
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", 415, False
    NOT_WRITER = "not_writer", 421, False
    TOPIC_FULL = "topic_full", 422, True
    QUERY_FAILED = "query_failed", 422, False
    THROTTLED = "throttled", 429, True
    HEADERS_TOO_LARGE = "headers_too_large", 431, False
    INTERNAL = "internal", 500, False
    SQL_UNAVAILABLE = "sql_unavailable", 501, False
    NOT_READY = "not_ready", 503, True
    SHUTTING_DOWN = "shutting_down", 503, True
    READ_ONLY = "read_only", 503, True
    STORAGE_UNAVAILABLE = "storage_unavailable", 503, True
    REPLICA_UNAVAILABLE = "replica_unavailable", 503, True
    FENCED = "fenced", 503, True

    def __new__(cls, wire: str, status: int, retryable: bool) -> Self:
        code = str.__new__(cls, wire)
        code._value_ = wire
        code.status = status
        code.retryable = retryable
        return code

    @property
    def wire(self) -> str:
        return self._value_


class OtherCode(str):
    """A code outside the contract: of a newer server, of a proxy, or of a client that got no answer."""

    def __new__(cls, wire: str, status: int = 0, *, retryable: bool = False) -> Self:
        code = str.__new__(cls, wire)
        code.wire = wire
        code.status = status
        code.retryable = retryable
        return code

    wire: str
    status: int
    retryable: bool


BY_WIRE = {code.wire: code for code in Code}


class TopicsError(Exception):
    """An expected failure under a stable code. The server reports it, and a client raises it."""

    request_id: str | None = None  # of the refused request, for a search in the log of the server
    has_others = False  # set by a client that has another address: a server there may take the request, now or soon

    def __init__(
        self,
        code: Code | OtherCode,
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

    @property
    def status(self) -> int:
        """The HTTP status, or 0 if no server has answered."""
        return self.code.status

    @property
    def retryable(self) -> bool:
        """Whether the same request can succeed later."""
        return self.code.retryable

    @property
    def retry_after(self) -> float | None:
        """The seconds that the server asks to wait, or None."""
        return None if self.retry_after_ms is None else self.retry_after_ms / 1000


class Corrupt(Exception):
    """Damaged bytes on disk: file, offset and what is wrong. The server never guesses a repair."""

    def __init__(self, path: str, offset: int, what: str) -> None:
        super().__init__(f"{path} at byte {offset}: {what}")
        self.path = path
        self.offset = offset
        self.what = what


class DamageReport(str):
    """A report of damage that a start has found: a text, and the parts of it. `harmless` damage costs no record."""

    path: str
    offset: int
    what: str
    seqs: tuple[int, int] | None
    topic: str | None
    harmless: bool

    def __new__(
        cls, path: str, offset: int, what: str, *, topic: str | None = None, seqs: tuple[int, int] | None = None,
        harmless: bool = False,
    ) -> Self:  # fmt: skip
        where = "" if seqs is None else f"; topic {topic}, seqs {seqs[0]} to {seqs[1]}"
        report = str.__new__(cls, f"{path} at byte {offset}: {what}{where}")
        report.path, report.offset, report.what = path, offset, what
        report.topic, report.seqs, report.harmless = topic, seqs, harmless
        return report


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
