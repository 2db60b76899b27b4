"""The manifest on disk: numbered commits, each made by one exclusive create, and now and then all of them folded.

Whoever creates the file of the next version has made it; everybody else finds the name taken, looks at what came in
between, and tries the one after. A checkpoint holds what all commits up to its version add up to, so that opening a
lake costs a few files however old it is; commits far below one are removed.
"""

from __future__ import annotations

import os

import msgspec

from topics.lake import disk
from topics.lake.errors import Conflict, Damaged, NoLake
from topics.lake.layout import CHECKPOINT, COMMITS, HIDDEN, commit_name
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
        """The newest version. Raises `NoLake`."""
        if not self.exists():
            raise NoLake(f"{self._root} is no lake: topics pipeline archive makes one")
        at = self._checkpoint_after(-1 if self._newest is None else self._newest.version)
        snapshot = at or self._newest or Snapshot()
        for commit in self.since(snapshot.version):
            snapshot = snapshot.after(commit)
        self._newest = snapshot
        return snapshot

    def since(self, version: int) -> list[Commit]:
        """The commits after a version."""
        found: list[Commit] = []
        while (commit := self._commit(version + len(found) + 1)) is not None:
            found.append(commit)
        return found

    def unfolded(self) -> list[Commit]:
        """Those since the newest checkpoint: what they ask for may not have been done yet."""
        return self.since(max(self.checkpoints(), default=0))

    def add(self, commit: Commit, *, via: str) -> bool:
        """Makes a version; False if somebody else has made it. `via` is where temporary files go."""
        path = self._path(COMMITS, commit_name(commit.version))
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
        for name in os.listdir(self._path(COMMITS)):
            if name.endswith(".json") and int(name.removesuffix(".json")) <= snapshot.version - KEPT:
                disk.remove(self._path(COMMITS, name))

    def checkpoints(self) -> list[int]:
        names = os.listdir(self._path(HIDDEN))
        return [
            int(name.removeprefix(CHECKPOINT).removesuffix(".json")) for name in names if name.startswith(CHECKPOINT)
        ]

    def _checkpoint_after(self, version: int) -> Snapshot | None:
        while newer := [found for found in self.checkpoints() if found > version]:
            path = self._path(HIDDEN, f"{CHECKPOINT}{commit_name(max(newer))}")
            try:
                with open(path, "rb") as file:
                    return _decode_snapshot(file.read())
            except FileNotFoundError:
                continue  # a newer one has taken its place
            except msgspec.MsgspecError as error:
                raise Damaged(f"{path}: {error}") from error
        return None

    def _commit(self, version: int) -> Commit | None:
        path = self._path(COMMITS, commit_name(version))
        try:
            with open(path, "rb") as file:
                return _decode_commit(file.read())
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise Damaged(f"{path}: {error}") from error

    def _path(self, *parts: str) -> str:
        return os.path.join(self._root, *parts)
