"""The file system seam: every byte that is kept goes through an `Fs`, so that a simulated disk can take its place.

The contract is the part of POSIX that durability rests on, and nothing more:

* Bytes written are durable once `datasync` or `sync` of their file has returned, and not before.
* A name (created, renamed, linked or removed) is durable once `sync_dir` of its directory has returned, whatever was
  done to the file's bytes. A rename is atomic: after a crash the old or the new state is there, never a mixture.
* A write that raises may have left any prefix of its bytes in the file: the caller cuts or overwrites it.
* After a failed sync nothing is known about the bytes written since the last good one, and a later sync that
  succeeds does not vouch for them: they must be written again, elsewhere.

`RealFs` is the operating system; `topics.testing.disk.SimDisk` is a disk that may lose whatever this contract allows.
"""

import errno
import fcntl
import os
import socket
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Protocol

import numpy as np

from topics.storage.mapped_file import Mapped

Buffer = bytes | bytearray | memoryview

_PARTS_MAX = 1024  # IOV_MAX of Linux and macOS: more parts than this in one call are refused with EINVAL
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS})
# Stands for a closed descriptor: never given out, and answered with EBADF by every call (-1 is a ValueError to some).
_CLOSED = (1 << 31) - 1
_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"


class Held(Exception):
    """The lock belongs to a live process; `owner` is what that process wrote about itself, "" if it did not yet."""

    def __init__(self, owner: str) -> None:
        super().__init__(f"held by {owner or 'another process'}")
        self.owner = owner


class Lock(Protocol):
    """An exclusive hold on a path, given up by `close` or by the death of the process."""

    def close(self) -> None: ...


class File(Protocol):
    """An open file, addressed by offset: there is no position that two users could disagree about."""

    path: str

    def pwrite(self, data: Buffer, at: int) -> None:
        """Write all of `data`, or raise OSError with some prefix of it written."""

    def pwritev(self, parts: Sequence[Buffer], at: int) -> None:
        """Write the parts one after the other as if they were one buffer, however many there are."""

    def pread(self, size: int, at: int) -> bytes:
        """`size` bytes, fewer only where the file ends."""

    def try_pread(self, size: int, at: int) -> bytes | memoryview | None:
        """What `pread` would give, if that needs no wait for the disk; else None. For callers that must not block."""

    def lend(self, size: int, at: int) -> memoryview | None:
        """The same where it lies, for system calls to copy from and for nobody else; None where that cannot be had."""

    def datasync(self) -> None:
        """Make the bytes and the size durable; timestamps may wait."""

    def sync(self) -> None:
        """Make the bytes and all metadata of the file durable (not its name: see `Fs.sync_dir`)."""

    def truncate(self, size: int) -> None:
        """Cut or extend the file to `size`. What extending adds reads as zeros and reserves no space."""

    def allocate(self, size: int) -> None:
        """Reserve the first `size` bytes, so that a later write inside them cannot fail for want of space.

        The file grows to at least `size`; what is new reads as zeros. Raises ENOSPC and leaves the size as it was.
        Does nothing where the file system cannot reserve; copy-on-write file systems may accept and not keep it.
        """

    def size(self) -> int: ...

    def close(self) -> None:
        """Give the handle back. Makes nothing durable. Closing twice is harmless."""


class Fs(Protocol):
    """The names: opening, moving and removing files, and making that durable."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open a regular file. `create` implies `write` and accepts a file that exists."""

    def rename(self, src: str, dst: str) -> None:
        """Give `src` the name `dst`, atomically in place of a file that has it."""

    def unlink(self, path: str) -> None: ...

    def link(self, src: str, dst: str) -> None:
        """Create `dst` as a hard link to `src`. Raise FileExistsError if `dst` exists."""

    def mkdir(self, path: str) -> None:
        """Make the directory and its parents; one that exists is fine."""

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def sync_dir(self, path: str) -> None:
        """Make the names in this directory durable."""

    def lock(self, path: str) -> Lock:
        """Take the lock without waiting; raises `Held` where another process has it."""

    def lock_shared(self, path: str) -> Lock:
        """Take a lock that exists for looking only: it keeps owners out and lets others look; the file stays as it is.

        A disk of one process may keep others out as well.
        """
        return self.lock(path)

    def boot_id(self) -> str:
        """Changes with every start of the machine, "" where there is none.

        The same id as last time means that a stopped process lost nothing it had written, synced or not.
        """

    def free_bytes(self, path: str) -> int:
        """Space left to us on the file system that holds `path`."""


