"""Names in order: a page of a list, or all names with a prefix, without looking at the others.

`NamedRows` has rows that are stored whole under a name: schedules and keys.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Generic, TypeVar

import msgspec

from topics.keys import END
from topics.model.access import Revocation, StoredKey
from topics.model.schedule import Schedule
from topics.storage.snapshot import encode_array

Row = TypeVar("Row", bound=Schedule | StoredKey | Revocation)

CHUNK_NAMES = 1000  # inserting into one list of 100,000 names would move half of them


class NameIndex:
    """A sorted set of names in chunks. To add or to remove one costs a chunk's length, to find a prefix a bisection.

    An iterator must not be used any more once a name was added or removed.
    """

    __slots__ = ("_chunks", "_firsts")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._chunks: list[list[str]] = []
        self._firsts: list[str] = []  # of each chunk, except that the first chunk begins before every name
        self.rebuild(names)

    def rebuild(self, names: Iterable[str]) -> None:
        ordered = sorted(names)
        self._chunks = [ordered[at : at + CHUNK_NAMES] for at in range(0, len(ordered), CHUNK_NAMES)] or [[]]
        self._firsts = ["", *(chunk[0] for chunk in self._chunks[1:])]

    def add(self, name: str) -> None:
        at = bisect_right(self._firsts, name) - 1
        chunk = self._chunks[at]
        insort(chunk, name)
        if len(chunk) > 2 * CHUNK_NAMES:
            self._chunks.insert(at + 1, chunk[CHUNK_NAMES:])
            self._firsts.insert(at + 1, chunk[CHUNK_NAMES])
            del chunk[CHUNK_NAMES:]

    def remove(self, name: str) -> None:
        at = bisect_right(self._firsts, name) - 1
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, name)]
        if not chunk and at:
            del self._chunks[at], self._firsts[at]

    def __contains__(self, name: str) -> bool:
        chunk = self._chunks[bisect_right(self._firsts, name) - 1]
        at = bisect_left(chunk, name)
        return at < len(chunk) and chunk[at] == name

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __iter__(self) -> Iterator[str]:
        for chunk in self._chunks:
            yield from chunk

    def starting_with(self, prefix: str, *, after: str = "") -> Iterator[str]:
        """Yield names that begin with `prefix` and come after `after`, in order. Looks at no other names.

        A prefix with `END` is one whole name.
        """
        if prefix.endswith(END):
            name = prefix.removesuffix(END)
            if name > after and name in self:
                yield name
            return
        start = max(prefix, after)
        at = bisect_right(self._firsts, start) - 1
        find = bisect_left if start > after else bisect_right
        low = find(self._chunks[at], start)
        for chunk in self._chunks[at:]:
            for name in chunk[low:] if low else chunk:
                if not name.startswith(prefix):
                    return
                yield name
            low = 0

    def visible(self, prefixes: tuple[str, ...], *, prefix: str = "", after: str = "") -> Iterator[str]:
        """Yield the same for a reader that sees only names with one of `prefixes`; without prefixes it sees all."""
        if not prefixes:
            return self.starting_with(prefix, after=after)
        inside = [one for one in prefixes if one.startswith(prefix)]
        around = [prefix for one in prefixes if prefix.startswith(one)]
        ranges = outermost([*inside, *around])
        return chain.from_iterable(self.starting_with(one, after=after) for one in ranges)


def outermost(prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes that no other one covers, in order: ranges of names that do not overlap."""
    kept: list[str] = []
    for prefix in sorted(prefixes):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return kept


class NamedRows(Generic[Row]):
    """The rows of one kind, which is `type`, by name. A change replaces a row, so a thread may read it."""

    def __init__(self, type: Any) -> None:
        self.by_name: dict[str, Row] = {}
        self.names = NameIndex()
        self.changed: list[Callable[[str, Row | None], None]] = []  # called with every row, or None if it was deleted
        self._decode = msgspec.msgpack.Decoder(list[type]).decode

    def put(self, name: str, row: Row | None) -> None:
        """Create or replace a row, or delete it if `row` is None."""
        if row is None and self.by_name.pop(name, None) is not None:
            self.names.remove(name)
        elif row is not None:
            if name not in self.by_name:
                self.names.add(name)
            self.by_name[name] = row
        for listener in self.changed:
            listener(name, row)

    def save(self) -> Callable[[], Iterator[bytes]] | None:
        """Return what encodes all rows as they are now, on any thread; None if there are none."""
        rows = tuple(self.by_name.values())
        return (lambda: encode_array(iter(rows), len(rows))) if rows else None

    def load(self, raw: msgspec.Raw) -> None:
        self.by_name = {row.name: row for row in self._decode(raw)}
        self.names.rebuild(self.by_name)
