"""Routers from the log and the snapshot. See `forward` for why this ends where the live server was.

While entries are replayed, routers move only when something asks for it: a `Mark` or a `Trim` that says where they
were, a direct write that begins further on than its topic's head, a record that is about to be evicted. At the end
they all go as far as they can. Those on a cycle do not even then: each of their steps is in the log, and they take the
next one when the server runs.

An ephemeral topic has no records in a replay, so nothing is copied into it or out of it. The log has the copies that
were made of its records, and a `Mark` says where the routers around it stood. At the end, what its routers had not
forwarded is lost with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec
from msgspec import Struct

from topics.engine import retention
from topics.engine.routers import copy
from topics.engine.routers.graph import Feed, Links, Router, Table
from topics.engine.state import snapshot_parts
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.write import apply
from topics.model.router import RouterConfig
from topics.storage.log.entry import Append
from topics.storage.log.router_entry import Copies, Mark, Resume, RouterDrop, RouterPut, Trim
from topics.storage.segments.cold import waiting
from topics.storage.segments.segment import Damaged

BASE_DEPTH = 1000
DEPTH_PER_ROUTER = 16  # nested calls: 7 on the way down a chain and one on the way up, and as many to spare

T = TypeVar("T")


class ReplayTable(Table):
    """The table of a state: it knows what to do where no live engine has taken over yet."""

    def put(
        self, name: str, *, router_id: int, source: Topic, dest: Topic, config: RouterConfig, cursor: int
    ) -> Router:
        router = super().put(name, router_id=router_id, source=source, dest=dest, config=config, cursor=cursor)
        if self.live is None:
            sys.setrecursionlimit(max(sys.getrecursionlimit(), BASE_DEPTH + DEPTH_PER_ROUTER * len(self.by_id)))
        return router

    def replay_losing(self, links: Links, upto: int) -> None:
        """Live, all that is lost now had been forwarded, unless a mark said that it had not."""
        if self.pinned is links.topic:
            return
        for feed in list(links.feeds.values()):
            if not feed.busy and derives(feed):
                targets = {router.router_id: upto - 1 for router in feed.routers if router.cursor < upto - 1}
                if targets:
                    bring(self.state, feed, targets)

    def fill(self, topic: Topic, head: int) -> None:
        fill(self.state, topic, head)


def table_of(state: State) -> Table:
    if state.routers is None:
        state.routers = ReplayTable(state)
    assert isinstance(state.routers, ReplayTable)
    return state.routers


# --- moving


def derives(feed: Feed) -> bool:
    """Whether a replay makes the copies of the feed again. If not, they are in the log, or lost with their topic.

    A source that has left `ephemeral` and waits for its snapshot has records that the log lacks.
    """
    source, dest = feed.source, feed.dest
    return not (feed.cyclic or _is_ephemeral(source) or _is_ephemeral(dest) or source.needs_snapshot)


def _is_ephemeral(topic: Topic) -> bool:
    return topic.config.durability == "ephemeral"


def bring(
    state: State, feed: Feed, targets: dict[int, int], *, max_head: int | None = None, obeys_caps: bool = False
) -> None:
    """Brings routers of a feed to the cursors in `targets`; copies end where the destination's head is `max_head`.

    `obeys_caps` lets a full destination stop them; otherwise it is known that it did not.
    """
    if feed.cyclic:
        return
    if not derives(feed):
        for router in feed.routers:
            router.cursor = max(router.cursor, targets.get(router.router_id, 0))
        return
    feed.busy += 1
    try:
        # Bound: each round moves a cursor towards its target, drops a target, or loses a damaged range of the source.
        while (turn := feed.next(targets)) is not None:
            router, upto = turn
            _grow(state, feed.source, router.cursor)
            upto = min(upto, feed.source.head)
            if upto <= router.cursor:
                targets = {key: value for key, value in targets.items() if key != router.router_id}
            elif not _advance(state, router, upto, max_head, obeys_caps):
                return  # full: no router overtakes the one whose turn it is, even if its own copies are smaller
    finally:
        feed.busy -= 1


def _grow(state: State, source: Topic, cursor: int) -> None:
    """Have records copied into `source` until one comes behind `cursor`, if there is none yet.

    One at a time: the next may push out what a router out of the source has to see first. A router that passed losses
    which the source has not come to yet stands further on than the source's head.
    """
    before = -1
    while before < source.head <= cursor:
        before = source.head
        fill(state, source, before + 1)


def fill(state: State, topic: Topic, head: int) -> None:
    """Has a topic's feed make copies until the topic reaches `head`, if it can."""
    feed = None if topic.links is None else topic.links.fed
    if feed is None or feed.busy or not derives(feed):
        return
    while topic.head < head:
        before = topic.head, [router.cursor for router in feed.routers]
        turn = feed.next()
        if turn is None:
            _grow(state, feed.source, min(router.cursor for router in feed.routers))
            turn = feed.next()
            if turn is None:
                return
        router, upto = turn
        feed.busy += 1
        try:
            _advance(state, router, upto, head, False, stops=True)
        finally:
            feed.busy -= 1
        if before == (topic.head, [router.cursor for router in feed.routers]):
            return


