"""The last snapshot of an orderly stop: it replaces the log, so few syncs are needed and nothing is logged after it."""

from __future__ import annotations

import errno

import pytest

from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.engine.state.topics import SegmentLimits
from topics.errors import Code, TopicsError

SYNCS = ("sync", "datasync", "sync_dir")


def written(*, topics: int = 1, records: int = 3) -> SimServer:
    server = SimServer.start(SimDisk(seed=2), segments=SegmentLimits())
    for at in range(topics):
        server.append(f"t{at}", *map(str, range(records)), durability="disk")
    return server


def syncs_of_stop(server: SimServer) -> list[str]:
    before = len(server.disk.calls)
    server.close()
    return [call.path for call in server.disk.calls[before:] if call.op in SYNCS]


@pytest.mark.parametrize("topics", [1, 50])
def test_stop_syncs_the_tails_and_the_snapshot_alone(topics: int):
    server = written(topics=topics)
    syncs = syncs_of_stop(server)
    assert len(syncs) == 4, syncs  # the files, and the name of each
    after = server.next(server.disk.crash("lose"))
    assert [after.data(f"t{at}") for at in range(topics)] == [["0", "1", "2"]] * topics
    assert after.append("t0", "3").first == 4


def test_stop_with_a_large_tail_syncs_its_segment_too():
    server = written(records=5000)
    syncs = syncs_of_stop(server)
    assert len(syncs) == 5, syncs  # the folder of the topic, the segment, the snapshot, and the names of both
    assert len(server.next(server.disk.crash("lose")).data("t0")) == 5000


def test_log_that_no_snapshot_replaces_is_synced():
    server = written()
    server.disk.fail(op="pwritev", path="*.snap.tmp", error=errno.ENOSPC)
    server.close()
    assert server.store.retries.reason == "No space left on device"
    assert server.next(server.disk.crash("lose")).data("t0") == ["0", "1", "2"]


def test_write_after_the_last_snapshot_is_refused():
    server = written()
    assert server.store.checkpoint(clean=True)
    with pytest.raises(TopicsError) as refused:
        server.append("t0", "3")
    assert refused.value.code is Code.READ_ONLY
    server.store.close()
    assert server.next(server.disk).data("t0") == ["0", "1", "2"]
