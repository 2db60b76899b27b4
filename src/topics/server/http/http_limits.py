"""Limits of one HTTP server on what a client may send, hold and wait for. Pure."""

import msgspec

from topics.config import Settings
from topics.errors import Code, TopicsError
from topics.server.http.browser_origin import Pages
from topics.server.limits import os_limits
from topics.server.limits.budget import CONNECTION_BYTES, TLS_CONNECTION_BYTES, MemoryBudget, budget_bytes_of

_LONGEST_SWEEP_MS = 1000  # also how old the date in an answer may be
_SHORTEST_SWEEP_MS = 5
_SETTINGS = ("max_header_bytes", "max_headers", "header_timeout_ms", "body_timeout_ms", "idle_timeout_ms")


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one server. A deadline is enforced at most a quarter of its length, or a second, late."""

    max_header_bytes: int = 32 * 1024
    max_headers: int = 100
    max_body_bytes: int = 64 * 1024 * 1024  # as sent and as unpacked
    header_timeout_ms: int = 10_000  # from the first byte of a request to the end of its head
    body_timeout_ms: int = 60_000  # from the end of the head to the end of the body
    idle_timeout_ms: int = 75_000  # between two requests
    write_timeout_ms: int = 60_000  # while the client reads no byte of its answer
    linger_timeout_ms: int = 2_000  # for a client that was refused, or too slow, to read its last answer
    # Bytes of unread answers above which no further request of the connection is handled, and above which they are
    # charged to the memory budget. The transport reports when the mark is passed, so answers below it cost nothing.
    high_water_bytes: int = 64 * 1024
    max_pipelined: int = 64  # requests of one connection that are in progress
    max_connections: int = 0  # 0: no limit
    connection_bytes: int = CONNECTION_BYTES  # what a connection is charged
    max_refused: int = 16  # refused connections that stay open; one more aborts the oldest
    pages: Pages | None = None  # which requests of browsers are accepted; None: all
    skip_body_bytes: int = 64 * 1024  # a refused request with a longer body ends the connection

    @classmethod
    def of(cls, settings: "Settings") -> "HttpLimits":
        """Return the limits that the settings, the memory and the descriptors of the process allow."""
        descriptors = os_limits.descriptors()
        budget = MemoryBudget(budget_bytes_of(settings))
        connection_bytes = CONNECTION_BYTES if settings.tls_cert is None else TLS_CONNECTION_BYTES
        allowed = (settings.max_connections, descriptors.connections, budget.max_connections(connection_bytes))
        return cls(
            connection_bytes=connection_bytes,
            max_connections=min(most for most in allowed if most),
            max_refused=descriptors.refused,
            max_body_bytes=min(settings.max_body_bytes, budget.soft_bytes or settings.max_body_bytes),
            pages=Pages.of(settings),
            **{name: getattr(settings, name) for name in _SETTINGS},
        )

    def body_too_large(self) -> TopicsError:
        return TopicsError(Code.PAYLOAD_TOO_LARGE, f"the body is larger than {self.max_body_bytes} bytes")

    @property
    def sweep_ms(self) -> int:
        shortest: int = min(getattr(self, name) for name in self.__struct_fields__ if name.endswith("_timeout_ms"))
        return max(_SHORTEST_SWEEP_MS, min(_LONGEST_SWEEP_MS, shortest // 4))