def _advance(
    state: State, router: Router, upto: int, max_head: int | None, obeys_caps: bool, *, stops: bool = False
) -> bool:
    """One batch. False if the destination takes no more. `stops` ends right behind the copy that reaches `max_head`."""
    feed, source, dest = router.feed, router.feed.source, router.feed.dest
    upto = min(upto, source.head)
    start = router.cursor + 1
    if (run := source.losses.covering(start)) is not None:
        last = min(run[1], upto)
        _skip(dest, last - start + 1, max_head)
        router.cursor = last
        return True
    lost = source.losses.next_from(start)
    upto = upto if lost is None else min(upto, lost - 1)
    if (passed := copy.skippable(source, router, upto)) > router.cursor:
        router.cursor = passed
        return True
    gathered = present(source, lambda: copy.gather(source, router.config.filter, router.cursor, upto))
    if gathered is None:
        return True  # something turned out to be lost: look again
    copier = copy.Copier(table_of(state), feed, router)
    entries = present(dest, lambda: list(copier.entries(gathered, dest.head + 1)))
    if entries is None:
        return True  # some of the destination turned out to be lost: look again
    for entry, piece in entries:
        fits = len(entry.sizes)
        if obeys_caps:
            fits = room(dest, entry.sizes)
        if max_head is not None:
            fits = min(fits, max_head - dest.head)
        if fits < len(entry.sizes):
            if fits > 0:
                _land(state, copier, *copier.part(piece, 0, fits, dest.head + 1))
            if max_head is None or stops:
                router.cursor = max(piece.seqs[max(fits, 0)] - 1, router.cursor)
                return stops
            continue  # it is known that no more copies were made: these had been there before
        _land(state, copier, entry, piece)
    router.cursor = gathered.upto
    return True


def _land(state: State, copier: copy.Copier, entry: Append, piece: copy.Piece) -> None:
    """Take the copies up into the destination, but for those that are too large for it: these are lost."""
    dest = state.by_id[entry.topic_id]
    sizes, at = entry.sizes, 0
    while at < len(sizes):
        if fits := copy.storable(dest, sizes[at:]):
            whole = fits == len(sizes)
            part = (entry, piece) if whole else copier.part(piece, at, at + fits, dest.head + 1)
            apply.append(state, dest, part[0])
            copier.copied(part[1])
            at += fits
        else:
            lost = copy.too_large(dest, sizes[at:])
            retention.lose_next(dest, lost)
            at += lost


def _skip(dest: Topic, n: int, max_head: int | None) -> None:
    upto = dest.head + n if max_head is None else min(dest.head + n, max_head)
    retention.skip_to(dest, upto + 1, "source_trim")


def room(dest: Topic, sizes: Sequence[int]) -> int:
    """How many of these records, from the first on, the destination takes. Only one that rejects ever takes fewer."""
    config = dest.config
    if config.discard != "reject":
        return len(sizes)
    fits = len(sizes)
    spare_records, spare_bytes = (0, 0) if config.archive is None else retention.spare(dest)
    if config.cap_records:
        fits = min(fits, max(config.cap_records - dest.count - dest.staged_count + spare_records, 0))
    if config.cap_bytes:
        left = config.cap_bytes - dest.bytes - dest.staged_bytes + spare_bytes
        for at, size in enumerate(sizes[:fits]):
            left -= size
            if left < 0:
                return at
    return fits


