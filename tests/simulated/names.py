"""The directories of a simulated disk: current names, durable names, and the pending changes between them.

A change (create, rename, unlink, mkdir, rmdir) is one journal entry, so it survives completely or not at all. A
sync of a directory that it touches removes it from the journal.
"""

import errno
import os
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from tests.simulated.inode import CrashMode, Inode
from topics.storage.fs import NotAFile

_ROOT = 0


class Dir:
    """One directory. Processes see `entries`; `durable` survives a power loss."""

    __slots__ = ("durable", "entries", "links")

    def __init__(self, entries: dict[str, int] | None = None) -> None:
        self.entries: dict[str, int] = entries if entries is not None else {}
        self.durable = self.entries.copy()
        self.links = 0

    def copy(self) -> "Dir":
        twin = Dir()
        twin.entries, twin.durable, twin.links = self.entries.copy(), self.durable.copy(), self.links
        return twin


class Edit(NamedTuple):
    """The new node of a name in a directory, or None to remove the name."""

    directory: int
    name: str
    meaning: int | None


class NameChange(NamedTuple):
    """Edits of one node that happen atomically."""

    node: int
    edits: tuple[Edit, ...]

    def touches(self, directory: int) -> bool:
        return any(edit.directory == directory for edit in self.edits)

    def keys(self) -> set[object]:
        return {self.node, *((edit.directory, edit.name) for edit in self.edits)}


