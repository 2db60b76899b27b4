"""Changing a lake: files on their way, the commit that makes them part of it, and what has to follow a commit.

A change goes in this order, and may be killed anywhere:

1. files grow in the folder of the run, below `_lake/staging`, where no reader looks;
2. one commit names them: from here on they are part of the lake, and nothing before was;
3. they are renamed into place, the files they replace are removed, the gap ledger gets its rows.

The third step can be done by anybody at any time, as often as they like, from the commits alone: names are never used
twice. Whoever opens the lake for writing does it for those who died before they could. Readers who list directories
see a change at most late, never half a file and never a file that was not committed.

The folder of a run is locked by its owner for as long as he lives. One that nobody holds is removed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from topics.clock import SystemClock
from topics.lake import disk, ledger
from topics.lake.commits import CHECKPOINT_EVERY, Commits
from topics.lake.errors import Conflict, Damaged, LakeError
from topics.lake.layout import STAGING
from topics.lake.manifest import Change, Commit, File, Snapshot

LOCK = "lock"


class Staging:
    """The folder of one run. A context manager; `token` is what tasks need to write into it."""

    def __init__(self, root: str, commits: Commits) -> None:
        self._root = root
        self._commits = commits
        self._lock = -1
        self._pending = False  # a commit may be made whose files are not in place yet
        self.token = ""

    def __enter__(self) -> Self:
        with disk.telling(self._root):
            self.token, self._lock = _claim(self._root)
        try:
            with disk.telling(self._root):
                self.repair()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def commit(self, base: Snapshot, changes: Sequence[Change], *, note: dict[str, Any] | None = None) -> Snapshot:
        """Makes the changes, all in one version, and publishes them. Raises `Conflict` where `base` is too old."""
        with disk.telling(self._root):
            return self._commit(base, changes, note)

    def _commit(self, base: Snapshot, changes: Sequence[Change], note: dict[str, Any] | None) -> Snapshot:
        self._check_staged(changes)
        while True:
            newest = self._commits.newest()
            newest.check(base, changes)
            commit = Commit(
                version=newest.version + 1, parent=newest.sum, made_at=SystemClock().now_ms(), run=self.token,
                changes=list(changes), note=note,
            )  # fmt: skip
            if self._add(commit):
                break
        self._publish([commit])
        self._pending = False
        if commit.version % CHECKPOINT_EVERY == 0:
            self._fold()
        return self._commits.newest()

    def discard(self, files: Iterable[File]) -> None:
        """Removes staged files that will not be committed."""
        for file in files:
            disk.remove(os.path.join(self._root, file.staged))

    def repair(self) -> None:
        """Does what commits of others still ask for, and removes the folders of runs that have ended."""
        dead = _dead(self._root, but=self.token)
        try:
            self._publish(self._commits.unfolded())  # after the locks are held: their owners commit nothing any more
            for name, _ in dead:
                shutil.rmtree(os.path.join(self._root, STAGING, name), ignore_errors=True)
        finally:
            for _, lock in dead:
                os.close(lock)

    # --- inside

    @property
    def _folder(self) -> str:
        return os.path.join(self._root, STAGING, self.token)

    def _add(self, commit: Commit) -> bool:
        self._pending = True  # whatever happens from here on
        try:
            self._pending = self._commits.add(commit, via=self._folder)
        except (Conflict, Damaged):
            self._pending = False
            raise
        return self._pending

    def _leave(self) -> None:
        """Lets go of the folder. Files in it that are committed and not in place yet are left to whoever comes next."""
        if not self._pending:
            shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)

    def _check_staged(self, changes: Iterable[Change]) -> None:
        """A commit is a promise: every file it names is here, and whole."""
        for change in changes:
            for added in change.adds:
                try:
                    size = os.stat(os.path.join(self._root, added.staged)).st_size
                except FileNotFoundError:
                    raise LakeError(
                        f"{self._root}: a file that a task wrote is not here; the lake must be a directory that the "
                        "driver and all executors share"
                    ) from None
                if size != added.file.bytes:
                    raise Damaged(f"{added.staged}: {size} bytes where {added.file.bytes} were written")

    def _publish(self, commits: Sequence[Commit]) -> None:
        folders: set[str] = set()
        for change in (change for commit in commits for change in commit.changes):
            for added in change.adds:
                folders |= self._place(added.file)
            for file in change.removes:
                disk.remove(os.path.join(self._root, file.path))
        for folder in folders:
            disk.sync_folder(folder)
        ledger.publish(self._root, commits, via=self._folder)

    def _place(self, file: File) -> set[str]:
        """Renames a file into place; the folders that have changed by it, none where that was done before."""
        staged, target = os.path.join(self._root, file.staged), os.path.join(self._root, file.path)
        if not os.path.exists(staged):
            return set()  # it is in place, or was replaced since
        folder = os.path.dirname(target)
        changed = {folder}
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            changed |= {os.path.dirname(folder), self._root}
        with suppress(FileNotFoundError):  # somebody else was faster
            os.rename(staged, target)
        return changed

    def _fold(self) -> None:
        snapshot = self._commits.newest()
        self._publish(self._commits.unfolded())
        ledger.fold(self._root, snapshot, via=self._folder)
        self._commits.fold(snapshot, via=self._folder)


def _claim(root: str) -> tuple[str, int]:
    """A folder of our own, and its lock. Somebody who cleans up may take a folder before its lock is held."""
    while True:
        token = os.urandom(8).hex()
        folder = os.path.join(root, STAGING, token)
        os.mkdir(folder)
        with suppress(FileNotFoundError):
            lock = os.open(os.path.join(folder, LOCK), os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644)
            if _try_lock(lock) and os.path.exists(os.path.join(folder, LOCK)):
                return token, lock
            os.close(lock)


def _dead(root: str, *, but: str) -> list[tuple[str, int]]:
    """Folders whose owners are gone, locked by us now."""
    found = []
    for name in os.listdir(os.path.join(root, STAGING)):
        if name == but:
            continue
        try:
            lock = os.open(os.path.join(root, STAGING, name, LOCK), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            with suppress(OSError):
                os.rmdir(os.path.join(root, STAGING, name))  # only if it is empty: made, and never locked
            continue
        if _try_lock(lock):
            found.append((name, lock))
        else:
            os.close(lock)
    return found


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False  # held, or a file system without locks: then nothing is ever taken for dead
    return True


__all__ = ["Conflict", "Staging"]
