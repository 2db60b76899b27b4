"""The console's history of a day survives a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ServerProcess
from tests.contract.api import Api
from tests.simulated.clock import SimClock
from topics.server.loop.samples import MINUTE_MS, MINUTES, Column, Samples


class FakeRuntime:
    def __init__(self) -> None:
        self.clock = SimClock(MINUTE_MS * 1000)
        self.engine = self
        self.is_replaying = False


def samples_of(runtime: FakeRuntime, values: dict[str, float]) -> Samples:
    columns = [
        Column("done", lambda: values["done"], counter=True),
        Column("held", lambda: values["held"]),
        Column("lag_ms", lambda: values["lag_ms"], peak=True),
    ]
    samples = Samples(runtime, columns)  # type: ignore[arg-type]
    samples._before = samples._read()
    return samples


def test_minute_has_growth_last_value_and_peak():
    runtime, values = FakeRuntime(), {"done": 0.0, "held": 0.0, "lag_ms": 0.0}
    samples = samples_of(runtime, values)
    for at in range(24):
        values |= {"done": values["done"] + 2, "held": at, "lag_ms": 50 if at == 3 else 1}
        samples.take()
        runtime.clock.advance(ms=5_000)
    [row] = samples.rows(minutes=True)
    assert row[1:] == [24, 11, 50]
    assert len(samples.rows()) == 24


def test_saved_minutes_are_bounded_and_follow_their_columns():
    runtime, values = FakeRuntime(), {"done": 0.0, "held": 7.0, "lag_ms": 0.0}
    samples = samples_of(runtime, values)
    for _ in range(MINUTES + 10):
        samples.take()
        runtime.clock.advance(ms=MINUTE_MS)
    assert len(samples.rows(minutes=True)) == MINUTES
    data = samples.saved()
    later = Samples(runtime, [Column("new", lambda: 0), Column("held", lambda: 0)])  # type: ignore[arg-type]
    later.load(data)
    assert later.rows(minutes=True)[-1] == [samples.rows(minutes=True)[-1][0], 0, 7]
    for at in (0, len(data) // 2, len(data) - 1):
        with pytest.raises(ValueError, match="checksum"):
            later.load(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def minutes_of(server: ServerProcess) -> list[Any]:
    api = Api(server.url)
    try:
        rows: list[Any] = api.get("/v0/samples", minutes=True)["rows"]
        return rows
    finally:
        api.close()


def test_restart_continues_the_history(tmp_path: Path):
    settings: dict[str, object] = {"data_dir": tmp_path / "data"}
    server = ServerProcess(tmp_path, settings)
    server.stop()
    runtime = FakeRuntime()
    history = Samples(runtime, [Column("records", lambda: 5)])  # type: ignore[arg-type]
    history._before = [5.0]
    for _ in range(3):
        history.take()
        runtime.clock.advance(ms=MINUTE_MS)
    file = tmp_path / "data" / "SAMPLES"
    assert file.exists()
    file.write_bytes(history.saved())
    server = ServerProcess(tmp_path, settings)
    rows = minutes_of(server)
    assert [row[0] for row in rows] == [MINUTE_MS * 1000, MINUTE_MS * 1001]
    server.stop()
    server = ServerProcess(tmp_path, settings)
    assert [row[0] for row in minutes_of(server)][:2] == [MINUTE_MS * 1000, MINUTE_MS * 1001]
    server.kill()
    file.write_bytes(b"damaged")
    server = ServerProcess(tmp_path, settings)
    assert minutes_of(server) == []
    assert "samples_not_read" in server.log()
    server.kill()
