"""The simulated disk: failing calls, deaths of the process, and a full disk."""

import errno

import pytest

from tests.simulated.disk import FOREVER, MUTATING, Crashed, SimDisk, SimFile
from tests.simulated.disks import PAGE, POWER_LOSSES, durable_file
from topics.storage.fs import LockHeld

# Faults


def test_every_call_is_counted_and_named():
    disk = SimDisk()
    disk.mkdir("/d")
    file = disk.open("/d/a", create=True)
    file.pwritev([b"a", b"b"], 0)
    file.datasync()
    file.close()
    assert disk.calls == [
        (0, "mkdir", "/d"),
        (1, "open", "/d/a"),
        (2, "pwritev", "/d/a"),
        (3, "datasync", "/d/a"),
        (4, "close", "/d/a"),
    ]
    assert [call.number for call in disk.calls if call.op in MUTATING] == [0, 1, 2, 3]


def test_fault_matches_number_operation_and_path():
    disk = SimDisk()
    disk.fail(at=2)
    disk.fail(op="pwrite", path="*.wal", error=errno.ENOSPC, times=2)
    log = disk.open("/1.wal", create=True)
    other = disk.open("/2", create=True)
    with pytest.raises(OSError, match="Input/output error"):
        other.pwrite(b"x", 0)
    other.pwrite(b"x", 0)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            log.pwrite(b"x", 0)
    log.pwrite(b"y", 0)
    assert log.pread(9, 0) == b"y"


def test_fault_can_last_until_it_is_healed():
    disk = SimDisk()
    file = durable_file(disk)
    fault = disk.fail(op="pwrite", times=FOREVER)
    for _ in range(5):
        with pytest.raises(OSError, match="Input/output"):
            file.pwrite(b"x", 0)
    fault.times = 0
    file.pwrite(b"x", 0)
    disk.fail(op="pwrite", times=FOREVER)
    disk.heal()
    file.pwrite(b"x", 0)


def test_failing_write_may_leave_a_prefix():
    seen = set()
    for seed in range(60):
        disk = SimDisk(seed)
        file = durable_file(disk)
        disk.fail(op="pwritev", error=errno.ENOSPC, short=True)
        with pytest.raises(OSError, match="No space"):
            file.pwritev([b"ab", b"cd"], 0)
        seen.add(disk.contents("/a"))
    assert seen == {b"", b"a", b"ab", b"abc"}


def test_failed_change_of_names_changes_nothing():
    disk = SimDisk()
    durable_file(disk)
    for op, call in {
        "rename": lambda: disk.rename("/a", "/b"),
        "unlink": lambda: disk.unlink("/a"),
        "mkdir": lambda: disk.mkdir("/d"),
        "open": lambda: disk.open("/c", create=True),
    }.items():
        disk.fail(op=op)
        with pytest.raises(OSError, match="Input/output"):
            call()
    assert disk.listdir("/") == ["a"]


def test_failed_sync_drops_bytes_but_keeps_them_readable():
    disk = SimDisk()
    file = durable_file(disk, data=b"....")
    file.pwrite(b"AB", 0)
    disk.fail(op="datasync")
    with pytest.raises(OSError, match="Input/output"):
        file.datasync()
    file.pwrite(b"C", 2)
    file.pwrite(b"EF", 4)
    file.datasync()
    assert file.pread(9, 0) == b"ABC.EF"
    for mode in POWER_LOSSES:
        assert disk.crash(mode).contents("/a") == b"..C.EF"
    assert disk.crash("keep").contents("/a") == b"ABC.EF"


def test_failed_sync_can_revert_bytes():
    disk = SimDisk(failed_sync_reverts=True)
    file = durable_file(disk, data=b"....")
    file.pwrite(b"AB", 3)
    disk.fail(op="datasync")
    with pytest.raises(OSError, match="Input/output"):
        file.datasync()
    assert file.pread(9, 0) == b"....\0"
    file.pwrite(b"C", 4)
    file.datasync()
    assert disk.crash("lose").contents("/a") == b"....C"


