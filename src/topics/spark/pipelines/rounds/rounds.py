"""Process a topic range by range and write the results to an output: the loop that `compact` and `rollup` share.

The output stores a `RoundsPosition` beside its data. If the output was deleted, it is filled again from the first seq.
If the source topic was recreated, the run continues with seq 1 of the new epoch.
"""

from __future__ import annotations

from typing import Generic

from topics.client import Client
from topics.spark.pipelines.rounds.outputs import At, Output
from topics.spark.pipelines.rounds.source_frames import SourceTopic
from topics.spark.pipelines.run.job import PipelineJob
from topics.spark.pipelines.run.lags import heads
from topics.spark.pipelines.run.report import ReportedGap

STEP_SEQS = 1_000_000


class Rounds(Generic[At]):
    """Processes one topic in rounds. A dry run writes nothing to the output."""

    def __init__(
        self, job: PipelineJob, source: SourceTopic, output: Output[At], *, step_seqs: int, full: bool
    ) -> None:
        self._job = job
        self._source = source
        self._output = output
        self._step_seqs = step_seqs
        self._row = job.report.topic(source.topic, into=output.name)
        known = output.load()
        self._generation = 0 if known is None else known.generation + int(full)
        if known is not None and not full:
            self.check_fits(known)
        self._at = None if full else known
        job.lags(source.url, self._note_lag, self._forget_lag)

    # --- the parts that each pipeline implements

    def check_fits(self, known: At) -> None:
        """Raise `BadUsage` if the output holds the result of another declaration."""
        raise NotImplementedError

    def beginning(self, epoch: int, generation: int) -> At:
        """Return the position before the first seq."""
        raise NotImplementedError

    def recreated(self, at: At, epoch: int) -> At:
        """Return the position before the first seq of the topic's new epoch."""
        raise NotImplementedError

    def finish_interrupted(self, at: At) -> At | None:
        """Finish the step of an interrupted run and return the new position, or None if there is no such step."""
        return None

    def upto(self, at: At, head: int) -> int:
        """Return the last seq of the next range."""
        return min(head, at.done + self._step_seqs)

    def take(self, at: At, stop: int) -> At:
        """Process the seqs after `at.done` and before `stop`. Return the new position."""
        raise NotImplementedError

    # --- the run

    def run(self, *, follow: bool, every_s: float) -> None:
        follow = follow and not self._job.dry_run
        for _ in self._job.rounds(follow=follow):
            state = self._source.state()
            while self.step(state.head_seq):
                pass
            self._job.rest()
            if follow and not self._job.stopping.wait(every_s):
                self._source.wait(state)
        if self._job.dry_run and (created := self._output.creates()) is not None and self._row.records:
            self._row.would.append(f"create {created}")
        self.finish()

    def step(self, head: int) -> bool:
        """Finish an interrupted step, or else process the next range. Return False if there is neither."""
        at = self._at = self._position()
        finished = self.finish_interrupted(at)
        if finished is not None:
            self._at = finished
            return True
        last = self.upto(at, head)
        if last <= at.done:
            return False
        self._job.step(f"{self._source.topic}: seqs {at.done + 1} to {last}")
        self._source.warn_if_trimmed(at.epoch, at.done + 1)
        self._row.epoch, self._row.to_seq = at.epoch, last
        self._row.from_seq = self._row.from_seq or at.done + 1
        self._at = self.take(at, last + 1)
        return True

    def _position(self) -> At:
        """Return the position in the present epoch of the topic."""
        state, at = self._source.state(), self._at
        if at is not None and self._output.is_lost(at):
            self._job.warn(f"topic {self._output.name} was deleted: it is filled again from the first seq")
            self._generation, at = at.generation + 1, None
        at = at or self.beginning(state.epoch, self._generation)
        if at.epoch == state.epoch and state.head_seq >= at.done:
            return at
        self._row.gaps.append(ReportedGap(from_seq=at.done + 1, to_seq=at.done + 1, reason="recreated", epoch=at.epoch))
        return self.recreated(at, state.epoch)

    def finish(self) -> None:
        """Add the figures that are known only at the end of a run."""

    def _note_lag(self, client: Client) -> None:
        state, at = heads(client, [self._source.topic]).get(self._source.topic), self._at
        if state is None:
            self._row.lag = None
        else:
            done = at.done if at is not None and at.epoch == state.epoch else 0
            self._row.lag = max(state.head_seq - done, 0)

    def _forget_lag(self) -> None:
        self._row.lag = None

    def add(self, **counts: int) -> None:
        """Add counts to the figures of the report. Zeros are left out."""
        figures = self._row.figures
        figures.update({name: figures.get(name, 0) + count for name, count in counts.items() if count})
