"""Change a lake: stage files, commit them, and publish the commit.

A change has these steps, and may be killed at any point:

1. files are written in the folder of the run, below `_lake/staging`, where no reader looks;
2. one commit names the files: from now on they are part of the lake;
3. the files are renamed to their paths, replaced files are removed, and the gap ledger gets its rows.

Any process can repeat the third step at any time, from the commits alone, because a file name is never used twice.
A process that opens the lake for writing repeats it for runs that were killed. Readers that list directories may see a
change late, but never half a file and never a file that was not committed.

A process holds a lock on the folder of its run. A folder without a lock holder is removed.
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
    """The staging folder of one run, as a context manager. Tasks need its `token` to write files."""

    def __init__(self, root: str, commits: Commits) -> None:
        self._root = root
        self._commits = commits
        self._lock = -1
        self._pending = False  # whether a commit may exist whose files are not at their paths yet
        self.token = ""

    def __enter__(self) -> Self:
        with disk.with_remedies(self._root):
            self.token, self._lock = _claim(self._root)
        try:
            with disk.with_remedies(self._root):
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
        """Commit the changes as one version and publish it. Raise `Conflict` if the base was changed."""
        with disk.with_remedies(self._root):
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
        """Remove staged files that will not be committed."""
        for file in files:
            disk.remove(os.path.join(self._root, file.staged))

    def repair(self) -> None:
        """Publish the commits of runs that were killed, and remove the folders of runs that have ended."""
        dead = _dead(self._root, but=self.token)
        try:
            self._publish(self._commits.unfolded())  # the locks are held now, so the dead runs cannot commit any more
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
        self._pending = True  # the commit may exist even if `add` raises
        try:
            self._pending = self._commits.add(commit, via=self._folder)
        except (Conflict, Damaged):
            self._pending = False
            raise
        return self._pending

    def _leave(self) -> None:
        """Release the folder. If committed files are still in it, the next writer publishes them."""
        if not self._pending:
            shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)

    def _check_staged(self, changes: Iterable[Change]) -> None:
        """Raise `LakeError` or `Damaged` unless every file of the changes is staged with its full size."""
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
                folders |= self._move_to_path(added.file)
            for file in change.removes:
                disk.remove(os.path.join(self._root, file.path))
        for folder in folders:
            disk.sync_folder(folder)
        ledger.publish(self._root, commits, via=self._folder)

    def _move_to_path(self, file: File) -> set[str]:
        """Rename a staged file to its path. Return the changed folders; none if that was done before."""
        staged, target = os.path.join(self._root, file.staged), os.path.join(self._root, file.path)
        if not os.path.exists(staged):
            return set()  # renamed already, and perhaps replaced since
        folder = os.path.dirname(target)
        changed = {folder}
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            changed |= {os.path.dirname(folder), self._root}
        with suppress(FileNotFoundError):  # another process renamed it first
            os.rename(staged, target)
        return changed

    def _fold(self) -> None:
        snapshot = self._commits.newest()
        self._publish(self._commits.unfolded())
        ledger.fold(self._root, snapshot, via=self._folder)
        self._commits.fold(snapshot, via=self._folder)


def _claim(root: str) -> tuple[str, int]:
    """Create a staging folder and return its token and lock. Retry if a cleaner removes it before it is locked."""
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
    """Return the staging folders of dead runs, each with the lock that this process has taken."""
    found = []
    for name in os.listdir(os.path.join(root, STAGING)):
        if name == but:
            continue
        try:
            lock = os.open(os.path.join(root, STAGING, name, LOCK), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            with suppress(OSError):
                os.rmdir(os.path.join(root, STAGING, name))  # fails unless it is empty: created, and never locked
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
        return False  # the lock is held, or the file system has no locks: then no run is ever considered dead
    return True


__all__ = ["Conflict", "Staging"]
