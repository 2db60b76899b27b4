"""How much of the server there is to go round: caps on what is open at once, for everybody and for one key.

A slot is taken before anything is made and given back by a `release` that may be called twice: whoever holds one calls
it on every way out and need not know which came first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.server.limits.caps import check_room, throttled

if TYPE_CHECKING:
    from topics.config import Settings
    from topics.server.access.caller import Caller

Release = Callable[[], None]


class Limits:
    """What one server counts. A key's own counts are on its `Caller`; without keys there is nobody to count for."""

    __slots__ = ("_inflight_per_key", "_sessions", "_streams", "_streams_per_key", "streams")

    def __init__(self, settings: Settings) -> None:
        self.streams = 0  # event streams and WebSockets that are open
        self._streams = settings.max_sse_connections
        self._streams_per_key = settings.max_sse_connections_per_key
        self._inflight_per_key = settings.max_inflight_per_key
        self._sessions = settings.max_watch_sessions

    def open_stream(self, caller: Caller) -> Release:
        """A slot for a long-lived connection of `caller`; the answer gives it back."""
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
        """Room for one more watch session beside those there are."""
        check_room("max_watch_sessions", open_sessions, self._sessions)

    def begin_request(self, caller: Caller) -> None:
        """A request of a key is being answered; its `end_request` follows on every way it can end."""
        if self._inflight_per_key and caller.inflight >= self._inflight_per_key:
            raise throttled("max_inflight_per_key", self._inflight_per_key)
        caller.inflight += 1
