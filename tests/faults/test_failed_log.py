"""A log that fails ends the server, and the next start trusts nothing that may be in the page cache only."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path

import pytest

from tests.client.proxy import CuttingProxy
from tests.conftest import WAIT_S, ServerProcess
from tests.simulated.disk import FOREVER, SimDisk
from tests.simulated.harness import SimServer, request
from tests.simulated.inode import CrashMode
from topics.client import AsyncTopics, NewRecord, Record
from topics.engine.write.commit import Halted
from topics.errors import Code, TopicsError
from topics.server.app import EXIT_HALTED

FAILING_SYNC = str(Path(__file__).with_name("failing_sync.py"))


def with_failed_sync(disk: SimDisk, *, memory: bool = False) -> SimServer:
    """Return a server that has ended because the sync of a write to the topic `f` failed."""
    server = SimServer.start(disk)
    server.put("f", durability="fsync")
    server.put("d", durability="disk")
    if memory:
        server.append("m", "0", durability="memory")  # a start that replays it later takes no snapshot
    server.tick()
    server.append("d", "1")
    fail_sync(server)
    return server


def fail_sync(server: SimServer) -> None:
    server.disk.fail(at=len(server.disk.calls), op="datasync", path="*.wal", error=errno.EIO)
    ticket = server.engine.append("f", request("2", key="k"))
    with pytest.raises(Halted):
        server.engine.flush()
    assert not ticket.done
    server.disk.heal()


@pytest.mark.parametrize("start", ["whole", "without a snapshot", "with a memory topic"])
@pytest.mark.parametrize("mode", ["lose", "tear", "reorder", "zero"])
def test_retry_that_a_restart_acknowledges_survives_a_power_loss(start: str, mode: CrashMode) -> None:
    """After a failed sync the kernel counts the bytes as written: they are readable, and no sync writes them."""
    dead = with_failed_sync(SimDisk(seed=7), memory=start == "with a memory topic")
    disk = dead.disk.crash("keep")
    if start == "without a snapshot":
        disk.fail(op="open", path="*.snap.tmp", times=FOREVER)
        disk.fail(op="open", path="*.tails.tmp", times=FOREVER)
    server = dead.next(disk)
    retry = server.append("f", "2", key="k")
    assert retry.deduped, "this test needs the bytes in the page cache"
    disk.heal()
    after = server.crash(mode)
    assert after.by_seq("f") == {retry.first: "2"}
    assert after.append("f", "2", key="k").deduped


def test_error_of_the_page_cache_that_only_a_start_sees_loses_nothing() -> None:
    """The kernel failed to write pages in the background, and the process was killed before its next sync."""
    server = SimServer.start(SimDisk(seed=7))
    server.put("f", durability="fsync")
    server.append("m", "0", durability="memory")
    server.engine.commits.sync = lambda: None  # type: ignore[method-assign]
    server.wal.sync = lambda done: None  # type: ignore[method-assign]
    server.engine.append("f", request("1", key="k"))
    server.engine.flush()
    disk = server.disk.crash("keep")
    disk.fail(op="datasync", path="*.wal", error=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        server.next(disk)
    again = server.next(disk.crash("keep"))
    assert again.append("f", "1", key="k").deduped
    assert again.crash("lose").data("f") == ["1"]


@pytest.mark.parametrize("reverts", [False, True])
def test_no_seq_is_assigned_twice_after_a_failed_sync(reverts: bool) -> None:
    """Some file systems read as before the writes after a failed sync: a `disk` topic may lack what it acknowledged."""
    dead = with_failed_sync(SimDisk(seed=7, failed_sync_reverts=reverts))
    after = dead.crash("keep")
    assert after.recovered is not None
    assert after.recovered.damage == []
    records, gaps = after.walk("d")
    assert (len(records), {reason for _, _, reason in gaps}) == (0 if reverts else 1, {"restart"})
    assert after.append("d", "3").first > 1
    again = after.crash("keep")
    assert again.engine.topic("d").losses.runs == after.engine.topic("d").losses.runs, "it was a plain kill"


def test_plain_kill_skips_no_seq() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.append("d", "1", durability="disk")
    assert server.crash("keep").append("d", "2").first == 2


def test_full_copy_on_write_disk_ends_the_server_and_the_next_one_is_read_only() -> None:
    server = SimServer.start(SimDisk(seed=7))
    server.append("f", "1", durability="fsync")
    server.disk.fail(at=len(server.disk.calls), op="pwrite", path="*.wal", error=errno.ENOSPC, short=True)
    with pytest.raises(Halted):
        server.append("f", "2")
    disk = server.disk.crash("keep")
    disk.fail(op="pwrite", error=errno.ENOSPC, times=FOREVER)
    disk.fail(op="pwritev", error=errno.ENOSPC, times=FOREVER)
    after = server.next(disk)
    assert after.data("f")[:1] == ["1"]
    with pytest.raises(TopicsError) as refused:
        after.append("f", "3")
    assert refused.value.code is Code.READ_ONLY
    disk.heal()
    after.tick()
    after.append("f", "3")
    assert after.crash("lose").data("f")[-1] == "3"


class FailingServer:
    """A server whose syncs fail on request, behind an address that stays the same when it is started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.switch = directory / "sync-fails"
        self.server = self._start()
        self.proxy = CuttingProxy(lambda: self.server.port, seed=1, cut_one_in=1 << 30)

    def _start(self) -> ServerProcess:
        settings = {"data_dir": self._directory / "data"}
        variables = {"SYNC_FAILS": str(self.switch)}
        return ServerProcess(self._directory, settings, program=[FAILING_SYNC], variables=variables)

    def restart_after_failure(self) -> None:
        """Wait for the server to end, and start it on a disk that works again, as a supervisor does."""
        assert self.server.process.wait(WAIT_S) == EXIT_HALTED
        self.server.killed = True
        self.switch.unlink()
        self.server = self._start()


async def use(failing: FailingServer, topics: AsyncTopics) -> None:
    """Write and read through a failed sync."""
    for name, durability in (("f", "fsync"), ("d", "disk")):
        await topics.put_topic(name, durability=durability)
        await topics.append_many(name, [NewRecord(data=number) for number in (1, 2, 3)])
    follower = topics.follow("f")
    seen = [(await anext(follower)).data for _ in range(3)]
    failing.switch.touch()
    write = asyncio.create_task(topics.append("f", 4))
    await asyncio.to_thread(failing.restart_after_failure)
    assert (await write).seq == 4, "the client sends it again with the same key"
    seen.append((await anext(follower)).data)
    assert seen == [1, 2, 3, 4]
    for name, want in (("f", [1, 2, 3, 4]), ("d", [1, 2, 3])):
        assert [item.data async for item in topics.read(name) if isinstance(item, Record)] == want
    await follower.aclose()


def test_clients_go_on_after_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.client.call.LONGEST_S", 0.1)
    failing = FailingServer(tmp_path)

    async def play() -> None:
        async with AsyncTopics(failing.proxy.url) as topics, asyncio.timeout(WAIT_S):
            await use(failing, topics)

    try:
        with failing.proxy:
            asyncio.run(play())
    finally:
        failing.server.kill()
    events = [json.loads(line) for line in failing.server.log().splitlines()]
    [failed] = [event for event in events if event["event"] == "log_failed"]
    [halted] = [event for event in events if event["event"] == "halted"]
    assert failed["reason"] == "Input/output error"
    assert halted["reason"].startswith("Input/output error")
