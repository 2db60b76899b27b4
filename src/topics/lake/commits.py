"""The manifest on disk: numbered commits, each made by one exclusive create, and now and then all of them folded.

Whoever creates the file of the next version has made it; everybody else finds the name taken, looks at what came in
between, and tries the one after. A checkpoint holds what all commits up to its version add up to, so that opening a
lake costs a few files however old it is; commits far below one are removed.

A commit names the checksum of the one it was made from, and the highest of them is never removed. So a version that is
missing shows: as a hole below a higher one, as a checkpoint without the commit that it was made from, or as a parent
that is another one. What only looks complete would have records archived twice, or taken for archived that are gone.
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
KEPT = 64  # commits below a checkpoint: for readers who are a little behind, and for people who want to look

_decode_commit = msgspec.json.Decoder(Commit).decode
_decode_snapshot = msgspec.json.Decoder(Snapshot).decode


class Commits:
    """Reads and adds versions. Remembers the newest it has seen, so that asking again costs little."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._newest: Snapshot | None = None

    def exists(self) -> bool:
        return os.path.isdir(os.path.join(self._root, COMMITS))

    def newest(self) -> Snapshot:
        """The newest version. Raises `NoLake`, and `Damaged` where versions are missing."""
        if not self.exists():
            raise NoLake(f"{self._root} is no lake: topics pipeline archive makes one")
        snapshot = self._newest or Snapshot()
        while True:
            snapshot = self._checkpoint_after(snapshot.version) or snapshot
            while (found := self._read(snapshot.version + 1)) is not None:
                snapshot = self._after(snapshot, *found)
            if self._is_newest(snapshot.version):
                self._newest = snapshot
                return snapshot

    def since(self, version: int) -> list[Commit]:
        """The commits after a version."""
        found: list[Commit] = []
        while (read := self._read(version + len(found) + 1)) is not None:
            found.append(read[0])
        return found

    def unfolded(self) -> list[Commit]:
        """Those since the newest checkpoint: what they ask for may not have been done yet."""
        return self.since(max(self.checkpoints(), default=0))

    def add(self, commit: Commit, *, via: str) -> bool:
        """Makes a version; False if somebody else has made it. `via` is where temporary files go."""
        path = self._path(COMMITS, commit_name(commit.version))
        before = self._read(commit.version - 1)
        if commit.parent and before is not None and before[1] != commit.parent:
            raise Damaged(f"{self._path(COMMITS, commit_name(commit.version - 1))} was replaced by another version")
        if not disk.create_whole(path, msgspec.json.encode(commit), via=via):
            return False
        if max(self.checkpoints(), default=0) >= commit.version:
            # The name was free because the version is so old that its file was removed: nobody will ever read this one.
            disk.remove(path)
            raise Conflict("the lake moved on a long way while this change was being made")
        return True

    def fold(self, snapshot: Snapshot, *, via: str) -> None:
        """Writes a checkpoint. All that commits up to it ask for has been done."""
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
        """Those whose commits are there."""
        found = map(commit_version, os.listdir(self._path(COMMITS)))
        return [version for version in found if version is not None]

    def _is_newest(self, version: int) -> bool:
        """Whether nothing lies behind a version whose next one was not there; False if it has come since."""
        highest = max(self._versions(), default=0)
        if highest == version:
            return True
        if highest < version:
            raise Damaged(
                f"{self._path(COMMITS)} has versions up to {highest}, and {version} was there: the lake was replaced "
                "by an older copy, or lacks files; bring them back"
            )
        if self._read(version + 1) is None and max(self.checkpoints(), default=0) <= version:
            lacking = "and so is the checkpoint, " if version == 0 else ""
            raise Damaged(
                f"{self._path(COMMITS, commit_name(version + 1))} is missing, {lacking}though there are later versions "
                f"up to {highest}: bring it back from a copy of the lake"
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
                continue  # a newer one has taken its place
            except msgspec.MsgspecError as error:
                raise Damaged(f"{path}: {error}; bring it back from a copy of the lake") from error
        return None

    def _read(self, version: int) -> tuple[Commit, str] | None:
        """A commit and the checksum of its bytes."""
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
