"""Audit: prove that nothing is missing. Each seq from 1 to the head is live, deleted, archived or in a recorded gap.

There are two passes, in tasks that run on Spark or in this process. The first reads back every file of the lake. The
second looks for every seq of every epoch on the server and in the lake, and compares the records that both have.
Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field, structs

from topics.client import Client
from topics.client.request import State, Summary
from topics.lake import SCHEMA, ArchivedEpoch, Damaged, File, Lake, Snapshot
from topics.lake.archived import Range, merged
from topics.lake.rewrite import row_groups
from topics.plurals import counted
from topics.spark.options import ConnectionOptions, ReadOptions
from topics.spark.pipelines.run.job import BadUsage, Failed, PipelineJob, ReadingOptions
from topics.spark.pipelines.run.report import ReportedGap, RunReport, TopicReport
from topics.spark.source.catalog import state_of
from topics.spark.source.plan import Span
from topics.spark.source.read import LostRange, read_span, without_gaps
from topics.spark.topic_names import no_topic, unknown_topic
from topics.storage.segments.columns import runs

ATTEMPTS = 5  # audits until one runs without a change of the lake
STRETCH_SEQS = 100_000
STRETCH_BYTES = 16 << 20
INFLATION = 5  # estimated bytes in memory per byte in a file
SHOWN = 20  # most ranges, and most differing seqs, that are listed

FINDINGS = {
    "unexplained": ("unexplained", "unexplained"),
    "differing": ("record differs", "records differ"),
    "missing": ("live record missing in the lake", "live records missing in the lake"),
    "damaged_files": ("file missing or damaged", "files missing or damaged"),
    "doubled": ("seq twice in the lake", "seqs twice in the lake"),
}


CLASSES = ("live", "archived", "deleted", "in_gaps", "lost")  # of a seq, as the report lists them


class EpochAccount(Struct, kw_only=True):
    """One epoch of a topic: its state on the server and in the lake, and the findings."""

    topic: str
    epoch: int
    head: int
    state: State | Summary | None  # None: the server does not have this epoch
    archived: ArchivedEpoch
    reported_to: int = 0  # the last archived seq that the server knows
    trimmed_to: int = 0  # the last trimmed seq that the server knows
    damaged: list[tuple[File, str]] = field(default_factory=list)
    found: list[StretchFindings] = field(default_factory=list)

    def stretches(self, lake: str, job: PipelineJob, url: str) -> Iterator[Stretch]:
        bad = [file for file, _ in self.damaged]
        step = max(min(STRETCH_SEQS, STRETCH_BYTES * self.head // max(self.size_bytes, 1)), 1000)
        for first in range(1, self.head + 1, step):
            last = min(first + step - 1, self.head)
            archived = self.archived.within(first, last)
            sound = tuple(file for file in archived.files if file not in bad)
            yield Stretch(
                lake=lake, connection=None if self.state is None else job.connection(url), first=first, last=last,
                archived=structs.replace(archived, files=sound), reported_to=self.reported_to,
                damaged=[(file.first, file.last) for file in archived.files if file in bad],
                size_bytes=self.size_bytes * (last - first + 1) // self.head,
            )  # fmt: skip

    @property
    def size_bytes(self) -> int:
        """The estimated size of the records in the lake and on the server, in memory."""
        archived = sum(file.bytes for file in self.archived.files) * INFLATION
        return archived + (0 if self.state is None else self.state.bytes)

    def ranges(self, name: str) -> list[Range]:
        """Return the unexplained, lost or doubled seqs."""
        return merged(pair for one in self.found for pair in getattr(one, name))


def audit(*, url: str, lake: str, topics: Sequence[str] = (), **options: Unpack[ReadingOptions]) -> RunReport:
    """Look for every seq of these topics, or of all topics of server and lake. `ok` is true if all were explained.

    An audit changes nothing, so it has no dry run.
    """
    if options.get("dry_run"):
        raise BadUsage("an audit changes nothing: run it without --dry-run")
    with PipelineJob("audit", servers=[url], **options) as job, job.client(url) as client:
        opened = Lake(lake).existing()
        for _ in range(ATTEMPTS):
            snapshot = opened.snapshot()
            accounts = _accounts(client, opened, snapshot, topics)
            if _attempt(job, opened, url, snapshot, accounts):
                break
            job.step("the lake has changed meanwhile: checking again")
        else:
            raise Failed(
                f"the lake {opened.path} changed {ATTEMPTS} times during the audit",
                next="run the audit again, or stop pipelines that merge or erase until it is done",
            )
        strays = [path for topic in sorted({one.topic for one in accounts}) for path in opened.table(topic).strays()]
        _fill(job.report, url, accounts, strays)
        if strays:
            job.warn(
                f"{counted(len(strays), 'file')} in the lake {'is' if len(strays) == 1 else 'are'} in no version of a "
                f"table, such as {strays[0]}: from a killed run, or from a running one that is about to commit; topics "
                "pipeline maintain removes files of killed runs"
            )
        for account in accounts:  # not a finding: missing records are unexplained seqs
            if account.trimmed_to > account.archived.trimmed_to:
                job.warn(
                    f"topic {account.topic}: the server has a report of a trim up to seq {account.trimmed_to}, but "
                    f"this lake has recorded a trim up to seq {account.archived.trimmed_to}: the lake lacks its last "
                    "versions, or another lake trims the topic. Restore the lake from a copy, or run topics pipeline "
                    "archive --trim, which records the trim again"
                )
    return job.report


def _accounts(client: Client, lake: Lake, snapshot: Snapshot, topics: Sequence[str]) -> list[EpochAccount]:
    live: dict[str, State | Summary] = {name: one for name in topics if (one := state_of(client, name)) is not None}
    if not topics:
        live = {row.topic: row for row in client.topics()}
    in_lake = set(snapshot.topics())
    for name in topics:
        if name not in live and name not in in_lake:
            raise unknown_topic(client, name, lake=lake)
    names = list(dict.fromkeys(topics)) or sorted(in_lake | {name for name in live if not name.startswith("sys:")})
    if not names:
        raise no_topic([client], "exists yet: there is nothing to audit", lake=lake)
    found = []
    for name in names:
        state = live.get(name)
        epochs = {archived.epoch: archived for archived in snapshot.epochs(name)}
        if state is not None:
            epochs.setdefault(state.epoch, ArchivedEpoch(topic=name, epoch=state.epoch))
        for epoch, archived in sorted(epochs.items()):
            of_server = state if state is not None and state.epoch == epoch else None
            head = max(archived.archived_to, 0 if of_server is None else of_server.head_seq)
            account = EpochAccount(topic=name, epoch=epoch, head=head, state=of_server, archived=archived)
            if of_server is not None and (now := state_of(client, name, epoch=epoch)) is not None:
                account.reported_to, account.trimmed_to = now.archived_seq or 0, now.trimmed_seq or 0
            found.append(account)
    return found


def _attempt(job: PipelineJob, lake: Lake, url: str, snapshot: Snapshot, accounts: list[EpochAccount]) -> bool:
    """Fill the accounts. Return False if the findings may come from a change of the lake during the audit."""
    seqs = sum(account.head for account in accounts)
    tasks = job.tasks()
    checks = [(account, file) for account in accounts for file in account.archived.files]
    job.step(f"reading back {counted(len(checks), 'file')} of the lake")
    check = partial(check_file, lake=lake.path)
    problems = tasks.run([file for _, file in checks], check, result=str, weight=lambda file: file.bytes)
    for (account, file), problem in zip(checks, problems, strict=True):
        if problem:
            account.damaged.append((file, problem))
    suspicious = any(account.damaged or account.trimmed_to > account.archived.trimmed_to for account in accounts)
    work = [(account, one) for account in accounts for one in account.stretches(lake.path, job, url)]
    topics = {account.topic for account in accounts}  # a topic may have several epochs
    job.step(f"looking for {counted(seqs, 'seq')} of {counted(len(topics), 'topic')}")
    done = tasks.run([one for _, one in work], look, result=StretchFindings, weight=lambda one: one.size_bytes)
    for (account, stretch), found in zip(work, done, strict=True):
        # A stretch that could not be read is unexplained as a whole.
        unread = StretchFindings(unexplained=[(stretch.first, stretch.last)])
        account.found.append(found if found.problem is None else unread)
        suspicious |= found.problem is not None
        suspicious |= bool(found.unexplained or found.lost or found.missing or found.doubled)
    return not suspicious or snapshot.is_newest()


# --- the report


def _fill(report: RunReport, url: str, accounts: list[EpochAccount], strays: list[str]) -> None:
    for account in accounts:
        row = TopicReport(  # a topic may have several epochs
            topic=account.topic, server="" if account.state is None else url.rstrip("/"), epoch=account.epoch,
            from_seq=int(account.head > 0), to_seq=account.head,
        )  # fmt: skip
        report.topics.append(row)
        row.figures = {name: sum(one.counts.get(name, 0) for one in account.found) for name in CLASSES}
        row.figures["unexplained"] = account.ranges("unexplained")
        row.figures["doubled"] = account.ranges("doubled")
        row.figures["differences"] = [row for one in account.found for row in one.differences][:SHOWN]
        row.figures["damaged"] = [{"file": file.path, "problem": problem} for file, problem in account.damaged]
        gaps = [(gap.first, gap.last, gap.reason) for gap in account.archived.gaps]
        gaps += [(low, high, "not in the ledger yet") for low, high in account.ranges("lost")]
        row.gaps = [
            ReportedGap(from_seq=low, to_seq=high, reason=reason, epoch=account.epoch) for low, high, reason in gaps
        ]
    report.looked_at = len(report.names)
    found = [one for account in accounts for one in account.found]
    report.figures = {
        "seqs": sum(one.head for one in accounts),
        "files": sum(len(one.archived.files) for one in accounts),
        "compared": sum(one.both for one in found),
        "unexplained": sum(_size(pair) for account in accounts for pair in account.ranges("unexplained")),
        "differing": sum(one.differing for one in found),
        "missing": sum(one.missing for one in found),
        "damaged_files": sum(len(account.damaged) for account in accounts),
        "doubled": sum(_size(pair) for account in accounts for pair in account.ranges("doubled")),
        "stray_files": len(strays),
    }
    report.ok = not any(report.figures[name] for name in FINDINGS)
    if not report.ok:
        report.next = "see docs/pipelines.md, section Audit, for each kind of finding"


def describe(report: RunReport) -> str:
    return "\n".join(_lines(report))


def _lines(report: RunReport) -> Iterator[str]:
    for row in report.topics:
        epoch = "" if row.server else f" (an earlier epoch, {row.epoch})"
        counts = {name.replace("_", " "): row.figures[name] for name in CLASSES}
        listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "live")
        yield f"{row.topic}{epoch}: seqs {row.from_seq} to {row.to_seq}: {listed}"
        for name, text in (("unexplained", "unexplained"), ("doubled", "twice in the lake")):
            for low, high in row.figures[name][:SHOWN]:
                yield f"  {text}: seqs {low} to {high}" if low < high else f"  {text}: seq {low}"
        for one in row.figures["differences"]:
            what = f"differs in {', '.join(one.fields)}" if one.fields else "is live but missing in the lake"
            yield f"  seq {one.seq} {what}"
        for one in row.figures["damaged"]:
            yield f"  damaged file: {one['problem']}"
        for gap in row.gaps[:SHOWN]:
            yield f"  gap: seqs {gap.from_seq} to {gap.to_seq} ({gap.reason})"
    for text in report.warnings:
        yield f"warning: {text}"
    figures = report.figures
    topics, files = counted(len(report.names), "topic"), counted(figures["files"], "file")
    looked = f"{counted(figures['seqs'], 'seq')} of {topics}, {files}"
    findings = [
        counted(figures[name], *words) for name, words in FINDINGS.items() if figures[name] or name == "unexplained"
    ]
    compared = counted(figures["compared"], "record")
    yield f"audit: {looked}, {compared} compared, {report.took}: {', '.join(findings)}"


def _size(pair: Range) -> int:
    return pair[1] - pair[0] + 1


# --- tasks, which run on executors: classify each seq of one epoch of a topic, and compare lake and server
#
# A seq that is not live is explained if a file of the lake holds it, if a recorded gap has it, if it was deleted, or if
# the server reports it as lost and it is not archived yet. All other seqs are unexplained: they existed, and nothing
# says why they are missing. Seqs that the server considers archived, but that this lake does not cover, are unexplained
# too.

Marks: TypeAlias = npt.NDArray[np.uint8]

COMPARED = ("ts", "node", "tag", "meta", "data")
# The classes of a seq, in order of precedence.
LIVE, ARCHIVED, GAP, DELETED, LOST, UNEXPLAINED = range(1, 7)
NAMES = {LIVE: "live", ARCHIVED: "archived", GAP: "in_gaps", DELETED: "deleted", LOST: "lost"}


class Stretch(Struct, kw_only=True):
    """Seqs `first` to `last` of one epoch, with their state in the lake."""

    lake: str
    connection: ConnectionOptions | None  # None: an earlier epoch, which only the lake has
    first: int
    last: int
    archived: ArchivedEpoch  # its part of the stretch, without damaged files
    damaged: list[Range] = []  # the seqs of damaged files
    reported_to: int = 0  # the last archived seq that the server knows
    size_bytes: int = 0  # estimated, in memory

    @property
    def uncovered(self) -> list[Range]:
        return self.archived.uncovered(self.first, self.last)


class Difference(Struct, frozen=True, kw_only=True):
    """A record that differs between server and lake; `fields` is empty if the lake does not have it."""

    seq: int
    fields: list[str]


class StretchFindings(Struct, kw_only=True):
    """The findings of one stretch."""

    counts: dict[str, int] = field(default_factory=dict)
    both: int = 0  # records that are live and archived, and were compared
    unexplained: list[Range] = field(default_factory=list)
    lost: list[Range] = field(default_factory=list)
    doubled: list[Range] = field(default_factory=list)  # seqs that the lake has more than once
    differing: int = 0
    missing: int = 0
    differences: list[Difference] = field(default_factory=list)  # the first few
    problem: str | None = None  # why the stretch could not be read: a file was removed meanwhile


def check_file(file: File, *, lake: str) -> str:
    """Read a file back. Return what is wrong with its checksums or its rows, or an empty text."""
    try:
        Lake(lake).verify(file)
    except (Damaged, OSError, pa.ArrowException) as error:
        return str(error)
    return ""


def look(stretch: Stretch) -> StretchFindings:
    """Classify every seq of a stretch, and compare every record that both have."""
    try:
        live, lost = _live(stretch)
        archived = _table(_archived(stretch))
    except Damaged as error:
        return StretchFindings(problem=str(error))
    archived, doubled = _once(archived)
    marks = _mark(stretch, live, lost, archived)
    found = StretchFindings(
        doubled=doubled,
        counts={name: int(np.count_nonzero(marks == mark)) for mark, name in NAMES.items()},
        unexplained=ranges(marks == UNEXPLAINED, stretch.first),
        lost=ranges(marks == LOST, stretch.first),
    )
    _compare(stretch, live, archived, found)
    return found


def _mark(stretch: Stretch, live: pa.Table, lost: Sequence[Range], archived: pa.Table) -> Marks:
    """Return the class of each seq. Later lines override earlier ones."""
    marks = np.full(stretch.last - stretch.first + 1, DELETED, np.uint8)
    _put(marks, stretch, [pair for low, high in lost for pair in _within(stretch.uncovered, low, high)], LOST)
    if stretch.connection is None:
        _put(marks, stretch, stretch.uncovered, UNEXPLAINED)
    archived_to = max(stretch.archived.trimmed_to, stretch.reported_to)
    _put(marks, stretch, _within(stretch.uncovered, 1, archived_to), UNEXPLAINED)
    _put(marks, stretch, stretch.damaged, UNEXPLAINED)
    _put(marks, stretch, [(gap.first, gap.last) for gap in stretch.archived.gaps], GAP)
    marks[archived.column("seq").to_numpy() - stretch.first] = ARCHIVED
    marks[live.column("seq").to_numpy() - stretch.first] = LIVE
    return marks


def _live(stretch: Stretch) -> tuple[pa.Table, list[Range]]:
    """Return the records on the server, and the ranges that it reports as lost."""
    if stretch.connection is None:
        return _table([]), []
    options, lost = ReadOptions(connection=stretch.connection, fail_on_data_loss=False), list[LostRange]()
    span = Span(
        server=stretch.connection.server, topic=stretch.archived.topic, epoch=stretch.archived.epoch,
        start=stretch.first, stop=stretch.last + 1,
    )  # fmt: skip
    batches = [batch.select(["seq", *COMPARED]) for batch in without_gaps(read_span(span, options), lost)]
    return _table(batches), [(one.gap_from, one.gap_to) for one in lost]


def _archived(stretch: Stretch) -> Iterator[pa.RecordBatch]:
    lake = Lake(stretch.lake)
    for file in stretch.archived.files:
        try:
            for batch in row_groups(lake.storage, file, ["seq", *COMPARED], first=stretch.first, last=stretch.last):
                seqs = batch.column("seq").to_numpy()
                within = (seqs >= stretch.first) & (seqs <= stretch.last)
                if within.any():
                    yield batch if within.all() else batch.filter(pa.array(within))
        except (OSError, pa.ArrowException) as error:
            raise Damaged(f"{file.path}: {error}") from error


def _once(archived: pa.Table) -> tuple[pa.Table, list[Range]]:
    """Return each seq once, sorted, and the seqs that occurred several times."""
    seqs = archived.column("seq").to_numpy()
    if not np.any(np.diff(seqs) <= 0):
        return archived, []
    each, at, count = np.unique(seqs, return_index=True, return_counts=True)
    return archived.take(pa.array(at)), merged((seq, seq) for seq in each[count > 1].tolist())


def _compare(stretch: Stretch, live: pa.Table, archived: pa.Table, found: StretchFindings) -> None:
    live_seqs, archived_seqs = live.column("seq").to_numpy(), archived.column("seq").to_numpy()
    common, at_live, at_archived = np.intersect1d(live_seqs, archived_seqs, assume_unique=True, return_indices=True)
    found.both = len(common)
    one, other = live.take(pa.array(at_live)), archived.take(pa.array(at_archived))
    fields_of: dict[int, list[str]] = {}
    differing = np.zeros(len(common), np.bool_)
    for name in COMPARED:
        this, that = one.column(name), other.column(name)
        is_other = pc.fill_null(pc.not_equal(this, that), False)
        unlike = pc.or_(is_other, pc.not_equal(pc.is_null(this), pc.is_null(that))).to_numpy()
        differing |= unlike
        for at in np.flatnonzero(unlike)[:SHOWN].tolist():
            fields_of.setdefault(int(common[at]), []).append(name)
    found.differing = int(np.count_nonzero(differing))
    missing = np.setdiff1d(live_seqs, archived_seqs, assume_unique=True)
    for ranges_ in (stretch.uncovered, stretch.damaged):  # the lake need not have these
        for low, high in ranges_:
            missing = missing[(missing < low) | (missing > high)]
    found.missing = len(missing)
    rows = [Difference(seq=seq, fields=names) for seq, names in sorted(fields_of.items())]
    rows += [Difference(seq=seq, fields=[]) for seq in missing[:SHOWN].tolist()]
    found.differences = rows[:SHOWN]


def _table(batches: Any) -> pa.Table:
    schema = pa.schema([SCHEMA.field(name) for name in ("seq", *COMPARED)])
    return pa.Table.from_batches(list(batches), schema)


def _put(marks: Marks, stretch: Stretch, given: Sequence[Range], mark: int) -> None:
    for low, high in _within(given, stretch.first, stretch.last):
        marks[low - stretch.first : high - stretch.first + 1] = mark


def _within(given: Sequence[Range], first: int, last: int) -> list[Range]:
    clipped = [(max(low, first), min(high, last)) for low, high in given]
    return [(low, high) for low, high in clipped if low <= high]


def ranges(hit: npt.NDArray[np.bool_], first: int) -> list[Range]:
    return [(first + low, first + high) for low, high in runs(np.flatnonzero(hit))]
