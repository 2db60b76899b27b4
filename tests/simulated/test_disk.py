"""The simulated disk: which bytes and names are durable, and which a power loss may take."""

import threading
from random import Random

import pytest

from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.disks import PAGE, POWER_LOSSES, durable_file, outcomes

# Bytes


@pytest.mark.parametrize("sync", ["sync", "datasync"])
@pytest.mark.parametrize("mode", POWER_LOSSES)
def test_synced_bytes_survive_every_power_loss(mode, sync: str):
    disk = SimDisk()
    file = durable_file(disk)
    file.pwrite(b"abc" * 3_000, 0)
    file.allocate(20_000)
    getattr(file, sync)()
    assert outcomes(disk, mode, tries=20) == {b"abc" * 3_000 + bytes(11_000)}


def test_lose_drops_unsynced_bytes():
    disk = SimDisk()
    file = durable_file(disk, data=b"old")
    file.pwrite(b"NEW and longer", 0)
    assert file.pread(99, 0) == b"NEW and longer"
    assert disk.crash("lose").contents("/a") == b"old"


def test_unsynced_truncate_is_undone_by_lose():
    disk = SimDisk()
    durable_file(disk, data=b"abcdef").truncate(2)
    assert disk.crash("lose").contents("/a") == b"abcdef"


def test_tear_keeps_a_prefix_and_truncates_the_last_write():
    disk = SimDisk()
    file = durable_file(disk, data=b"..")
    file.pwrite(b"abc", 2)
    file.pwrite(b"XY", 0)
    assert outcomes(disk, "tear") == {b"..", b"..a", b"..ab", b"..abc", b"X.abc", b"XYabc"}


def test_tear_also_cuts_between_sectors():
    disk = SimDisk()
    durable_file(disk, data=b"-" * 500).pwrite(b"x" * 4_000, 500)
    sizes = [len(data) for data in outcomes(disk, "tear")]
    assert {size for size in sizes if size % 512 == 0} >= {512, 1024, 2048, 3072}
    assert sum(size % 512 != 0 for size in sizes) > 50


def test_reorder_keeps_any_set_of_sectors():
    disk = SimDisk()
    file = durable_file(disk, data=bytes(4 * 512))
    for sector in range(4):
        file.pwrite(b"%d" % sector * 512, sector * 512)
    seen = {bytes(data[::512]).replace(b"\0", b"-") for data in outcomes(disk, "reorder")}
    assert len(seen) == 16
    assert {b"----", b"---3", b"0-2-", b"0123"} <= seen


def test_reorder_keeps_earlier_writes_of_a_sector():
    disk = SimDisk()
    file = durable_file(disk, data=b"----")
    file.pwrite(b"A", 0)
    file.pwrite(b"B", 1)
    assert outcomes(disk, "reorder") == {b"----", b"A---", b"AB--"}


def test_reorder_keeps_size_and_bytes_independently():
    disk = SimDisk()
    durable_file(disk, data=b"ab").pwrite(b"c" * 600, 2)
    seen = outcomes(disk, "reorder")
    assert seen == {
        b"ab",
        b"ab" + bytes(600),
        b"ab" + b"c" * 510 + bytes(90),
        b"ab" + bytes(510) + b"c" * 90,
        b"ab" + b"c" * 600,
    }


def test_zero_keeps_the_size_and_not_the_bytes():
    disk = SimDisk()
    file = durable_file(disk, data=b"abcdef")
    file.pwrite(b"XYZ", 4)
    assert disk.crash("zero").contents("/a") == b"abcdef\0"
    file = durable_file(disk := SimDisk(), data=b"abcdef")
    file.truncate(3)
    file.pwrite(b"XYZ", 3)
    assert disk.crash("zero").contents("/a") == b"abc\0\0\0"


