"""Logs that earlier versions continued after a failed write or sync are replayed as these versions replayed them.

`healed.tar.gz` has the directories of killed servers, each with what the same version showed after a restart. In the
ones that "healed", a log file repeats frames of the files before it; the others have refused frames. This version
writes neither, so the archive cannot be written again.
"""

import json
import posixpath
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.storage.log import frame

CASES = [
    "healed before the snapshot", "healed after the snapshot", "healed twice", "healed without a later entry",
    "refused after a failed sync", "refused at the end of a file",
]  # fmt: skip


def unpack(case: str) -> tuple[SimDisk, dict[str, Any]]:
    """Return a disk with the directory of a case, and what is expected of it."""
    disk = SimDisk(seed=7)
    for name in ("wal", "segments", "snapshots", "ledger"):
        disk.mkdir(f"/data/{name}")
    with tarfile.open(Path(__file__).with_name("healed.tar.gz")) as archive:
        for member in archive:
            data = archive.extractfile(member)
            assert data is not None
            if member.name == "expected.json":
                expected = json.load(data)[case]
            elif member.name.startswith(f"{case}/"):
                path = member.name.removeprefix(case)
                disk.mkdir(posixpath.dirname(path))
                file = disk.open(path, create=True)
                file.pwrite(data.read(), 0)
                file.sync()
                file.close()
    disk.sync_dir("/data")
    return disk, expected


@pytest.mark.parametrize("case", CASES)
def test_log_that_was_continued_is_replayed_once(case: str) -> None:
    disk, expected = unpack(case)
    server = SimServer.start(disk)
    assert server.recovered is not None
    assert (server.recovered.damage, server.recovered.cut) == ([], [])
    assert server.recovered.entries == expected["entries"]
    assert {
        name: {str(seq): data for seq, data in server.by_seq(name).items()} for name in server.engine.topics
    } == expected["records"]


def test_refused_frame_is_no_entry_and_no_damage() -> None:
    whole = frame.encode(4, 1, 2, 3, b"body")
    refused = whole[:-1] + bytes([frame.REFUSED])
    found = frame.decode(memoryview(refused), 0)
    assert found is not None
    assert (found[0].head.kind, found[1]) == (frame.NOTHING, len(refused))
    assert frame.decode(memoryview(refused[:20] + b"?" + refused[21:]), 0) is None
