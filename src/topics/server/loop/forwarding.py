"""Routers on the event loop: when forwarding gets its turns.

A write to a source is answered before its copies are begun. While requests come in, forwarding gets a slice of the
time and then leaves the loop alone for several times as long; when none do, it goes on at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from topics import logs
from topics.storage.segments.cold import Cold

if TYPE_CHECKING:
    from topics.server.app import TopicsApp

log = logs.Log("routers")

SLICE_NS = 300_000
REST = 8  # a slice is followed by so many of its length without one, under load
RETRY_MS = 1000  # after a failure that should not be


class Forwarding:
    """Calls `Routers.run` whenever there is something to forward."""

    def __init__(self, app: TopicsApp) -> None:
        self._app = app
        self._routers = app.engine.routers
        self._routers.wake = self._wake
        self._timer: asyncio.Handle | None = None
        self._resting_until_ns = 0
        self._requests = 0
        self._loading = self._stopped = False
        self._patient = (
            True  # whether no turn is under way or about to come: one that is only due later can be brought forward
        )

    def stop(self) -> None:
        """What is not forwarded by now is forwarded after the next start."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        if self._patient:
            self._come_back(0)

    def _come_back(self, wanted_ms: float) -> None:
        if self._stopped or self._loading:
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = self._app.loop
        rest_ms = (self._resting_until_ns - self._app.clock.monotonic_ns()) / 1e6
        delay_ms = max(wanted_ms, rest_ms)
        self._timer = loop.call_later(delay_ms / 1000, self._turn) if delay_ms > 0 else loop.call_soon(self._turn)
        self._patient = wanted_ms > 0

    def _turn(self) -> None:
        self._patient = False
        try:
            self._forward()
        except Cold as cold:
            self._loading = True
            self._app.loads.load(cold, self._loaded)

    def _loaded(self, failure: BaseException | None) -> None:
        self._loading = False
        if failure is not None:
            log.failure("cannot_read", failure)
            self._routers.skip_cold()
            self._timer = None
            self._come_back(RETRY_MS)
        elif not self._stopped:
            try:
                self._forward()
            except Cold:
                self._loading = True
                raise

    def _forward(self) -> None:
        """One slice of forwarding, and when to come back for the next. Raises `Cold`."""
        clock, began = self._app.clock, self._app.clock.monotonic_ns()
        try:
            delay_ms = self._routers.run(SLICE_NS)
        except Cold:
            raise
        except Exception as error:
            log.failure("forwarding_failed", error)
            delay_ms = RETRY_MS
        ended = clock.monotonic_ns()
        self._resting_until_ns = ended + REST * (ended - began) if self._is_asked() else 0
        self._timer = None
        self._patient = True
        if delay_ms is not None:
            self._come_back(delay_ms)

    def _is_asked(self) -> bool:
        """Whether requests came in since the last turn."""
        server = self._app.http
        before, self._requests = self._requests, 0 if server is None else server.requests_total
        return self._requests != before
