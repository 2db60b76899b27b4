"""Commands of one WebSocket: subscribe, unsubscribe, publish, commit, ping. Each is authorised by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec import UNSET
from msgspec.json import encode
from wsproto import events

from topics.engine.consumers.verbs import StoredConsumer
from topics.engine.state.topic import Topic
from topics.engine.steps import Steps, once_loaded
from topics.engine.write.append import Appended, Prepared
from topics.engine.write.commit import Ticket
from topics.engine.write.render import LARGE_BYTES
from topics.errors import TopicsError, invalid
from topics.model import watch
from topics.model.watch import Command, Publish, PublishAck, PublishTimes, RequestId, Subscribe, TopicOptions
from topics.model.wire import check_u64
from topics.server.access.caller import Reader, Slot, authorise, bind, with_near_names
from topics.server.access.operations import CHANGES, operation_of
from topics.server.push.dispatcher import PushServices
from topics.server.push.subscription_set import (
    SubscriptionSet,
    Watcher,
    open_positions,
    resolve,
    size_bytes,
    watched_topics,
)
from topics.storage.segments.cold import Cold

T = TypeVar("T")
Publishes = tuple[list[Publish], list[int]]  # those that share a ticket, and the sizes of their messages

MAX_UNACKED = 1024  # publishes in progress, above which the client is not read from
MAX_UNACKED_BYTES = 8 << 20  # of their messages


class SocketClient(Watcher, Protocol):
    """The connection, as its input and its commands use it."""

    open: bool
    slot: Slot
    commands: SocketCommands

    def authenticate(self, token: str, request_id: RequestId) -> None: ...
    def is_blocked(self) -> bool: ...
    def unblock(self) -> None: ...
    def hold(self, *, held: bool) -> None: ...
    def control(self, event: events.Event) -> None: ...
    def answer(self, answer: dict[str, Any], request_id: RequestId, warnings: list[str] | None = None) -> None: ...
    def refuse(self, error: TopicsError, request_id: RequestId, **more: Any) -> None: ...
    def send_texts(self, texts: Iterable[bytes]) -> None: ...
    def close(self, code: int, reason: str) -> None: ...


class SocketCommands:
    """Carries out the commands of one connection. Holds its subscriptions and its unacknowledged publishes."""

    __slots__ = ("_client", "_services", "_unfinished", "publishes", "subscriptions", "unacked", "unacked_bytes")

    def __init__(self, services: PushServices, client: SocketClient) -> None:
        self._services = services
        self._client = client
        self._unfinished = 0  # commands that wait: for the disk, for the position of a consumer, or run in slices
        self.subscriptions = SubscriptionSet(services.budget)
        self.unacked = self.unacked_bytes = 0
        self.publishes: dict[str, tuple[Ticket, Publishes]] = {}  # by topic: those that others of this read may join

    def is_blocked(self) -> bool:
        """Return whether a command waits for the disk or the log, or too many publishes are in progress."""
        return self.unacked >= MAX_UNACKED or self.unacked_bytes > MAX_UNACKED_BYTES or self._unfinished > 0

    def begin(self, command: Command, size_bytes: int, warnings: list[str] | None = None) -> bool:
        """Carry out a command, after loading what it needs. Later commands wait for it: see `is_blocked`.

        Return whether it was a publish that joins another.
        """
        if not isinstance(command, Publish):
            self.publishes.clear()
        elif warnings is None and command.topic in self.publishes and self.join([command], [size_bytes]):
            return True
        try:
            self._run(command, size_bytes, warnings)
        except Cold:
            again = once_loaded(partial(self._run, command, size_bytes, warnings))
            self._run_in_slices(again, lambda _: None, command.request_id)
        return False

    def join(self, commands: Sequence[Publish], sizes: list[int]) -> bool:
        """Add publishes to the last one of their topic. Return False if one needs a ticket or a decision of its own."""
        name = commands[0].topic
        found = self.publishes.get(name)
        if found is None or self.unacked + len(commands) >= MAX_UNACKED:
            return False
        for command in commands:
            if command.config is not None or command.topic != name:
                return False
        if not self._services.runtime.engine.appends.extend(found[0], commands):
            return False
        joined, sizes_of_joined = found[1]
        joined += commands
        sizes_of_joined += sizes
        self.unacked += len(commands)
        self.unacked_bytes += sum(sizes)
        return True

    def _run(self, command: Command, size_bytes: int, warnings: list[str] | None) -> None:
        """Carry out and answer a command. Raise `Cold` before anything has happened."""
        if not self._client.open:
            return
        request_id, caller = command.request_id, self._client.slot.caller
        try:
            operation, targets = operation_of(command)
            if operation.scope & CHANGES:
                self._services.check_writer()
            authorise(self._services.runtime.engine, caller, operation, *targets, wanted=command)
            if isinstance(command, Publish):
                bind(caller, command)
                self._publish(command, warnings, size_bytes=size_bytes)
            elif isinstance(command, Subscribe):
                self._subscribe(command, warnings)
            elif isinstance(command, watch.Unsubscribe):
                self._unsubscribe(command, warnings)
            elif isinstance(command, watch.CommitCommand):
                self._commit(command)
            elif isinstance(command, watch.Authenticate):
                self._client.authenticate(command.token, request_id)
            elif isinstance(command, watch.Ping):
                self._client.answer({"op": "pong"}, request_id, warnings)
        except TopicsError as error:
            self._client.refuse(with_near_names(error, self._services.runtime.engine.state, caller), request_id)
        self._client.unblock()

    def _run_in_slices(self, steps: Steps[T], then: Callable[[T], None], request_id: RequestId) -> None:
        """Run steps, and `then` with their result. Later commands wait for them, so that the order holds."""

        def finish(result: T) -> None:
            self._unfinished -= 1
            then(result)
            self._client.unblock()

        def fail(error: TopicsError) -> None:
            self._unfinished -= 1
            self._client.refuse(error, request_id)
            self._client.unblock()

        self._unfinished += 1
        self._services.slices.run(steps, finish, fail)

    def _subscribe(self, command: Subscribe, warnings: list[str] | None) -> None:
        topics = command.watched()
        if not any(options.by_name for options in topics.values()):
            self._begin_watching(command, topics, warnings)
            return
        runtime = self._services.runtime
        most = runtime.settings.max_watch_topics
        opened = open_positions(runtime.engine, topics, max_topics=most, lenient=command.lenient)
        if opened.done:
            self._begin_watching(command, opened.value(), warnings)
        else:
            self._unfinished += 1
            opened.on_done(partial(self._opened, command, warnings))

    def _opened(self, command: Subscribe, warnings: list[str] | None, opened: Ticket) -> None:
        """Begin to watch: the positions of the consumers are in the log."""
        self._unfinished -= 1
        begin = once_loaded(lambda: self._begin_watching(command, opened.value(), warnings))
        self._run_in_slices(begin, lambda _: None, command.request_id)

    def _begin_watching(self, command: Subscribe, topics: dict[str, TopicOptions], warnings: list[str] | None) -> None:
        if not self._client.open:
            return
        services, own = self._services, self.subscriptions
        subscriptions, patterns = resolve(
            services.runtime, topics, command, self._client.slot.caller, lenient=command.lenient
        )
        most = services.runtime.settings.max_watch_topics
        others = sum(1 for one in own.subscriptions.values() if one.topic.name not in subscriptions)
        if others + len(subscriptions) > most:
            raise invalid(f"the connection would watch more than {most} topics", field="topics")
        if patterns and len(own.patterns.keys() | patterns.keys()) > most:
            raise invalid(f"the connection would have more than {most} patterns", field="topics")
        services.budget.check(size_bytes(subscriptions, patterns))
        answer = {"op": "subscribed", "topics": watched_topics(subscriptions)}
        self._client.answer(answer, command.request_id, warnings)
        for name, subscription in subscriptions.items():
            self._remove(name)
            own.add(subscription)
            services.dispatcher.attach(subscription, self._client)
        own.patterns |= patterns
        own.charge()
        if patterns:
            services.pattern_waiters.put(self._client, own.prefixes(), self._match)

    def _commit(self, command: watch.CommitCommand) -> None:
        """Move the consumer of a subscription to the seq that the client has processed."""
        name, reader = command.topic, command.consumer
        if reader is None:
            watched = self.subscriptions.named(name)
            reader = next((one.consumer for one in watched if one.consumer is not None), None)
        if reader is None:
            raise invalid("commit needs consumer: no subscription of the topic has one", field="consumer")
        engine, request_id = self._services.runtime.engine, command.request_id
        ticket = engine.consumers.open(name, reader, commit=check_u64(command.seq, "seq"), create=False)
        self.unacked += 1

        def finish(done: Ticket) -> None:
            self.unacked -= 1
            if done.error is not None:
                self._client.refuse(done.error, request_id)
            else:
                stored: StoredConsumer = done.result
                now_ms = self._services.runtime.clock.now_ms()
                who = Reader(self._client.slot.caller, "", b"WebSocket", now_ms)
                engine.consumers.note_reader(stored.topic, stored.name, who)
                answer = {"op": "committed", "topic": name, "consumer": stored.name, "seq": stored.seq}
                self._client.answer(answer, request_id)
            self._client.unblock()

        ticket.on_done(finish)

    def _unsubscribe(self, command: watch.Unsubscribe, warnings: list[str] | None) -> None:
        name, own = command.topic, self.subscriptions
        watch.check_name(name)
        if watch.is_pattern(name):
            own.patterns.pop(name, None)
            for subscription in list(own.subscriptions.values()):
                if subscription.topic.name.startswith(name[:-1]):
                    self._remove(subscription.topic.name)
            self._services.pattern_waiters.put(self._client, own.prefixes(), self._match)
        else:
            self._remove(name)
        own.charge()
        self._client.answer({"op": "unsubscribed", "topic": name}, command.request_id, warnings)

    def _remove(self, name: str) -> None:
        for subscription in self.subscriptions.named(name):
            self._services.dispatcher.detach(subscription)
            self.subscriptions.remove(subscription)

    def _match(self, topic: Topic) -> None:
        subscription = self.subscriptions.match(topic)
        if subscription is None:
            return
        most = self._services.runtime.settings.max_watch_topics
        if len(self.subscriptions.subscriptions) >= most:
            error = invalid(f"more than {most} topics match; this one is not watched")
            self._client.refuse(error, None, topics=[topic.name])
            return
        self.subscriptions.add_matched(subscription)
        self._services.dispatcher.attach(subscription, self._client)

    def _publish(self, command: Publish, warnings: list[str] | None, *, size_bytes: int) -> None:
        throttle = self._services.throttle
        if throttle.pressed and not command.disable_backpressure:
            throttle.check(command.topic)
        if size_bytes > LARGE_BYTES:
            large = self._publish_large(command, warnings, size_bytes)
            self._run_in_slices(large, lambda _: None, command.request_id)
        else:
            self._append(command, None, warnings, size_bytes)

    def _publish_large(self, command: Publish, warnings: list[str] | None, size_bytes: int) -> Steps[None]:
        prepared = yield from self._services.runtime.engine.prepare_append(command.topic, command)
        yield from once_loaded(lambda: self._append(command, prepared, warnings, size_bytes))

    def _append(self, command: Publish, prepared: Prepared | None, warnings: list[str] | None, size_bytes: int) -> None:
        engine = self._services.runtime.engine
        ticket = engine.append(command.topic, command, prepared)
        if engine.appends.warning is not None:
            warnings = [*(warnings or []), engine.appends.take_warning()]
        self.unacked += 1
        self.unacked_bytes += size_bytes
        publishes: Publishes = [command], [size_bytes]
        if warnings is None and not self._services.throttle.pressed and self._client.slot.caller.rights.node is None:
            self.publishes[command.topic] = ticket, publishes
        ticket.on_done(partial(self._published, publishes, warnings))

    def _published(self, publishes: Publishes, warnings: list[str] | None, done: Ticket) -> None:
        """Answer publishes that share a ticket, with one write to the socket."""
        commands, sizes = publishes
        self.unacked -= len(commands)
        self.unacked_bytes -= sum(sizes)
        if done.error is None:
            times = PublishTimes(round(done.wal_ns / 1e6, 3), round(done.sync_ns / 1e6, 3))
            self._client.send_texts(ack_texts(commands, done.result, times, warnings))
        else:
            for command in commands:
                self._client.refuse(done.error, command.request_id)
        self._client.unblock()


def ack_texts(commands: list[Publish], at: Appended, times: PublishTimes, warnings: list[str] | None) -> list[bytes]:
    """Return the acks of publishes that share a ticket.

    Acks of single records behind the first one differ in their numbers alone. They are formatted, in half of the time
    that an encoder takes.
    """
    texts, first, form = [], at.first, b""
    for command in commands:
        last = at.last if len(commands) == 1 else first + len(command.records) - 1
        number = command.request_id
        if form and last == first != at.last and command.return_seqs and type(number) is int:
            texts.append(form % (first, first, first, first, number))
        else:
            ack = PublishAck(
                command.topic, first, last, at.head if last == at.last else last, at.created, at.deduped, times,
                list(range(first, last + 1)) if command.return_seqs else UNSET,
                UNSET if number is None else number, UNSET if warnings is None else warnings,
            )  # fmt: skip
            texts.append(encode(ack))
        if not form and warnings is None and len(commands) > 2:
            form = _ACK % (encode(command.topic), *map(encode, (at.created, at.deduped, times)))
        first = last + 1
    return texts


# A form whose arguments are the parts that all acks of a ticket share; the result has the seqs and the request id.
_ACK = (
    b'{"op":"ack","topic":%b,"first_seq":%%d,"last_seq":%%d,"head_seq":%%d,"created":%b,"deduped":%b,'
    b'"performance":%b,"seqs":[%%d],"request_id":%%d}'
)
