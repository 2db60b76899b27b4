"""Samples of consumers and routers: taken without a client that looks, and returned by the rights of a key."""

import asyncio
from types import SimpleNamespace
from typing import cast

from tests.engine.harness import open_engine, record, write
from tests.simulated.clock import SimClock
from topics.model.consumer import ConsumerRequest
from topics.server.loop.runtime import Runtime
from topics.server.loop.samples import QUEUE_INTERVAL_MS as INTERVAL_MS
from topics.server.loop.samples import ReaderSamples


def test_lag_and_progress_are_sampled_from_the_first_tick_of_a_reader_on() -> None:
    clock = SimClock(ms=1_000_000)
    engine = open_engine(clock)
    timer = cast(asyncio.TimerHandle, SimpleNamespace(cancel=lambda: None))
    runtime = SimpleNamespace(engine=engine, clock=clock, call_later=lambda *_: timer)
    samples = ReaderSamples(cast(Runtime, runtime))
    engine.append("orders", write(*[record() for _ in range(10)]))
    engine.append("stock", write(record()))
    engine.flush()
    engine.consumers.put("orders", "billing", ConsumerRequest(seq=4))
    engine.flush()
    samples.take()
    clock.advance(ms=INTERVAL_MS)
    engine.consumers.put("orders", "billing", ConsumerRequest(seq=9))
    engine.consumers.put("stock", "shelf", ConsumerRequest(seq=0))
    engine.flush()
    samples.take()
    columns, rows = samples.rows(lambda name: True)
    assert columns == [
        "ts",
        *(f"{one} consumer {of}" for of in ("orders billing", "stock shelf") for one in ("lag", "done")),
    ]
    assert rows == [[1_000_000, 6, 4, -1, -1], [1_015_000, 1, 9, 1, 0]]
    assert samples.rows(lambda name: name == "stock", 1_000_000) == (
        ["ts", "lag consumer stock shelf", "done consumer stock shelf"], [[1_015_000, 1, 0]],
    )  # fmt: skip
