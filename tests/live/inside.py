"""A server in a thread of the test, so that the test can delay its loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import uvloop

from topics.clock import SystemClock
from topics.config import Settings
from topics.server.app import TopicsApp
from topics.server.http.http1.connection import Connection
from topics.server.http.http_limits import HttpLimits
from topics.server.http.server import HttpServer

T = TypeVar("T")
WAIT_S = 20


class Inside:
    """`call` runs on the server's own thread."""

    def __init__(self, **settings: Any) -> None:
        self.loop = uvloop.new_event_loop()
        self.settings = Settings(**settings)
        self._busy_ms = 0.0
        self._ready = threading.Event()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        self.url = f"http://127.0.0.1:{self.port}"

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._serve())
        self.loop.close()

    async def _serve(self) -> None:
        self.app = TopicsApp(self.settings, SystemClock(), self.loop)
        self.app.startup.http = http = HttpServer(self.app, HttpLimits.of(self.settings), budget=self.app.budget)
        server = await self.loop.create_server(lambda: Connection(http), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        await self.app.start()
        self._ready.set()
        await self._over.wait()
        self._busy_ms = 0
        server.close()
        self.app.begin_drain()
        await http.drain(1000)
        await self.app.stop()

    def call(self, function: Callable[[], T]) -> T:
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                done.set_result(function())
            except BaseException as error:
                done.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return done.result(WAIT_S)

    def lag(self, *lags_ms: float) -> None:
        """Replace the measurements of the throttle by these."""

        def measure() -> None:
            self.app.services.throttle.end()
            for lag_ms in lags_ms:
                self.app.services.throttle.take(lag_ms)

        self.call(measure)

    def keep_busy(self, ms: float) -> None:
        """Make every turn of the loop take so much longer; 0 ends this."""
        was, self._busy_ms = self._busy_ms, ms
        if not was and ms:
            self.loop.call_soon_threadsafe(self._burn)

    def _burn(self) -> None:
        if self._busy_ms:
            time.sleep(self._busy_ms / 1000)
            self.loop.call_soon(self._burn)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._over.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
