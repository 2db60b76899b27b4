"""Erase: records with a tag, and every copy of them that routers made, out of topics and out of a lake.

What was there when the run began goes; what is written meanwhile stays. First all is found, then copies are deleted
before their originals and topics before the lake: a run that is killed leaves what the next one needs to find the rest.
Where that is not so (copies without tags in the lake, whose originals are only in a topic) their seqs are noted in the
lake before the first delete. The lake's files are rewritten in one commit.

Driver only: what is read in bulk comes as Arrow, from the server's scan and from Parquet, and most of it is passed
over by its tag or its payload.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Unpack

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from topics.arrow import cells
from topics.client import Client
from topics.client.request import Router, State
from topics.errors import Code, TopicsError
from topics.lake import Lake, Snapshot
from topics.model.records import TagMatch
from topics.spark.pipelines.copies import NEEDED, Id, Origins, Row, Rows, copies, going, named, tagged
from topics.spark.pipelines.job import BadUsage, Failed, Job, JobOptions
from topics.spark.pipelines.report import Report
from topics.storage.run import Run

SEQS_A_REQUEST = 1000
ROUTER_PATIENCE_S = 30.0
NOTES = "_erase"  # in the lake: what a run has found and not finished


class Found(Struct):
    """What goes from one topic, beside what its tag tells."""

    ids: set[Id] = field(default_factory=set)  # copies without a tag
    ambiguous: int = 0


class Scope(Struct):
    """Where this run looks."""

    states: dict[str, State]  # topics of the server, as they were when it began
    archived: list[str]  # topics of the lake
    routers: list[Router]

    def depth(self, topic: str) -> int:
        """How many routers a record has passed to get here, at most. A cycle ends where it comes back."""
        source_of = {router.dest: router.source for router in self.routers}
        seen = [topic]
        while (source := source_of.get(seen[-1])) is not None and source not in seen:
            seen.append(source)
        return len(seen) - 1


def erase(
    *,
    url: str,
    match: str,
    lake: str | None = None,
    topics: Sequence[str] = (),
    prefix: str | None = None,
    **options: Unpack[JobOptions],
) -> Report:
    """`match` is a tag, or a prefix of tags and `*`. Without `topics` and `prefix` all topics are looked through."""
    wanted = parse(match)
    with Job("erase", servers=[url], **options) as job, job.client(url) as client:
        job.report.figures |= {"match": match, "topics": 0, "copies": 0, "lake": 0, "lake_files": 0}
        erasure = _Erasure(job, client, url, wanted, _opened(lake))
        erasure.run(topics, prefix)
    return job.report


def parse(match: str) -> TagMatch:
    """As in a delete, in one word: `user-42` is a tag, `user-42:*` all that begin so."""
    text = match.removesuffix("*")
    if "*" in text:
        raise BadUsage(f"{match!r}: a * may only stand at the end, for all tags that begin like what is before it")
    if not text:
        raise BadUsage(f"{match!r} would erase every record that has a tag")
    return TagMatch("Glob" if match.endswith("*") else "Eq", text)


def _opened(lake: str | None) -> Lake | None:
    if lake is None:
        return None
    found = Lake(lake)
    if not found.exists():
        raise BadUsage(f"{lake} is no lake: topics pipeline archive makes one; without --lake only topics are erased")
    return found


class _Erasure:
    """One run."""

    def __init__(self, job: Job, client: Client, url: str, match: TagMatch, lake: Lake | None) -> None:
        self.job = job
        self.client = client
        self.url = url
        self.match = match
        self.lake = lake
        self.snapshot: Snapshot | None = None if lake is None else lake.snapshot()
        self.found: dict[str, Found] = defaultdict(Found)

    def run(self, topics: Sequence[str], prefix: str | None) -> None:
        scope = self._scope(topics, prefix)
        self._wait_for_routers(scope)
        self._load_note()
        for topic in sorted({*scope.states, *scope.archived}, key=lambda name: (scope.depth(name), name)):
            self._trace(scope, topic)
        if not self.job.dry_run:
            self._save_note()
        for topic in sorted(scope.states, key=lambda name: (-scope.depth(name), name)):
            self._erase_topic(scope.states[topic])
        if self.lake is not None:
            self._erase_lake(self.lake, scope)
        if not self.job.dry_run:
            self._drop_note()
        self._sum_up()

    # --- where

    def _scope(self, topics: Sequence[str], prefix: str | None) -> Scope:
        self.job.step("looking for topics and routers")
        routers = [self.client.router(one.router) for one in self.client.routers()]
        archived = [] if self.snapshot is None else self.snapshot.topics()
        if topics:
            names = set(topics)
        else:
            live = [one.topic for one in self.client.topics(prefix or "")]
            begins = prefix or ""
            names = {name for name in (*live, *archived) if name.startswith(begins) and _ours(name, begins)}
        while more := {router.dest for router in routers if router.source in names} - names:
            names |= more
        states = {}
        for name in sorted(names):
            state = self._state(name)
            if state is not None:
                states[name] = state
            elif name in topics and name not in archived:
                raise Failed(f'there is no topic "{name}", on the server or in the lake', next="check its name")
        used = [router for router in routers if router.source in names]
        return Scope(states, sorted(names & set(archived)), used)

    def _state(self, topic: str) -> State | None:
        try:
            return self.client.topic(topic)
        except TopicsError as error:
            if error.code is not Code.TOPIC_NOT_FOUND:
                raise
            return None

    def _wait_for_routers(self, scope: Scope) -> None:
        """Until every copy that will be made of what is there now has been made."""
        deadline = time.monotonic() + ROUTER_PATIENCE_S
        for router in sorted(scope.routers, key=lambda router: scope.depth(router.source)):
            head, now = scope.states[router.source].head_seq, router
            while now.cursor < head:
                if self.job.dry_run:
                    self.job.warn(
                        f"router {router.router} has not forwarded everything yet: its copies may become more"
                    )
                    break
                if now.last_error is not None or time.monotonic() > deadline:
                    raise Failed(
                        f"router {router.router} has not forwarded everything: "
                        f"{now.last_error or f'it is {head - now.cursor} records behind'}",
                        next=f"see to {router.dest}, or remove the router, and run the same command again",
                    )
                self.job.stopping.wait(0.05)
                now = self.client.router(router.router)
            if router.dest in scope.states:
                scope.states[router.dest] = self.client.topic(router.dest)

    # --- what

    def _trace(self, scope: Scope, topic: str) -> None:
        """Finds the copies that routers out of this topic made of what goes from it and left without a tag."""
        for router in scope.routers:
            if router.source != topic:
                continue
            origins = self._origins(scope, topic, router)
            if origins is None:
                continue
            self.job.step(f"looking for copies in {router.dest}")
            self._warn_of_untraceable(scope, router)
            more = copies(self._rows(scope, router.dest), origins, router)
            known = self.found[router.dest]
            known.ids |= more.ids
            known.ambiguous += more.ambiguous

    def _origins(self, scope: Scope, topic: str, router: Router) -> Origins | None:
        rows: dict[Id, Row] = {}
        if not router.preserve_tag:
            rows |= {row.id: row for row in going(self._rows(scope, topic, by_tag=True), self.match)}
        if self.found[topic].ids and router.filter is None:
            rows |= {row.id: row for row in named(self._rows(scope, topic), self.found[topic].ids)}
        forwarded = [row for row in rows.values() if router.filter is None or _passes(router.filter, row.tag)]
        if not forwarded:
            return None
        origins = Origins(topic, forwarded)
        origins.note_others(self._rows(scope, topic))
        return origins

    def _rows(self, scope: Scope, topic: str, *, by_tag: bool = False) -> Rows:
        """Every record that the topic or the lake has; some come twice. `by_tag`: at least those that match."""
        if self.lake is not None and self.snapshot is not None:
            for life in self.snapshot.lives(topic):
                for batch in self.lake.read(topic, life.epoch, columns=NEEDED, snapshot=self.snapshot):
                    yield life.epoch, batch
        state = scope.states.get(topic)
        if state is None:
            return
        match = wire(self.match) if by_tag else None
        for piece in self.client.scan(topic, upto_seq=state.head_seq, epoch=state.epoch, filter=match):
            if isinstance(piece, Run):
                yield state.epoch, pa.RecordBatch.from_arrays(list(cells(piece)), names=list(NEEDED))

    def _warn_of_untraceable(self, scope: Scope, router: Router) -> None:
        state = scope.states.get(router.source)
        if state is None or state.earliest_seq <= 1:
            return
        life = None if self.snapshot is None else self.snapshot.life(state.topic, state.epoch)
        gone = [(1, state.earliest_seq - 1)] if life is None else life.uncovered(1, state.earliest_seq - 1)
        if gone:
            lost = sum(last - first + 1 for first, last in gone)
            self.job.warn(
                f"{lost} records that {router.source} no longer has are in no lake: if {router.dest} holds copies of "
                f"some, without tags, they cannot be told from others"
            )
            self.job.report.figures["untraceable"] = self.job.report.figures.get("untraceable", 0) + lost

    # --- going

    def _erase_topic(self, state: State) -> None:
        """Copies one by one, then everything with the tag; of this life, and of what was there when the run began."""
        name, dry = state.topic, self.job.dry_run
        self.job.step(f"{'counting in' if dry else 'erasing from'} {name}")
        by_seq = 0
        seqs = sorted(seq for epoch, seq in self.found[name].ids if epoch == state.epoch and seq <= state.head_seq)
        for at in range(0, len(seqs), SEQS_A_REQUEST):
            part = seqs[at : at + SEQS_A_REQUEST]
            by_seq += self.client.delete(name, seqs=part, epoch=state.epoch, dry_run=dry).deleted
        by_tag = self.client.delete(
            name, match=wire(self.match), before_seq=state.head_seq + 1, epoch=state.epoch, dry_run=dry
        ).deleted
        row = self.job.report.topic(name, server=self.url)
        row.epoch, row.to_seq = state.epoch, state.head_seq
        row.records += by_tag + by_seq
        row.figures = {"tagged": by_tag, "copies": by_seq}
        if self.found[name].ambiguous:
            row.figures["ambiguous"] = self.found[name].ambiguous

    def _erase_lake(self, lake: Lake, scope: Scope) -> None:
        dry = self.job.dry_run
        self.job.step("counting in the lake" if dry else "rewriting files of the lake")
        names = sorted({*scope.states, *scope.archived})
        note = {"pipeline": "erase", "run_id": self.job.report.run_id}
        done = lake.erase(
            names, lambda topic, epoch, batch: self._kept(scope, topic, epoch, batch), columns=("tag", "seq"),
            note=note, dry_run=dry, progress=lambda at, total: self.job.progress.show(at, total, unit="files"),
        )  # fmt: skip
        for topic in scope.archived:
            mine = [one for one in done if one.topic == topic]
            row = self.job.report.topic(topic, into=lake.path)
            row.records = sum(one.removed for one in mine)
            row.figures = {"files": len(mine)}

    def _kept(self, scope: Scope, topic: str, epoch: int, batch: pa.RecordBatch) -> pa.BooleanArray:
        copied = pa.array(sorted(seq for life, seq in self.found[topic].ids if life == epoch), pa.int64())
        goes = pc.or_(tagged(batch, self.match), pc.is_in(batch.column("seq"), value_set=copied))
        state = scope.states.get(topic)
        if state is not None and state.epoch == epoch:
            goes = pc.and_(goes, pc.less_equal(batch.column("seq"), state.head_seq))
        return pc.invert(goes)

    # --- what a run that is killed leaves to the next

    def _note_path(self) -> str | None:
        if self.lake is None:
            return None
        name = hashlib.sha256(f"{self.match.op} {self.match.text}".encode()).hexdigest()[:16]
        return os.path.join(self.lake.path, NOTES, f"{name}.json")

    def _load_note(self) -> None:
        path = self._note_path()
        if path is not None and os.path.exists(path):
            with open(path, "rb") as file:
                noted = msgspec.json.decode(file.read(), type=dict[str, list[Id]])
            for topic, ids in noted.items():
                self.found[topic].ids.update(ids)

    def _save_note(self) -> None:
        """Seqs only: nothing of what is to be erased."""
        path = self._note_path()
        noted = {topic: sorted(found.ids) for topic, found in self.found.items() if found.ids}
        if path is None or not noted:
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "wb") as file:
            file.write(msgspec.json.encode(noted))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    def _drop_note(self) -> None:
        path = self._note_path()
        if path is not None and os.path.exists(path):
            os.unlink(path)

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
                f"{ambiguous} records without a tag may be copies of what was erased, or of records with the same "
                "content that stay: they were left alone"
            )


def wire(match: TagMatch) -> list[str]:
    return ["tag", match.op, match.text + "*" * (match.op == "Glob")]


def _passes(only: list[str], tag: str | None) -> bool:
    """Whether a router with this filter forwards a record with this tag."""
    if tag is None:
        return False
    _, op, text = only
    return tag == text if op == "Eq" else tag.startswith(text.removesuffix("*"))


def _ours(name: str, prefix: str) -> bool:
    """Reports of pipelines are not what anybody means who does not name them."""
    return not name.startswith("sys:") or prefix.startswith("sys:")
