"""Watch sessions: what a client watches and how far it has got, and the event stream that serves a session.

A session outlives its connections. A client that reconnects with `Last-Event-ID` moves its positions back to what it
has really processed, never forward. A session without a stream is removed after `session_ttl_ms`.
"""

import secrets
from collections import OrderedDict

from topics.engine.state.topic import Topic
from topics.errors import Code, TopicsError, invalid
from topics.model.topic import clamp
from topics.model.watch import HEARTBEAT_MS_RANGE, TopicOptions, WatchedTopic, WatchRequest, is_pattern
from topics.model.wire import check_u64
from topics.server.access.caller import Caller, Slot
from topics.server.limits.budget import MemoryBudget, check_room
from topics.server.loop.runtime import Runtime
from topics.server.push import cursors
from topics.server.push import subscription_set as sets
from topics.server.push.cursors import Position
from topics.server.push.dispatcher import PushServices
from topics.server.push.live_stream import EventStream, error_frame, event_frame
from topics.server.push.rendering import Event, RenderedFrame, deleted_data
from topics.server.push.subscription_set import Pattern, PatternWaiters, Subscription, SubscriptionSet

WID_BYTES = 16
MAX_DELETED = 64  # deletions that a session remembers
DELETED_BYTES = 256  # of each, besides its event


class Session(SubscriptionSet):
    """One `POST /v0/watch`."""

    __slots__ = ("_deleted", "caller", "heartbeat_ms", "idle_since_ns", "stream", "wid")

    def __init__(self, caller: Caller, budget: MemoryBudget, *, heartbeat_ms: int) -> None:
        super().__init__(budget)
        self.wid = "wid_" + secrets.token_urlsafe(WID_BYTES)
        self.caller = caller
        self.heartbeat_ms = heartbeat_ms
        self.stream: WatchStream | None = None
        self.idle_since_ns = 0
        # Deleted topics of patterns, by key: the number of the subscription and the event. The client may lose its
        # connection before it has read that event.
        self._deleted: dict[str, tuple[int, bytes]] = {}

    def remove_deleted(self, subscription: Subscription) -> None:
        self.remove(subscription)
        self._deleted[subscription.key] = subscription.number, deleted_data(subscription.topic)
        if len(self._deleted) > MAX_DELETED:
            del self._deleted[next(iter(self._deleted))]
        self._charge_deleted()

    def deletions_after(self, at: Position) -> list[bytes]:
        """Return the events of deletions that this position does not know yet, and forget the others."""
        unseen = {key: one for key, one in self._deleted.items() if key in at.by_key or one[0] in at.by_number}
        self._deleted = unseen
        self._charge_deleted()
        return [data for _, data in unseen.values()]

    def _charge_deleted(self) -> None:
        self.other_bytes = sum(DELETED_BYTES + len(data) for _, data in self._deleted.values())
        self.charge()


class Sessions:
    """All sessions by `wid`, and those without a stream by how long they have had none."""

    def __init__(self, runtime: Runtime, budget: MemoryBudget) -> None:
        self._runtime = runtime
        self._budget = budget
        self._all: dict[str, Session] = {}
        self._idle: OrderedDict[str, Session] = OrderedDict()  # the longest idle first
        self.pattern_waiters = PatternWaiters()
        budget.reclaimers.append(self._remove_expired)
        runtime.engine.state.created.append(self.pattern_waiters.created)

    def __len__(self) -> int:
        return len(self._all)

    def create(
        self, request: WatchRequest, caller: Caller, *, lenient: bool
    ) -> tuple[Session, dict[str, WatchedTopic]]:
        self._remove_expired()
        topics = request.topics
        if request.cursor:
            if (position := cursors.find(request.cursor)) is None:
                raise invalid("cursor is not an event id of this server", field="cursor")
            topics = self._resumed(topics, position)
        subscriptions, patterns = sets.resolve(self._runtime, topics, request, caller, lenient=lenient)
        heartbeat_ms = clamp(check_u64(request.heartbeat_ms, "heartbeat_ms"), *HEARTBEAT_MS_RANGE)
        session = Session(caller, self._budget, heartbeat_ms=heartbeat_ms)
        check_room("max_watch_sessions", len(self._all), self._runtime.settings.max_watch_sessions)
        self._budget.check(sets.SESSION_BYTES + sets.size_bytes(subscriptions, patterns))
        session.patterns = patterns
        for subscription in subscriptions.values():
            session.add(subscription)
        session.charge()
        self._all[session.wid] = session
        self.stream_closed(session)
        return session, sets.watched_topics(subscriptions)

    def find(self, wid: str, caller: Caller) -> Session:
        """Return the session, which belongs to `caller` from now on.

        Raise `not_found` if it was removed, `unauthorized` if another key created it.
        """
        if not (wid.startswith("wid_") and len(wid) <= 64 and wid[4:].replace("-", "").replace("_", "").isalnum()):
            raise invalid("wid is not the id of a watch session: it starts with wid_", field="wid")
        self._remove_expired()
        session = self._all.get(wid)
        if session is None:
            raise TopicsError(Code.NOT_FOUND, "there is no such watch session; it may have expired: create a new one")
        if not caller.owns(session.caller):
            raise TopicsError(Code.UNAUTHORIZED, "the session belongs to another key")
        session.caller = caller
        return session

    def stream_opened(self, session: Session) -> None:
        self._idle.pop(session.wid, None)

    def stream_closed(self, session: Session) -> None:
        """Note since when the session has no stream: `_remove_expired` removes it after `session_ttl_ms`."""
        session.idle_since_ns = self._runtime.clock.monotonic_ns()
        self._idle[session.wid] = session
        self._idle.move_to_end(session.wid)

    def _resumed(self, topics: dict[str, TopicOptions], at: Position) -> dict[str, TopicOptions]:
        """Return the topics, with the positions of the cursor for those that it names."""
        if at.by_number:
            raise invalid("this cursor is valid only in the session that it came from", field="cursor")
        most = self._runtime.settings.max_watch_topics
        if len(at.by_key) > most:
            raise invalid(f"the cursor names {len(at.by_key)} topics; the limit is {most}", field="cursor")
        found = {}
        for key, seq in at.by_key.items():
            name, epoch = cursors.split_key(key)
            options = topics.get(name)
            if options is None and name in self._runtime.engine.topics:
                covering = (one for one in topics if is_pattern(one) and name.startswith(one[:-1]))
                options = next(map(topics.__getitem__, covering), None)
            if options is not None:
                found[name] = TopicOptions(seq, False, options.filter, options.epoch if epoch is None else epoch)
        return topics | found

    def _remove_expired(self) -> None:
        oldest_ns = self._runtime.clock.monotonic_ns() - self._runtime.settings.session_ttl_ms * 1_000_000
        while len(self._idle) > 0:
            wid, session = next(iter(self._idle.items()))
            if session.idle_since_ns >= oldest_ns:
                return
            del self._idle[wid], self._all[wid]
            session.discharge()


