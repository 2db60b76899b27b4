"""Build a data directory from a replica: the files of a checkpoint, and the log after it. Blocks.

The directory has no FORMAT file until it is complete, so no server starts on a part of it; the next restore begins
again. Every object and every file is compared with its checksum.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field

from msgspec import Struct

from topics.storage import snapshot as snap
from topics.storage.data_layout import TEMP_SUFFIX
from topics.storage.datadir import DataDir
from topics.storage.fs import Fs
from topics.storage.log import ledger, log_files
from topics.storage.log.log_files import LogFile
from topics.storage.replica import objects
from topics.storage.replica.history import History, State
from topics.storage.replica.objects import Damaged, FileRef

READERS = 4  # each has a file in memory

Progress = Callable[[int, int], None]  # bytes that are there, bytes of all files


class Restored(Struct, kw_only=True):
    """The result of a restore."""

    object: int = 0  # the last one that counts
    term: int = 0
    at_ms: int = 0
    snapshot: int
    clean: bool
    files: int = 0
    log_files: int = 0
    bytes: int = 0


def restore(
    history: History, fs: Fs, target: str, *, number: int | None = None, restored_ms: int | None = None,
    seal: Callable[[DataDir], int] | None = None, progress: Progress = lambda done, total: None,
) -> Restored:  # fmt: skip
    """Restore the state at object `number`, or the last one. Raise `Damaged`, `BucketError`, `DataDirError` or OSError.

    With `restored_ms`, the directory begins a new history, as a restored backup does. Without, a server that starts on
    it continues the old one: it reports what the replica may lack as lost (`failover`). `seal` is called when the files
    are there: it ends the old term, and returns the number of its last object.
    """
    state = history.state(number or history.end().number)
    with closing(DataDir(fs, target)) as datadir:
        datadir.begin()
        with ThreadPoolExecutor(READERS, thread_name_prefix="topics-restore") as pool:
            return _Restore(history, state, datadir, pool).run(restored_ms, seal, progress)


@dataclass
class _Restore:
    _history: History
    _state: State
    _dir: DataDir
    _pool: ThreadPoolExecutor
    _ends: dict[int, int] = field(default_factory=dict)  # of the log files that are written

    def run(self, restored_ms: int | None, seal: Callable[[DataDir], int] | None, progress: Progress) -> Restored:
        checkpoint, datadir = self._state.checkpoint, self._dir
        total = sum(ref.size_bytes for ref in checkpoint.files)
        done = Restored(snapshot=checkpoint.snapshot, clean=checkpoint.clean, files=len(checkpoint.files))
        snapshot_path = posixpath.relpath(datadir.snapshot_path(checkpoint.snapshot), datadir.root)
        snapshot_bytes = b""
        for folder in {posixpath.dirname(posixpath.join(datadir.root, ref.path)) for ref in checkpoint.files}:
            datadir.fs.mkdir(folder)
        for ref, data in self._ahead(self._fetch, checkpoint.files):
            done.bytes += ref.size_bytes
            progress(done.bytes, total)
            snapshot_bytes = data or snapshot_bytes
        self._log(done, checkpoint.since)
        if seal is not None:  # not earlier: what cannot be restored must not end the term of a server that runs
            read = self._state.last.number
            self._extend(seal(datadir))
            self._log(done, max(checkpoint.since, read + 1))
        last = self._state.last
        done.object, done.term, done.at_ms = last.number, last.term, last.at_ms
        files = list(self._pool.map(self._synced, sorted(self._ends)))
        datadir.fs.sync_dir(datadir.wal_dir)
        done.log_files = len(files)
        self._write_ledger(files)
        self._write(snapshot_path, self._marked(snapshot_bytes, restored_ms))
        datadir.sweep()
        datadir.complete()
        return done

    def _extend(self, number: int) -> None:
        """Let the state end at a later object of the same term."""
        later = self._history.state(number)
        if later.head.term != self._state.head.term:
            raise Damaged("another server wrote a checkpoint meanwhile; start again")
        self._state = self._state._replace(last=later.last)

    def _ahead(self, fetch: Callable, items: list) -> Iterator[tuple]:  # type: ignore[type-arg]
        """Yield each item with what `fetch` returns for it, in order. A few are fetched ahead."""
        pending: list[Future] = []  # type: ignore[type-arg]
        for at, item in enumerate(items):
            # Bound: the items.
            while len(pending) < min(len(items) - at, READERS):
                pending.append(self._pool.submit(fetch, items[at + len(pending)]))
            yield item, pending.pop(0).result()

    def _fetch(self, ref: FileRef) -> bytes:
        """Write a file of the checkpoint. Return the bytes of the snapshot, which is written last."""
        try:
            data = self._history.file(ref)
        except Damaged as error:
            what, earlier = f"{error}: the file {ref.path} of checkpoint {self._state.number}", self._state.head.base
            way = (
                f"restore an earlier state with --at-object {earlier}"
                if earlier
                else "no earlier state can be restored"
            )
            raise Damaged(f"{what}; {way}") from error
        if ref.path.endswith(".snap"):
            return data
        self._write(ref.path, data)
        return b""

    def _log(self, done: Restored, first: int) -> None:
        """Write the log of these objects. Those of a later term have no checkpoint yet: they do not count."""
        checkpoint, term, datadir, ends = self._state.checkpoint, self._state.head.term, self._dir, self._ends
        numbers = list(range(first, self._state.last.number + 1))
        for _, found in self._ahead(self._history.read, numbers):
            if found.head.kind != "bytes" or found.head.term != term:
                continue
            for number, at, data in objects.pieces_of(found):
                if number < checkpoint.snapshot:
                    continue
                if at != ends.get(number, 0):
                    raise Damaged(f"{objects.log_name(found.head.number)} does not continue the log before it")
                with closing(datadir.fs.open(datadir.wal_path(number), create=True)) as file:
                    file.pwrite(data, at)
                ends[number] = at + len(data)
                done.bytes += len(data)

    def _synced(self, number: int) -> LogFile:
        """Return a log file, once its bytes are durable."""
        path = self._dir.wal_path(number)
        with closing(self._dir.fs.open(path, write=True)) as file:
            file.sync()
            return log_files.decode(number, path, file.pread(file.size(), 0), [])

    def _write_ledger(self, files: list[LogFile]) -> None:
        since = self._state.checkpoint.snapshot
        path = self._dir.ledger_path(since)
        self._write(posixpath.relpath(path, self._dir.root), ledger.copied(self._dir, since, files, {}))

    def _marked(self, data: bytes, restored_ms: int | None) -> bytes:
        """Return the snapshot with what a start has to know about its origin."""
        number = self._state.checkpoint.snapshot
        snapshot = snap.decode(data, path=self._dir.snapshot_path(number), number=number)
        snapshot.clean = self._state.checkpoint.clean
        mark, value = (snap.FAILOVER, self._state.last.at_ms) if restored_ms is None else (snap.RESTORED, restored_ms)
        snap.mark_copy(snapshot, ledger=number, **{mark: value})
        return snap.encode(snapshot)

    def _write(self, path: str, data: bytes) -> None:
        """Write a file, which `sweep` makes durable under its name."""
        whole = posixpath.join(self._dir.root, path)
        with self._dir.new_file(whole, named=False) as file:
            file.pwrite(data, 0)
        self._dir.fs.rename(whole + TEMP_SUFFIX, whole)
