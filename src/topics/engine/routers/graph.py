"""The graph of routers: by name, by the topics they join, and the cursor of each. `save` writes it to a snapshot.

A destination has one source, so the routers into it form one `Edge`, and the topics upstream of a topic form a line.
Every topic that a router touches has a `Links`; all others cost the engine one test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec
from msgspec import Struct

from topics.engine.state.name_index import NameIndex
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.model.router import RouterConfig
from topics.storage.snapshot import encode_array

_encode = msgspec.msgpack.encode
NEVER_RESUMED = 1 << 62, 1 << 62  # more than any cap


@dataclass(slots=True, eq=False)
class Router:
    """One router. It has examined all records of its source up to `cursor`."""

    name: str
    router_id: int
    edge: Edge
    config: RouterConfig
    cursor: int
    staged_cursor: int = 0  # where the cursor will be once all staged steps have landed
    owed: int = 0  # in a replay: records up to `staged_cursor` that it gave up, and that have no seqs yet
    forwarded_total: int = 0
    present: Any = None  # `copy.Stamps` of the destination, once they are needed

    @property
    def lag(self) -> int:
        return max(self.edge.source.head - self.cursor, 0)

    @property
    def reached(self) -> int:
        """The cursor after all staged steps."""
        return max(self.cursor, self.staged_cursor)


@dataclass(slots=True, eq=False)
class Edge:
    """All routers into one destination, by id, and what they share."""

    source: Topic
    dest: Topic
    routers: list[Router] = field(default_factory=list)
    cyclic: bool = False  # whether copies can come back to the source
    floor_ms: int = 0  # no copy is older than this
    last_error: str | None = None  # why no record is forwarded
    held_until_ms: int = 0
    backoff_ms: int = 0
    room_floor: int = 1  # the floor of the destination at the last `Resume`
    # The records and bytes that a replay may find in the destination: those at the last `Resume`, and all since.
    replayed: tuple[int, int] = NEVER_RESUMED
    moving: bool = False  # in a replay: its routers are being moved
    starved_ns: int = 0  # since when only entries that wait for the log keep it from going on

    @property
    def busy(self) -> bool:
        """Whether a step of a router is staged and has not taken effect."""
        return any(router.staged_cursor > router.cursor for router in self.routers)

    def grew(self, n: int, size_bytes: int) -> None:
        """Count records that come into the destination."""
        self.replayed = self.replayed[0] + n, self.replayed[1] + size_bytes

    def next(self, upto: int, targets: Mapping[int, int] | None = None) -> tuple[Router, int] | None:
        """Return the router whose turn it is, and how far it may go: to `upto`, or by id to its cursor in `targets`.

        The router that is furthest behind goes first, the older of two; it stops where it would overtake. So the order
        of copies in the destination depends on the cursors alone, not on how many are made at a time. Return None if
        all have come so far.
        """
        best: Router | None = None
        for router in self.routers:
            target = targets.get(router.router_id, upto) if targets else upto
            if router.cursor < target and (best is None or router.cursor < best.cursor):
                best, end = router, target
        if best is None:
            return None
        for other in self.routers:
            if other is not best and other.cursor >= best.cursor:
                end = min(end, max(other.cursor + (best.router_id < other.router_id), best.cursor + 1))
        return best, end


@dataclass(slots=True, eq=False)
class Links:
    table: Table
    topic: Topic
    outgoing: dict[int, Edge] = field(default_factory=dict)  # out of the topic, by the destination's id
    incoming: Edge | None = None  # into it
    frozen: int = 0  # staged entries that pin the routers out of the topic: these must not move
    low: int = 0  # no router is before it, see `behind`
    written: bool = False  # whether the log has a direct write since the last snapshot

    @property
    def mixes_writes(self) -> bool:
        """Whether the topic has copies and direct writes."""
        return self.written and self.incoming is not None

    def routers(self) -> Iterator[Router]:
        for edge in self.outgoing.values():
            yield from edge.routers

    def behind(self, upto: int) -> list[Router]:
        """Return the routers that have not examined all records below `upto`; staged steps count as done."""
        if self.low >= upto - 1:
            return []
        found = [router for router in self.routers() if router.reached < upto - 1]
        if not found:
            self.low = upto - 1
        return found


def into(topic: Topic) -> Edge | None:
    """Return the edge into the topic, if there is one."""
    links: Links | None = topic.links
    return None if links is None else links.incoming


def out_of(topic: Topic) -> list[Edge]:
    links: Links | None = topic.links
    return [] if links is None else list(links.outgoing.values())


class SavedRouter(Struct, array_like=True, gc=False):
    router_id: int
    name: str
    source_id: int
    dest_id: int
    config: RouterConfig
    cursor: int
    forwarded_total: int
    floor_ms: int


SavedRouters = tuple[int, list[SavedRouter], dict[int, dict[str, int]]]  # the next id, the routers, and `stamps`


class Table:
    def __init__(self, state: State) -> None:
        self.state = state
        self.by_name: dict[str, Router] = {}
        self.names = NameIndex()  # of `by_name`
        self.by_id: dict[int, Router] = {}
        self.next_id = 1
        self.hooks: Any = None  # follows changes of linked topics: `replay.Recovering`, or the `Forwarder`
        self.edges: dict[int, Edge] = {}  # by the destination's id
        self.pinned: Topic | None = None  # in a replay: a mark applies to the next entry: nothing is forwarded for it
        # At the end of a replay: topics with a line of routers into a topic that may be full, or onto a cycle. None
        # before: of the copies that are in the log, it is known that there was room for them.
        self.before_stops: set[Topic] | None = None
        self.moved: dict[Edge, None] | None = None  # since the last `Routers.mark_moved`; None if there is no replica
        self.stamps: dict[int, dict[str, int]] = {}  # by destination: `stamp_space` → highest seq with a stamp

    def put(
        self, name: str, *, router_id: int, source: Topic, dest: Topic, config: RouterConfig, cursor: int
    ) -> Router:
        """Create the router, or change the one of that name."""
        router = self.by_name.get(name)
        if router is not None and (router.edge.source is not source or router.edge.dest is not dest):
            self.remove(router)
            router = None
        if router is not None:
            router.config = config
            return router
        for topic in (source, dest):
            topic.links = topic.links or Links(self, topic)
        out: Links = source.links
        edge = into(dest)
        if edge is None:
            edge = dest.links.incoming = out.outgoing[dest.topic_id] = self.edges[dest.topic_id] = Edge(source, dest)
            for one in cycle_through(edge):
                one.cyclic = True
        assert edge.source is source, "a destination has one source"
        router = Router(name, router_id, edge, config, cursor)
        edge.routers.append(router)
        self.by_name[name] = self.by_id[router_id] = router
        self.names.add(name)
        self.next_id = max(self.next_id, router_id + 1)
        out.low = min(out.low, cursor)
        return router

    def remove(self, router: Router) -> None:
        edge = router.edge
        edge.routers.remove(router)
        del self.by_name[router.name], self.by_id[router.router_id]
        self.names.remove(router.name)
        if not edge.routers:
            if edge.cyclic:
                for one in cycle_through(edge):
                    one.cyclic = False
            del edge.source.links.outgoing[edge.dest.topic_id], self.edges[edge.dest.topic_id]
            edge.dest.links.incoming = None
            for topic in (edge.source, edge.dest):
                links: Links = topic.links
                if not links.outgoing and links.incoming is None and not links.frozen:
                    topic.links = None

    def around(self, topic: Topic) -> list[Router]:
        """Return the routers from and to the topic, by name."""
        edges = out_of(topic)
        if (edge := into(topic)) is not None:
            edges.append(edge)
        return sorted([router for edge in edges for router in edge.routers], key=lambda router: router.name)

    def drop_topic(self, topic: Topic) -> None:
        for router in self.around(topic):
            self.remove(router)
        self.stamps.pop(topic.topic_id, None)

    def save(self) -> Callable[[], Iterator[bytes]] | None:
        """Note where all routers are, and return what encodes them on any thread: 10,000 take 1 ms and 30 ms."""
        if self.next_id == 1:
            return None
        for edge in self.edges.values():
            edge.dest.links.written = False
        rows = [
            (one.router_id, one.name, one.edge.source.topic_id, one.edge.dest.topic_id, one.config, one.cursor,
             one.forwarded_total, one.edge.floor_ms)  # see `SavedRouter`
            for one in self.by_id.values()
        ]  # fmt: skip
        head, stamps = b"\x93" + _encode(self.next_id), _encode(self.stamps)  # an array of three: see `SavedRouters`
        return lambda: chain([head], encode_array(rows, len(rows)), [stamps])

    def load(self, raw: msgspec.Raw) -> None:
        by_id = self.state.by_id
        next_id, routers, self.stamps = msgspec.msgpack.decode(raw, type=SavedRouters)
        for one in routers:
            source, dest = by_id[one.source_id], by_id[one.dest_id]
            router = self.put(
                one.name, router_id=one.router_id, source=source, dest=dest, config=one.config, cursor=one.cursor
            )
            router.forwarded_total = one.forwarded_total
            router.edge.floor_ms = one.floor_ms
        self.next_id = max(self.next_id, next_id)


def table_of(state: State) -> Table:
    if state.routers is None:
        state.routers = Table(state)
    table: Table = state.routers
    return table


def upstream(topic: Topic, *, without: Router | None = None) -> list[Topic]:
    """Return the topic, its source, the source of that, and so on; end where a topic comes up again."""
    line = {topic: None}
    # Bound: the number of topics. Each round adds another one to the line.
    while (edge := into(topic)) is not None and edge.routers != [without] and edge.source not in line:
        topic = edge.source
        line[topic] = None
    return list(line)


def copies_of_one(
    source: Topic | None, dest: Topic | None, config: RouterConfig, *, without: Router | None, most: int
) -> int:
    """Return how many copies one record could have with one more router, or any number above `most`.

    `without` is the router that the new one replaces. Filters count as if the tag of the record suited them best. The
    record with the most copies is written to the topic where the line of sources begins, or to one of the cycle there.
    """

    def routers_of(topic: Topic | None) -> dict[Topic | None, list[RouterConfig]]:
        found: dict[Topic | None, list[RouterConfig]] = {}
        for edge in () if topic is None else out_of(topic):
            found[edge.dest] = [router.config for router in edge.routers if router is not without]
        if topic is source:
            found[dest] = [*found.get(dest, ()), config]
        return found

    def copies_from(start: Topic | None) -> int:
        copies, seen, left = 0, {start}, [(start, 1)]
        # Bound: the number of topics. Each of them is added to `left` once.
        while left and copies <= most:
            topic, times = left.pop()
            for to, configs in routers_of(topic).items():
                # How many of these routers can copy the same record, at most.
                exact = Counter(one.filter.text for one in configs if one.filter is not None and one.filter.op == "Eq")
                made = times * (len(configs) - exact.total() + max(exact.values(), default=0))
                if made and to not in seen:
                    copies += made
                    if to is not None:
                        seen.add(to)
                        left.append((to, made))
        return copies

    if source is None:
        return copies_from(None)
    line = upstream(source, without=without)
    first = into(line[-1])
    has_cycle = dest in line or (first is not None and first.routers != [without])
    return max(map(copies_from, line if has_cycle else line[-1:]))


def cycle_through(edge: Edge) -> list[Edge]:
    """Return the edges of the cycle of this edge, if it is on one. There is at most one: a topic has one source."""
    line = upstream(edge.source)
    ring = line[: line.index(edge.dest) + 1] if edge.dest in line else []
    return [into(topic) for topic in ring]  # type: ignore[misc]  # each topic of a cycle has a source
