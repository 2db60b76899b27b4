"""Connections that want topics which do not exist yet, by the literal prefix of their patterns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from topics.engine.state.topic import Topic

Pick = Callable[[Topic], object]


class Picking:
    """To find who wants a new topic costs as many look-ups as the topic's name has characters, at most."""

    def __init__(self) -> None:
        self._watchers: dict[object, tuple[str, ...]] = {}  # the prefixes of each
        self._by_prefix: dict[str, dict[object, Pick]] = {}
        self._lengths: Counter[int] = Counter()  # of the prefixes

    def put(self, watcher: object, prefixes: Iterable[str], pick: Pick) -> None:
        """Have `pick` called for every topic that is created with one of these prefixes; earlier ones are forgotten."""
        self.remove(watcher)
        wanted = tuple(prefixes)
        if not wanted:
            return
        self._watchers[watcher] = wanted
        for prefix in wanted:
            if prefix not in self._by_prefix:
                self._by_prefix[prefix] = {}
                self._lengths[len(prefix)] += 1
            self._by_prefix[prefix][watcher] = pick

    def remove(self, watcher: object) -> None:
        for prefix in self._watchers.pop(watcher, ()):
            watchers = self._by_prefix[prefix]
            del watchers[watcher]
            if not watchers:
                del self._by_prefix[prefix]
                self._lengths[len(prefix)] -= 1
                if not self._lengths[len(prefix)]:
                    del self._lengths[len(prefix)]

    def created(self, topic: Topic) -> None:
        """Tell every connection that wants the topic, once."""
        if not self._watchers:
            return
        name, found = topic.name, dict[object, Pick]()
        for length in self._lengths:
            if length <= len(name) and (watchers := self._by_prefix.get(name[:length])) is not None:
                found |= watchers
        for pick in found.values():
            pick(topic)
