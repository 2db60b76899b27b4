"""Watch sessions: what somebody watches and how far they have got, and the event stream that serves it.

A session outlives its connections. Its cursors are those of its lanes, moved when a frame is written; a client that
comes back with `Last-Event-ID` takes them back to what it has really processed, never forward. A session without a
stream is forgotten after `session_ttl_ms`.

Sessions and the subscriptions of WebSockets are charged to the memory budget by what they keep: so much a subscription,
and the node names and filters of the request, which its subscriptions share.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from sys import getsizeof
from typing import TYPE_CHECKING

from topics.engine.state.topic import Topic
from topics.errors import Code, TopicsError, invalid, topic_not_found
from topics.model.watch import (
    TopicOptions,
    View,
    ViewOptions,
    WatchedTopic,
    WatchRequest,
    check_watched,
    heartbeat_ms,
    is_pattern,
    make_view,
    match_of,
    with_match,
)
from topics.server.limits.budget import SESSIONS, MemoryBudget
from topics.server.push import cursors
from topics.server.push.pattern_waiters import Picking
from topics.server.push.sse import EventStream, error_frame, frame
from topics.server.push.subscription import Event, Lane, Rendered

if TYPE_CHECKING:
    from topics.server.access.caller import Caller
    from topics.server.app import TopicsApp

WID_BYTES = 16
# Measured with 1, 16 and 256 topics, and rounded up for what an open stream adds to each.
SESSION_BYTES = 1024
SUBSCRIPTION_BYTES = 512
PATTERN_BYTES = 512
NAME_BYTES = 64  # of a node's name in a set, beside the name


class Pattern:
    """Every topic whose name begins so, now and later, as far as the one who asked may read it."""

    __slots__ = ("caller", "prefix", "view")

    def __init__(self, prefix: str, view: View, caller: Caller) -> None:
        self.prefix = prefix
        self.view = view
        self.caller = caller

    def covers(self, name: str) -> bool:
        return name.startswith(self.prefix) and self.caller.may_use(name)


class Wanted:
    """What a request asked to watch, once it is known to be possible: lanes, and patterns for lanes to come."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}  # by topic
        self.patterns: dict[str, Pattern] = {}

    def answer(self) -> dict[str, WatchedTopic]:
        return {
            name: WatchedTopic(lane.seq, lane.topic.head, lane.topic.earliest, lane.topic.epoch)
            for name, lane in self.lanes.items()
        }

    def size_bytes(self) -> int:
        return _size_bytes(self.lanes.values(), self.patterns.values())


def _size_bytes(lanes: Iterable[Lane], patterns: Iterable[Pattern]) -> int:
    """Return what subscriptions and patterns keep in memory. What several of them share counts once."""
    views = [lane.view for lane in lanes]
    size = len(views) * SUBSCRIPTION_BYTES
    for pattern in patterns:
        views.append(pattern.view)
        size += PATTERN_BYTES
    # By identity: two requests that name the same nodes keep two sets of them.
    node_sets = {id(view.nodes): view.nodes for view in views if view.nodes is not None}
    filters = {id(view.match): view.match for view in views if view.match is not None}
    size += sum(getsizeof(match.text) for match in filters.values())
    for names in node_sets.values():
        size += sum(map(getsizeof, names)) + NAME_BYTES * len(names)
    return size


def resolve(
    app: TopicsApp, topics: dict[str, TopicOptions], options: ViewOptions, caller: Caller, *, lenient: bool
) -> Wanted:
    """Every error there can be, before anything is made. The caller was authorised for `topics` before.

    Looks at no more names than the request has, and for each pattern at no more than `max_watch_topics` beyond those
    that it names besides.
    """
    most = app.settings.max_watch_topics
    check_watched(topics, max_topics=most)
    wanted = Wanted()
    shared = make_view(options, max_limit=app.engine.limits.max_limit)
    for name, each in topics.items():
        view = with_match(shared, match_of(name, each))
        if is_pattern(name):
            pattern = wanted.patterns[name] = Pattern(name[:-1], view, caller)
            found = [one for one in _matching(app, pattern) if one not in topics and one not in wanted.lanes]
        else:
            found = [name] if app.engine.find(name) is not None else []
            if not found and not lenient:
                raise topic_not_found(name)
        for topic_name in found:
            try:
                topic = app.engine.expire_and_get(topic_name, touch=True)
            except TopicsError:  # its end was under way
                if lenient or is_pattern(name):
                    continue
                raise
            wanted.lanes[topic_name] = _new_lane(topic, view, each)
        if len(wanted.lanes) > most:
            raise invalid(f"topics stands for more than {most} topics, which is the limit", field="topics")
    return wanted


