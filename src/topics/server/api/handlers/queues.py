"""Handlers of queues: claim, ack, nack, extend, the stream of jobs, the list of jobs, and redrive."""

import time
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET

from topics.engine.queue.acks import Outcome
from topics.engine.queue.verbs import Claimed, Want, expire_and_list, has_open
from topics.engine.state.topic import Topic, leases_of
from topics.engine.write.commit import Ticket
from topics.errors import TopicsError, invalid, topic_not_found
from topics.model import queue as model
from topics.model.names import check_topic
from topics.model.queue import AckRequest, ClaimRequest, check_held, check_worker
from topics.model.records import MAX_WAIT_MS, parse_match
from topics.model.topic import DEFAULT_RETRY, LEASE_MS_RANGE, U64_MAX, clamp
from topics.model.wire import check_u64s
from topics.server.api.route import Call, noted
from topics.server.api.services import Services
from topics.server.http.messages import Answer, Deferred, Request, Response, error_response
from topics.server.http.request import query_string
from topics.server.http.request.unknown_fields import RequestDecoder
from topics.server.loop.answer import json_when_done, performance, when_done
from topics.server.push.jobs import QueueWaiters, WorkStream
from topics.server.push.live_stream import check_accept

_decode_claim = RequestDecoder[ClaimRequest](ClaimRequest).decode
_decode_ack = RequestDecoder[AckRequest](AckRequest).decode
_encode = msgspec.json.encode
_now_ns = time.perf_counter_ns


def claim(services: Services, call: Call) -> Answer:
    wanted = _decode_claim(call.request.body, call)
    limits = services.engine.limits
    check_worker(wanted.node, limits)
    lease_ms = wanted.lease_ms
    if max(wanted.max, wanted.wait_ms, lease_ms or 0) > U64_MAX:
        check_u64s(wanted, "max", "lease_ms", "wait_ms")
    topic = services.engine.queues.get(call.params["topic"])
    if services.throttle.pressed:
        services.throttle.check(topic.name)
    if services.budget.full:
        raise services.budget.error()
    want = Want(
        node=wanted.node,
        max=clamp(wanted.max, 1, limits.max_claim),
        lease_ms=topic.config.lease_ms if lease_ms is None else clamp(lease_ms, *LEASE_MS_RANGE),
    )
    wait_ms = 0 if services.runtime.draining else min(wanted.wait_ms, MAX_WAIT_MS)
    jitter_ms = topic.config.claim_jitter_ms
    if (jitter_ms or leases_of(topic).claimed_in == services.engine.commits.turn) and not services.runtime.draining:
        return PendingClaim(services, topic, want, call.request).wait(wait_ms, fresh=not jitter_ms)
    [claimed], ticket = services.engine.queues.claim(topic, [want])
    if wait_ms and not claimed.rows:
        return PendingClaim(services, topic, want, call.request).wait(wait_ms, ticket)
    if ticket is None:
        return _claimed(claimed, call.request, b"")
    return PendingClaim(services, topic, want, call.request).answer(claimed, ticket)


def _claimed(claimed: Claimed, request: Request, written: bytes) -> Response:
    body = (
        b'{"topic":"%b","claimed":[%b],"count":%d,"ready":%d,"performance":{"server_total_ms":%.3f,%b"throttle_wait_ms":0.0}}\n'
        % (
            claimed.topic.name.encode(), b",".join(claimed.rows), len(claimed.rows), claimed.ready,
            (_now_ns() - request.started_ns) / 1e6, written,
        )
    )  # fmt: skip
    return Response(200, body)


