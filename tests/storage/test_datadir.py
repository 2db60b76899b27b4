import errno
from pathlib import Path

import pytest

from tests.simulated.disk import Crashed, SimDisk
from topics.storage.datadir import DataDir, DataDirError
from topics.storage.fs import Fs

ROOT = "/var/topics/data"


@pytest.fixture(params=["real", "simulated"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> DataDir:
    return DataDir(Fs(), str(tmp_path / "a/b")) if request.param == "real" else DataDir(SimDisk(), ROOT)


def put(fs: Fs, path: str, content: bytes = b"x") -> None:
    file = fs.open(path, create=True)
    file.truncate(0)
    file.pwrite(content, 0)
    file.close()


def test_opening_creates_the_layout(data: DataDir):
    data.open()
    assert data.fs.listdir(data.root) == ["FORMAT", "LOCK", "ledger", "segments", "snapshots", "wal"]
    assert (data.wal_numbers(), data.snapshot_numbers(), data.tails_numbers(), data.topic_ids()) == ([], [], [], [])
    data.close()
    data.open()
    data.close()


def test_names_are_numbers_of_twenty_digits():
    data = DataDir(SimDisk(), "/d/")
    assert data.wal_path(7) == "/d/wal/00000000000000000007.wal"
    assert data.segment_path(12, 1) == "/d/segments/12/00000000000000000001.seg"
    assert data.snapshot_path(2**64 - 1) == "/d/snapshots/18446744073709551615.snap"
    assert data.tails_path(3) == "/d/snapshots/00000000000000000003.tails"


@pytest.mark.parametrize("bad", ["../../etc", "12", 1.5, None])
def test_only_a_number_names_a_topic_directory(bad: object):
    with pytest.raises((TypeError, ValueError)):
        DataDir(SimDisk(), "/d").segment_path(bad, 1)  # type: ignore[arg-type]


def test_listings_are_sorted_and_pass_over_what_is_not_ours(data: DataDir):
    data.open()
    for number in (30, 4, 2**64 - 1):
        put(data.fs, data.wal_path(number))
        put(data.fs, data.snapshot_path(number))
    put(data.fs, data.tails_path(4))
    for topic_id in (100, 7):
        data.make_topic_dir(topic_id)
    for seq in (1_000, 1):
        put(data.fs, data.segment_path(7, seq))
    for stray in ("5.wal", "٠" * 20 + ".wal", "9" * 20 + ".wal", "00000000000000000001.wal.bak"):
        put(data.fs, f"{data.wal_dir}/{stray}")
    data.fs.mkdir(f"{data.segments_dir}/007")
    data.fs.mkdir(f"{data.segments_dir}/mail")

    assert data.wal_numbers() == [4, 30, 2**64 - 1]
    assert data.snapshot_numbers() == [4, 30, 2**64 - 1]
    assert data.tails_numbers() == [4]
    assert data.topic_ids() == [7, 100]
    assert data.segment_paths(7) == [data.segment_path(7, 1), data.segment_path(7, 1_000)]
    assert data.segment_paths(100) == []
    assert data.segment_paths(8) == []
    data.close()


def test_a_second_process_is_kept_out_and_told_by_whom(data: DataDir):
    data.open()
    second = DataDir(data.fs, data.root)
    with pytest.raises(
        DataDirError, match=r"is held by pid \d+ on \S+ since .*; stop it or choose another TOPICS_DATA"
    ):
        second.open()
    data.close()
    second.open()
    second.close()


def test_an_unknown_format_is_refused_and_the_lock_given_back(data: DataDir):
    data.open()
    data.close()
    put(data.fs, f"{data.root}/FORMAT", b"topics-data 3\n")
    put(data.fs, f"{data.root}/VERSION", b"9.8.7\n")
    with pytest.raises(DataDirError, match=r"by topics 9\.8\.7, .* has format 3, .*; start the version that"):
        data.open()
    put(data.fs, f"{data.root}/FORMAT", b"topics-data")
    with pytest.raises(DataDirError, match="damaged FORMAT file"):
        data.open()
    put(data.fs, f"{data.root}/FORMAT", b"topics-data 1\n")
    data.open()
    data.close()


def test_a_directory_with_other_things_in_it_is_left_untouched(data: DataDir):
    data.fs.mkdir(data.root)
    put(data.fs, f"{data.root}/thesis.tmp")
    with pytest.raises(DataDirError, match=r"holds other files \(thesis.tmp\)"):
        data.open()
    assert data.fs.listdir(data.root) == ["thesis.tmp"]


def test_an_empty_volume_is_taken(data: DataDir):
    data.fs.mkdir(f"{data.root}/lost+found")
    put(data.fs, f"{data.root}/.keep")
    data.open()
    assert {"FORMAT", "LOCK", "wal", ".keep", "lost+found"} <= set(data.fs.listdir(data.root))
    data.close()


def test_data_without_a_format_file_is_refused(data: DataDir):
    data.open()
    put(data.fs, data.wal_path(1))
    data.close()
    data.fs.unlink(f"{data.root}/FORMAT")
    with pytest.raises(DataDirError, match="lost its FORMAT file"):
        data.open()


def test_temporary_files_are_swept_at_open(data: DataDir):
    data.open()
    data.make_topic_dir(7)
    finals = [data.wal_path(1), data.snapshot_path(1), data.tails_path(1), data.segment_path(7, 1)]
    for path in finals:
        put(data.fs, path)
        put(data.fs, path + ".tmp")
    put(data.fs, f"{data.root}/notes.tmp")
    data.close()
    data.open()
    assert [data.fs.exists(path) for path in finals] == [True] * 4
    assert [data.fs.exists(path + ".tmp") for path in finals] == [False] * 4
    assert data.fs.exists(f"{data.root}/notes.tmp")
    data.close()


def test_a_topic_directory_goes_with_all_in_it(data: DataDir):
    data.open()
    data.make_topic_dir(7)
    put(data.fs, data.segment_path(7, 1))
    data.remove_topic_dir(7)
    data.remove_topic_dir(7)
    assert data.topic_ids() == []
    data.close()


def test_a_disk_that_fails_is_told_in_words_and_the_lock_given_back():
    disk = SimDisk()
    disk.fail(op="sync_dir", error=errno.EIO)
    data = DataDir(disk, ROOT)
    with pytest.raises(
        DataDirError, match=r"cannot be used: Input/output error \(/var/topics\); check its permissions"
    ):
        data.open()
    data.open()


def test_a_directory_that_may_not_be_written_is_told_in_words():
    disk = SimDisk()
    disk.fail(op="mkdir", error=errno.EACCES)
    with pytest.raises(DataDirError, match="Permission denied"):
        DataDir(disk, ROOT).open()


def test_a_published_file_outlives_a_power_loss():
    disk = SimDisk()
    data = DataDir(disk, ROOT)
    data.open()
    data.make_topic_dir(7)
    path = data.segment_path(7, 1)
    file = disk.open(path + ".tmp", create=True)
    file.pwrite(b"whole", 0)
    file.sync()
    data.publish(path)
    assert disk.crash("lose").contents(path) == b"whole"


@pytest.mark.parametrize("mode", ["lose", "tear", "reorder", "zero", "keep"])
def test_a_crash_at_any_call_of_the_first_open_leaves_a_directory_that_opens(mode):
    calls = SimDisk()
    DataDir(calls, ROOT).open()
    for number in range(len(calls.calls)):
        for when in ("before", "during", "after"):
            disk = SimDisk(seed=number)
            disk.crash_at(number, when=when)
            with pytest.raises(Crashed):
                DataDir(disk, ROOT).open()
            after = disk.crash(mode)
            DataDir(after, ROOT).open()
            assert after.crash("lose").contents(f"{ROOT}/FORMAT") == b"topics-data 2\n"


def test_names_that_a_killed_process_left_unsynced_are_durable_once_opened():
    disk = SimDisk()
    data = DataDir(disk, ROOT)
    data.open()
    disk.mkdir(data.topic_dir(7))
    for path in (data.wal_path(1), data.segment_path(7, 1), data.snapshot_path(1)):
        file = disk.open(path, create=True)
        file.pwrite(b"x", 0)
        file.sync()
    killed = disk.crash("keep")
    reopened = DataDir(killed, ROOT)
    reopened.open()
    after = DataDir(killed.crash("lose"), ROOT)
    assert (after.wal_numbers(), after.segment_paths(7), after.snapshot_numbers()) == (
        [1],
        [after.segment_path(7, 1)],
        [1],
    )
