"""An edge that has something to copy is due, or will be: no write is forgotten until the next one."""

from __future__ import annotations

import pytest

from tests.simulated.bucket import SimBucket
from tests.simulated.harness import DeferredWorker, request
from tests.simulated.replica import ReplicaServer
from topics.model.router import RouterRequest
from topics.storage.segments.cold import waiting


@pytest.mark.parametrize("records", [1, 2])
def test_write_that_was_staged_before_its_router_was_in_place_wakes_it(records: int) -> None:
    """With a replica, the router waits for its upload, and the write behind it for the next one."""
    uploads = DeferredWorker()
    server = ReplicaServer.begin(SimBucket(), worker=uploads)
    uploads.run_all()
    engine = server.engine
    for name in "ab":
        engine.append(name, request("1", durability="replicated"))
        engine.flush()
        uploads.run_all()
    wakes: list[int] = []
    engine.routers.due.wake = lambda: wakes.append(1)

    def forward() -> None:
        if wakes:
            wakes.clear()
            waiting(lambda: engine.routers.forwarder.run(0))

    put = engine.routers.put("ab", RouterRequest(source="a", dest="b"))
    written = engine.append("a", request(*["2"] * records))
    engine.flush()
    assert (put.done, written.done) == (False, False)
    while not written.done:  # bound: each round ends an upload
        uploads.work()
        uploads.report()
        forward()
    assert put.done
    assert engine.routers.get("ab").lag == 0
