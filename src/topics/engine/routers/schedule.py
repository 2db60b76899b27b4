"""Which feeds have something to forward, and when the others may."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from topics.engine.routers.graph import Feed, links_of
from topics.engine.state.topic import Topic

FIRST_BACKOFF_MS = 20
MAX_BACKOFF_MS = 1000
SOON_MS = 1  # when entries of a topic wait for the log


class DueFeeds:
    """The feeds of one engine that are due, in the order in which they became due."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None  # called when a feed becomes due
        self._due: deque[Feed] = deque()
        self._queued: set[Feed] = set()  # the feeds in `_due`
        self._grown: dict[Topic, None] = {}  # sources whose feeds are not in `_due` yet
        self._waiting: dict[Feed, None] = {}  # held, or behind entries that wait for the log

    def __bool__(self) -> bool:
        return bool(self._due)

    @property
    def has_grown(self) -> bool:
        """Whether sources grew since `collect`."""
        return bool(self._grown)

    def add(self, feed: Feed) -> None:
        """Make the feed due, unless one of its topics was dropped."""
        if feed not in self._queued and not feed.source.gone and not feed.dest.gone:
            self._waiting.pop(feed, None)
            self._queued.add(feed)
            self._due.append(feed)
            self.wake()

    def pop(self) -> Feed:
        """Take out the feed that has been due for longest."""
        feed = self._due.popleft()
        self._queued.discard(feed)
        return feed

    def put_first(self, feed: Feed) -> None:
        """Move the feed to the front, if it is due."""
        if feed in self._queued:
            self._due.remove(feed)
            self._due.appendleft(feed)

    def source_grew(self, topic: Topic) -> None:
        """Make the feeds out of the topic due with the next `collect`."""
        if (links := links_of(topic)) is not None and links.feeds:
            self._grown[topic] = None
            self.wake()

    def wait(self, feed: Feed) -> None:
        """Make the feed due again once its `held_until_ms` has passed."""
        self._waiting[feed] = None

    def waits(self, feed: Feed) -> bool:
        return feed in self._waiting

    def back_off(self, feed: Feed, now_ms: int) -> None:
        """Hold the feed, for twice as long as the last time."""
        feed.backoff_ms = min(max(feed.backoff_ms * 2, FIRST_BACKOFF_MS), MAX_BACKOFF_MS)
        feed.held_until_ms = now_ms + feed.backoff_ms
        self.wait(feed)

    def collect(self, now_ms: int) -> None:
        """Make the feeds due whose sources grew, and those that need not wait any longer."""
        grown, self._grown = self._grown, {}
        for topic in grown:
            if (links := links_of(topic)) is not None:
                for feed in links.feeds.values():
                    self.add(feed)
        for feed in list(self._waiting):
            if feed.held_until_ms <= now_ms:
                del self._waiting[feed]
                self.add(feed)

    def next_ms(self, now_ms: int) -> int | None:
        """Return in how many ms a feed is due; None if no feed waits."""
        if self._due or self._grown:
            return 0
        if not self._waiting:
            return None
        return max(min(feed.held_until_ms for feed in self._waiting) - now_ms, SOON_MS)
