"""The graph of routers: by name, by the topics they join, and the cursor of each.

A destination has one source, so the routers into it form one `Feed`, and the topics upstream of a topic form a line.
Every topic that a router touches has a `Links`; all others cost the engine one test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Protocol

from topics.engine.state.name_index import NameIndex
from topics.engine.state.topic import Topic
from topics.model.router import RouterConfig

if TYPE_CHECKING:
    from topics.engine.routers.copy import Stamps
    from topics.engine.state.topics import State
    from topics.engine.write.commit import Ticket


class Router:
    """One router. It has examined all records of its source up to `cursor`."""

    __slots__ = ("config", "cursor", "feed", "forwarded_total", "name", "present", "router_id", "under_way")

    def __init__(self, name: str, *, router_id: int, feed: Feed, config: RouterConfig, cursor: int) -> None:
        self.name = name
        self.router_id = router_id
        self.feed = feed
        self.config = config
        self.cursor = cursor
        self.under_way = 0  # where the cursor will be once all staged steps have landed
        self.forwarded_total = 0
        self.present: Stamps | None = None  # the stamps in the destination, once they are needed

    @property
    def lag(self) -> int:
        return max(self.feed.source.head - self.cursor, 0)

    @property
    def reached(self) -> int:
        """The cursor with everything that is under way."""
        return max(self.cursor, self.under_way)


class Feed:
    """All routers into one destination, by id, and what they share."""

    __slots__ = (
        "backoff_ms",
        "busy",
        "cyclic",
        "dest",
        "floor_ms",
        "held_until_ms",
        "last_error",
        "room_floor",
        "routers",
        "source",
        "starved_ns",
    )

    def __init__(self, source: Topic, dest: Topic) -> None:
        self.source = source
        self.dest = dest
        self.routers: list[Router] = []
        self.cyclic = False  # whether copies can come back to the source
        self.floor_ms = 0  # no copy is older than this
        self.last_error: str | None = None  # why no record is forwarded
        self.held_until_ms = 0
        self.backoff_ms = 0
        self.room_floor = 1  # the floor of the destination at the last `Resume`
        self.busy = 0  # entries of its own that have not landed yet
        self.starved_ns = 0  # since when only entries that wait for the log keep it from going on

    def next(self, targets: dict[int, int] | None = None) -> tuple[Router, int] | None:
        """Return the router whose turn it is, and how far it may go; None if all are at their targets.

        The router that is furthest behind goes first, the older of two; it stops where it would overtake. So the order
        of copies in the destination depends on the cursors alone, not on how many are made at a time.
        """
        best: Router | None = None
        for router in self.routers:
            target = self.source.head if targets is None else targets.get(router.router_id, router.cursor)
            if router.cursor < target and (best is None or router.cursor < best.cursor):
                best = router
        if best is None:
            return None
        upto = self.source.head if targets is None else targets[best.router_id]
        for other in self.routers:
            if other is not best and other.cursor >= best.cursor:
                upto = min(upto, max(other.cursor + (best.router_id < other.router_id), best.cursor + 1))
        return best, upto


class Live(Protocol):
    """What a running engine does for routers. A replay does without it."""

    def staging(self, links: Links, ticket: Ticket) -> None: ...

    def pin(self, links: Links) -> bytes: ...

    def freeze(self, links: Links, ticket: Ticket) -> None: ...

    def losing(self, links: Links, upto: int) -> None: ...


class Links:
    """The routers around one topic."""

    __slots__ = ("fed", "feeds", "frozen", "low", "table", "topic")

    def __init__(self, table: Table, topic: Topic) -> None:
        self.table = table
        self.topic = topic
        self.feeds: dict[int, Feed] = {}  # out of the topic, by the destination's id
        self.fed: Feed | None = None  # into it
        self.frozen = 0  # staged entries that pin the routers out of the topic: these must not move
        self.low = 0  # at most the cursor of the slowest router

    def routers(self) -> Iterator[Router]:
        """Yield the routers that read from the topic."""
        for feed in self.feeds.values():
            yield from feed.routers

    def slowest(self) -> int:
        """Return the lowest cursor; staged steps count as done."""
        self.low = min((router.reached for router in self.routers()), default=self.topic.head)
        return self.low

    def staging(self, ticket: Ticket) -> None:
        """Note that an entry about the topic is about to be logged."""
        if self.table.live is not None:
            self.table.live.staging(self, ticket)

    def pin(self) -> bytes:
        """Return the frame that has to stand before an entry about another topic that takes records out of this one."""
        return b"" if self.table.live is None else self.table.live.pin(self)

    def freeze(self, ticket: Ticket) -> None:
        """Keep routers out of the topic from moving until the ticket is resolved."""
        if self.table.live is not None:
            self.table.live.freeze(self, ticket)

    def losing(self, upto: int) -> None:
        """Forward or give up records below `upto`, which are about to be lost."""
        if self.feeds:
            if self.table.live is not None:
                self.table.live.losing(self, upto)
            else:
                self.table.replay_losing(self, upto)

    def deleting(self) -> None:
        """In a replay, forward records before they are deleted. Live, the delete came later, or had a mark."""
        if self.feeds and self.table.live is None:
            self.table.replay_losing(self, self.topic.head + 1)


def links_of(topic: Topic) -> Links | None:
    """Return the routers around a topic; None if there are none."""
    links = topic.links
    assert links is None or isinstance(links, Links)
    return links


def linked(topic: Topic) -> Links:
    """Return the routers around a topic that has some."""
    links = topic.links
    assert isinstance(links, Links)
    return links


class Table:
    """All routers."""

    MARK: ClassVar[int] = 18  # the kind of entry that speaks of the one after it

    def __init__(self, state: State) -> None:
        self.state = state
        self.by_name: dict[str, Router] = {}
        self.names = NameIndex()  # of `by_name`
        self.by_id: dict[int, Router] = {}
        self.next_id = 1
        self.live: Live | None = None
        self.pinned: Topic | None = None  # in a replay: a mark spoke of the next entry, so nothing is forwarded for it
        self.stamps: dict[int, dict[str, int]] = {}  # by destination: `stamp_space` → highest seq with a stamp

    def replay_losing(self, links: Links, upto: int) -> None:
        raise NotImplementedError  # see `replay.ReplayTable`

    def fill(self, topic: Topic, head: int) -> None:
        raise NotImplementedError

    def link(self, topic: Topic) -> Links:
        if topic.links is None:
            topic.links = Links(self, topic)
        return linked(topic)

    def put(
        self, name: str, *, router_id: int, source: Topic, dest: Topic, config: RouterConfig, cursor: int
    ) -> Router:
        """Create the router, or change the one of that name."""
        router = self.by_name.get(name)
        if router is not None and (router.feed.source is not source or router.feed.dest is not dest):
            self.remove(router)
            router = None
        if router is not None:
            router.config = config
            return router
        out, into = self.link(source), self.link(dest)
        feed = into.fed
        if feed is None:
            feed = into.fed = out.feeds[dest.topic_id] = Feed(source, dest)
            for one in cycle_through(feed):
                one.cyclic = True
        assert feed.source is source, "a destination has one source"
        router = Router(name, router_id=router_id, feed=feed, config=config, cursor=cursor)
        feed.routers.append(router)
        self.by_name[name] = self.by_id[router_id] = router
        self.names.add(name)
        self.next_id = max(self.next_id, router_id + 1)
        out.low = min(out.low, cursor)
        return router

    def remove(self, router: Router) -> None:
        feed = router.feed
        feed.routers.remove(router)
        del self.by_name[router.name], self.by_id[router.router_id]
        self.names.remove(router.name)
        if not feed.routers:
            if feed.cyclic:
                for one in cycle_through(feed):
                    one.cyclic = False
            out, into = linked(feed.source), linked(feed.dest)
            del out.feeds[feed.dest.topic_id]
            into.fed = None
            self._unlink(feed.source)
            self._unlink(feed.dest)

    def around(self, topic: Topic) -> list[Router]:
        """Return the routers from and to the topic, by name."""
        links = links_of(topic)
        if links is None:
            return []
        into = [] if links.fed is None else links.fed.routers
        return sorted([*links.routers(), *into], key=lambda router: router.name)

    def drop_topic(self, topic: Topic) -> None:
        for router in self.around(topic):
            self.remove(router)
        self.stamps.pop(topic.topic_id, None)

    def feeds(self) -> list[Feed]:
        return list({id(router.feed): router.feed for router in self.by_id.values()}.values())

    def linked(self) -> list[Topic]:
        """Return the topics with routers."""
        return [topic for feed in self.feeds() for topic in (feed.source, feed.dest)]

    def _unlink(self, topic: Topic) -> None:
        links = linked(topic)
        if not links.feeds and links.fed is None and not links.frozen:
            topic.links = None


def upstream(topic: Topic, *, without: Router | None = None) -> list[Topic]:
    """Return the topic, its source, the source of that, and so on; end where a topic comes up again."""
    line = {topic: None}
    at = topic
    # Bound: the number of topics. Each round adds another one to the line.
    while (links := links_of(at)) is not None and (feed := links.fed) is not None:
        if (without is not None and feed.routers == [without]) or feed.source in line:
            break
        at = feed.source
        line[at] = None
    return list(line)


def cycle_through(feed: Feed) -> list[Feed]:
    """Return the feeds of the cycle of this feed, if it is on one. There is at most one: a topic has one source."""
    ring = {feed: None}
    at = feed
    # Bound: the number of feeds. Each round adds another one to the ring.
    while (links := links_of(at.source)) is not None and (before := links.fed) is not None:
        if before is feed:
            return list(ring)
        if before in ring:
            break  # another cycle, upstream of this feed
        at = before
        ring[at] = None
    return []
