"""Copies: records of a source become records of a destination. Pure: told how far to go, live and replayed the same.

A copy is a consequence of the log, not an entry in it. The source's frame is the only thing written, however many
routers there are, and a restart makes the copies again, with the same seqs and commit times. That holds because
everything a copy is made of comes from the source's record, the router's cursor and the destination's state, and
never from the moment at which it happens to be made: live it runs some time after the source's write, in pieces; in
a replay when it is needed.

What could come out differently depending on the moment is pinned in the log. Whenever an entry about a linked topic
is logged that a copy could notice, or that could notice a copy (a direct write to a destination, a delete, a new
configuration, a dropped topic, a changed router), a `Mark` before it says how far the routers around that topic had
come, and until the entry has taken effect they do not move. A replay brings them to exactly there first. Plain
appends to a source carry no mark: new records at the end change nothing about those before, and so the common case
costs no byte. Where an append does take something away (a cap, a TTL) from a router that has not got there yet, a
`Trim` before it says what the router gives up, and the destination's readers find a tombstone with reason
`source_trim`. A replay forwards what is about to be evicted first, unless a `Trim` or a `Mark` told it otherwise,
because live it had been forwarded by then.

A copy that is larger than its destination's `cap_bytes` could never be stored there. A destination that rejects holds
its routers because of it; in any other the copy gets its seq and is lost with reason `cap`, and the records before it
stay.

The commit time of a copy is that of the source's record, but never before the destination's last one, the creation
of its router, or the moment a full destination took copies again (`Resume`).

On a cycle nothing is derived. There "before" has no end: what a router does depends on what comes back to it, so which
of two routers was first decides what a cap takes. Routers on a cycle therefore log every step they take, copies
included (`Copies`), and a replay follows them. A router becomes one of a cycle, or ceases to be, with an entry of the
log; the one that closes a cycle comes behind marks for everything on it.
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
from topics.engine.routers.graph import Feed, Links, Router, Table
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
AHEAD_BYTES = 1 << 20  # fetched at once where records are not in memory
PATH = b"r"  # begins the extras of a record that came through a cycle; the ids of the topics it has passed follow

_encode = msgspec.msgpack.encode
_decode_path = msgspec.msgpack.Decoder(list[int]).decode


class Stamp(Struct):
    """Where an `exactly_once` copy comes from."""

    router: str
    source: str
    epoch: int
    seq: int
    key: str


_decode_stamp = msgspec.json.Decoder(Stamp).decode


class Piece(Struct):
    """Records of a source with one commit time, as they are stored there. Unbroken where `blob` is set."""

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

    live: int  # those that the filter leaves out included
    count: int
    size_bytes: int
    first: int
    last: int


class Gathered(Struct):
    """What a router finds between its cursor and `upto`."""

    pieces: list[Piece]
    upto: int


def comes_back(feed: Feed, reason: str) -> bool:
    """Whether a loss is itself the echo of a loss, which would be told around a cycle for ever."""
    return reason == "source_trim" and feed.cyclic


def count_copies(table: Table, router: Router, n: int, upto: int) -> None:
    """The router has made `n` more copies, of records up to `upto`."""
    router.forwarded_total += n
    if n and router.config.guarantee == "exactly_once":
        highest = table.stamps.setdefault(router.feed.dest.topic_id, {})
        space = stamp_space(router)
        highest[space] = max(highest.get(space, 0), upto)


def stamp_space(router: Router) -> str:
    """What the seqs in a router's stamps belong to: one life of one source."""
    source = router.feed.source
    return f"{router.name} {source.name} {source.epoch}"


def skippable(source: Topic, router: Router, upto: int) -> int:
    """The last seq up to which, from the cursor on, there is nothing but deleted records."""
    if router.cursor + 1 < source.earliest and source.losses.covering(router.cursor + 1) is None:
        lost = source.losses.next_from(router.cursor + 1)
        return min(source.earliest - 1, upto, upto if lost is None else lost - 1)
    return router.cursor


