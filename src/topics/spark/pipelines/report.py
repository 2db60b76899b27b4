"""What a pipeline did, in the form in which it is printed, returned, and appended to `sys:pipelines`.

Needs no Spark. Fields are only ever added: the console and scripts read these.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

State = Literal["running", "done", "failed", "stopped"]


class Gap(Struct, frozen=True, kw_only=True):
    """A range that was lost before the pipeline came to it; both ends inclusive."""

    from_seq: int
    to_seq: int
    reason: str
    epoch: int = 0


class TopicReport(Struct, kw_only=True, omit_defaults=True):
    """What became of one topic. `records` counts what this run wrote (or would write, in a dry run)."""

    topic: str
    server: str = ""
    into: str = ""  # topic, directory or file that received it, where that is not the same for all
    epoch: int = 0
    from_seq: int = 0  # first and last seq that this run looked at, both inclusive; 0 and 0: nothing was new
    to_seq: int = 0
    records: int = 0
    repeated: int = 0  # of these, how many an interrupted run had written already
    size_bytes: int = 0
    lag: int | None = None  # seqs between what is done and the head, when last looked
    gaps: list[Gap] = field(default_factory=list)
    would: list[str] = field(default_factory=list)  # in a dry run
    figures: dict[str, Any] = field(default_factory=dict)  # what only this pipeline knows


class Report(Struct, kw_only=True):
    """One run. `ok` is false where it failed, or worked and found something wrong; the command then exits with 1."""

    pipeline: str
    run_id: str
    state: State = "running"
    dry_run: bool = False
    ok: bool = True
    started_ms: int = 0
    ended_ms: int = 0
    topics: list[TopicReport] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    error: str | None = None
    next: str | None = None  # what to do now, where something failed

    def topic(self, name: str, *, server: str = "", into: str = "") -> TopicReport:
        """The row of a topic; made when it is first asked for."""
        for row in self.topics:
            if (row.topic, row.server, row.into) == (name, server, into):
                return row
        self.topics.append(TopicReport(topic=name, server=server, into=into))
        return self.topics[-1]

    @property
    def records(self) -> int:
        return sum(row.records for row in self.topics)

    @property
    def gaps(self) -> int:
        return sum(len(row.gaps) for row in self.topics)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)
