"""Cut rows into requests in a repeatable way, and send them. Imports no Spark: pipelines in one process send as well.

A write is exactly-once if its repetition after a crash sends the same requests under the same idempotency keys. So a
cut depends on nothing that may differ the next time: not on the number of partitions, the rate, or the order in which
partitions run. Rows with a source are cut on the absolute grid of `plan.GRID` seqs, on which readers cut partitions as
well. A request holds the rows of one grid cell of one source topic.

A key consists of the run (query and batch), the source range and a digest of the records. Because of the digest, two
branches of one query that write the same source seqs are two writes. If a key is wrong, a record must be written twice
rather than not at all.

With `keyBy=range` a key has no digest, so that a record that was deleted before the repetition does not change it. Then
only one branch may write a cell. A cell that takes several requests has digests nevertheless: a delete moves rows from
one request to another, and a row that moves to a written request would be lost.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, pairwise
from typing import NamedTuple

import xxhash
from msgspec import Raw, Struct

from topics.client import Client
from topics.client.request import Written
from topics.errors import Code, TopicsError
from topics.spark.options import KeyBy, WriteOptions
from topics.spark.source.plan import GRID

MAX_RECORDS = 10_000  # the default limit of a server for one write
MAX_BYTES = 4 << 20
HELD_BYTES = 32 << 20


class Chunk(NamedTuple):
    """One request: records, as JSON objects, for one topic, with their idempotency key."""

    topic: str
    key: str
    records: list[bytes]
    cut_key: str | None = None  # if the key does not depend on the records: another one that does


class Sourced(NamedTuple):
    """A row with its source topic and seq."""

    topic: str  # the destination
    source: str  # the topic that the row was read from
    seq: int
    record: bytes


class Plain(NamedTuple):
    """A row without a source."""

    topic: str
    record: bytes


Cell = tuple[str, str, int]  # destination, source topic, seq // GRID


class GridChunks:
    """Collects rows with a source by grid cell, and returns a request per cell.

    Cells are held until memory is needed. The least recently used cell is released first: if rows come in the order of
    their source, that cell is complete; if rows went through a shuffle, the other cells get time to fill.
    """

    def __init__(
        self,
        run: str,
        *,
        key_by: KeyBy = "rows",
        held_bytes: int = HELD_BYTES,
        repeated: Callable[[str, list[Chunk], list[int]], list[Chunk]] | None = None,
    ) -> None:
        """`repeated` returns what to send for the requests of a cell; see `FirstRequests`."""
        self._run, self._repeated = run, repeated
        self._key_by = key_by
        self._limit_bytes = held_bytes
        self._held_bytes = 0
        self._cells: OrderedDict[Cell, list[tuple[int, bytes]]] = OrderedDict()
        self._released: dict[Cell, int] = {}

    def add(self, rows: Iterable[Sourced]) -> Iterator[Chunk]:
        cells = self._cells
        current: Cell | None = None
        held: list[tuple[int, bytes]] = []
        size_bytes = 0
        for topic, source, seq, record in rows:
            cell = (topic, source, seq // GRID)
            if cell != current:
                current, held = cell, cells.setdefault(cell, [])
                cells.move_to_end(cell)
            held.append((seq, record))
            size_bytes += len(record)
        self._held_bytes += size_bytes
        if self._held_bytes > self._limit_bytes:
            yield from self._release()

    def finish(self) -> Iterator[Chunk]:
        order: dict[tuple[str, str], int] = {}
        for topic, source, _ in self._cells:
            order.setdefault((topic, source), len(order))
        for cell in sorted(self._cells, key=lambda cell: (order[cell[:2]], cell[2])):
            yield from self._cut(cell, self._cells[cell])
        self._cells.clear()

    def _release(self) -> Iterator[Chunk]:
        """Release cells until half of the limit is free. The last cell stays unless it exceeds the limit alone."""
        while self._cells and self._held_bytes > self._limit_bytes // 2:
            if len(self._cells) == 1 and self._held_bytes <= self._limit_bytes:
                return
            cell, rows = self._cells.popitem(last=False)
            self._held_bytes -= sum(len(record) for _, record in rows)
            yield from self._cut(cell, rows)
            self._released[cell] = self._released.get(cell, 0) + 1

    def _cut(self, cell: Cell, rows: list[tuple[int, bytes]]) -> list[Chunk]:
        topic, source, number = cell
        if any(one[0] > other[0] for one, other in pairwise(rows)):
            rows.sort(key=lambda row: row[0])  # stable: rows derived from the same record keep their order
        earlier = self._released.get(cell, 0)
        cuts, chunks = list(pieces([record for _, record in rows])), list[Chunk]()
        for index, piece in enumerate(cuts):
            part = rows[piece]
            seqs, records = [seq for seq, _ in part], [record for _, record in part]
            digest = xxhash.xxh3_128(f"{source}\n{earlier}\n{index}\n{seqs}\n".encode())
            if self._key_by != "source":
                digest.update(framed(records))
            key = f"{self._run}/{seqs[0]}-{seqs[-1]}/{digest.hexdigest()}"
            if self._key_by == "range" and len(cuts) == 1 and not earlier:
                of_range = f"{self._run}/cell{number}/{xxhash.xxh3_128_hexdigest(source.encode())}"
                chunks.append(Chunk(topic, of_range, records, cut_key=key))
            else:
                chunks.append(Chunk(topic, key, records))
        if self._repeated is not None:
            name = xxhash.xxh3_128_hexdigest(f"{self._run}\n{topic}\n{source}\n{number}\n{earlier}".encode())
            has_data = self._key_by != "source"
            digests = [xxhash.xxh3_64_intdigest(b"%d %b" % (seq, record if has_data else b"")) for seq, record in rows]
            return self._repeated(name, chunks, digests)
        return chunks


class OrderedChunks:
    """Collects rows without a source in their order of arrival, and fills each request up to the limits.

    The key holds the partition and a digest that does not depend on the order: after a shuffle, a repetition may see
    rows in another order, and the key stays the same as long as they fit into one request. With `sort`, it stays the
    same for any number of rows.
    """

    def __init__(self, run: str, partition: int, *, sort: bool = False) -> None:
        self._run = f"{run}/p{partition}"
        self._sort = sort
        self._rows: dict[str, list[bytes]] = {}
        self._sizes: dict[str, int] = {}
        self._index = count()

    def add(self, rows: Iterable[Plain]) -> Iterator[Chunk]:
        for topic, record in rows:
            held = self._rows.setdefault(topic, [])
            size_bytes = self._sizes.get(topic, 0) + len(record)
            if not self._sort and held and (len(held) >= MAX_RECORDS or size_bytes > MAX_BYTES):
                yield self._chunk(topic, held)
                held = self._rows[topic] = []
                size_bytes = len(record)
            held.append(record)
            self._sizes[topic] = size_bytes

    def finish(self) -> Iterator[Chunk]:
        for topic, records in self._rows.items():
            if self._sort:
                records.sort()
            for piece in pieces(records):
                yield self._chunk(topic, records[piece])
        self._rows.clear()

    def _chunk(self, topic: str, records: list[bytes]) -> Chunk:
        digest = xxhash.xxh3_128_hexdigest(framed(sorted(records)))
        return Chunk(topic, f"{self._run}/{next(self._index)}/{digest}", records)


def pieces(records: Sequence[bytes], *, most: int = MAX_RECORDS) -> Iterator[slice]:
    """Yield slices that fit into one request each, with at most `most` records."""
    start = size_bytes = 0
    for at, record in enumerate(records):
        if at > start and (at - start >= most or size_bytes + len(record) > MAX_BYTES):
            yield slice(start, at)
            start, size_bytes = at, 0
        size_bytes += len(record)
    if start < len(records):
        yield slice(start, len(records))


def framed(records: Sequence[bytes]) -> bytes:
    """Return bytes that are unique to these records: each record is one JSON object, so they can be split again."""
    return b"\n".join(records)


# --- requests


FULL_PAUSE_S = 0.5
TOO_LARGE = (Code.BATCH_TOO_LARGE, Code.PAYLOAD_TOO_LARGE)


class Sent(Struct, kw_only=True):
    """The number of records that were sent; `repeated` of them were in the topic already."""

    records: int = 0
    repeated: int = 0

    def add(self, more: Sent) -> None:
        """Add every number and list of another result."""
        for name in more.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(more, name))


def send(client: Client, options: WriteOptions, chunks: Iterable[Chunk], done: Sent) -> list[Written]:
    """Send the chunks, add their records to `done`, and return the answers of the server.

    If the server has a lower limit, a chunk is sent in halves. While the topic is full, sending is retried.
    """
    answers: list[Written] = []
    for topic, key, records, cut_key in chunks:
        deadline, request = time.monotonic() + options.connection.timeout_ms / 1000, [Raw(one) for one in records]
        while True:
            try:
                answer = client.append(
                    topic, request, idempotency_key=key, create=options.create, config=options.creation
                )
            except TopicsError as error:
                middle = len(records) // 2
                if error.code in TOO_LARGE and middle:
                    whole = cut_key or key
                    halves = [
                        Chunk(topic, f"{whole}.0", records[:middle]),
                        Chunk(topic, f"{whole}.1", records[middle:]),
                    ]
                    answers += send(client, options, halves, done)
                    break
                if error.code is not Code.TOPIC_FULL or time.monotonic() > deadline:
                    raise
                time.sleep(FULL_PAUSE_S)  # the topic rejects appends while it is full; a delete may make room
            else:
                if cut_key is not None and answer.deduped and answer.count < len(records):
                    # Not a repetition of this write, whose cell was complete: write twice rather than not at all.
                    answers += send(client, options, [Chunk(topic, cut_key, records)], done)
                    break
                done.records += answer.count
                done.repeated += answer.count if answer.deduped else 0
                answers.append(answer)
                break
    return answers
