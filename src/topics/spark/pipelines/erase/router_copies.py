"""Find the copies that routers made: which records of a destination come from records that are erased.

The copies of a router that keeps tags have the erased tag, so they need no search. A router with `preserve_tag: false`
leaves copies without tags. Their origin is known

- exactly, if the router stamps its copies (`guarantee: "exactly_once"`): the stamp names topic, epoch and seq;
- otherwise by content: the same data, meta and node, committed no earlier than the original. A record with the commit
  time of an original is its copy. The other candidates are copies if there are no more of them than originals without
  a copy, and no record that stays has the same content. Undecided candidates are `unsure`, and stay. Surplus candidates
  are unsure as well, because a router that is not exactly-once may have written a copy twice.

Rows come from a topic and from a lake; a record that is in both counts once. An original whose copy was found is
`matched`: after a kill, the next run must not take another record for the copy that was already deleted.
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
    """The stamp of an exactly-once router: the origin of a copy."""

    source: str
    epoch: int
    seq: int


class TracedRow(Struct, frozen=True):
    """The parts of a record that the search for copies needs."""

    id: Id
    ts_ms: int
    tag: str | None
    content: Content
    stamp: CopyStamp | None


class CopyMatches(Struct):
    """The copies in one destination, their originals, and possible copies."""

    ids: set[Id] = field(default_factory=set)
    matched: set[Id] = field(default_factory=set)
    unsure: set[Id] = field(default_factory=set)


class Origins:
    """The records of a source to erase, by id and by content; and the records with the same content that stay."""

    def __init__(self, source: str, going: list[TracedRow]) -> None:
        self.source = source
        self.ids = {row.id for row in going}
        self.going: dict[Content, list[TracedRow]] = defaultdict(list)
        for row in sorted(going, key=lambda row: row.id):
            self.going[row.content].append(row)
        self.others: dict[Content, Counter[int]] = defaultdict(Counter)
        self.data = pa.array(sorted({row.content[0] for row in going}), pa.string())

    def note_others(self, rows: Rows) -> None:
        """Search the source for records that stay and have the same content as erased ones."""
        seen = set(self.ids)
        for row in _rows(_with_data(rows, self.data)):
            if row.id not in seen and row.content in self.going:
                seen.add(row.id)
                self.others[row.content][row.ts_ms] += 1


def with_tag(rows: Rows, match: TagMatch) -> list[TracedRow]:
    """Return the records whose tag matches."""
    return list(_rows((epoch, batch.filter(tagged(batch, match))) for epoch, batch in rows))


def with_ids(rows: Rows, ids: set[Id]) -> list[TracedRow]:
    """Return the records with these ids."""
    seqs = pa.array(sorted({seq for _, seq in ids}), pa.int64())
    chosen = ((epoch, batch.filter(pc.is_in(batch.column("seq"), value_set=seqs))) for epoch, batch in rows)
    return [row for row in _rows(chosen) if row.id in ids]


def tagged(batch: pa.RecordBatch, match: TagMatch) -> pa.BooleanArray:
    tags = batch.column("tag")
    found = pc.equal(tags, match.text) if match.op == "Eq" else pc.starts_with(tags, pattern=match.text)
    return pc.fill_null(found, False)


def copies(rows: Rows, origins: Origins, router: Router, *, known: CopyMatches) -> CopyMatches:
    """Return the records of the destination that the router copied from `origins`, without the known ones."""
    rows_by_id = {row.id: row for row in _rows(_with_data(rows, origins.data)) if row.tag is None}
    candidates = [row for row in rows_by_id.values() if row.id not in known.ids]
    found = CopyMatches(matched=set(known.matched))
    by_content: dict[Content, list[TracedRow]] = defaultdict(list)
    for row in sorted(candidates, key=lambda row: row.id):
        origin = _origin(row, origins)
        if origin is not None:
            found.ids.add(row.id)
            found.matched.add(origin)
        elif row.stamp is None or row.stamp.source != origins.source:
            by_content[row.content].append(row)
    for content, going, others in _as_copied(origins, router):
        _decide(by_content.get(content, []), going, others, found, exact=router.guarantee == "exactly_once")
    return found


def _as_copied(origins: Origins, router: Router) -> Iterator[tuple[Content, list[TracedRow], Counter[int]]]:
    """Yield each content as the router writes it, with the erased records and the commit times of those that stay."""
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
    """Decide which rows, all of one content, are copies of erased records, and which of the rest may be."""
    first_ms = min(row.ts_ms for row in going)
    twins: dict[int, list[Id]] = defaultdict(list)
    for row in going:
        if row.id not in found.matched:
            twins[row.ts_ms].append(row.id)
    kept, rest = Counter(others), []
    for row in rows:
        if twins[row.ts_ms]:
            found.ids.add(row.id)
            found.matched.add(twins[row.ts_ms].pop(0))
        elif kept[row.ts_ms]:
            kept[row.ts_ms] -= 1
        elif row.ts_ms >= first_ms:
            rest.append(row)
    unmatched = [one for ids in twins.values() for one in ids]
    if not others and len(rest) <= len(unmatched):
        found.ids |= {row.id for row in rest}
        found.matched |= set(unmatched[: len(rest)])
        return
    surplus = 0 if exact else max(len(rest) - len(unmatched) - kept.total(), 0)
    found.unsure |= {row.id for row in rest[: min(len(rest), len(unmatched)) + surplus]}


def _with_data(rows: Rows, data: pa.Array) -> Rows:
    """Return only records with one of these payloads, filtered in Arrow: the others never become Python objects."""
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
    """Return the sorted members of meta, and the stamp. A member that is not a valid stamp stays among the members."""
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