def _matching(app: TopicsApp, pattern: Pattern) -> Iterator[str]:
    """Names that the pattern covers, in order, as far as more than a session can have would not change anything."""
    names = app.engine.state.names.visible(pattern.caller.prefixes, prefix=pattern.prefix)
    return islice(names, 2 * app.settings.max_watch_topics + 1)


def _new_lane(topic: Topic, view: View, options: TopicOptions) -> Lane:
    if options.tail:
        return Lane(topic, view, seq=topic.head)
    return Lane(topic, view, seq=options.from_seq, epoch=options.epoch)


class Watched:
    """Lanes by key and the patterns that bring more of them: what a session has, and what a WebSocket has."""

    __slots__ = ("_budget", "_charged_bytes", "_next_number", "lanes", "patterns")

    def __init__(self, budget: MemoryBudget) -> None:
        self.lanes: dict[str, Lane] = {}
        self.patterns: dict[str, Pattern] = {}
        self._next_number = 0
        self._budget = budget
        self._charged_bytes = 0

    def charge(self) -> None:
        """Charge the budget with what is kept now, after subscriptions or patterns were added or removed."""
        self._charge(SESSION_BYTES + _size_bytes(self.lanes.values(), self.patterns.values()))

    def discharge(self) -> None:
        """Give everything back to the budget: the session or the connection is gone."""
        self._charge(0)

    def _charge(self, size_bytes: int) -> None:
        self._budget.charge(SESSIONS, size_bytes - self._charged_bytes)
        self._charged_bytes = size_bytes

    def add_picked(self, lane: Lane) -> None:
        """Add a lane that a pattern found. It shares everything with the pattern, so that nothing need be measured."""
        self.add(lane)
        self._charge(self._charged_bytes + SUBSCRIPTION_BYTES)

    def add(self, lane: Lane) -> None:
        lane.number = self._next_number
        self._next_number += 1
        self.lanes[lane.key] = lane

    def remove(self, lane: Lane) -> None:
        if self.lanes.get(lane.key) is lane:
            del self.lanes[lane.key]

    def pick(self, topic: Topic, pattern: Pattern | None = None) -> Lane | None:
        """A lane for a topic that has come up, if it has none and `pattern`, or else any pattern, wants it."""
        first = self.lanes.get(topic.name)
        if first is not None and first.topic is topic:
            return None
        if pattern is None:
            pattern = next((one for one in self.patterns.values() if one.covers(topic.name)), None)
        key = f"{topic.name}@{topic.epoch}"
        if pattern is None or key in self.lanes:
            return None
        lane = Lane(topic, pattern.view, seq=0, key=key)
        lane.picked = True
        return lane

    def prefixes(self) -> list[str]:
        return [pattern.prefix for pattern in self.patterns.values()]

    def cursor(self) -> bytes:
        """Where all lanes are, as an event id."""
        lanes = self.lanes
        if len(lanes) <= cursors.MAX_NAMED:
            return cursors.encode({key: lane.position for key, lane in lanes.items()})
        pairs: list[int] = []
        for lane in lanes.values():
            pairs += (lane.number, lane.position)
        return cursors.encode_numbered(pairs)

    def rewind(self, at: cursors.Position) -> None:
        """Back to what the client has processed. A lane it has never heard of begins anew; none moves forward."""
        for key, lane in self.lanes.items():
            seq = at.by_key.get(key) if at.by_key else at.by_number.get(lane.number)
            if seq is None and lane.picked:
                seq = lane.start
            if seq is not None and not lane.gone:
                lane.seq = min(lane.seq, seq)


class Session(Watched):
    """One `POST /v0/watch`."""

    __slots__ = ("caller", "heartbeat_ms", "idle_since_ns", "stream", "wid")

    def __init__(self, caller: Caller, budget: MemoryBudget, *, heartbeat_ms: int) -> None:
        super().__init__(budget)
        self.wid = "wid_" + secrets.token_urlsafe(WID_BYTES)
        self.caller = caller
        self.heartbeat_ms = heartbeat_ms
        self.stream: WatchStream | None = None
        self.idle_since_ns = 0


