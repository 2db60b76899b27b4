"""w1j, w6j, w7j, w8j, w28, w29: publishing, latency, fan-out and queues against NATS JetStream with file storage.

The figures are processor time of the server per message, because an interpreted generator cannot load a server in Go;
those of w6j are latencies, at a pace that loads neither.
Both sides get the same generator, and after the rounds both must have every message.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count, islice, repeat

import jetstream
from api import Api
from fanout import (
    Flood,
    Writer,
    append_request,
    nats_writer,
    open_nats,
    open_streams,
    paced,
    subscribe_nats,
    topics_writer,
)
from inflight import Source, connect, keep_in_flight, masked, open_websocket
from payload import record
from peers import Server, running, start_nats, start_topics
from plan import Plan, installed
from row import Ask, Outcome, Reading, Row, Side, at_most
from rows import live
from rows.queue import BATCH, CLAIMED, JOBS, WORKERS, queue_load
from turns import Contender, cpu_us, held_up, is_crowded, take_turns
from workers import work_off

TOPIC, QUEUE = "t", "jobs"
CONNECTIONS = 32
SHARE_OF_RECORDS = 50  # a round has 20,000 messages
FEW, MANY = 16, 500  # messages in flight on each connection of async publishers
PEER = "nats-server"
HTTP_OK = b"HTTP/1.1 200"
WEBSOCKET_ACK = b'"op":"ack"'


class _Publisher:
    """One contender: its connections stay open for all rounds, and it counts what was acked.

    A round has a number of messages and no time: what a server does beside them weighs the same on a busy machine.
    """

    def __init__(self, plan: Plan, sources: Sequence[Source], mark: bytes, *, depth: int) -> None:
        self._each = plan.scale.records // SHARE_OF_RECORDS // len(sources)
        self._sources = sources
        self._mark = mark
        self._depth = depth
        self.acked = 0

    def run(self) -> float:
        """Return the messages acked per second."""
        round_of = [(link, islice(messages, self._each)) for link, messages in self._sources]
        started = time.perf_counter()
        acked = keep_in_flight(round_of, self._mark, depth=self._depth)
        self.acked += acked
        return acked / (time.perf_counter() - started)

    def contender(self, name: str, server: Server) -> Contender:
        return Contender(name=name, unit="messages/s", run=self.run, pid=lambda: server.pid)


def _jetstream(plan: Plan, stack: ExitStack, server: Server, *, connections: int, depth: int) -> _Publisher:
    inboxes = range(depth * connections, (depth + 1) * connections)  # an ack reaches no other connection
    sources = [
        (stack.enter_context(jetstream.publisher(server.port, inbox)), jetstream.publishes(TOPIC.encode(), inbox))
        for inbox in inboxes
    ]
    return _Publisher(plan, sources, jetstream.ACK, depth=depth)


def measure_requests(plan: Plan) -> Outcome:
    """Compare appends over HTTP, one in flight on each connection, with publishing to JetStream."""
    with ExitStack() as stack:
        ours = _topics(plan, stack)
        request = append_request(TOPIC)
        http = [(stack.enter_context(connect(ours.port)), repeat(request)) for _ in range(CONNECTIONS)]
        appending = _Publisher(plan, http, HTTP_OK, depth=1)
        contenders, publishing = [appending.contender("topics, HTTP", ours)], []
        if installed(PEER):
            nats = _nats(plan, stack)
            for depth in (1, FEW):
                one = _jetstream(plan, stack, nats, connections=CONNECTIONS, depth=depth)
                publishing.append(one)
                contenders.append(one.contender(f"JetStream, {depth} in flight", nats))
        sides = take_turns(contenders, rounds=plan.scale.rounds)
        _check(Api(ours.port).count(TOPIC), appending.acked)
        if publishing:
            _check(jetstream.messages_in(nats.port, TOPIC), sum(one.acked for one in publishing))
    peers: list[Side | None] = [*sides[1:]] or [None, None]
    return Outcome([_by_cpu(ask.key, sides[0], peer) for ask, peer in zip(ROWS[0].asks, peers, strict=True)], sides)


def measure_queue(plan: Plan) -> Outcome:
    sides = _queues(plan, WORKERS, BATCH)
    return Outcome([_by_cpu("JetStream", sides[0], sides[1] if len(sides) > 1 else None)], sides)


def measure_large_claims(plan: Plan) -> Outcome:
    return _cost("server CPU per job", _queues(plan, 1, CLAIMED))


def _queues(plan: Plan, workers: int, batch: int) -> list[Side]:
    with ExitStack() as stack:
        ours = stack.enter_context(running(start_topics(plan, plan.fresh_dir("topics"))))
        contenders = [queue_load(ours, workers=workers, batch=batch)]
        if installed(PEER):
            nats = stack.enter_context(running(start_nats(plan, plan.fresh_dir("nats"))))
            contenders.append(_pull_and_ack(nats, workers, batch))
        return take_turns(contenders, rounds=plan.scale.rounds)


def _pull_and_ack(server: Server, workers: int, batch: int) -> Contender:
    def fill() -> None:
        jetstream.fill_queue(server.port, QUEUE, JOBS)
        queue[:] = [jetstream.PullConsumer(QUEUE.encode(), batch, worker) for worker in range(1, workers + 1)]

    queue: list[jetstream.PullConsumer] = []

    def run() -> float:
        per_s = work_off(server.port, queue, jobs=JOBS)
        _check(jetstream.messages_in(server.port, QUEUE), 0)
        return per_s

    return Contender(
        name="JetStream, pull and ack",
        unit="jobs/s",
        run=run,
        before=fill,
        pid=lambda: server.pid,
    )


def measure_latency(plan: Plan) -> Outcome:
    pace = {"per_s": live.PER_S, "seconds": plan.scale.round_s}
    with ExitStack() as stack:
        ours, nats = _topics(plan, stack), _nats(plan, stack) if installed(PEER) else None
        served, theirs = [], []
        for _ in range(plan.scale.rounds):
            served.append(paced(topics_writer(ours.port, TOPIC), open_streams(ours.port, TOPIC, live.FEW), **pace))
            if nats is not None:
                subject = TOPIC.encode()
                links = open_nats(nats.port, subject, live.FEW)
                theirs.append(paced(nats_writer(nats.port, subject), links, **pace))
    sides = [live.latency_side("topics, event streams", served)]
    if theirs:
        sides.append(live.latency_side("JetStream, subscriptions", theirs))
    found: list[Side | None] = [*sides, None]
    return Outcome([_p99(ask.key, side) for ask, side in zip(LATENCY_ASKS, found, strict=False)], sides)


def _p99(key: str, side: Side | None) -> Reading:
    if side is None:
        return Reading(key=key, value=None, missing=True)
    return Reading(key=key, value=side.p99_ms, note=f"p50 {side.p50_ms:.2f} ms")


def measure_flood(plan: Plan) -> Outcome:
    with ExitStack() as stack:
        ours = _topics(plan, stack)
        contenders = [live.streams_load(plan, ours)]
        if installed(PEER):
            nats = _nats(plan, stack)
            subject = TOPIC.encode()
            publish = next(jetstream.publishes(subject))
            stored = Flood(
                lambda: subscribe_nats(nats.port, subject, live.MANY),
                lambda: Writer(jetstream.publisher(nats.port), publish, jetstream.ACK, depth=live.PIPELINE),
                plan.scale.round_s,
            )
            contenders.append(live.flood_load("JetStream, subscriptions", stored, nats))
        sides = take_turns(contenders, rounds=plan.scale.rounds)
    return Outcome([_by_cpu("JetStream", sides[0], sides[1] if len(sides) > 1 else None)], sides)


def measure_websocket(plan: Plan) -> Outcome:
    with ExitStack() as stack:
        ours = _topics(plan, stack)
        source = stack.enter_context(open_websocket(ours.port)), websocket_publishes(TOPIC)
        publishing = [_Publisher(plan, [source], WEBSOCKET_ACK, depth=MANY)]
        contenders = [publishing[0].contender("topics, WebSocket", ours)]
        if installed(PEER):
            nats = _nats(plan, stack)
            publishing.append(_jetstream(plan, stack, nats, connections=1, depth=MANY))
            contenders.append(publishing[-1].contender("JetStream, async publish", nats))
        sides = take_turns(contenders, rounds=plan.scale.rounds)
        _check(Api(ours.port).count(TOPIC), publishing[0].acked)
        if len(publishing) > 1:
            _check(jetstream.messages_in(nats.port, TOPIC), publishing[1].acked)
    return _cost("server CPU per message", sides)


def websocket_publishes(topic: str) -> Iterator[bytes]:
    """Yield publishes of one record, each with a request id of its own."""
    form = b'{"op":"publish","topic":"%b","request_id":%%d,"records":[%b]}' % (topic.encode(), record())
    return (masked(form % number) for number in count())


def _topics(plan: Plan, stack: ExitStack) -> Server:
    server = stack.enter_context(running(start_topics(plan, plan.fresh_dir("topics"))))
    Api(server.port).create(TOPIC, durability="disk")
    return server


def _nats(plan: Plan, stack: ExitStack) -> Server:
    server = stack.enter_context(running(start_nats(plan, plan.fresh_dir("nats"))))
    jetstream.create_stream(server.port, TOPIC)
    return server


def _check(kept: int, expected: int) -> None:
    if kept != expected:
        raise RuntimeError(f"{kept:,} messages are on the server, {expected:,} expected")


def _cost(key: str, sides: list[Side]) -> Outcome:
    """Return the processor time of our server per unit of work, and its ratio to that of the peer."""
    cost = Reading(key=key, value=cpu_us(sides[0]), crowded=is_crowded(sides[0]), note=held_up(sides[0]))
    return Outcome([cost, _by_cpu("JetStream", sides[0], sides[1] if len(sides) > 1 else None)], sides)


def _by_cpu(key: str, ours: Side, peer: Side | None) -> Reading:
    """Return how much our server does per second of its processor time, relative to the peer."""
    if peer is None:
        return Reading(key=key, value=None, missing=True)
    mine, theirs = cpu_us(ours), cpu_us(peer)
    return Reading(key=key, value=theirs / mine, note=f"{mine:.3g} µs against {theirs:.3g} µs")


LATENCY_ASKS = (Ask(key="p99", unit="ms"), Ask(key="p99, JetStream", unit="ms"))
ROWS = (
    Row(
        id="w1j",
        title="append 1 record a request, 32 connections, `disk`: server CPU per message",
        peer="JetStream, 32 connections, publish with ack, 1 and 16 in flight on each",
        asks=(Ask(key="JetStream, 1 in flight"), Ask(key=f"JetStream, {FEW} in flight")),
        measure=measure_requests,
        needs=(),
        time_limit_s=600,
    ),
    Row(
        id="w6j",
        title="w6, one writer and 100 watchers, 100 writes a second: write to delivery",
        peer="a stream of JetStream with 100 subscriptions, each publish acked before the next",
        asks=LATENCY_ASKS,
        measure=measure_latency,
        needs=(),
    ),
    Row(
        id="w7j",
        title="w7, one writer and 1000 watchers as fast as it goes: server CPU per delivery",
        peer="a stream of JetStream with 1000 subscriptions, 16 publishes in flight",
        asks=(Ask(key="JetStream"),),
        measure=measure_flood,
        needs=(),
        time_limit_s=600,
    ),
    Row(
        id="w8j",
        title="queue: 50 workers, claim 8, ack 8, 20,000 jobs: server CPU per job",
        peer="JetStream, pull consumer, 50 clients",
        asks=(Ask(key="JetStream"),),
        measure=measure_queue,
        needs=(),
        time_limit_s=600,
    ),
    Row(
        id="w28",
        title="publish single records over one WebSocket, 500 in flight: server CPU per message",
        peer="JetStream, async publish with acks, 500 in flight on one connection",
        asks=(
            Ask(key="server CPU per message", unit="µs", bar=at_most(12), goal=at_most(8)),
            Ask(key="JetStream"),
        ),
        measure=measure_websocket,
        needs=(),
        time_limit_s=600,
    ),
    Row(
        id="w29",
        title="queue: one worker, claim 1,000, ack 1,000, 20,000 jobs: server CPU per job",
        peer="JetStream, pull consumer, one client that pulls 1,000 and acks each",
        asks=(Ask(key="server CPU per job", unit="µs", bar=at_most(6), goal=at_most(4)), Ask(key="JetStream")),
        measure=measure_large_claims,
        needs=(),
        time_limit_s=600,
    ),
)
