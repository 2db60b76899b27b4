"""Records: append, diff, delete. The hot half of the server: answers are put together as bytes."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from topics.engine.engine import Appended, Deleted
from topics.engine.read.read import Query, Reading, Tombstone
from topics.engine.state.topic import Topic
from topics.engine.steps import Steps, once_loaded
from topics.engine.write.archived import check_epoch
from topics.engine.write.delete_seqs import delete_seqs
from topics.errors import TopicsError, invalid
from topics.model.records import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_LIMIT,
    MAX_BATCH_BYTES,
    MAX_WAIT_MS,
    STORED_FORM,
    DeleteRequest,
    DiffRequest,
    Projection,
    WriteRequest,
    node_set,
    parse_match,
)
from topics.model.wire import RecordsDeleted, check_u64, decode_body
from topics.server.http import query_string as querystring
from topics.server.http.messages import Answer, Deferred, Request, Response, body_bytes
from topics.server.http.write_body import LARGE_BYTES, decode_write
from topics.server.loop import throttle
from topics.server.loop.answer import error_answer, json_answer, performance, when_done
from topics.server.loop.loads import Loading, unreadable
from topics.storage.segments.cold import Cold

if TYPE_CHECKING:
    from topics.engine.write.commit import Ticket
    from topics.server.api.route import Call
    from topics.server.app import TopicsApp

_decode_diff = msgspec.json.Decoder(DiffRequest)
_decode_delete = msgspec.json.Decoder(DeleteRequest)
_encode = msgspec.json.encode
_now_ns = time.perf_counter_ns
SMALL_BYTES = 16 << 10  # of an answer that is put together here
_MILLIS = [f"{us / 1000:.3f}" for us in range(10_000)]


def append(app: TopicsApp, call: Call) -> Answer:
    request = call.request
    write: WriteRequest | None = call.wanted
    if write is None:
        if len(request.body) > LARGE_BYTES:
            return app.decode_and_serve(call)
        write = decode_write(request.body)
    if write.idempotency_key is None and (key := request.headers.get(b"idempotency-key")):
        write.idempotency_key = key.decode("latin-1")
    with_seqs = not request.query or querystring.flag(querystring.parse(request.query), "return_seqs", default=True)
    encode = _appended_listing if with_seqs else _appended_bounds
    if app.pressed:
        return throttle.append(app, call.params["topic"], write, request, encode)
    return when_done(app.engine.append(call.params["topic"], write), request, encode)


def _appended_listing(ticket: Ticket, request: Request) -> Response:
    if ticket.plain:
        return _appended_one(ticket, request)
    first, last, entry = ticket.result.first, ticket.result.last, ticket.entry
    if entry is not None and entry.seqs:
        seqs = entry.seqs.decode()
    else:
        seqs = str(first) if first == last else _encode(list(range(first, last + 1)))[1:-1].decode()
    return _appended(ticket, request, f',"seqs":[{seqs}]')


def _appended_one(ticket: Ticket, request: Request) -> Response:
    """What `_appended` says of a single record: most answers of a busy server."""
    seq, topic, sync_ns = ticket.first, ticket.topic, ticket.sync_ns
    assert topic is not None
    body = (
        f'{{"topic":"{topic.name}","first_seq":{seq},"last_seq":{seq},"seqs":[{seq}],"head_seq":{seq},"count":1,'
        f'"created":false,"deduped":false,"performance":{{"server_total_ms":{_ms(_now_ns() - request.started_ns)},'
        f'"wal_append_ms":{_ms(ticket.wal_ns)},"fsync_ms":{_ms(sync_ns) if sync_ns else "0.000"},'
        f'"throttle_wait_ms":0.0}}}}'
    )
    return Response(200, body.encode())


def _appended_bounds(ticket: Ticket, request: Request) -> Response:
    return _appended(ticket, request, "")


def _appended(ticket: Ticket, request: Request, seqs: str) -> Response:
    """Text that is encoded at the end: formatting bytes takes twice the time."""
    done: Appended = ticket.result
    first, last = done.first, done.last
    body = (
        f'{{"topic":"{done.topic.name}","first_seq":{first},"last_seq":{last}{seqs},"head_seq":{done.head},'
        f'"count":{last - first + 1},"created":{"true" if done.created else "false"},'
        f'"deduped":{"true" if done.deduped else "false"},"performance":{{'
        f'"server_total_ms":{_ms(_now_ns() - request.started_ns)},"wal_append_ms":{_ms(ticket.wal_ns)},'
        f'"fsync_ms":{_ms(ticket.sync_ns)},"throttle_wait_ms":0.0}}}}'
    )
    return Response(201 if done.created else 200, body.encode())


def _ms(ns: int) -> str:
    """Milliseconds with three decimals, by look-up: formatting floats was a tenth of an append."""
    us = ns // 1000
    return _MILLIS[us] if us < len(_MILLIS) else f"{us / 1000:.3f}"


def diff(app: TopicsApp, call: Call) -> Answer:
    request = call.request
    name = call.params["topic"]
    if app.pressed:
        app.throttle.check(name)
    polled = app.polled.find(name, request.body)
    if polled is not None:
        polled.topic.last_read_ts = app.clock.now_ms()
        took = _ms(_now_ns() - request.started_ns).encode()
        return Response(200, b"".join((polled.before, took, polled.after)))
    wanted: DiffRequest = decode_body(_decode_diff, request.body)
    query = _query(app, wanted)
    if query.projection is STORED_FORM:  # and not to be packed, which is more than to be sent
        query.lend = request.headers.get(b"accept-encoding", b"identity") == b"identity"
    topic, reading = app.engine.read(name, query)
    if wanted.wait_ms and _nothing(topic, reading) and not app.draining:
        return LongPoll(app, name, query, request).start(topic, reading, min(wanted.wait_ms, MAX_WAIT_MS))
    before, after = _diff_answer(topic, reading)
    if query.plain and len(before) == 1:
        app.polled.keep(topic, request.body, bytes(before[0]), after)
    return _timed(before, after, request)


def _query(app: TopicsApp, wanted: DiffRequest) -> Query:
    limit, max_limit = wanted.limit or DEFAULT_LIMIT, app.engine.limits.max_limit
    max_bytes = wanted.max_batch_bytes or DEFAULT_BATCH_BYTES
    query = Query(
        from_seq=wanted.from_seq,
        limit=limit if limit < max_limit else max_limit,
        max_bytes=max_bytes if max_bytes < MAX_BATCH_BYTES else MAX_BATCH_BYTES,
    )
    if (wanted.from_seq | wanted.limit | wanted.wait_ms | wanted.max_batch_bytes) >> 63:
        for field in ("from_seq", "limit", "wait_ms", "max_batch_bytes"):
            check_u64(getattr(wanted, field), field)
    bare = wanted.node is None and wanted.filter is None and wanted.from_ts is None and wanted.epoch is None
    if bare and wanted.include_meta and not wanted.include_tags:
        query.plain = True
        return query
    if wanted.node is not None:
        query.nodes = node_set(wanted.node)
    if wanted.include_tags or not wanted.include_meta:
        query.projection = Projection(tags=wanted.include_tags, meta=wanted.include_meta)
    if wanted.filter is not None:
        query.match = parse_match(wanted.filter, field="filter")
    if wanted.from_ts is not None:
        query.from_ts = check_u64(wanted.from_ts, "from_ts")
    if wanted.epoch is not None:
        query.epoch = check_u64(wanted.epoch, "epoch")
    return query


def _nothing(topic: Topic, reading: Reading) -> bool:
    return not reading.count and reading.tombstone is None and reading.next_from_seq >= topic.head


def _timed(before: list[bytes | memoryview], after: bytes, request: Request) -> Response:
    took = _ms(_now_ns() - request.started_ns).encode()
    if len(before) == 1:
        return Response(200, b"".join((before[0], took, after)))  # one write, by the short way
    return Response(200, [*before, took + after])


def _diff_answer(topic: Topic, reading: Reading) -> tuple[list[bytes | memoryview], bytes]:
    """All of the answer but the time it took: what comes before that, and after."""
    head, next_from = topic.head, reading.next_from_seq
    tombstone = "null" if reading.tombstone is None else _tombstone(reading.tombstone)
    end = (
        f'],"next_from_seq":{next_from},"head_seq":{head},"earliest_seq":{topic.earliest},'
        f'"caught_up":{"true" if next_from == head else "false"},"tombstone":{tombstone},"lag":{head - next_from},'
        '"performance":{"server_total_ms":'
    ).encode()
    after = f',"records_scanned":{reading.scanned}}}}}'.encode()
    start, parts = topic.diff_start, reading.parts
    if not parts:
        return [start + end], after
    if len(parts) == 1 and len(parts[0]) < SMALL_BYTES:
        return [b"".join((start, parts[0][:-1], end))], after
    return [start, *reading.body(), end], after


def _tombstone(gap: Tombstone) -> str:
    return (
        f'{{"gap_from":{gap.gap_from},"gap_to":{gap.gap_to},"reason":"{gap.reason}",'
        f'"missed_estimate":{gap.missed_estimate},"earliest_seq":{gap.earliest_seq},"head_seq":{gap.head_seq}}}'
    )


class LongPoll:
    """A diff that found nothing: it waits for the topic to grow, its time to run out, or its client to leave."""

    __slots__ = (
        "_app", "_cancel_wait", "_deferred", "_loading", "_name", "_over", "_query", "_request", "_scanned", "_timer",
    )  # fmt: skip

    def __init__(self, app: TopicsApp, name: str, query: Query, request: Request) -> None:
        self._app = app
        self._name = name
        self._query = query
        self._request = request
        self._scanned = 0
        self._loading: Loading | None = None
        self._over = False  # whether it waits no longer, whatever there is to answer with

    def start(self, topic: Topic, reading: Reading, wait_ms: int) -> Deferred:
        self._deferred = Deferred(self._stop, on_hurry=self.end)
        self._timer = self._app.call_later(wait_ms, self._answer)
        self._app.polls.add(self)
        self._wait(topic, reading)
        return self._deferred

    def end(self) -> None:
        """Answers with what there is: the server is going."""
        self._answer()

    def _wait(self, topic: Topic, reading: Reading) -> None:
        # What was looked at and skipped need not be looked at again.
        self._scanned += reading.scanned
        self._query.from_seq, self._query.from_ts = reading.next_from_seq, None
        self._cancel_wait = self._app.engine.wait(topic, self._woken)

    def _woken(self) -> None:
        try:
            self._look()
        except Cold as cold:
            self._loading = self._app.loads.load(cold, self._loaded)

    def _loaded(self, failure: BaseException | None) -> None:
        loading, self._loading = self._loading, None
        if failure is not None:
            self._finish(error_answer(unreadable(failure), self._request))
            return
        try:
            self._look()
        except Cold:
            self._loading = loading
            raise

    def _answer(self) -> None:
        self._cancel_wait()
        self._over = True
        if self._loading is None:
            self._woken()

    def _look(self) -> None:
        """Answers, or goes on waiting if there is nothing new. Raises `Cold`."""
        try:
            topic, reading = self._app.engine.read(self._name, self._query)
        except TopicsError as error:
            self._finish(error_answer(error, self._request))
            return
        if _nothing(topic, reading) and not self._over:
            self._wait(topic, reading)
        else:
            self._finish_with(topic, reading)

    def _finish_with(self, topic: Topic, reading: Reading) -> None:
        reading.scanned += self._scanned
        response = _timed(*_diff_answer(topic, reading), self._request)
        try:
            self._app.budget.check_answer(body_bytes(response.body))
        except TopicsError as error:
            response = error_answer(error, self._request)
        self._finish(response)

    def _finish(self, response: Response) -> None:
        self._timer.cancel()
        self._app.polls.discard(self)
        self._deferred.resolve(response)

    def _stop(self) -> None:
        self._timer.cancel()
        self._app.polls.discard(self)
        self._cancel_wait()
        if self._loading is not None:
            self._loading.cancel()


def _staged_delete(app: TopicsApp, name: str, wanted: DeleteRequest) -> Steps[Ticket]:
    match = None if wanted.match is UNSET or wanted.match is None else parse_match(wanted.match)
    if wanted.seqs is not None:
        if wanted.before_seq is not None or match is not None:
            raise invalid("seqs goes without before_seq and match", field="seqs")
        seqs = [check_u64(seq, "seqs") for seq in wanted.seqs]
        return (yield from once_loaded(partial(delete_seqs, app.engine, name, seqs, dry_run=wanted.dry_run)))
    if wanted.before_seq is None and match is None:
        raise invalid("a delete needs before_seq, match, or both", field="before_seq")
    before_seq = None if wanted.before_seq is None else check_u64(wanted.before_seq, "before_seq")
    return (yield from app.engine.delete_records(name, before_seq=before_seq, match=match, dry_run=wanted.dry_run))


def delete(app: TopicsApp, call: Call) -> Answer:
    """Run in slices: a delete by tag looks at all records of its topic."""
    return app.slices.answer(call.request, _delete(app, call))


def _delete(app: TopicsApp, call: Call) -> Steps[Answer]:
    request = call.request
    wanted: DeleteRequest = decode_body(_decode_delete, request.body)
    if wanted.epoch is not None:
        check_epoch(app.engine.topic(call.params["topic"]), check_u64(wanted.epoch, "epoch"))
    ticket = yield from _staged_delete(app, call.params["topic"], wanted)

    def encode(done: Ticket, request: Request) -> Response:
        gone: Deleted = done.result
        answer = RecordsDeleted(
            gone.topic.name, gone.deleted, gone.earliest, gone.head, gone.count, gone.bytes,
            performance(request, done), wanted.dry_run,
        )  # fmt: skip
        return json_answer(200, answer)

    return when_done(ticket, request, encode)
