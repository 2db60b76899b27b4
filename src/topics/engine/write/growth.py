"""Notification of readers that wait for a topic to grow: once per turn, however often the topic grew."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

from topics import logs
from topics.engine.state.topic import Topic
from topics.engine.write.commit import Commits

log = logs.Log("engine")


class Growth:
    """The topics that grew in this turn, or were dropped."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._grown: dict[Topic, None] = {}
        self._keys = count()  # of waiters and listeners; an id may belong to another object once its object is freed
        self.then: Callable[[], None] | None = None  # called after the listeners of all topics that grew in a turn

    def wait(self, topic: Topic, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` once, when the topic has grown or is dropped. Return a function that cancels this."""
        key = next(self._keys)
        topic.waiters[key] = wake
        return lambda: topic.waiters.pop(key, None)  # type: ignore[return-value]

    def listen(self, topic: Topic, listener: Callable[[Topic], None]) -> Callable[[], None]:
        """Call `listener` after every turn in which the topic grew, and once when it is dropped.

        Return a function that ends this.
        """
        key = next(self._keys)
        topic.listeners[key] = listener
        return lambda: topic.listeners.pop(key, None)  # type: ignore[return-value]

    def add(self, topic: Topic) -> None:
        """Notify the waiters and listeners of the topic at the end of this turn."""
        if not self._grown:
            self._commits.schedule(self.notify)
        self._grown[topic] = None

    def notify(self) -> None:
        """Call the waiters and listeners of all topics that grew."""
        grown, self._grown = self._grown, {}
        for topic in grown:
            waiters, topic.waiters = topic.waiters, {}
            calls: list[Callable[[], object]] = [*waiters.values()]
            calls += [partial(listener, topic) for listener in topic.listeners.values()]
            for call in calls:
                try:
                    call()
                except Exception as error:  # a listener that fails must not cost the others their notification
                    log.failure("listener_failed", error, topic=topic.name)
        if self.then is not None:
            self.then()
