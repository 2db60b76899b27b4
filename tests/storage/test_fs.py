"""The contract of `Fs`, held against the operating system and the simulated disk alike."""

import array
import ctypes
import errno
import mmap
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulated.disk import SimDisk, SimFile
from topics.storage import mapped_file
from topics.storage.fs import File, Fs, LockHeld, NotAFile, ReadOnlyFs


@pytest.fixture(params=["real", "simulated"])
def fs(request: pytest.FixtureRequest) -> Fs:
    return Fs() if request.param == "real" else SimDisk()


@pytest.fixture
def root(fs: Fs, tmp_path: Path) -> str:
    fs.mkdir(str(tmp_path))
    return str(tmp_path)


@pytest.fixture
def file(fs: Fs, root: str) -> Iterator[File]:
    opened = fs.open(f"{root}/file", create=True)
    yield opened
    opened.close()


def put(fs: Fs, path: str, data: bytes) -> None:
    file = fs.open(path, create=True)
    file.pwrite(data, 0)
    file.close()


def get(fs: Fs, path: str) -> bytes:
    file = fs.open(path)
    data = file.pread(1 << 20, 0)
    file.close()
    return data


def test_what_is_written_is_read_back(file: File):
    file.pwrite(b"hello world", 0)
    file.pwrite(bytearray(b"W"), 6)
    file.pwrite(memoryview(b"!"), 11)
    assert file.pread(12, 0) == b"hello World!"
    assert file.size() == 12


def test_a_read_is_short_only_where_the_file_ends(file: File):
    file.pwrite(b"abc", 0)
    assert file.pread(10, 1) == b"bc"
    assert file.pread(10, 3) == b""
    assert file.pread(10, 99) == b""
    assert file.pread(0, 0) == b""


def test_a_gap_left_between_writes_reads_as_zeros(file: File):
    file.pwrite(b"x", 10_000)
    assert file.pread(20_000, 0) == bytes(10_000) + b"x"


def test_many_parts_are_written_as_one(file: File):
    parts = [b"%d," % number for number in range(5_000)]
    file.pwritev(parts, 3)
    assert file.pread(1 << 20, 3) == b"".join(parts)
    file.pwritev([], 0)
    file.pwritev([b"", b"ab", b""], 1)
    assert file.pread(3, 0) == b"\0ab"


def test_a_view_over_wide_items_is_written_byte_for_byte(file: File):
    column = array.array("Q", [1, 2, 3])
    file.pwrite(memoryview(column), 0)
    file.pwritev([memoryview(column), b"end"], 24)
    assert file.pread(99, 0) == column.tobytes() * 2 + b"end"


def test_bytes_in_the_cache_are_read_without_waiting(file: File):
    file.pwrite(b"abc" * 5_000, 0)
    assert file.try_pread(6, 3) == b"abcabc"
    assert file.try_pread(99, 14_997) == b"abc"
    assert file.try_pread(9, 20_000) == b""


def test_truncate_cuts_and_extends_with_zeros(file: File):
    file.pwrite(b"abcdef", 0)
    file.truncate(2)
    file.truncate(4)
    assert file.pread(9, 0) == b"ab\0\0"


def test_allocate_grows_the_file_with_zeros_and_never_shrinks_it(file: File):
    file.pwrite(b"abc", 0)
    file.allocate(10_000)
    assert file.pread(20_000, 0) == b"abc" + bytes(9_997)
    file.allocate(5)
    file.allocate(0)
    assert file.size() == 10_000


def test_syncs_return(fs: Fs, root: str, file: File):
    file.pwrite(b"abc", 0)
    file.datasync()
    file.pwrite(b"d", 3)
    file.sync()
    fs.sync_dir(root)
    assert file.pread(10, 0) == b"abcd"
    assert "file" in fs.listdir(root)


def test_opening_what_is_missing_or_a_directory_fails(fs: Fs, root: str):
    for write in (False, True):
        with pytest.raises(FileNotFoundError):
            fs.open(f"{root}/none", write=write)
        with pytest.raises(NotAFile, match="this is a directory"):
            fs.open(root, write=write)
    with pytest.raises(FileNotFoundError):
        fs.open(f"{root}/none/file", create=True)


def test_create_opens_a_file_that_exists_as_it_is(fs: Fs, root: str):
    put(fs, f"{root}/a", b"kept")
    fs.open(f"{root}/a", create=True).close()
    assert get(fs, f"{root}/a") == b"kept"


def test_a_handle_for_reading_does_not_write(fs: Fs, root: str):
    put(fs, f"{root}/a", b"kept")
    file = fs.open(f"{root}/a")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the code is checked below
        file.pwrite(b"x", 0)
    assert caught.value.errno == errno.EBADF
    file.close()


