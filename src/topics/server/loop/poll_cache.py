"""Answers to polls, kept while they stay true: readers that wait at the head of a topic ask the same thing again.

Kept is the rendered answer to a plain `diff`, by the topic's name and the request's very bytes, with the marks that the
topic bore when it was read. As long as it still bears them nothing was written, evicted or deleted since, so the next
reader with the same question gets the same answer, but for the time it took.
"""

from __future__ import annotations

from msgspec import Struct

from topics.engine.state.topic import Topic

MAX_ANSWERS = 1024
MAX_BODY_BYTES = 256  # of a question
MAX_ANSWER_BYTES = 1024

Marks = tuple[int, int, int, int, object]


class Polled(Struct, gc=False, frozen=True):
    """One answer, in two halves: between them stands how long it took."""

    topic: Topic
    marks: Marks
    before: bytes
    after: bytes


def marks_of(topic: Topic) -> Marks:
    """What changes with everything a plain read depends on. A topic with a TTL has none: time changes it, too."""
    return topic.head, topic.count, topic.earliest, topic.evict_floor, topic.config


class PolledAnswers:
    """A bounded memory of them: when it is full it starts anew."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[tuple[str, bytes], Polled] = {}

    def find(self, name: str, question: bytes) -> Polled | None:
        """The answer, if it is still true."""
        polled = self._kept.get((name, question))
        if polled is None:
            return None
        topic = polled.topic
        if topic.changing or topic.gone or polled.marks != marks_of(topic):
            del self._kept[name, question]
            return None
        return polled

    def keep(self, topic: Topic, question: bytes, before: bytes, after: bytes) -> None:
        if len(question) > MAX_BODY_BYTES or len(before) > MAX_ANSWER_BYTES or topic.config.ttl_ms:
            return
        if len(self._kept) >= MAX_ANSWERS:
            self._kept.clear()
        self._kept[topic.name, question] = Polled(topic, marks_of(topic), before, after)
