"""The thread of the store rests, and the samples that it saves are there after a restart."""

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
from topics.server.loop.storage import REST_S, WORK_NS, ThreadWorker


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


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
        settings = Settings(data_dir=tmp_path, sync_interval_ms=10, checkpoint_wal_bytes=1 << 20)
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
