"""The file system. All stored bytes go through an `Fs`, so tests can replace it by a simulated disk.

The contract is the part of POSIX that durability needs:

* Bytes written are durable once `datasync` or `sync` of their file has returned, and not before.
* A name (created, renamed, linked or removed) is durable once `sync_dir` of its directory has returned, whether or
  not the file's bytes are synced. A rename is atomic: after a crash the old or the new state is there, never a mixture.
* A write that raises may have left any prefix of its bytes in the file. The caller truncates or overwrites it.
* After a failed sync the state of the bytes written since the last successful sync is unknown, and a later successful
  sync does not change that: they may be readable from the cache and never reach the disk, or read as before the write.
  The caller writes them again.

`SimDisk` of the tests loses everything that this contract allows it to lose.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any, NoReturn

import numpy as np

from topics.storage.mapped_file import Mapped

Buffer = bytes | bytearray | memoryview

_PARTS_MAX = 1024  # IOV_MAX of Linux and macOS: a call with more parts fails with EINVAL
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS})
# A closed descriptor: the kernel never returns this number, and every call on it fails with EBADF. For -1, some
# functions raise ValueError.
_CLOSED = (1 << 31) - 1
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_KIND_OF_ERROR = {errno.EISDIR: "a directory", errno.ELOOP: "a loop of symbolic links", errno.ENXIO: "a socket"}
_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


class LockHeld(Exception):
    """Another process holds the lock. `owner` is its description of itself, "" if it has not written one yet."""

    def __init__(self, owner: str) -> None:
        super().__init__(f"held by {owner or 'another process'}")
        self.owner = owner


class NotAFile(FileNotFoundError):
    """The name belongs to something else: a directory, a device, a broken link. There is no file of this name."""

    def __init__(self, kind: str, path: str) -> None:
        super().__init__(errno.EINVAL, f"this is {kind}, not a regular file", path)


def absence(error: OSError) -> str:
    """Return why a file cannot be read."""
    if isinstance(error, NotAFile):
        return str(error.strerror)
    return (
        "the file is missing" if isinstance(error, FileNotFoundError) else f"the file cannot be read: {error.strerror}"
    )


def next_step(error: OSError) -> str:
    """Return what an operator can do about a file that cannot be used."""
    if isinstance(error, NotAFile) or error.errno in _KIND_OF_ERROR:
        return "move it away, and put the file back from a backup"
    if isinstance(error, FileNotFoundError):
        return "put the file back from a backup"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free space on the disk"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "correct the permissions: the user of this process needs access"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of open files (`ulimit -n`)"
    return "check its permissions and the disk"


def read_whole(fs: Fs, path: str) -> bytes:
    """Return all bytes of a file. An error names it."""
    with closing(fs.open(path)) as file:
        try:
            return file.pread(file.size(), 0)
        except OSError as error:
            error.filename = path
            raise


def reader_of(data: bytes) -> Callable[[int, int], bytes]:
    """Return what reads bytes in memory as `File.pread` reads a file."""
    return lambda size, at: data[at : at + size]


class Fs:
    """Open, rename, list and remove files, and make names durable.

    Without `maps`, `File.lend` returns None: TLS reads the bytes in the process.
    """

    def __init__(self, *, maps: bool = True) -> None:
        self._maps = maps

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open a regular file. `create` implies `write` and accepts a file that exists. Raise `NotAFile`."""
        flags = os.O_RDWR if write or create else os.O_RDONLY
        flags |= os.O_NONBLOCK  # without it, the kernel waits for a program that writes into a named pipe
        try:
            fd = os.open(path, flags | (os.O_CREAT if create else 0) | os.O_CLOEXEC, 0o640)
        except OSError as error:
            if error.errno in _KIND_OF_ERROR:
                raise NotAFile(_KIND_OF_ERROR[error.errno], path) from None
            if error.errno == errno.ENOENT and os.path.islink(path):
                raise NotAFile("a link to a missing file", path) from None
            raise
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):  # the kernel opens a directory for reading, and a device, without an error
            os.close(fd)
            raise NotAFile(_KINDS.get(stat.S_IFMT(mode), "something else"), path)
        return File(fd, path, maps=self._maps)

    def rename(self, src: str, dst: str) -> None:
        """Rename `src` to `dst` atomically. Replace a file that has this name."""
        os.rename(src, dst)

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except OSError as error:
            if os.path.isdir(path):  # macOS raises EPERM
                raise NotAFile("a directory", path) from error
            raise

    def mkdir(self, path: str) -> None:
        """Create the directory and its parents, if they do not exist."""
        os.makedirs(path, mode=0o750, exist_ok=True)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def sync_dir(self, path: str) -> None:
        """Make the names in this directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _full_sync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: this file system cannot sync a directory
                raise
        finally:
            os.close(fd)

    def lock(self, path: str) -> Lock:
        """Take the lock without waiting. Raise `LockHeld` if another process has it."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        lock = Lock(fd)
        with suppress(OSError):  # the text only helps operators: a full disk must not prevent the start
            owner = f"pid {os.getpid()} on {socket.gethostname()} since {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            os.ftruncate(fd, 0)
            os.pwrite(fd, owner.encode(), 0)
        return lock

    def lock_shared(self, path: str) -> Lock:
        """Take an existing lock for reading: it excludes owners and admits other readers. The file does not change."""
        # Without O_NONBLOCK, a named pipe would wait for its writer.
        return Lock(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), shared=True)

    def boot_id(self) -> str:
        """Return an id that changes with every start of the machine; "" if the system has none.

        The same id as before means that no written byte of an ended process is lost, synced or not.
        """
        try:
            with open(_BOOT_ID_PATH, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def free_bytes(self, path: str) -> int:
        """Return the space that this process may still use on the file system of `path`."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize


def _of_inner(name: str) -> Any:
    """Return a method that calls the method `name` of `inner`."""
    return lambda self, *args: getattr(self._inner, name)(*args)


class ReadOnlyFs(Fs):
    """`inner` without the calls that change it. Files open for reading even if the caller asks for writing."""

    def __init__(self, inner: Fs) -> None:
        self._inner = inner

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        if create:
            self._refuse(path)
        return self._inner.open(path)

    listdir, exists, size, lock_shared, boot_id, free_bytes = map(
        _of_inner, ("listdir", "exists", "size", "lock_shared", "boot_id", "free_bytes")
    )

    def sync_dir(self, path: str) -> None:
        """Do nothing: no name can have changed."""

    def _refuse(self, *paths: str) -> NoReturn:
        raise OSError(errno.EROFS, "this file system is open for reading only", paths[-1])

    rename = unlink = mkdir = rmdir = lock = _refuse  # type: ignore[assignment]  # each takes one or two paths


class Lock:
    """A held flock, which readers may share. `close` or the end of the process releases it.

    The file stays: otherwise two processes could lock two files.
    """

    __slots__ = ("_fd", "_shared")

    def __init__(self, fd: int, *, shared: bool = False) -> None:
        """Take the lock without waiting. Close the file and raise `LockHeld` if another process has it."""
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(fd, 1024, 0).decode(errors="replace").strip()
            os.close(fd)
            raise LockHeld(owner) from None
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self._shared = shared

    def close(self) -> None:
        if self._fd != _CLOSED and not self._shared:
            with suppress(OSError):
                os.ftruncate(self._fd, 0)  # the next owner must not show the description of this process
        self.release()

    def release(self) -> None:
        """Release the lock as the end of the process does: the file keeps the description of the owner."""
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            os.close(fd)


class File:
    """An open file. Every call names its offset: there is no shared position."""

    __slots__ = ("_fd", "_mapped", "_maps", "path")

    def __init__(self, fd: int, path: str, *, maps: bool = True) -> None:
        self._fd = fd
        self._maps = maps
        self.path = path
        self._mapped: Mapped | None = None

    def __del__(self) -> None:
        # Readers on several threads share the files of sealed segments: the last reference closes the file.
        self.close()

    def pwrite(self, data: Buffer, at: int) -> None:
        """Write all of `data`, or raise OSError with some prefix of it written."""
        done = os.pwrite(self._fd, data, at)
        if done != _size_of(data):
            self._write_rest([data], at, done)

    def pwritev(self, parts: Sequence[Buffer], at: int) -> None:
        """Write any number of parts one after the other, as if they were one buffer."""
        for first in range(0, len(parts), _PARTS_MAX):
            some = parts[first : first + _PARTS_MAX]
            size = sum(map(_size_of, some))
            done = os.pwritev(self._fd, some, at)
            if done != size:
                self._write_rest(some, at, done)
            at += size

    def _write_rest(self, parts: Sequence[Buffer], at: int, done: int) -> None:
        """Finish a write of which the kernel wrote only a part. If there is an error, the next call raises it."""
        rest = memoryview(b"".join(parts))
        while done < len(rest):
            step = os.pwrite(self._fd, rest[done:], at + done)
            if step == 0:
                raise OSError(errno.EIO, "the file takes no more bytes", self.path)
            done += step

    def pread(self, size: int, at: int) -> bytes:
        """Return `size` bytes, fewer only at the end of the file."""
        data = os.pread(self._fd, size, at)
        while 0 < len(data) < size:
            more = os.pread(self._fd, size - len(data), at + len(data))
            if not more:
                break
            data += more
        return data

    def pread_stored(self, size: int, at: int) -> bytes:
        """Return what `pread` returns, from the disk even if the page cache has it, where the system allows that."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, at, size, os.POSIX_FADV_DONTNEED)
        return self.pread(size, at)

    def lend(self, size: int, at: int) -> memoryview | None:
        """Return the bytes in mapped memory, or None if that is impossible. Only system calls may read them."""
        mapped = self._mapped
        if mapped is None and self._maps:
            mapped = self._mapped = Mapped.of(self._fd)
        return mapped.lend(size, at) if mapped is not None else None

    def view(self) -> memoryview | None:
        """Return all bytes, in memory or not, if some were lent before. Slice them like what `lend` returns."""
        return None if self._mapped is None else self._mapped.view

    def try_pread(self, size: int, at: int) -> bytes | memoryview | None:
        """Return what `pread` returns, or None if that would wait for the disk. For callers that must not block."""
        if _NOWAIT is None:
            return self.pread(size, at)
        buffer = np.empty(size, np.uint8).data  # not cleared first, and returned without a copy
        try:
            got = os.preadv(self._fd, [buffer], at, _NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            return self.pread(size, at)
        if got < size and at + got < self.size():
            return None
        return buffer[:got]

    def datasync(self) -> None:
        """Make the bytes and the size durable; timestamps may wait."""
        if sys.platform == "darwin":
            _full_sync(self._fd)
        else:
            os.fdatasync(self._fd)

    def sync(self) -> None:
        """Make the bytes and all metadata of the file durable (not its name: see `Fs.sync_dir`)."""
        _full_sync(self._fd)

    def truncate(self, size: int) -> None:
        """Truncate or extend the file to `size`. Added bytes read as zeros and reserve no space."""
        os.ftruncate(self._fd, size)

    def allocate(self, size: int) -> None:
        """Reserve the first `size` bytes, so that a later write inside them cannot fail with ENOSPC.

        The file grows to at least `size`; added bytes read as zeros. Raise ENOSPC and keep the old size if there is no
        space. Do nothing if the file system cannot reserve. A copy-on-write file system may accept and not keep it.
        """
        before = self.size()
        try:
            if size > 0 and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._fd, 0, size)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return
            with suppress(OSError):
                os.ftruncate(self._fd, before)  # a failed reservation may have used the remaining space
            raise

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the handle. This makes nothing durable. A second call does nothing."""
        if self._fd != _CLOSED:
            fd, self._fd = self._fd, _CLOSED
            self._mapped = None  # a remaining view keeps the mapping
            os.close(fd)


def _size_of(data: Buffer) -> int:
    """Return the size in bytes. `len` of a memoryview counts items, which may be wider."""
    return data.nbytes if isinstance(data, memoryview) else len(data)


def _full_sync(fd: int) -> None:
    """Call fsync, or on macOS F_FULLFSYNC, because fsync there leaves the bytes in the cache of the drive."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)
