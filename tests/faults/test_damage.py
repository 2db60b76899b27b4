"""Damaged bytes: every flipped bit is found, and records that cannot be read are reported to readers."""

from __future__ import annotations

import pytest

from tests.conftest import Counts
from tests.sampling import SEED
from tests.simulated.disk import SimDisk
from tests.simulated.harness import ROOT, SimServer, TopicView
from topics.engine.offline.verify import verify
from topics.engine.state.topics import SegmentLimits
from topics.errors import Corrupt
from topics.storage.check import examine
from topics.storage.datadir import DataDirError
from topics.storage.log import walfile


def small_directory() -> SimServer:
    """Return a server that was killed, with a directory that has every kind of file."""
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


def start(server: SimServer, disk: SimDisk) -> tuple[list[str], dict[str, TopicView]]:
    """Return the problems that a start, its answers and a check of every segment report, and what is served."""
    try:
        after = server.next(disk)
    except (DataDirError, Corrupt) as refused:
        return [f"refused: {refused}"], {}
    assert after.recovered is not None
    reported = [*after.recovered.damage, *after.recovered.cut]
    found = after.view()
    reported += [f"{name}: {run}" for name, view in found.items() for run in view.losses if run[2] == "corrupt"]
    for path in disk.files():
        if path.endswith(".seg"):
            data = disk.contents(path)
            examined = examine(
                lambda size, at, data=data: data[at : at + size], len(data), path=path, taken=lambda at, data: None
            )
            reported += [problem.what for problem in examined.problems]
    return reported, found


def check_rest(found: dict[str, TopicView], before: dict[str, TopicView]) -> None:
    """Check that each served record was written, and that each missing seq is reported to readers."""
    for name, view in found.items():
        # If the entry of a delete is damaged, the start reports that, and the record is back.
        assert {row for row in view.records if b'"one"' not in row} <= set(before[name].records), "a record changed"
        lost = {seq for low, high, _ in view.losses for seq in range(low, high + 1)}
        for at, row in enumerate(before[name].records):
            seq = before[name].earliest + at
            assert row in view.records or seq in lost, f"{name}: {seq} is missing without a report"


