"""A wall clock that is set while the server runs ends no duration at once: expiry, holds, TTLs, leases, windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ServerProcess
from tests.contract.api import Api, eventually

HOUR_MS = 3_600_000
LONG_MS = 120_000
NEVER_SET_MS = -20 * 365 * 24 * HOUR_MS  # the wall clock shows a time before 2020


class Machine:
    """A server, and the wall clock of its machine."""

    def __init__(self, directory: Path, *, ahead_ms: int = 0) -> None:
        self._clock = directory / "clock"
        self._clock.write_text(str(ahead_ms))
        program, variables = [str(Path(__file__).with_name("jumping_clock.py"))], {"CLOCK": str(self._clock)}
        self.server = ServerProcess(directory, {"data_dir": directory / "data"}, program=program, variables=variables)
        self.api = Api(self.server.url)

    def set_clock(self, by_ms: int) -> None:
        """Set the wall clock, and wait until the server has noticed."""
        after = self._clock.with_name("after")
        after.write_text(str(by_ms))
        after.rename(self._clock)
        eventually(self.server.log, lambda lines: "clock_jumped" in lines)


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path, ahead_ms=getattr(request, "param", 0))
    yield found
    found.api.close()
    found.server.stop()


@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
def test_jump_of_the_clock_ends_nothing_at_once(machine: Machine, by_ms: int) -> None:
    api = machine.api
    api.put("held", cap_records=2)
    hold = {"expire_ms": LONG_MS, "hold": True, "max_hold_bytes": 1 << 20}
    assert api.call("PUT", "/v0/topics/held/consumers/billing", hold).status_code == 201
    api.write("held", 1, 2, 3, 4)
    api.put("aging", ttl_ms=LONG_MS)
    api.write("aging", 1)
    api.write("keyed", 1, idempotency_key="k")
    api.put("jobs", type="queue", lease_ms=LONG_MS)
    api.write("jobs", 1)
    api.call("POST", "/v0/topics/jobs/claim", {"node": "w"})
    written_ts = api.diff("aging")["records"][0]["$ts"]

    machine.set_clock(by_ms)

    assert api.get("/v0/topics/held/consumers/billing")["seq"] == 0
    api.write("held", 5)
    assert [record["$seq"] for record in api.diff("held")["records"]] == [1, 2, 3, 4, 5]
    assert api.diff("aging")["tombstone"] is None
    assert api.write("keyed", 1, idempotency_key="k")["deduped"] is True
    assert api.state("jobs")["queue"]["in_flight"] == 1
    api.write("aging", 2)
    assert 0 <= api.diff("aging", from_seq=1)["records"][0]["$ts"] - written_ts < LONG_MS


@pytest.mark.parametrize("machine", [NEVER_SET_MS], indirect=True)
def test_clock_that_was_never_set_is_taken_over_but_ends_no_hold(machine: Machine) -> None:
    api = machine.api
    api.put("held", cap_records=2)
    hold = {"expire_ms": LONG_MS, "hold": True, "max_hold_bytes": 1 << 20}
    api.call("PUT", "/v0/topics/held/consumers/billing", hold)
    api.write("held", 1, 2, 3)
    before_ts = api.diff("held")["records"][0]["$ts"]

    machine.set_clock(0)

    api.write("held", 4)
    page = api.diff("held")
    assert [record["$seq"] for record in page["records"]] == [1, 2, 3, 4]
    assert page["records"][3]["$ts"] - before_ts >= -NEVER_SET_MS
