"""The columns of a run of records beside their rendered bytes: parallel arrays, and no object per record.

The rendered bytes have the form of `model.record_bytes`. `offsets` cuts them into records; `ts` never decreases;
`tags`, `nodes` and `metas` exist only once a record of the run has one. Ids index a dictionary of the run's own, and 0
means "none".
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from topics.model import record_bytes
from topics.model.records import Projection, TagMatch
from topics.storage.segments.extras import terms_of

# A growing run has `array`s. A sealed run has memoryviews of the same item type. Both return plain ints.
Column: TypeAlias = "array[int] | memoryview"
Ids: TypeAlias = "Sequence[int] | npt.NDArray[np.intp]"


class GrowingNames:
    """The dictionary of a growing run: ids in order of first appearance."""

    __slots__ = ("ids", "names")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = list(names)
        self.ids = {name: at for at, name in enumerate(self.names, 1)}

    def add(self, name: str) -> int:
        known = self.ids.get(name)
        if known is None:
            self.names.append(name)
            known = self.ids[name] = len(self.names)
        return known

    def id_of(self, name: str) -> int:
        return self.ids.get(name, 0)

    def name_of(self, name_id: int) -> str:
        return self.names[name_id - 1]

    def ids_with_prefix(self, prefix: str) -> Ids:
        """Compare every name: 5 ms for 65,536 names."""
        if not prefix:
            return range(1, len(self.names) + 1)
        found = map(str.startswith, self.names, repeat(prefix))
        return np.flatnonzero(np.fromiter(found, np.bool_, len(self.names))) + 1

    def __len__(self) -> int:
        return len(self.names)


class SortedNames:
    """The dictionary of a sealed run: one blob, sorted by bytes, so that a prefix is a range of ids."""

    __slots__ = ("blob", "ends")

    def __init__(self, ends: memoryview, blob: bytes) -> None:
        self.ends = ends
        self.blob = blob

    def _bytes(self, at: int) -> bytes:
        return self.blob[self.ends[at - 1] if at else 0 : self.ends[at]]

    def _lower(self, key: bytes) -> int:
        return bisect_left(range(len(self.ends)), key, key=self._bytes)

    def id_of(self, name: str) -> int:
        key = name.encode()
        at = self._lower(key)
        return at + 1 if at < len(self.ends) and self._bytes(at) == key else 0

    def name_of(self, name_id: int) -> str:
        return self._bytes(name_id - 1).decode()

    def ids_with_prefix(self, prefix: str) -> Ids:
        key = prefix.encode()
        low = self._lower(key)
        high = bisect_left(range(len(self.ends)), True, lo=low, key=lambda at: not self._bytes(at).startswith(key))
        return range(low + 1, high + 1)

    def __len__(self) -> int:
        return len(self.ends)


# The shared dictionary of columns without names. A run gets its own dictionary with its first name: on a server with
# many topics most runs have no names, and each empty dictionary would cost four objects.
NO_NAMES = SortedNames(memoryview(b"").cast("I"), b"")
NO_EXTRAS: Any = MappingProxyType({})


class Columns:
    """The columns of one run: `array` while it grows, memoryviews once it is sealed. Both index the same way."""

    __slots__ = ("extras", "first", "metas", "node_names", "nodes", "offsets", "tag_names", "tags", "ts")

    def __init__(self, first: int) -> None:
        self.first = first
        self.offsets: Column = array("I", [0])
        self.ts: Column = array("Q")
        self.tags: Column | None = None
        self.nodes: Column | None = None
        self.metas: Column | None = None  # bytes of `,"meta":{…}` at the record's end, 0 for none
        self.tag_names: GrowingNames | SortedNames = NO_NAMES
        self.node_names: GrowingNames | SortedNames = NO_NAMES
        self.extras: dict[int, bytes] = NO_EXTRAS  # by position: see `extras`

    def __len__(self) -> int:
        return len(self.ts)

    def tag_at(self, at: int) -> str | None:
        return None if self.tags is None or not (tag := self.tags[at]) else self.tag_names.name_of(tag)

    def key_at(self, at: int) -> str | None:
        return terms_of(self.extras.get(at)).key

    def node_at(self, at: int) -> str | None:
        return None if self.nodes is None or not (node := self.nodes[at]) else self.node_names.name_of(node)

    def matching(self, match: TagMatch, low: int, high: int) -> npt.NDArray[np.intp]:
        """Return the positions in [low, high) whose tag matches. Skip the column if the dictionary has no such tag."""
        if self.tags is None:
            return np.empty(0, np.intp)
        if match.op == "Eq":
            ids: Ids = [found] if (found := self.tag_names.id_of(match.text)) else []
        else:
            ids = self.tag_names.ids_with_prefix(match.text)
        return _positions(self.tags, ids, low, high)

    def from_nodes(self, nodes: Iterable[str], low: int, high: int) -> npt.NDArray[np.intp]:
        """Return the positions in [low, high) written by one of `nodes`."""
        if self.nodes is None:
            return np.empty(0, np.intp)
        ids = [found for node in nodes if (found := self.node_names.id_of(node))]
        return _positions(self.nodes, ids, low, high)

    def part(self, low: int, high: int) -> Columns:
        """Return a copy of the positions [low, high), without names. It must not grow.

        Any thread may ask, while the owner's goes on adding: nothing but the end of a run ever changes, and each column
        is copied in one step of the interpreter.
        """
        part = Columns.__new__(Columns)
        part.first, part.offsets, part.ts = self.first + low, self.offsets[low : high + 1], self.ts[low:high]
        part.tags = None if (tags := self.tags) is None else tags[low:high]
        part.nodes = None if (nodes := self.nodes) is None else nodes[low:high]
        part.metas = None if (metas := self.metas) is None else metas[low:high]
        part.tag_names = part.node_names = NO_NAMES
        extras = self.extras and self.extras.copy()
        part.extras = {at - low: extra for at, extra in extras.items() if low <= at < high} or NO_EXTRAS
        return part

    def records_in(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of positions of the records that have one of the data bytes [start, stop)."""
        offsets = np.frombuffer(self.offsets, np.uint32)
        low = int(np.searchsorted(offsets, start, "right")) - 1
        return low, min(int(np.searchsorted(offsets, stop, "left")), len(self.ts))

    def size_of(self, positions: npt.NDArray[np.intp]) -> int:
        ends = np.frombuffer(self.offsets, np.uint32)
        return int((ends[positions + 1].astype(np.int64) - ends[positions]).sum())