class DiskNames:
    """All directories and files of a disk, by number, and the journal of changes that are not synced."""

    def __init__(self) -> None:
        self.nodes: dict[int, Inode | Dir] = {_ROOT: Dir()}
        self.nodes[_ROOT].links = 1
        self._next = 1
        self._journal: list[NameChange] = []

    def copy(self) -> "DiskNames":
        twin = DiskNames()
        twin.nodes = {number: node.copy() for number, node in self.nodes.items()}
        twin._next, twin._journal = self._next, self._journal.copy()
        twin._collect()
        return twin

    def inodes(self) -> Iterator[Inode]:
        return (node for node in self.nodes.values() if isinstance(node, Inode))

    def find(self, path: str) -> int:
        at = _ROOT
        for name in _parts(path):
            found = self.entries(at, path).get(name)
            if found is None:
                raise os_error(errno.ENOENT, path)
            at = found
        return at

    def entries(self, number: int, path: str) -> dict[str, int]:
        node = self.nodes[number]
        if not isinstance(node, Dir):
            raise os_error(errno.ENOTDIR, path)
        return node.entries

    def file(self, path: str) -> Inode:
        node = self.nodes[self.find(path)]
        if not isinstance(node, Inode):
            raise NotAFile("a directory", path)
        return node

    def files(self, number: int = _ROOT, path: str = "") -> Iterator[str]:
        node = self.nodes[number]
        if isinstance(node, Inode):
            yield path
        else:
            for name, child in node.entries.items():
                yield from self.files(child, f"{path}/{name}")

    def create(self, path: str) -> Inode:
        """Return the file at `path`. Create it if it does not exist."""
        parent, name = self._place(path)
        if name not in self.entries(parent, path):
            number = self._add(Inode())
            self._change(number, Edit(parent, name, number))
        return self.file(path)

    def mkdir(self, path: str) -> None:
        at = _ROOT
        for name in _parts(path):
            found = self.entries(at, path).get(name)
            if found is None:
                found = self._add(Dir())
                self._change(found, Edit(at, name, found))
            at = found
        if not isinstance(self.nodes[at], Dir):
            raise os_error(errno.EEXIST, path)

    def rmdir(self, path: str) -> None:
        found = self.find(path)
        if self.entries(found, path):
            raise os_error(errno.ENOTEMPTY, path)
        self._change(found, Edit(*self._place(path), None))

    def unlink(self, path: str) -> None:
        self.file(path)
        self._change(self.find(path), Edit(*self._place(path), None))

    def rename(self, src: str, dst: str) -> None:
        moved = self.find(src)
        target = Edit(*self._place(dst), moved)
        replaced = self.entries(target.directory, dst).get(target.name)
        if replaced == moved:
            return
        if replaced is not None:
            self._check_replaces(moved, replaced, dst)
        self._change(moved, Edit(*self._place(src), None), target)

    def sync(self, path: str) -> None:
        """Make every change that touches this directory durable."""
        found = self.find(path)
        self.entries(found, path)
        picked = self._with_causes([change.touches(found) for change in self._journal])
        waiting = []
        for change, pick in zip(self._journal, picked, strict=True):
            if not pick:
                waiting.append(change)
                continue
            for edit in change.edits:
                directory = self.nodes[edit.directory]
                assert isinstance(directory, Dir)
                _enter(directory.durable, edit)
        self._journal = waiting
        self._collect()

    def after_power_loss(self, mode: CrashMode, rng: Random) -> "DiskNames":
        """Return the names after a power loss, all of them durable."""
        names = {number: node.durable.copy() for number, node in self.nodes.items() if isinstance(node, Dir)}
        for change, survives in zip(self._journal, self._surviving(mode, rng), strict=True):
            if survives:
                for edit in change.edits:
                    _enter(names[edit.directory], edit)
        after = DiskNames()
        after._next = self._next
        links = {_ROOT: 1}
        reached = [_ROOT]
        for number in reached:
            node = self.nodes[number]
            image = None if isinstance(node, Dir) else node.after_power_loss(mode, rng)
            after.nodes[number] = Dir(names[number]) if image is None else Inode(image)
            for child in names.get(number, {}).values():
                if child not in links:
                    reached.append(child)
                links[child] = links.get(child, 0) + 1
        for number, count in links.items():
            after.nodes[number].links = count
        return after

    def _surviving(self, mode: CrashMode, rng: Random) -> list[bool]:
        count = len(self._journal)
        if mode == "tear":
            kept = rng.randint(0, count)
            return [number < kept for number in range(count)]
        if mode == "reorder":
            return self._with_causes([rng.random() < 0.5 for _ in range(count)])
        return [mode == "zero"] * count

    def _with_causes(self, picked: list[bool]) -> list[bool]:
        """Also pick the earlier changes to the same names and nodes, which a later change depends on."""
        needed: set[object] = set()
        for number in range(len(picked) - 1, -1, -1):
            keys = self._journal[number].keys()
            picked[number] = picked[number] or not needed.isdisjoint(keys)
            if picked[number]:
                needed |= keys
        return picked

    def _add(self, node: Inode | Dir) -> int:
        number, self._next = self._next, self._next + 1
        self.nodes[number] = node
        return number

    def _place(self, path: str) -> tuple[int, str]:
        """Return the directory of a path and its last name, which may be unused."""
        parts = _parts(path)
        if not parts:
            raise os_error(errno.EBUSY, path)
        parent = self.find("/".join(parts[:-1]))
        self.entries(parent, path)
        return parent, parts[-1]

    def _check_replaces(self, moved: int, replaced: int, dst: str) -> None:
        source, target = self.nodes[moved], self.nodes[replaced]
        if isinstance(source, Inode) and isinstance(target, Dir):
            raise os_error(errno.EISDIR, dst)
        if isinstance(source, Dir) and isinstance(target, Inode):
            raise os_error(errno.ENOTDIR, dst)
        if isinstance(target, Dir) and target.entries:
            raise os_error(errno.ENOTEMPTY, dst)

    def _change(self, node: int, *edits: Edit) -> None:
        for edit in edits:
            entries = self.entries(edit.directory, edit.name)
            old = entries.get(edit.name)
            if old is not None:
                self.nodes[old].links -= 1
            if edit.meaning is not None:
                self.nodes[edit.meaning].links += 1
            _enter(entries, edit)
        self._journal.append(NameChange(node, edits))

    def _collect(self) -> None:
        """Remove nodes that no name, open file or journal entry refers to."""
        used = {_ROOT}
        for number, node in self.nodes.items():
            if isinstance(node, Dir):
                used.update(node.entries.values(), node.durable.values())
            elif node.opens:
                used.add(number)
        for change in self._journal:
            used.add(change.node)
            used.update(edit.directory for edit in change.edits)
        self.nodes = {number: node for number, node in self.nodes.items() if number in used}


def os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _enter(names: dict[str, int], edit: Edit) -> None:
    if edit.meaning is None:
        names.pop(edit.name, None)
    else:
        names[edit.name] = edit.meaning


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    assert ".." not in parts, "paths of an Fs must not contain .."
    return parts