def test_keep_is_a_killed_process_its_writes_still_pending():
    disk = SimDisk()
    file = durable_file(disk, data=b"old")
    file.pwrite(b"new", 0)
    disk.open("/b", create=True)
    killed = disk.crash("keep")
    assert killed.files() == ["/a", "/b"]
    assert killed.contents("/a") == b"new"
    again = killed.crash("lose")
    assert again.files() == ["/a"]
    assert again.contents("/a") == b"old"


@pytest.mark.parametrize("mode", POWER_LOSSES)
def test_boot_id_changes_with_a_power_loss_only(mode):
    disk = SimDisk()
    before = disk.boot_id()
    assert disk.crash("keep").boot_id() == before
    assert disk.crash(mode).boot_id() != before
    assert disk.crash(mode).crash(mode).boot_id() not in (before, disk.crash(mode).boot_id())


def test_allocated_file_reads_zeros_and_copies_cheaply():
    disk = SimDisk()
    file = durable_file(disk)
    file.allocate(1 << 30)
    file.sync()
    file.pwrite(b"x", 1 << 29)
    after = disk.crash("lose").open("/a")
    assert after.size() == 1 << 30
    assert after.pread(3, 1 << 29) == b"\0\0\0"


# Names


def test_new_file_is_durable_only_after_directory_sync():
    disk = SimDisk()
    file = disk.open("/a", create=True)
    file.pwrite(b"abc", 0)
    file.sync()
    assert disk.clone().crash("lose").files() == []
    disk.sync_dir("/")
    assert disk.clone().crash("lose").contents("/a") == b"abc"


def test_directory_needs_its_parent_synced():
    disk = SimDisk()
    disk.mkdir("/d/e")
    durable_file(disk, "/d/e/a")
    assert disk.clone().crash("lose").listdir("/") == []
    disk.sync_dir("/d")
    assert disk.clone().crash("lose").listdir("/") == []
    disk.sync_dir("/")
    assert disk.clone().crash("lose").files() == ["/d/e/a"]


def test_rename_is_undone_unless_the_directory_was_synced():
    disk = SimDisk()
    durable_file(disk, "/a", b"old")
    durable_file(disk, "/a.tmp", b"new")
    disk.rename("/a.tmp", "/a")
    undone = disk.crash("lose")
    assert (undone.contents("/a"), undone.contents("/a.tmp")) == (b"old", b"new")
    disk = disk.crash("keep")
    disk.sync_dir("/")
    done = disk.crash("lose")
    assert done.files() == ["/a"]
    assert done.contents("/a") == b"new"


@pytest.mark.parametrize("mode", ["tear", "reorder"])
def test_rename_is_old_or_new_never_both_nor_none(mode):
    disk = SimDisk()
    durable_file(disk, "/a", b"old")
    durable_file(disk, "/a.tmp", b"new")
    disk.rename("/a.tmp", "/a")
    seen = set()
    for seed in range(40):
        after = disk.crash(mode, Random(seed))
        seen.add(tuple((path, after.contents(path)) for path in after.files()))
    assert seen == {(("/a", b"old"), ("/a.tmp", b"new")), (("/a", b"new"),)}


def test_rename_between_directories_is_one_change():
    disk = SimDisk()
    for directory in ("/d", "/e"):
        disk.mkdir(directory)
    disk.sync_dir("/")
    disk.open("/d/a", create=True)
    disk.rename("/d/a", "/e/a")
    for seed in range(20):
        assert disk.crash("reorder", Random(seed)).files() in ([], ["/d/a"], ["/e/a"])
    for synced in ("/d", "/e"):
        one = disk.crash("keep")
        one.sync_dir(synced)
        assert one.crash("lose").files() == ["/e/a"]


def test_name_may_survive_without_the_bytes():
    disk = SimDisk()
    disk.open("/a", create=True).pwrite(b"abc", 0)
    assert disk.crash("zero").contents("/a") == b"\0\0\0"