class Sessions:
    """All sessions by `wid`, and those without a stream by how long they have had none."""

    def __init__(self, app: TopicsApp) -> None:
        self._app = app
        self._all: dict[str, Session] = {}
        self._idle: OrderedDict[str, Session] = OrderedDict()  # the longest idle first
        self.picking = Picking()
        self._expiry: asyncio.TimerHandle | None = None  # set while a session is idle
        app.budget.reclaimers.append(self._clear_away)
        app.engine.state.created.append(self.picking.created)

    def __len__(self) -> int:
        return len(self._all)

    def create(
        self, request: WatchRequest, caller: Caller, *, lenient: bool
    ) -> tuple[Session, dict[str, WatchedTopic]]:
        self._clear_away()
        topics = request.topics
        if request.cursor:
            topics = self._resumed(topics, cursors.decode(request.cursor, field="cursor"))
        wanted = resolve(self._app, topics, request, caller, lenient=lenient)
        session = Session(caller, self._app.budget, heartbeat_ms=heartbeat_ms(request.heartbeat_ms))
        self._app.limits.check_session(len(self._all))
        self._app.budget.check(SESSION_BYTES + wanted.size_bytes())
        session.patterns = wanted.patterns
        for lane in wanted.lanes.values():
            session.add(lane)
        session.charge()
        self._all[session.wid] = session
        self.rest(session)
        return session, wanted.answer()

    def find(self, wid: str, caller: Caller) -> Session:
        """The session that this caller made; `not_found` once it has been forgotten."""
        if not _is_wid(wid):
            raise invalid("this is not the id of a watch session", field="wid")
        self._clear_away()
        session = self._all.get(wid)
        if session is None:
            raise TopicsError(Code.NOT_FOUND, "there is no such watch session (any more): make a new one")
        if session.caller is not caller:
            raise TopicsError(Code.UNAUTHORIZED, "the session belongs to another key")
        return session

    def rest(self, session: Session) -> None:
        """The session has no stream now."""
        session.idle_since_ns = self._app.clock.monotonic_ns()
        self._idle[session.wid] = session
        self._idle.move_to_end(session.wid)
        if self._expiry is None:
            self._expiry = self._app.call_later(self._app.settings.session_ttl_ms, self._expire)

    def wake(self, session: Session) -> None:
        self._idle.pop(session.wid, None)

    def _resumed(self, topics: dict[str, TopicOptions], at: cursors.Position) -> dict[str, TopicOptions]:
        """The same topics, those that the cursor knows beginning where it says."""
        if at.by_number:
            raise invalid("this cursor means something only to the session it came from", field="cursor")
        most = self._app.settings.max_watch_topics
        if len(at.by_key) > most:
            raise invalid(f"the cursor names {len(at.by_key)} topics; the limit is {most}", field="cursor")
        found = {}
        for key, seq in at.by_key.items():
            name, epoch = cursors.split_key(key)
            wanted = topics.get(name)
            if wanted is None and name in self._app.engine.topics:
                wanted = next((topics[one] for one in topics if _stands_for(one, name)), None)
            if wanted is not None:
                found[name] = TopicOptions(seq, False, wanted.filter, wanted.epoch if epoch is None else epoch)
        return topics | found

    def _expire(self) -> None:
        """Forget sessions whose time is over, and come back for the one that is next."""
        self._expiry = None
        self._clear_away()
        if self._idle:
            session = next(iter(self._idle.values()))
            idle_ms = (self._app.clock.monotonic_ns() - session.idle_since_ns) // 1_000_000
            self._expiry = self._app.call_later(self._app.settings.session_ttl_ms - idle_ms + 1, self._expire)

    def _clear_away(self) -> None:
        oldest_ns = self._app.clock.monotonic_ns() - self._app.settings.session_ttl_ms * 1_000_000
        while len(self._idle) > 0:
            wid, session = next(iter(self._idle.items()))
            if session.idle_since_ns >= oldest_ns:
                return
            del self._idle[wid], self._all[wid]
            session.discharge()


def _stands_for(pattern: str, name: str) -> bool:
    return is_pattern(pattern) and name.startswith(pattern[:-1])


