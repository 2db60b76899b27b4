"""Steps of routers from entries, live and in a replay, and the replay of routers. See `copy` for why this ends where
the live server was.

During a replay, routers move only when an entry requires it: a `Mark` or a `Trim` that says where they were, a direct
write that begins above the head of its topic, a change of a router, a record that is about to be deleted or evicted. At
the end all routers go as far as full topics let them, except those on a cycle: each of their steps is in the log, and
they take the next one when the server runs.

An ephemeral topic has no records in a replay, so nothing is copied into it or out of it. The log has the copies of its
records, and a `Mark` says where the routers around it were. At the end, records that its routers had not forwarded are
lost with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from topics.engine import past_damage, retention
from topics.engine.routers import copy
from topics.engine.routers.graph import Edge, Links, Router, into, out_of, table_of, upstream
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.write import apply
from topics.nesting import allow_depth
from topics.storage.log.entry import Append
from topics.storage.log.router_entry import Copies, Mark, Resume, RouterDrop, RouterPut, Trim

BASE_DEPTH = 1000
DEPTH_PER_ROUTER = 16  # nested calls: 7 on the way down a chain and one on the way up, and as many to spare

NO_END = 1 << 62  # no cursor and no head reaches it
STAYS = -1  # a target that every cursor has reached

# --- moving


def derives(edge: Edge) -> bool:
    """Return whether a replay makes the copies of the edge. If not, they are in the log, or lost with their topic.

    A source that has left `ephemeral` and waits for its snapshot has records that the log lacks.
    """
    source, dest = edge.source, edge.dest
    return not (edge.cyclic or _is_ephemeral(source) or _is_ephemeral(dest) or source.needs_snapshot)


def _is_ephemeral(topic: Topic) -> bool:
    return topic.config.durability == "ephemeral"


def bring(
    state: State, edge: Edge, upto: int, targets: Mapping[int, int] | None = None, *, max_head: int = NO_END
) -> None:
    """Move routers of an edge to `upto`, or by id to the cursors in `targets`.

    Copying ends when the head of the destination is `max_head`. Routers that go on to `NO_END` end there, too.
    """
    targets = targets or {}
    if edge.cyclic or edge.moving:
        return
    if not derives(edge):
        for router in edge.routers:
            router.cursor = max(router.cursor, targets.get(router.router_id, upto))
        return
    # A router that moves can make the topics before it catch up first, and can make the routers behind it move before
    # its copies evict what they have not read. Both nest once per router of a chain. Only Python functions call each
    # other on the way, so the depth takes no space on the C stack.
    allow_depth(BASE_DEPTH + DEPTH_PER_ROUTER * len(table_of(state).by_id))
    edge.moving = True
    try:
        # Bound: each round moves a cursor towards its target, drops a target, or loses a damaged range of the source.
        while (turn := edge.next(upto, targets)) is not None:
            if upto == NO_END and edge.dest.head >= max_head:
                return
            (router, end), source = turn, edge.source
            # Copy records into the source until one lies behind the cursor, if there is none yet. One at a time: the
            # next may evict what a router out of the source has to forward first. A router that passed losses which
            # the source has not reached yet is above the head of the source.
            before = -1
            while before < source.head <= router.cursor:
                before = source.head
                fill(state, source, before + 1)
            end = min(end, source.head)
            if end <= router.cursor:
                targets = {**targets, router.router_id: STAYS}
            elif not _advance(state, router, end, max_head, stops=upto == NO_END):
                return  # full: no other router may overtake, even if its copies are smaller
    finally:
        edge.moving = False


def fill(state: State, topic: Topic, head: int) -> None:
    """Copy records into a topic until it reaches `head`, if its edge can."""
    edge = into(topic)
    if edge is not None and derives(edge):
        bring(state, edge, NO_END, max_head=head)


def _advance(state: State, router: Router, upto: int, max_head: int, *, stops: bool) -> bool:
    """Copy one batch. Return False if the destination is full. `stops` ends right after the copy at `max_head`."""
    source, dest = router.edge.source, router.edge.dest
    if router.staged_cursor:
        _skip_owed(router, max_head)
        return True
    upto, passed = copy.next_part(router, upto)
    if passed:
        _skip(dest, upto - router.cursor, max_head)
    if passed is not None:
        router.cursor = upto
        return True
    gathered = past_damage.present(source, lambda: copy.gather(source, router.config.filter, router.cursor, upto))
    if gathered is None:
        return True  # records turned out to be lost: try again
    copier, (pieces, end) = copy.Copier(table_of(state), router), gathered
    made = past_damage.present(dest, lambda: copier.entries(pieces, dest.head + 1))
    if made is None:
        return True  # records of the destination turned out to be lost: try again
    for entry, piece in made:
        router.cursor = max(router.cursor, piece.seqs[0] - 1)
        fits = min(_keeps(state, dest, entry), max_head - dest.head)
        if dest.head >= max_head and not stops:
            break  # no more copies were made: these had been there before
        if fits <= 0:
            return False
        if not copier.land(entry, piece, fits):
            return True  # the rest has to be made again
    router.cursor = end
    return True


def _keeps(state: State, dest: Topic, entry: Append) -> int:
    """Return how many of the copies may land so that none is evicted from `dest` before it was forwarded further.

    Within the log, it is known that they landed. After its end, the routers out of `dest` go first, as far as they can.
    If that is not enough, the live server decides what they give up, because only its decisions are logged.
    """
    before_stops = table_of(state).before_stops
    if before_stops is None:
        return len(entry.sizes)
    fits = copy.room(dest, entry.sizes, copy.used(dest))
    if dest not in before_stops:
        return fits  # none of the routers further on stops
    behind = [edge for edge in out_of(dest) if not _is_ephemeral(edge.dest)]
    has_asked = False
    # Bound: each round but one halves `fits`.
    while fits > 0:
        upto = copy.reach(dest, entry, fits)
        if upto <= dest.earliest or all(router.cursor >= upto - 1 for edge in behind for router in edge.routers):
            break
        if has_asked:
            fits //= 2
            continue
        has_asked = True
        for edge in filter(derives, behind):
            bring(state, edge, dest.head)
    return fits


def _skip_owed(router: Router, max_head: int = NO_END) -> None:
    """Give seqs to the records that the router gave up."""
    _skip(router.edge.dest, router.owed, max_head)
    router.cursor = max(router.cursor, router.staged_cursor)
    router.owed = router.staged_cursor = 0


def _skip(dest: Topic, n: int, max_head: int = NO_END) -> None:
    retention.skip_to(dest, min(dest.head + n, max_head) + 1, "source_trim")


class Recovering:
    """Moves routers as a log requires, within `limit_restored`. Hooks are called before a topic changes."""

    def __init__(self, state: State) -> None:
        self.is_replaying = True  # at a standby, only while entries are replayed: reads may expire records in between
        self._state = state
        self._table = table_of(state)
        self._live, self._table.hooks = self._table.hooks, self

    def losing(self, links: Links, upto: int) -> bool | None:
        """Forward records below `upto` before they are lost, as the live server did.

        After a mark the live server gave them up. Their seqs in the destination follow from a `Trim` behind the entry
        that takes them; if the log ends before it, no seq after them was given out.

        Return False if the records must not be lost: routers would have to move for a read of a standby.
        """
        if not self.is_replaying:
            return all(router.cursor >= upto - 1 for router in links.routers())
        if self._table.pinned is links.topic:
            for router in links.routers():
                if router.reached < upto - 1 and not _is_ephemeral(router.edge.dest):
                    router.owed += copy.count_lost(router, min(upto - 1, links.topic.head))
                    router.staged_cursor = upto - 1
            return None
        for edge in list(links.outgoing.values()):
            if derives(edge):
                bring(self._state, edge, upto - 1)
        return None

    def deleting(self, links: Links) -> None:
        """Forward records before they are deleted. Live, the delete came later, or had a mark."""
        if self._table.pinned is not links.topic:
            self.losing(links, links.topic.head + 1)

    def fill(self, topic: Topic, head: int) -> None:
        """Forward records to the topic until its head is `head`."""
        fill(self._state, topic, head)

    def loses_copies(self) -> bool:
        """Return whether a durable destination may lack records that an ephemeral source has lost."""
        edges = [edge for edge in self._table.edges.values() if not edge.cyclic]
        return any(_is_ephemeral(edge.source) and not _is_ephemeral(edge.dest) for edge in edges)

    def catch_up(self) -> bool:
        """Let all routers go as far as they can, after the last entry of the log. Return whether some gave up records.

        The log does not have these losses: only a snapshot keeps them.
        """
        table = self._table
        table.pinned = None
        owing = [router for router in table.by_id.values() if router.staged_cursor]
        for router in owing:
            _skip_owed(router)
        stops = [edge for edge in table.edges.values() if edge.cyclic or edge.dest.config.discard == "reject"]
        table.before_stops = {topic for edge in stops for topic in upstream(edge.source)}
        # Bound: each round but the last moves a cursor or a head, and cursors end at the heads of their sources.
        while True:
            before = [(router.cursor, router.edge.dest.head) for router in table.by_id.values()]
            for edge in filter(derives, table.edges.values()):
                bring(self._state, edge, edge.source.head)
            if before == [(router.cursor, router.edge.dest.head) for router in table.by_id.values()]:
                break
        table.before_stops = None
        return bool(owing)

    def end(self) -> None:
        """Let routers pass losses that were found after the end of the log. Then the engine takes over."""
        for router in self._table.by_id.values():
            router.cursor = min(router.cursor, router.edge.source.head)  # after a restore, the source may be shorter
        for edge in self._table.edges.values():
            source, dest = edge.source, edge.dest
            if edge.cyclic or not (_is_ephemeral(source) or _is_ephemeral(dest)):
                continue
            for router in edge.routers:  # pass everything that an ephemeral topic has lost with the process
                if not _is_ephemeral(dest) and router.cursor < source.head:
                    _skip(dest, source.losses.within(router.cursor + 1, source.head)[0])
                router.cursor = source.head
        self.catch_up()
        self._table.hooks = self._live or self

    def resume(self) -> None:
        """Be called about changes from now on: an engine that was made since has set its own hooks."""
        self._table.hooks = self


# --- entries


def put_router(state: State, entry: RouterPut) -> Router | None:
    source, dest = state.by_id.get(entry.topic_id), state.by_id.get(entry.dest_id)
    if source is None or dest is None:
        return None
    table = table_of(state)
    was = table.by_id.get(entry.router_id)
    if was is not None and was.cursor < entry.cursor:  # in a replay
        bring(state, was.edge, STAYS, {entry.router_id: entry.cursor})
    router = table.put(
        entry.name, router_id=entry.router_id, source=source, dest=dest, config=entry.config, cursor=entry.cursor
    )
    router.edge.floor_ms = max(router.edge.floor_ms, entry.at_ms)
    return router


def drop_router(state: State, entry: RouterDrop) -> None:
    table = table_of(state)
    if (router := table.by_id.get(entry.router_id)) is not None:
        table.remove(router)


def replay_mark(state: State, entry: Mark) -> None:
    topic = state.by_id.get(entry.topic_id)
    if topic is None or topic.links is None:
        return
    others = dict(entry.others)
    if (edge := into(topic)) is not None:
        bring(state, edge, STAYS, others, max_head=entry.head)
        if topic.head < entry.head:
            expected = not entry.holds or _is_ephemeral(topic)
            retention.skip_to(topic, entry.head + 1, "restart" if expected else "corrupt")
    if entry.upto >= 0:
        for edge in out_of(topic):
            bring(state, edge, entry.upto, others)
        if entry.holds:
            table_of(state).pinned = topic


def trim(state: State, entry: Trim) -> None:
    """Let a router give up records, live and in a replay."""
    dest = state.by_id.get(entry.topic_id)
    if dest is None:
        return
    if entry.first > dest.head + 1 and not _is_ephemeral(dest):
        # The mark before this entry was damaged: make the copies before the loss now, if possible.
        fill(state, dest, entry.first - 1)
        retention.skip_to(dest, entry.first, "corrupt")
    router = table_of(state).by_id.get(entry.router_id)
    if router is not None:
        router.cursor = max(router.cursor, entry.upto)
        router.owed = max(router.owed - entry.lost, 0)
        if router.cursor >= router.staged_cursor:
            router.owed = router.staged_cursor = 0
    if dest.head + 1 == entry.first:
        if entry.reason == "cap":
            retention.lose_next(dest, entry.lost)
        else:
            retention.skip_to(dest, entry.first + entry.lost, entry.reason)


def copies(state: State, entry: Copies) -> None:
    """Apply a logged step of a router, live and in a replay."""
    dest, table = state.by_id.get(entry.topic_id), table_of(state)
    if dest is not None and entry.sizes:
        if entry.first <= dest.head:
            return
        retention.skip_to(dest, entry.first, "corrupt")  # the entries before it were damaged
        apply.append(state, dest, entry.append())
    if (router := table.by_id.get(entry.router_id)) is not None:
        router.cursor = max(router.cursor, entry.upto)
        copy.count_copies(table, router, len(entry.sizes), entry.upto)


def replay_copies(state: State, entry: Copies) -> None:
    copies(state, entry)
    if (router := table_of(state).by_id.get(entry.router_id)) is not None:
        router.present = None


def resume(state: State, entry: Resume) -> None:
    """Let a full destination take copies again, live and in a replay."""
    dest = state.by_id.get(entry.topic_id)
    edge = None if dest is None else into(dest)
    if dest is None or edge is None:
        return
    edge.floor_ms = max(edge.floor_ms, entry.at_ms)
    retention.expire(dest, entry.at_ms)
