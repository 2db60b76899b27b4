"""Find the copies that routers made: which records of a destination come from records that are erased.

The copies of a router that keeps tags have the erased tag, so they need no search. A router with `preserve_tag: false`
leaves copies without tags. Their origin is known

- exactly, if the router stamps its copies (`guarantee: "exactly_once"`): the stamp names topic, epoch and seq;
- otherwise by content: the same data, meta and node, committed no earlier than the original. A record with the commit
  time of an original is its copy. The other candidates are copies if there are no more of them than originals without
  a copy, and no record that stays has the same content. Undecided candidates are `unsure`, and stay. Surplus candidates
  are unsure as well, because a router that is not exactly-once may have written a copy twice.

Tasks read the topics and the lake, and return only rows that may matter. A record that is in both counts once. An
original whose copy was found is `matched`: after a kill, the next run must not take another record for the copy that
was already deleted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field, structs

from topics.client.request import Router
from topics.model import surrogates
from topics.model.records import TagMatch
from topics.model.router import STAMP
from topics.spark.options import ConnectionOptions, ReadOptions
from topics.spark.source.plan import Span
from topics.spark.source.read import read_span, without_gaps

Id = tuple[int, int]  # epoch, seq
Content = tuple[str, bytes, str | None]  # data, meta without a stamp, node

DEAD_LETTER = "$dead_letter_"  # begins the names that are added when a job dies


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

    @property
    def ambiguous(self) -> int:
        return len(self.unsure - self.ids)


class Origins:
    """The records of a source to erase, by id and by content; and the records with the same content that stay."""

    def __init__(self, source: str, going: list[TracedRow]) -> None:
        self.source = source
        self.ids = {row.id for row in going}
        self.going: dict[Content, list[TracedRow]] = defaultdict(list)
        for row in sorted(going, key=lambda row: row.id):
            self.going[row.content].append(row)
        self.others: dict[Content, Counter[int]] = defaultdict(Counter)
        self.data = sorted({row.content[0] for row in going})

    def note_others(self, rows: Iterable[TracedRow]) -> None:
        """Note the records of the source that stay and have the same content as erased ones."""
        seen = set(self.ids)
        for row in rows:
            if row.id not in seen and row.content in self.going:
                seen.add(row.id)
                self.others[row.content][row.ts_ms] += 1


class Search(Struct, frozen=True, kw_only=True):
    """A task that returns the records of a span with a tag, with one of these payloads, or with one of these seqs.

    A span with archived files is read from the lake, another one from the server.
    """

    lake: str
    connection: ConnectionOptions
    match: TagMatch | None = None
    data: Sequence[str] | None = None
    seqs: Sequence[int] | None = None

    def __call__(self, span: Span) -> list[TracedRow]:
        options = ReadOptions(connection=self.connection, tag=self.match, fail_on_data_loss=False)
        if span.archived is not None:
            options = structs.replace(options, lake=self.lake, lake_only=True)
        batches = without_gaps(read_span(span, options), [])
        return [row for batch in batches for row in _rows(span.epoch, self._chosen(batch))]

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are looked for, filtered in Arrow: the others never become Python objects."""
        for name, kind, values in ("data", pa.string(), self.data), ("seq", pa.int64(), self.seqs):
            if values is not None:
                batch = batch.filter(pc.is_in(batch.column(name), value_set=pa.array(values, kind)))
        return batch


def copies(rows: Iterable[TracedRow], origins: Origins, router: Router, *, known: CopyMatches) -> CopyMatches:
    """Return the records of the destination that the router copied from `origins`, without the known ones."""
    rows_by_id = {row.id: row for row in rows if row.tag is None}
    candidates = [row for row in rows_by_id.values() if row.id not in known.ids]
    found = CopyMatches(matched=set(known.matched))
    by_content: dict[Content, list[TracedRow]] = defaultdict(list)
    for row in sorted(candidates, key=lambda row: row.id):
        stamp = row.stamp
        if stamp is None or stamp.source != origins.source:
            by_content[row.content].append(row)
        elif (stamp.epoch, stamp.seq) in origins.ids:
            found.ids.add(row.id)
            found.matched.add((stamp.epoch, stamp.seq))
    going: dict[Content, list[TracedRow]] = defaultdict(list)  # by the content that the router writes
    others: dict[Content, Counter[int]] = defaultdict(Counter)
    for content, rows_of in origins.going.items():
        going[content if router.preserve_node else (*content[:2], None)] += rows_of
    for content, times in origins.others.items():
        others[content if router.preserve_node else (*content[:2], None)] += times
    for content, rows_of in going.items():
        exact = router.guarantee == "exactly_once"
        _decide(by_content.get(content, []), rows_of, others[content], found, exact=exact)
    return found


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


def _rows(epoch: int, batch: pa.RecordBatch) -> Iterator[TracedRow]:
    if batch.num_rows:
        ts_us = batch.column("ts").cast(pa.int64()).to_pylist()
        columns = [batch.column(name).to_pylist() for name in ("seq", "node", "tag", "meta", "data")]
        for ts, seq, node, tag, meta, data in zip(ts_us, *columns, strict=True):
            members, stamp = _meta(meta)
            yield TracedRow((epoch, seq), ts // 1000, tag, (data, members, node), stamp)


def _meta(text: str | None) -> tuple[bytes, CopyStamp | None]:
    """Return the sorted members of meta as JSON, and the stamp. A member that is not a valid stamp stays among them."""
    if text is None:
        return b"{}", None
    members = {name: raw for name, raw in surrogates.members(text).items() if not name.startswith(DEAD_LETTER)}
    raw = members.pop(STAMP, None)
    stamp = None
    if raw is not None:
        try:
            stamp = msgspec.json.decode(raw, type=CopyStamp)
        except msgspec.MsgspecError:
            members[STAMP] = raw
    return surrogates.object_of(dict(sorted(members.items()))), stamp
