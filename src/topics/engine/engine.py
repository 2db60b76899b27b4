"""The verbs. Each runs to completion: it checks, decides, and stages what it decided; a ticket tells when it took
effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any

from msgspec import Struct

from topics import logs
from topics.clock import Clock
from topics.engine import pressure, retention
from topics.engine.durable.deferred_replay import PER_STEP, Backlog, CurrentTopics
from topics.engine.read.read import Query, Reading, expire_and_read
from topics.engine.routers.verbs import Routers
from topics.engine.state import idempotency
from topics.engine.state.job_terms import only_for_queues
from topics.engine.state.topic import FIRST_CEILING, Topic
from topics.engine.state.topics import State
from topics.engine.steps import Steps, once_loaded
from topics.engine.write import apply, ceilings, removal
from topics.engine.write.class_change import Saver, when_saved
from topics.engine.write.commit import Commits, Log, NoLog, Ticket
from topics.engine.write.render import joined, render
from topics.engine.write.room import check_possible
from topics.errors import Code, TopicsError, invalid, topic_not_found
from topics.model.names import check_topic
from topics.model.records import MAX_IDEMPOTENCY_KEY_CHARS, Limits, TagMatch, WriteRequest
from topics.model.topic import ConfigPatch, TopicConfig, configure
from topics.storage.log import entry as log

NO_PATCH = ConfigPatch()
events = logs.Log("engine")
MAX_FOLLOWERS = 255  # of a plain append, and the bytes that each may have: they add less than a mebibyte to its entry
FOLLOWER_MAX_BYTES = 4096


class Appended(Struct, gc=False):
    """Where a write landed."""

    topic: Topic
    first: int
    last: int
    head: int
    created: bool = False
    deduped: bool = False


class Configured(Struct):
    topic: Topic
    created: bool


class Deleted(Struct):
    """State of the topic right after a delete."""

    topic: Topic
    deleted: int
    earliest: int
    head: int
    count: int
    bytes: int


class Dropped(Struct):
    name: str
    deleted: bool
    routers_removed: list[str]


class Engine:
    """All topics of one server. Not thread-safe: one thread owns it, and no verb waits in its middle."""

    def __init__(
        self,
        *,
        clock: Clock,
        limits: Limits | None = None,
        log: Log | None = None,
        schedule: Callable[[Callable[[], None]], object] = lambda flush: None,
        state: State | None = None,
    ) -> None:
        self.clock = clock
        self.limits = limits or Limits()
        self.state = state or State(max_keys=self.limits.max_idempotency_keys)
        self.topics: Mapping[str, Topic] = self.state.by_name
        self.commits = Commits(log or NoLog(), schedule=schedule, tick_ns=clock.monotonic_ns, join=_join)
        self.logged = log is not None
        self.admit_key: Callable[[int], None] = lambda size_bytes: None  # raises if there is no room for one more key
        self._grown: dict[Topic, None] = {}
        self._backlog = Backlog()
        self.saver: Saver | None = None  # see `Store.when_saved`
        self.routers = Routers(self)

    def attach(self, log: Log, backlog: Backlog | None = None) -> None:
        """From now on changes are logged. For an engine whose state was recovered after it was made."""
        self.commits.attach(log)
        self.logged = True
        if backlog:
            self.await_replay(backlog)
        self.routers.attach()

    def await_replay(self, backlog: Backlog) -> None:
        """Serve a state of which some records still wait to be replayed: a topic is replayed when it is asked for."""
        self._backlog = backlog
        self.topics = CurrentTopics(self.state, backlog)
        if self.limits.max_total_bytes:  # what is left of a quota depends on the records of every topic
            self.replay_all()

    def replay_some(self, limit: int = PER_STEP) -> bool:
        """Replay up to `limit` of the entries that wait; return whether there are more."""
        if self._backlog:
            self._backlog.replay_some(self.state, limit)
        if not self._backlog:
            self.topics = self.state.by_name
        return bool(self._backlog)

    def replay_in_steps(self) -> Steps[None]:
        """Replay everything that waits, for a verb that looks at many topics."""
        # Bound: the entries that wait; each step replays some, and recovery alone adds entries.
        while self.replay_some():
            yield None

    def replay_all(self) -> None:
        self._backlog.replay_all(self.state)
        self.topics = self.state.by_name

    def flush(self) -> None:
        """Ends the turn: what was staged goes to the log."""
        self.commits.flush()

    # --- topics

    def topic(self, name: str) -> Topic:
        """The topic of that name, or `topic_not_found`."""
        topic = self.find(name)
        if topic is None:
            check_topic(name)
            raise topic_not_found(name)
        return topic

    def find(self, name: str) -> Topic | None:
        """The topic of that name once its beginning or end, if one is under way, has taken effect."""
        topic = self.topics.get(name)
        if name in self.commits.creating if topic is None else topic.changing:
            return self._settled(name)
        return topic

    def put_topic(self, name: str, patch: ConfigPatch) -> Ticket:
        """Creates or reconfigures. Ends with `Configured`."""
        topic = self._settled(name)
        if topic is None:
            create = self._new_topic(name, configure(check_topic(name), patch))
            return self._stage_create(create, lambda _: Configured(apply.create(self.state, create), True), gated=True)
        config = configure(name, patch, topic.config)
        if config == topic.config and not self.commits.log.broken:
            unchanged = Ticket.of(Configured(topic, False))  # a broken log may still hold a change that was refused
            return when_saved(self.saver, topic, unchanged) if topic.needs_snapshot else unchanged
        entry = log.Configure(topic.topic_id, config, self.clock.now_ms(), topic.next_seq - 1)

        def take_effect(_: Ticket) -> Configured:
            topic.changing = False
            apply.configure(self.state, topic, entry)
            return Configured(topic, False)

        waits = topic.needs_snapshot or apply.promises_more(topic.config, config)
        ticket = self._stage_change(topic, entry, take_effect)
        return when_saved(self.saver, topic, ticket) if waits else ticket

    def drop_topic(self, name: str, *, if_empty: bool = False) -> Ticket:
        """Ends with `Dropped`; a topic that is not there is no error."""
        topic = self._settled(name)
        if topic is None:
            check_topic(name)
            return Ticket.of(Dropped(name, False, []))
        self.expire(topic)
        if if_empty and topic.count:
            raise TopicsError(
                Code.TOPIC_NOT_EMPTY,
                f'topic "{name}" holds {topic.count} records',
                detail={"topic": name, "count": topic.count},
            )

        def take_effect(_: Ticket) -> Dropped:
            topic.changing = False
            routers = [router.name for router in self.routers.table.around(topic)]
            apply.drop(self.state, topic)
            self.grew(topic)
            return Dropped(name, True, routers)

        return self._stage_change(topic, log.Drop(topic.topic_id), take_effect)

    def expire_and_get(self, name: str, *, touch: bool) -> Topic:
        """Expire the topic's records and leases up to now, then return it; `touch` counts as interest in it.

        Raises `Cold` like a read.
        """
        topic = self.topic(name)
        if topic.config.ttl_ms:
            retention.need_for_expiry(topic, self.clock.now_ms())
        now = self.expire(topic)
        if touch:
            topic.last_read_ts = now
        return topic

    def expire_and_list(
        self, *, prefix: str, after: str, limit: int, prefixes: tuple[str, ...] = (), touch: bool = False
    ) -> tuple[list[Topic], bool]:
        """Expire and return topics by name behind `after`, and whether there are more.

        With `prefixes`, only topics that one of them covers are there. Looks at no more than the topics of the page.
        """
        names = list(islice(self.state.names.visible(prefixes, prefix=prefix, after=after), limit + 1))
        page = [self.topics[name] for name in names[:limit]]
        for topic in page:
            now = self.expire(topic)
            if touch:
                topic.last_read_ts = now
        return page, len(names) > limit

    def expire(self, topic: Topic) -> int:
        """Expire the topic's records and leases up to now; return now in ms."""
        now = self.clock.now_ms()
        if topic.config.ttl_ms:
            retention.expire(topic, now)
        if topic.queue is not None:
            topic.queue.expire(now)
        return now

    def effective_priority(self, topic: Topic) -> int:
        """What the scheduler goes by right now."""
        return pressure.effective_priority(topic, self.clock.now_ms())

    # --- records

    def append(self, name: str, request: WriteRequest) -> Ticket:
        """All records with contiguous seqs, or none. Ends with `Appended`."""
        topic = self.topics.get(name)
        if topic is None or topic.changing:
            topic = self._settled(name)
        commits = self.commits
        now = commits.turn_ms or self.clock.now_ms()
        key = request.idempotency_key
        if key is not None and not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY_CHARS:
            raise invalid(
                f"idempotency_key must have 1 to {MAX_IDEMPOTENCY_KEY_CHARS} characters", field="idempotency_key"
            )
        if key is not None:
            if topic is not None and (twin := self._seen(topic, key, now)) is not None:
                return twin
            self.admit_key(idempotency.size_bytes(key))
        if topic is None:
            return self._append_creating(name, request, now)
        ts = topic.last_ts
        if now > ts:
            ts = now
        first = topic.next_seq
        entry = render(request, topic.topic_id, first, ts, self.limits)
        config = topic.config
        if entry.extras is not None:
            _check_terms(config, entry)
        if config.cap_bytes or config.cap_records or self.limits.max_total_bytes:
            self._check_room(config, topic, entry, now)
        elif (leader := topic.leader) is not None and entry.plain and leader.entry.ts == ts and first < topic.ceiling:
            if (behind := self._follow(leader, entry)) is not None:
                return behind
        count, size_bytes = len(entry.sizes), len(entry.blob)
        ticket = Ticket(topic, None, self._append_applied, entry, first, count, size_bytes, entry.plain)
        durability = config.durability
        if self.logged:
            if durability != "ephemeral":
                ticket.frame = log.encode(entry)
            if durability == "fsync":
                ticket.gated = True
            if first + count > topic.ceiling - topic.ceiling_step // 2:
                ceilings.guard(self, topic, ticket, first + count)
        topic.next_seq = first + count
        topic.staged_count += count
        topic.staged_bytes += size_bytes
        if key is not None:
            topic.staged_keys[key] = ticket
            ticket.undo = lambda: topic.staged_keys.pop(key, None)
        commits.stage(ticket)
        commits.turn_ms = now
        return ticket

    def _follow(self, leader: Ticket, entry: log.Append) -> Ticket | None:
        """A plain append right behind another one of this turn, where no cap asks how much is under way. None where an
        entry with this record would be too large."""
        topic, first, followers = leader.topic, entry.first, leader.followers
        if len(entry.blob) > FOLLOWER_MAX_BYTES or (followers is not None and len(followers) >= MAX_FOLLOWERS):
            return None
        assert topic is not None
        ticket = Ticket(topic, None, None, entry, first, 1, 0, True)
        if followers is None:
            leader.followers = [ticket]
        else:
            followers.append(ticket)
        topic.next_seq = first + 1
        return ticket

    def read(self, name: str, query: Query) -> tuple[Topic, Reading]:
        """See `expire_and_read`; counts as somebody's interest in the topic."""
        topic = self.topics.get(name)
        if topic is None or topic.changing:
            topic = self.topic(name)
        topic.last_read_ts = now = self.clock.now_ms()
        return topic, expire_and_read(topic, query, now)

    def delete_records(
        self, name: str, *, before_seq: int | None, match: TagMatch | None, dry_run: bool = False
    ) -> Steps[Ticket]:
        """Delete the records that are there now, for every reader at once; or only count them. Ends with `Deleted`.

        By tag, in steps of one segment each, see `removal`: then it takes effect within some 50 µs per segment.
        """
        topic = self.topics.get(name)
        if topic is None or topic.changing:
            topic = self._settled(name)
        if topic is None:
            topic = self.topic(name)
        bound = topic.next_seq if before_seq is None else min(before_seq, topic.next_seq)
        if match is None:
            found = yield from once_loaded(partial(removal.below, topic, bound))
        else:
            found = yield from removal.by_tag(topic, match, bound)
        if self.find(name) is not topic:
            raise topic_not_found(name)
        now = self.clock.now_ms()
        if dry_run:
            self.expire(topic)
            if match is None:
                would = retention.live_between(topic, topic.earliest, min(bound, topic.head + 1))[0]
            else:
                would = apply.count_tagged(topic, bound, match, found.chosen)
            return Ticket.of(Deleted(topic, would, topic.earliest, topic.head, topic.count, topic.bytes))
        op, text = (None, "") if match is None else (match.op, match.text)
        entry = log.Delete(topic.topic_id, bound, op, text, now)

        def take_effect(_: Ticket) -> Deleted:
            deleted = apply.delete(topic, entry, found.chosen)
            return Deleted(topic, deleted, topic.earliest, topic.head, topic.count, topic.bytes)

        ticket = Ticket()
        ticket.topic, ticket.apply = topic, take_effect
        if self.logged and topic.config.durability != "ephemeral":
            ticket.frame = log.encode(entry)
            ticket.gated = topic.config.durability == "fsync"
        self.commits.stage(ticket)
        return ticket

    def wait(self, topic: Topic, wake: Callable[[], None]) -> Callable[[], None]:
        """Calls `wake` once, when the topic has grown or is gone; the answer cancels that."""
        key = id(wake)
        topic.waiters[key] = wake
        return lambda: topic.waiters.pop(key, None)  # type: ignore[return-value]

    def listen(self, topic: Topic, listener: Callable[[Topic], None]) -> Callable[[], None]:
        """Calls `listener` after every turn in which the topic grew, and once when it is gone; the answer ends that."""
        key = id(listener)
        topic.listeners[key] = listener
        return lambda: topic.listeners.pop(key, None)  # type: ignore[return-value]

    def grew(self, topic: Topic) -> None:
        """Those who wait for the topic are told at the end of this turn, once, however often it grew."""
        if not self._grown:
            self.commits.schedule(self._tell)
        self._grown[topic] = None

    # --- inside

    def _tell(self) -> None:
        grown, self._grown = self._grown, {}
        for topic in grown:
            waiters, topic.waiters = topic.waiters, {}
            calls: list[Callable[[], object]] = [*waiters.values()]
            calls += [partial(listener, topic) for listener in topic.listeners.values()]
            for call in calls:
                try:
                    call()
                except Exception as error:  # one that fails must not cost the others their wake-up
                    events.failure("listener_failed", error, topic=topic.name)

    def _settled(self, name: str) -> Topic | None:
        """The topic, once nothing that is under way can change what a verb decides about it."""
        topic = self.topics.get(name)
        if name in self.commits.creating or (topic is not None and topic.pending):
            self.commits.settle()
            topic = self.topics.get(name)
        return topic

    def _new_topic(self, name: str, config: TopicConfig) -> log.Create:
        state, limit = self.state, self.limits.max_topics
        if limit and len(self.topics) + len(self.commits.creating) >= limit:
            raise resource_cap("max_topics", limit)
        now = self.clock.now_ms()
        state.last_epoch = max(now, state.last_epoch + 1)
        topic_id = state.next_topic_id
        state.next_topic_id += 1
        return log.Create(topic_id, name, state.last_epoch, config, now)

    def _stage_create(
        self,
        create: log.Create,
        take_effect: Callable[[Ticket], Any],
        *,
        gated: bool,
        then: bytes = b"",
        size_bytes: int = 0,
        ceiling: int = FIRST_CEILING,
    ) -> Ticket:
        """`then` is the frame of a first write that goes with the creation, of `size_bytes`: both or neither."""
        creating = self.commits.creating
        ticket = Ticket(size_bytes=size_bytes)
        ticket.gated = gated and self.logged
        if self.logged:
            ticket.frame = log.encode(create) + then
            if self.state.ledger is not None:  # now, so that one sync covers both
                self.state.ledger.note_topic(create.topic_id, create.name, create.epoch, create.config, ceiling)
        creating[create.name] = ticket

        def finish(ticket: Ticket) -> Any:
            creating.pop(create.name, None)
            return take_effect(ticket)

        ticket.apply = finish
        ticket.undo = lambda: creating.pop(create.name, None)
        self.commits.stage(ticket)
        return ticket

    def _stage_change(self, topic: Topic, entry: log.Entry, take_effect: Callable[[Ticket], Any]) -> Ticket:
        def undo() -> None:
            topic.changing = False

        ticket = Ticket()
        ticket.topic, ticket.apply, ticket.undo = topic, take_effect, undo
        if self.logged:
            ticket.frame = log.encode(entry)
            ticket.gated = True
        topic.changing = True
        self.commits.stage(ticket)
        return ticket

    def _append_creating(self, name: str, request: WriteRequest, now: int) -> Ticket:
        config = configure(check_topic(name), request.config or NO_PATCH)
        if not (config.auto_create if request.create is None else request.create):
            raise topic_not_found(name)
        entry = render(request, 0, 1, now, self.limits)
        _check_terms(config, entry)
        self._check_room(config, None, entry, now)
        create = self._new_topic(name, config)
        entry.topic_id = create.topic_id

        kept = self.logged and config.durability != "ephemeral"
        high = self.logged and entry.last > FIRST_CEILING  # above the ceiling that the creation implies
        then = log.encode(entry) if kept else b""
        ceiling = FIRST_CEILING
        if high:
            ceiling += entry.last
            then += log.encode(log.Ceiling(create.topic_id, ceiling))

        def take_effect(ticket: Ticket) -> Appended:
            topic = apply.create(self.state, create)
            topic.ceiling = topic.ceiling_staged = ceiling
            appended = self._land(topic, entry)
            appended.created = True
            return appended

        gated = config.durability == "fsync" or high
        return self._stage_create(
            create, take_effect, gated=gated, then=then, size_bytes=len(entry.blob), ceiling=ceiling
        )

    def _append_applied(self, ticket: Ticket) -> Appended:
        topic = ticket.topic
        assert topic is not None
        if not ticket.plain:
            return self._land(topic, ticket.entry)
        if ticket.followers is not None:
            self._land(topic, ticket.entry)
            for follower in ticket.followers:
                follower.result = Appended(topic, follower.first, follower.first, follower.first)
            return Appended(topic, ticket.first, ticket.first, ticket.first)
        apply.append_plain(self.state, topic, ticket.entry)
        if topic.waiters or topic.listeners:
            self.grew(topic)
        seq = ticket.first
        return Appended(topic, seq, seq, seq)

    def _land(self, topic: Topic, entry: log.Append) -> Appended:
        if entry.key is not None:
            topic.staged_keys.pop(entry.key, None)
        apply.append(self.state, topic, entry)
        if topic.waiters or topic.listeners:
            self.grew(topic)
        return Appended(topic, entry.first, entry.first + len(entry.sizes) - 1, topic.head)

    def _seen(self, topic: Topic, key: str, now: int) -> Ticket | None:
        """The outcome of an earlier write under the same key, if it is remembered or still under way."""
        window_ms = topic.config.idempotency_window_ms
        if not window_ms:
            return None  # keys mean nothing here, not even to the next write of the same turn
        write = topic.keys.get(key)
        if write is not None and now - write.at_ms <= window_ms:
            return Ticket.of(Appended(topic, write.first, write.last, topic.head, deduped=True))
        leader: Ticket | None = topic.staged_keys.get(key)
        if leader is None:
            return None
        twin = Ticket()

        def follow(done: Ticket) -> None:
            if done.error is not None:
                twin.settle(None, done.error)
            else:
                landed: Appended = done.result
                twin.wal_ns, twin.sync_ns = done.wal_ns, done.sync_ns
                twin.settle(Appended(topic, landed.first, landed.last, topic.head, deduped=True))

        leader.on_done(follow)
        return twin

    def _check_room(self, config: TopicConfig, topic: Topic | None, entry: log.Append, now: int) -> None:
        """Raise if the write can never fit, if the topic is full and rejects, or if the server is full."""
        size_bytes, quota = len(entry.blob), self.limits.max_total_bytes
        check_possible(config, entry, quota)
        count = used = 0
        if topic is not None:
            if config.ttl_ms:
                retention.expire(topic, now)
            count, used = topic.count + topic.staged_count, topic.bytes + topic.staged_bytes
        if config.discard == "reject":
            full_records = config.cap_records and count + len(entry.sizes) > config.cap_records
            if (full_records or (config.cap_bytes and used + size_bytes > config.cap_bytes)) and not (
                topic is not None
                and retention.gives_way(topic, count=count + len(entry.sizes), used_bytes=used + size_bytes)
            ):
                cap = "cap_records" if full_records else "cap_bytes"
                raise TopicsError(
                    Code.TOPIC_FULL,
                    f"the topic is full: it rejects what would pass its {cap}",
                    detail={"limit": cap, "count": count, "bytes": used},
                )
        if quota:
            total = self.state.totals.bytes + self.commits.pending_bytes + size_bytes
            if total > quota and topic is not None and (config.discard == "old" or retention.makes_room(topic)):
                # What the topic lets go of in return makes room, so that one which trims itself goes on in a full
                # server.
                total -= retention.would_free(topic, count + len(entry.sizes), used + size_bytes)
            if total > quota:
                raise resource_cap("max_total_bytes", quota)


def _join(leader: Ticket, followers: list[Ticket]) -> None:
    leader.entry = joined([leader.entry, *[follower.entry for follower in followers]])
    if leader.frame is not None:
        leader.frame = log.encode(leader.entry)


def resource_cap(name: str, limit: int) -> TopicsError:
    """A cap on what the whole server may hold: room may come back, so the client may try again."""
    return TopicsError(
        Code.THROTTLED,
        f"the server holds as much as {name} allows ({limit})",
        detail={"limit": name, "max": limit},
        retry_after_ms=1000,
    )


def _check_terms(config: TopicConfig, entry: log.Append) -> None:
    """Only a queue can keep what is asked for a job; a log that took it would seem to."""
    if entry.extras is not None and config.type != "queue":
        raise only_for_queues()
    entry.extras = entry.extras or None