class WatchStream(EventStream):
    __slots__ = ("_dispatcher", "_position", "_session", "_sessions", "_single")

    reports_too_old = True

    def __init__(
        self, services: PushServices, sessions: Sessions, session: Session, *,
        position: Position | None, slot: Slot,
    ) -> None:  # fmt: skip
        super().__init__(services.runtime, slot=slot, heartbeat_ms=session.heartbeat_ms)
        self._dispatcher = services.dispatcher
        self._sessions = sessions
        self._session = session
        self._position = position
        self._single = False

    def begin(self) -> None:
        session = self._session
        before, session.stream = session.stream, self
        if before is not None:
            before._detach()
            before.fail(409, "another connection has taken over this session")
        self._sessions.stream_opened(session)
        if self._position is not None:
            session.rewind(self._position)
        # A client that loses the connection before its first frame has an id to resume from.
        self.send(b"id: %b\n\n" % session.cursor())
        if self._position is not None:
            for data in session.deletions_after(self._position):
                self.send(event_frame(Event.TOPIC_DELETED.event, data, id=session.cursor()))
        self._note_single()
        for subscription in list(session.subscriptions.values()):
            self._dispatcher.attach(subscription, self)
        if session.patterns:
            self._sessions.pattern_waiters.put(self, session.prefixes(), self._match)
            # Topics that were created while the session had no stream, as many as the limit allows. For each pattern
            # this looks at the topics of the session, at those it adds, and at one more.
            topics, names = self.runtime.engine.topics, self.runtime.engine.state.names
            for pattern in session.patterns.values():
                for name in names.visible(pattern.caller.prefixes, prefix=pattern.prefix):
                    if not self._match(topics[name], pattern):
                        return

    def resume(self, full_ms: float) -> None:
        stale = full_ms > self.runtime.settings.buffer_grace_ms
        self._dispatcher.resume_all(self._session.subscriptions, stale=stale)

    def ended(self) -> None:
        if self._session.stream is self:
            self._detach()
            self._session.stream = None
            self._sessions.stream_closed(self._session)

    def finish(self) -> None:
        """Stop delivery, so that the positions stay where they are, and close the connection."""
        if self.open and self._session.stream is self:
            self._detach()
        super().finish()

    def _detach(self) -> None:
        self._sessions.pattern_waiters.remove(self)
        self._dispatcher.detach_all(self._session.subscriptions, self)

    def _note_single(self) -> None:
        """Note whether the session watches one named topic: then its frames, with their ids, are shared."""
        subscriptions = self._session.subscriptions
        self._single = len(subscriptions) == 1 and all(one.key == one.topic.name for one in subscriptions.values())

    def _match(self, topic: Topic, pattern: Pattern | None = None) -> bool:
        """Watch a topic if a pattern covers it. Return False, and notify the client, if the limit is reached."""
        session = self._session
        subscription = session.match(topic, pattern)
        if subscription is None:
            return True
        most = self.runtime.settings.max_watch_topics
        if len(session.subscriptions) >= most:
            self.send(error_frame(400, f"more than {most} topics match; this one is not watched", topics=[topic.name]))
            return False
        session.add_matched(subscription)
        self._note_single()
        self._dispatcher.attach(subscription, self)
        return True

    def push(self, subscription: Subscription, frame: RenderedFrame) -> None:
        if not self._single:
            self.send(event_frame(Event.RECORD.event, frame.payload, id=self._session.cursor()))
        elif self.open and (sink := self._sink) is not None:  # as `send` does it, without a call
            self.last_sent_s = frame.sent_s
            if not sink.write(frame.single_frame or frame.single()):
                self.fill()

    def notify(self, subscription: Subscription, event: Event, data: bytes) -> None:
        self.send(event_frame(event.event, data, id=self._session.cursor()))

    def topic_deleted(self, subscription: Subscription) -> None:
        """Remove the subscription if a pattern covers it, for its next epoch. One that was named stays, as deleted."""
        name = subscription.topic.name
        if self._session.patterns and any(one.covers(name) for one in self._session.patterns.values()):
            self._session.remove_deleted(subscription)
            self._note_single()

    def topics_paused(self, names: list[str], retry_after_ms: int) -> None:
        self.send(error_frame(429, "watch throttled under CPU pressure", retry_after_ms=retry_after_ms, topics=names))
