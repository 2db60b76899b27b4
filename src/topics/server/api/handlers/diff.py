"""Handler of `diff`: reads and long polls. A hot path: answers are sliced as bytes."""

import time
from asyncio import TimerHandle
from collections.abc import Callable

from topics.engine.consumers.verbs import StoredConsumer
from topics.engine.read.read import Query, Reading
from topics.engine.state.topic import Topic
from topics.engine.write.commit import Ticket
from topics.errors import TopicsError, invalid
from topics.model import records as model
from topics.model.filters import parse_filter
from topics.model.records import DEFAULT_BATCH_BYTES, DEFAULT_LIMIT, MAX_BATCH_BYTES, STORED_FORM, DiffRequest
from topics.model.wire import check_u64s
from topics.server.access.caller import Reader, authorise
from topics.server.access.operations import more_than_route
from topics.server.api.route import Call
from topics.server.api.services import Services
from topics.server.http.messages import Answer, Deferred, Request, Response, body_bytes, error_response
from topics.server.http.request.unknown_fields import RequestDecoder
from topics.server.loop.answer import shown_ms
from topics.server.loop.runtime import NOT_LOADING, unreadable

_decode_diff = RequestDecoder[DiffRequest](DiffRequest).decode
_now_ns = time.perf_counter_ns
SMALL_BYTES = 16 << 10  # of an answer that is joined here


def diff(services: Services, call: Call) -> Answer:
    request = call.request
    name = call.params["topic"]
    if services.throttle.pressed:
        services.throttle.check(name)
    cached = services.poll_cache.find(name, request.body)
    if cached is not None:
        topic, _, before, after = cached
        topic.last_read_ts = services.runtime.clock.now_ms()
        services.runtime.reads += 1
        return Response(200, b"".join((before, shown_ms(_now_ns() - request.started_ns).encode(), after)))
    wanted = _decode_diff(request.body, call)
    if wanted.consumer is not None or wanted.commit is not False:
        return _diff_as_consumer(services, call, wanted)
    query = _query(services, wanted)
    if query.projection is STORED_FORM:  # lend the stored bytes to the socket, unless the answer may be compressed
        query.lend = request.headers.get(b"accept-encoding", b"identity") == b"identity"
    topic, reading = services.engine.read(name, query)
    if wanted.wait_ms and _nothing(topic, reading) and not services.runtime.draining:
        return LongPoll(services, name, query, request).start(topic, reading, min(wanted.wait_ms, model.MAX_WAIT_MS))
    runtime = services.runtime
    runtime.reads += 1
    runtime.records_read += reading.count
    parts, after = _diff_answer(topic, reading)
    if query.plain and len(parts) == 1 and call.warnings is None:
        services.poll_cache.keep(topic, request.body, bytes(parts[0]), after)
    return _timed(parts, after, request)


def _diff_as_consumer(services: Services, call: Call, wanted: DiffRequest) -> Answer:
    """Commit if the request says so, then return the records behind the position of the consumer."""
    services.check_writer()
    name, reader = call.params["topic"], wanted.consumer
    if reader is None:
        raise invalid("commit needs consumer: whose position to move", field="commit")
    if wanted.from_seq or wanted.from_ts is not None:
        what = "consumer goes without from_seq and from_ts: its position says where to begin"
        raise invalid(what, field="consumer")
    more = more_than_route(wanted)
    assert more is not None
    authorise(services.engine, call.caller, more, name)
    query = _query(services, wanted)
    query.epoch = None  # `open` has compared it
    check_u64s(wanted, "commit")
    ticket = services.engine.consumers.open(name, reader, commit=wanted.commit, epoch=wanted.epoch)
    who = call.reader(services.runtime.clock.now_ms())
    return LongPoll(services, name, query, call.request, reader, who).begin(
        ticket, min(wanted.wait_ms, model.MAX_WAIT_MS)
    )


def _query(services: Services, wanted: DiffRequest) -> Query:
    limit, max_limit = wanted.limit or DEFAULT_LIMIT, services.engine.limits.max_limit
    max_bytes = wanted.max_batch_bytes or DEFAULT_BATCH_BYTES
    query = Query(
        from_seq=wanted.from_seq,
        limit=limit if limit < max_limit else max_limit,
        max_bytes=max_bytes if max_bytes < MAX_BATCH_BYTES else MAX_BATCH_BYTES,
    )
    if (wanted.from_seq | wanted.limit | wanted.wait_ms | wanted.max_batch_bytes) >> 63:
        check_u64s(wanted, "from_seq", "limit", "wait_ms", "max_batch_bytes")
    bare = wanted.node is None and wanted.filter is None and wanted.from_ts is None and wanted.epoch is None
    if bare and wanted.include_meta and not wanted.include_tags:
        query.plain = True
        return query
    if wanted.node is not None:
        query.nodes = model.node_set(wanted.node)
    if wanted.include_tags or not wanted.include_meta:
        query.projection = model.Projection(tags=wanted.include_tags, meta=wanted.include_meta)
    if wanted.filter is not None:
        query.match = parse_filter(wanted.filter)
    check_u64s(wanted, "from_ts", "epoch")
    query.from_ts, query.epoch = wanted.from_ts, wanted.epoch
    return query


def _nothing(topic: Topic, reading: Reading) -> bool:
    return not reading.count and reading.tombstone is None and reading.next_from_seq >= topic.head


def _timed(before: list[bytes | memoryview], after: bytes, request: Request) -> Response:
    took = shown_ms(_now_ns() - request.started_ns).encode()
    if len(before) == 1:
        return Response(200, b"".join((before[0], took, after)))  # one write, on the fast path of the transport
    return Response(200, [*before, took + after])