def test_a_closed_handle_is_of_no_use(file: File):
    file.close()
    file.close()
    for use in (lambda: file.pread(1, 0), lambda: file.pwrite(b"a", 0), file.sync, file.datasync, file.size):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the code is checked below
            use()
        assert caught.value.errno == errno.EBADF


def test_rename_replaces_its_target(fs: Fs, root: str):
    put(fs, f"{root}/a", b"new")
    put(fs, f"{root}/b", b"old")
    fs.rename(f"{root}/a", f"{root}/b")
    assert fs.listdir(root) == ["b"]
    assert get(fs, f"{root}/b") == b"new"
    with pytest.raises(FileNotFoundError):
        fs.rename(f"{root}/a", f"{root}/b")


def test_rename_refuses_to_mix_files_and_directories(fs: Fs, root: str):
    put(fs, f"{root}/a", b"")
    fs.mkdir(f"{root}/d/e")
    with pytest.raises(IsADirectoryError):
        fs.rename(f"{root}/a", f"{root}/d")
    with pytest.raises(NotADirectoryError):
        fs.rename(f"{root}/d", f"{root}/a")
    fs.mkdir(f"{root}/f")
    with pytest.raises(OSError, match="not empty"):
        fs.rename(f"{root}/f", f"{root}/d")
    fs.rename(f"{root}/d", f"{root}/f")
    assert fs.listdir(root) == ["a", "f"]


def test_an_unlinked_file_lives_on_in_its_handles(fs: Fs, root: str, file: File):
    file.pwrite(b"abc", 0)
    fs.unlink(f"{root}/file")
    assert not fs.exists(f"{root}/file")
    assert file.pread(3, 0) == b"abc"
    with pytest.raises(FileNotFoundError):
        fs.unlink(f"{root}/file")


@pytest.mark.parametrize(("real", "other"), [(Fs, SimDisk), (File, SimFile), (Fs, ReadOnlyFs)])
def test_stand_in_defines_every_method_of_the_original(real: type, other: type):
    names = {name for name, value in vars(real).items() if callable(value) and not name.startswith("_")}
    assert names <= {name for name in vars(other) if not name.startswith("_")}


def test_directories_are_made_with_their_parents_and_removed_when_empty(fs: Fs, root: str):
    fs.mkdir(f"{root}/a/b")
    fs.mkdir(f"{root}/a/b")
    put(fs, f"{root}/a/b/2", b"")
    put(fs, f"{root}/a/b/1", b"")
    assert fs.listdir(f"{root}/a/b") == ["1", "2"]
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(f"{root}/a/b")
    fs.unlink(f"{root}/a/b/1")
    fs.unlink(f"{root}/a/b/2")
    fs.rmdir(f"{root}/a/b")
    assert fs.listdir(f"{root}/a") == []
    with pytest.raises(FileNotFoundError):
        fs.listdir(f"{root}/a/b")
    with pytest.raises(FileNotFoundError):
        fs.sync_dir(f"{root}/a/b")


def test_a_file_is_no_directory(fs: Fs, root: str):
    put(fs, f"{root}/a", b"abc")
    for use in (fs.listdir, fs.rmdir, fs.sync_dir):
        with pytest.raises(NotADirectoryError):
            use(f"{root}/a")
    with pytest.raises(FileExistsError):
        fs.mkdir(f"{root}/a")
    with pytest.raises(NotADirectoryError):
        fs.mkdir(f"{root}/a/b")
    assert not fs.exists(f"{root}/a/b")
    assert fs.size(f"{root}/a") == 3


def test_the_boot_id_and_the_free_space_can_be_asked_for(fs: Fs, root: str):
    assert fs.boot_id() == fs.boot_id()
    assert fs.free_bytes(root) > 0


def test_a_lock_is_held_by_one_and_names_its_owner(fs: Fs, root: str):
    lock = fs.lock(f"{root}/LOCK")
    with pytest.raises(LockHeld) as caught:
        fs.lock(f"{root}/LOCK")
    assert caught.value.owner.startswith("pid ")
    lock.close()
    again = fs.lock(f"{root}/LOCK")
    lock.close()  # a second close does not touch the next owner's hold
    with pytest.raises(LockHeld):
        fs.lock(f"{root}/LOCK")
    again.close()


