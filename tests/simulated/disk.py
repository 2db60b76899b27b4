"""A simulated disk: an `Fs` in memory that loses in a crash what a real disk can lose.

    disk = SimDisk(seed=7)
    disk.crash_at(41)                       # the process dies at its call number 41 ...
    with pytest.raises(Crashed):
        work(disk)
    after = disk.crash("tear")              # ... and the machine with it; this is what the next start finds

The bytes of a file are durable after its `sync` or `datasync`, and a name after `sync_dir` of its directory. All other
changes are pending. The crash mode decides what happens to them:

    lose      all are lost
    tear      per file, a prefix of its writes survives, the last one truncated; a prefix of the name changes survives
    reorder   any set of 512-byte sectors survives, in any order; any set of name changes, in order per file
    zero      names and sizes survive, bytes do not: new parts of a file read as zeros
    keep      all survive, still pending, and the boot id is the same: only the process was killed

The same seed and calls give the same disk. Space is counted in pages of 4096 bytes, as in a file system.
"""

import errno
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from random import Random
from typing import Literal, NamedTuple, Never, TypeVar

from tests.simulated.inode import PAGE_BYTES, CrashMode, Inode, Op, Reserve, Resize, Write
from tests.simulated.names import DiskNames, os_error
from topics.storage.fs import Buffer, LockHeld

FOREVER = 1 << 62

# Calls with an effect: a crash at any other call equals a crash at the next of these.
MUTATING = frozenset(
    "open pwrite pwritev datasync sync truncate allocate rename unlink mkdir rmdir sync_dir lock unlock".split()
)

_PLENTY_BYTES = 1 << 40
T = TypeVar("T")


class Crashed(BaseException):
    """The simulated process is dead. Not an `Exception`: a dead process runs no error handlers."""


class DiskCall(NamedTuple):
    number: int
    op: str
    path: str


@dataclass(slots=True, kw_only=True)
class Fault:
    """A planned failure of the next `times` matching calls, starting at call number `at`."""

    at: int
    op: str | None
    path: str | None
    error: int
    times: int
    short: bool

    def fits(self, call: DiskCall) -> bool:
        return (
            self.times > 0
            and call.number >= self.at
            and (self.op is None or self.op == call.op)
            and (self.path is None or fnmatchcase(call.path, self.path))
        )


