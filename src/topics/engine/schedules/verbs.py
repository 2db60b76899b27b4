"""The verbs of schedules, and their ticks.

A schedule waits in a heap for its next tick, or one thing of it is pending: a tick, or a change. The end of that puts
it back. A tick that fails is tried again after a while, as if the server had been down in between: `catch_up` says
which ticks are left by then.

A tick is one entry: the record, and the position of its schedule. So the log has both or neither, and a start knows
which ticks are done with, whatever the topic remembers of idempotency keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import islice
from typing import ClassVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs
from xxhash import xxh64_intdigest

from topics import logs
from topics.engine.schedules import times
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.write import apply
from topics.engine.write.append import Appended, check_terms
from topics.engine.write.commit import Halted, Ticket
from topics.engine.write.render import checked_meta, render
from topics.engine.write.staging import Staging, server_full
from topics.engine.write.uploads import GATES, busy
from topics.errors import TopicsError, invalid
from topics.model import schemas
from topics.model.names import check_schedule
from topics.model.record_bytes import with_members
from topics.model.records import NewRecord, WriteRequest
from topics.model.schedule import (
    Schedule,
    SchedulePreviewRequest,
    ScheduleRequest,
    Timing,
    check_request,
    schedule_not_found,
)
from topics.nesting import decode_again
from topics.storage.log import entry as entries
from topics.storage.segments.cold import Cold, waiting

log = logs.Log("schedules")

LATE_MS = 60_000  # a tick that is later than this counts as missed
CAUGHT_UP = 100  # the last ticks that `catch_up: all` runs
RETRY_MS, MAX_RETRY_MS = 1000, 60_000
TICKS_PER_TURN = 20  # one takes about 0.2 ms
PREVIEWED = 10

Load = Callable[[Cold, Callable[[], None], Callable[[BaseException], None]], object]

_decode_record = msgspec.json.Decoder(NewRecord).decode


@entries.known
class ScheduleChanged(Struct, array_like=True):
    """A schedule is created or changed, or deleted if `schedule` is None."""

    kind: ClassVar[int] = 48
    topic_id: int  # that it had last
    name: str
    schedule: Schedule | None


@entries.known
class Ticked(Struct, array_like=True):
    """A schedule is done with all ticks up to `position`. `append` is None if the topic keeps nothing on disk."""

    kind: ClassVar[int] = 49
    topic_id: int
    name: str
    position: int  # 0 for a run that a client asked for
    last_ms: int = 0  # the tick that appends a record; 0 if none does
    append: entries.Append | None = None

    def topic_ids(self) -> tuple[int, ...]:
        return () if self.append is None else (self.append.topic_id,)


def change(state: State, entry: ScheduleChanged) -> None:
    state.schedules.put(entry.name, entry.schedule)


def move(state: State, entry: Ticked, seq: int) -> None:
    """Move the schedule. `seq` is that of the record, if there is one."""
    if (one := state.schedules.by_name.get(entry.name)) is not None:
        last = {"topic_id": entry.topic_id, "last_ms": entry.last_ms, "last_seq": seq} if entry.last_ms else {}
        moved = structs.replace(one, position=max(one.position, entry.position), **last)
        state.schedules.put(entry.name, moved)


def replay_ticked(state: State, entry: Ticked) -> None:
    made = entry.append
    move(state, entry, 0 if made is None else made.first)
    if made is not None and (topic := state.by_id.get(made.topic_id)) is not None:
        apply.replay_append(state, topic, made)


class Standing(Struct):
    """How a schedule has fared since the start."""

    wakes_at: int | None = None  # its place in the heap
    is_pending: bool = False  # a tick or a change is on its way
    owed: list[int] = []  # ticks that are due; the first one is next
    retry_ms: int = 0
    skipped: int = 0
    failures: int = 0
    last_error: str | None = None


class Schedules:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._state = staging.state
        self._heap: list[tuple[int, str]] = []
        self._standings: dict[str, Standing] = {}
        self.wake: Callable[[], None] = lambda: None  # called if the next tick is earlier than before
        self.load: Load = lambda cold, work, failed: waiting(work)  # runs work again once records are in memory

    def attach(self) -> None:
        """Look at all schedules in the next turns, once the state of the engine is recovered."""
        for name, one in self._state.schedules.by_name.items():
            if not one.config.paused:
                self._wake_at(name, 0)

    # --- verbs

    def put(self, name: str, request: ScheduleRequest) -> Ticket:
        """Create or change a schedule. Ends with the schedule, and whether it is new."""
        config = check_request(name, request)
        one = self._finished(name)
        staging, limit, now = self._staging, self._staging.limits.max_schedules, self._staging.clock.now_ms()
        if one is None and limit and len(self._state.schedules.by_name) >= limit:
            raise server_full("max_schedules", limit)
        if one is not None and one.config == config:
            return Ticket.of((one, False))
        times.check(config, now, jitter_ms=config.jitter_ms)
        topic = staging.topic(config.topic)
        if config.overlap == "skip" and topic.queue is None:
            raise invalid("overlap: skip needs a queue, because a record of a log is never finished", field="overlap")
        changed = Schedule(name, config, topic.topic_id, now, now)
        self._render(changed, topic, now, now)
        if topic.config.schema is not None and topic.config.schema_mode == "reject":
            record = decode_again(_decode_record, config.record)
            if (error := schemas.violation(topic.config.schema, [record])) is not None:
                raise error
        if one is not None:
            alike = (one.config.every_ms, one.config.starts_at) == (config.every_ms, config.starts_at)
            since_ms, position = one.since_ms if alike else now, max(one.position, now)
            changed = structs.replace(one, config=config, since_ms=since_ms, position=position)
        return self._change(ScheduleChanged(topic.topic_id, name, changed), topic, (changed, one is None))

    def drop(self, name: str) -> Ticket:
        """Delete a schedule; one that does not exist is no error. Ends with whether it existed."""
        check_schedule(name)
        one = self._finished(name)
        if one is None:
            return Ticket.of(False)
        topic = self._staging.topics.get(one.config.topic)
        return self._change(ScheduleChanged(one.topic_id, name, None), topic, True)

    def get(self, name: str) -> Schedule:
        one = self._state.schedules.by_name.get(name)
        if one is None:
            check_schedule(name)
            raise schedule_not_found(name)
        return one

    def run_now(self, name: str) -> Ticket:
        """Append the record of a schedule now, whatever its ticks do. Ends with `Appended`."""
        one = self.get(name)
        return self._stage(one, self._staging.topic(one.config.topic), self._staging.clock.now_ms(), ticks=False)

    def pause(self, name: str, *, paused: bool) -> Ticket:
        """Change whether a schedule is paused. Ends with the schedule."""
        check_schedule(name)
        one = self._finished(name) or self.get(name)
        position = max(one.position, self._staging.clock.now_ms())
        changed = structs.replace(one, config=structs.replace(one.config, paused=paused), position=position)
        if changed.config == one.config:
            return Ticket.of(one)
        topic = self._staging.topics.get(one.config.topic)
        return self._change(ScheduleChanged(one.topic_id, name, changed), topic, changed)

    def preview(self, name: str, wanted: SchedulePreviewRequest) -> tuple[Timing, list[int]]:
        """Return a timing and its next ticks: that of the request, or else that of the schedule."""
        check_schedule(name)
        after = self._staging.clock.now_ms() if wanted.after is None else wanted.after
        timing: Timing = wanted
        since_ms = after
        if wanted.cron is None and wanted.every_ms is None:
            one = self.get(name)
            timing, since_ms = one.config, one.since_ms
        else:
            times.check(wanted, after)
        return timing, list(islice(times.ticks(timing, since_ms, after), PREVIEWED))

    def standing(self, name: str) -> Standing:
        return self._standings.get(name) or Standing()

    def next_at(self, one: Schedule) -> int | None:
        """Return the time of the next tick, without its jitter; None if there is none, or its time zone is unknown."""
        try:
            return None if one.config.paused else next(times.ticks(one.config, one.since_ms, one.position), None)
        except TopicsError:
            return None

    # --- inside the verbs

    def _finished(self, name: str) -> Schedule | None:
        """Return the schedule once its tick, if one is due or pending, and its last change have taken effect."""
        standing = self._standings.get(name)
        if standing is not None and standing.wakes_at is not None and standing.wakes_at <= self._staging.clock.now_ms():
            self._tick(name)
        self._staging.commits.sync()
        if (standing := self._standings.get(name)) is not None and standing.is_pending:
            raise busy("a tick or a change of the schedule")
        return self._state.schedules.by_name.get(name)

    def _change(self, entry: ScheduleChanged, topic: Topic | None, result: object) -> Ticket:
        """Stage a change. The schedule has no ticks until it has taken effect, and those that it owed are dropped."""
        standing = self._standings.setdefault(entry.name, Standing())
        standing.wakes_at, standing.is_pending = None, True

        def end() -> None:
            del self._standings[entry.name]
            if (one := self._state.schedules.by_name.get(entry.name)) is not None:
                self._standings[entry.name] = Standing(skipped=standing.skipped, failures=standing.failures)
                self._plan(one)

        def take_effect(_: Ticket) -> object:
            change(self._state, entry)
            end()
            return result

        return self._staging.stage(None, [entry], take_effect, undo=end, also=None if topic is None else [topic])

    # --- ticks

    @property
    def delay_ms(self) -> int | None:
        """The time until `run` has something to do; None if it has not."""
        return max(self._heap[0][0] - self._staging.clock.now_ms(), 0) if self._heap else None

    def run(self) -> None:
        """Run ticks that are due, up to `TICKS_PER_TURN`. A tick that fails does not stop the others."""
        now = self._staging.clock.now_ms()
        for _ in range(TICKS_PER_TURN):
            if not self._heap or self._heap[0][0] > now:
                return
            at, name = heappop(self._heap)
            standing = self._standings.get(name)
            if standing is not None and standing.wakes_at == at:
                self._tick(name)

    def _tick(self, name: str) -> None:
        """Stage the next tick of a schedule if it is due; else put the schedule back into the heap."""
        standing = self._standings[name]
        standing.wakes_at, standing.is_pending = None, True
        try:
            self._try(name)
        except Cold as cold:
            self.load(cold, partial(self._try, name), partial(self._failed, name, refused=True))

    def _try(self, name: str) -> None:
        try:
            self._stage_tick(self._state.schedules.by_name[name], self._standings[name])
        except (Cold, Halted):
            raise
        except Exception as error:
            if not isinstance(error, TopicsError):
                log.failure("tick_failed", error, schedule=name)
            self._failed(name, error, refused=True)

    def _stage_tick(self, one: Schedule, standing: Standing) -> None:
        now, config = self._staging.clock.now_ms(), one.config
        standing.owed = standing.owed or self._owed(one, now)
        if not standing.owed:
            standing.is_pending, at = False, next(times.ticks(config, one.since_ms, one.position), None)
            if at is not None:
                self._wake_at(one.name, _runs_at(one, at))
            return
        at = standing.owed[0]
        late = config.catch_up == "none" and now - _runs_at(one, at) > LATE_MS
        topic = None if late else self._staging.topic(config.topic)
        if topic is None or (config.overlap == "skip" and _is_open(one, topic)):
            standing.skipped += 1
            topic = None
        ticket = self._stage(one, topic, at)
        refusals = list[bool]()
        ticket.undo = lambda: refusals.append(True)
        ticket.on_done(lambda ticket: self._failed(one.name, ticket.error, refused=bool(refusals)))

    def _owed(self, one: Schedule, now: int) -> list[int]:
        """Return the ticks that are due and that `catch_up` does not drop."""
        most = CAUGHT_UP if one.config.catch_up == "all" else 1
        found = times.last_ticks(one.config, one.since_ms, one.position, now, most + 1)
        return [at for at in found if _runs_at(one, at) <= now][-most:]

    def _stage(self, one: Schedule, topic: Topic | None, at: int, *, ticks: bool = True) -> Ticket:
        """Stage the record for the tick at `at`, and the position of the schedule if it `ticks`. Ends with `Appended`.

        Without a topic only the position: else the tick could be due again after a restart.
        """
        staging = self._staging
        now = staging.commits.turn_ms or staging.clock.now_ms()
        entry = Ticked(one.topic_id, one.name, at if ticks else 0)
        ticket, made = Ticket(), None
        if topic is not None:
            made = ticket.entry = self._render(one, topic, at, now)
            staging.check_room(topic.config, topic, made, now)
            ticket.topic, ticket.first, ticket.count, ticket.size_bytes = topic, made.first, 1, len(made.blob)
            ticket.gated = GATES[topic.config.durability] if staging.logged else 0
            entry.topic_id, entry.last_ms = topic.topic_id, at
            entry.append = None if topic.config.durability == "ephemeral" else made

        def take_effect(_: Ticket) -> Appended | None:
            move(self._state, entry, 0 if made is None else made.first)
            if topic is not None and made is not None:
                staging.land(topic, made)
            if ticks:
                self._landed(one.name)
            return None if topic is None or made is None else Appended(topic, made.first, made.last, topic.head)

        ticket.apply, ticket.frame = take_effect, entries.encode(entry) if staging.logged else None
        staging.commits.stage(ticket)
        staging.commits.turn_ms = now
        return ticket

    def _render(self, one: Schedule, topic: Topic, at: int, now: int) -> entries.Append:
        """Return the record for the tick at `at`, as an append does. Raise if it is invalid."""
        record, limits = decode_again(_decode_record, one.config.record), self._staging.limits
        if not isinstance(record.meta, UnsetType) and not checked_meta(record.meta, 0, limits):
            record.meta = UNSET  # it is null
        record.meta = with_members(record.meta, b'"$schedule":"%b","$schedule_at":%d' % (one.name.encode(), at))
        if record.unique is not None:
            raise invalid("the job of a schedule is not unique: use overlap `skip`", field="record.unique")
        request = WriteRequest([record])
        made = render(request, topic.topic_id, topic.next_seq, max(topic.last_ts, now), limits)
        check_terms(topic.config, request, made)
        return made

    # --- the end of a tick

    def _landed(self, name: str) -> None:
        standing = self._standings[name]
        standing.is_pending, standing.retry_ms, standing.last_error = False, 0, None
        del standing.owed[:1]
        self._plan(self._state.schedules.by_name[name])

    def _failed(self, name: str, error: BaseException | None, *, refused: bool) -> None:
        """Count a failure, if there is one. Unless the tick was refused, it is still pending, and may land later."""
        if error is None:
            return
        standing = self._standings[name]
        standing.failures += 1
        code = error.code.wire if isinstance(error, TopicsError) else type(error).__name__
        standing.last_error = f"{code}: {error}"
        if refused:
            standing.is_pending, standing.owed = False, []
            standing.retry_ms = min(max(2 * standing.retry_ms, RETRY_MS), MAX_RETRY_MS)
            self._wake_at(name, self._staging.clock.now_ms() + standing.retry_ms)

    def _plan(self, one: Schedule) -> None:
        """Look at the schedule in the next turn. To compute its times may fail, which must not fail what has landed."""
        if not one.config.paused:
            self._wake_at(one.name, 0)

    def _wake_at(self, name: str, at: int) -> None:
        self._standings.setdefault(name, Standing()).wakes_at = at
        heappush(self._heap, (at, name))
        if len(self._heap) > 2 * len(self._standings) + 64:  # most entries are outdated
            self._heap = sorted((one.wakes_at, key) for key, one in self._standings.items() if one.wakes_at is not None)
        if self._heap[0] == (at, name):
            self.wake()


def _runs_at(one: Schedule, at: int) -> int:
    """Return when the tick at `at` runs: after a delay that is the same whenever it is asked for."""
    jitter_ms = one.config.jitter_ms
    return at + xxh64_intdigest(f"{one.name} {at}".encode()) % (jitter_ms + 1) if jitter_ms else at


def _is_open(one: Schedule, topic: Topic) -> bool:
    """Return whether the job of the last tick is not finished. Raises `Cold` like a read."""
    return topic.queue is not None and topic.topic_id == one.topic_id and topic.is_live(one.last_seq)
