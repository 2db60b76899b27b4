"""What a pipeline did, in the form in which it is printed, returned, and appended to `sys:pipelines`.

Needs no Spark. Fields are only ever added: the console and scripts read these.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

State = Literal["running", "done", "failed", "stopped"]


class ReportedGap(Struct, frozen=True, kw_only=True):
    """A range that was lost before the pipeline came to it; both ends inclusive."""

    from_seq: int
    to_seq: int
    reason: str
    epoch: int = 0


class RunProblem(Struct, frozen=True, kw_only=True):
    """Why a run failed: the kind is for programs (see `failures.Kind`), the rest for people."""

    kind: str
    message: str
    next: str


class TopicReport(Struct, kw_only=True, omit_defaults=True):
    """What became of one topic.

    A dry run fills in the same fields with what would become of it: `records` is what it would write, `gaps` what it
    would note as lost, `would` everything else that it would do, in words such as "delete seqs 1 to 9". What is known
    only once the records are read is not guessed: `at_most` says that `records` is a bound.
    """

    topic: str
    server: str = ""
    into: str = ""  # topic, directory or file that received it, where that is not the same for all
    epoch: int = 0
    from_seq: int = 0  # first and last seq that this run looked at, both inclusive; 0 and 0: nothing was new
    to_seq: int = 0
    records: int = 0
    at_most: bool = False  # in a dry run: `records` may turn out to be fewer
    repeated: int = 0  # of these, how many an interrupted run had written already
    size_bytes: int = 0
    lag: int | None = None  # seqs between what is done and the head, when last looked
    gaps: list[ReportedGap] = field(default_factory=list)
    would: list[str] = field(default_factory=list)  # in a dry run
    figures: dict[str, Any] = field(default_factory=dict)  # what only this pipeline knows


class RunReport(Struct, kw_only=True):
    """One run. `ok` is false where it failed, or worked and found something wrong; the command then exits with 1.

    `looked_at` counts topics with those that had nothing new: a pipeline that takes a prefix has rows for the others
    only.
    """

    pipeline: str
    run_id: str
    state: State = "running"
    dry_run: bool = False
    ok: bool = True
    started_ms: int = 0
    ended_ms: int = 0
    looked_at: int = 0
    topics: list[TopicReport] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    error: RunProblem | None = None
    next: str | None = None  # what to do now, where something failed or was found

    def topic(self, name: str, *, server: str = "", into: str = "") -> TopicReport:
        """The row of a topic; made when it is first asked for."""
        for row in self.topics:
            if (row.topic, row.server, row.into) == (name, server, into):
                return row
        self.topics.append(TopicReport(topic=name, server=server, into=into))
        return self.topics[-1]

    def fail(self, problem: RunProblem) -> None:
        self.state, self.ok = "failed", False
        self.error, self.next = problem, problem.next

    @property
    def names(self) -> set[str]:
        """The topics: one may have several rows, for several places or directions."""
        return {row.topic for row in self.topics}

    @property
    def records(self) -> int:
        return sum(row.records for row in self.topics)

    @property
    def gaps(self) -> int:
        return sum(len(row.gaps) for row in self.topics)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)
