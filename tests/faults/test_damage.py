"""Bytes that went bad: every flipped bit is noticed, and what cannot be read is told to readers, never left out."""

from __future__ import annotations

import os

import pytest

from topics.errors import Corrupt
from topics.storage import walfile
from topics.storage.check import examine
from topics.storage.datadir import DataDirError
from topics.testing.disk import SimDisk
from topics.testing.harness import SimServer, View

SEED = int(os.environ.get("TOPICS_FAULT_SEED", "7"))


def small_directory() -> SimServer:
    """A directory with every kind of file in it, and a server that died with it open."""
    server = SimServer.start(SimDisk(seed=SEED))
    server.put("f", durability="fsync")
    server.append("f", '"one"', '"two"', '"three"', tag="t")
    server.append("f", '"four"', key="k")
    server.append("d", '"other"', durability="disk")
    server.checkpoint()
    server.delete("f", before_seq=2)
    server.append("f", '"five"', tag="u")
    server.append("f", '"six"')
    server.tick()
    return server


def start(server: SimServer, disk: SimDisk) -> tuple[list[str], dict[str, View]]:
    """What a start, everything it serves, and a look at every segment have to complain about; and what is served."""
    try:
        after = server.next(disk)
    except (DataDirError, Corrupt) as refused:
        return [f"refused: {refused}"], {}
    assert after.recovered is not None
    told = [*after.recovered.damage, *after.recovered.cut]
    found = after.view()
    told += [f"{name}: {run}" for name, view in found.items() for run in view.losses if run[2] == "corrupt"]
    for path in disk.files():
        if path.endswith(".seg"):
            data = disk.contents(path)
            examined = examine(lambda size, at, data=data: data[at : at + size], len(data), path=path, taken=lambda at, data: None)
            told += [problem.what for problem in examined.problems]
    return told, found


def check_rest(found: dict[str, View], before: dict[str, View]) -> None:
    """Whatever is served is what was written, and every seq that is missing has a fate that readers are told of."""
    for name, view in found.items():
        assert set(view.records) <= set(before[name].records), "a record changed"
        lost = {seq for low, high, _ in view.losses for seq in range(low, high + 1)}
        for at, row in enumerate(before[name].records):
            seq = before[name].earliest + at
            assert row in view.records or seq in lost, f"{name}: {seq} is gone without a word"


def flip_all(bits: int) -> tuple[int, int]:
    server = small_directory()
    before = server.view()
    disk = server.disk.crash("keep")
    flips = refused = 0
    for path in disk.files():
        if path.endswith("LOCK"):
            continue
        size = len(disk.contents(path))
        written = walfile.written_end(disk.contents(path)) if path.endswith(".wal") else size
        for at in range(size):
            if at > written + 8 and at % 512:
                continue  # one zero of the reserved space is like the other
            for bit in range(at % 8, 8, 8 // bits):
                twin = disk.clone()
                twin.flip(path, 8 * at + bit)
                told, found = start(server, twin)
                assert told, f"seed {SEED}: bit {bit} of byte {at} of {path} went unnoticed"
                if found.get("f") != before["f"]:
                    assert found or "refused" in told[0]
                check_rest(found, before)
                flips += 1
                refused += "refused" in told[0]
    return flips, refused


def test_a_flipped_bit_in_any_byte_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    flips, refused = flip_all(1)
    with capsys.disabled():
        print(f"\n{flips} flipped bits, all noticed; {refused} of them refuse the start (seed {SEED})")


@pytest.mark.torture
def test_every_flipped_bit_is_noticed() -> None:
    flip_all(8)
