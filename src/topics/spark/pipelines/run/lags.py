"""Lag of a pipeline: the heads of its topics when a report is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from topics.client import Client
from topics.client.request import State, Summary
from topics.errors import Code, TopicsError
from topics.spark.pipelines.run.report import TopicReport

ASKED_SINGLY = 16  # with more topics one list request is cheaper; with fewer the key needs no right to list


def heads(client: Client, topics: Sequence[str]) -> dict[str, State | Summary]:
    """Return the state of each topic that exists."""
    names = set(topics)
    if len(names) <= ASKED_SINGLY:
        return {name: state for name in names if (state := _state(client, name)) is not None}
    return {row.topic: row for row in client.topics(common(topics)) if row.topic in names}


def _state(client: Client, topic: str) -> State | None:
    try:
        return client.topic(topic)
    except TopicsError as error:
        if error.code is not Code.TOPIC_NOT_FOUND:
            raise
        return None


def forget(rows: Iterable[TopicReport]) -> None:
    """Clear the lag values: the server did not answer, so the last ones may be stale."""
    for row in list(rows):
        row.lag = None


def common(names: Sequence[str]) -> str:
    """Return the longest common prefix of the names, for a list request by prefix."""
    first, last = min(names), max(names)
    return next((first[:at] for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), first[: len(last)])
