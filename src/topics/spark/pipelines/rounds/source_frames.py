"""Load ranges of a topic as DataFrames, for pipelines that process records with SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from topics.client import Client
from topics.client.request import State
from topics.errors import Code, TopicsError
from topics.spark.failures import Failed
from topics.spark.pipelines.run.job import PipelineJob
from topics.spark.pipelines.run.trimmed import removed
from topics.spark.unknown_names import existing_lake, unknown_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WAIT_MS = 500


class SourceTopic:
    """One topic of a server. With a lake, records that the server no longer has come from there."""

    def __init__(self, job: PipelineJob, client: Client, topic: str, *, lake: str | None = None) -> None:
        self.topic, self.url = topic, client.url
        self._job = job
        self._client = client
        self._lake = None if lake is None else existing_lake(lake).path

    def wait_until_exists(self, *, follow: bool) -> bool:
        """Return whether the topic exists. A job that follows waits for the topic until the job is stopped.

        Raise `BadUsage` if the topic does not exist and the job does not follow.
        """
        while follow and not self._job.stopping.is_set():
            try:
                self._client.topic(self.topic)
                return True
            except TopicsError as error:
                if error.code is not Code.TOPIC_NOT_FOUND:
                    raise
            self._job.warn(f"topic {self.topic} does not exist on {self._client.url} yet: waiting for it")
            self._job.stopping.wait(WAIT_MS / 1000)
        return not follow and self.state() is not None

    def state(self) -> State:
        try:
            return self._client.topic(self.topic)
        except TopicsError as error:
            if error.code is Code.TOPIC_NOT_FOUND:
                raise unknown_topic(self._client, self.topic) from None
            raise

    def load(self, start: int, stop: int) -> DataFrame:
        """Return the rows of the seqs [start, stop). A lost range is a row of kind gap.

        Besides the columns of the source there is `value`: `data` as a VARIANT, for `value:user.id::string` etc.
        """
        reader = self._job.spark.read.format("topics").options(**self._job.reading(self._client.url))
        reader = reader.option("subscribe", self.topic).option("failOnDataLoss", "false")
        reader = reader.option("startingOffsets", _offsets(self.topic, start))
        reader = reader.option("endingOffsets", _offsets(self.topic, stop))
        if self._lake is not None:
            reader = reader.option("lake", self._lake)
        return reader.load().selectExpr("*", "try_parse_json(data) AS value")

    def warn_if_trimmed(self, epoch: int, start: int) -> None:
        """Warn if the topic begins after `start` because it was trimmed, and no lake was given."""
        found = None if self._lake is not None else removed(self._client, self.topic, epoch=epoch, start=start)
        if found is not None and found.is_trimmed:
            self._job.warn(
                f"topic {self.topic}: {found} were trimmed after they were archived, and are left out; "
                "--lake DIR reads them from the lake"
            )

    def check_same(self, epoch: int) -> None:
        """Raise `Failed` if the topic was recreated while it was read: the rows may be of either epoch."""
        if self.state().epoch != epoch:
            raise Failed(
                f"topic {self.topic} was deleted and recreated while it was read",
                next="run the same command again: it continues with the new epoch of the topic",
            )

    def wait(self, state: State) -> None:
        """Return when the topic has new records, at the latest after `WAIT_MS`."""
        self._client.diff(
            self.topic, from_seq=state.head_seq, epoch=state.epoch, limit=1, include_meta=False, wait_ms=WAIT_MS
        )


def _offsets(topic: str, seq: int) -> str:
    return msgspec.json.encode({topic: seq}).decode()
