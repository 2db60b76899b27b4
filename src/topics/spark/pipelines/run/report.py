"""The report of a run, as it is printed, returned, and appended to `sys:pipelines`.

Needs no Spark. Fields are only ever added, because the console and scripts read them.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

State = Literal["running", "done", "failed", "stopped"]


class ReportedGap(Struct, frozen=True, kw_only=True):
    """A range that was lost before the pipeline read it, both ends inclusive."""

    from_seq: int
    to_seq: int
    reason: str
    epoch: int = 0


class RunProblem(Struct, frozen=True, kw_only=True):
    """Why a run failed: the kind for programs (see `failures.FailureKind`), the rest for people."""

    kind: str
    message: str
    next: str


class Execution(Struct, frozen=True, kw_only=True):
    """Where the tasks of a run were processed, and why: in its own process, or on Spark."""

    engine: Literal["process", "spark"]
    reason: str


class TopicReport(Struct, kw_only=True, omit_defaults=True):
    """The result for one topic.

    A dry run fills the same fields with its prediction: `records` it would write, `gaps` it would record, and in
    `would` every other action in words, such as "delete seqs 1 to 9". If the exact number is known only after reading
    the records, `at_most` is true and `records` is an upper bound.
    """

    topic: str
    server: str = ""
    into: str = ""  # the topic, lake or table that received the records, if it differs between topics
    epoch: int = 0
    from_seq: int = 0  # first and last seq that this run processed, both inclusive; 0 and 0: nothing was new
    to_seq: int = 0
    records: int = 0
    at_most: bool = False  # in a dry run: `records` is an upper bound
    repeated: int = 0  # records among these that an interrupted run had written already
    size_bytes: int = 0
    lag: int | None = None  # seqs between the position and the head, at the last check
    gaps: list[ReportedGap] = field(default_factory=list)
    would: list[str] = field(default_factory=list)  # in a dry run
    figures: dict[str, Any] = field(default_factory=dict)  # figures of this pipeline

    def add(self, **counts: int) -> None:
        """Add counts to the figures. Zeros are left out."""
        _add(self.figures, counts)


def _add(figures: dict[str, Any], counts: dict[str, int]) -> None:
    figures.update({name: figures.get(name, 0) + count for name, count in counts.items() if count})


class RunReport(Struct, kw_only=True):
    """One run. `ok` is false if the run failed, or succeeded and found something wrong; the command then exits with 1.

    `looked_at` counts all topics. A pipeline with a prefix has rows only for topics that had new records.
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
    next: str | None = None  # the next step for the user, if the run failed or found something
    execution: Execution | None = None  # None if there was nothing to process

    def topic(self, name: str, *, server: str = "", into: str = "") -> TopicReport:
        """Return the row of a topic. The first call creates it."""
        for row in self.topics:
            if (row.topic, row.server, row.into) == (name, server, into):
                return row
        self.topics.append(TopicReport(topic=name, server=server, into=into))
        return self.topics[-1]

    def add(self, **counts: int) -> None:
        """Add counts to the figures. Zeros are left out."""
        _add(self.figures, counts)

    def fail(self, problem: RunProblem) -> None:
        self.state, self.ok = "failed", False
        self.error, self.next = problem, problem.next

    @property
    def names(self) -> set[str]:
        """The names of the topics. A topic may have several rows, for several outputs or directions."""
        return {row.topic for row in self.topics}

    @property
    def records(self) -> int:
        return sum(row.records for row in self.topics)

    @property
    def gaps(self) -> int:
        return sum(len(row.gaps) for row in self.topics)

    @property
    def took(self) -> str:
        """The duration of the run, and where its tasks were processed, in words."""
        where = {"process": " in this process", "spark": " on Spark"}
        seconds = (self.ended_ms - self.started_ms) / 1000
        return f"{seconds:.1f} s{'' if self.execution is None else where[self.execution.engine]}"