def _positions(column: Column, ids: Ids, low: int, high: int) -> npt.NDArray[np.intp]:
    if not len(ids):
        return np.empty(0, np.intp)
    view = np.frombuffer(column, np.uint32)[low:high]
    if len(ids) == 1:
        hit = view == ids[0]
    elif isinstance(ids, range):
        hit = (view >= ids[0]) & (view <= ids[-1])
    else:
        known = np.asarray(ids, np.intp)
        wanted = np.zeros(max(int(view.max(initial=0)), int(known.max())) + 1, np.bool_)
        wanted[known] = True  # a tenth of the time of `np.isin`
        hit = wanted[view]
    return np.flatnonzero(hit) + low


def runs(positions: npt.NDArray[np.intp]) -> list[tuple[int, int]]:
    """Return ascending positions as contiguous runs, both ends inclusive."""
    if not len(positions):
        return []
    breaks = np.flatnonzero(np.diff(positions) > 1)
    starts = [int(positions[0]), *positions[breaks + 1].tolist()]
    stops = [*positions[breaks].tolist(), int(positions[-1])]
    return list(zip(starts, stops, strict=True))


def extend(
    columns: Columns,
    ts: int,
    sizes: Sequence[int],
    tags: Sequence[str | None] | None,
    nodes: Sequence[str | None] | str | None,
    metas: Sequence[int] | None,
) -> None:
    """Add a batch of records with one commit time. One string as `nodes` is the node of all of them."""
    at, n = len(columns.ts), len(sizes)
    offsets = columns.offsets
    assert isinstance(offsets, array)
    assert isinstance(columns.ts, array)
    offsets.fromlist(list(accumulate(sizes, initial=offsets[-1]))[1:])
    columns.ts.fromlist([ts] * n)
    if tags is not None or columns.tags is not None:
        columns.tag_names = names = _growing(columns.tag_names)
        columns.tags = _extend_ids(columns.tags, names, tags, at, n)
    if nodes is not None or columns.nodes is not None:
        columns.node_names = names = _growing(columns.node_names)
        columns.nodes = _extend_ids(columns.nodes, names, nodes, at, n)
    if metas is not None or columns.metas is not None:
        lengths = _grown(columns.metas, at)
        lengths.extend([0] * n if metas is None else metas)
        columns.metas = lengths


