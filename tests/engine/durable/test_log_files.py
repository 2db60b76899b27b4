"""Where the log ends after a power loss, if the end of one file is missing and a later file is there."""

from __future__ import annotations

import pytest

from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.storage.log import walfile

LARGE = '"' + "x" * 2_500 + '"'  # two such records do not fit into one log file


def torn_after_rotation(seed: int) -> SimServer:
    server = SimServer.start(SimDisk(seed=seed))
    server.put("d", durability="disk")
    server.append("d", "1")
    server.append("d", LARGE)
    server.append("d", LARGE)
    return server.crash("tear")


def test_power_loss_that_tears_an_unsynced_file_ends_the_log_there():
    cut = 0
    for seed in range(40):
        after = torn_after_rotation(seed)
        assert after.recovered is not None
        assert after.recovered.damage == [], seed
        assert {reason for _, _, reason in after.view()["d"].tombstones} <= {"restart"}, seed
        cut += any("were not synced either" in text for text in after.recovered.cut)
        found = after.view()
        assert after.crash("lose").view() == found
    assert cut, "no seed tears the first file and keeps the second"


def test_kill_keeps_every_record_across_a_rotation():
    server = SimServer.start(SimDisk(seed=1))
    server.append("d", "1", durability="disk")
    server.append("d", LARGE)
    server.append("d", LARGE)
    after = server.crash("keep")
    assert after.data("d") == ["1", LARGE, LARGE]
    assert after.recovered is not None
    assert (after.recovered.damage, after.recovered.cut) == ([], [])


def test_damage_in_a_synced_file_is_no_end_of_the_log():
    server = SimServer.start(SimDisk(seed=1))
    server.append("f", "1", durability="fsync")
    server.append("f", LARGE)
    server.append("f", LARGE)
    disk = server.disk.crash("lose")
    first = "/data/wal/00000000000000000001.wal"
    data = bytearray(disk.contents(first))
    end = walfile.whole_end(bytes(data))
    data[end - 1_000 : end] = bytes(1_000)
    file = disk.open(first, write=True)
    file.pwrite(bytes(data), 0)
    file.sync()

    after = server.next(disk)

    assert after.recovered is not None
    assert after.recovered.damage
    assert after.by_seq("f") == {1: "1", 3: LARGE}
    assert after.view()["f"].tombstones == ((2, 2, "corrupt"),)


@pytest.mark.parametrize("rotations", [0, 1, 2])
def test_every_file_but_the_first_names_the_end_of_the_one_before(rotations: int):
    server = SimServer.start(SimDisk(seed=1))
    server.append("d", "1", durability="disk")
    for _ in range(rotations):
        server.wal.rotate()
    paths = sorted(path for path in server.disk.listdir("/data/wal") if path.endswith(".wal"))
    data = [server.disk.contents(f"/data/wal/{path}") for path in paths]
    said = [walfile.follows(one) for one in data]
    ends = [walfile.whole_end(one) for one in data]
    assert said == [None, *((number, end) for number, end in enumerate(ends[:-1], 1))]
