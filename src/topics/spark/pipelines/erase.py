"""Erase: delete records with a tag, and every copy of them that routers made, from topics and from a lake.

Records that existed when the run began are deleted; records written meanwhile stay. The run finds all of them first,
then deletes: copies without the tag before their originals, so after a kill the next run can still find the rest; and
from a topic before its table in the lake, so that no archive brings them back. Tasks search topics and lake, and
rewrite the files of the lake. The report is published after each topic, so a killed run leaves what it has erased.

The copies of a router that keeps tags have the erased tag, so they need no search. A router with `preserve_tag: false`
leaves copies without tags. If it is exactly-once, it stamps its copies: the stamp names the topic, epoch and seq of the
original, also in further copies. Without a stamp a copy cannot be told from other records, and the run reports that.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, structs

from topics.arrow import cells
from topics.client import Client
from topics.client.request import Router, State
from topics.lake import ArchivedEpoch, Lake, LakeError, Snapshot
from topics.lake.lake import LakeErasure
from topics.lake.rewrite import LAST, Erasure
from topics.model.records import TagMatch, parse_match
from topics.model.router import STAMP
from topics.plurals import counted
from topics.spark.failures import LakeFailed
from topics.spark.options import ConnectionOptions, ReadOptions
from topics.spark.pipelines.run.delivery import delete_seqs, stamp_in
from topics.spark.pipelines.run.job import BadUsage, Failed, PipelineJob, ReadingOptions, check_may_delete
from topics.spark.pipelines.run.report import RunReport, TopicReport
from topics.spark.pipelines.run.tasks import TASK_BYTES
from topics.spark.source import plan
from topics.spark.source.catalog import state_of
from topics.spark.source.plan import Span
from topics.spark.source.read import paced, read_span, without_gaps
from topics.spark.topic_names import Selection, no_topic, unknown_topic
from topics.storage.segments.record_run import Run

ROUTER_PATIENCE_S = 30.0

Id = tuple[int, int]  # epoch, seq


class EraseScope(Struct):
    """The topics and routers that a run covers."""

    states: dict[str, State]  # topics of the server, as of the start of the run
    archived: list[str]  # topics of the lake
    routers: list[Router]
    dead_letters: dict[str, str]  # the dead-letter topic of each queue

    def depth(self, topic: str) -> int:
        """Return the number of topics that a record passes before this one. A cycle is counted once."""
        source_of = {dead: queue for queue, dead in self.dead_letters.items()}
        source_of |= {router.dest: router.source for router in self.routers}
        seen = [topic]
        while (source := source_of.get(seen[-1])) is not None and source not in seen:
            seen.append(source)
        return len(seen) - 1

    def erasing(self) -> list[str]:
        """Return the topics in order of deletion: copies before originals, but a queue before its dead letters."""
        last = set(self.dead_letters.values())  # jobs may move there meanwhile
        names = sorted({*self.states, *self.archived, *last}, key=lambda name: (-self.depth(name), name))
        return [name for name in names if name not in last] + sorted(last, key=lambda name: (self.depth(name), name))

    def landing(self, router: Router) -> list[str]:
        """Return the topics that may hold copies of a router: its destination and the dead letters of that queue."""
        found = [router.dest]
        while (dead := self.dead_letters.get(found[-1])) is not None and dead not in found:
            found.append(dead)
        return found


def erase(
    *,
    url: str,
    match: str,
    lake: str | None = None,
    topics: Sequence[str] = (),
    prefix: str | None = None,
    **options: Unpack[ReadingOptions],
) -> RunReport:
    """Erase records by tag. `match` is a tag, or a prefix and `*`. Without `topics` and `prefix`, search all topics."""
    wanted = parse(match)
    with PipelineJob("erase", servers=[url], **options) as job, job.client(url) as client:
        job.report.figures |= {"match": match, "topics": 0, "copies": 0, "lake": 0, "lake_files": 0}
        _Erasure(job, client, url, wanted, None if lake is None else Lake(lake).existing()).run(topics, prefix)
    return job.report


def parse(match: str) -> TagMatch:
    """Parse a match: `user-42` is a tag, `user-42:*` matches all tags with that prefix."""
    text = match.removesuffix("*")
    if "*" in text:
        raise BadUsage(f"{match!r}: a * is allowed only at the end, for all tags with that prefix")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise BadUsage(f"{match!r} is not UTF-8 text, so it cannot be a tag")
    if not text:
        raise BadUsage(f"{match!r} would erase every record that has a tag")
    return TagMatch("Glob" if match.endswith("*") else "Eq", text)


class _Erasure:
    """One run of an erasure."""

    def __init__(self, job: PipelineJob, client: Client, url: str, match: TagMatch, lake: Lake | None) -> None:
        self.job, self.client, self.url, self.match, self.lake = job, client, url, match, lake
        self.snapshot: Snapshot | None = None if lake is None else lake.snapshot()
        self.found: dict[str, set[Id]] = defaultdict(set)  # copies without the tag
        self.erased: dict[str, set[Id]] = defaultdict(set)  # records that may have such copies

    def run(self, topics: Sequence[str], prefix: str | None) -> None:
        scope = self._scope(topics, prefix)
        if not self.job.dry_run:  # half an erasure is worse than none, so a missing right is found now
            for topic in scope.states:
                check_may_delete(self.client, topic)
            if self.lake is not None:
                try:
                    self.lake.storage.check_writable()
                except LakeError as error:
                    step = "run the command as a user that may write there, and check how the lake is mounted"
                    raise LakeFailed(str(error), next=step) from None
        self._wait_for_routers(scope)
        for router in sorted(scope.routers, key=lambda router: scope.depth(router.source)):
            self._trace(scope, router)
        order = scope.erasing()
        for topic in (one for one in order if self.found[one]):
            self._erase(scope, [topic])
        self._erase(scope, [topic for topic in order if not self.found[topic]])
        self._sum_up()

    # --- scope

    def _scope(self, topics: Sequence[str], prefix: str | None) -> EraseScope:
        self.job.step("looking for topics and routers")
        routers = [self.client.router(one.router) for one in self.client.routers()]
        archived = [] if self.snapshot is None else self.snapshot.topics()
        names = set(topics)
        if prefix is not None or not topics:
            live = [one.topic for one in self.client.topics(prefix or "")]
            chosen = Selection(prefix=prefix or "")
            found = set(filter(chosen.matches, (*live, *archived)))
            if prefix and not found:
                raise no_topic([self.client], str(chosen), like=prefix, lake=self.lake)
            names |= found
        states: dict[str, State] = {}
        dead_letters: dict[str, str] = {}
        looked_at: set[str] = set()
        while more := sorted(names - looked_at):
            for name in more:
                state = state_of(self.client, name)
                if state is not None:
                    states[name] = state
                    if state.config.dead_letter is not None:
                        dead_letters[name] = state.config.dead_letter
                elif name in topics and name not in archived:
                    raise unknown_topic(self.client, name, lake=self.lake)
            looked_at.update(more)
            names |= {router.dest for router in routers if router.source in names} | set(dead_letters.values())
        used = [router for router in routers if router.source in names]
        return EraseScope(states, sorted(names & set(archived)), used, dead_letters)

    def _wait_for_routers(self, scope: EraseScope) -> None:
        """Wait until the routers have forwarded all present records. Raise `Failed` if one does not."""
        deadline = time.monotonic() + ROUTER_PATIENCE_S
        for router in sorted(scope.routers, key=lambda router: scope.depth(router.source)):
            head, now = scope.states[router.source].head_seq, router
            while now.cursor < head:
                if self.job.dry_run:
                    self.job.warn(
                        f"router {router.router} has not forwarded everything yet: there may be more copies later"
                    )
                    break
                if now.last_error is not None or time.monotonic() > deadline:
                    behind = f"it is {counted(head - now.cursor, 'record')} behind"
                    raise Failed(
                        f"router {router.router} has not forwarded everything: {now.last_error or behind}",
                        next=f"check topic {router.dest}, or remove the router, and run the same command again",
                    )
                self.job.stopping.wait(0.05)
                now = self.client.router(router.router)
            if router.dest in scope.states:
                scope.states[router.dest] = self.client.topic(router.dest)

    # --- copies

    def _trace(self, scope: EraseScope, router: Router) -> None:
        """Find the copies without tags that a router made of erased records."""
        source, ids = router.source, self._origins(scope, router)
        if not ids:
            return
        self.erased[source] |= ids
        if router.guarantee != "exactly_once" and (unstamped := ids - self.found[source]):
            self.job.warn(
                f"router {router.router} has forwarded {counted(len(unstamped), 'erased record')} without tag and "
                f"origin: the copies are still in {router.dest}; find them by their data, and delete them by seq"
            )
            self.job.report.ok = False
            self.job.report.add(untraceable=len(unstamped))
        for dest in scope.landing(router):
            self.job.step(f"looking for copies in {dest}")
            self.found[dest] |= {row.id for row in self._search(scope, dest, origins=dict(self.erased))}

    def _origins(self, scope: EraseScope, router: Router) -> set[Id]:
        """Return the erased records that a router has forwarded without their tag. Warn if some are not known."""
        topic, only = router.source, None if router.filter is None else parse_match(router.filter)
        ids = set() if only is not None else set(self.found[topic])
        if router.preserve_tag:
            return ids
        rows = self._search(scope, topic, match=self.match)
        ids |= {row.id for row in rows if only is None or only.covers(row.tag)}
        if not ids or (state := scope.states.get(topic)) is None:
            return ids
        archived = None if self.snapshot is None else self.snapshot.archived(topic, state.epoch)
        known = archived or ArchivedEpoch(topic=topic, epoch=state.epoch)
        missing = known.uncovered(1, state.earliest_seq - 1)  # that neither the topic nor the lake has
        if lost := sum(last - first + 1 for first, last in missing):
            self.job.warn(
                f"{topic} no longer has {counted(lost, 'record')} that no lake has: if {router.dest} holds "
                "copies without tags, they cannot be distinguished from other records"
            )
            self.job.report.add(untraceable=lost)
        return ids

    def _search(self, scope: EraseScope, topic: str, **wanted: Any) -> list[FoundRow]:
        """Let tasks search the topic and the lake, see `Search`. A record that is in both is found twice."""
        lake = "" if self.lake is None else self.lake.path
        spans = [
            Span(
                server=lake, topic=topic, epoch=one.epoch, start=file.first, stop=file.last + 1,
                archived=one.within(file.first, file.last),
            )
            for one in (() if self.snapshot is None else self.snapshot.epochs(topic))
            for file in one.files
        ]  # fmt: skip
        per_seq = 0.0
        if (state := scope.states.get(topic)) is not None and state.earliest_seq <= state.head_seq:
            start, stop = state.earliest_seq, state.head_seq + 1
            per_seq = state.bytes / (stop - start)
            live = Span(server=self.url, topic=topic, epoch=state.epoch, start=start, stop=stop)
            for part in plan.cut([live], lambda _: per_seq, min_partitions=1, partition_bytes=TASK_BYTES):
                spans += part

        def size_bytes(span: Span) -> int:
            live_bytes = round((span.stop - span.start) * per_seq)
            return live_bytes if span.archived is None else sum(file.bytes for file in span.archived.files)

        search = Search(lake=lake, connection=self.job.connection(self.url), **wanted)
        found = self.job.run(spans, search, result=list[FoundRow], weight=size_bytes)
        return [row for rows in found for row in rows]

    # --- deletes

    def _erase(self, scope: EraseScope, topics: Collection[str]) -> None:
        dead_letters = set(scope.dead_letters.values())
        for topic in topics:
            if topic in dead_letters and not self.job.dry_run and (now := state_of(self.client, topic)) is not None:
                scope.states[topic] = now  # includes jobs that died while their queue was erased
            if topic in scope.states:
                self._erase_topic(scope.states[topic])
        if self.lake is not None:
            self._erase_lake(self.lake, scope, topics)

    def _erase_topic(self, state: State) -> None:
        """Delete copies by seq, then everything with the tag, in the epoch and up to the head of `state`."""
        name, dry = state.topic, self.job.dry_run
        self.job.step(f"{'counting in' if dry else 'erasing from'} {name}")
        tagged, copied = self._count(state) if dry else self._delete(state)
        row = self.job.report.topic(name, server=self.url)
        row.epoch, row.to_seq = state.epoch, state.head_seq
        row.records = tagged + copied
        row.figures |= {"tagged": tagged, "copies": copied}
        if row.records and not dry:
            self.job.publish()

    def _count(self, state: State) -> tuple[int, int]:
        """Count by reading what `_delete` would delete: a dry run needs no right to delete."""
        if not state.head_seq:
            return 0, 0
        topic, epoch = state.topic, state.epoch
        tagged_ones = self.client.scan(topic, upto_seq=state.head_seq, epoch=epoch, filter=self.match.wire())
        limit = self.job.max_bytes_per_second
        by_tag = sum(piece.present for piece in paced(tagged_ones, limit) if isinstance(piece, Run))
        seqs = self._copies_in(state)
        if not seqs:
            return by_tag, 0
        wanted, by_seq = pa.array(seqs, pa.int64()), 0
        for piece in paced(self.client.scan(topic, from_seq=seqs[0] - 1, upto_seq=seqs[-1], epoch=epoch), limit):
            if isinstance(piece, Run):
                by_seq += pc.sum(pc.is_in(cells(piece).seq, value_set=wanted)).as_py() or 0
        return by_tag, by_seq

    def _copies_in(self, state: State) -> list[int]:
        return sorted(seq for epoch, seq in self.found[state.topic] if epoch == state.epoch and seq <= state.head_seq)

    def _delete(self, state: State) -> tuple[int, int]:
        """Delete and return the number of records deleted by tag, and by seq."""
        topic, epoch = state.topic, state.epoch
        by_seq = delete_seqs(self.client, topic, self._copies_in(state), epoch=epoch)
        deleted = self.client.delete(topic, match=self.match.wire(), before_seq=state.head_seq + 1, epoch=epoch)
        return deleted.deleted, by_seq

    def _erase_lake(self, lake: Lake, scope: EraseScope, topics: Iterable[str]) -> None:
        """Erase all records with the tag, and the copies that were found, from the tables of these topics.

        In the epoch of a topic on the server, records after its head at the start of this run stay.
        """
        self.job.step("counting in the lake" if self.job.dry_run else "rewriting files of the lake")

        def erasure_of(topic: str, epoch: int) -> Erasure:
            seqs = sorted(seq for of_epoch, seq in self.found[topic] if of_epoch == epoch)
            live = scope.states.get(topic)
            upto = live.head_seq if live is not None and live.epoch == epoch else LAST
            return Erasure(match=self.match, seqs=seqs, upto=upto)

        erasure = LakeErasure(lake, topics, erasure_of, run=self.job.run)
        note = {"pipeline": "erase", "run_id": self.job.report.run_id}
        counts = erasure.count() if self.job.dry_run else erasure.commit(note=note)
        for topic, of_files in counts.items():
            row = self.job.report.topic(topic, into=lake.path)
            row.records, row.figures = sum(of_files), {"files": len(of_files)}
            row.unfit = lake.unfit_in(topic)

    def _sum_up(self) -> None:
        report = self.job.report
        for row in report.topics:
            report.figures["lake" if row.into else "topics"] += row.records
            report.figures["copies"] += row.figures.get("copies", 0)
            report.figures["lake_files"] += row.figures.get("files", 0)


def describe(report: RunReport) -> str:
    """Return the receipt: the number of deleted records of each place."""
    figures = report.figures
    verb = "would be erased" if report.dry_run else "erased"
    lines = [f"{figures['match']}: {counted(report.records, 'record')} {verb} (run {report.run_id})", ""]
    places = {f"{'lake ' if row.into else 'topic'}  {row.topic}": row for row in report.topics if row.records}
    width = max(map(len, places), default=0)
    lines += [f"  {place:<{width}}  {row.records:>10,}{_detail(row)}" for place, row in places.items()]
    clean = len(report.topics) - len(places)
    others = counted(clean, "other place was", "other places were")
    lines.append(f"{'' if not places else chr(10)}{others} checked and had no such records.")
    lines += [*report.unfit_lines, *(f"warning: {text}" for text in report.warnings)]
    return "\n".join(lines)


def _detail(row: TopicReport) -> str:
    if row.into:
        return f"  in {counted(row.figures['files'], 'file')}"
    copies = row.figures["copies"]
    return f"  {copies:,} of them copies without a tag" if copies else ""


# --- the search, in tasks


class CopyStamp(Struct):
    """The stamp of an exactly-once router: the origin of a copy."""

    source: str
    epoch: int
    seq: int


class FoundRow(Struct, frozen=True):
    """A record that a search has found."""

    id: Id
    tag: str | None


class Search(Struct, frozen=True, kw_only=True):
    """A task that returns the records of a span with a tag, or those without a tag whose stamp names one of `origins`.

    A span with archived files is read from the lake, another one from the server.
    """

    lake: str
    connection: ConnectionOptions
    match: TagMatch | None = None
    origins: dict[str, set[Id]] = {}

    def __call__(self, span: Span) -> list[FoundRow]:
        options = ReadOptions(connection=self.connection, tag=self.match, fail_on_data_loss=False)
        if span.archived is not None:
            options = structs.replace(options, lake=self.lake, lake_only=True)
        found = []
        for batch in without_gaps(read_span(span, options), []):
            if self.match is None:  # filtered in Arrow: the others never become Python objects
                is_stamped = pc.match_substring(batch.column("meta"), f'"{STAMP}"')
                batch = batch.filter(pc.and_(pc.is_null(batch.column("tag")), is_stamped))
            rows = zip(*(batch.column(name).to_pylist() for name in ("seq", "tag", "meta")), strict=True)
            found += [
                FoundRow((span.epoch, seq), tag)
                for seq, tag, meta in rows
                if self.match is not None or self._is_copy(meta.encode())
            ]
        return found

    def _is_copy(self, meta: bytes) -> bool:
        stamp = stamp_in(meta, STAMP, CopyStamp)
        return stamp is not None and (stamp.epoch, stamp.seq) in self.origins.get(stamp.source, ())