def extend_plain(
    columns: Columns, ts: int, size_bytes: int, tags: Sequence[str | None] | None, node: str | None
) -> bool:
    """Add one record that has at most a tag and a node, faster than `extend`. Return False if that is needed."""
    if columns.metas is not None:
        return False
    offsets, ids, node_ids = columns.offsets, columns.tags, columns.nodes
    if tags is not None or ids is not None:
        if ids is None:
            columns.tag_names = _growing(columns.tag_names)
            ids = columns.tags = _grown(None, len(columns.ts))
        names, tag = columns.tag_names, None if tags is None else tags[0]
        ids.append(0 if tag is None else names.ids.get(tag) or names.add(tag))  # type: ignore[union-attr]
    if node is not None or node_ids is not None:
        if node_ids is None:
            columns.node_names = _growing(columns.node_names)
            node_ids = columns.nodes = _grown(None, len(columns.ts))
        names = columns.node_names
        node_ids.append(0 if node is None else names.ids.get(node) or names.add(node))  # type: ignore[union-attr]
    offsets.append(offsets[-1] + size_bytes)  # type: ignore[union-attr]
    columns.ts.append(ts)  # type: ignore[union-attr]
    return True


def first_of(columns: Columns, n: int, *, tag_names: int, node_names: int) -> Columns:
    """Return the columns of a growing run as they were with this many records and names, on any thread."""
    early = columns.part(0, n)
    early.tag_names = _first_names(columns.tag_names, tag_names)
    early.node_names = _first_names(columns.node_names, node_names)
    return early


def growable(columns: Columns) -> Columns:
    """Return a copy of the columns that takes more records."""
    fresh = Columns(columns.first)
    for name, item in (("offsets", "I"), ("ts", "Q"), ("tags", "I"), ("nodes", "I"), ("metas", "I")):
        if (column := getattr(columns, name)) is not None:
            setattr(fresh, name, array(item, bytes(column)))
    if columns.tags is not None:
        fresh.tag_names = GrowingNames(map(columns.tag_names.name_of, range(1, len(columns.tag_names) + 1)))
    if columns.nodes is not None:
        fresh.node_names = GrowingNames(map(columns.node_names.name_of, range(1, len(columns.node_names) + 1)))
    fresh.extras = dict(columns.extras) or NO_EXTRAS
    return fresh


def _growing(names: GrowingNames | SortedNames) -> GrowingNames:
    """Return the dictionary if it takes more names, or a new one in place of an empty one."""
    if isinstance(names, GrowingNames):
        return names
    assert not len(names), "the dictionary of a sealed run takes no names"
    return GrowingNames()


def _first_names(names: GrowingNames | SortedNames, n: int) -> GrowingNames | SortedNames:
    """Return the dictionary as it was with `n` names. It shares the index of names, which also has later ones."""
    if not n:
        return NO_NAMES
    assert isinstance(names, GrowingNames)
    early = GrowingNames()
    early.names, early.ids = names.names[:n], names.ids
    return early


def _extend_ids(
    column: Column | None, names: GrowingNames, values: Sequence[str | None] | str | None, at: int, n: int
) -> array[int]:
    ids = _grown(column, at)
    if values is None:
        ids.fromlist([0] * n)
    elif isinstance(values, str):
        ids.fromlist([names.add(values)] * n)
    else:
        found: list[Any] = list(map(names.ids.get, values))  # type: ignore[arg-type]
        if None in found:  # a name that is new, or none
            found = [0 if value is None else names.add(value) for value in values]
        ids.fromlist(found)
    return ids


def _grown(column: Column | None, at: int) -> array[int]:
    if column is None:
        return array("I", bytes(4 * at))
    assert isinstance(column, array)
    return column


def render_without(rendered: bytes | memoryview, columns: Columns, at: int, wanted: Projection) -> bytes:
    """Return one stored record with its tag put in, or its meta or data left out. `rendered` is that record."""
    head = record_bytes.head_bytes(columns.first + at, columns.ts[at], columns.node_at(at))
    meta_bytes = 0 if columns.metas is None else columns.metas[at]
    tag = record_bytes.tag_part(columns.tag_at(at)) if wanted.tags else b""
    if wanted.tags and columns.extras:
        tag += record_bytes.key_part(columns.key_at(at))
    return record_bytes.without(rendered, head, meta_bytes, tag=tag, data=wanted.data, meta=wanted.meta)
