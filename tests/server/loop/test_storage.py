"""The timer of the store: quick while something waits for a sync, slow while nothing does. The rests of its thread."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from topics.clock import SystemClock
from topics.config import Settings
from topics.model.records import NewRecord, WriteRequest
from topics.server.app import TopicsApp
from topics.server.loop import storage
from topics.server.loop.storage import IDLE_TICK_MS, REST_S, WORK_NS, ThreadWorker

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


def test_a_thread_rests_after_some_work_and_not_after_each_piece(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    pieces, worker_thread, sleep = 0, 0, time.sleep

    def note_sleep(seconds: float) -> None:
        if threading.get_ident() == worker_thread:
            slept.append(seconds)
        else:
            sleep(seconds)  # another test's thread

    monkeypatch.setattr(storage.time, "sleep", note_sleep)

    async def run() -> None:
        nonlocal pieces
        worker, done = ThreadWorker(asyncio.get_running_loop(), "rests"), asyncio.Event()

        def work() -> None:
            nonlocal pieces, worker_thread
            worker_thread = threading.get_ident()
            ends_ns = time.perf_counter_ns() + 40 * WORK_NS
            while time.perf_counter_ns() < ends_ns:
                pieces += 1
                worker.rest()

        worker.submit(work, lambda error: done.set())
        await done.wait()
        await worker.close()

    asyncio.run(run())
    assert set(slept) == {REST_S}
    assert len(slept) <= 40
    assert len(slept) < pieces


def test_checkpoint_does_not_wait_for_files_that_the_load_uses_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def serve() -> None:
        settings = Settings(data_dir=tmp_path, sync_interval_ms=SYNC_MS, checkpoint_wal_bytes=1 << 20)
        app = TopicsApp(settings, SystemClock(), asyncio.get_running_loop())
        await app.start()
        try:
            kept = app.services.storage
            assert kept is not None
            monkeypatch.setattr(kept.wal, "prepare", lambda: False)  # the spare file is gone again at every tick
            before = kept.store.snapshot_number
            for _ in range(20):
                app.services.engine.append("t", WriteRequest([NewRecord(Raw(b'"%b"' % (b"x" * 100_000)))]))
                app.services.engine.flush()
            await until(lambda: kept.store.snapshot_number > before)
        finally:
            await app.stop()

    asyncio.run(serve())