def _is_wid(wid: str) -> bool:
    return wid.startswith("wid_") and len(wid) <= 64 and wid[4:].replace("-", "").replace("_", "").isalnum()


class WatchStream(EventStream):
    """One connection of a session; the session has at most one."""

    __slots__ = ("_position", "_session", "_single")

    reports_too_old = True

    def __init__(
        self, app: TopicsApp, session: Session, *, position: cursors.Position | None, release: Callable[[], None]
    ) -> None:
        super().__init__(app, release=release, heartbeat_ms=session.heartbeat_ms)
        self._session = session
        self._position = position
        self._single = False

    # --- the connection's life

    def begin(self) -> None:
        session = self._session
        before, session.stream = session.stream, self
        if before is not None:
            before.hand_over()
        self.app.sessions.wake(session)
        if self._position is not None:
            session.rewind(self._position)
        self._note_lanes()
        for lane in list(session.lanes.values()):
            self.app.hub.attach(lane, self)
        if session.patterns:
            self.app.sessions.picking.put(self, session.prefixes(), self._pick)
            self._pick_existing()

    def resume(self, full_ms: float) -> None:
        stale = full_ms > self.app.settings.buffer_grace_ms
        for lane in list(self._session.lanes.values()):
            if lane.group is None:
                lane.stale = stale
                self.app.hub.resume(lane)

    def ended(self) -> None:
        if self._session.stream is self:
            self._let_go()
            self._session.stream = None
            self.app.sessions.rest(self._session)

    def finish(self) -> None:
        """What the client is sent from here on is nothing: the cursors stay where they are."""
        if self.open and self._session.stream is self:
            self._let_go()
        super().finish()

    def hand_over(self) -> None:
        """Another connection has taken the session: everything written here still arrives, nothing more is."""
        self._let_go()
        self.fail(409, "another connection has taken over this session")

    def _let_go(self) -> None:
        self.app.sessions.picking.remove(self)
        for lane in self._session.lanes.values():
            if lane.watcher is self:
                self.app.hub.detach(lane)

    def _note_lanes(self) -> None:
        """Whether every id is that of the one topic watched, and can be shared with others who watch it alone."""
        lanes = self._session.lanes
        self._single = len(lanes) == 1 and all(lane.key == lane.topic.name for lane in lanes.values())

    def _pick_existing(self) -> None:
        """Pick topics that were created while the session had no stream, as many as there is room for.

        Looks at the session's own topics, at those it picks, and at one more, for each pattern.
        """
        topics = self.app.engine.topics
        for pattern in self._session.patterns.values():
            for name in self.app.engine.state.names.visible(pattern.caller.prefixes, prefix=pattern.prefix):
                if not self._pick(topics[name], pattern):
                    return

    def _pick(self, topic: Topic, pattern: Pattern | None = None) -> bool:
        """Watch a topic that a pattern wants; False if there is no room for it, of which the client is told."""
        session = self._session
        lane = session.pick(topic, pattern)
        if lane is None:
            return True
        most = self.app.settings.max_watch_topics
        if len(session.lanes) >= most:
            self.send(error_frame(400, f"more than {most} topics match; this one is not watched", topics=[topic.name]))
            return False
        session.add_picked(lane)
        self._note_lanes()
        self.app.hub.attach(lane, self)
        return True

    # --- what the loop has for the client

    def push(self, lane: Lane, rendered: Rendered) -> None:
        if self._single:
            self.send(rendered.single())
        else:
            self.send(frame(Event.RECORD.event, rendered.payload, id=self._session.cursor()))

    def tell(self, lane: Lane, event: Event, data: bytes) -> None:
        self.send(frame(event.event, data, id=self._session.cursor()))

    def lost(self, lane: Lane) -> None:
        """A topic that was named stays known as gone; one that a pattern found makes room for its next life."""
        if self._session.patterns and any(one.covers(lane.topic.name) for one in self._session.patterns.values()):
            self._session.remove(lane)
            self._session.charge()
            self._note_lanes()

    def advise(self, names: list[str], retry_after_ms: int) -> None:
        self.send(error_frame(429, "watch throttled under CPU pressure", retry_after_ms=retry_after_ms, topics=names))


def lanes_of(watched: Watched, name: str) -> Iterator[Lane]:
    """Every lane of a topic by that name, whatever its life."""
    return (lane for lane in list(watched.lanes.values()) if lane.topic.name == name)
