"""Staging: how a verb turns its decision into an entry of the log, and the entry into state.

It keeps the promises that all verbs share: a name is created once, a seq is given out once (`Ceilings`), and no topic
and no server takes more than its caps allow (`check_room`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from topics.clock import Clock
from topics.engine.state.topic import FIRST_CEILING, Topic
from topics.engine.state.topics import State
from topics.engine.write import apply, room, uploads
from topics.engine.write.ceilings import Ceilings
from topics.engine.write.commit import Commits, Log, Ticket
from topics.engine.write.growth import Growth
from topics.engine.write.uploads import AT_SYNC, AT_UPLOAD, GATES
from topics.errors import topic_not_found
from topics.model.names import check_topic
from topics.model.records import Limits
from topics.model.topic import TopicConfig
from topics.storage.log import entry as entries
from topics.storage.log.frame import Frames


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
        self.growth = Growth(commits)
        self.admit_key: Callable[[int], None] = lambda size_bytes: None  # raises if there is no room for one more key

        if logged:
            commits.guard = self.ceilings.guard

    def attach(self, wal: Log) -> None:
        self.commits.attach(wal)
        self.commits.guard = self.ceilings.guard
        self.logged = True

    # --- topics

    def topic(self, name: str) -> Topic:
        """Return the topic of that name. Raises `topic_not_found`."""
        topic = self.find(name)
        if topic is None:
            check_topic(name)
            raise topic_not_found(name)
        return topic

    def find(self, name: str) -> Topic | None:
        """Return the topic once its creation, change or end, if one is under way, is synced."""
        topic = self.topics.get(name)
        if name in self.commits.creating if topic is None else topic.changing:
            return self._synced(name)
        return topic

    def resolve(self, name: str) -> Topic | None:
        """Return the topic once everything that is under way with it is synced. May wait for the disk.

        Raise `replica_unavailable` while a change of the topic itself waits for an upload.
        """
        topic = self._synced(name)
        if self.commits.uploads and (name in self.commits.creating or (topic is not None and topic.changing)):
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
            raise room.server_full("max_topics", limit)
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

    def stage_create(
        self,
        create: entries.Create,
        take_effect: Callable[[Ticket], Any],
        *,
        gated: int,
        undo: Callable[[], object] | None = None,
        frame: Frames = b"",
        size_bytes: int = 0,
        ceiling: int = FIRST_CEILING,
        also: list[Topic] | None = None,
        at_ms: int | None = None,
    ) -> Ticket:
        """Stage the creation of a topic.

        `frame` holds the creation and a first write of `size_bytes`: both take effect, or neither. `also` are existing
        topics that the ticket changes, at `at_ms` if records leave them.
        """
        creating = self.commits.creating
        ticket = Ticket(size_bytes=size_bytes, also=also, at_ms=at_ms)
        if self.logged:
            ticket.gated = max(gated, AT_UPLOAD * (create.config.durability == "replicated"))
            ticket.frame = frame or entries.encode(create)
            if self.state.ledger is not None:  # now, so that one sync covers both
                self.state.ledger.note_topic(create.topic_id, create.name, create.epoch, create.config, ceiling)
        creating[create.name] = ticket

        def finish(ticket: Ticket) -> Any:
            creating.pop(create.name, None)
            return take_effect(ticket)

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
        used_bytes = self.state.totals.bytes + self.commits.pending_bytes
        room.check(config, topic, entry, now_ms, quota_bytes=self.limits.max_total_bytes, used_bytes=used_bytes)

    def land(self, topic: Topic, entry: entries.Append) -> None:
        """Apply a write that is in the log, and notify the readers that wait for it."""
        if entry.key is not None:
            topic.staged_keys.pop(entry.key, None)
        apply.append(self.state, topic, entry)
        self.grew(topic)

    def grew(self, topic: Topic) -> None:
        """Notify the readers that wait for the topic, if there are any."""
        if topic.waiters or topic.listeners:
            self.growth.add(topic)
