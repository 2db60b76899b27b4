"""How far behind a pipeline is: the heads of topics at the moment at which a report is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from topics.client import Client
from topics.client.request import State, Summary
from topics.errors import Code, TopicsError
from topics.spark.pipelines.run.report import TopicReport

ASKED_SINGLY = 16  # above this a list costs less; below it a key need not be one that may list


def heads(client: Client, topics: Sequence[str]) -> dict[str, State | Summary]:
    """Those of the topics that are there."""
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
    """What was true once is not told as what is."""
    for row in list(rows):
        row.lag = None


def common(names: Sequence[str]) -> str:
    """What all names begin with: a list of topics is asked for by prefix."""
    first, last = min(names), max(names)
    return next((first[:at] for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), first[: len(last)])