def test_unlink_is_undone_unless_the_directory_was_synced():
    disk = SimDisk()
    durable_file(disk, data=b"abc")
    disk.unlink("/a")
    assert disk.crash("lose").contents("/a") == b"abc"
    disk = disk.crash("keep")
    disk.sync_dir("/")
    assert disk.crash("lose").files() == []


def test_reorder_keeps_any_set_of_name_changes():
    disk = SimDisk()
    for name in "abc":
        disk.open(f"/{name}", create=True)
    seen = {tuple(disk.crash("reorder", Random(seed)).files()) for seed in range(100)}
    assert len(seen) == 8
    torn = {tuple(disk.crash("tear", Random(seed)).files()) for seed in range(100)}
    assert torn == {(), ("/a",), ("/a", "/b"), ("/a", "/b", "/c")}


def test_unreachable_files_are_removed():
    disk = SimDisk()
    for _ in range(100):
        disk.open("/a.tmp", create=True).close()
        disk.rename("/a.tmp", "/a")
        disk.sync_dir("/")
    assert len(disk._names.nodes) == 2


# The rest


def test_cold_disk_answers_no_read_at_once():
    disk = SimDisk()
    file = durable_file(disk, data=b"abc")
    disk.cold = True
    assert file.try_pread(3, 0) is None
    assert file.pread(3, 0) == b"abc"


def test_flipped_bit_stays_flipped_after_a_crash():
    disk = SimDisk()
    durable_file(disk, data=b"\0\0\0")
    disk.flip("/a", 9)
    assert disk.contents("/a") == b"\0\2\0"
    assert disk.crash("lose").contents("/a") == b"\0\2\0"


def test_clone_is_independent_of_its_origin():
    disk = SimDisk()
    file = durable_file(disk, data=b"abc")
    file.pwrite(b"X", 0)
    twin = disk.clone()
    file.pwrite(b"Y", 0)
    file.sync()
    disk.unlink("/a")
    assert twin.contents("/a") == b"Xbc"
    twin.open("/b", create=True)
    assert twin.crash("lose").contents("/a") == b"abc"
    assert disk.files() == []
    assert disk.calls[:5] == twin.calls[:5]


def test_same_seed_gives_the_same_disk():
    def run(seed: int) -> list[bytes]:
        disk = SimDisk(seed)
        file = durable_file(disk)
        disk.fail(op="pwrite", short=True)
        with pytest.raises(OSError, match="Input"):
            file.pwrite(b"abcdefgh" * 100, 0)
        for at in range(0, 9_000, 300):
            file.pwrite(b"%d" % at, at)
        return [disk.crash(mode).contents("/a") for mode in ("tear", "reorder")]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_random_histories_read_back_like_plain_bytes():
    rng = Random(5)
    disk = SimDisk()
    file = durable_file(disk)
    plain = bytearray()
    for _ in range(600):
        at, size = rng.randrange(20_000), rng.choice([1, 100, PAGE, 9_000])
        match rng.randrange(5):
            case 0:
                file.truncate(at)
                plain = plain[:at].ljust(at, b"\0")
            case 1:
                file.sync()
                assert disk.clone().crash("lose").contents("/a") == plain
            case _:
                data = rng.randbytes(size)
                file.pwrite(data, at)
                plain = plain.ljust(at, b"\0")
                plain[at : at + size] = data
        assert file.pread(size, at) == plain[at : at + size]
    assert disk.contents("/a") == plain


def test_threads_may_share_a_disk():
    disk = SimDisk()
    file = durable_file(disk)

    def write(number: int) -> None:
        for at in range(200):
            file.pwrite(bytes([number]), at * 4 + number)
            file.datasync()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert disk.crash("lose").contents("/a") == bytes(range(4)) * 200


def test_simulated_time_passes_only_on_advance():
    clock = SimClock(ms=1_000)
    clock.advance(ms=5)
    assert (clock.now_ms(), clock.monotonic_ns()) == (1_005, 5_000_000)
    clock.set(ms=10)
    assert (clock.now_ms(), clock.monotonic_ns()) == (10, 5_000_000)
