"""Connections that wait for new topics, by the literal prefix of their patterns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from topics.engine.state.topic import Topic

Match = Callable[[Topic], object]


class PatternWaiters:
    """Finds the watchers of a new topic with at most as many look-ups as its name has characters."""

    def __init__(self) -> None:
        self._watchers: dict[object, tuple[str, ...]] = {}  # the prefixes of each
        self._by_prefix: dict[str, dict[object, Match]] = {}
        self._lengths: Counter[int] = Counter()  # of the prefixes

    def put(self, watcher: object, prefixes: Iterable[str], match: Match) -> None:
        """Call `match` for every new topic with one of these prefixes, which replace earlier ones of the watcher."""
        self.remove(watcher)
        wanted = tuple(prefixes)
        if not wanted:
            return
        self._watchers[watcher] = wanted
        for prefix in wanted:
            if prefix not in self._by_prefix:
                self._by_prefix[prefix] = {}
                self._lengths[len(prefix)] += 1
            self._by_prefix[prefix][watcher] = match

    def remove(self, watcher: object) -> None:
        """Remove the watcher with all its prefixes."""
        for prefix in self._watchers.pop(watcher, ()):
            watchers = self._by_prefix[prefix]
            del watchers[watcher]
            if not watchers:
                del self._by_prefix[prefix]
                self._lengths[len(prefix)] -= 1
                if not self._lengths[len(prefix)]:
                    del self._lengths[len(prefix)]

    def created(self, topic: Topic) -> None:
        """Call `match` of every watcher with a prefix of the new topic's name, once each."""
        if not self._watchers:
            return
        name, found = topic.name, dict[object, Match]()
        for length in self._lengths:
            if length <= len(name) and (watchers := self._by_prefix.get(name[:length])) is not None:
                found |= watchers
        for match in found.values():
            match(topic)
