"""Copies: how records of a source become records of a destination, live and in a replay. Pure.

A copy follows from the log and is no entry in it. Only the frame of the source is written, however many routers there
are, and a restart makes the copies again, with the same seqs and commit times. That works because a copy depends on the
record of the source, the cursor of the router and the state of the destination only, and never on the moment at which
it is made: live that is some time after the write to the source, in pieces; in a replay it is when the copy is needed.

The log pins what would depend on the moment. Some entries about a linked topic affect copies, or are affected by them:
a direct write to a destination, a delete, a new configuration, a dropped topic, a changed router. A `Mark` before such
an entry says how far the routers around the topic are, and they do not move until the entry has taken effect. A replay
moves them to exactly there first. A plain append to a source needs no mark, because it changes nothing about earlier
records: the common case costs no byte. If an append evicts records (cap, TTL) that a router has not forwarded yet, a
`Trim` before it says what the router gives up, and readers of the destination get a tombstone with reason
`source_trim`. A replay forwards records before it evicts them, unless a `Trim` or a `Mark` says otherwise, because the
live server had forwarded them by then.

A copy that is larger than the `cap_bytes` of its destination can never be stored there. A destination that rejects
stops its routers at this record; in any other destination the copy gets its seq and is lost with reason `cap`, and the
records before it stay.

The commit time of a copy is that of the record, but not before the last record of the destination, the creation of its
router, or the moment at which a full destination took copies again (`Resume`).

On a cycle copies do not follow from the log: a router depends on what comes back to it, so the order of two routers
decides which records a cap evicts. Routers on a cycle therefore log every step, with its copies (`Copies`), and a
replay follows these entries. A router joins or leaves a cycle with an entry of the log; the entry that closes a cycle
comes after marks for everything on it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from topics.engine import retention
from topics.engine.routers.graph import Edge, Links, Router, Table
from topics.engine.state.topic import Topic
from topics.model import surrogates
from topics.model.nesting import decode_again
from topics.model.record_bytes import (
    SEQ_AND_TS_BYTES,
    encode_json,
    meta_of,
    node_part,
    renumbered,
    with_meta,
)
from topics.model.records import TagMatch
from topics.model.router import MAX_HOPS, STAMP
from topics.storage.log.entry import Append
from topics.storage.log.router_entry import Mark
from topics.storage.segments.cold import Cold, Needs
from topics.storage.segments.columns import Columns, runs
from topics.storage.segments.segment import Damaged, Rendered, Segment

BATCH_RECORDS = 256
BATCH_BYTES = 1 << 20
AHEAD_BYTES = 1 << 20  # fetched at once if records are not in memory
PATH = b"r"  # begins the extras of a record that came through a cycle; the ids of the topics it has passed follow

_encode = msgspec.msgpack.encode
_decode_path = msgspec.msgpack.Decoder(list[int]).decode


class Stamp(Struct):
    """The origin of an `exactly_once` copy."""

    router: str
    source: str
    epoch: int
    seq: int
    key: str


_decode_stamp = msgspec.json.Decoder(Stamp).decode


class Piece(Struct):
    """Stored records of a source with one commit time. Contiguous if `blob` is set."""

    ts: int
    seqs: Sequence[int]
    rows: list[bytes]
    tags: list[str | None] | None
    nodes: list[str | None] | None
    metas: list[int] | None
    extras: list[bytes | None] | None
    blob: bytes | None

    def only(self, kept: list[int]) -> Piece:
        def of(column: Sequence[object] | None) -> list[object] | None:
            return None if column is None else [column[at] for at in kept]

        picked: Any = [of(column) for column in (self.seqs, self.rows, self.tags, self.nodes, self.metas, self.extras)]
        seqs, rows, tags, nodes, metas, extras = picked
        return Piece(self.ts, seqs, rows, tags, nodes, metas, extras, None)


class Eligible(Struct, gc=False):
    """What a filter finds in a part of a segment: how many records, their bytes, and the first and last position."""

    live: int  # including records that do not match
    count: int
    size_bytes: int
    first: int
    last: int


class Gathered(Struct):
    """The records between the cursor of a router and `upto`."""

    pieces: list[Piece]
    upto: int


def comes_back(edge: Edge, reason: str) -> bool:
    """Return whether a loss is the echo of a loss, which would be reported around a cycle for ever."""
    return reason == "source_trim" and edge.cyclic


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


def skippable(source: Topic, router: Router, upto: int) -> int:
    """Return the last seq up to which, from the cursor on, all records are deleted."""
    if router.cursor + 1 < source.earliest and source.losses.covering(router.cursor + 1) is None:
        lost = source.losses.next_from(router.cursor + 1)
        return min(source.earliest - 1, upto, upto if lost is None else lost - 1)
    return router.cursor


def gather(source: Topic, match: TagMatch | None, cursor: int, upto: int) -> Gathered:
    """Return the live records in (cursor, upto] that match, up to a full batch. No record in the range may be lost.

    Raises `Cold` and `Damaged` like a read.
    """
    for segment, low, high in source.spans(cursor + 1, upto + 1):
        high = _enough(segment, low, high)
        positions = eligible(segment, match, low, high)
        if not len(positions):
            return Gathered([], segment.first + high - 1)
        return Gathered(list(_cut(segment, positions)), segment.first + high - 1)
    return Gathered([], upto)


def eligible(segment: Segment, match: TagMatch | None, low: int, high: int) -> npt.NDArray[np.intp]:
    """Return the positions in [low, high) that a router with this filter forwards."""
    if match is None:
        return segment.live_positions(low, high)
    positions, marks = segment.columns.matching(match, low, high), segment.marks
    return positions if marks is None else positions[np.frombuffer(marks, np.uint8)[positions] == 0]


def count_lost(router: Router, upto: int) -> int:
    """Return how many records the router would have forwarded up to `upto`. Lost records count, too."""
    source, start = router.edge.source, router.reached + 1
    if start > upto:
        return 0
    live = 0
    for segment, low, high in list(source.spans(start, upto + 1)):
        whole = high == segment.count and segment.first + low <= max(source.earliest, segment.first)
        if router.config.filter is None and whole:
            live += segment.live
        elif segment.live and retention.ready(source, segment):
            # One segment at a time: its columns may be unloaded before the next segment is counted.
            live += len(eligible(segment, router.config.filter, low, high))
    gone = source.losses.within(start, upto)[0]
    return live + gone


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


def look_for(segment: Segment, match: TagMatch | None, low: int, high: int, *, from_ts: int | None = None) -> Eligible:
    """Return what a filter finds in [low, high) among records from `from_ts` on. Keeps no columns in memory."""

    def look(columns: Columns, marks: bytearray | None) -> Eligible:
        start = low if from_ts is None else bisect_left(columns.ts, from_ts, low, high)
        live = high - start if marks is None else marks.count(0, start, high)
        positions = np.arange(start, high) if match is None else columns.matching(match, start, high)
        if marks is not None:
            positions = positions[np.frombuffer(marks, np.uint8)[positions] == 0]
        if not len(positions):
            return Eligible(live, 0, 0, 0, 0)
        return Eligible(live, len(positions), columns.size_of(positions), int(positions[0]), int(positions[-1]))

    key = None if match is None else (match.op, match.text)
    return segment.look(("eligible", key, low, high, from_ts), look)


def _enough(segment: Segment, low: int, high: int) -> int:
    high = min(high, low + BATCH_RECORDS)
    offsets = segment.columns.offsets
    while high - low > 1 and offsets[high] - offsets[low] > BATCH_BYTES:
        high = low + (high - low) // 2
    return high


def _cut(segment: Segment, positions: npt.NDArray[np.intp]) -> Iterator[Piece]:
    """Yield the records at `positions`, cut where the commit time changes."""
    columns = segment.columns
    ats: list[int] = positions.tolist()
    offsets, base = columns.offsets, columns.offsets[ats[0]]
    blob = _read_around(segment, positions)
    times = [columns.ts[at] for at in ats]
    begin = 0
    for end in range(1, len(ats) + 1):
        if end < len(ats) and times[end] == times[begin]:
            continue
        part = ats[begin:end]
        rows = [blob[offsets[at] - base : offsets[at + 1] - base] for at in part]
        unbroken = part[-1] - part[0] == len(part) - 1
        yield Piece(
            times[begin],
            [segment.first + at for at in part],
            rows,
            None if columns.tags is None else [columns.tag_at(at) for at in part],
            None if columns.nodes is None else [columns.node_at(at) for at in part],
            None if columns.metas is None else [columns.metas[at] for at in part],
            [columns.extras.get(at) for at in part] if columns.extras else None,
            blob[offsets[part[0]] - base : offsets[part[-1] + 1] - base] if unbroken else None,
        )
        begin = end


def _read_around(segment: Segment, positions: npt.NDArray[np.intp]) -> bytes:
    """Return the bytes from the first position to the last. Damaged bytes that no position needs are zero."""
    start, stop = int(positions[0]), int(positions[-1]) + 1
    try:
        return bytes(_read_ahead(segment, start, stop))
    except Damaged as damage:
        if damage.concerns(positions):
            raise
    offsets, base = segment.columns.offsets, segment.columns.offsets[start]
    blob, needs = bytearray(offsets[stop] - base), Needs()
    for first, last in runs(positions):
        try:
            blob[offsets[first] - base : offsets[last + 1] - base] = segment.read(first, last + 1)
        except Cold as cold:
            needs.add(cold)
    needs.check()
    return bytes(blob)


def _read_ahead(segment: Segment, start: int, stop: int) -> Rendered:
    """Return the records of [start, stop). `Cold` asks for more: the records behind them are probably not in memory."""
    try:
        return segment.read(start, stop)
    except Cold:
        held = segment.read_held(start, stop)
        if held is not None and held.upto == stop:
            return held.data
        raise Cold([segment.need(start, stop, at_least_bytes=AHEAD_BYTES)]) from None


def storable(dest: Topic, sizes: Sequence[int]) -> int:
    """Return how many of these records come before the first that is larger than everything `dest` may hold."""
    cap_bytes = dest.config.cap_bytes
    if not cap_bytes or max(sizes) <= cap_bytes:
        return len(sizes)
    return next(at for at, size in enumerate(sizes) if size > cap_bytes)


def too_large(dest: Topic, sizes: Sequence[int]) -> int:
    """Return how many of these records, from the first on, are larger than everything `dest` may hold."""
    cap_bytes = dest.config.cap_bytes
    return next((at for at, size in enumerate(sizes) if not cap_bytes or size <= cap_bytes), len(sizes))


class Copier:
    """Turns the records of a source into entries of one destination."""

    def __init__(self, table: Table, edge: Edge, router: Router) -> None:
        self._table = table
        self._edge = edge
        self._router = router
        self._tracks = edge.cyclic
        self._epoch = edge.source.epoch
        self._known = self._stamped_before()

    def entries(self, gathered: Gathered, next_seq: int) -> Iterator[tuple[Append, Piece]]:
        """Yield the entry of each piece that has records to copy, and the piece."""
        last_ts = max(self._edge.dest.last_ts, self._edge.floor_ms)
        for piece in gathered.pieces:
            wanted = self._wanted(piece)
            if wanted is not None:
                last_ts = max(last_ts, piece.ts)
                entry = self._entry(wanted, next_seq, last_ts)
                next_seq += len(entry.sizes)
                yield entry, wanted

    def copied(self, piece: Piece) -> None:
        """Count the copies of a piece that is in the destination now."""
        count_copies(self._table, self._router, len(piece.seqs), piece.seqs[-1])

    def part(self, piece: Piece, low: int, high: int, first: int) -> tuple[Append, Piece]:
        """Return the entry of some of a piece's records, with seqs from `first` on."""
        return next(self.entries(Gathered([piece.only(list(range(low, high)))], 0), first))

    # --- which records

    def _wanted(self, piece: Piece) -> Piece | None:
        """Return the piece without records that were in the destination before, by path or by stamp."""
        kept = range(len(piece.seqs))
        chosen = [at for at in kept if self._new_here(piece, at)] if piece.extras is not None else list(kept)
        if self._known and piece.seqs[0] <= self._known:
            present = self._present()
            chosen = [at for at in chosen if not present.has(self._key(piece.seqs[at]))]
        if len(chosen) == len(kept):
            return piece
        return piece.only(chosen) if chosen else None

    def _new_here(self, piece: Piece, at: int) -> bool:
        path = _path(piece, at)
        return self._edge.dest.topic_id not in path and len(path) < MAX_HOPS

    # --- rendering

    def _entry(self, piece: Piece, first: int, ts: int) -> Append:
        config, edge = self._router.config, self._edge
        nodes = piece.nodes if config.preserve_node else None
        stamped = config.guarantee == "exactly_once"
        if (
            piece.blob is not None
            and piece.seqs[0] == first
            and piece.ts == ts
            and nodes is piece.nodes
            and not stamped
        ):
            blob, sizes, metas = piece.blob, [len(row) for row in piece.rows], piece.metas
        else:
            rows, metas = self._render(piece, first, ts)
            blob, sizes = b"".join(rows), [len(row) for row in rows]
        extras = self._extras(piece)
        return Append(
            edge.dest.topic_id, first, ts, sizes, blob,
            piece.tags if config.preserve_tag else None, nodes, metas, None, extras or None,
        )  # fmt: skip

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
            rows.append(renumbered(first + at, ts, rest))
            metas.append(meta_size)
        return rows, metas if any(metas) else None

    def _stamp(self, rest: bytes, meta_size: int, seq: int) -> tuple[bytes, int]:
        meta = meta_of(rest, meta_size) if meta_size else b"{}"
        if b"_topics_router" in meta:
            members = {name: value for name, value in surrogates.members(meta).items() if name != STAMP}
            meta = surrogates.object_of(members)
        source = self._edge.source
        stamp = encode_json(Stamp(self._router.name, source.name, self._epoch, seq, self._key(seq)))
        others = meta[1:].lstrip()
        stamped = b'{"%b":%b%b%b' % (STAMP.encode(), stamp, b"" if others == b"}" else b",", others)
        return with_meta(rest, meta_size, stamped)

    def _extras(self, piece: Piece) -> dict[int, bytes]:
        """Return the path of every record that may come back to this source."""
        if not self._tracks and piece.extras is None:
            return {}
        here = self._edge.source.topic_id
        found = {}
        for at in range(len(piece.seqs)):
            path = _path(piece, at)
            if self._tracks or path:
                found[at] = PATH + _encode([*path, here])
        return found

    # --- exactly once

    def _key(self, seq: int) -> str:
        return f"{self._router.name}/{self._edge.source.name}/{self._epoch}/{seq}"

    def _stamped_before(self) -> int:
        """Return the highest seq of the source that ever got a stamp here: no later record can be present."""
        if self._router.config.guarantee != "exactly_once":
            return 0
        return self._table.stamps.get(self._edge.dest.topic_id, {}).get(stamp_space(self._router), 0)

    def _present(self) -> Stamps:
        """Return the stamps of the destination, up to its head. Raises `Cold` like a read."""
        if self._router.present is None:
            self._router.present = Stamps(self._edge.dest)
        self._router.present.look_on()
        return self._router.present


