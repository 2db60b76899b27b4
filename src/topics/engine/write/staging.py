"""Staging: how a verb turns its decision into an entry of the log, and the entry into state.

It keeps the promises that all verbs share: a name is created once, a seq is given out once (`Ceilings`), and no topic
and no server takes more than its caps allow (`check_room`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from topics import logs
from topics.clock import Clock
from topics.engine import retention
from topics.engine.state.topic import EMPTY, FIRST_CEILING, NO_CEILING, Topic
from topics.engine.state.topics import State
from topics.engine.write import apply, uploads
from topics.engine.write.ceilings import Ceilings
from topics.engine.write.commit import Commits, Log, Ticket
from topics.engine.write.uploads import AT_SYNC, AT_UPLOAD, GATES
from topics.errors import Code, TopicsError, topic_not_found
from topics.model.names import AUDIT, check_topic
from topics.model.records import Limits
from topics.model.topic import TopicConfig
from topics.storage.log import entry as entries

log = logs.Log("engine")


class Staging:
    """What the verbs of one engine share. `topics` replays a topic's waiting records when it is asked for."""

    def __init__(self, state: State, commits: Commits, *, clock: Clock, limits: Limits, logged: bool) -> None:
        self.state = state
        self.commits = commits
        self.clock = clock
        self.limits = limits
        self.follows = False  # whether another server decides: the state follows its log
        self.logged = logged  # whether there is a log: without one, entries have no frames
        self.topics: Mapping[str, Topic] = state.by_name
        self.ceilings = Ceilings(state, commits)
        self._grown: dict[Topic, None] = {}  # topics that grew in this turn, or were dropped
        self._keys = count()  # of listeners; an id may belong to another object once its object is freed
        self.after_growth: Callable[[], None] | None = None  # called after the listeners of all topics that grew
        self.admit_key: Callable[[int], None] = lambda size_bytes: None  # raises if there is no room for one more key
        commits.guard = self.ceilings.guard

    def attach(self, wal: Log) -> None:
        self.commits.attach(wal)
        self.logged = True

    # --- topics

    def topic(self, name: str) -> Topic:
        """Return the topic of that name. Raises `topic_not_found`."""
        topic = self.find(name)
        if topic is None:
            if name != AUDIT:  # it exists once there is a change to record
                check_topic(name)
            raise topic_not_found(name)
        return topic

    def find(self, name: str) -> Topic | None:
        """Return the topic once its creation, change or end, if one waits, is synced."""
        topic = self.topics.get(name)
        if name in self.commits.creating if topic is None else topic.changing:
            return self._synced(name)
        return topic

    def resolve(self, name: str) -> Topic | None:
        """Return the topic once everything that waits for it is synced. May wait for the disk.

        Raise `replica_unavailable` while a change of the topic itself waits for an upload.
        """
        topic = self._synced(name)
        if (name in self.commits.creating if topic is None else topic.changing) and self.commits.uploads:
            raise uploads.busy(f'a change of topic "{name}"')
        return topic

    def _synced(self, name: str) -> Topic | None:
        topic = self.topics.get(name)
        if name in self.commits.creating or (topic is not None and topic.pending):
            self.commits.sync()
            topic = self.topics.get(name)
        return topic

    def new_topic(self, name: str, config: TopicConfig, *, more: int = 0) -> entries.Create:
        """Return the entry that creates a topic. Raises `throttled` if the server may not have it and `more` others."""
        state, limit = self.state, self.limits.max_topics
        if limit and len(self.topics) + len(self.commits.creating) + 1 + more > limit:
            raise server_full("max_topics", limit)
        now = self.clock.now_ms()
        state.last_epoch = max(now, state.last_epoch + 1)
        state.next_topic_id += 1
        return entries.Create(state.next_topic_id - 1, name, state.last_epoch, config, now)

    # --- entries

    def stage(
        self,
        topic: Topic | None,
        changes: list[Any],
        take_effect: Callable[[Ticket], Any],
        *,
        undo: Callable[[], object] | None = None,
        at_ms: int | None = None,
        also: list[Topic] | None = None,
        synced: bool = False,
        replicated: bool = False,
    ) -> Ticket:
        """Stage entries (`changes`) that are as durable as the topic; synced without a topic, or with `synced`.

        `at_ms` is the time of a delete: its records must not expire before it takes effect.
        """
        ticket = Ticket(topic, None, take_effect, undo=undo, at_ms=at_ms, also=also)
        durability = "fsync" if topic is None else topic.config.durability
        if self.logged and (synced or durability != "ephemeral"):
            ticket.frame = entries.encode_all(changes)
            ticket.gated = max(GATES[durability], AT_SYNC * synced, AT_UPLOAD * replicated)
            if topic is None:
                ticket.gated = max([AT_SYNC, *(GATES[one.config.durability] for one in also or ())])
        self.commits.stage(ticket)
        return ticket

    def stage_change(
        self, topic: Topic, entry: entries.Configure | entries.Drop, take_effect: Callable[[Ticket], Any]
    ) -> Ticket:
        """Stage a change of the topic itself: verbs that come meanwhile wait until it has taken effect."""

        def undo() -> None:
            topic.changing = False

        def end(ticket: Ticket) -> Any:
            topic.changing = False
            return take_effect(ticket)

        topic.changing = True
        at_ms = entry.at_ms if isinstance(entry, entries.Configure) else None
        replicated = isinstance(entry, entries.Configure) and entry.config.durability == "replicated"
        return self.stage(topic, [entry], end, undo=undo, at_ms=at_ms, synced=True, replicated=replicated)

    def create(self, create: entries.Create, ceiling: int = FIRST_CEILING) -> Topic:
        """Create the topic of an entry that takes effect."""
        topic = apply.create(self.state, create)
        topic.ceiling = topic.ceiling_staged = ceiling if self.logged else NO_CEILING
        return topic

    def stage_create(
        self,
        create: entries.Create,
        take_effect: Callable[[Topic], Any],
        *,
        append: entries.Append | None = None,
        move: bytes = b"",
        gated: int = 0,
        undo: Callable[[], object] | None = None,
        also: list[Topic] | None = None,
        at_ms: int | None = None,
    ) -> Ticket:
        """Stage the creation of a topic, and its first write `append` if there is one: both take effect, or neither.

        `move` is the frame of an entry that has the write, see `dead_letters`. Its gate is `gated`, and `also` are the
        existing topics that it changes, at `at_ms`. `take_effect` gets the new topic.
        """
        creating, durability = self.commits.creating, create.config.durability
        ticket = Ticket(also=also, at_ms=at_ms, size_bytes=0 if append is None else len(append.blob))
        ceiling = self.ceilings.first_step() if append is None else FIRST_CEILING
        if append is not None and len(append.sizes) > ceiling:  # above the ceiling that the creation implies
            ceiling += len(append.sizes)
            gated = max(gated, self.commits.uploads.gate)
        if self.logged:
            begun: list[entries.Entry] = [create]
            if ceiling > FIRST_CEILING:
                begun.append(entries.Ceiling(create.topic_id, ceiling))
            if move:
                ticket.frame = entries.encode_begun(begun) + move
            elif append is not None and durability != "ephemeral":
                ticket.frame = entries.encode_large(append, after=entries.encode_begun(begun))
            else:
                ticket.frame = entries.encode_all(begun)
            ticket.gated = max(gated, GATES[durability], AT_SYNC * (append is None))
            if self.state.ledger is not None:  # now, so that one sync covers both
                self.state.ledger.note_topic(create.topic_id, create.name, create.epoch, create.config, ceiling)
        creating[create.name] = ticket

        def finish(done: Ticket) -> Any:
            creating.pop(create.name, None)
            topic = self.create(create, ceiling)
            if append is not None:  # its next writes need not have the step determined: most topics stay small
                topic.ceiling_step = FIRST_CEILING
            if done.gated == AT_UPLOAD:  # a snapshot may have begun another ledger in between
                apply.note(self.state, topic)
            return take_effect(topic)

        def refused() -> None:
            creating.pop(create.name, None)
            if undo is not None:
                undo()

        ticket.apply, ticket.undo = finish, refused
        self.commits.stage(ticket)
        return ticket

    # --- records

    def check_room(self, config: TopicConfig, topic: Topic | None, entry: entries.Append, now_ms: int) -> None:
        """Raise if the write can never fit, if the topic is full and rejects, or if the server is full."""
        quota_bytes = self.limits.max_total_bytes  # 0 for no quota
        size_bytes, new = len(entry.blob), len(entry.sizes)
        _check_possible(config, entry, quota_bytes)
        count = topic_bytes = 0
        if topic is not None:
            if config.ttl_ms:
                retention.expire(topic, now_ms)
            count, topic_bytes = topic.count + topic.staged_count, topic.bytes + topic.staged_bytes
        if config.discard == "reject" and (cap := _passed_cap(config, count + new, topic_bytes + size_bytes)):
            # A topic that holds for an archive evicts archived records instead, if that makes room.
            records, spare_bytes = (0, 0) if topic is None else retention.spare(topic)
            if not records or _passed_cap(config, count + new - records, topic_bytes + size_bytes - spare_bytes):
                what = f"the topic is full and rejects new records; delete records, or raise {cap}"
                raise TopicsError(Code.TOPIC_FULL, what, detail={"limit": cap, "count": count, "bytes": topic_bytes})
        if quota_bytes:
            total = self.state.totals.bytes + self.commits.pending_bytes + size_bytes
            if total > quota_bytes and topic is not None and (config.discard == "old" or retention.makes_room(topic)):
                # The topic evicts records in return, so a topic that trims itself can grow in a full server.
                total -= _would_free(topic, count + new, topic_bytes + size_bytes)
            if total > quota_bytes:
                raise server_full("max_total_bytes", quota_bytes)

    def land(self, topic: Topic, entry: entries.Append, *, plain: bool = False) -> None:
        """Apply a write that is in the log, and notify the readers that wait for it."""
        add = apply.append_plain if plain and len(entry.sizes) == 1 else apply.append
        add(self.state, topic, entry)
        if topic.links is not None:
            topic.links.written = True
            topic.links.table.hooks.source_grew(topic)
        self.grew(topic)

    # --- readers that wait for a topic to grow

    def listen(self, topic: Topic, listener: Callable[[Topic], None]) -> Callable[[], None]:
        """Call `listener` after every turn in which the topic grew, and once when it is dropped.

        Return a function that ends this.
        """
        key = next(self._keys)
        topic.listeners = topic.listeners or {}
        topic.listeners[key] = listener

        def end() -> None:
            if topic.listeners.get(key) is not None:
                del topic.listeners[key]
                topic.listeners = topic.listeners or EMPTY

        return end

    def grew(self, topic: Topic) -> None:
        """Notify the readers that wait for the topic at the end of this turn, once, however often it grew."""
        if topic.listeners:
            if not self._grown:
                self.commits.schedule(self.notify)
            self._grown[topic] = None

    def notify(self) -> None:
        """Call the listeners of all topics that grew."""
        grown, self._grown = self._grown, {}
        for topic in grown:
            for listener in list(topic.listeners.values()):
                try:
                    listener(topic)
                except Exception as error:  # a listener that fails must not cost the others their notification
                    log.failure("listener_failed", error, topic=topic.name)
        if self.after_growth is not None:
            self.after_growth()


