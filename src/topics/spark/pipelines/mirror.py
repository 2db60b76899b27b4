"""Mirror: copy topics of one server to another, or in both directions, until they hold the same records.

A copy lists the servers that it has been on (`mirror_task`), which prevents loops. The position of each direction is
saved on its target server before and after each step (`positions`). Tasks copy several topics at the same time.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from msgspec import structs

from topics.client import Client
from topics.client.request import Record, Summary
from topics.errors import Code, TopicsError
from topics.lake import Lake
from topics.lake.storage import real_location
from topics.model.topic import TopicConfig
from topics.spark.failures import allowed
from topics.spark.options import DEFAULT_WINDOW_MS
from topics.spark.pipelines.mirror_task import MAX_ROUNDS, MirrorResult, MirrorTask, copy, rehearse
from topics.spark.pipelines.run import positions
from topics.spark.pipelines.run.delivery import CopyPosition
from topics.spark.pipelines.run.job import RUNS, BadUsage, Failed, PipelineJob, ReadingOptions
from topics.spark.pipelines.run.positions import Positions
from topics.spark.pipelines.run.report import ReportedGap, RunReport, TopicReport
from topics.spark.pipelines.run.trimmed import trimmed
from topics.spark.topic_names import Selection

STEP_SEQS = 50_000  # most seqs of a topic in one step, so that topics take turns
ALL_SEQS = 1 << 62
IDENTITY = "sys:identity"
IDENTITY_CONFIG = {"durability": "fsync"}
NEW = "(new)"  # in a dry run: a server without a name
_is_name = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch
EXCLUDED = (RUNS, IDENTITY, positions.TOPIC)  # topics of pipelines, which are never mirrored


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
    source_token_file: str | None = None,
    target_token_file: str | None = None,
    step_seqs: int = STEP_SEQS,
    positions_topic: str = positions.TOPIC,
    **options: Unpack[ReadingOptions],
) -> RunReport:
    """Copy from `source` to `target`, and back with `both_ways`; once, or with `follow` until the job is stopped.

    `lake` is the lake of the source: records that the source no longer has come from there. Without it, a topic that
    was trimmed before it was copied is not copied, and the report says so; `skip_trimmed` leaves these seqs out.
    """
    source, target = source.rstrip("/"), target.rstrip("/")
    if prefix is None and not topics:
        raise BadUsage("choose topics: by a prefix, which may be empty, or by their names")
    if source == target:
        raise BadUsage(f"{source} is both source and target")
    if lake is not None and skip_trimmed:
        raise BadUsage("lake and skip_trimmed: a lake has the trimmed records; give one of them")
    wanted = Selection(prefix=prefix, topics=tuple(topics), has_system=True, excluded=(*EXCLUDED, positions_topic))
    keys = {source: source_token_file, target: target_token_file}
    with (
        PipelineJob("mirror", servers=[source, target], token_files=keys, **options) as job,
        job.client(source) as one,
        job.client(target) as other,
    ):
        lake = None if lake is None else real_location(Lake(lake).existing().path)
        job.step(f"looking at {source} and {target}")
        sources = [one, other][: 1 + both_ways]
        found = {row.topic for client in sources for row in wanted.among(client)}
        wanted.check(sources, found, job.warn, follow=follow)
        job.report.looked_at = len(found)
        one_id, other_id = _identities([(one, source_name), (other, target_name)], dry_run=job.dry_run)
        directions = [(one, other, one_id, other_id, lake), (other, one, other_id, one_id, None)]
        links = []
        for here, there, here_id, there_id, lake in directions[: len(sources)]:
            task = MirrorTask(
                source=job.connection(here.url), target=job.connection(there.url), source_id=here_id,
                target_id=there_id, topic="", into="", epoch=0, start=0, stop=0, only_local=only_local,
                lake=lake, heeds_trims=lake is None and not skip_trimmed,
            )  # fmt: skip
            link = Link(
                job=job, wanted=wanted, source=here, target=there, pattern=task, positions_topic=positions_topic,
                step_seqs=ALL_SEQS if job.dry_run else step_seqs,
            )  # fmt: skip
            links.append(link)
        _run(job, links, follow=follow)
    return job.report


def _run(job: PipelineJob, links: Sequence[Link], *, follow: bool) -> None:
    def catch_up() -> bool:
        for link in links:
            link.aim()
        steps = 0
        while not job.stopping.is_set() and _step(job, links):
            steps += 1
            if job.dry_run:  # it saves nothing that a second step could build on
                break
        return steps > 0

    if job.dry_run:
        catch_up()
        return
    job.sums_lags = True
    job.step("copying")
    for _ in links[1:]:  # the next pass reads the copies that this one writes back, and recognises them as copies
        catch_up()
    job.repeat(catch_up, follow=follow)


def _step(job: PipelineJob, links: Sequence[Link]) -> bool:
    """Plan and run one step of all directions. Return False if there was nothing to do."""
    plans: list[tuple[Link, list[MirrorTask]]] = [(link, link.plan()) for link in links]
    tasks = [task for _, planned in plans for task in planned]
    if not tasks:
        return False
    job.work()
    do = rehearse if job.dry_run else copy
    outcomes = job.run(tasks, do, result=MirrorResult, weight=lambda task: task.expected_bytes)
    at = 0
    for link, planned in plans:
        link.save_results(planned, outcomes[at : at + len(planned)])
        at += len(planned)
    job.progress.show(job.report.records)
    return True


# --- the name of a server
#
# An address may change, and two networks may use the same one. So the name of a server is a record on the server: the
# first one in `sys:identity`. It moves with the data directory and is part of a backup.


def _identities(servers: Sequence[tuple[Client, str | None]], *, dry_run: bool) -> list[str]:
    """Return the names of two servers. Raise `BadUsage` if they have the same one."""
    names = [identity(client, name=name, dry_run=dry_run) for client, name in servers]
    if names[0] == names[1] != NEW:
        raise BadUsage(
            f"{servers[0][0].url} and {servers[1][0].url} are both called {names[0]!r}: one is a copy of the other",
            next=f"delete the topic {IDENTITY} on the one that is the copy",
        )
    return names


def identity(client: Client, *, name: str | None = None, dry_run: bool = False) -> str:
    """Return the name of the server, and store one if it has none. Raise `BadUsage` if it has another than `name`."""
    if name is not None and _is_name(name) is None:
        raise BadUsage(f"{name!r} is not a server name: use 1 to 64 letters, digits, dots, dashes and underscores")
    known = _known(client)
    if known is None and not dry_run:
        record = {"data": {"id": name or secrets.token_hex(8)}}
        try:  # if two runs do this at once, both use the first record
            client.append(IDENTITY, [record], create=True, config=IDENTITY_CONFIG)
        except TopicsError as error:
            if error.code is not Code.FORBIDDEN:
                raise
            if name is None:
                raise Failed(
                    f"the key may not write to {IDENTITY} of {client.url}, where a server's name for mirrors is kept",
                    next="run once with a key that may write, or always pass the same --from-name or --to-name",
                ) from None
        known = _known(client) or name
    if known is None:
        return name or NEW
    if name is not None and name != known:
        raise BadUsage(
            f"the server at {client.url} is called {known!r}, not {name!r}; copies of its records carry that name",
            next="remove the name from the command, or use the existing one",
        )
    return known


def _known(client: Client) -> str | None:
    with allowed(Code.TOPIC_NOT_FOUND, Code.FORBIDDEN):
        return next((str(item.value["id"]) for item in client.read(IDENTITY) if isinstance(item, Record)), None)
    return None


# --- one direction


KEPT_SETTINGS = (
    "ttl_ms", "cap_records", "cap_bytes", "discard", "durability", "priority", "auto_priority", "dedupe_node",
)  # fmt: skip


class MirrorPosition(CopyPosition, frozen=True, kw_only=True):
    """The position of a topic in one direction."""

    generation: int = 0  # counts restarts from the first seq; part of every write's key
    lost_epoch: int | None = None  # the earlier epoch, until its end is reported to the target


@dataclass(kw_only=True)
class Link:
    """One direction of a mirror."""

    job: PipelineJob
    wanted: Selection
    source: Client
    target: Client
    pattern: MirrorTask  # the fields that all tasks of this direction share
    step_seqs: int
    positions_topic: str

    def __post_init__(self) -> None:
        prefix = f"mirror:{self.pattern.source_id}:"
        self._positions = Positions(self.target, prefix, run=self.job.report.run_id, topic=self.positions_topic)
        self._at = self._positions.load(MirrorPosition)
        self._goal: dict[str, int] = {}
        self._warned_trimmed: set[str] = set()

    def aim(self) -> None:
        """Set the present heads as the end of the next steps."""
        self._goal = {row.topic: row.head_seq for row in self.wanted.among(self.source)}

    def plan(self) -> list[MirrorTask]:
        """Return the next tasks. Their plan is saved on the target before."""
        there = {row.topic: row for row in self.wanted.among(self.target)}
        found = []
        for row in self.wanted.among(self.source):
            if row.type != "log":
                self.job.warn(
                    f"topic {row.topic} in {self.source.url} is a queue and is not mirrored: jobs would run twice"
                )
                continue
            if row.topic in there and there[row.topic].type != "log":
                raise BadUsage(
                    f"topic {row.topic} is a log in {self.source.url} and a queue in {self.target.url}: its records "
                    "would become jobs there",
                    next="leave this topic out, or delete or rename the queue",
                )
            self._note_reached(row.topic)
            if (at := self._at.get(row.topic)) is not None and at.epoch == row.epoch:
                self._row(row.topic).lag = max(row.head_seq - at.done, 0)
            head = min(row.head_seq, self._goal.get(row.topic, 0))
            if (task := self._next_task(row, there.get(row.topic), head)) is not None:
                found.append(task)
        if found and not self.job.dry_run:
            self._positions.check_alone()
            self._positions.save({task.topic: self._at[task.topic] for task in found})
        return found

    def _next_task(self, row: Summary, there: Summary | None, head: int) -> MirrorTask | None:
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
            present = 0 if self.job.dry_run else self._present(row.topic, at)
        else:
            # A gap at the front is reported as one record, so it does not count as part of the step.
            stop = min(head, max(at.done, row.earliest_seq - 1) + self.step_seqs) + 1
            at = structs.replace(at, plan=stop - 1, target_epoch=target_epoch, target_seq=target_seq)
        if stop <= at.done + 1 and at.lost_epoch is None:
            return None
        self._at[row.topic] = at
        return structs.replace(
            self.pattern,
            topic=row.topic,
            into=row.topic,
            epoch=row.epoch,
            generation=at.generation,
            start=at.done + 1,
            stop=stop,
            present=present,
            lost_epoch=at.lost_epoch,
            config={} if there is not None else self._settings(row.topic),
            expected_bytes=(stop - at.done) * row.bytes // max(row.head_seq + 1 - row.earliest_seq, 1),
        )

    def _is_held(self, row: Summary, at: MirrorPosition) -> bool:
        """Return whether the next seqs are only in a lake that is not given: to continue would lose them for good."""
        found, lake = trimmed(self.source, row.topic, epoch=row.epoch, start=at.done + 1), self.pattern.lake
        if found is None:
            return False
        (first, last), archived = found, None if lake is None else Lake(lake).snapshot().archived(row.topic, row.epoch)
        if archived is not None and archived.archived_to >= last:
            return False
        held = lake is not None or self.pattern.heeds_trims
        where = f"topic {row.topic} in {self.source.url}: seqs {first} to {last} were removed"
        if row.topic in self._warned_trimmed:
            pass
        elif not held:
            self.job.warn(f"{where} after they were archived; they are left out")
        else:
            why = "and are in a lake" if lake is None else f"and are not in {lake}, but in another lake"
            self.job.warn(f"{where} before they were copied, {why}; the topic is not copied")
            self.job.report.ok = False
            self.job.report.next = (
                f"run topics pipeline mirror --from {self.source.url} --to {self.target.url} with --lake DIR to copy "
                "them as well, or with --skip-trimmed to continue without them"
            )
        self._warned_trimmed.add(row.topic)
        if held:
            report = self._row(row.topic)
            report.epoch = row.epoch
            report.from_seq, report.to_seq = report.from_seq or first, report.to_seq or last
            report.figures["held_at"] = first
        return held

    def _row(self, topic: str) -> TopicReport:
        return self.job.report.topic(topic, server=self.source.url, into=self.target.url)

    def _refill(self, topic: str, at: MirrorPosition, there: Summary | None) -> MirrorPosition:
        """Return the position for a target topic that was replaced. One restored from a backup holds a part."""
        shown = self._present(topic, MirrorPosition(epoch=at.epoch))
        if not shown:
            self.job.warn(f"topic {topic} in {self.target.url} was deleted or set back: it is copied again")
        target_epoch, target_seq = (0, 0) if there is None else (there.epoch, there.head_seq)
        return MirrorPosition(
            epoch=at.epoch, done=shown, plan=shown, generation=at.generation + 1, lost_epoch=at.lost_epoch,
            target_epoch=target_epoch, target_seq=target_seq,
        )  # fmt: skip

    def save_results(self, tasks: Sequence[MirrorTask], outcomes: Sequence[MirrorResult]) -> None:
        """Save the new positions, with the epoch of the target topic: the first step may have created it.

        A dry run only reports.
        """
        there = {row.topic: row for row in self.wanted.among(self.target)}
        done = {}
        for task, outcome in zip(tasks, outcomes, strict=True):
            if self.job.dry_run:
                self._report(task, outcome, upto=task.stop - 1)
                if task.config:
                    self._row(task.topic).would.append(f"create topic {task.topic} in {self.target.url}")
                continue
            at = self._at[task.topic]
            done_to = outcome.trimmed_at - 1 if outcome.trimmed_at else at.plan
            at = structs.replace(at, done=done_to, plan=done_to, lost_epoch=None)
            now = there.get(task.topic)
            if now is not None and at.target_epoch in (0, now.epoch):  # else the next plan finds the new epoch
                at = structs.replace(at, target_epoch=now.epoch, target_seq=now.head_seq)
            done[task.topic] = self._at[task.topic] = at
            self._note_reached(task.topic)
            self._report(task, outcome, upto=done_to)
        self._positions.save(done)

    def _report(self, task: MirrorTask, outcome: MirrorResult, *, upto: int) -> None:
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
            self.job.warn(
                f"topic {task.topic} in {self.source.url}: records came back {MAX_ROUNDS} times through routers or "
                f"other pipelines, and are not copied to {self.target.url} again: remove one topic from the circle"
            )

    def _note_reached(self, topic: str) -> None:
        """Set the position from which the job computes the lag of a topic."""
        at = self._at.get(topic)
        self.job.reached[self.source.url, topic] = (0, 0) if at is None else (at.epoch, at.done)

    def _present(self, topic: str, at: MirrorPosition) -> int:
        """Return the last source seq that an interrupted run has copied to the target."""
        task = structs.replace(self.pattern, topic=topic, into=topic, epoch=at.epoch)
        return max(at.done, task.shown(self.target, from_seq=at.target_seq))

    def _settings(self, topic: str) -> dict[str, Any]:
        """Return the settings for a new topic on the target, taken from its source."""
        config = self.source.topic(topic).config
        defaults = TopicConfig()
        kept = {
            name: getattr(config, name) for name in KEPT_SETTINGS if getattr(config, name) != getattr(defaults, name)
        }
        return kept | {"idempotency_window_ms": max(config.idempotency_window_ms, DEFAULT_WINDOW_MS)}
