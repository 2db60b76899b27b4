"""Failed authentications: counted and logged by address, and limited, so that keys cannot be guessed."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

from topics import logs
from topics.clock import Clock
from topics.errors import Code, TopicsError

log = logs.Log("access")

WINDOW_MS = 60_000
MAX_ADDRESSES = 10_000  # that are remembered


class Failures:
    """The failures of the last minute by address. After `most` of them, no key of an address is looked at."""

    def __init__(self, clock: Clock, most: int) -> None:
        self.total = 0
        self.refused_total = 0
        self._clock = clock
        self._most = most  # 0: no limit
        self._since: OrderedDict[str, tuple[int, int]] = OrderedDict()  # when the minute began, and how many failed

    def check(self, peer: str) -> None:
        """Raise `throttled` if this address has failed too often."""
        if not self._since or not self._most:
            return
        address = _address(peer)
        began, count = self._since.get(address, (0, 0))
        left_ms = began + WINDOW_MS - self._clock.now_ms()
        if count >= self._most and left_ms > 0 and not _is_here(address):
            self.refused_total += 1
            raise TopicsError(
                Code.THROTTLED, "too many failed authentications from this address",
                detail={"limit": "max_auth_failures", "max": self._most}, retry_after_ms=left_ms,
            )  # fmt: skip

    def note(self, peer: str, error: TopicsError) -> None:
        """Count a failure. The first of a minute, and the last before the limit, are logged."""
        self.total += 1
        address, now = _address(peer), self._clock.now_ms()
        began, count = self._since.pop(address, (now, 0))
        if began + WINDOW_MS <= now:
            began, count = now, 0
        self._since[address] = began, count + 1
        if len(self._since) > MAX_ADDRESSES:
            self._since.popitem(last=False)
        if count == 0 or count + 1 == self._most:
            log.warning("authentication_failed", address=address, failures=count + 1, reason=error.message)


def _address(peer: str) -> str:
    return peer.rpartition(":")[0]


def _is_here(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