class PendingClaim:
    """A claim that is answered later: it waits for other claims of its turn or of the queue, for a job, or for the log.

    Once it has jobs, it waits for nothing but the log: then neither its time nor a stop of the server answers it. If
    its client leaves meanwhile, or shuts its side, the jobs return to the queue.
    """

    def __init__(self, services: Services, topic: Topic, want: Want, request: Request) -> None:
        self._services = services
        self._topic = topic
        self._want = want
        self._request = request
        self._deferred = Deferred(self._leave, on_hurry=self._hurried)
        self._timer: Any = None
        self._patient = self.fresh = self._asked_again = False
        self._waiters: QueueWaiters | None = None  # while it waits for a job
        self._waits_since_ns = 0
        self._ticket: Ticket | None = None  # of the last pass that had no job for it
        self._claimed: Claimed | None = None  # what it answers once the log has it

    def wait(self, wait_ms: int, ticket: Ticket | None = None, *, fresh: bool = False) -> Deferred:
        self._ticket, self.fresh = ticket, fresh
        self._patient = wait_ms > 0
        if self._patient:
            self._timer = self._services.runtime.call_later(wait_ms, self.end)
        self._services.runtime.open_ended.add(self)
        self._waits_since_ns = 0 if fresh else _now_ns()
        self._waiters = self._services.job_waiters.join(self._topic, self)
        return self._deferred

    def answer(self, claimed: Claimed, ticket: Ticket | None) -> Deferred:
        self._end_wait()
        self._claimed = claimed
        if ticket is None:
            self._deferred.resolve(_claimed(claimed, self._request, b""))
        else:
            ticket.on_done(self._finish)
        return self._deferred

    def end(self) -> None:
        """Answer without jobs: the time is over, the server stops, or the client may have left."""
        if self._waiters is not None:
            self.answer(self._nothing(), self._ticket)

    def want(self) -> Want | None:
        return None if self._patient and self._services.budget.full else self._want

    def assign(self, claimed: Claimed, ticket: Ticket | None) -> bool:
        if not claimed.rows and (self._patient or claimed.others):
            self._ticket, self.fresh = ticket or self._ticket, claimed.others
            self._waits_since_ns = self._waits_since_ns or _now_ns()
            return True
        self.answer(claimed, ticket)
        return False

    def refuse(self, error: TopicsError) -> bool:
        self._end_wait()
        self._deferred.resolve(error_response(error, self._request))
        return False

    def queue_deleted(self) -> None:
        self.refuse(topic_not_found(self._topic.name))

    def _finish(self, ticket: Ticket) -> None:
        claimed = self._claimed
        assert claimed is not None
        if ticket.error is not None and claimed.rows:
            self._deferred.resolve(error_response(ticket.error, self._request))
        elif claimed.moved and not claimed.rows and ticket.error is None and self._may_ask_again():
            self._claimed, self._asked_again = None, True
            self.wait(0, fresh=True)
        else:
            written = b'"wal_append_ms":%.3f,"fsync_ms":%.3f,' % (ticket.wal_ns / 1e6, ticket.sync_ns / 1e6)
            self._deferred.resolve(_claimed(claimed, self._request, written))

    def _may_ask_again(self) -> bool:
        """Return whether dead letters that its pass moved may have opened the next jobs of their keys."""
        queue, deferred = self._topic.queue, self._deferred
        if self._asked_again or self._patient or self._topic.config.claim_jitter_ms or self._services.runtime.draining:
            return False
        has_left = deferred.on_hurry is None or deferred.cancelled
        return not has_left and queue is not None and has_open(queue)

    def _hurried(self) -> None:
        if self._claimed is None:
            self.end()
        else:
            self._leave()

    def _leave(self) -> None:
        """Return the jobs to the queue: the client has left, or shut its side."""
        self._end_wait()
        if self._claimed is not None and self._claimed.jobs:
            self._services.engine.queues.undo_claim(self._claimed)
            self._claimed = self._nothing()

    def _nothing(self) -> Claimed:
        return Claimed(self._topic, [], [], 0 if self._topic.queue is None else self._topic.queue.ready)

    def _end_wait(self) -> None:
        """Stop waiting for a job. Note how long the claim waited because its client or the queue asked for it."""
        waiters, self._waiters = self._waiters, None
        if waiters is None:
            return
        if self._waits_since_ns:
            self._request.waited_ns += _now_ns() - self._waits_since_ns
        waiters.leave(self)
        self._services.runtime.open_ended.discard(self)
        if self._timer is not None:
            self._timer.cancel()


def ack(services: Services, call: Call) -> Answer:
    wanted = _decode_ack(call.request.body, call)
    check_held(wanted.node, wanted.seqs, wanted.lease_ids, services.engine.limits)
    topic = services.engine.queues.get(call.params["topic"])
    return when_done(
        services.engine.queues.ack(topic, wanted.node, wanted.seqs, wanted.lease_ids), call.request, _ACKED
    )


def nack(services: Services, call: Call) -> Answer:
    wanted: model.NackRequest = call.body()
    check_held(wanted.node, wanted.seqs, wanted.lease_ids, services.engine.limits)
    check_u64s(wanted, "delay_ms")
    delay_ms = None if wanted.delay_ms is None else min(wanted.delay_ms, model.MAX_DELAY_MS)
    topic = services.engine.queues.get(call.params["topic"])
    ticket = services.engine.queues.nack(
        topic, wanted.node, wanted.seqs, wanted.lease_ids,
        delay_ms=delay_ms, retry=DEFAULT_RETRY if wanted.retry else None, why=model.why_of(wanted),
    )  # fmt: skip
    return when_done(ticket, call.request, _NACKED)