def _path(piece: Piece, at: int) -> list[int]:
    if piece.extras is None or (extra := piece.extras[at]) is None or not extra.startswith(PATH):
        return []
    return _decode_path(extra[1:])


class Stamps:
    """The stamps in a destination. The search looks at all of its records, and continues where it stopped."""

    def __init__(self, dest: Topic) -> None:
        self._dest = dest
        self._upto = 0  # the last seq that was looked at
        self._found: dict[str, tuple[int, ...]] = {}  # by key: a writer may have put the same one into several records

    def has(self, key: str) -> bool:
        """Return whether a live record has the key."""
        return any(map(self._dest.is_live, self._found.get(key, ())))

    def look_on(self) -> None:
        """Look at new records of the destination. Raises `Cold`; the next call continues where this one stopped."""
        dest = self._dest
        for segment, low, high in dest.spans(max(self._upto + 1, dest.earliest), dest.head + 1):
            if segment.live and segment.columns.metas is not None:
                for at in range(low, high, BATCH_RECORDS):
                    self._look_at(segment, at, min(at + BATCH_RECORDS, high))
            self._upto = segment.first + high - 1

    def _look_at(self, segment: Segment, low: int, high: int) -> None:
        columns = segment.columns
        metas = columns.metas
        assert metas is not None
        ats = [at for at in segment.live_positions(low, high).tolist() if metas[at]]
        if ats:
            base = columns.offsets[ats[0]]
            block = _read_ahead(segment, ats[0], ats[-1] + 1)
            for at in ats:
                row = bytes(block[columns.offsets[at] - base : columns.offsets[at + 1] - base])
                meta = meta_of(row, metas[at])
                if b"_topics_router" in meta:
                    for key in _key_in(meta):
                        self._found[key] = (*self._found.get(key, ()), segment.first + at)
        self._upto = segment.first + high - 1


def _key_in(meta: bytes) -> Iterator[str]:
    """Yield the key of a stamp. A client may have written anything under that name: skip what is no stamp."""
    raw = surrogates.members(meta).get(STAMP)
    if raw is not None:
        try:
            yield decode_again(_decode_stamp, raw).key
        except msgspec.MsgspecError:
            return
