"""Handlers of topics: create and configure, get, list, delete, and the reports of their archives."""

from __future__ import annotations

from topics.engine.engine import Configured, Dropped
from topics.engine.state.topic import Topic
from topics.engine.steps import Steps
from topics.engine.write import archived
from topics.engine.write.commit import Ticket
from topics.model.topic import ConfigPatch
from topics.model.unknown_fields import RequestDecoder
from topics.model.wire import (
    ArchivedAnswer,
    ArchivedRequest,
    ArchiveStanding,
    QueueCounts,
    TopicDropped,
    TopicList,
    TopicPut,
    TopicState,
    TopicSummary,
    check_u64,
)
from topics.server.api.route import Call
from topics.server.api.services import Services
from topics.server.http.messages import Answer, Request, Response
from topics.server.http.request import query_string
from topics.server.limits.loop_holds import Cause
from topics.server.loop.answer import json_answer, performance, when_done

TOPICS_PER_STEP = 100  # of a list; one takes about 4 µs

decode_config = RequestDecoder[ConfigPatch](ConfigPatch).decode


def put_topic(services: Services, call: Call) -> Answer:
    patch = call.body()

    def encode(ticket: Ticket, request: Request) -> Response:
        done: Configured = ticket.result
        topic = done.topic
        answer = TopicPut(topic.name, done.created, topic.epoch, topic.config, performance(request, ticket))
        return json_answer(201 if done.created else 200, answer)

    return when_done(services.engine.put_topic(call.params["topic"], patch), call.request, encode)


def get_topic(services: Services, call: Call) -> Answer:
    found = query_string.parse(call.request.query)
    topic = services.engine.expire_and_get(call.params["topic"], touch=query_string.flag(found, "touch", default=True))
    answer = TopicState(
        topic=topic.name,
        type=topic.config.type,
        epoch=topic.epoch,
        head_seq=topic.head,
        earliest_seq=topic.earliest,
        next_seq=topic.head + 1,
        count=topic.count,
        bytes=topic.bytes,
        config=topic.config,
        effective_priority=services.engine.effective_priority(topic),
        last_write_ts=topic.last_write_ts,
        last_read_ts=topic.last_read_ts,
        performance=performance(call.request),
        queue=_queue_counts(topic),
        archived_seq=topic.archived if topic.archived or topic.config.archive is not None else None,
        trimmed_seq=topic.trimmed or None,
        archive=standing(topic, services.runtime.clock.now_ms()),
    )
    return json_answer(200, answer)


def _queue_counts(topic: Topic) -> QueueCounts | None:
    queue = topic.queue
    if queue is None:
        return None
    return QueueCounts(queue.ready, queue.in_flight, queue.dead_lettered, queue.delayed, queue.dead_letter_error)


def list_topics(services: Services, call: Call) -> Answer:
    """Return a page of topics, in slices: right after a start, records of many topics may have to be replayed."""
    return services.slices.answer(call.request, _list(services, call), Cause.LIST)


def _list(services: Services, call: Call) -> Steps[Answer]:
    yield from services.engine.replay_in_steps()
    found = query_string.parse(call.request.query)
    touch = query_string.flag(found, "touch", default=False)
    details = query_string.flag(found, "details", default=False)
    after, left, more = query_string.cursor_after(found), query_string.page_size(found), True
    summaries: list[TopicSummary] = []
    # Bound: each round takes a step's share of the page, or is the last one.
    while left > 0 and more:
        page, more = services.engine.expire_and_list(
            prefix=found.get("prefix", ""),
            after=after,
            limit=min(left, TOPICS_PER_STEP),
            prefixes=call.caller.prefixes,
            touch=touch,
        )
        summaries += [_summary(services, topic, details=details) for topic in page]
        left -= len(page)
        after = page[-1].name if page else after
        yield None
    next_cursor = query_string.cursor(after) if more else None
    return json_answer(200, TopicList(summaries, performance(call.request), next_cursor))


def _summary(services: Services, topic: Topic, *, details: bool) -> TopicSummary:
    summary = TopicSummary(
        topic=topic.name,
        type=topic.config.type,
        epoch=topic.epoch,
        head_seq=topic.head,
        earliest_seq=topic.earliest,
        count=topic.count,
        bytes=topic.bytes,
        durable=topic.config.durable,
        effective_priority=services.engine.effective_priority(topic),
    )
    if details:
        summary.config = topic.config
        summary.last_write_ts = topic.last_write_ts
        summary.lost = topic.losses.total
        summary.queue = _queue_counts(topic)
    return summary


def drop_topic(services: Services, call: Call) -> Answer:
    if_empty = query_string.flag(query_string.parse(call.request.query), "if_empty", default=False)

    def encode(ticket: Ticket, request: Request) -> Response:
        done: Dropped = ticket.result
        shown = [router for router in done.routers_removed if call.caller.may_use(router)]
        return json_answer(200, TopicDropped(done.name, done.deleted, shown, performance(request, ticket)))

    return when_done(services.engine.drop_topic(call.params["topic"], if_empty=if_empty), call.request, encode)


_decode = RequestDecoder[ArchivedRequest](ArchivedRequest).decode


def report_archived(services: Services, call: Call) -> Answer:
    body = _decode(call.request.body, call)
    seq, epoch = check_u64(body.seq, "seq"), check_u64(body.epoch, "epoch")
    trimmed = check_u64(body.trimmed_seq, "trimmed_seq")

    def encode(ticket: Ticket, request: Request) -> Response:
        done: archived.Reported = ticket.result
        return json_answer(
            200,
            ArchivedAnswer(
                done.topic.name, done.topic.epoch, done.archived, done.head, done.moved, performance(request, ticket)
            ),
        )

    ticket = services.engine.archives.report(call.params["topic"], seq=seq, epoch=epoch, trimmed=trimmed)
    return when_done(ticket, call.request, encode)


def standing(topic: Topic, now_ms: int) -> ArchiveStanding | None:
    """Return the archive field of the topic's state; None without an archive."""
    found = archived.standing(topic, now_ms)
    return None if found is None else ArchiveStanding(found.unarchived, found.overdue, found.evicted)
