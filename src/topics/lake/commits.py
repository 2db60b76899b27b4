"""The manifest on disk: numbered commits, each written by one exclusive create, and checkpoints that fold them.

The process that creates the file of the next version has committed it. Other processes find the name taken, read the
new commit, and try the next version. A checkpoint holds the sum of all commits up to its version, so that opening a
lake reads a few files, however old it is. Commits far below a checkpoint are removed.

A commit contains the checksum of its parent, and the newest commit is never removed. So a missing version is detected:
as a missing number below a higher one, as a checkpoint without its commit, or as a wrong parent. Otherwise records
could be archived twice, or could count as archived although their files are missing.
"""

from __future__ import annotations

import os

import msgspec
import xxhash

from topics.lake import disk
from topics.lake.errors import Conflict, Damaged, NoLake
from topics.lake.layout import CHECKPOINT, COMMITS, HIDDEN, checkpoint_version, commit_name, commit_version
from topics.lake.manifest import Commit, Snapshot

CHECKPOINT_EVERY = 32
KEPT = 64  # commits below a checkpoint, for readers that are a little behind and for inspection

_decode_commit = msgspec.json.Decoder(Commit).decode
_decode_snapshot = msgspec.json.Decoder(Snapshot).decode


class Commits:
    """Reads and adds versions. Caches the newest one, so that the next read is cheap."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._newest: Snapshot | None = None

    def exists(self) -> bool:
        return os.path.isdir(os.path.join(self._root, COMMITS))

    def newest(self) -> Snapshot:
        """Return the newest version. Raise `NoLake` if there is no lake, and `Damaged` if versions are missing."""
        if not self.exists():
            raise NoLake(f"{self._root} is not a lake: topics pipeline archive creates one")
        snapshot = self._newest or Snapshot()
        while True:
            snapshot = self._checkpoint_after(snapshot.version) or snapshot
            while (found := self._read(snapshot.version + 1)) is not None:
                snapshot = self._after(snapshot, *found)
            if self._is_newest(snapshot.version):
                self._newest = snapshot
                return snapshot

    def since(self, version: int) -> list[Commit]:
        """Return the commits after a version."""
        found: list[Commit] = []
        while (read := self._read(version + len(found) + 1)) is not None:
            found.append(read[0])
        return found

    def unfolded(self) -> list[Commit]:
        """Return the commits since the newest checkpoint. They may not be published yet."""
        return self.since(max(self.checkpoints(), default=0))

    def add(self, commit: Commit, *, via: str) -> bool:
        """Write a version. Return False if another process has written it. `via` is the folder for temporary files."""
        path = self._path(COMMITS, commit_name(commit.version))
        before = self._read(commit.version - 1)
        if commit.parent and before is not None and before[1] != commit.parent:
            raise Damaged(f"{self._path(COMMITS, commit_name(commit.version - 1))} was replaced by another version")
        if not disk.create_whole(path, msgspec.json.encode(commit), via=via):
            return False
        if max(self.checkpoints(), default=0) >= commit.version:
            # The name was free because the version is so old that its file was removed: no reader will read this one.
            disk.remove(path)
            raise Conflict("many newer versions were committed while this change was prepared")
        return True

    def fold(self, snapshot: Snapshot, *, via: str) -> None:
        """Write a checkpoint. All commits up to it must have been published."""
        data = msgspec.json.encode(snapshot.published())
        disk.write_whole(self._path(HIDDEN, f"{CHECKPOINT}{commit_name(snapshot.version)}"), data, via=via)
        for version in self.checkpoints():
            if version < snapshot.version:
                disk.remove(self._path(HIDDEN, f"{CHECKPOINT}{commit_name(version)}"))
        for version in self._versions():
            if version <= snapshot.version - KEPT:
                disk.remove(self._path(COMMITS, commit_name(version)))

    def checkpoints(self) -> list[int]:
        found = map(checkpoint_version, os.listdir(self._path(HIDDEN)))
        return [version for version in found if version is not None]

    def _versions(self) -> list[int]:
        """Return the versions whose commit files exist."""
        found = map(commit_version, os.listdir(self._path(COMMITS)))
        return [version for version in found if version is not None]

    def _is_newest(self, version: int) -> bool:
        """Return False if a newer version appeared, else True. Raise `Damaged` if one is missing."""
        highest = max(self._versions(), default=0)
        if highest == version:
            return True
        if highest < version:
            raise Damaged(
                f"{self._path(COMMITS)} has versions up to {highest}, but version {version} existed before: the lake "
                "was replaced by an older copy, or lacks files; restore them from a copy"
            )
        if self._read(version + 1) is None and max(self.checkpoints(), default=0) <= version:
            lacking = "and so is the checkpoint, " if version == 0 else ""
            raise Damaged(
                f"{self._path(COMMITS, commit_name(version + 1))} is missing, {lacking}but there are later versions "
                f"up to {highest}: restore it from a copy of the lake"
            )
        return False

    def _after(self, snapshot: Snapshot, commit: Commit, sum: str) -> Snapshot:
        try:
            return snapshot.after(commit, sum)
        except Damaged as error:
            raise Damaged(f"{self._path(COMMITS, commit_name(commit.version))}: {error}") from error

    def _checkpoint_after(self, version: int) -> Snapshot | None:
        while newer := [found for found in self.checkpoints() if found > version]:
            path = self._path(HIDDEN, f"{CHECKPOINT}{commit_name(max(newer))}")
            try:
                with open(path, "rb") as file:
                    return _decode_snapshot(file.read())
            except FileNotFoundError:
                continue  # a newer checkpoint has replaced it
            except msgspec.MsgspecError as error:
                raise Damaged(f"{path}: {error}; bring it back from a copy of the lake") from error
        return None

    def _read(self, version: int) -> tuple[Commit, str] | None:
        """Return a commit and the checksum of its bytes, or None if it does not exist."""
        path = self._path(COMMITS, commit_name(version))
        try:
            with open(path, "rb") as file:
                data = file.read()
            commit = _decode_commit(data)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise Damaged(f"{path}: {error}; bring it back from a copy of the lake") from error
        if commit.version != version:
            raise Damaged(f"{path} holds version {commit.version}")
        return commit, xxhash.xxh3_64_hexdigest(data)

    def _path(self, *parts: str) -> str:
        return os.path.join(self._root, *parts)
