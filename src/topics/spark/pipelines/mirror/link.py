"""One direction of a mirror: which seqs of which topics are copied next, and what was copied.

The position of each topic is saved on the target server before and after each step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct, structs

from topics.client import Client
from topics.client.request import Summary
from topics.model.topic import TopicConfig
from topics.spark.pipelines.mirror.task import MAX_ROUNDS, CopyTask, LostSeqs, MirrorResult, hops_of, is_copy
from topics.spark.pipelines.run.delivery import last_shown
from topics.spark.pipelines.run.job import BadUsage, PipelineJob
from topics.spark.pipelines.run.positions import Positions
from topics.spark.pipelines.run.report import ReportedGap, TopicReport
from topics.spark.pipelines.run.selection import Selection
from topics.spark.pipelines.run.tasks import Workload
from topics.spark.pipelines.run.trimmed import Removed, removed
from topics.spark.sink.write_options import DEFAULT_WINDOW_MS

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
    generation: int = 0  # counts restarts from the first seq; part of every write's key
    target_epoch: int = 0  # epoch of the topic on the target; 0 if it does not exist
    target_seq: int = 0  # its head when the plan was saved, and when it was done
    lost_epoch: int | None = None  # the earlier epoch, until its end is reported to the target
    pending_gap: LostSeqs | None = None  # the gap right before the next record


class Link:
    """One direction of a mirror."""

    def __init__(
        self,
        job: PipelineJob,
        wanted: Selection,
        source: Client,
        target: Client,
        pattern: CopyTask,
        *,
        step_seqs: int,
        positions_topic: str,
        excluded: Collection[str],
    ) -> None:
        self.source, self.target = source, target
        self.backlog = Workload(seqs=0, size_bytes=0)  # what was left to copy at the last plan, in all steps
        self._job = job
        self._wanted = wanted
        self._pattern = pattern  # the fields that all tasks of this direction share
        self._step_seqs, self._excluded = step_seqs, excluded
        self._positions = Positions(
            target, f"mirror:{pattern.source_id}:", run=job.report.run_id, topic=positions_topic
        )
        self._at = self._positions.load(MirrorPosition)
        self._goal: dict[str, int] = {}
        self._warned_removed: set[str] = set()
        self._warned_circle: set[str] = set()

    def _among(self, client: Client) -> list[Summary]:
        return [row for row in self._wanted.among(client) if row.topic not in self._excluded]

    def aim(self) -> None:
        """Set the present heads as the end of a run that does not follow."""
        self._goal = {row.topic: row.head_seq for row in self._among(self.source)}

    def plan(self, *, follow: bool) -> list[CopyTask]:
        """Return the next tasks. Their plan is saved on the target before."""
        there = {row.topic: row for row in self._among(self.target)}
        rows = [row for row in self._among(self.source) if self._is_log(row)]
        self._check_no_queue([there[row.topic] for row in rows if row.topic in there])
        found = []
        seqs, size_bytes = 0, 0.0
        for row in rows:
            self._note_reached(row.topic)
            if (at := self._at.get(row.topic)) is not None and at.epoch == row.epoch:
                self._row(row.topic).lag = max(row.head_seq - at.done, 0)
            head = row.head_seq if follow else min(row.head_seq, self._goal.get(row.topic, 0))
            task = self._next_task(row, there.get(row.topic), head)
            if task is not None:
                found.append(task)
                left = head - max(task.start, 1 if task.lake is not None else row.earliest_seq) + 1
                seqs += max(left, 0)
                size_bytes += max(left, 0) * row.bytes / max(row.head_seq + 1 - row.earliest_seq, 1)
        self.backlog = Workload(seqs=seqs, size_bytes=round(size_bytes))
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
        there = {row.topic: row for row in self._among(self.target)}
        done = {}
        for task, outcome in zip(tasks, outcomes, strict=True):
            at = self._at[task.topic]
            done_to = outcome.trimmed_at - 1 if outcome.trimmed_at else at.plan
            at = structs.replace(at, done=done_to, plan=done_to, lost_epoch=None, pending_gap=outcome.pending_gap)
            now = there.get(task.topic)
            if now is not None and at.target_epoch in (0, now.epoch):  # else the next plan finds the new epoch
                at = structs.replace(at, target_epoch=now.epoch, target_seq=now.head_seq)
            done[task.topic] = self._at[task.topic] = at
            self._note_reached(task.topic)
            self._report(task, outcome, upto=done_to)
        self._positions.save(done)

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
        row.add(echoes=outcome.echoes, foreign=outcome.foreign, circling=outcome.circling, lost_seqs=lost)
        if outcome.circling:
            self._warn_about_circle(task.topic)

    def _warn_about_circle(self, topic: str) -> None:
        if topic not in self._warned_circle:
            self._warned_circle.add(topic)
            self._job.warn(
                f"topic {topic} in {self.source.url}: records came back {MAX_ROUNDS} times through routers or other "
                f"pipelines, and are not copied to {self.target.url} again: remove one topic from the circle"
            )

    def _note_reached(self, topic: str) -> None:
        """Set the position from which the job computes the lag of a topic."""
        at = self._at.get(topic)
        self._job.reached[self.source.url, topic] = (0, 0) if at is None else (at.epoch, at.done)

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