class SimDisk:
    """A disk and the process that uses it. `calls` lists all calls of the process."""

    def __init__(
        self,
        seed: int = 0,
        *,
        capacity_bytes: int | None = None,
        cold: bool = False,
        failed_sync_drops: bool = True,
        failed_sync_reverts: bool = False,
    ) -> None:
        self.seed = seed
        self.capacity_bytes = capacity_bytes  # None: unlimited; a test can change it at any time
        self.cold = cold  # the page cache is empty for try_pread
        self.failed_sync_drops = failed_sync_drops  # see Inode.fail_sync
        self.failed_sync_reverts = failed_sync_reverts  # see Inode.revert
        self.calls: list[DiskCall] = []
        self._rng = Random(seed)
        self._boots = 1
        self._names = DiskNames()
        self._locked: set[Inode] = set()
        self._faults: list[Fault] = []
        self._crash_index = -1
        self._crash_when = "before"
        self._dead = False
        self._mutex = threading.RLock()  # code under test can write from another thread

    # Methods for tests. They do not count as calls.

    def fail(
        self,
        *,
        at: int = 0,
        op: str | None = None,
        path: str | None = None,
        error: int = errno.EIO,
        times: int = 1,
        short: bool = False,
    ) -> Fault:
        """Let calls fail that match all of `at` (this number or later), `op` and `path` (a glob).

        With `short`, a failing write first writes a part of its bytes. Set `times` to 0 to cancel the fault.
        """
        fault = Fault(at=at, op=op, path=path, error=error, times=times, short=short)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        self._faults.clear()

    def crash_at(self, index: int, *, when: Literal["before", "during", "after"] = "before") -> None:
        """Let the process die at call number `index`. "during" truncates a write; for other calls it means "before"."""
        assert index >= len(self.calls), "that call was already made"
        self._crash_index, self._crash_when = index, when

    def crash(self, mode: CrashMode, rng: Random | None = None) -> "SimDisk":
        """Return the disk that the next start finds. This one is dead, but can be crashed again in another mode."""
        with self._mutex:
            self._dead = True
            rng = rng or Random(f"{self.seed} {self._boots} {len(self.calls)} {mode}")
            after = self._twin()
            if mode == "keep":
                after._names = self._names.copy()
            else:
                after._boots = self._boots + 1
                after._names = self._names.after_power_loss(mode, rng)
            after._rng = Random(rng.getrandbits(64))
            return after

    def clone(self) -> "SimDisk":
        """Return an independent copy: same contents, calls, faults and random state; no open files, no locks."""
        with self._mutex:
            twin = self._twin()
            twin._names = self._names.copy()
            twin.calls = self.calls.copy()
            twin._faults = [replace(fault) for fault in self._faults]
            twin._crash_index, twin._crash_when = self._crash_index, self._crash_when
            twin._rng.setstate(self._rng.getstate())
            return twin

    def flip(self, path: str, bit: int) -> None:
        """Damage bit number `bit` of a file."""
        self._names.file(path).flip(bit)

    def contents(self, path: str) -> bytes:
        image = self._names.file(path).current
        return image.read(image.size, 0)

    def files(self) -> list[str]:
        """Return the full paths of all files, sorted."""
        return sorted(self._names.files())

    def used_bytes(self) -> int:
        """Return the space of all files that have a name or are open."""
        return PAGE_BYTES * sum(node.current.space_pages() for node in self._names.inodes() if node.links or node.opens)

    # Methods of `Fs`, for the process.

    def open(self, path: str, *, write: bool = False, create: bool = False) -> "SimFile":
        def work() -> SimFile:
            node = self._names.create(path) if create else self._names.file(path)
            node.opens += 1
            return SimFile(self, node, path=path, writable=write or create)

        return self._call("open", path, work)

    def rename(self, src: str, dst: str) -> None:
        self._call("rename", src, lambda: self._names.rename(src, dst))

    def unlink(self, path: str) -> None:
        self._call("unlink", path, lambda: self._names.unlink(path))

    def mkdir(self, path: str) -> None:
        self._call("mkdir", path, lambda: self._names.mkdir(path))

    def rmdir(self, path: str) -> None:
        self._call("rmdir", path, lambda: self._names.rmdir(path))

    def listdir(self, path: str) -> list[str]:
        return self._call("listdir", path, lambda: sorted(self._names.entries(self._names.find(path), path)))

    def exists(self, path: str) -> bool:
        def work() -> bool:
            try:
                self._names.find(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

        return self._call("exists", path, work)

    def size(self, path: str) -> int:
        return self._call("size", path, lambda: self._names.file(path).current.size)

    def sync_dir(self, path: str) -> None:
        self._call("sync_dir", path, lambda: self._names.sync(path))

    def lock(self, path: str) -> "SimLock":
        def work() -> SimLock:
            node = self._names.create(path)
            owner = f"pid {self._boots} on simulated since boot"
            if node in self._locked:
                raise LockHeld(owner)
            self._locked.add(node)
            node.apply(Resize(0))
            node.apply(Write(0, owner.encode()))
            return SimLock(self, node, path)

        return self._call("lock", path, work)

    def lock_shared(self, path: str) -> "SimLock":
        """One process uses the disk, so this may exclude other readers, too."""
        return self.lock(path)

    def boot_id(self) -> str:
        return self._call("boot_id", "", lambda: f"{self.seed & 0xFFFFFFFF:08x}-0000-4000-8000-{self._boots:012x}")

    def free_bytes(self, path: str) -> int:
        def work() -> int:
            self._names.find(path)
            return max(0, self._limit_bytes() - self.used_bytes())

        return self._call("free_bytes", path, work)

    # Calls

    def _call(self, op: str, path: str, work: Callable[[], T], fail: Callable[[bool], None] | None = None) -> T:
        """Count a call, then do its work, fail or die. `fail(short)` performs the effect of a failing call."""
        with self._mutex:
            if self._dead:
                raise Crashed(f"{op} {path} after the crash")
            call = DiskCall(len(self.calls), op, path)
            self.calls.append(call)
            if call.number == self._crash_index and self._crash_when != "after":
                if fail and self._crash_when == "during" and op in ("pwrite", "pwritev"):
                    with suppress(OSError):  # a full disk truncates the last write further
                        fail(True)
                self._die(call)
            fault = next((fault for fault in self._faults if fault.fits(call)), None) if self._faults else None
            try:
                if fault is None:
                    return work()
                fault.times -= 1
                if fail:
                    fail(fault.short)
                raise os_error(fault.error, path)
            finally:
                if call.number == self._crash_index:
                    self._die(call)

    def _die(self, call: DiskCall) -> Never:
        self._dead = True
        raise Crashed(f"{self._crash_when} call {call.number}: {call.op} {call.path}")

    # Space

    def _limit_bytes(self) -> int:
        return _PLENTY_BYTES if self.capacity_bytes is None else self.capacity_bytes

    def _write(self, file: "SimFile", data: bytes, at: int) -> None:
        """Write what fits, then fail with ENOSPC, as the kernel does."""
        fits = len(data) if self.capacity_bytes is None else self._fitting(file.node, len(data), at)
        if fits:
            file.node.apply(Write(at, data[:fits]))
        if fits < len(data):
            raise os_error(errno.ENOSPC, file.path)

    def _fitting(self, node: Inode, size: int, at: int) -> int:
        free = (self._limit_bytes() - self.used_bytes()) // PAGE_BYTES
        for page in range(at // PAGE_BYTES, -(-(at + size) // PAGE_BYTES)):
            if node.current.has_space(page):
                continue
            free -= 1
            if free < 0:
                return max(0, page * PAGE_BYTES - at)
        return size

    # Copies

    def _twin(self) -> "SimDisk":
        twin = SimDisk(
            self.seed,
            capacity_bytes=self.capacity_bytes,
            cold=self.cold,
            failed_sync_drops=self.failed_sync_drops,
            failed_sync_reverts=self.failed_sync_reverts,
        )
        twin._boots = self._boots
        return twin


class SimFile:
    """An open file of a `SimDisk`. Closing it after a crash has no effect."""

    def __init__(self, disk: SimDisk, node: Inode, *, path: str, writable: bool) -> None:
        self.path = path
        self.node = node
        self._disk = disk
        self._writable = writable
        self._open = True

    def pwrite(self, data: Buffer, at: int) -> None:
        self._write("pwrite", bytes(data), at)

    def pwritev(self, parts: Sequence[Buffer], at: int) -> None:
        self._write("pwritev", b"".join(parts), at)

    def _write(self, op: str, data: bytes, at: int) -> None:
        def fail(short: bool) -> None:
            if short and data:
                self._disk._write(self, data[: self._disk._rng.randrange(len(data))], at)

        def work() -> None:
            self._check(write=True)
            self._disk._write(self, data, at)

        self._disk._call(op, self.path, work, fail)

    def pread(self, size: int, at: int) -> bytes:
        def work() -> bytes:
            self._check()
            return self.node.current.read(size, at)

        return self._disk._call("pread", self.path, work)

    def pread_stored(self, size: int, at: int) -> bytes:
        return self.pread(size, at)

    def try_pread(self, size: int, at: int) -> bytes | None:
        def work() -> bytes | None:
            self._check()
            return None if self._disk.cold else self.node.current.read(size, at)

        return self._disk._call("try_pread", self.path, work)

    def lend(self, size: int, at: int) -> memoryview | None:
        return None

    def view(self) -> memoryview | None:
        return None

    def datasync(self) -> None:
        self._sync("datasync")

    def sync(self) -> None:
        self._sync("sync")

    def _sync(self, op: str) -> None:
        def fail(short: bool) -> None:
            if self._disk.failed_sync_reverts:
                self.node.revert()
            elif self._disk.failed_sync_drops:
                self.node.fail_sync()

        def work() -> None:
            self._check()
            self.node.sync()

        self._disk._call(op, self.path, work, fail)

    def truncate(self, size: int) -> None:
        self._resize("truncate", Resize(size))

    def allocate(self, size: int) -> None:
        self._resize("allocate", Reserve(size))

    def _resize(self, op: str, change: Op) -> None:
        def work() -> None:
            self._check(write=True)
            if isinstance(change, Reserve) and self._disk.capacity_bytes is not None:
                if self._disk._fitting(self.node, change.size, 0) < change.size:
                    raise os_error(errno.ENOSPC, self.path)
            self.node.apply(change)

        self._disk._call(op, self.path, work)

    def size(self) -> int:
        def work() -> int:
            self._check()
            return self.node.current.size

        return self._disk._call("size", self.path, work)

    def close(self) -> None:
        def work() -> None:
            self._open = False
            self.node.opens -= 1

        if self._open and not self._disk._dead:
            self._disk._call("close", self.path, work)

    def _check(self, *, write: bool = False) -> None:
        if not self._open or (write and not self._writable):
            raise os_error(errno.EBADF, self.path)


class SimLock:
    """A held lock of a `SimDisk`, released by a crash."""

    __slots__ = ("_disk", "_held", "_node", "_path")

    def __init__(self, disk: SimDisk, node: Inode, path: str) -> None:
        self._disk = disk
        self._node = node
        self._path = path
        self._held = True

    def close(self) -> None:
        def work() -> None:
            self._held = False
            self._disk._locked.discard(self._node)
            self._node.apply(Resize(0))

        if self._held and not self._disk._dead:
            self._disk._call("unlock", self._path, work)
