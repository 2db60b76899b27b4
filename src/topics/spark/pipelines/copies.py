"""Copies that routers made: which records of a destination come from records that are to be erased.

A router that keeps tags needs nothing of this: its copies have the tag that is erased. One that does not
(`preserve_tag: false`) leaves copies that only their origin tells, and that is known

- exactly, where the router stamps its copies (`guarantee: "exactly_once"`): the stamp names topic, epoch and seq;
- else by what the copy is: the same data, meta and node, committed no earlier than the original. If records that stay
  have the same content, a copy belongs to those that go only if its commit time is that of one of them. What remains
  undecided is counted as `ambiguous`, and stays.

Rows come from a topic and from a lake; the same record in both is one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from topics.client.request import Router
from topics.model.records import TagMatch
from topics.model.router import STAMP

Id = tuple[int, int]  # epoch, seq
Content = tuple[str, tuple[tuple[str, bytes], ...], str | None]  # data, meta without a stamp, node
Rows = Iterable[tuple[int, pa.RecordBatch]]  # epoch, records with the columns of a lake

_decode_meta = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
NEEDED = ("seq", "ts", "node", "tag", "meta", "data")


class Stamp(Struct):
    """Where a copy says that it comes from."""

    source: str
    epoch: int
    seq: int


class Row(Struct, frozen=True):
    """One record, as far as it matters here."""

    id: Id
    ts_ms: int
    tag: str | None
    content: Content
    stamp: Stamp | None


class Found(Struct):
    """Copies in one destination, and how many could be ones."""

    ids: set[Id]
    ambiguous: int = 0


class Origins:
    """Records of a source that are to be erased, by id and by content; and those that stay and look the same."""

    def __init__(self, source: str, going: list[Row]) -> None:
        self.source = source
        self.ids = {row.id for row in going}
        self.times: dict[Content, Counter[int]] = defaultdict(Counter)
        for row in going:
            self.times[row.content][row.ts_ms] += 1
        self.others: dict[Content, Counter[int]] = defaultdict(Counter)
        self.data = pa.array(sorted({row.content[0] for row in going}), pa.string())

    def note_others(self, rows: Rows) -> None:
        """Looks through all of the source for records that stay and cannot be told from those that go."""
        seen = set(self.ids)
        for row in _rows(_with_data(rows, self.data)):
            if row.id not in seen and row.content in self.times:
                seen.add(row.id)
                self.others[row.content][row.ts_ms] += 1


def going(rows: Rows, match: TagMatch) -> list[Row]:
    """The records with such a tag."""
    return list(_rows((epoch, batch.filter(tagged(batch, match))) for epoch, batch in rows))


def named(rows: Rows, ids: set[Id]) -> list[Row]:
    """The records with these ids."""
    seqs = pa.array(sorted({seq for _, seq in ids}), pa.int64())
    chosen = ((epoch, batch.filter(pc.is_in(batch.column("seq"), value_set=seqs))) for epoch, batch in rows)
    return [row for row in _rows(chosen) if row.id in ids]


def tagged(batch: pa.RecordBatch, match: TagMatch) -> pa.BooleanArray:
    tags = batch.column("tag")
    found = pc.equal(tags, match.text) if match.op == "Eq" else pc.starts_with(tags, pattern=match.text)
    return pc.fill_null(found, False)


def copies(rows: Rows, origins: Origins, router: Router) -> Found:
    """Records of the destination that the router made of `origins`."""
    candidates = {row.id: row for row in _rows(_with_data(rows, origins.data)) if row.tag is None}
    found = Found({row.id for row in candidates.values() if _stamped(row, origins)})
    by_content: dict[Content, list[Row]] = defaultdict(list)
    for row in candidates.values():
        if row.stamp is None or row.stamp.source != origins.source:
            by_content[row.content].append(row)
    for content, times, others in _as_copied(origins, router):
        took, unsure = _decide(sorted(by_content.get(content, ()), key=lambda row: row.id), times, others)
        found.ids |= {row.id for row in took}
        found.ambiguous += unsure
    return found


def _as_copied(origins: Origins, router: Router) -> Iterator[tuple[Content, Counter[int], Counter[int]]]:
    """Contents as the router writes them, with the commit times of those that go and of those that stay."""
    times: dict[Content, Counter[int]] = defaultdict(Counter)
    others: dict[Content, Counter[int]] = defaultdict(Counter)
    for content, found in origins.times.items():
        times[_without_node(content, router)] += found
    for content, found in origins.others.items():
        others[_without_node(content, router)] += found
    for content, found in times.items():
        yield content, found, others[content]


def _without_node(content: Content, router: Router) -> Content:
    return content if router.preserve_node else (*content[:2], None)


def _stamped(row: Row, origins: Origins) -> bool:
    stamp = row.stamp
    return stamp is not None and stamp.source == origins.source and (stamp.epoch, stamp.seq) in origins.ids


def _decide(rows: list[Row], times: Counter[int], others: Counter[int]) -> tuple[list[Row], int]:
    """Which of these, all of one content, go; and how many of the rest might have to."""
    first_ms = min(times)
    rows = [row for row in rows if row.ts_ms >= first_ms]
    if not others:
        return rows, 0
    left, kept = Counter(times), Counter(others)
    took, rest = [], []
    for row in rows:
        if left[row.ts_ms]:
            left[row.ts_ms] -= 1
            took.append(row)
        elif kept[row.ts_ms]:
            kept[row.ts_ms] -= 1
        else:
            rest.append(row)
    return took, min(len(rest), left.total())


def _with_data(rows: Rows, data: pa.Array) -> Rows:
    """Only records with one of these payloads: the rest is passed over without becoming objects."""
    return ((epoch, batch.filter(pc.is_in(batch.column("data"), value_set=data))) for epoch, batch in rows)


def _rows(batches: Rows) -> Iterator[Row]:
    for epoch, batch in batches:
        if not batch.num_rows:
            continue
        ts_us = batch.column("ts").cast(pa.int64()).to_pylist()
        columns = [batch.column(name).to_pylist() for name in ("seq", "node", "tag", "meta", "data")]
        for ts, seq, node, tag, meta, data in zip(ts_us, *columns, strict=True):
            members, stamp = _meta(meta)
            yield Row((epoch, seq), ts // 1000, tag, (data, members, node), stamp)


def _meta(text: str | None) -> tuple[tuple[tuple[str, bytes], ...], Stamp | None]:
    """The members of meta in an order of their own, and the stamp apart. A writer may call anything a stamp."""
    if text is None:
        return (), None
    members = _decode_meta(text)
    raw = members.pop(STAMP, None)
    stamp = None
    if raw is not None:
        try:
            stamp = msgspec.json.decode(raw, type=Stamp)
        except msgspec.MsgspecError:
            members[STAMP] = raw
    return tuple(sorted((name, bytes(value)) for name, value in members.items())), stamp
