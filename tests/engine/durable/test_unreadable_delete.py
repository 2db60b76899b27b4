"""A delete that is in the log when the disk fails: its answer says so, and a retry or a restart completes it."""

from __future__ import annotations

import errno

import pytest

from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.errors import Code, TopicsError


def test_logged_delete_that_cannot_read_a_segment_is_reported_and_can_be_repeated(monkeypatch: pytest.MonkeyPatch):
    server = SimServer.start(SimDisk(seed=1))
    for data in ("1", "2", "3", "4", "5"):
        server.append("t", data, tag="x", durability="fsync")

    def fail(*_: object) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr("topics.engine.write.apply._delete_prefix", fail)
        with pytest.raises(TopicsError, match="the change is in the log") as refused:
            server.delete("t", before_seq=4)
    assert refused.value.code is Code.READ_ONLY
    assert refused.value.detail == {"reason": "Input/output error", "outcome": "logged"}
    assert server.data("t") == ["1", "2", "3", "4", "5"]

    restarted = server.next(server.disk.clone().crash("keep"))
    assert restarted.data("t") == ["4", "5"]
    assert server.delete("t", before_seq=4).deleted == 3
    assert server.data("t") == ["4", "5"]
