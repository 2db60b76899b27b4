"""Copies: how records of a source become records of a destination, live and in a replay.

A copy depends on the record of the source, the router with its cursor and the state of the destination only, and never
on the moment at which it is made. So it follows from the log and is no entry in it, except on a cycle and out of a
source that the log lacks (`Copies`): see docs/decisions/derived-copies.md. `Mark`, `Trim` and `Resume` pin what would
depend on the moment.

A copy that is larger than the `cap_bytes` of its destination can never be stored there. A destination that rejects
stops its routers at this record; in any other destination the copy gets its seq and is lost with reason `cap`, and the
records before it stay.

The commit time of a copy is that of the record, but not before the last record of the destination, the last change of
its router, or the moment at which a full destination took copies again (`Resume`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from topics.engine import retention
from topics.engine.read.search import eligible, read_around, stretch
from topics.engine.routers.graph import Edge, Links, Router, Table, upstream
from topics.engine.state.topic import Topic
from topics.engine.write import apply
from topics.engine.write.uploads import GATES
from topics.model import surrogates
from topics.model.record_bytes import SEQ_AND_TS_BYTES, encode_json, meta_of, node_part, seq_and_ts, with_meta
from topics.model.records import TagMatch
from topics.model.router import MAX_HOPS, STAMP
from topics.nesting import decode_again
from topics.storage.log.entry import Append
from topics.storage.log.router_entry import Mark
from topics.storage.segments import extras
from topics.storage.segments.extras import Terms
from topics.storage.segments.segment import Segment

BATCH_RECORDS = 256
BATCH_BYTES = 1 << 20


class Piece(Struct):
    """Stored records of a source with one commit time."""

    ts: int
    seqs: Sequence[int]
    rows: list[bytes]
    tags: list[str | None] | None
    nodes: list[str | None] | None
    metas: list[int] | None
    extras: list[bytes | None] | None

    def only(self, kept: Sequence[int]) -> Piece:
        columns = self.seqs, self.rows, self.tags, self.nodes, self.metas, self.extras
        picked: Any = (None if column is None else [column[at] for at in kept] for column in columns)
        return Piece(self.ts, *picked)


Made = list[tuple[Append, Piece]]  # entries of copies, each with the records that it copies
Gathered = tuple[list[Piece], int]  # the records between the cursor of a router and a seq, and that seq


def gather(source: Topic, match: TagMatch | None, cursor: int, upto: int) -> Gathered:
    """Return the live records in (cursor, upto] that match, and how far a full batch goes. None there may be lost.

    Raises `Cold` and `Damaged` like a read.
    """
    for segment, low, high in source.spans(cursor + 1, upto + 1):
        high = stretch(segment.columns, low, min(high, low + BATCH_RECORDS), BATCH_BYTES)
        positions, high = eligible(segment, match, low, high)
        return list(_cut(segment, positions)) if len(positions) else [], segment.first + high - 1
    return [], upto


def _cut(segment: Segment, positions: npt.NDArray[np.intp]) -> Iterator[Piece]:
    """Yield the records at `positions` in pieces. All records of a piece have the same commit time."""
    columns, ats = segment.columns, positions.tolist()
    offsets, base = columns.offsets, columns.offsets[ats[0]]
    blob = read_around(segment, positions)
    for ts, same in groupby(ats, key=columns.ts.__getitem__):
        part: list[int] = list(same)
        yield Piece(
            ts,
            [segment.first + at for at in part],
            [blob[offsets[at] - base : offsets[at + 1] - base] for at in part],
            None if columns.tags is None else [columns.tag_at(at) for at in part],
            None if columns.nodes is None else [columns.node_at(at) for at in part],
            None if columns.metas is None else [columns.metas[at] for at in part],
            [columns.extras.get(at) for at in part] if columns.extras else None,
        )


def count_copies(table: Table, router: Router, n: int, upto: int) -> None:
    """Count `n` more copies of the router, of records up to `upto`."""
    router.forwarded_total += n
    if n and router.config.guarantee == "exactly_once":
        highest = table.stamps.setdefault(router.edge.dest.topic_id, {})
        space = stamp_space(router)
        highest[space] = max(highest.get(space, 0), upto)


def stamp_space(router: Router) -> str:
    """Return what the seqs in the stamps of a router belong to: one epoch of one source."""
    source = router.edge.source
    return f"{router.name} {source.name} {source.epoch}"


def next_part(router: Router, upto: int) -> tuple[int, str | None]:
    """Return how far the router goes in one step, at most to `upto`, and what it passes.

    That is the reason for which these records were lost, "" if they were deleted, or None if there are records to copy.
    """
    source, start = router.edge.source, router.cursor + 1
    if source.losses.runs:
        if (run := source.losses.covering(start)) is not None:
            return min(run[1], upto), run[2]
        if (lost := source.losses.next_from(start)) is not None:
            upto = min(upto, lost - 1)
    return (min(source.earliest - 1, upto), "") if start < source.earliest else (upto, None)


def count_lost(router: Router, upto: int, coming: Append | None = None) -> int:
    """Return how many records the router would have forwarded up to `upto`. Lost records count, too.

    A filter on other fields than the tag is not applied: the records need not be readable any more. Behind the head, of
    pending writes, only those of `coming` are known; the others count.
    """
    source, start = router.edge.source, router.reached + 1
    match = router.config.filter
    match = None if match is None or match.op == "Where" else match
    lost, head = 0, min(upto, source.head)
    for segment, low, high in list(source.spans(start, head + 1)):
        whole = high == segment.count and segment.first + low <= max(source.earliest, segment.first)
        if match is None and whole:
            lost += segment.live
        elif segment.live and retention.ready(source, segment):
            # One segment at a time: its columns may be unloaded before the next segment is counted.
            lost += len(eligible(segment, match, low, high)[0])
    if start <= head:
        lost += source.losses.within(start, head)[0]
    for seq in range(max(source.head + 1, start), upto + 1):
        if match is None or coming is None or not coming.first <= seq <= coming.last:
            lost += 1
        else:
            lost += coming.tags is not None and match.covers(coming.tags[seq - coming.first])
    return lost


def mark(links: Links, *, head: int, out: bool, holds: bool) -> Mark:
    """Return how far the routers into the topic have come, and with `out` those that read from it, too."""
    others: list[tuple[int, int]] = []
    if links.incoming is not None and links.incoming.source.config.durability != "ephemeral":
        others += [(router.router_id, router.reached) for router in links.incoming.routers]
    upto = -1
    if out:
        cursors = {router.router_id: router.reached for router in links.routers()}
        upto = max(cursors.values(), default=0)
        others += [(router_id, cursor) for router_id, cursor in cursors.items() if cursor != upto]
    return Mark(links.topic.topic_id, head, upto, others, holds)


def used(dest: Topic) -> tuple[int, int]:
    """Return how many records and bytes count against the caps of the destination."""
    return dest.count + dest.staged_count, dest.bytes + dest.staged_bytes


def room(dest: Topic, sizes: Sequence[int], used: tuple[int, int]) -> int:
    """Return how many of these records, from the first on, fit beside those that are `used`.

    Only a destination that rejects takes fewer than all.
    """
    config = dest.config
    if config.discard != "reject":
        return len(sizes)
    fits = len(sizes)
    spare_records, spare_bytes = (0, 0) if config.archive is None else retention.spare(dest)
    if config.cap_records:
        fits = min(fits, max(config.cap_records - used[0] + spare_records, 0))
    if config.cap_bytes:
        left = config.cap_bytes - used[1] + spare_bytes
        for at, size in enumerate(sizes[:fits]):
            left -= size
            if left < 0:
                return at
    return fits


def storable(dest: Topic, sizes: Sequence[int]) -> tuple[int, bool]:
    """Return how many records, from the first on, `dest` may or may not hold alike, and whether it may hold these."""
    cap_bytes = dest.config.cap_bytes
    if not cap_bytes:
        return len(sizes), True
    fits = sizes[0] <= cap_bytes
    return next((at for at, size in enumerate(sizes) if (size <= cap_bytes) != fits), len(sizes)), fits


def reach(topic: Topic, entry: Append, n: int) -> int:
    """Return the seq below which the first `n` records of the entry would evict all records."""
    sizes = entry.sizes if n == len(entry.sizes) else entry.sizes[:n]
    return retention.reach(topic, first=entry.first, sizes=sizes, ts=entry.ts, before_bytes=topic.staged_bytes)


def gate_of(edge: Edge) -> int:
    """Return the gate of a step that decides the seqs or times of copies: that of the records they follow from."""
    return max(GATES[topic.config.durability] for topic in upstream(edge.source))


class Copier:
    def __init__(self, table: Table, router: Router) -> None:
        self._table = table
        self._edge = edge = router.edge
        self._router = router
        self._known = 0  # the highest seq of the source that ever got a stamp here: no later record can be present
        if router.config.guarantee == "exactly_once":
            self._known = table.stamps.get(edge.dest.topic_id, {}).get(stamp_space(router), 0)

    def entries(self, pieces: list[Piece], next_seq: int) -> Made:
        """Return the entry of each piece that has records to copy. Raises `Cold`."""
        last_ts, made = max(self._edge.dest.last_ts, self._edge.floor_ms), []
        for piece in pieces:
            wanted = self._wanted(piece)
            if wanted is not None:
                last_ts = max(last_ts, piece.ts)
                made.append((self._entry(wanted, next_seq, last_ts), wanted))
                next_seq += len(wanted.seqs)
        return made

    def land(self, entry: Append, piece: Piece, fits: int) -> bool:
        """Add up to `fits` copies to the destination and move the router behind them. Return whether these were all.

        Copies that are too large for the destination are lost. What is left has to be made again. The caller notifies
        the readers.
        """
        dest, router = self._edge.dest, self._router
        n, can_be_stored = storable(dest, entry.sizes)
        n = min(n, fits)
        upto = piece.seqs[n - 1]
        if can_be_stored:
            apply.append(self._table.state, dest, self.part(entry, piece, n))
            count_copies(self._table, router, n, upto)
        else:
            retention.lose_next(dest, n)
        router.cursor = max(router.cursor, upto)
        return n == len(entry.sizes)

    def part(self, entry: Append, piece: Piece, n: int) -> Append:
        """Return the entry with the first `n` copies alone."""
        return entry if n == len(entry.sizes) else self._entry(piece.only(range(n)), entry.first, entry.ts)

    # --- which records

    def _wanted(self, piece: Piece) -> Piece | None:
        """Return the piece without records that were in the destination before, by path or by stamp. Raises `Cold`."""
        chosen, dest = list(range(len(piece.seqs))), self._edge.dest
        if piece.extras is not None:
            paths = [extras.path_of(extra) for extra in piece.extras]
            chosen = [at for at in chosen if dest.topic_id not in paths[at] and len(paths[at]) < MAX_HOPS]
        if self._known and piece.seqs[0] <= self._known:
            present = self._router.present = self._router.present or Stamps(dest)
            present.look_on()
            chosen = [at for at in chosen if not present.has(self._key(piece.seqs[at]))]
        if len(chosen) == len(piece.seqs):
            return piece
        return piece.only(chosen) if chosen else None

    # --- rendering

    def _entry(self, piece: Piece, first: int, ts: int) -> Append:
        config, edge = self._router.config, self._edge
        nodes = piece.nodes if config.preserve_node else None
        ends, is_exact = (piece.seqs[0], piece.seqs[-1], piece.ts), config.guarantee == "exactly_once"
        if ends == (first, first + len(piece.seqs) - 1, ts) and nodes is piece.nodes and not is_exact:
            rows, metas = piece.rows, piece.metas
        else:
            rows, metas = self._render(piece, first, ts)
        sizes, tags = list(map(len, rows)), piece.tags if config.preserve_tag else None
        extra = self._extras(piece) or None
        return Append(edge.dest.topic_id, first, ts, sizes, b"".join(rows), tags, nodes, metas, None, extra)

    def _render(self, piece: Piece, first: int, ts: int) -> tuple[list[bytes], list[int] | None]:
        """Return the records with other seqs and times, and without the node or with a stamp if the router says so."""
        rows, metas = [], []
        numbers = SEQ_AND_TS_BYTES + len(str(piece.ts))  # `head_bytes`, as far as all records have it in common
        drops_node = not self._router.config.preserve_node
        stamped = self._router.config.guarantee == "exactly_once"
        for at, row in enumerate(piece.rows):
            head = numbers + len(str(piece.seqs[at]))
            if drops_node and piece.nodes is not None:
                head += len(node_part(piece.nodes[at]))
            meta_size = 0 if piece.metas is None else piece.metas[at]
            rest = row[head:]
            if stamped:
                rest, meta_size = self._stamp(rest, meta_size, piece.seqs[at])
            rows.append(seq_and_ts(first + at, ts) + rest)
            metas.append(meta_size)
        return rows, metas if any(metas) else None

    def _stamp(self, rest: bytes, meta_size: int, seq: int) -> tuple[bytes, int]:
        meta = meta_of(rest, meta_size) if meta_size else b"{}"
        if b"_topics_router" in meta:
            members = {name: value for name, value in surrogates.members(meta).items() if name != STAMP}
            meta = surrogates.object_of(members)
        source = self._edge.source
        stamp = encode_json(Stamp(self._router.name, source.name, source.epoch, seq, self._key(seq)))
        others = meta[1:].lstrip()
        stamped = b'{"%b":%b%b%b' % (STAMP.encode(), stamp, b"" if others == b"}" else b",", others)
        return with_meta(rest, meta_size, stamped)

    def _extras(self, piece: Piece) -> dict[int, bytes]:
        """Return the key of every record, and the path of every record that may come back to this source."""
        cyclic, here = self._edge.cyclic, self._edge.source.topic_id
        if not cyclic and piece.extras is None:
            return {}
        found = {}
        for at, extra in enumerate(piece.extras or [None] * len(piece.seqs)):
            key, path = extras.terms_of(extra).key, extras.path_of(extra)
            if cyclic or path or key is not None:
                passed = [*path, here] if cyclic or path else None
                found[at] = extras.pack(None if key is None else Terms(key=key), passed)
        return found

    def _key(self, seq: int) -> str:
        return f"{self._router.name}/{self._edge.source.name}/{self._edge.source.epoch}/{seq}"


# --- stamps of `exactly_once` routers in the `meta` of copies


class Stamp(Struct):
    router: str
    source: str
    epoch: int
    seq: int
    key: str


_decode_stamp = msgspec.json.Decoder(Stamp).decode


class Stamps:
    """The stamps in a destination. The search looks at all of its records, and continues where it stopped."""

    def __init__(self, dest: Topic) -> None:
        self._dest = dest
        self._upto = 0  # the last seq that was looked at
        self._found: dict[str, tuple[int, ...]] = {}  # by key: a writer may have put the same one into several records

    def has(self, key: str) -> bool:
        return any(map(self._dest.is_live, self._found.get(key, ())))

    def look_on(self) -> None:
        """Look at new records of the destination. Raises `Cold`; the next call continues where this one stopped."""
        dest = self._dest
        for segment, low, high in dest.spans(max(self._upto + 1, dest.earliest), dest.head + 1):
            self._upto, end = segment.first + low - 1, segment.first + high - 1
            # Bound: the batches of the segment. One without `meta` has no stamps.
            while segment.live and segment.columns.metas is not None and self._upto < end:
                pieces, self._upto = gather(dest, None, self._upto, end)
                for piece in pieces:
                    for seq, row, size in zip(piece.seqs, piece.rows, piece.metas or (), strict=False):
                        self._note(seq, meta_of(row, size) if size else b"")
            self._upto = end

    def _note(self, seq: int, meta: bytes) -> None:
        raw = surrogates.members(meta).get(STAMP) if b"_topics_router" in meta else None
        with suppress(msgspec.MsgspecError):  # a client may have written anything under that name
            if raw is not None:
                key = decode_again(_decode_stamp, raw).key
                self._found[key] = (*self._found.get(key, ()), seq)
