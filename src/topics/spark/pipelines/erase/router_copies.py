"""Copies that routers made: which records of a destination come from records that are to be erased.

A router that keeps tags needs nothing of this: its copies have the tag that is erased. One that does not
(`preserve_tag: false`) leaves copies that only their origin tells, and that is known

- exactly, where the router stamps its copies (`guarantee: "exactly_once"`): the stamp names topic, epoch and seq;
- else by what the copy is: the same data, meta and node, committed no earlier than the original. One with the commit
  time of an original is its copy. The others are copies if there are no more of them than originals without one, and
  no record that stays has the same content. What remains undecided is `unsure`, and stays; so are those that are too
  many, because a router that is not exact may have written a copy twice.

Rows come from a topic and from a lake; the same record in both is one. An original whose copy was found is `settled`:
a run that goes on where another was killed must not take the next record for the copy that is gone already.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from topics.client.request import Router
from topics.model import surrogates
from topics.model.records import TagMatch
from topics.model.router import STAMP

Id = tuple[int, int]  # epoch, seq
Content = tuple[str, tuple[tuple[str, bytes], ...], str | None]  # data, meta without a stamp, node
Rows = Iterable[tuple[int, pa.RecordBatch]]  # epoch, records with the columns of a lake

DEAD_LETTER = ("$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq")  # added when a job dies
NEEDED = ("seq", "ts", "node", "tag", "meta", "data")


class CopyStamp(Struct):
    """Where a copy says that it comes from."""

    source: str
    epoch: int
    seq: int


class TracedRow(Struct, frozen=True):
    """One record, as far as it matters here."""

    id: Id
    ts_ms: int
    tag: str | None
    content: Content
    stamp: CopyStamp | None


class CopyMatches(Struct):
    """Copies in one destination, the originals that they are of, and what else could be one."""

    ids: set[Id] = field(default_factory=set)
    settled: set[Id] = field(default_factory=set)
    unsure: set[Id] = field(default_factory=set)


class Origins:
    """Records of a source that are to be erased, by id and by content; and those that stay and look the same."""

    def __init__(self, source: str, going: list[TracedRow]) -> None:
        self.source = source
        self.ids = {row.id for row in going}
        self.going: dict[Content, list[TracedRow]] = defaultdict(list)
        for row in sorted(going, key=lambda row: row.id):
            self.going[row.content].append(row)
        self.others: dict[Content, Counter[int]] = defaultdict(Counter)
        self.data = pa.array(sorted({row.content[0] for row in going}), pa.string())

    def note_others(self, rows: Rows) -> None:
        """Looks through all of the source for records that stay and cannot be told from those that go."""
        seen = set(self.ids)
        for row in _rows(_with_data(rows, self.data)):
            if row.id not in seen and row.content in self.going:
                seen.add(row.id)
                self.others[row.content][row.ts_ms] += 1


def going(rows: Rows, match: TagMatch) -> list[TracedRow]:
    """The records with such a tag."""
    return list(_rows((epoch, batch.filter(tagged(batch, match))) for epoch, batch in rows))


def named(rows: Rows, ids: set[Id]) -> list[TracedRow]:
    """The records with these ids."""
    seqs = pa.array(sorted({seq for _, seq in ids}), pa.int64())
    chosen = ((epoch, batch.filter(pc.is_in(batch.column("seq"), value_set=seqs))) for epoch, batch in rows)
    return [row for row in _rows(chosen) if row.id in ids]


def tagged(batch: pa.RecordBatch, match: TagMatch) -> pa.BooleanArray:
    tags = batch.column("tag")
    found = pc.equal(tags, match.text) if match.op == "Eq" else pc.starts_with(tags, pattern=match.text)
    return pc.fill_null(found, False)


def copies(rows: Rows, origins: Origins, router: Router, *, known: CopyMatches) -> CopyMatches:
    """Records of the destination that the router made of `origins`, beside those that are known."""
    rows_by_id = {row.id: row for row in _rows(_with_data(rows, origins.data)) if row.tag is None}
    candidates = [row for row in rows_by_id.values() if row.id not in known.ids]
    found = CopyMatches(settled=set(known.settled))
    by_content: dict[Content, list[TracedRow]] = defaultdict(list)
    for row in sorted(candidates, key=lambda row: row.id):
        origin = _origin(row, origins)
        if origin is not None:
            found.ids.add(row.id)
            found.settled.add(origin)
        elif row.stamp is None or row.stamp.source != origins.source:
            by_content[row.content].append(row)
    for content, going, others in _as_copied(origins, router):
        _decide(by_content.get(content, []), going, others, found, exact=router.guarantee == "exactly_once")
    return found


def _as_copied(origins: Origins, router: Router) -> Iterator[tuple[Content, list[TracedRow], Counter[int]]]:
    """Contents as the router writes them, with the records that go and the commit times of those that stay."""
    going: dict[Content, list[TracedRow]] = defaultdict(list)
    others: dict[Content, Counter[int]] = defaultdict(Counter)
    for content, found in origins.going.items():
        going[_without_node(content, router)] += found
    for content, times in origins.others.items():
        others[_without_node(content, router)] += times
    for content, found in going.items():
        yield content, found, others[content]


def _without_node(content: Content, router: Router) -> Content:
    return content if router.preserve_node else (*content[:2], None)


def _origin(row: TracedRow, origins: Origins) -> Id | None:
    stamp = row.stamp
    if stamp is None or stamp.source != origins.source or (stamp.epoch, stamp.seq) not in origins.ids:
        return None
    return stamp.epoch, stamp.seq


def _decide(
    rows: list[TracedRow], going: list[TracedRow], others: Counter[int], found: CopyMatches, *, exact: bool
) -> None:
    """Which of these, all of one content, are copies of those that go; and how many of the rest might be."""
    first_ms = min(row.ts_ms for row in going)
    twins: dict[int, list[Id]] = defaultdict(list)
    for row in going:
        if row.id not in found.settled:
            twins[row.ts_ms].append(row.id)
    kept, rest = Counter(others), []
    for row in rows:
        if twins[row.ts_ms]:
            found.ids.add(row.id)
            found.settled.add(twins[row.ts_ms].pop(0))
        elif kept[row.ts_ms]:
            kept[row.ts_ms] -= 1
        elif row.ts_ms >= first_ms:
            rest.append(row)
    left = [one for ids in twins.values() for one in ids]
    if not others and len(rest) <= len(left):
        found.ids |= {row.id for row in rest}
        found.settled |= set(left[: len(rest)])
        return
    too_many = 0 if exact else max(len(rest) - len(left) - kept.total(), 0)
    found.unsure |= {row.id for row in rest[: min(len(rest), len(left)) + too_many]}


def _with_data(rows: Rows, data: pa.Array) -> Rows:
    """Only records with one of these payloads: the rest is passed over without becoming objects."""
    return ((epoch, batch.filter(pc.is_in(batch.column("data"), value_set=data))) for epoch, batch in rows)


def _rows(batches: Rows) -> Iterator[TracedRow]:
    for epoch, batch in batches:
        if not batch.num_rows:
            continue
        ts_us = batch.column("ts").cast(pa.int64()).to_pylist()
        columns = [batch.column(name).to_pylist() for name in ("seq", "node", "tag", "meta", "data")]
        for ts, seq, node, tag, meta, data in zip(ts_us, *columns, strict=True):
            members, stamp = _meta(meta)
            yield TracedRow((epoch, seq), ts // 1000, tag, (data, members, node), stamp)


def _meta(text: str | None) -> tuple[tuple[tuple[str, bytes], ...], CopyStamp | None]:
    """The members of meta in an order of their own, and the stamp apart. A writer may call anything a stamp."""
    if text is None:
        return (), None
    members = {name: raw for name, raw in surrogates.members(text).items() if name not in DEAD_LETTER}
    raw = members.pop(STAMP, None)
    stamp = None
    if raw is not None:
        try:
            stamp = msgspec.json.decode(raw, type=CopyStamp)
        except msgspec.MsgspecError:
            members[STAMP] = raw
    return tuple(sorted((name, bytes(value)) for name, value in members.items())), stamp