def flip_all(bits: int, *, every: int = 1) -> tuple[int, int]:
    """Flip so many bits of every byte, or of every so many, one at a time."""
    server = small_directory()
    before = server.view()
    disk = server.disk.crash("keep")
    flips = refused = 0
    for path in disk.files():
        if path.endswith(("LOCK", "VERSION")):  # text for operators
            continue
        size = len(disk.contents(path))
        written = walfile.written_end(disk.contents(path)) if path.endswith(".wal") else size
        for at in range(SEED % every, size, every):
            if at > written + 8 and at % 512:
                continue  # all zeros of the reserved space are alike
            for bit in range(at % 8, 8, 8 // bits):
                twin = disk.clone()
                twin.flip(path, 8 * at + bit)
                reported, found = start(server, twin)
                assert reported, f"seed {SEED}: bit {bit} of byte {at} of {path} was not found"
                if found.get("f") != before["f"]:
                    assert found or "refused" in reported[0]
                check_rest(found, before)
                flips += 1
                refused += "refused" in reported[0]
    return flips, refused


def test_damaged_version_file_stops_no_start() -> None:
    server = small_directory()
    before = server.view()
    disk = server.disk.crash("keep")
    disk.flip("/data/VERSION", 7)  # no valid UTF-8
    assert start(server, disk) == ([], before)


def test_flipped_bit_in_some_bytes_is_found(counts: Counts) -> None:
    flips, refused = flip_all(1, every=3)
    counts(f"(seed {SEED})", flipped_bits=flips, refused_starts=refused)


@pytest.mark.torture
def test_every_flipped_bit_is_found(counts: Counts) -> None:
    flips, refused = flip_all(8)
    counts(f"(seed {SEED})", flipped_bits=flips, refused_starts=refused)


def test_damage_inside_the_log_is_reported_and_the_rest_served() -> None:
    server = SimServer.start(SimDisk(seed=SEED))
    for text in ("one", "two", "three"):
        server.append("f", f'"{text}"', durability="fsync")
    disk = server.disk.crash("keep")
    [path] = [path for path in disk.files() if path.endswith(".wal")]
    at = disk.contents(path).index(b"two")
    disk.flip(path, 8 * at)

    after = server.next(disk)
    assert after.walk("f")[1] == [(2, 2, "corrupt")]
    assert after.data("f") == ['"one"', '"three"']
    assert after.recovered is not None
    [reported] = after.recovered.damage
    assert reported.startswith(f"{path} at byte ")
    assert reported.endswith("topic f, seqs 2 to 2")
    assert after.append("f", '"four"').first == 4
    found = after.view()["f"]
    again = after.crash("lose")
    assert again.view()["f"] == found
    assert again.recovered is not None
    assert again.recovered.damage == []


@pytest.mark.parametrize("last", [False, True])
def test_several_damaged_entries_are_reported_as_one_gap(last: bool) -> None:
    """Without and with an entry after the damage that shows which seqs are missing."""
    server = SimServer.start(SimDisk(seed=SEED))
    server.append("f", '"one"', durability="fsync")
    first = server.wal.tail
    server.append("f", '"two"')
    server.append("f", '"three"')
    until = server.wal.tail
    if not last:
        server.append("f", '"four"')
    disk = server.disk.crash("keep")
    [path] = [path for path in disk.files() if path.endswith(".wal")]
    file = disk.open(path, write=True)
    file.pwrite(b"\x55" * (until - 40 - first), first)

    after = server.next(disk)
    assert after.recovered is not None
    assert after.recovered.damage
    assert after.walk("f")[1] == [(2, 3, "corrupt")]
    assert after.data("f") == (['"one"'] if last else ['"one"', '"four"'])
    assert after.append("f", '"next"').first == (4 if last else 5)


def test_records_after_the_damaged_entry_that_created_their_topic_are_kept() -> None:
    server = SimServer.start(SimDisk(seed=SEED))
    server.append("f", '"one"', durability="fsync")
    server.append("f", '"two"')
    disk = server.disk.crash("keep")
    [path] = [path for path in disk.files() if path.endswith(".wal")]
    created = next(item for item in walfile.scan(disk.contents(path)) if isinstance(item, walfile.FoundFrame))
    disk.flip(path, 8 * (created.at + 40))
    after = server.next(disk)
    assert after.recovered is not None
    assert after.recovered.damage
    assert after.data("f") == ['"one"', '"two"']
    assert after.engine.topic("f").config.durability == "fsync"


@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_write_that_a_power_loss_tears_in_the_middle_is_no_damage(
    durability: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk had written a later page of the unsynced end of the log, and not the one before it."""
    server = SimServer.start(SimDisk(seed=SEED))
    server.append("d", *map(str, range(3)), durability=durability)
    server.tick()
    for _ in range(2):
        server.clock.advance(ms=2_000)  # the ledger notes what is synced
        server.tick()
    at = server.wal.tail
    for number in range(3, 6):
        server.append("d", str(number))
    end = server.wal.tail
    disk = server.disk.crash("keep")
    [path] = [path for path in disk.files() if path.endswith(".wal")]
    frame_bytes = (end - at) // 3
    file = disk.open(path, write=True)
    file.pwrite(bytes(frame_bytes), at)
    file.datasync()
    caplog.clear()
    disk = disk.crash("lose")
    assert verify(disk, ROOT).clean
    after = server.next(disk)
    assert after.recovered is not None
    assert (after.recovered.damage, len(after.recovered.cut)) == ([], 1)
    assert not [row for row in caplog.records if row.levelname == "ERROR"]
    rows, gaps = after.walk("d")
    assert len(rows) == 5
    assert [(first, reason) for first, _, reason in gaps] == [(4, "restart"), (7, "restart")]


def test_same_gap_is_damage_if_no_power_was_lost() -> None:
    server = SimServer.start(SimDisk(seed=SEED))
    server.append("d", "0", durability="disk")
    server.clock.advance(ms=2_000)
    server.tick()
    at = server.wal.tail
    server.append("d", "1")
    end = server.wal.tail
    server.append("d", "2")
    disk = server.disk.crash("keep")
    [path] = [path for path in disk.files() if path.endswith(".wal")]
    disk.open(path, write=True).pwrite(bytes(end - at), at)
    after = server.next(disk)
    assert after.recovered is not None
    assert after.recovered.damage
    assert after.walk("d")[1] == [(2, 2, "corrupt")]


def test_damaged_last_entry_is_not_taken_for_a_torn_write() -> None:
    server = SimServer.start(SimDisk(seed=SEED))
    server.append("f", '"one"', durability="fsync")
    at = server.wal.tail
    server.append("f", '"two"')
    for byte in range(at, server.wal.tail):
        disk = server.disk.clone().crash("keep")
        [path] = [path for path in disk.files() if path.endswith(".wal")]
        disk.flip(path, 8 * byte + byte % 8)
        after = server.next(disk)
        assert after.walk("f") == ([b'{"$seq":1,"$ts":1000000,"data":"one"}'], [(2, 2, "corrupt")]), byte - at
        assert after.append("f", '"three"').first == 3


def test_damaged_segment_loses_its_own_records_only() -> None:
    server = small_directory()
    disk = server.disk.crash("keep")
    [path] = [path for path in disk.files() if path.endswith(".seg")]
    disk.flip(path, 8 * disk.contents(path).index(b'"three"') + 8)
    after = server.next(disk)
    assert after.data("f") == ['"four"', '"five"', '"six"']
    assert after.walk("f")[1] == [(1, 3, "corrupt")]
    found = after.walk("f")
    assert after.crash("lose").walk("f") == found


@pytest.mark.parametrize("other", ["the same topic", "another topic"])
def test_segment_with_the_bytes_of_another_one_is_lost(other: str) -> None:
    server = SimServer.start(SimDisk(seed=SEED), segments=SegmentLimits(max_events=4))
    for name in ("f", "g"):
        for number in range(10):
            server.append(name, f'"{name}{number}"', durability="fsync")
    server.checkpoint()
    disk = server.disk.crash("keep")
    paths = [path for path in disk.files() if path.endswith(".seg")]
    assert len(paths) == 4
    target, source = paths[1], paths[0] if other == "the same topic" else paths[3]
    contents = disk.contents(source)
    file = disk.open(target, write=True)
    file.truncate(0)
    file.pwrite(contents, 0)
    after = server.next(disk)
    assert after.walk("f")[1] == [(5, 8, "corrupt")]
    assert after.data("f") == [f'"f{number}"' for number in range(10) if not 4 <= number < 8]
    assert len(after.data("g")) == 10


def test_tails_with_the_bytes_of_others_are_lost() -> None:
    server = SimServer.start(SimDisk(seed=SEED))
    server.append("f", '"one"', durability="fsync")
    server.append("g", '"two"', durability="fsync")
    server.checkpoint()
    disk = server.disk.crash("keep")
    [path] = [path for path in disk.files() if path.endswith(".tails")]
    contents = disk.contents(path)
    half = len(contents) // 2
    disk.open(path, write=True).pwrite(contents[half:] + contents[:half], 0)
    after = server.next(disk)
    assert after.recovered is not None
    assert len(after.recovered.damage) == 2
    assert after.walk("f") == ([], [(1, 1, "corrupt")])
    assert after.walk("g") == ([], [(1, 1, "corrupt")])


@pytest.mark.parametrize(("suffix", "gap"), [(".seg", (1, 3, "corrupt")), (".tails", (4, 4, "corrupt"))])
def test_missing_file_is_reported(suffix: str, gap: tuple[int, int, str]) -> None:
    server = small_directory()
    disk = server.disk.crash("keep")
    [path] = [path for path in disk.files() if path.endswith(suffix)]
    disk.unlink(path)
    after = server.next(disk)
    assert gap in after.walk("f")[1]
    assert after.data("f")[-2:] == ['"five"', '"six"']
    found = after.walk("f")
    assert after.crash("lose").walk("f") == found


def test_directory_without_readable_snapshot_is_refused() -> None:
    server = small_directory()
    disk = server.disk.crash("keep")
    [path] = [path for path in disk.files() if path.endswith(".snap")]
    size = len(disk.contents(path))
    disk.flip(path, 8 * 40)
    disk.flip(path, 8 * (size // 2 + 40))
    with pytest.raises(Corrupt, match="restore the data directory from a backup"):
        server.next(disk)
