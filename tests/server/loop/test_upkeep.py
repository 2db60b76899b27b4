"""Periodic work that changes the state: only a server that writes does it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from topics.server.limits.budget import MemoryBudget
from topics.server.loop.budget_upkeep import Upkeep
from topics.server.loop.runtime import NOT_LOADING


@pytest.mark.parametrize("writes", [False, True])
def test_standby_expires_no_consumers_and_moves_no_jobs(writes: bool) -> None:
    done: list[str] = []

    def attempt(work: Any, failed: Any) -> Any:
        work()
        return NOT_LOADING

    engine = SimpleNamespace(
        state=SimpleNamespace(expiring={"t": None}, keyed={}),
        consumers=SimpleNamespace(sweep=lambda topics: done.append("consumers")),
        queues=SimpleNamespace(move_exhausted=lambda topics: done.append("jobs")),
        commits=SimpleNamespace(pending_bytes=0),
        staging=SimpleNamespace(),
    )
    engine.state.totals = SimpleNamespace(key_bytes=0, reasons=SimpleNamespace(bytes=0))
    runtime: Any = SimpleNamespace(
        engine=engine,
        clock=SimpleNamespace(monotonic_ns=lambda: 0),
        attempt=attempt,
        holds=SimpleNamespace(note=lambda *_: None),
    )
    Upkeep(runtime, MemoryBudget(), writes=writes, on_relief=lambda: None).take()
    assert done == (["consumers", "jobs"] if writes else [])
