"""The engine: all topics of one server, and every verb that reads or changes them.

A verb runs to completion: it checks, decides, and stages what it decided. It returns a ticket that is resolved once the
decision has taken effect. Verbs of jobs, routers, archives and consumers are methods of the part that they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct

from topics.clock import Clock
from topics.engine import retention
from topics.engine.access import Access
from topics.engine.consumers.verbs import Consumers
from topics.engine.durable.deferred_replay import PER_STEP, Backlog, CurrentTopics
from topics.engine.queue.verbs import Queues
from topics.engine.read import search
from topics.engine.read.read import Query, Reading, expire_and_read
from topics.engine.routers.verbs import Routers
from topics.engine.schedules.verbs import Schedules
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.steps import Steps
from topics.engine.write import apply, archived, delete, uploads
from topics.engine.write.append import Appends
from topics.engine.write.commit import Commits, Log, Ticket
from topics.engine.write.staging import Staging
from topics.errors import Code, TopicsError
from topics.model.names import check_topic
from topics.model.records import Limits
from topics.model.topic import ConfigPatch, configure
from topics.storage.log import entry as entries


class Configured(Struct):
    topic: Topic
    created: bool


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
        self.commits = Commits(log or Log(), schedule=schedule, tick_ns=clock.monotonic_ns)
        self.staging = staging = Staging(
            self.state, self.commits, clock=clock, limits=self.limits, logged=log is not None
        )
        self._backlog = Backlog()
        # Calls back once a snapshot has all that the topic's class promises, or with the error that prevents it.
        self.saver: Callable[[Topic, Callable[[Exception | None], None]], None] | None = None  # `Store.when_saved`
        self.queues = Queues(staging)
        self.routers = Routers(staging)
        self.schedules = Schedules(staging)
        self.access = Access(staging)
        self.consumers = Consumers(staging)
        # Attributes and no methods: one call less on the hottest paths.
        self.appends = appends = Appends(staging)
        self.append, self.prepare_append = appends.append, appends.prepare
        self.delete_records = partial(delete.delete_records, staging)
        self.delete_seqs = partial(delete.delete_seqs, staging)
        self.report_archived = partial(archived.report, staging)
        self.preview = partial(search.preview, clock)
        self.topic, self.find = staging.topic, staging.find
        self.listen = staging.listen
        self.flush = self.commits.flush

    @property
    def topics(self) -> Mapping[str, Topic]:
        """All topics by name. A topic whose records still wait to be replayed is replayed when it is asked for."""
        return self.staging.topics

    def attach(self, wal: Log, backlog: Backlog | None = None) -> None:
        """Log all changes from now on: for an engine whose state was recovered after it was made."""
        self.staging.attach(wal)
        if backlog:
            self.await_replay(backlog)
        self.routers.attach()
        self.schedules.attach()

    def await_replay(self, backlog: Backlog) -> None:
        """Serve a state of which some records still wait to be replayed: a topic is replayed when it is asked for."""
        self._backlog = backlog
        self.staging.topics = CurrentTopics(self.state, backlog)
        if self.limits.max_total_bytes:  # what is left of a quota depends on the records of every topic
            self.replay_all()

    def replay_some(self, limit: int = PER_STEP) -> bool:
        """Replay up to `limit` of the entries that wait; return whether there are more."""
        if self._backlog:
            self._backlog.replay_some(self.state, limit)
        if not self._backlog:
            self.staging.topics = self.state.by_name
        return bool(self._backlog)

    @property
    def is_replaying(self) -> bool:
        """Whether records of some topics still wait to be replayed."""
        return bool(self._backlog)

    def waits_for_replay(self, name: str) -> bool:
        topic = self.state.by_name.get(name)
        return topic is not None and topic in self._backlog

    def replay_in_steps(self, name: str | None = None) -> Steps[None]:
        """Replay the records that wait for one topic, or for any, before a verb that would replay them in one go."""
        # Bound: the entries that wait; each step replays some, and recovery alone adds entries.
        while self.replay_some() if name is None else self.waits_for_replay(name):
            if name is not None:
                self._backlog.replay_some(self.state, PER_STEP, self.state.by_name[name])
            yield None

    def replay_all(self) -> None:
        self._backlog.replay_all(self.state)
        self.staging.topics = self.state.by_name

    # --- topics

    def put_topic(self, name: str, patch: ConfigPatch) -> Ticket:
        """Create or reconfigure a topic. Ends with `Configured`."""
        staging = self.staging
        topic = staging.resolve(name)
        if topic is None:
            create = staging.new_topic(name, configure(check_topic(name), patch))
            return staging.stage_create(create, lambda created: Configured(created, True))
        config = configure(name, patch, topic.config)
        if config == topic.config:
            unchanged = Ticket.of(Configured(topic, False))
            return self._when_saved(topic, unchanged) if topic.needs_snapshot else unchanged
        entry = entries.Configure(topic.topic_id, config, self.clock.now_ms(), topic.next_seq - 1)

        def take_effect(_: Ticket) -> Configured:
            apply.configure(self.state, topic, entry)
            return Configured(topic, False)

        waits = topic.needs_snapshot or apply.promises_more(topic.config, config)
        ticket = staging.stage_change(topic, entry, take_effect)
        return self._when_saved(topic, ticket) if waits else ticket

    def _when_saved(self, topic: Topic, changed: Ticket) -> Ticket:
        """Return a ticket that is resolved like `changed`, once a snapshot has everything that the class promises.

        A topic that leaves `ephemeral` promises to keep records, deletes and leases that the log never had. The change
        takes effect with its entry, so that everything after it is logged; its answer waits for the snapshot.
        """
        saver = self.saver
        if saver is None:
            return changed
        ticket = Ticket()

        def end(failure: Exception | None) -> None:
            error = None
            if failure is not None:
                what = f"what the topic holds could not be written to the disk: {failure}; send the same request again"
                detail = {"reason": str(failure), "outcome": "unsaved"}
                error = TopicsError(Code.READ_ONLY, what, detail=detail, retry_after_ms=1000)
            ticket.resolve(changed.result, error)

        def landed(_: Ticket) -> None:
            ticket.wal_ns, ticket.sync_ns = changed.wal_ns, changed.sync_ns
            if changed.error is not None or not topic.needs_snapshot:
                ticket.resolve(changed.result, changed.error)
            else:
                saver(topic, end)

        changed.on_done(landed)
        return ticket

    def create_system_topic(self, name: str, patch: ConfigPatch) -> Ticket:
        """Create a topic that is the server's own: clients cannot have its name."""
        create = self.staging.new_topic(name, configure(name, patch))
        return self.staging.stage_create(create, lambda created: Configured(created, True))

    def drop_topic(self, name: str, *, if_empty: bool = False) -> Ticket:
        """Delete a topic; one that does not exist is no error. Ends with `Dropped`."""
        topic = self.staging.resolve(name)
        if topic is None:
            check_topic(name)
            return Ticket.of(Dropped(name, False, []))
        self.expire(topic)
        if if_empty and topic.pending:
            raise uploads.busy(f'a change of the records of topic "{name}"')
        if if_empty and topic.count:
            raise TopicsError(
                Code.TOPIC_NOT_EMPTY,
                f'topic "{name}" holds {topic.count} records',
                detail={"topic": name, "count": topic.count},
            )

        def take_effect(_: Ticket) -> Dropped:
            routers = [router.name for router in self.routers.table.around(topic)]
            apply.drop(self.state, topic)
            self.staging.grew(topic)
            return Dropped(name, True, routers)

        return self.staging.stage_change(topic, entries.Drop(topic.topic_id), take_effect)

    def expire_and_get(self, name: str, *, touch: bool) -> Topic:
        """Expire the topic's records and leases up to now, then return it; `touch` counts as interest in it.

        Raises `Cold` like a read.
        """
        topic = self.topic(name)
        retention.expire_loaded(topic, self.clock.now_ms())
        now = self.expire(topic)
        if touch:
            topic.last_read_ts = now
        return topic

    def expire(self, topic: Topic) -> int:
        """Expire the topic's records and leases up to now; return now in ms."""
        now = self.clock.now_ms()
        retention.expire(topic, now)
        if topic.queue is not None:
            topic.queue.expire(now)
        return now

    def expire_in_memory(self, topic: Topic) -> None:
        """Expire leases, and the records for which nothing has to be read from the disk."""
        now = self.clock.now_ms()
        if topic.queue is not None:
            topic.queue.expire(now)
        if not topic.holds and topic.links is None:
            retention.expire(topic, now, reads=False)

    # --- records

    def read(self, name: str, query: Query) -> tuple[Topic, Reading]:
        """Read as `expire_and_read` does; counts as interest in the topic."""
        topic = self.staging.topics.get(name)
        if topic is None or topic.changing:
            topic = self.topic(name)
        topic.last_read_ts = now = self.clock.now_ms()
        return topic, expire_and_read(topic, query, now)
