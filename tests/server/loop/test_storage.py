"""The timer of the store: quick while something waits for a sync, slow while nothing does."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Raw

from topics.clock import SystemClock
from topics.config import Settings
from topics.model.records import NewRecord, WriteRequest
from topics.server.app import TopicsApp
from topics.server.loop.storage import IDLE_TICK_MS

SYNC_MS = 10


class WatchedTimers:
    """Notes the delay of every timer for the tick of the store."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.delays_ms: list[float] = []
        self._later = loop.call_later
        loop.call_later = self._watch  # type: ignore[method-assign]

    def _watch(self, delay_s: float, call: Callable[..., object], *arguments: Any, **options: Any) -> Any:
        if getattr(call, "__name__", "") == "_tick" and "Storage" in getattr(call, "__qualname__", ""):
            self.delays_ms.append(delay_s * 1000)
        return self._later(delay_s, call, *arguments, **options)


async def serve_idle(directory: Path) -> None:
    loop = asyncio.get_running_loop()
    timers = WatchedTimers(loop)
    app = TopicsApp(Settings(data_dir=directory, sync_interval_ms=SYNC_MS), SystemClock(), loop)
    await app.start()
    try:
        await until(lambda: timers.delays_ms[-1:] == [IDLE_TICK_MS])
        for _ in range(2):
            app.services.engine.append("t", WriteRequest([NewRecord(Raw(b"1"))]))
            app.services.engine.flush()
        assert timers.delays_ms[-1] == SYNC_MS
        assert app.services.storage is not None
        stats = app.services.storage.wal.stats
        await until(lambda: stats.queue_depth == 0 and stats.fsyncs_total)
        await until(lambda: timers.delays_ms[-1:] == [IDLE_TICK_MS])
    finally:
        await app.stop()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def test_idle_server_looks_at_its_directory_rarely_and_syncs_a_write_soon(tmp_path: Path):
    asyncio.run(serve_idle(tmp_path / "data"))
