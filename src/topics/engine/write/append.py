"""The verb `append`: all records of a write with contiguous seqs, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from topics.engine import retention
from topics.engine.state import idempotency
from topics.engine.state.topic import EMPTY, Remembered, Topic
from topics.engine.steps import Steps
from topics.engine.write import apply
from topics.engine.write.commit import Ticket
from topics.engine.write.render import (
    PLAIN_MAX_BYTES,
    PLAIN_MAX_RECORDS,
    LargeBlob,
    lay_out,
    plain_bytes,
    plain_entry,
    render,
)
from topics.engine.write.staging import Staging
from topics.engine.write.uploads import GATES
from topics.errors import Code, TopicsError, invalid, topic_not_found
from topics.model import schemas
from topics.model.names import check_topic
from topics.model.records import MAX_IDEMPOTENCY_KEY_CHARS, PlainWriteRequest, WriteRequest
from topics.model.topic import NO_PATCH, TopicConfig, configure
from topics.storage.log import entry as entries

Name = str | tuple[str]  # an idempotency key, or the key of a unique job

LARGE_TRIES = 3  # to render a large write while others move its first seq past a power of ten
STEP_RECORDS = 64  # of a large write that are checked per step: about half a millisecond


class Appended(Struct, gc=False):
    topic: Topic
    first: int
    last: int
    head: int
    created: bool = False
    deduped: bool = False


class Prepared(Struct):
    """A large write before it is staged: the schema that it was checked against, why it does not match, its records."""

    schema: dict[str, Any] | None = None
    error: TopicsError | None = None
    blob: LargeBlob | None = None


class Appends:
    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self.warning: str | None = None  # of the last append, for a topic that only warns; its caller takes it
        # Without a detour through `staging`: `append` is the hottest path.
        self._state = staging.state
        self._commits = staging.commits
        self._clock = staging.clock
        self._limits = staging.limits

    def prepare(self, name: str, request: WriteRequest, *, renders: bool = True) -> Steps[Prepared]:
        """Check a large write in steps, and render it if it `renders`. `append` has to follow in the same step.

        That renders the write itself if others moved the topic past a power of ten each time, and checks it again only
        if the schema has changed since.
        """
        commits, limits, prepared = self._commits, self._limits, Prepared()
        topic = self._staging.topics.get(name)
        if topic is not None and topic.config.schema is not None and topic.config.schema_mode != "off":
            prepared.schema = topic.config.schema
            for low in range(0, len(request.records), STEP_RECORDS):
                prepared.error = schemas.violation(prepared.schema, request.records, low, low + STEP_RECORDS)
                if prepared.error is not None:
                    break
                yield None
            if prepared.error is not None and topic.config.schema_mode == "reject":
                raise prepared.error  # before anything is rendered

        def first_and_ts() -> tuple[int, int]:
            """Return the first seq and the commit time that the write would have now."""
            topic, now = self._staging.topics.get(name), commits.turn_ms or self._clock.now_ms()
            return (1, now) if topic is None else (topic.next_seq, max(topic.last_ts, now))

        for _ in range(LARGE_TRIES if renders else 0):
            blob = yield from lay_out(request, *first_and_ts(), limits)
            held_bytes = len(blob.blob)
            commits.pending_bytes += held_bytes  # the memory budget counts it
            commits.wal.warm(held_bytes)
            try:
                yield from blob.fill()
            finally:
                commits.pending_bytes -= held_bytes
            if blob.fits(*first_and_ts()):
                prepared.blob = blob
                break
        return prepared

    def take_warning(self) -> str:
        found, self.warning = self.warning, None
        return found or ""

    def _check(self, config: TopicConfig, request: WriteRequest, prepared: Prepared | None) -> str | None:
        """Raise `schema_violation`, or return a warning, if a record does not match the schema of its topic."""
        schema = config.schema
        if schema is None or config.schema_mode == "off":
            return None
        is_known = prepared is not None and prepared.schema is schema
        error = prepared.error if prepared and is_known else schemas.violation(schema, request.records)
        if error is not None and config.schema_mode == "reject":
            raise error
        return None if error is None else error.message

    def append(self, name: str, request: WriteRequest, prepared: Prepared | None = None) -> Ticket:
        """Stage a write, and the creation of its topic if need be. Ends with `Appended`.

        `prepared` is the result of `prepare` for the same write.
        """
        staging = self._staging
        topic = staging.topics.get(name)
        if topic is None or topic.changing:
            topic = staging.resolve(name)
        commits = self._commits
        now = commits.turn_ms or self._clock.now_ms()
        limits, plain = self._limits, 0
        names: list[Name] | None = None
        if prepared is None and request.idempotency_key is None:
            plain = plain_bytes(request, limits)
        if not plain:
            names, twin = self._names(topic, request, now)
            if twin is not None:
                return twin
        if topic is None:
            return self._create(name, request, now, prepared, plain)
        config = topic.config
        warning = None if config.schema is None else self._check(config, request, prepared)
        first, ts = topic.next_seq, now if now > topic.last_ts else topic.last_ts
        has_caps = config.cap_bytes or config.cap_records or limits.max_total_bytes
        if plain and not has_caps and topic.links is None:
            ticket = self._share(topic, request, plain, first, ts)
            commits.turn_ms = now
            self.warning = warning
            return ticket
        blob = None if prepared is None else prepared.blob
        at = topic.topic_id, first, ts
        entry = plain_entry([request], *at) if plain else self._entry(request, blob, *at)
        if entry.extras is not None:
            check_terms(config, request, entry)
        if has_caps:
            staging.check_room(config, topic, entry, now)
        frame = entries.encode_large(entry) if staging.logged and config.durability != "ephemeral" else None
        gated = GATES[config.durability] if staging.logged else 0
        ticket = Ticket(topic, frame, self._take_effect, entry, first, len(entry.sizes), len(entry.blob), gated=gated)
        if names:
            self._hold_names(topic, names, ticket)
        commits.stage(ticket)
        commits.turn_ms = now
        if blob is not None:
            commits.has_large = True
        self.warning = warning
        return ticket

    def _names(self, topic: Topic | None, request: WriteRequest, now: int) -> tuple[list[Name], Ticket | None]:
        """Return what another write of this turn must not have, and the outcome of an earlier write that has it."""
        names: list[Name] = []
        if (key := request.idempotency_key) is not None:
            if not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY_CHARS:
                what = f"idempotency_key must have 1 to {MAX_IDEMPOTENCY_KEY_CHARS} characters"
                raise invalid(what, field="idempotency_key")
            names.append(key)
        if type(request) is not PlainWriteRequest and len(request.records) == 1:
            if (unique := request.records[0].unique) is not None:
                names.append((unique.key,))
        for name in names:
            text, find = (name, _seen) if isinstance(name, str) else (name[0], _pending)
            if topic is not None and (twin := find(topic, text, now)) is not None:
                return names, twin
            self._staging.admit_key(idempotency.size_bytes(text))
        return names, None

    def extend(self, ticket: Ticket, requests: Sequence[WriteRequest]) -> bool:
        """Add plain writes to a pending one, if that is the last of its topic. Return False if one needs a ticket."""
        topic, limits, count, size_bytes = ticket.topic, self._limits, 0, 0
        if (
            topic is None or ticket.done or topic.next_seq != ticket.first + ticket.count or topic.links is not None
            or topic.config.schema is not None
        ):  # fmt: skip
            return False
        for request in requests:
            if request.idempotency_key is not None or not (request_bytes := plain_bytes(request, limits)):
                return False
            size_bytes += request_bytes
            count += len(request.records)
        ts = max(self._commits.turn_ms, topic.last_ts)
        leader = topic.follow(count, size_bytes, ts, PLAIN_MAX_RECORDS, PLAIN_MAX_BYTES)
        if leader is None:
            return False
        leader.entry.extend(requests)
        self._commits.pending_bytes += size_bytes
        topic.enlarge(ticket, count)
        return True

    def _share(self, topic: Topic, request: WriteRequest, size_bytes: int, first: int, ts: int) -> Ticket:
        """Stage plain records for an entry that appends of this turn share. Caps would have to count pending ones."""
        n = len(request.records)
        leader: Ticket | None = topic.leader
        if leader is not None:
            leader = topic.follow(n, size_bytes, ts, PLAIN_MAX_RECORDS, PLAIN_MAX_BYTES)
        if leader is not None:
            leader.entry.append(request)
            self._commits.pending_bytes += size_bytes
            ticket = Ticket(topic, None, None, None, first, n)
            if leader.followers is None:
                leader.followers = []
            leader.followers.append(ticket)
            return ticket
        gated = GATES[topic.config.durability] if self._staging.logged else 0
        ticket = Ticket(topic, None, self._take_effect, [request], first, n, size_bytes, ts, None, gated)
        ticket.close = self._close
        self._commits.stage(ticket)
        return ticket

    def _close(self, leader: Ticket) -> None:
        """Make one entry of the requests of `leader` and its followers."""
        topic: Topic = leader.topic  # type: ignore[assignment]  # an append has one
        leader.entry = entry = plain_entry(leader.entry, topic.topic_id, leader.first, leader.ts)
        if self._staging.logged and topic.config.durability != "ephemeral":
            leader.frame = entries.encode(entry)

    def _hold_names(self, topic: Topic, names: list[Name], ticket: Ticket) -> None:
        """Let other writes with these names follow this one, until it has taken effect or is refused."""
        topic.staged_keys = topic.staged_keys or {}
        topic.staged_keys.update(dict.fromkeys(names, ticket))

        def end() -> None:
            for name in names:
                if name in topic.staged_keys:  # two writes have the same name in a topic without a window
                    del topic.staged_keys[name]
            topic.staged_keys = topic.staged_keys or EMPTY

        def take_effect(ticket: Ticket) -> Appended:
            end()
            return self._take_effect(ticket)

        ticket.apply, ticket.undo = take_effect, end

    def _entry(self, request: WriteRequest, blob: LargeBlob | None, to: int, first: int, ts: int) -> entries.Append:
        fits = blob is not None and blob.fits(first, ts)
        return blob.entry(to, first, ts) if blob and fits else render(request, to, first, ts, self._limits)

    def _create(self, name: str, request: WriteRequest, now: int, prepared: Prepared | None, plain: int) -> Ticket:
        staging, blob = self._staging, None if prepared is None else prepared.blob
        config = configure(check_topic(name), request.config or NO_PATCH)
        if not (config.auto_create if request.create is None else request.create):
            raise topic_not_found(name)
        if not self._limits.may_create(name):
            what = f'topic "{name}" does not exist, and TOPICS_AUTO_CREATE lets no write create it'
            raise TopicsError(Code.TOPIC_NOT_FOUND, what, detail={"topic": name, "reason": "auto_create"})
        warning = None if config.schema is None else self._check(config, request, prepared)
        if plain:
            entry = plain_entry([request], 0, 1, now)
        else:
            entry = self._entry(request, blob, 0, 1, now)
            check_terms(config, request, entry)
        if config.cap_bytes or config.cap_records or self._limits.max_total_bytes:
            staging.check_room(config, None, entry, now)
        create = staging.new_topic(name, config)
        entry.topic_id = create.topic_id
        self.warning = warning

        def take_effect(topic: Topic) -> Appended:
            staging.land(topic, entry, plain=plain > 0)
            return Appended(topic, 1, topic.head, topic.head, created=True)

        if blob is not None:
            self._commits.has_large = True
        return staging.stage_create(create, take_effect, append=entry)

    def _take_effect(self, ticket: Ticket) -> Appended:
        topic = ticket.topic
        assert topic is not None
        entry, first = ticket.entry, ticket.first
        if ticket.ts and len(entry.sizes) == 1 and topic.links is None:  # a router may have come since it was staged
            apply.append_plain(self._state, topic, entry)
            if topic.listeners:
                self._staging.grew(topic)
            return Appended(topic, first, first, first)
        self._staging.land(topic, entry)
        last = first + ticket.count - 1
        if ticket.followers is not None:
            for follower in ticket.followers:
                last_of = follower.first + follower.count - 1
                follower.result = Appended(topic, follower.first, last_of, last_of)
        return Appended(topic, first, last, last)


def _seen(topic: Topic, key: str, now_ms: int) -> Ticket | None:
    """Return the outcome of an earlier write with the same key, if it is remembered or still pending."""
    if not topic.config.idempotency_window_ms:
        return None  # keys mean nothing here, not even to the next write of the same turn
    return _twin(topic, idempotency.find(topic, key, now_ms), key)


def _pending(topic: Topic, key: str, now_ms: int) -> Ticket | None:
    """Return the outcome of an earlier write whose job has the same unique key, if that job counts or is pending."""
    if topic.queue is None:
        return None
    retention.expire(topic, now_ms)
    seq, ends_ms = topic.queue.unique.find(key, now_ms)
    if not ends_ms and seq < retention.expiring_before(topic, now_ms):
        seq = 0
    found = None if not seq or idempotency.is_void(topic, seq) else Remembered(seq, seq, now_ms)
    return _twin(topic, found, (key,))


def _twin(topic: Topic, write: Remembered | None, name: Name) -> Ticket | None:
    """Return the outcome of the earlier write, which is done or still pending under this name."""
    if write is not None:
        return Ticket.of(Appended(topic, write.first, write.last, topic.head, deduped=True))
    leader: Ticket | None = topic.staged_keys.get(name)
    if leader is None:
        return None
    twin = Ticket()

    def follow(done: Ticket) -> None:
        if done.error is not None:
            twin.resolve(None, done.error)
        else:
            landed: Appended = done.result
            twin.wal_ns, twin.sync_ns = done.wal_ns, done.sync_ns
            twin.resolve(Appended(topic, landed.first, landed.last, topic.head, deduped=True))

    leader.on_done(follow)
    return twin


def check_terms(config: TopicConfig, request: WriteRequest, entry: entries.Append) -> None:
    """Refuse priorities and delays of jobs for a topic that is no queue: a log would ignore them silently."""
    if entry.extras is not None and config.type != "queue":
        for record in request.records:
            terms = record.priority, record.delay_ms, record.deliver_at, record.unique
            if terms.count(None) < len(terms):
                what = "priority, delay_ms, deliver_at and unique are for jobs: the topic is a log"
                raise invalid(what, field="records")
    entry.extras = entry.extras or None
