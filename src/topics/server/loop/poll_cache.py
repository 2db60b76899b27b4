"""A cache of answers to polls: readers that wait at the head of a topic send the same request again and again.

The key is the topic's name and the bytes of the request. An answer stays valid while the topic has the same marks as
when it was read: then nothing was written, evicted or deleted since, and only the time taken differs.
"""

from __future__ import annotations

from msgspec import Struct

from topics.engine.state.topic import Topic

MAX_ANSWERS = 1024
MAX_REQUEST_BYTES = 256
MAX_ANSWER_BYTES = 1024

Marks = tuple[int, int, int, int, object]


class CachedAnswer(Struct, gc=False, frozen=True):
    """The rendered answer to a plain `diff`, in two halves: the time taken goes between them."""

    topic: Topic
    marks: Marks
    before: bytes
    after: bytes


def marks_of(topic: Topic) -> Marks:
    """Return values that change with everything a plain read depends on, except the time (see `PollCache.keep`)."""
    return topic.head, topic.count, topic.earliest, topic.evict_floor, topic.config


class PollCache:
    """Answers by topic and request. The cache is cleared when it is full."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: dict[tuple[str, bytes], CachedAnswer] = {}

    def find(self, name: str, body: bytes) -> CachedAnswer | None:
        """Return the answer to this request if it is still valid."""
        if len(body) > MAX_REQUEST_BYTES:  # hashing 64 MiB takes 50 ms
            return None
        cached = self._answers.get((name, body))
        if cached is None:
            return None
        topic = cached.topic
        if topic.changing or topic.gone or cached.marks != marks_of(topic):
            del self._answers[name, body]
            return None
        return cached

    def keep(self, topic: Topic, body: bytes, before: bytes, after: bytes) -> None:
        """Keep a small answer. Records with a TTL expire without a change of the marks, so such a topic is skipped."""
        if len(body) > MAX_REQUEST_BYTES or len(before) > MAX_ANSWER_BYTES or topic.config.ttl_ms:
            return
        if len(self._answers) >= MAX_ANSWERS:
            self._answers.clear()
        self._answers[topic.name, body] = CachedAnswer(topic, marks_of(topic), before, after)