def _diff_answer(topic: Topic, reading: Reading, more: str = "") -> tuple[list[bytes | memoryview], bytes]:
    """Return the answer without the time it took: the parts before the time, and the bytes after it.

    `more` has further fields as JSON text, each with a comma behind it.
    """
    head, next_from = topic.head, reading.next_from_seq
    tombstone, gap = "null", reading.tombstone
    if gap is not None:
        tombstone = (
            f'{{"gap_from":{gap.gap_from},"gap_to":{gap.gap_to},"reason":"{gap.reason}",'
            f'"missed_estimate":{gap.missed_estimate},"earliest_seq":{gap.earliest_seq},"head_seq":{gap.head_seq}}}'
        )
    end = (
        f'],"next_from_seq":{next_from},"head_seq":{head},"earliest_seq":{topic.earliest},'
        f'"caught_up":{"true" if next_from >= head else "false"},"tombstone":{tombstone},'
        f'"lag":{head - next_from if head > next_from else 0},{more}"performance":{{"server_total_ms":'
    ).encode()
    after = f',"records_scanned":{reading.scanned}}}}}\n'.encode()
    start, parts = topic.diff_start or topic.begin_diff(), reading.parts
    if not parts:
        return [start + end], after
    if len(parts) == 1 and len(parts[0]) < SMALL_BYTES:
        return [b"".join((start, parts[0][:-1], end))], after
    return [start, *reading.body(), end], after


class LongPoll:
    """A diff that is answered later. It waits until the topic grows, its time runs out, or its client leaves.

    A diff of a consumer (`reader`) also waits for its commit, and reads from the position of the consumer.
    """

    __slots__ = (
        "_cancel_wait", "_committed", "_deferred", "_loading", "_name", "_opened", "_over", "_query", "_reader",
        "_request", "_scanned", "_services", "_timer", "_waits_since_ns", "_who",
    )  # fmt: skip

    def __init__(
        self, services: Services, name: str, query: Query, request: Request, reader: str | None = None,
        who: Reader | None = None,
    ) -> None:  # fmt: skip
        self._services = services
        self._name = name
        self._query = query
        self._request = request
        self._reader, self._who = reader, who
        self._committed = 0  # the position of the consumer
        self._opened = reader is None  # whether that is known
        self._scanned = 0
        self._loading = NOT_LOADING
        self._over = False  # whether to answer even if nothing was found
        self._timer: TimerHandle | None = None
        self._cancel_wait: Callable[[], None] = lambda: None
        self._deferred = Deferred(self._stop, on_hurry=self.end)

    def start(self, topic: Topic, reading: Reading, wait_ms: int) -> Deferred:
        """Wait `wait_ms` for records, after a read that found none."""
        self._begin_wait(wait_ms)
        self._wait(topic, reading)
        return self._deferred

    def begin(self, ticket: Ticket, wait_ms: int) -> Deferred:
        """Read when the ticket of `Consumers.open` is resolved, and wait `wait_ms` for records if there are none."""
        if wait_ms and not self._services.runtime.draining:
            self._begin_wait(wait_ms)
        else:
            self._over = True
        ticket.on_done(self._begin_reading)
        return self._deferred

    def _begin_wait(self, wait_ms: int) -> None:
        self._timer = self._services.runtime.call_later(wait_ms, self.end)
        self._services.runtime.open_ended.add(self)

    def _begin_reading(self, ticket: Ticket) -> None:
        if self._deferred.cancelled:
            return
        if ticket.error is not None:
            self._finish(error_response(ticket.error, self._request))
            return
        stored: StoredConsumer = ticket.result
        self._opened = True
        self._committed = self._query.from_seq = stored.seq
        self._loading = self._services.runtime.attempt(self._read, self._cannot_read)

    def end(self) -> None:
        """Answer now, or once the commit is in the log: the time is over, the server stops, or the client may leave."""
        self._over = True
        if self._opened:
            if self._loading.waiting:
                self._cancel_wait()
            else:
                self._woken()

    def _wait(self, topic: Topic, reading: Reading) -> None:
        # Skipped records need not be scanned again.
        self._scanned += reading.scanned
        self._query.from_seq, self._query.from_ts = reading.next_from_seq, None
        self._waits_since_ns = _now_ns()
        self._cancel_wait = self._services.engine.listen(topic, self._woken)

    def _woken(self, _: Topic | None = None) -> None:
        self._cancel_wait()
        self._request.waited_ns += _now_ns() - self._waits_since_ns
        self._loading = self._services.runtime.attempt(self._read, self._cannot_read)

    def _cannot_read(self, failure: BaseException) -> None:
        self._finish(error_response(unreadable(failure), self._request))

    def _read(self) -> None:
        """Answer, or continue to wait if there is nothing new. Raise `Cold` if records must be loaded."""
        services, reader = self._services, self._reader
        try:
            topic, reading = services.engine.read(self._name, self._query)
        except TopicsError as error:
            self._finish(error_response(error, self._request))
            return
        if _nothing(topic, reading) and not self._over:
            self._wait(topic, reading)
            return
        reading.scanned += self._scanned
        services.runtime.reads += 1
        services.runtime.records_read += reading.count
        more = "" if reader is None else f'"consumer":"{reader}","committed_seq":{self._committed},'
        response = _timed(*_diff_answer(topic, reading, more), self._request)
        try:
            services.budget.check_answer(body_bytes(response.body))
        except TopicsError as error:
            response = error_response(error, self._request)
        else:
            if reader is not None:
                services.engine.consumers.note_delivered(topic, reader, reading.next_from_seq)
                services.engine.consumers.note_reader(topic, reader, self._who)
        self._finish(response)

    def _finish(self, response: Response) -> None:
        self._stop()
        self._deferred.resolve(response)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._services.runtime.open_ended.discard(self)
        self._cancel_wait()
        self._loading.cancel()