def test_a_lock_ends_with_its_process(tmp_path: Path):
    path = str(tmp_path / "LOCK")
    script = textwrap.dedent("""
        import sys
        from topics.storage.fs import Fs
        lock = Fs().lock(sys.argv[1])
        print("held", flush=True)
        sys.stdin.read()
    """)
    owner = subprocess.Popen([sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"held\n"
        with pytest.raises(LockHeld, match=f"pid {owner.pid} on .* since 20"):
            Fs().lock(path)
        owner.send_signal(signal.SIGKILL)
    Fs().lock(path).close()


def test_writes_that_the_kernel_cuts_short_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pwrite, pwritev = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, memoryview(data).cast("B")[:3], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: pwritev(fd, [memoryview(parts[0])[:1]], at))
    file = Fs().open(str(tmp_path / "a"), create=True)
    file.pwrite(b"0123456789", 0)
    file.pwritev([b"abc", b"", b"defgh"], 10)
    assert file.pread(99, 0) == b"0123456789abcdefgh"
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    with pytest.raises(OSError, match="takes no more"):
        file.pwrite(b"x", 0)
    file.close()


def refuse(code: int):
    def call(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (refuse(errno.EAGAIN), None),  # not in the cache
        (lambda *_: 2, None),  # only its beginning is
        (refuse(errno.EOPNOTSUPP), b"abcdef"),  # the file system does not support the flag: read and wait
    ],
)
def test_a_read_that_would_wait_gives_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer, expected):
    file = Fs().open(str(tmp_path / "a"), create=True)
    file.pwrite(b"abcdef", 0)
    monkeypatch.setattr(os, "preadv", answer)
    assert file.try_pread(6, 0) == expected
    file.close()


@pytest.fixture
def lender(tmp_path: Path) -> Iterator[File]:
    if mapped_file._kernel is None:
        pytest.skip("only Linux reports which pages are in memory")
    file = Fs().open(str(tmp_path / "lender"), create=True)
    file.pwrite(bytes(range(256)) * 256, 0)
    yield file
    file.close()


def test_what_the_kernel_has_in_memory_is_lent_where_it_lies(lender: File, monkeypatch: pytest.MonkeyPatch):
    text = lender.pread(1 << 16, 0)
    monkeypatch.setattr(os, "preadv", refuse(errno.EIO))
    for size, at in ((1, 0), (5000, 4095), (40_000, 17), (len(text), 0)):
        assert lender.lend(size, at) == text[at : at + size]
    assert lender.lend(2, len(text) - 1) is None
    kept = lender.lend(5000, 4095)
    lender.close()
    assert kept == text[4095:9095]


def test_what_is_not_in_memory_is_not_lent(lender: File, monkeypatch: pytest.MonkeyPatch):
    page = mmap.PAGESIZE

    def without_the_second_page(address: int, size: int, found: int) -> int:
        ctypes.memset(found, 1, size // page)
        ctypes.memset(found + 1, 0, 1)
        return 0

    monkeypatch.setattr(mapped_file._kernel, "mincore", without_the_second_page)
    assert [lender.lend(page, at * page) is None for at in range(4)] == [False, True, False, False]
    assert lender.lend(2, page - 1) is None
    assert lender.lend(1, page - 1) is not None


def test_what_was_asked_holds_for_a_moment(lender: File, monkeypatch: pytest.MonkeyPatch):
    clock, asked = [0.0], 0
    real = mapped_file._kernel.mincore

    def count(*question: int) -> int:
        nonlocal asked
        asked += 1
        return real(*question)

    monkeypatch.setattr(mapped_file, "monotonic", lambda: clock[0])
    monkeypatch.setattr(mapped_file._kernel, "mincore", count)
    for clock[0] in (100.0, 100.2, 100.49, 100.51, 100.9, 101.02):
        assert lender.lend(1, 0) is not None
    assert asked == 3


def test_a_file_cut_short_fails_the_call_that_comes_upon_it_and_nothing_else(lender: File):
    lent = lender.lend(1 << 15, 1 << 15)
    assert lent is not None
    os.truncate(lender.path, 100)
    end, other = socket.socketpair()
    with end, other, pytest.raises(OSError, match="Bad address"):
        end.sendmsg([lent])
    assert Fs().open(lender.path).lend(1 << 15, 1 << 15) is None
    assert lender.try_pread(1 << 15, 0) == bytes(range(100))


def test_a_failed_reservation_raises_and_leaves_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = Fs().open(str(tmp_path / "a"), create=True)
    file.pwrite(b"abc", 0)

    def run_out(fd: int, at: int, size: int) -> None:
        os.ftruncate(fd, 4096)
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", run_out)
    with pytest.raises(OSError, match="full"):
        file.allocate(1 << 20)
    assert file.size() == 3
    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.EOPNOTSUPP))
    file.allocate(1 << 20)
    assert file.size() == 3
    file.close()


def test_a_lent_part_of_a_closed_file_keeps_no_descriptor(tmp_path: Path):
    path = tmp_path / "lender"
    path.write_bytes(b"x" * (1 << 16))
    before = set(os.listdir("/proc/self/fd"))
    file = Fs().open(str(path))
    kept = file.lend(1 << 16, 0)
    file.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert kept is None or bytes(kept) == b"x" * (1 << 16)
    assert kept is None or kept.readonly
    del kept
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_named_pipe_is_refused_without_waiting_for_its_writer(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        Fs().open(str(path))
