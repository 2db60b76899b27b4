"""The memory budget: bytes that clients make the server hold, by account, against one limit.

Records are not counted: `max_total_bytes` and the caps of topics bound those. What is counted is what clients can make
the server hold beside them, and only while it is held:

    account      charged for
    sessions     watch sessions: subscriptions, node names, filters

`check` refuses a new request that would pass the limit, with `throttled`. `charge` never refuses: what has begun may
finish.
"""

from collections.abc import Callable

from topics.errors import Code, TopicsError

RETRY_AFTER_MS = 1000
DEFAULT_SHARE = 4  # the default budget is a quarter of the memory; records and their indexes need the rest

SESSIONS = "sessions"
ACCOUNTS = (SESSIONS,)


class MemoryBudget:
    """Charges by account, and their sum. A limit of 0 is none."""

    __slots__ = ("by_account", "charged_bytes", "limit_bytes", "reclaimers")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.charged_bytes = 0
        self.by_account = dict.fromkeys(ACCOUNTS, 0)
        self.reclaimers: list[Callable[[], None]] = []  # called before a refusal: each frees what has expired

    def charge(self, account: str, delta_bytes: int) -> None:
        """Add to an account, or take from it."""
        self.by_account[account] += delta_bytes
        self.charged_bytes += delta_bytes

    def check(self, size_bytes: int) -> None:
        """Raise `throttled` if a new request would hold more than the budget has left."""
        if not self._has_room(size_bytes):
            for reclaim in self.reclaimers:
                reclaim()
            if not self._has_room(size_bytes):
                raise self.error()

    def error(self) -> TopicsError:
        return TopicsError(
            Code.THROTTLED,
            f"the server holds as many bytes for its clients as memory_budget_bytes allows ({self.limit_bytes}); "
            "try again when other requests have finished",
            detail={"limit": "memory_budget_bytes", "max": self.limit_bytes},
            retry_after_ms=RETRY_AFTER_MS,
        )

    def _has_room(self, size_bytes: int) -> bool:
        return not self.limit_bytes or self.charged_bytes + size_bytes <= self.limit_bytes