class RealFs(Fs):
    """The operating system's files."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> "RealFile":
        flags = os.O_RDWR if write or create else os.O_RDONLY
        fd = os.open(path, flags | (os.O_CREAT if create else 0) | os.O_CLOEXEC, 0o640)
        if stat.S_ISDIR(os.fstat(fd).st_mode):  # the kernel opens directories for reading without complaint
            os.close(fd)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return RealFile(fd, path)

    def rename(self, src: str, dst: str) -> None:
        os.rename(src, dst)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def link(self, src: str, dst: str) -> None:
        os.link(src, dst)

    def mkdir(self, path: str) -> None:
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
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _full_sync(fd)
        except OSError as error:
            if (
                error.errno != errno.EINVAL
            ):  # EINVAL: a file system without such a thing, where nothing more can be done
                raise
        finally:
            os.close(fd)

    def lock(self, path: str) -> "RealLock":
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(fd, 1024, 0).decode(errors="replace").strip()
            os.close(fd)
            raise Held(owner) from None
        except BaseException:
            os.close(fd)
            raise
        with suppress(OSError):  # the text is a courtesy: a full disk must not keep us from starting
            owner = f"pid {os.getpid()} on {socket.gethostname()} since {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            os.ftruncate(fd, 0)
            os.pwrite(fd, owner.encode(), 0)
        return RealLock(fd)

    def lock_shared(self, path: str) -> "RealSharedLock":
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(fd, 1024, 0).decode(errors="replace").strip()
            os.close(fd)
            raise Held(owner) from None
        except BaseException:
            os.close(fd)
            raise
        return RealSharedLock(fd)

    def boot_id(self) -> str:
        try:
            with open(_BOOT_ID_PATH, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize


class RealLock(Lock):
    """A held flock. The file stays behind: removing it would let two processes lock two files of one name."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        if self._fd == _CLOSED:
            return
        fd, self._fd = self._fd, _CLOSED
        with suppress(OSError):
            os.ftruncate(fd, 0)  # whoever comes next must not read about us
        os.close(fd)


class RealSharedLock(Lock):
    """A flock shared with others who only look."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        if self._fd != _CLOSED:
            fd, self._fd = self._fd, _CLOSED
            os.close(fd)


class RealFile(File):
    """A file descriptor."""

    __slots__ = ("_fd", "_mapped", "path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path
        self._mapped: Mapped | None = None

    def __del__(self) -> None:
        # Files of sealed segments are shared by readers on several threads: the last one to let go closes.
        self.close()

    def pwrite(self, data: Buffer, at: int) -> None:
        done = os.pwrite(self._fd, data, at)
        if done != _size_of(data):
            self._write_rest([data], at, done)

    def pwritev(self, parts: Sequence[Buffer], at: int) -> None:
        for first in range(0, len(parts), _PARTS_MAX):
            some = parts[first : first + _PARTS_MAX]
            size = sum(map(_size_of, some))
            done = os.pwritev(self._fd, some, at)
            if done != size:
                self._write_rest(some, at, done)
            at += size

    def _write_rest(self, parts: Sequence[Buffer], at: int, done: int) -> None:
        """Finish a write that the kernel cut short; the next call reports why, if there is a reason."""
        rest = memoryview(b"".join(parts))
        while done < len(rest):
            step = os.pwrite(self._fd, rest[done:], at + done)
            if step == 0:
                raise OSError(errno.EIO, "the file takes no more bytes", self.path)
            done += step

    def pread(self, size: int, at: int) -> bytes:
        data = os.pread(self._fd, size, at)
        while 0 < len(data) < size:
            more = os.pread(self._fd, size - len(data), at + len(data))
            if not more:
                break
            data += more
        return data

    def lend(self, size: int, at: int) -> memoryview | None:
        mapped = self._mapped
        if mapped is None:
            mapped = self._mapped = Mapped.of(self._fd)
        return mapped.lend(size, at) if mapped is not None else None

    def try_pread(self, size: int, at: int) -> bytes | memoryview | None:
        if _NOWAIT is None:
            return self.pread(size, at)
        buffer = np.empty(size, np.uint8).data  # not cleared before it is filled, and given away without a copy
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
        if sys.platform == "darwin":
            _full_sync(self._fd)
        else:
            os.fdatasync(self._fd)

    def sync(self) -> None:
        _full_sync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def allocate(self, size: int) -> None:
        before = self.size()
        try:
            if size > 0 and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._fd, 0, size)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return
            with suppress(OSError):
                os.ftruncate(self._fd, before)  # a refused reservation may have taken what space there was
            raise

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd != _CLOSED:
            fd, self._fd = self._fd, _CLOSED
            self._mapped = None  # whoever still has a part of it keeps the rest
            os.close(fd)


def _size_of(data: Buffer) -> int:
    """Bytes, not items: `len` of a memoryview over wider items counts those."""
    return data.nbytes if isinstance(data, memoryview) else len(data)


def _full_sync(fd: int) -> None:
    """fsync, and on macOS the stronger call: its fsync leaves the bytes in the drive's own cache."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)
