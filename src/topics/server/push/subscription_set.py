"""Subscriptions, those of one session or one WebSocket as a set, and the patterns that add more of them.

A set is charged to the memory budget by what it keeps: a flat amount per subscription and pattern, and the node names
and filters of the requests, which their subscriptions share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from sys import getsizeof
from typing import Protocol

from msgspec import structs

from topics.engine.engine import Engine
from topics.engine.state.topic import Topic
from topics.engine.write.commit import Ticket
from topics.errors import TopicsError, invalid, topic_not_found
from topics.model import watch
from topics.model.names import AUDIT
from topics.model.watch import TopicOptions, View, ViewOptions, WatchedTopic
from topics.server.access.caller import Caller, admit
from topics.server.access.operations import READ_AUDIT
from topics.server.limits.budget import SESSIONS, MemoryBudget
from topics.server.loop.answer import when_all_done
from topics.server.loop.runtime import Runtime
from topics.server.push import cursors
from topics.server.push.rendering import Event, RenderedFrame, deleted_data


class Watcher(Protocol):
    """One connection, as the dispatcher uses it."""

    full: bool  # takes nothing now, and calls `Dispatcher.resume_all` when it takes more
    # Whether a gap that existed on connect, or after a long stall, is reported as `from_seq_too_old`. The contract
    # requires this for event streams. A WebSocket reports the reason itself.
    reports_too_old: bool

    # Records; the position of the subscription is already after them. Then any other event, as a JSON object.
    def push(self, subscription: Subscription, frame: RenderedFrame) -> None: ...
    def notify(self, subscription: Subscription, event: Event, data: bytes) -> None: ...
    def topic_deleted(self, subscription: Subscription) -> None: ...  # the client was notified
    def topics_paused(self, names: list[str], retry_after_ms: int) -> None: ...


@dataclass(slots=True, eq=False)
class Subscription:
    """One topic of one watcher. Between connections it only keeps the position of its reader."""

    topic: Topic
    view: View
    _: KW_ONLY
    seq: int  # the position while the subscription is in no group
    epoch: int | None = None  # that the first position belongs to, if the reader gave it
    key: str = ""  # in event ids
    number: int = 0
    from_pattern: bool = False  # a pattern matched the topic after the session was created
    group: TailGroup | None = None
    watcher: Watcher | None = None
    fresh: bool = True  # nothing was delivered on this connection yet
    stale: bool = False  # the connection was full for so long that a gap counts as too old
    caught_up: bool = False  # the client was notified that it has caught up
    deleted: bool = False
    consumer: str | None = None  # the named consumer whose position it began at
    nodes: frozenset[str] | None = field(init=False)  # of the view: delivery looks at it for every frame
    start: int = field(init=False)  # the first position
    start_epoch: int | None = field(init=False)

    def __post_init__(self) -> None:
        self.nodes, self.start, self.start_epoch = self.view.nodes, self.seq, self.epoch
        self.key = self.key or self.topic.name

    @property
    def position(self) -> int:
        """The last seq that the reader does not need again."""
        group = self.group
        return self.seq if group is None else group.seq


@dataclass(slots=True, eq=False)
class TailGroup:
    """The subscriptions at the same position near the head of a topic whose views differ in their nodes alone."""

    view: View  # without nodes
    seq: int
    members: dict[Subscription, None] = field(default_factory=dict)
    has_nodes: bool = False  # a member has, or had, nodes of its own
    caught_up: bool = True


def notify_deleted(subscription: Subscription, data: bytes | None = None) -> None:
    topic, watcher = subscription.topic, subscription.watcher
    if data is None:
        data = deleted_data(topic)
    subscription.seq = topic.head
    subscription.deleted = True
    if watcher is not None:
        watcher.notify(subscription, Event.TOPIC_DELETED, data)
        watcher.topic_deleted(subscription)


# Measured with 1, 16 and 256 topics, and rounded up for what an open stream adds to each.
SESSION_BYTES = 1024
SUBSCRIPTION_BYTES = 512
PATTERN_BYTES = 512
NAME_BYTES = 64  # of a node name in a set, besides the text


@dataclass(slots=True, eq=False)
class Pattern:
    """A prefix of topic names. It covers all present and future topics with it that its caller may read."""

    prefix: str
    view: View
    caller: Caller

    def covers(self, name: str) -> bool:
        return name.startswith(self.prefix) and self.caller.may_use(name)


Resolved = tuple[dict[str, Subscription], dict[str, Pattern]]  # by topic, and by pattern


def watched_topics(subscriptions: dict[str, Subscription]) -> dict[str, WatchedTopic]:
    return {
        name: WatchedTopic(one.seq, one.topic.head, one.topic.earliest, one.topic.epoch)
        for name, one in subscriptions.items()
    }


def size_bytes(subscriptions: dict[str, Subscription], patterns: dict[str, Pattern]) -> int:
    """Return the memory that subscriptions and patterns take. What several of them share counts once."""
    views = [one.view for one in subscriptions.values()] + [one.view for one in patterns.values()]
    size = len(subscriptions) * SUBSCRIPTION_BYTES + len(patterns) * PATTERN_BYTES
    # By identity: two requests that name the same nodes keep two sets of them.
    node_sets = {id(view.nodes): view.nodes for view in views if view.nodes is not None}
    filters = {id(view.match): view.match for view in views if view.match is not None}
    size += sum(getsizeof(match.text) for match in filters.values())
    for names in node_sets.values():
        size += sum(map(getsizeof, names)) + NAME_BYTES * len(names)
    return size


def resolve(
    runtime: Runtime, topics: dict[str, TopicOptions], options: ViewOptions, caller: Caller, *, lenient: bool
) -> Resolved:
    """Return the subscriptions and patterns of a request. Raise every possible error before anything is created.

    The caller must be authorised for `topics`. Looks at no more names than the request has, and for each pattern at no
    more than `max_watch_topics` besides those that the request names.
    """
    engine, most = runtime.engine, runtime.settings.max_watch_topics
    watch.check_watched(topics, max_topics=most)
    subscriptions: dict[str, Subscription] = {}
    patterns: dict[str, Pattern] = {}
    shared = watch.make_view(options, max_limit=engine.limits.max_limit)
    for name, each in topics.items():
        if name == AUDIT:
            admit(caller, READ_AUDIT)
        view = watch.with_filter(shared, name, each)
        if watch.is_pattern(name):
            pattern = patterns[name] = Pattern(name[:-1], view, caller)
            matching = engine.state.names.visible(caller.prefixes, prefix=pattern.prefix)
            # More than twice the limit would not change the answer.
            some = islice(matching, 2 * most + 1)
            found = [one for one in some if one not in topics and one not in subscriptions]
        else:
            found = [name] if engine.find(name) is not None else []
            if not found and not lenient:
                raise topic_not_found(name)
        for topic_name in found:
            try:
                topic = engine.expire_and_get(topic_name, touch=True)
            except TopicsError:  # its deletion was in progress
                if lenient or watch.is_pattern(name):
                    continue
                raise
            if each.tail:
                subscription = Subscription(topic, view, seq=topic.head)
            else:
                subscription = Subscription(topic, view, seq=each.from_seq, epoch=each.epoch)
                subscription.consumer = each.consumer
            subscriptions[topic_name] = subscription
        if len(subscriptions) > most:
            raise invalid(f"topics matches more than {most} topics, which is the limit", field="topics")
    return subscriptions, patterns


class SubscriptionSet:
    """Subscriptions by key, and the patterns that add more: of one session, or of one WebSocket."""

    __slots__ = ("_budget", "_charged_bytes", "_next_number", "other_bytes", "patterns", "subscriptions")

    def __init__(self, budget: MemoryBudget) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        self.patterns: dict[str, Pattern] = {}
        self._next_number = 0
        self._budget = budget
        self._charged_bytes = 0
        self.other_bytes = 0  # what the owner keeps besides

    def charge(self) -> None:
        """Charge the budget with what the set keeps now, after subscriptions or patterns were added or removed."""
        self._charge(SESSION_BYTES + size_bytes(self.subscriptions, self.patterns) + self.other_bytes)

    def discharge(self) -> None:
        self._charge(0)

    def _charge(self, size_bytes: int) -> None:
        self._budget.charge(SESSIONS, size_bytes - self._charged_bytes)
        self._charged_bytes = size_bytes

    def add(self, subscription: Subscription) -> None:
        """Add a subscription. The caller charges for it with `charge`."""
        subscription.number = self._next_number
        self._next_number += 1
        self.subscriptions[subscription.key] = subscription

    def add_matched(self, subscription: Subscription) -> None:
        """Add and charge a subscription from a pattern. The flat charge is exact: it shares the view of the pattern."""
        self.add(subscription)
        self._charge(self._charged_bytes + SUBSCRIPTION_BYTES)

    def remove(self, subscription: Subscription) -> None:
        if self.subscriptions.get(subscription.key) is subscription:
            del self.subscriptions[subscription.key]

    def named(self, name: str) -> Iterator[Subscription]:
        return (one for one in list(self.subscriptions.values()) if one.topic.name == name)

    def match(self, topic: Topic, pattern: Pattern | None = None) -> Subscription | None:
        """Return a new subscription of the topic if it has none and `pattern`, or else any pattern, covers it."""
        first = self.subscriptions.get(topic.name)
        if first is not None and first.topic is topic:
            return None
        if pattern is None:
            pattern = next((one for one in self.patterns.values() if one.covers(topic.name)), None)
        key = f"{topic.name}@{topic.epoch}"
        if pattern is None or key in self.subscriptions:
            return None
        subscription = Subscription(topic, pattern.view, seq=0, key=key)
        subscription.from_pattern = True
        return subscription

    def prefixes(self) -> list[str]:
        return [pattern.prefix for pattern in self.patterns.values()]

    def cursor(self) -> bytes:
        subscriptions = self.subscriptions
        if len(subscriptions) <= cursors.MAX_NAMED:
            return cursors.encode({key: one.position for key, one in subscriptions.items()})
        pairs: list[int] = []
        for one in subscriptions.values():
            pairs += (one.number, one.position)
        return cursors.encode(pairs)

    def rewind(self, at: cursors.Position) -> None:
        """Move back to what the client has processed, never forward.

        A subscription from a pattern that the position does not know starts again at its first position. The first
        position may belong to another epoch: then the stream begins with the `recreated` tombstone once more.
        """
        for key, one in self.subscriptions.items():
            seq = at.by_key.get(key) if at.by_key else at.by_number.get(one.number)
            if seq is None and one.from_pattern:
                seq = one.start
            if seq is None or one.deleted:
                continue
            if seq == one.start:
                one.epoch = one.start_epoch
                one.seq = seq if seq > one.topic.head else min(one.seq, seq)
            else:
                one.seq = min(one.seq, seq)


Match = Callable[[Topic], object]


class PatternWaiters:
    """The watchers with patterns. A new topic is compared with the prefixes of each: that takes 0.1 µs per watcher."""

    def __init__(self) -> None:
        self._watchers: dict[object, tuple[tuple[str, ...], Match]] = {}

    def put(self, watcher: object, prefixes: Iterable[str], match: Match) -> None:
        """Call `match` for every new topic with one of these prefixes, which replace earlier ones of the watcher."""
        self.remove(watcher)
        if wanted := tuple(prefixes):
            self._watchers[watcher] = wanted, match

    def remove(self, watcher: object) -> None:
        self._watchers.pop(watcher, None)

    def created(self, topic: Topic) -> None:
        """Call `match` of every watcher with a prefix of the new topic's name, once each."""
        if self._watchers:
            for match in [match for prefixes, match in self._watchers.values() if topic.name.startswith(prefixes)]:
                match(topic)


