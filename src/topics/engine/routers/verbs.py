"""The verbs of routers. `forwarder` makes the copies."""

from __future__ import annotations

from collections.abc import Callable

from topics.engine import retention
from topics.engine.routers import replay
from topics.engine.routers.copy import mark
from topics.engine.routers.forwarder import DueEdges, Forwarder
from topics.engine.routers.graph import Router, copies_of_one, into, table_of, upstream
from topics.engine.state.name_index import NameIndex
from topics.engine.state.topic import Topic
from topics.engine.write import apply
from topics.engine.write.commit import Ticket
from topics.engine.write.staging import Staging, server_full
from topics.engine.write.uploads import busy
from topics.errors import topic_not_found
from topics.model.names import check_router
from topics.model.router import (
    RouterConfig,
    RouterRequest,
    check_request,
    fan_in,
    router_cycle,
    router_not_found,
)
from topics.model.topic import TopicConfig
from topics.storage.log import entry as entries
from topics.storage.log.entry import Create
from topics.storage.log.router_entry import RouterDrop, RouterPut


class Routers:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self.table = table_of(staging.state)
        self._last = Ticket(done=True)  # of the last change
        self.due = DueEdges(staging.clock)
        staging.commits.uploads.on_released = self.due.retry
        self.table.hooks = self.forwarder = Forwarder(staging, self.table, self.due)

    def attach(self) -> None:
        """Make all edges due, once the state of the engine is recovered."""
        for edge in self.table.edges.values():
            self.due.add(edge)

    def mark_moved(self) -> None:
        """Log where routers are that have moved since the last call, so that a standby makes the same copies."""
        moved, self.table.moved = self.table.moved or {}, {}
        for edge in moved:
            if edge.dest.pending and not edge.dest.gone:
                self.table.moved[edge] = None  # the head is not where it will be
            elif edge.routers and replay.derives(edge):
                entry = mark(edge.dest.links, head=edge.dest.head, out=False, holds=False)
                self._staging.commits.stage(Ticket(entry=entry, frame=entries.encode(entry)))

    def _sync(self, *names: str) -> None:
        """Wait for the disk: a change of a router needs the present graph. Raise while a change waits for an upload."""
        self._staging.commits.sync()
        if not self._last.done:
            raise busy("a change of a router")
        for name in names:
            self._staging.resolve(name)

    # --- verbs

    def put(self, name: str, request: RouterRequest) -> Ticket:
        """Create or change a router, and create the topics it needs. Ends with the router, and whether it is new."""
        config = check_request(name, request)
        staging, table = self._staging, self.table
        self._sync(request.source, request.dest)
        router = table.by_name.get(name)
        limit = staging.limits.max_routers
        if router is None and limit and len(table.by_name) >= limit:
            raise server_full("max_routers", limit)
        source, dest = staging.topics.get(request.source), staging.topics.get(request.dest)
        self._check_shape(router, request, source, dest)
        if dest is None and not request.create_dest:
            raise topic_not_found(request.dest)
        moves = router is None or router.edge.source is not source or router.edge.dest is not dest
        if router is not None and not moves and router.config == config:
            return Ticket.of((router, False))
        self._check_copies(router, config, source, dest)
        missing = [name_of for name_of, topic in ((request.source, source), (request.dest, dest)) if topic is None]
        creates = [staging.new_topic(name_of, TopicConfig(), more=len(missing) - 1) for name_of in missing]
        ids = {create.name: create.topic_id for create in creates}
        entry = RouterPut(
            ids.get(request.source) or source.topic_id,  # type: ignore[union-attr]
            table.next_id if router is None or moves else router.router_id,
            name,
            ids.get(request.dest) or dest.topic_id,  # type: ignore[union-attr]
            config,
            self._start(source, request) if router is None or moves else router.cursor,
            staging.clock.now_ms(),
        )
        touched = {topic for topic in (source, dest) if topic is not None}
        if router is not None:
            touched |= {router.edge.source, router.edge.dest}
        if source is not None:
            touched |= set(upstream(source))

        def take_effect(_: Ticket) -> tuple[Router, bool]:
            for create in creates:
                apply.note(staging.state, staging.create(create))
            after = replay.put_router(staging.state, entry)
            assert after is not None
            self.due.add(after.edge)
            return after, router is None

        return self._stage(creates, touched, entry, take_effect)

    def drop(self, name: str) -> Ticket:
        """Delete a router; one that does not exist is no error. Ends with whether it existed."""
        check_router(name)
        self._sync()
        router = self.table.by_name.get(name)
        if router is None:
            return Ticket.of(False)
        entry = RouterDrop(router.edge.source.topic_id, router.router_id)

        def take_effect(_: Ticket) -> bool:
            replay.drop_router(self._staging.state, entry)
            return True

        return self._stage([], {router.edge.dest, *upstream(router.edge.source)}, entry, take_effect)

    def get(self, name: str) -> Router:
        router = self.table.by_name.get(name)
        if router is None:
            check_router(name)
            raise router_not_found(name)
        return router

    def names(self, around: str | None) -> NameIndex:
        """Return the names of all routers, or of those from and to a topic."""
        if around is None:
            return self.table.names
        topic = self._staging.topics.get(around)
        return NameIndex([] if topic is None else [router.name for router in self.table.around(topic)])

    # --- inside the verbs

    def _check_shape(
        self, router: Router | None, request: RouterRequest, source: Topic | None, dest: Topic | None
    ) -> None:
        """Raise if the destination would have two sources, or if the router closes a cycle without `allow_cycle`."""
        edge = None if dest is None else into(dest)
        if edge is not None and edge.source is not source and edge.routers != [router]:
            raise fan_in(edge.dest.name, edge.source.name)
        if source is not None and not request.allow_cycle:
            line = upstream(source, without=router)
            if dest in line:
                line = line[: line.index(dest) + 1]
                raise router_cycle([source.name, *(topic.name for topic in reversed(line))])

    def _check_copies(
        self, router: Router | None, config: RouterConfig, source: Topic | None, dest: Topic | None
    ) -> None:
        """Raise if one record could have too many copies. Only routers that share an edge multiply them."""
        table, limit = self.table, self._staging.limits.max_copies
        if limit and (len(table.by_id) > len(table.edges) or (dest is not None and into(dest) is not None)):
            most = max(limit, len(table.by_name) + (router is None))
            if copies_of_one(source, dest, config, without=router, most=most) > most:
                why = "because routers share source and destination; delete some of these, or raise TOPICS_MAX_COPIES"
                what = f"with this router one record could have more than {limit} copies, {why}"
                raise server_full("max_copies", limit, what)

    def _start(self, source: Topic | None, request: RouterRequest) -> int:
        """Return the cursor of a new router. Earlier losses of the source do not concern it."""
        if source is None:
            return 0
        retention.expire(source, self._staging.clock.now_ms())
        if request.from_ts is not None:
            return max(retention.expired_before(source, request.from_ts), source.earliest) - 1
        if request.from_seq is not None:
            return min(max(request.from_seq, source.earliest - 1), source.head)
        return source.head

    def _stage(
        self, creates: list[Create], touched: set[Topic], entry: RouterPut | RouterDrop, act: Callable[[Ticket], object]
    ) -> Ticket:
        """Stage a change behind marks that say how far the routers of all topics that it touches have come."""
        linked = [topic for topic in sorted(touched, key=lambda topic: topic.topic_id) if topic.links is not None]
        marks = [mark(topic.links, head=topic.head, out=True, holds=False) for topic in linked]
        self._last = ticket = self._staging.stage(None, [*creates, *marks, entry], act, also=list(touched))
        self._staging.commits.sync()
        return ticket