# --- room for a write: in its topic, by the caps, and in the server, by the quota


def _passed_cap(config: TopicConfig, count: int, used_bytes: int) -> str:
    """Return the name of the cap that so many records pass; "" if they pass none."""
    if config.cap_records and count > config.cap_records:
        return "cap_records"
    return "cap_bytes" if config.cap_bytes and used_bytes > config.cap_bytes else ""


def server_full(name: str, limit: int, what: str = "") -> TopicsError:
    """Return the error for a cap that a setting puts on the server. Room may come back, so the client may try again."""
    return TopicsError(
        Code.THROTTLED,
        what or f"the server has reached {name} ({limit}); delete data, or raise the setting",
        detail={"limit": name, "max": limit},
        retry_after_ms=1000,
    )


def _check_possible(config: TopicConfig, entry: entries.Append, quota_bytes: int) -> None:
    """Raise a 400 for a write that the topic or the server could not hold if it were empty.

    `topic_full` and `throttled` ask a client to try again later, which cannot help here. A topic that discards old
    records takes a batch larger than its caps: it evicts the first records of the batch.
    """
    largest, size_bytes = max(entry.sizes), len(entry.blob)
    for limit, most, whole in (("cap_bytes", config.cap_bytes, "topic"), ("max_total_bytes", quota_bytes, "server")):
        if most and largest > most:
            what = f"a record takes {largest} bytes; the whole {whole} may hold {most}"
            detail = {"size_bytes": largest, "max": most, "limit": limit}
            raise TopicsError(Code.RECORD_TOO_LARGE, what, detail=detail)
        if limit == "cap_bytes" and config.discard == "reject":
            _check_batch("records", len(entry.sizes), "cap_records", config.cap_records)
            _check_batch("bytes", size_bytes, limit, most)
    _check_batch("bytes", size_bytes, "max_total_bytes", quota_bytes)


def _check_batch(unit: str, n: int, limit: str, most: int) -> None:
    if most and n > most:
        raise TopicsError(
            Code.BATCH_TOO_LARGE,
            f"the write has {n} {unit}; {limit} allows {most} in all, so it can never fit: send smaller batches",
            detail={"size_bytes" if unit == "bytes" else unit: n, "max": most, "limit": limit},
        )


def _would_free(topic: Topic, count: int, used_bytes: int) -> int:
    """Return at most how many bytes of its present records the topic would evict if it came to hold this much."""
    config = topic.config
    freed = 0
    if config.cap_bytes and used_bytes > config.cap_bytes:
        freed = min(used_bytes - config.cap_bytes, topic.bytes)
    if config.cap_records and count > config.cap_records:
        upto = retention.after_oldest(topic, min(count - config.cap_records, topic.count))
        freed = max(freed, retention.live_between(topic, topic.earliest, upto)[1])
    if topic.consumers is not None and topic.consumers.holders:
        freed = min(freed, retention.live_between(topic, topic.earliest, retention.released(topic, topic.head + 1))[1])
    return freed