def _acknowledged(what: bytes, ticket: Ticket, request: Request) -> Response:
    done: Outcome = ticket.result
    if done.dead_lettered:
        what = b'dead_lettered":%d,"%b' % (done.dead_lettered, what)
    if done.skipped and (cancelled := done.cancelled):
        what = b'cancelled":%b,"%b' % (_encode(cancelled), what)
    body = (
        b'{"topic":"%b","%b":%d,"skipped":%b,"ready":%d,"in_flight":%d,"performance":{"server_total_ms":%.3f,"wal_append_ms":%.3f,"fsync_ms":%.3f}}\n'
        % (
            done.topic.name.encode(), what, done.done, _encode(done.skipped), done.ready, done.in_flight,
            (_now_ns() - request.started_ns) / 1e6, ticket.wal_ns / 1e6, ticket.sync_ns / 1e6,
        )
    )  # fmt: skip
    return Response(200, body)


_ACKED, _NACKED = partial(_acknowledged, b"acked"), partial(_acknowledged, b"nacked")


def extend(services: Services, call: Call) -> Answer:
    wanted: model.ExtendRequest = call.body()
    check_held(wanted.node, wanted.seqs, wanted.lease_ids, services.engine.limits)
    model.check_extend(wanted)
    check_u64s(wanted, "lease_ms")
    lease_ms = None if wanted.lease_ms is None else clamp(wanted.lease_ms, *LEASE_MS_RANGE)
    topic = services.engine.queues.get(call.params["topic"])
    ticket = services.engine.queues.extend(
        topic, wanted.node, wanted.seqs, wanted.lease_ids, lease_ms=lease_ms, progress=wanted.progress
    )
    return json_when_done(
        ticket, call.request,
        lambda done, took: model.ExtendAnswer(
            topic.name, done.done, done.skipped, done.deadlines, took, done.cancelled or UNSET
        ),
    )  # fmt: skip


def open_work_stream(services: Services, call: Call) -> Answer:
    check_accept(call.request)
    found = query_string.parse(call.request.query)
    if "node" not in found:
        raise invalid("node is required", field="node")
    limits = services.engine.limits
    node = check_worker(found["node"], limits)
    most = clamp(query_string.number(found, "max", default=1), 1, limits.max_claim)
    lease_ms = None
    if "lease_ms" in found:
        lease_ms = clamp(query_string.number(found, "lease_ms", default=0), *LEASE_MS_RANGE)
    topic = services.engine.queues.get(call.params["topic"])
    if services.throttle.pressed:
        services.throttle.check(topic.name)
    return WorkStream(
        services, services.job_waiters, topic,
        node=node, max=most, lease_ms=lease_ms, slot=services.quotas.open_stream(call.caller),
    )  # fmt: skip


def list_jobs(services: Services, call: Call) -> Answer:
    found = query_string.parse(call.request.query)
    topic = services.engine.queues.get(call.params["topic"])
    after, limit = query_string.cursor_after(found), query_string.page_size(found)
    if after and not (after.isascii() and after.isdigit() and len(after) <= 20):
        raise invalid("cursor is not a `next_cursor` of this server", field="cursor")
    if (state := found.get("state")) is not None and state not in model.JOB_STATES:
        raise invalid(f"state must be one of {', '.join(model.JOB_STATES)}", field="state")
    rows, more = expire_and_list(
        topic, state=state, after=int(after or 0), limit=limit, now_ms=services.runtime.clock.now_ms()
    )
    queue = leases_of(topic)
    cursor = b"" if more is None else b',"next_cursor":"%b"' % query_string.cursor(str(more)).encode()
    body = b'{"topic":"%b","jobs":[%b],"ready":%d,"in_flight":%d,"delayed":%d%b,"performance":%b}\n' % (
        topic.name.encode(), b",".join(rows), queue.ready, queue.in_flight, queue.delayed, cursor,
        _encode(performance(call.request)),
    )  # fmt: skip
    return Response(200, body)


def redrive(services: Services, call: Call) -> Answer:
    wanted: model.RedriveRequest = call.body()
    if wanted.dead_letter is not None:
        check_topic(wanted.dead_letter, field="dead_letter")
    check_u64s(wanted, "from_seq", "limit")
    if wanted.seqs is not None and len(wanted.seqs) > model.MAX_REDRIVE:
        raise invalid(f"seqs may name at most {model.MAX_REDRIVE} records", field="seqs")
    match = None if wanted.match is UNSET or wanted.match is None else parse_match(wanted.match)
    topic = services.engine.queues.get(call.params["topic"])
    ticket = services.engine.queues.dead_letters.redrive(
        topic, dead_letter=wanted.dead_letter, match=match, seqs=wanted.seqs, from_seq=wanted.from_seq,
        limit=clamp(wanted.limit, 1, model.MAX_REDRIVE), dry_run=wanted.dry_run,
    )  # fmt: skip
    if not wanted.dry_run:
        noted(services, call, ticket, request=wanted)
    return json_when_done(
        ticket, call.request,
        lambda done, took: model.RedriveAnswer(
            topic.name, done.dead_letter, len(done.seqs), done.seqs, wanted.dry_run, done.next_from_seq, done.caught_up,
            took,
        ),
    )  # fmt: skip
