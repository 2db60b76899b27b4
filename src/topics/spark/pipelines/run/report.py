"""The report of a run, as it is printed, returned, and appended to `sys:pipelines`; and the progress of a run.

Needs no Spark. Fields are only ever added, because the console and scripts read them.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Any, Literal, TextIO

from msgspec import Struct, field

from topics.lake.archived import Unfit
from topics.plurals import counted

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
    unfit: dict[str, Unfit] = field(default_factory=dict)  # values that do not fit their typed column, by column
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
    def unfit_lines(self) -> list[str]:
        """What does not fit its typed column, a line for each column."""
        return [
            f"does not fit: {row.topic} column {name} {one.type}: {counted(one.records, 'record')}, the first with seq "
            f"{one.first_seq}; NULL in the column, intact in data"
            for row in self.topics
            for name, one in row.unfit.items()
        ]

    @property
    def took(self) -> str:
        """The duration of the run, and where its tasks were processed, in words."""
        where = {"process": " in this process", "spark": " on Spark"}
        seconds = (self.ended_ms - self.started_ms) / 1000
        return f"{seconds:.1f} s{'' if self.execution is None else where[self.execution.engine]}"


# --- progress on standard error: a bar on a terminal, lines elsewhere


class Progress:
    """Shows the steps of a job; nothing without `out`, because a Python caller has the report.

    A terminal shows the running step and its figures on one line, redrawn in place. A log gets one line per step, and
    one every ten seconds of a long step.
    """

    BAR_EVERY_S = 0.1
    LINE_EVERY_S = 10.0
    WIDTH = 24

    def __init__(self, out: TextIO | None = None, *, is_bar: bool = False) -> None:
        self._out = out
        self.is_bar = is_bar
        self._text = self._counts = self._shown = ""
        self._began_s = self._printed_s = 0.0

    def step(self, text: str) -> None:
        self._text, self._counts, self._began_s = text, "", time.monotonic()
        self._shown = text
        self._draw(text)

    def show(self, done: int, total: int | None = None, *, unit: str = "records") -> None:
        """Show how much of the step is done. May be called often."""
        self._counts = f"{done:,} of {total:,} {unit}, " if total else f"{done:,} {unit}, "
        now_s = time.monotonic()
        if not self.is_bar or now_s - self._printed_s < self.BAR_EVERY_S:
            return
        bar = ""
        if total:
            share = min(done / total, 1.0)
            bar = f"[{'#' * round(share * self.WIDTH):.<{self.WIDTH}}] {share:4.0%}  "
        self._shown = f"{self._text}  {bar}{self._counts}{done / max(now_s - self._began_s, 0.001):,.0f}/s"
        self._draw(self._shown)

    def beat(self, seconds: float) -> None:
        """Show that the step has run for `seconds`. Called about once a second, from another thread."""
        if self.is_bar:
            self._draw(f"{self._shown}  {seconds:.0f} s")
        elif min(time.monotonic() - self._printed_s, seconds) >= self.LINE_EVERY_S:
            self._draw(f"{self._text}: {self._counts}{seconds:.0f} s so far")

    def warn(self, text: str) -> None:
        self.close()
        self._print(f"topics: warning: {text}\n")

    def close(self) -> None:
        """Clear what is drawn."""
        if self.is_bar and self._printed_s:
            self._draw("")
            self._printed_s = 0.0

    def _draw(self, text: str) -> None:
        self._printed_s = time.monotonic()
        self._print(f"\r\x1b[K{text}" if self.is_bar else f"topics: {text}\n")

    def _print(self, text: str) -> None:
        if self._out is not None:
            with suppress(OSError):
                print(text, end="", file=self._out, flush=True)


def progress_for(*, quiet: bool = False, out: TextIO | None = None) -> Progress:
    """Return a bar for a terminal, lines for anything else."""
    stream = out or sys.stderr
    return Progress(stream, is_bar=stream.isatty() and not quiet)
