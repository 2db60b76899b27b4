"""Mirror: copy topics of one server to another, or in both directions, until they hold the same records.

A copy keeps node, tag, meta and data, and lists the servers that it has been on (`provenance`), which prevents loops.
The position of each direction is saved on its target server before and after each step (`positions`). Executors copy
(`task`): several topics at the same time, and each topic in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Unpack

from msgspec import Struct, field, structs

from topics.client import Client
from topics.client.request import Summary
from topics.lake import Lake, NoLake
from topics.lake.storage import real_location, set_options
from topics.model.topic import TopicConfig
from topics.spark.pipelines.mirror import server_identity
from topics.spark.pipelines.mirror.provenance import LostSeqs, hops_of, is_copy
from topics.spark.pipelines.mirror.task import MAX_ROUNDS, CopyTask, MirrorResult, copy, rehearse
from topics.spark.pipelines.run import positions
from topics.spark.pipelines.run.delivery import last_shown
from topics.spark.pipelines.run.executors import run_on_executors
from topics.spark.pipelines.run.job import RUNS, BadUsage, JobOptions, PipelineJob
from topics.spark.pipelines.run.lags import common, forget
from topics.spark.pipelines.run.positions import Positions
from topics.spark.pipelines.run.report import ReportedGap, RunReport, TopicReport
from topics.spark.pipelines.run.trimmed import Removed, removed
from topics.spark.pipelines.run.unknown_names import begins_with, no_topic, unknown_topic
from topics.spark.sink.write_options import DEFAULT_WINDOW_MS

STEP_SEQS = 50_000  # most seqs of a topic in one step, so that topics take turns
ALL_SEQS = 1 << 62
IDLE_S = 0.25
EXCLUDED = (RUNS, server_identity.TOPIC, positions.TOPIC)  # topics of pipelines, which are never mirrored
KEPT_SETTINGS = (
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "discard",
    "durability",
    "priority",
    "auto_priority",
    "dedupe_node",
)


class MirrorPosition(Struct, frozen=True, kw_only=True):
    """The position of a topic in one direction. A killed run may have written the seqs after `done` up to `plan`."""

    epoch: int
    done: int = 0
    plan: int = 0
    generation: int = field(default=0, name="life")  # counts restarts from the first seq; part of every write's key
    target_epoch: int = 0  # epoch of the topic on the target; 0 if it does not exist
    target_seq: int = 0  # its head when the plan was saved, and when it was done
    lost_epoch: int | None = None  # the earlier epoch, until its end is reported to the target
    pending_gap: LostSeqs | None = field(default=None, name="behind")  # the gap right before the next record


def mirror(
    *,
    source: str,
    target: str,
    prefix: str | None = None,
    topics: Sequence[str] = (),
    both_ways: bool = False,
    follow: bool = False,
    only_local: bool = False,
    lake: str | None = None,
    skip_trimmed: bool = False,
    source_name: str | None = None,
    target_name: str | None = None,
    source_nodes: Sequence[str] = (),
    target_nodes: Sequence[str] = (),
    source_token_file: str | None = None,
    target_token_file: str | None = None,
    step_seqs: int = STEP_SEQS,
    positions_topic: str = positions.TOPIC,
    **options: Unpack[JobOptions],
) -> RunReport:
    """Copy from `source` to `target`, and back with `both_ways`; once, or with `follow` until the job is stopped.

    `lake` is the lake of the source: records that the source no longer has come from there. Without it, a topic that
    was trimmed before it was copied is not copied, and the report says so; `skip_trimmed` continues after the trimmed
    seqs. `source_nodes` and `target_nodes` are nodes that write only on that server: their copies are then left out
    by the node filter of the other server, instead of being read and recognised.
    """
    source, target = source.rstrip("/"), target.rstrip("/")
    if prefix is None and not topics:
        raise BadUsage("choose topics: by a prefix, which may be empty, or by their names")
    if source == target:
        raise BadUsage(f"{source} is both source and target")
    if lake is not None:
        set_options(options.get("storage_options") or {})
        lake = _existing(lake)
        if skip_trimmed:
            raise BadUsage("lake and skip_trimmed: a lake has the trimmed records; give one of them")
    wanted = MirrorSelection(prefix=prefix, topics=tuple(topics), except_for=(*EXCLUDED, positions_topic))
    keys = {source: source_token_file, target: target_token_file}
    with (
        PipelineJob("mirror", servers=[source, target], token_files=keys, **options) as job,
        ExitStack() as open_clients,
    ):
        job.step(f"looking at {source} and {target}")
        one, other = (open_clients.enter_context(job.client(url)) for url in (source, target))
        _check_wanted(job, wanted, [one, other] if both_ways else [one], follow=follow)
        one_id = server_identity.identity(one, name=source_name, dry_run=job.dry_run)
        other_id = server_identity.identity(other, name=target_name, dry_run=job.dry_run)
        if one_id == other_id and one_id != server_identity.NEW:
            raise BadUsage(
                f"{source} and {target} are both called {one_id!r}: one is a copy of the other",
                next=f"delete the topic {server_identity.TOPIC} on the one that is the copy",
            )
        make = _Maker(
            job, wanted, only_local=only_local, skip_trimmed=skip_trimmed, positions_topic=positions_topic,
            step_seqs=ALL_SEQS if job.dry_run else step_seqs,
        )  # fmt: skip
        links = [make.link(one, other, one_id, other_id, target_nodes, lake=lake)]
        if both_ways:
            links.append(make.link(other, one, other_id, one_id, source_nodes))
        _run(job, links, follow=follow)
    return job.report


class MirrorSelection(Struct, frozen=True, kw_only=True):
    """The topics to mirror."""

    prefix: str | None
    topics: tuple[str, ...]
    except_for: tuple[str, ...]

    def among(self, client: Client) -> Iterator[Summary]:
        begins = common([*self.topics, *([] if self.prefix is None else [self.prefix])])
        return (row for row in client.topics(begins) if self.has(row.topic) and row.topic not in self.except_for)

    def has(self, topic: str) -> bool:
        return topic in self.topics or self.begins(topic)

    def begins(self, topic: str) -> bool:
        """Return whether the prefix selects the topic. `sys:` topics need a prefix that begins so, or the empty one."""
        if self.prefix is None or not topic.startswith(self.prefix):
            return False
        return not topic.startswith("sys:") or (self.prefix or "sys:").startswith("sys:")


def _check_wanted(job: PipelineJob, wanted: MirrorSelection, sources: Sequence[Client], *, follow: bool) -> None:
    """Raise `BadUsage` if a name or the prefix selects no topic; with `follow`, warn and wait instead."""
    there = {row.topic for client in sources for row in wanted.among(client)}
    where = " or ".join(client.url for client in sources)
    for topic in wanted.topics:
        if topic not in there and not follow:
            raise unknown_topic(sources[0], topic)
        if topic not in there:
            job.warn(f"topic {topic} does not exist on {where} yet: waiting for it")
    if wanted.prefix is not None and not any(wanted.begins(topic) for topic in there):
        which = begins_with(wanted.prefix or "")
        if not follow:
            raise no_topic(sources, which, like=wanted.prefix or "")
        job.warn(f"no topic on {where} {which}: waiting for one")
    job.report.looked_at = len(there)


class Link:
    """One direction of a mirror."""

    def __init__(
        self,
        job: PipelineJob,
        wanted: MirrorSelection,
        *,
        source: Client,
        target: Client,
        pattern: CopyTask,
        step_seqs: int,
        positions_topic: str,
    ) -> None:
        self.source, self.target = source, target
        self.lag: int | None = None  # the sum over its topics, at the last check
        self._job = job
        self._wanted = wanted
        self._pattern = pattern  # the fields that all tasks of this direction share
        self._step_seqs = step_seqs
        self._positions = Positions(
            target, f"mirror:{pattern.source_id}:", run=job.report.run_id, topic=positions_topic
        )
        self._at = self._positions.load(MirrorPosition)
        self._goal: dict[str, int] = {}
        self._warned_removed: set[str] = set()
        self._warned_circle: set[str] = set()

    def aim(self) -> None:
        """Set the present heads as the end of a run that does not follow."""
        self._goal = {row.topic: row.head_seq for row in self._wanted.among(self.source)}

    def plan(self, *, follow: bool) -> list[CopyTask]:
        """Return the next tasks. Their plan is saved on the target before."""
        there = {row.topic: row for row in self._wanted.among(self.target)}
        rows = [row for row in self._wanted.among(self.source) if self._is_log(row)]
        self._check_no_queue([there[row.topic] for row in rows if row.topic in there])
        found = []
        for row in rows:
            self._note_lag(row)
            head = row.head_seq if follow else min(row.head_seq, self._goal.get(row.topic, 0))
            task = self._next_task(row, there.get(row.topic), head)
            if task is not None:
                found.append(task)
        if found and not self._job.dry_run:
            self._positions.check_alone()
            self._positions.save({task.topic: self._at[task.topic] for task in found})
        return found

    def _next_task(self, row: Summary, there: Summary | None, head: int) -> CopyTask | None:
        at = self._at.get(row.topic, MirrorPosition(epoch=row.epoch))
        target_epoch, target_seq = (0, 0) if there is None else (there.epoch, there.head_seq)
        if at.epoch != row.epoch or row.head_seq < max(at.done, at.plan):
            at = MirrorPosition(epoch=row.epoch, generation=at.generation + 1, lost_epoch=at.epoch)
        elif (at.target_epoch and target_epoch != at.target_epoch) or target_seq < at.target_seq:
            at = self._at[row.topic] = self._refill(row.topic, at, there)
        if row.earliest_seq > at.done + 1 and self._is_held(row, at):
            return None
        present = 0
        if at.plan > at.done:
            stop = at.plan + 1
            present = 0 if self._job.dry_run else self._present(row.topic, at)
        else:
            # A gap at the front is reported as one record, so it does not count as part of the step.
            stop = min(head, max(at.done, row.earliest_seq - 1) + self._step_seqs) + 1
            at = structs.replace(at, plan=stop - 1, target_epoch=target_epoch, target_seq=target_seq)
        if stop <= at.done + 1 and at.lost_epoch is None:
            return None
        self._at[row.topic] = at
        return structs.replace(
            self._pattern,
            topic=row.topic,
            epoch=row.epoch,
            generation=at.generation,
            start=at.done + 1,
            stop=stop,
            present=present,
            lost_epoch=at.lost_epoch,
            pending_gap=at.pending_gap,
            config=self._settings(row.topic) if there is None else {},
        )

    def _is_held(self, row: Summary, at: MirrorPosition) -> bool:
        """Return whether the next seqs are only in a lake that is not given: to continue would lose them for good."""
        found = removed(self.source, row.topic, epoch=row.epoch, start=at.done + 1)
        if found is None:
            return False
        lake = self._pattern.lake
        if lake is not None and (not found.is_trimmed or found.is_in(lake, row.topic, row.epoch)):
            return False
        held = found.is_trimmed and (lake is not None or self._pattern.heeds_trims)
        if row.topic not in self._warned_removed:
            self._warned_removed.add(row.topic)
            self._warn_about_removed(row, found, held=held)
        if held:
            report = self._row(row.topic)
            report.epoch = row.epoch
            report.from_seq, report.to_seq = report.from_seq or found.first, report.to_seq or found.last
            report.figures["held_at"] = found.first
        return held

    def _warn_about_removed(self, row: Summary, found: Removed, *, held: bool) -> None:
        where = f"topic {row.topic} in {self.source.url}: {found} were removed"
        if not found.is_trimmed:
            self._job.warn(f"{where} before they were copied; the copy does not have them")
        elif not held:
            self._job.warn(f"{where} after they were archived; they are left out")
        else:
            lake = self._pattern.lake
            why = "and are in a lake" if lake is None else f"and are not in {lake}, but in another lake"
            self._job.warn(f"{where} before they were copied, {why}; the topic is not copied")
            self._job.report.ok = False
            self._job.report.next = (
                f"run topics pipeline mirror --from {self.source.url} --to {self.target.url} with --lake DIR to copy "
                "them as well, or with --skip-trimmed to continue without them"
            )

    def _row(self, topic: str) -> TopicReport:
        return self._job.report.topic(topic, server=self.source.url, into=self.target.url)

    def _refill(self, topic: str, at: MirrorPosition, there: Summary | None) -> MirrorPosition:
        """Return the position for a target topic that was replaced. One restored from a backup holds a part."""
        shown = self._present(topic, MirrorPosition(epoch=at.epoch))
        if not shown:
            self._job.warn(f"topic {topic} in {self.target.url} was deleted or set back: it is copied again")
        target_epoch, target_seq = (0, 0) if there is None else (there.epoch, there.head_seq)
        return MirrorPosition(
            epoch=at.epoch, done=shown, plan=shown, generation=at.generation + 1, lost_epoch=at.lost_epoch,
            target_epoch=target_epoch, target_seq=target_seq,
        )  # fmt: skip

    def save_results(self, tasks: Sequence[CopyTask], outcomes: Sequence[MirrorResult]) -> None:
        """Save the new positions, with the epoch of the target topic: the first step may have created it."""
        there = {row.topic: row for row in self._wanted.among(self.target)}
        done = {}
        for task, outcome in zip(tasks, outcomes, strict=True):
            at = self._at[task.topic]
            done_to = outcome.trimmed_at - 1 if outcome.trimmed_at else at.plan
            at = structs.replace(at, done=done_to, plan=done_to, lost_epoch=None, pending_gap=outcome.pending_gap)
            now = there.get(task.topic)
            if now is not None and at.target_epoch in (0, now.epoch):  # else the next plan finds the new epoch
                at = structs.replace(at, target_epoch=now.epoch, target_seq=now.head_seq)
            done[task.topic] = self._at[task.topic] = at
            self._report(task, outcome, upto=done_to)
        self._positions.save(done)

    def note_lags(self, client: Client) -> None:
        """Update the lags of the existing rows. May run in another thread than the copying, which adds rows."""
        there = {row.topic: row for row in self._wanted.among(client)}
        for report in self._rows():
            report.lag = None if (row := there.get(report.topic)) is None else self._lag_of(row)
        self.lag = sum(report.lag or 0 for report in self._rows())

    def forget_lags(self) -> None:
        forget(self._rows())
        self.lag = None

    def _rows(self) -> list[TopicReport]:
        return [row for row in self._job.report.topics if row.server == self.source.url]

    def expect(self, tasks: Sequence[CopyTask], outcomes: Sequence[MirrorResult]) -> None:
        """Report what a run would do."""
        for task, outcome in zip(tasks, outcomes, strict=True):
            self._report(task, outcome, upto=task.stop - 1)
            if task.config:
                self._row(task.topic).would.append(f"create topic {task.topic} in {self.target.url}")

    def _report(self, task: CopyTask, outcome: MirrorResult, *, upto: int) -> None:
        row = self._row(task.topic)
        row.epoch = task.epoch
        row.from_seq = row.from_seq or task.start
        row.to_seq = upto
        row.records += outcome.records
        row.repeated += outcome.repeated
        row.size_bytes += outcome.size_bytes
        row.gaps += outcome.gaps
        if task.lost_epoch is not None:
            row.gaps.append(ReportedGap(from_seq=0, to_seq=0, reason="recreated", epoch=task.lost_epoch))
        lost = sum(gap.to_seq - gap.from_seq + 1 for gap in outcome.gaps)
        figures = {
            "echoes": outcome.echoes, "foreign": outcome.foreign, "circling": outcome.circling, "lost_seqs": lost,
        }  # fmt: skip
        for name, count in figures.items():
            if count:
                row.figures[name] = row.figures.get(name, 0) + count
        if outcome.circling:
            self._warn_about_circle(task.topic)

    def _warn_about_circle(self, topic: str) -> None:
        if topic not in self._warned_circle:
            self._warned_circle.add(topic)
            self._job.warn(
                f"topic {topic} in {self.source.url}: records came back {MAX_ROUNDS} times through routers or other "
                f"pipelines, and are not copied to {self.target.url} again: remove one topic from the circle"
            )

    def _note_lag(self, row: Summary) -> None:
        at = self._at.get(row.topic)
        if at is not None and at.epoch == row.epoch:
            self._row(row.topic).lag = self._lag_of(row)

    def _lag_of(self, row: Summary) -> int:
        at = self._at.get(row.topic)
        return row.head_seq if at is None or at.epoch != row.epoch else max(row.head_seq - at.done, 0)

    def _is_log(self, row: Summary) -> bool:
        if row.type == "log":
            return True
        self._job.warn(f"topic {row.topic} in {self.source.url} is a queue and is not mirrored: jobs would run twice")
        return False

    def _check_no_queue(self, there: Sequence[Summary]) -> None:
        """Raise `BadUsage` if a target topic is a queue: copied records would become jobs."""
        for row in there:
            if row.type != "log":
                raise BadUsage(
                    f"topic {row.topic} is a log in {self.source.url} and a queue in {self.target.url}: its records "
                    "would become jobs there",
                    next="leave this topic out, or delete or rename the queue",
                )

    def _present(self, topic: str, at: MirrorPosition) -> int:
        """Return the last source seq that an interrupted run has copied to the target."""

        def seq_of(meta: bytes) -> int:
            hops = hops_of(meta)
            if not is_copy(hops, topic) or (hops[-1].at, hops[-1].epoch) != (self._pattern.source_id, at.epoch):
                return 0
            return hops[-1].last

        return max(at.done, last_shown(self.target, topic, from_seq=at.target_seq, seq_of=seq_of))

    def _settings(self, topic: str) -> dict[str, Any]:
        """Return the settings for a new topic on the target, taken from its source."""
        config = self.source.topic(topic).config
        defaults = TopicConfig()
        kept = {
            name: getattr(config, name) for name in KEPT_SETTINGS if getattr(config, name) != getattr(defaults, name)
        }
        return kept | {"idempotency_window_ms": max(config.idempotency_window_ms, DEFAULT_WINDOW_MS)}


class _Maker(Struct, frozen=True):
    """Creates the links of one job."""

    job: PipelineJob
    wanted: MirrorSelection
    only_local: bool = False
    skip_trimmed: bool = False
    step_seqs: int = STEP_SEQS
    positions_topic: str = positions.TOPIC

    def link(
        self,
        source: Client,
        target: Client,
        source_id: str,
        target_id: str,
        nodes: Sequence[str],
        *,
        lake: str | None = None,
    ) -> Link:
        pattern = CopyTask(
            source=self.job.connection(source.url), target=self.job.connection(target.url),
            source_id=source_id, target_id=target_id, topic="", epoch=0, start=0, stop=0,
            nodes=tuple(nodes), only_local=self.only_local,
            lake=lake, heeds_trims=lake is None and not self.skip_trimmed,
        )  # fmt: skip
        return Link(
            self.job, self.wanted, source=source, target=target, pattern=pattern,
            step_seqs=self.step_seqs, positions_topic=self.positions_topic,
        )  # fmt: skip


def _run(job: PipelineJob, links: Sequence[Link], *, follow: bool) -> None:
    if job.dry_run:
        for link in links:
            link.aim()
        _step(job, links, follow=False)
        return
    for link in links:
        job.lags(link.source.url, link.note_lags, link.forget_lags)
    job.sums["lag"] = lambda: _sum(link.lag for link in links)
    job.step("copying")
    if follow:
        for _ in job.rounds(follow=True):
            if not _step(job, links, follow=True):
                job.rest()
                job.stopping.wait(IDLE_S)
    else:
        # With both ways, the second pass reads the copies that the first pass wrote, and recognises them as copies.
        for _ in links:
            for link in links:
                link.aim()
            while _step(job, links, follow=False):
                pass


def _sum(lags: Iterable[int | None]) -> int | None:
    """Return the sum, or None if one is unknown."""
    found = list(lags)
    return None if None in found else sum(lag or 0 for lag in found)


def _step(job: PipelineJob, links: Sequence[Link], *, follow: bool) -> bool:
    """Plan and run one step of all directions. Return False if there was nothing to do."""
    plans: list[tuple[Link, list[CopyTask]]] = [(link, link.plan(follow=follow)) for link in links]
    tasks = [task for _, planned in plans for task in planned]
    if not tasks:
        return False
    job.work()
    do = rehearse if job.dry_run else copy
    outcomes = run_on_executors(job.spark, tasks, do, result=MirrorResult, weight=lambda task: task.stop - task.start)
    at = 0
    for link, planned in plans:
        (link.expect if job.dry_run else link.save_results)(planned, outcomes[at : at + len(planned)])
        at += len(planned)
    job.progress.show(job.report.records)
    return True


def _existing(lake: str) -> str:
    try:
        Lake(lake).check_exists()
    except NoLake as error:
        raise BadUsage(str(error)) from None
    return real_location(lake)