def open_positions(engine: Engine, topics: dict[str, TopicOptions], *, max_topics: int, lenient: bool) -> Ticket:
    """Commit what the options say, then look up the positions of their consumers.

    Ends with the options of all topics, in which a consumer has its position as `from_seq`, once the commits are in the
    log. Raises errors of the request before anything is changed, except an `epoch_mismatch` or a seq beyond the head.
    """
    watch.check_watched(topics, max_topics=max_topics)
    consumed = {name: options for name, options in topics.items() if options.by_name}
    for name, options in consumed.items():
        watch.check_by_name(name, options)
    if lenient:
        topics = {name: options for name, options in topics.items() if name not in consumed or engine.find(name)}
        consumed = {name: options for name, options in consumed.items() if name in topics}
    for name in consumed:
        engine.topic(name)
    tickets = {
        name: engine.consumers.open(name, options.consumer or "", commit=options.commit, epoch=options.epoch)
        for name, options in consumed.items()
    }
    opened = Ticket()

    def done() -> None:
        error = next((ticket.error for ticket in tickets.values() if ticket.error is not None), None)
        found = {} if error else {
            name: structs.replace(options, from_seq=tickets[name].result.seq, commit=False, epoch=None)
            for name, options in consumed.items()
        }  # fmt: skip
        opened.resolve(topics | found, error)

    when_all_done(tickets.values(), done)
    return opened