def gather(source: Topic, match: TagMatch | None, cursor: int, upto: int) -> Gathered:
    """The live records in (cursor, upto] that match, up to the end of a batch. Nothing in the range may be lost.

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
    """Positions in [low, high) that a router with this filter forwards."""
    if match is None:
        return segment.live_positions(low, high)
    positions, marks = segment.columns.matching(match, low, high), segment.marks
    return positions if marks is None else positions[np.frombuffer(marks, np.uint8)[positions] == 0]


def count_lost(router: Router, upto: int) -> int:
    """How many records the router would have forwarded up to `upto`; those that are lost already count, too."""
    source, start = router.feed.source, router.reached + 1
    if start > upto:
        return 0
    live = 0
    for segment, low, high in list(source.spans(start, upto + 1)):
        whole = high == segment.count and segment.first + low <= max(source.earliest, segment.first)
        if router.config.filter is None and whole:
            live += segment.live
        elif segment.live and retention.ready(source, segment):
            # A segment by itself: what was loaded for one may be unloaded again before the next is counted.
            live += len(eligible(segment, router.config.filter, low, high))
    gone = source.losses.within(start, upto)[0]
    return live + gone


def mark(links: Links, *, head: int, out: bool, holds: bool) -> Mark:
    """Return how far the routers into the topic have come, and with `out` those that read from it, too."""
    others: list[tuple[int, int]] = []
    if links.fed is not None and links.fed.source.config.durability != "ephemeral":
        others += [(router.router_id, router.reached) for router in links.fed.routers]
    upto = -1
    if out:
        cursors = {router.router_id: router.reached for router in links.routers()}
        upto = max(cursors.values(), default=0)
        others += [(router_id, cursor) for router_id, cursor in cursors.items() if cursor != upto]
    return Mark(links.topic.topic_id, head, upto, others, holds)


def look_for(segment: Segment, match: TagMatch | None, low: int, high: int, *, from_ts: int | None = None) -> Eligible:
    """What a filter finds in [low, high) of records that are not older than `from_ts`. Keeps no columns in memory."""

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
    """The records at `positions`, cut where the commit time changes."""
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
    """Read from the first of the positions to the last. Where only bytes between them are damaged, leave those zero."""
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
    """The records of [start, stop). Where these are not in memory, so will those behind them not be: `Cold` asks for
    more."""
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
    """Turns gathered records into entries of one destination."""

    def __init__(self, table: Table, feed: Feed, router: Router) -> None:
        self._table = table
        self._feed = feed
        self._router = router
        self._tracks = feed.cyclic
        self._epoch = feed.source.epoch
        self._known = self._stamped_before()

    def entries(self, gathered: Gathered, next_seq: int) -> Iterator[tuple[Append, Piece]]:
        """Each piece that has anything to copy, with the entry that it becomes."""
        last_ts = max(self._feed.dest.last_ts, self._feed.floor_ms)
        for piece in gathered.pieces:
            wanted = self._wanted(piece)
            if wanted is not None:
                last_ts = max(last_ts, piece.ts)
                entry = self._entry(wanted, next_seq, last_ts)
                next_seq += len(entry.sizes)
                yield entry, wanted

    def copied(self, piece: Piece) -> None:
        """The piece is in the destination now."""
        count_copies(self._table, self._router, len(piece.seqs), piece.seqs[-1])

    def part(self, piece: Piece, low: int, high: int, first: int) -> tuple[Append, Piece]:
        """Return the entry of some of a piece's records, with seqs from `first` on."""
        return next(self.entries(Gathered([piece.only(list(range(low, high)))], 0), first))

    # --- which

    def _wanted(self, piece: Piece) -> Piece | None:
        """Without what has been here before, by its path or by its stamp."""
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
        return self._feed.dest.topic_id not in path and len(path) < MAX_HOPS

    # --- how

    def _entry(self, piece: Piece, first: int, ts: int) -> Append:
        config, feed = self._router.config, self._feed
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
            feed.dest.topic_id, first, ts, sizes, blob,
            piece.tags if config.preserve_tag else None, nodes, metas, None, extras or None,
        )  # fmt: skip

    def _render(self, piece: Piece, first: int, ts: int) -> tuple[list[bytes], list[int] | None]:
        """The stored form with other numbers in front; node left out and stamp put in where the router says so."""
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
        source = self._feed.source
        stamp = encode_json(Stamp(self._router.name, source.name, self._epoch, seq, self._key(seq)))
        others = meta[1:].lstrip()
        stamped = b'{"%b":%b%b%b' % (STAMP.encode(), stamp, b"" if others == b"}" else b",", others)
        return with_meta(rest, meta_size, stamped)

    def _extras(self, piece: Piece) -> dict[int, bytes]:
        """The path of every record that may come back here."""
        if not self._tracks and piece.extras is None:
            return {}
        here = self._feed.source.topic_id
        found = {}
        for at in range(len(piece.seqs)):
            path = _path(piece, at)
            if self._tracks or path:
                found[at] = PATH + _encode([*path, here])
        return found

    # --- exactly once

    def _key(self, seq: int) -> str:
        return f"{self._router.name}/{self._feed.source.name}/{self._epoch}/{seq}"

    def _stamped_before(self) -> int:
        """The highest seq of the source that ever got a stamp here: beyond it nothing can be present."""
        if self._router.config.guarantee != "exactly_once":
            return 0
        return self._table.stamps.get(self._feed.dest.topic_id, {}).get(stamp_space(self._router), 0)

    def _present(self) -> Stamps:
        """The stamps of the destination, up to its head. Raises `Cold` like a read."""
        if self._router.present is None:
            self._router.present = Stamps(self._feed.dest)
        self._router.present.look_on()
        return self._router.present


def _path(piece: Piece, at: int) -> list[int]:
    if piece.extras is None or (extra := piece.extras[at]) is None or not extra.startswith(PATH):
        return []
    return _decode_path(extra[1:])


class Stamps:
    """The stamps in a destination: found by a look at all of its records, which goes on where it stopped last time."""

    def __init__(self, dest: Topic) -> None:
        self._dest = dest
        self._upto = 0  # the last seq that was looked at
        self._found: dict[str, tuple[int, ...]] = {}  # by key: a writer may have put the same one into several records

    def has(self, key: str) -> bool:
        """Whether a live record carries the key."""
        return any(map(self._dest.is_live, self._found.get(key, ())))

    def look_on(self) -> None:
        """Take up what the destination has got since. Raises `Cold`: what was seen by then need not be seen again."""
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
    """A writer may put anything under that name: what is no stamp is none."""
    raw = surrogates.members(meta).get(STAMP)
    if raw is not None:
        try:
            yield decode_again(_decode_stamp, raw).key
        except msgspec.MsgspecError:
            return
