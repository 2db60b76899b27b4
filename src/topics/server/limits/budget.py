"""The memory budget: one limit on the bytes that clients make the server hold, by account. Pure.

Records are not counted: `max_total_bytes` and the caps of topics bound those.

    account      charged for
    connections  open connections, a flat amount each, from the moment they are accepted
    bodies       requests that are received, or wait to be handled
    unpacking    bodies that threads unpack
    answers      answers until the operating system has taken them
    streams      the same for event streams, WebSockets and scans
    messages     WebSocket messages in assembly
    writes       records on their way into the log
    sessions     watch sessions and subscriptions of WebSockets: node names, filters
    idempotency  keys within their windows
    reasons      why deliveries of jobs failed

New requests may use seven eighths of the limit: `check` refuses a request that needs more. `charge` never refuses, so
that requests that have begun can finish. While more than seven eighths are held, `full` is set: only small requests
with small answers are served. A body or a message may grow long after its request was admitted. Above the whole limit,
requests that are still being received are refused, the newest first.
"""

from collections.abc import Callable
from typing import Protocol

from topics.config import Settings
from topics.errors import Code, TopicsError
from topics.server.limits.os_limits import memory_bytes

RETRY_AFTER_MS = 1000
DEFAULT_SHARE = 4  # the default budget is a quarter of the memory: records and their indexes need the rest
RESERVE_SHARE = 8  # an eighth of the budget is reserved for requests that have begun
CONNECTIONS_SHARE = 4  # connections may take a quarter of the budget

# A body or an answer up to this size is served even while the budget is full, and is not charged.
SMALL_BYTES = 16 << 10
# The flat charge. An idle connection takes 4 KiB; the rest is for a head or a small answer.
CONNECTION_BYTES = 16 << 10
# The same with TLS: a connection takes up to 48 KiB during the handshake, and 18 to 40 KiB when it is idle after it.
TLS_CONNECTION_BYTES = 64 << 10
EXCHANGE_BYTES = 2048  # a request without its body; measured 1.4 to 1.9 KiB with a small head

CONNECTIONS, BODIES, ANSWERS, STREAMS = "connections", "bodies", "answers", "streams"
MESSAGES, WRITES, SESSIONS, IDEMPOTENCY, REASONS = "messages", "writes", "sessions", "idempotency", "reasons"
UNPACKING = "unpacking"
_CHARGED = (CONNECTIONS, BODIES, ANSWERS, STREAMS, MESSAGES, SESSIONS)


def budget_bytes_of(settings: Settings) -> int:
    """Return the configured limit, or by default a share of the memory that this process may use."""
    given = settings.memory_budget_bytes
    return memory_bytes() // DEFAULT_SHARE if given is None else given


class Receiver(Protocol):
    """A connection that holds input that is not handled yet."""

    def give_up_input(self, error: TopicsError) -> None: ...  # drop it, answer it, and charge nothing more for it


class MemoryBudget:
    """Charges by account, and their sum. A limit of 0 means unlimited."""

    def __init__(self, limit_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.full = False
        self.listeners: list[Callable[[], None]] = []  # called when `full` changes
        self.reclaimers: list[
            Callable[[], None]
        ] = []  # called before a refusal, and four times a second; each frees what has expired
        self.soft_bytes = limit_bytes - limit_bytes // RESERVE_SHARE
        self._receivers: dict[Receiver, None] = {}  # in the order in which they passed `SMALL_BYTES`
        self._refusing = False
        self.peak_bytes = 0  # the most that was charged since `Upkeep` last reset it
        self.charged_bytes = 0
        self._by_account = dict.fromkeys(_CHARGED, 0)
        self._gauges: dict[str, Callable[[], int]] = {}

    def count(self, account: str, gauge: Callable[[], int]) -> None:
        """Add an account whose bytes another module counts: `gauge` returns them."""
        self._gauges[account] = gauge

    def charge(self, account: str, delta_bytes: int) -> None:
        self._by_account[account] += delta_bytes
        self.charged_bytes += delta_bytes
        if self.charged_bytes > self.peak_bytes:
            self.peak_bytes = self.charged_bytes
        self.refresh()

    def refresh(self) -> None:
        """Compare the held bytes with the limit again: gauges change without a charge."""
        full = not self._has_room(0, self.soft_bytes)
        if full is not self.full:
            self.full = full
            for notify in self.listeners:
                notify()

    def receive(self, receiver: Receiver, held_bytes: int) -> None:
        """Note how much unhandled input a connection holds. Refuse the newest input if the whole limit is passed."""
        if held_bytes <= SMALL_BYTES:
            self._receivers.pop(receiver, None)
        elif receiver not in self._receivers:
            self._receivers[receiver] = None
        if self.full and not self._refusing:
            self._refusing = True  # a receiver that drops its input calls this function
            try:
                while len(self._receivers) > 0 and not self._has_room(0, self.limit_bytes):
                    newest, _ = self._receivers.popitem()
                    newest.give_up_input(self.error())
            finally:
                self._refusing = False

    def check(self, size_bytes: int) -> None:
        """Raise `throttled` if a new request needs more than new requests may still use."""
        if not self._has_room(size_bytes, self.soft_bytes):
            for reclaim in self.reclaimers:
                reclaim()
            if not self._has_room(size_bytes, self.soft_bytes):
                raise self.error()

    def check_answer(self, size_bytes: int) -> None:
        """Raise `throttled` if an answer is too large while the budget is full."""
        if self.full and size_bytes > SMALL_BYTES:
            raise self.error()

    def accounts(self) -> dict[str, int]:
        return self._by_account | {account: gauge() for account, gauge in self._gauges.items()}

    def max_connections(self, connection_bytes: int) -> int:
        """Return how many connections the budget allows; 0 if it has no limit."""
        return self.limit_bytes // (CONNECTIONS_SHARE * connection_bytes)

    def error(self) -> TopicsError:
        return TopicsError(
            Code.THROTTLED,
            f"memory_budget_bytes ({self.limit_bytes}) is reached: requests and answers of clients fill the memory; "
            "try again when other requests have finished",
            detail={"limit": "memory_budget_bytes", "max": self.limit_bytes},
            retry_after_ms=RETRY_AFTER_MS,
        )

    def _has_room(self, size_bytes: int, limit_bytes: int) -> bool:
        if not limit_bytes:
            return True
        held_bytes = self.charged_bytes + size_bytes
        for gauge in self._gauges.values():
            held_bytes += gauge()
        return held_bytes <= limit_bytes


def throttled(limit: str, most: int) -> TopicsError:
    """Return the 429 that names a setting and its value. What is open ends by itself, so a retry can help."""
    return TopicsError(
        Code.THROTTLED,
        f"{limit} ({most}) is reached; close some, or try again later",
        detail={"limit": limit, "max": most},
        retry_after_ms=RETRY_AFTER_MS,
    )


def check_room(limit: str, used: int, most: int) -> None:
    """Raise `throttled` if one more would exceed the cap; a cap of 0 means unlimited."""
    if most and used >= most:
        raise throttled(limit, most)
