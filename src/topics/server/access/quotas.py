"""Quotas: caps on what is open at once, for the whole server and for one key.

A slot is taken before anything is created, and returned by a `release` that may be called twice: its holder calls it on
every path to the end, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.server.limits.caps import check_room, throttled

if TYPE_CHECKING:
    from topics.config import Settings
    from topics.server.access.caller import Caller
    from topics.server.limits.budget import MemoryBudget

Release = Callable[[], None]


class Quotas:
    """The counts of one server. The counts of a key are on its `Caller`; without keys only the server is counted."""

    __slots__ = ("_budget", "_inflight_per_key", "_sessions", "_streams", "_streams_per_key", "streams")

    def __init__(self, settings: Settings, budget: MemoryBudget) -> None:
        self.streams = 0  # open event streams and WebSockets
        self._budget = budget
        self._streams = settings.max_sse_connections
        self._streams_per_key = settings.max_sse_connections_per_key
        self._inflight_per_key = settings.max_inflight_per_key
        self._sessions = settings.max_watch_sessions

    def open_stream(self, caller: Caller) -> Release:
        """Take a slot for a long-lived connection, and return its release. Raise `throttled` if there is none."""
        self._budget.check(0)
        check_room("max_sse_connections", self.streams, self._streams)
        if caller.counted:
            check_room("max_sse_connections_per_key", caller.streams, self._streams_per_key)
            caller.streams += 1
        self.streams += 1
        held = True

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self.streams -= 1
                if caller.counted:
                    caller.streams -= 1

        return release

    def check_session(self, open_sessions: int) -> None:
        """Raise `throttled` if there is no room for another watch session."""
        check_room("max_watch_sessions", open_sessions, self._sessions)

    def begin_request(self, caller: Caller) -> None:
        """Count a request of a key, or raise `throttled`. `Caller.end_request` must follow however it ends."""
        if self._inflight_per_key and caller.inflight >= self._inflight_per_key:
            raise throttled("max_inflight_per_key", self._inflight_per_key)
        caller.inflight += 1