def test_rewrite_repairs_a_lost_growing_write():
    disk = SimDisk()
    file = durable_file(disk, data=b"..")
    file.pwrite(b"AB", 2)
    disk.fail(op="sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    assert disk.clone().crash("lose").contents("/a") == b"..\0\0"
    file.pwrite(b"AB", 2)
    file.sync()
    assert disk.crash("lose").contents("/a") == b"..AB"


def test_failed_sync_can_keep_bytes():
    disk = SimDisk(failed_sync_drops=False)
    file = durable_file(disk, data=b"..")
    file.pwrite(b"AB", 0)
    disk.fail(op="sync")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    assert disk.clone().crash("lose").contents("/a") == b".."
    file.sync()
    assert disk.crash("lose").contents("/a") == b"AB"


def test_failed_directory_sync_can_be_repeated():
    disk = SimDisk()
    disk.open("/a", create=True)
    disk.fail(op="sync_dir")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_dir("/")
    assert disk.clone().crash("lose").files() == []
    disk.sync_dir("/")
    assert disk.crash("lose").files() == ["/a"]


# Crashes of the process


@pytest.mark.parametrize(("when", "left"), [("before", b"old"), ("after", b"new")])
def test_process_dies_before_or_after_a_call(when, left: bytes):
    disk = SimDisk()
    file = durable_file(disk, data=b"old")
    disk.crash_at(len(disk.calls), when=when)
    with pytest.raises(Crashed):
        file.pwrite(b"new", 0)
    assert disk.crash("keep").contents("/a") == left


def test_death_during_a_write_leaves_a_prefix():
    disk = SimDisk(seed=3)
    file = durable_file(disk)
    disk.crash_at(len(disk.calls), when="during")
    with pytest.raises(Crashed):
        file.pwrite(b"x" * 100, 0)
    assert 0 < len(disk.crash("keep").contents("/a")) < 100


def test_death_after_a_sync_keeps_the_sync():
    disk = SimDisk()
    file = durable_file(disk)
    file.pwrite(b"abc", 0)
    disk.crash_at(len(disk.calls), when="after")
    with pytest.raises(Crashed):
        file.sync()
    assert disk.crash("lose").contents("/a") == b"abc"


def test_death_after_a_failed_call():
    disk = SimDisk()
    disk.crash_at(0, when="after")
    with pytest.raises(Crashed):
        disk.unlink("/none")


def test_dead_process_can_only_close_files():
    disk = SimDisk()
    file = durable_file(disk)
    lock = disk.lock("/LOCK")
    disk.crash("lose")
    calls = len(disk.calls)
    for use in (lambda: file.pread(1, 0), file.sync, lambda: disk.exists("/a"), lambda: disk.open("/a"), disk.boot_id):
        with pytest.raises(Crashed):
            use()
    file.close()
    lock.close()
    assert len(disk.calls) == calls


def test_error_handlers_do_not_catch_a_crash():
    assert not issubclass(Crashed, Exception)


def test_crash_releases_the_lock():
    disk = SimDisk()
    disk.lock("/LOCK")
    with pytest.raises(LockHeld):
        disk.lock("/LOCK")
    for mode in ("keep", "lose"):
        after = disk.crash(mode)
        after.lock("/LOCK")
        with pytest.raises(LockHeld):
            after.lock("/LOCK")


# Space


def full_at(pages: int) -> tuple[SimDisk, SimFile]:
    disk = SimDisk(capacity_bytes=pages * PAGE)
    return disk, disk.open("/a", create=True)


def test_write_past_the_capacity_writes_what_fits():
    disk, file = full_at(2)
    with pytest.raises(OSError, match="No space"):
        file.pwrite(b"x" * 10_000, 100)
    assert file.size() == 2 * PAGE
    assert disk.free_bytes("/") == 0
    file.pwrite(b"y" * PAGE, 0)


def test_reserved_range_is_writable_on_a_full_disk():
    disk, file = full_at(4)
    file.allocate(2 * PAGE)
    other = disk.open("/b", create=True)
    other.truncate(2 * PAGE)
    disk.open("/c", create=True).pwrite(b"x" * 2 * PAGE, 0)
    assert disk.free_bytes("/") == 0
    file.pwrite(b"x" * 2 * PAGE, 0)
    with pytest.raises(OSError, match="No space"):
        other.pwrite(b"x", 0)


def test_reservation_is_granted_whole_or_not_at_all():
    disk, file = full_at(4)
    with pytest.raises(OSError, match="No space"):
        file.allocate(5 * PAGE)
    assert (file.size(), disk.used_bytes()) == (0, 0)
    file.allocate(4 * PAGE)


def test_space_comes_back_with_truncate_and_unlink():
    disk, file = full_at(4)
    file.pwrite(b"x" * 4 * PAGE, 0)
    file.truncate(PAGE)
    assert disk.free_bytes("/") == 3 * PAGE
    disk.unlink("/a")
    assert disk.free_bytes("/") == 3 * PAGE  # still open
    file.close()
    assert disk.free_bytes("/") == 4 * PAGE
    disk.capacity_bytes = 10 * PAGE
    assert disk.free_bytes("/") == 10 * PAGE


def test_overwrite_needs_no_space_on_a_shrunk_disk():
    disk, file = full_at(4)
    file.allocate(3 * PAGE)
    disk.capacity_bytes = PAGE
    file.pwrite(b"x" * 3 * PAGE, 0)
    disk.crash_at(len(disk.calls), when="during")
    with pytest.raises(Crashed):
        file.pwrite(b"y" * 9 * PAGE, 3 * PAGE)
    assert disk.crash("keep").contents("/a") == b"x" * 3 * PAGE