def present(topic: Topic, look: Callable[[], T]) -> T | None:
    """What `look` finds, waiting for the disk where it must; None if that showed some of it to be lost."""
    try:
        return waiting(look)
    except Damaged as damage:
        retention.lose_range(topic, damage)
        return None


def loses_copies(state: State) -> bool:
    """Whether a destination that is kept may lack records that an ephemeral source has lost."""
    return any(
        _is_ephemeral(feed.source) and not _is_ephemeral(feed.dest) and not feed.cyclic
        for feed in table_of(state).feeds()
    )


def _pass_lost(feed: Feed) -> None:
    """Bring the routers of a feed with an ephemeral topic past everything that the topic has lost with the process.

    A destination that is kept gets a tombstone for what may not have been forwarded to it.
    """
    source, dest = feed.source, feed.dest
    for router in feed.routers:
        if not _is_ephemeral(dest) and router.cursor < source.head:
            _skip(dest, source.losses.within(router.cursor + 1, source.head)[0], None)
        router.cursor = source.head


class Recovering:
    """Routers from the beginning of a recovery to its end."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._table = table_of(state)
        self._live, self._table.live = self._table.live, None

    def catch_up(self) -> None:
        """The log has ended: all routers go as far as they can."""
        table = self._table
        table.pinned = None
        # Bound: each round but the last moves a cursor or a head, and cursors end at the heads of their sources.
        while True:
            before = [(router.cursor, router.feed.dest.head) for router in table.by_id.values()]
            for feed in filter(derives, table.feeds()):
                targets = {router.router_id: feed.source.head for router in feed.routers}
                bring(self._state, feed, targets, obeys_caps=True)
            if before == [(router.cursor, router.feed.dest.head) for router in table.by_id.values()]:
                return

    def end(self) -> None:
        """What was found lost after the end of the log is lost for routers as well; then the engine takes over."""
        for router in self._table.by_id.values():
            router.cursor = min(router.cursor, router.feed.source.head)  # after a restore, a source may begin anew
        for feed in self._table.feeds():
            if not feed.cyclic and (_is_ephemeral(feed.source) or _is_ephemeral(feed.dest)):
                _pass_lost(feed)
        self.catch_up()
        self._table.live = self._live


@contextmanager
def recovering(state: State) -> Iterator[Recovering]:
    """Replay routers within this context. It lets calls nest as deep as the longest possible chain of routers.

    A router that moves can make the topics before it catch up first, and can make the routers behind it move before its
    copies evict what they have not read. Both nest once per router of a chain; `ReplayTable.put` raises the limit as
    routers appear. Only Python functions call each other on the way, so the depth takes no space on the C stack.
    """
    limit = sys.getrecursionlimit()
    try:
        yield Recovering(state)
    finally:
        sys.setrecursionlimit(limit)


# --- entries


def put_router(state: State, entry: RouterPut) -> Router | None:
    """Takes effect, live and replayed."""
    source, dest = state.by_id.get(entry.topic_id), state.by_id.get(entry.dest_id)
    if source is None or dest is None:
        return None
    table = table_of(state)
    router = table.put(
        entry.name, router_id=entry.router_id, source=source, dest=dest, config=entry.config, cursor=entry.cursor
    )
    router.feed.floor_ms = max(router.feed.floor_ms, entry.at_ms)
    return router


@apply.replays(RouterPut)
def _replay_put(state: State, entry: RouterPut) -> None:
    router = table_of(state).by_id.get(entry.router_id)
    if router is not None and router.cursor < entry.cursor:
        bring(state, router.feed, {entry.router_id: entry.cursor})
    put_router(state, entry)


def drop_router(state: State, entry: RouterDrop) -> None:
    table = table_of(state)
    if (router := table.by_id.get(entry.router_id)) is not None:
        table.remove(router)


apply.replays(RouterDrop)(drop_router)


@apply.replays(Mark)
def _replay_mark(state: State, entry: Mark) -> None:
    topic = state.by_id.get(entry.topic_id)
    if topic is None or topic.links is None:
        return
    links: Links = topic.links
    others = dict(entry.others)
    if links.fed is not None:
        into = {router.router_id: others.get(router.router_id, router.cursor) for router in links.fed.routers}
        bring(state, links.fed, into, max_head=entry.head)
        if topic.head < entry.head:
            expected = not entry.holds or _is_ephemeral(topic)
            retention.skip_to(topic, entry.head + 1, "restart" if expected else "corrupt")
    if entry.upto >= 0:
        for feed in list(links.feeds.values()):
            bring(state, feed, {router.router_id: others.get(router.router_id, entry.upto) for router in feed.routers})
        if entry.holds:
            table_of(state).pinned = topic


def trim(state: State, entry: Trim) -> None:
    """Takes effect, live and replayed."""
    dest = state.by_id.get(entry.topic_id)
    if dest is None:
        return
    router = table_of(state).by_id.get(entry.router_id)
    if router is not None:
        router.cursor = max(router.cursor, entry.upto)
    if dest.head + 1 == entry.first:
        if entry.reason == "cap":
            retention.lose_next(dest, entry.lost)
        else:
            retention.skip_to(dest, entry.first + entry.lost, entry.reason)


@apply.replays(Trim)
def _replay_trim(state: State, entry: Trim) -> None:
    dest = state.by_id.get(entry.topic_id)
    if dest is not None and entry.first > dest.head + 1 and not _is_ephemeral(dest):
        # The mark before this entry was damaged: the copies before the loss are made now, if they can be.
        fill(state, dest, entry.first - 1)
        retention.skip_to(dest, entry.first, "corrupt")
    trim(state, entry)


def copies(state: State, entry: Copies) -> None:
    """Takes effect, live and replayed."""
    dest, table = state.by_id.get(entry.topic_id), table_of(state)
    if dest is not None and entry.sizes:
        if entry.first <= dest.head:
            return
        retention.skip_to(dest, entry.first, "corrupt")  # what came before it was damaged
        apply.append(state, dest, entry.append())
    if (router := table.by_id.get(entry.router_id)) is not None:
        router.cursor = max(router.cursor, entry.upto)
        copy.count_copies(table, router, len(entry.sizes), entry.upto)


@apply.replays(Copies)
def _replay_copies(state: State, entry: Copies) -> None:
    copies(state, entry)
    if (router := table_of(state).by_id.get(entry.router_id)) is not None:
        router.present = None


def resume(state: State, entry: Resume) -> None:
    """Takes effect, live and replayed."""
    dest = state.by_id.get(entry.topic_id)
    if dest is None or dest.links is None or dest.links.fed is None:
        return
    feed: Feed = dest.links.fed
    feed.floor_ms = max(feed.floor_ms, entry.at_ms)
    if dest.config.ttl_ms:
        retention.expire(dest, entry.at_ms)


apply.replays(Resume)(resume)


# --- snapshot


class SavedRouter(Struct, array_like=True):
    router_id: int
    name: str
    source_id: int
    dest_id: int
    config: RouterConfig
    cursor: int
    forwarded_total: int
    floor_ms: int


class Saved(Struct, array_like=True):
    next_id: int
    routers: list[SavedRouter]
    stamps: dict[int, dict[str, int]]


def _save(state: State) -> Saved | None:
    table = table_of(state)
    if table.next_id == 1:
        return None
    routers = [
        SavedRouter(
            router.router_id, name, router.feed.source.topic_id, router.feed.dest.topic_id, router.config,
            router.cursor, router.forwarded_total, router.feed.floor_ms,
        )
        for name, router in table.by_name.items()
    ]  # fmt: skip
    return Saved(table.next_id, sorted(routers, key=lambda router: router.router_id), table.stamps)


def _load(state: State, raw: msgspec.Raw) -> None:
    table = table_of(state)
    saved = msgspec.msgpack.decode(raw, type=Saved)
    for one in saved.routers:
        source, dest = state.by_id[one.source_id], state.by_id[one.dest_id]
        router = table.put(
            one.name, router_id=one.router_id, source=source, dest=dest, config=one.config, cursor=one.cursor
        )
        router.forwarded_total = one.forwarded_total
        router.feed.floor_ms = one.floor_ms
    table.next_id = max(table.next_id, saved.next_id)
    table.stamps = saved.stamps


snapshot_parts.STATE_PARTS.append(snapshot_parts.StatePart("routers", _save, _load))
