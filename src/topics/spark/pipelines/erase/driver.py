"""Erase: delete records with a tag, and every copy of them that routers made, from topics and from a lake.

Records that existed when the run began are deleted; records written meanwhile stay. The run finds all of them first,
then deletes copies before their originals and from topics before the lake: so after a kill the next run can still find
the rest. Where originals do not suffice (for copies without tags in the lake whose originals are only in a topic), the
seqs are saved as positions before the first delete, without any content to erase. Tasks search topics and lake, and
rewrite the files of the lake. The report is published after each topic, so a killed run leaves what it has erased.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from topics.arrow import cells
from topics.client import Client
from topics.client.request import Router, State
from topics.errors import Code, TopicsError
from topics.lake import ArchivedEpoch, Lake, LakeError, Snapshot
from topics.lake.archived import Range
from topics.lake.lake import LakeErasure
from topics.lake.rewrite import LAST, Erasure
from topics.model.records import TagMatch, parse_match
from topics.plurals import counted
from topics.spark.failures import LakeFailed
from topics.spark.pipelines.erase.router_copies import CopyMatches, Id, Origins, Search, TracedRow, copies
from topics.spark.pipelines.run import positions
from topics.spark.pipelines.run.delivery import delete_seqs
from topics.spark.pipelines.run.job import BadUsage, Failed, JobOptions, PipelineJob, check_may_delete
from topics.spark.pipelines.run.positions import Positions
from topics.spark.pipelines.run.report import RunReport
from topics.spark.pipelines.run.tasks import TASK_BYTES
from topics.spark.source import plan
from topics.spark.source.catalog import state_of
from topics.spark.source.plan import Span
from topics.spark.topic_names import Selection, existing_lake, no_topic, unknown_topic
from topics.storage.segments.record_run import Run

ROUTER_PATIENCE_S = 30.0
IDS_A_NOTE = 5000  # because a record has a size limit


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
        names = sorted({*self.states, *last}, key=lambda name: (-self.depth(name), name))
        return [name for name in names if name not in last] + sorted(last, key=lambda name: (self.depth(name), name))

    def landing(self, router: Router) -> list[str]:
        """Return the topics that may hold copies of a router: its destination and the dead letters of that queue."""
        found = [router.dest]
        while (dead := self.dead_letters.get(found[-1])) is not None and dead not in found:
            found.append(dead)
        return found


class Note(Struct, omit_defaults=True):
    """A part of what a run has found: copies by their topic, and by router the originals whose copies were found."""

    ids: dict[str, list[Id]] = field(default_factory=dict)
    matched: dict[str, list[Id]] = field(default_factory=dict)


def erase(
    *,
    url: str,
    match: str,
    lake: str | None = None,
    topics: Sequence[str] = (),
    prefix: str | None = None,
    positions_topic: str = positions.TOPIC,
    **options: Unpack[JobOptions],
) -> RunReport:
    """Erase records by tag. `match` is a tag, or a prefix and `*`. Without `topics` and `prefix`, search all topics."""
    wanted = parse(match)
    with PipelineJob("erase", servers=[url], **options) as job, job.client(url) as client:
        job.report.figures |= {"match": match, "topics": 0, "copies": 0, "lake": 0, "lake_files": 0}
        erasure = _Erasure(
            job, client, url, wanted, None if lake is None else existing_lake(lake), positions_topic=positions_topic
        )
        erasure.run(topics, prefix)
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

    def __init__(
        self, job: PipelineJob, client: Client, url: str, match: TagMatch, lake: Lake | None, *, positions_topic: str
    ) -> None:
        self.job, self.client, self.url, self.match, self.lake = job, client, url, match, lake
        self.snapshot: Snapshot | None = None if lake is None else lake.snapshot()
        self.found: dict[str, CopyMatches] = defaultdict(CopyMatches)  # copies without the tag
        self.matched: dict[str, set[Id]] = defaultdict(set)  # by router: originals whose copies are known
        # The name of the notes is a hash, so that it does not reveal the erased tag.
        what = hashlib.sha256(f"{match.op} {match.text}".encode()).hexdigest()[:16]
        self.notes = Positions(client, f"erase:{what}:", run=job.report.run_id, topic=positions_topic)

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
        has_notes = self._load_notes()
        for topic in sorted({*scope.states, *scope.archived}, key=lambda name: (scope.depth(name), name)):
            self._trace(scope, topic)
        if not self.job.dry_run:
            has_notes |= self._save_notes()
        dead_letters = set(scope.dead_letters.values())
        for topic in scope.erasing():
            if topic in dead_letters and not self.job.dry_run and (now := state_of(self.client, topic)) is not None:
                scope.states[topic] = now  # includes jobs that died while their queue was erased
            if topic in scope.states:
                self._erase_topic(scope.states[topic])
        if self.lake is not None:
            self._erase_lake(self.lake, scope)
        if has_notes and not self.job.dry_run:
            self.notes.forget()
        self._sum_up()

    # --- notes, for the run after a kill

    def _load_notes(self) -> bool:
        """Take over what a killed run has found. Return whether it has left notes that the key may read."""
        try:
            notes = self.notes.load(Note).values()
        except TopicsError as error:
            if error.code is not Code.FORBIDDEN:
                raise
            return False
        for note in notes:
            for topic, ids in note.ids.items():
                self.found[topic].ids.update(ids)
            for router, originals in note.matched.items():
                self.matched[router].update(originals)
        return bool(notes)

    def _save_notes(self) -> bool:
        """Save what was found, in parts. Return whether there is anything to save. Warn if the key may not write."""
        parts = {"ids": {topic: found.ids for topic, found in self.found.items()}, "matched": self.matched}
        notes = [
            Note(**{name: {of: given[at : at + IDS_A_NOTE]}})
            for name, found in parts.items()
            for of, given in ((of, sorted(given)) for of, given in found.items())
            for at in range(0, len(given), IDS_A_NOTE)
        ]
        try:
            for number, note in enumerate(notes):
                self.notes.save({str(number): note})
        except TopicsError as error:
            if error.code is not Code.FORBIDDEN:
                raise
            text = "the progress cannot be saved, so a run after a kill may miss copies without a tag"
            self.job.warn(f"{text}: {error}")
        return bool(notes)

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

    def _trace(self, scope: EraseScope, topic: str) -> None:
        """Find the copies without tags that routers made of this topic's erased records."""
        for router in scope.routers:
            if router.source != topic:
                continue
            origins = self._origins(scope, topic, router)
            if origins is None:
                continue
            state, missing = scope.states.get(topic), list[Range]()  # that neither the topic nor the lake has
            if state is not None:
                archived = None if self.snapshot is None else self.snapshot.archived(topic, state.epoch)
                known_epoch = archived or ArchivedEpoch(topic=topic, epoch=state.epoch)
                missing = known_epoch.uncovered(1, state.earliest_seq - 1)
            if lost := sum(last - first + 1 for first, last in missing):
                self.job.warn(
                    f"{topic} no longer has {counted(lost, 'record')} that no lake has: if {router.dest} holds "
                    "copies without tags, they cannot be distinguished from other records"
                )
                self.job.report.add(untraceable=lost)
            for dest in scope.landing(router):
                self.job.step(f"looking for copies in {dest}")
                known = self.found[dest]
                so_far = CopyMatches(ids=known.ids, matched=self.matched[router.router])
                more = copies(self._found(scope, dest, data=origins.data), origins, router, known=so_far)
                known.ids |= more.ids
                known.unsure |= more.unsure
                self.matched[router.router] |= more.matched

    def _origins(self, scope: EraseScope, topic: str, router: Router) -> Origins | None:
        rows: dict[Id, TracedRow] = {}
        if not router.preserve_tag:
            rows |= {row.id: row for row in self._found(scope, topic, match=self.match)}
        if (ids := self.found[topic].ids) and router.filter is None:
            seqs = sorted({seq for _, seq in ids})
            rows |= {row.id: row for row in self._found(scope, topic, seqs=seqs) if row.id in ids}
        only = None if router.filter is None else parse_match(router.filter)
        forwarded = [row for row in rows.values() if only is None or only.covers(row.tag)]
        if not forwarded:
            return None
        origins = Origins(topic, forwarded)
        origins.note_others(self._found(scope, topic, data=origins.data))
        return origins

    def _found(self, scope: EraseScope, topic: str, **wanted: Any) -> list[TracedRow]:
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
        found = self.job.run(spans, search, result=list[TracedRow], weight=size_bytes)
        return [row for rows in found for row in rows]

    # --- deletes

    def _erase_topic(self, state: State) -> None:
        """Delete copies by seq, then everything with the tag, in the epoch and up to the head of `state`."""
        name, dry = state.topic, self.job.dry_run
        self.job.step(f"{'counting in' if dry else 'erasing from'} {name}")
        tagged, copied = self._count(state) if dry else self._delete(state)
        row = self.job.report.topic(name, server=self.url)
        row.epoch, row.to_seq = state.epoch, state.head_seq
        row.records = tagged + copied
        row.figures |= {"tagged": tagged, "copies": copied}
        if self.found[name].ambiguous:
            row.figures["ambiguous"] = self.found[name].ambiguous
        if row.records and not dry:
            self.job.publish()

    def _count(self, state: State) -> tuple[int, int]:
        """Count by reading what `_delete` would delete: a dry run needs no right to delete."""
        if not state.head_seq:
            return 0, 0
        topic, epoch = state.topic, state.epoch
        tagged_ones = self.client.scan(topic, upto_seq=state.head_seq, epoch=epoch, filter=self.match.wire())
        by_tag = sum(piece.present for piece in tagged_ones if isinstance(piece, Run))
        seqs = self._copies_in(state)
        if not seqs:
            return by_tag, 0
        wanted, by_seq = pa.array(seqs, pa.int64()), 0
        for piece in self.client.scan(topic, from_seq=seqs[0] - 1, upto_seq=seqs[-1], epoch=epoch):
            if isinstance(piece, Run):
                by_seq += pc.sum(pc.is_in(cells(piece).seq, value_set=wanted)).as_py() or 0
        return by_tag, by_seq

    def _copies_in(self, state: State) -> list[int]:
        ids = self.found[state.topic].ids
        return sorted(seq for epoch, seq in ids if epoch == state.epoch and seq <= state.head_seq)

    def _delete(self, state: State) -> tuple[int, int]:
        """Delete and return the number of records deleted by tag, and by seq."""
        topic, epoch = state.topic, state.epoch
        by_seq = delete_seqs(self.client, topic, self._copies_in(state), epoch=epoch)
        deleted = self.client.delete(topic, match=self.match.wire(), before_seq=state.head_seq + 1, epoch=epoch)
        return deleted.deleted, by_seq

    def _erase_lake(self, lake: Lake, scope: EraseScope) -> None:
        """Erase all records with the tag, and the copies that were found, from the lake.

        In the epoch of a topic on the server, records after its head at the start of this run stay.
        """
        self.job.step("counting in the lake" if self.job.dry_run else "rewriting files of the lake")

        def erasure_of(topic: str, epoch: int) -> Erasure:
            seqs = sorted(seq for of_epoch, seq in self.found[topic].ids if of_epoch == epoch)
            live = scope.states.get(topic)
            upto = live.head_seq if live is not None and live.epoch == epoch else LAST
            return Erasure(match=self.match, seqs=seqs, upto=upto)

        erasure = LakeErasure(lake, (*scope.states, *scope.archived), erasure_of, run=self.job.run)
        note = {"pipeline": "erase", "run_id": self.job.report.run_id}
        counts = erasure.count() if self.job.dry_run else erasure.commit(note=note)
        for topic, of_files in counts.items():
            row = self.job.report.topic(topic, into=lake.path)
            row.records, row.figures = sum(of_files), {"files": len(of_files)}

    def _sum_up(self) -> None:
        report = self.job.report
        for row in report.topics:
            report.figures["lake" if row.into else "topics"] += row.records
            report.figures["copies"] += row.figures.get("copies", 0)
            report.figures["lake_files"] += row.figures.get("files", 0)
        ambiguous = sum(found.ambiguous for found in self.found.values())
        if ambiguous:
            report.ok = False
            report.figures["ambiguous"] = ambiguous
            self.job.warn(
                f"not erased: {counted(ambiguous, 'record')} without a tag that may be copies of erased records, or "
                "have the same content for another reason"
            )
