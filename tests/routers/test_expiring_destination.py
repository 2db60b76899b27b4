"""A router into a topic that rejects and whose records expire: when it has to log that there is room again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulated.disk import SimDisk
from tests.simulated.harness import DeferredWorker, SimServer, request
from topics.engine.write.commit import Ticket
from topics.model.router import RouterRequest
from topics.model.topic import ConfigPatch
from topics.storage.log.router_entry import Resume

TTL_MS = 60


class Flow:
    """A topic that gets a record each millisecond, and a copy of it that is read after each of them."""

    def __init__(self, **config: int) -> None:
        self.sync = DeferredWorker()
        self.server = SimServer.start(SimDisk(), sync_worker=self.sync)
        self.put("a", durability="fsync")
        self.put("b", durability="fsync", discard="reject", ttl_ms=TTL_MS, **config)
        self.server.engine.routers.put("r", RouterRequest(source="a", dest="b"))
        self.settle()
        self.resumes = self.behind = 0
        stage = self.server.engine.commits.stage

        def count(ticket: Ticket) -> None:
            self.resumes += type(ticket.entry) is Resume
            stage(ticket)

        self.server.engine.commits.stage = count  # type: ignore[method-assign]

    def put(self, name: str, **config: Any) -> None:
        self.server.engine.put_topic(name, ConfigPatch(**config))
        self.settle()

    def settle(self) -> None:
        for _ in range(3):
            self.server.engine.flush()
            self.sync.run_all()

    def run(self, ms: int) -> None:
        engine = self.server.engine
        for at in range(ms):
            self.server.clock.advance(ms=1)
            engine.append("a", request("1"))
            engine.flush()
            engine.expire_and_get("b", touch=False)
            engine.routers.forwarder.run(0)
            if at % 3 == 2:
                self.sync.run_all()
            self.behind = max(self.behind, engine.topic("a").head - engine.topic("b").head)


@pytest.mark.parametrize("cap", [{"cap_records": 1000}, {"cap_bytes": 100_000}, {}])
def test_expiry_in_a_destination_with_room_does_not_stop_the_router(cap: dict[str, int]):
    flow = Flow(**cap)
    flow.run(4 * TTL_MS)
    assert flow.behind < 12
    assert flow.resumes == bool(cap)


def test_router_resumes_once_for_the_room_of_many_copies():
    flow = Flow(cap_records=TTL_MS + 20)
    flow.run(10 * TTL_MS)
    assert flow.behind < 12
    assert flow.resumes < 40
    flow.settle()
    before = flow.server.walk("b")[0]
    after = flow.server.crash("keep").walk("b")[0]
    assert after[: len(before) - 1] == before[1:], "the first one expires at the start"
