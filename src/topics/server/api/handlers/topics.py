"""Handlers of topics: create and configure, get, list, delete, and the reports of their archives."""

from typing import Any

from msgspec import UNSET

from topics.engine.engine import Dropped
from topics.engine.state.topic import Topic
from topics.engine.steps import Steps
from topics.engine.write import archived
from topics.errors import Code, TopicsError
from topics.model import wire
from topics.model.topic import warnings_of
from topics.model.wire import Performance, check_u64s
from topics.server.api.route import Call, in_slices, noted, page_answer
from topics.server.api.services import Services
from topics.server.http.messages import Answer
from topics.server.http.request import query_string
from topics.server.limits.loop_holds import Cause
from topics.server.loop.answer import json_answer, json_when_done, performance
from topics.server.loop.throttle import effective_priority


def put_topic(services: Services, call: Call) -> Answer:
    patch = call.body()
    ticket = noted(services, call, services.engine.put_topic(call.params["topic"], patch), config=patch)
    return json_when_done(
        ticket, call.request,
        lambda done, took: wire.TopicPut(
            done.topic.name, done.created, done.topic.epoch, done.topic.config, took,
            warnings_of(done.topic.config) or UNSET,
        ),
    )  # fmt: skip


def get_topic(services: Services, call: Call) -> Answer:
    touch = query_string.flag(query_string.parse(call.request.query), "touch", default=True)
    topic, now_ms = services.engine.expire_and_get(call.params["topic"], touch=touch), services.runtime.clock.now_ms()
    answer = wire.TopicState(
        **_figures(topic, now_ms),
        next_seq=topic.head + 1,
        config=topic.config,
        last_write_ts=topic.last_write_ts,
        last_read_ts=topic.last_read_ts,
        performance=performance(call.request),
        queue=_queue_counts(topic),
        archived_seq=topic.archived if topic.archived or topic.config.archive is not None else None,
        trimmed_seq=topic.trimmed or None,
    )
    answer.archive = archived.standing(topic, now_ms)
    return json_answer(200, answer)


def get_schema(services: Services, call: Call) -> Answer:
    """Return a version of the schema of a topic: the present one, or the last one if it has none now."""
    topic = services.engine.topic(call.params["topic"])
    config, query = topic.config, query_string.parse(call.request.query)
    versions = config.schema_versions
    version = query_string.number(query, "version", default=len(versions))
    if not 1 <= version <= len(versions):
        what = f"it has versions 1 to {len(versions)}" if versions else "it has no schema"
        message = f'topic "{topic.name}" has no version {version} of its schema: {what}'
        raise TopicsError(Code.NOT_FOUND, message, detail={"topic": topic.name, "versions": len(versions)})
    is_active = config.schema is not None and version == len(versions)
    answer = wire.SchemaState(
        topic.name, version, len(versions), is_active, versions[version - 1], config.schema_mode, config.compatibility,
        performance(call.request),
    )  # fmt: skip
    return json_answer(200, answer)


def _figures(topic: Topic, now_ms: int) -> dict[str, Any]:
    """Return the fields that both the state of a topic and its row in a list have."""
    return {
        "topic": topic.name, "type": topic.config.type, "epoch": topic.epoch, "head_seq": topic.head,
        "earliest_seq": topic.earliest, "count": topic.count, "bytes": topic.bytes,
        "effective_priority": effective_priority(topic, now_ms),
    }  # fmt: skip


def _queue_counts(topic: Topic) -> wire.QueueCounts | None:
    queue = topic.queue
    if queue is None:
        return None
    return wire.QueueCounts(
        queue.ready, queue.in_flight, queue.dead_lettered, queue.delayed, queue.dead_letter_error,
        len(queue.keys.blocked),
    )  # fmt: skip


@in_slices(Cause.LIST)
def list_topics(services: Services, call: Call) -> Steps[Answer]:
    """Return a page of topics, in slices: right after a start, records of many topics may have to be replayed."""
    engine, found = services.engine, query_string.parse(call.request.query)
    yield from engine.replay_in_steps()
    touch = query_string.flag(found, "touch", default=False)
    details = query_string.flag(found, "details", default=False)

    def summary(topic: Topic) -> wire.TopicSummary:
        now_ms = engine.expire(topic)
        if touch:
            topic.last_read_ts = now_ms
        return _summary(topic, now_ms, details=details)

    return (yield from page_answer(call, engine.state.names, engine.topics.get, summary, wire.TopicList))


def _summary(topic: Topic, now_ms: int, *, details: bool) -> wire.TopicSummary:
    summary = wire.TopicSummary(**_figures(topic, now_ms), durable=topic.config.durable)
    if details:
        summary.config = topic.config
        summary.last_write_ts = topic.last_write_ts
        summary.lost = topic.losses.total
        summary.queue = _queue_counts(topic)
    return summary


def drop_topic(services: Services, call: Call) -> Answer:
    if_empty = query_string.flag(query_string.parse(call.request.query), "if_empty", default=False)

    def dropped(done: Dropped, took: Performance) -> wire.TopicDropped:
        shown = [router for router in done.routers_removed if call.caller.may_use(router)]
        return wire.TopicDropped(done.name, done.deleted, shown, took)

    ticket = noted(services, call, services.engine.drop_topic(call.params["topic"], if_empty=if_empty))
    return json_when_done(ticket, call.request, dropped)


def report_archived(services: Services, call: Call) -> Answer:
    body: wire.ArchivedRequest = call.body()
    check_u64s(body, "seq", "epoch", "trimmed_seq")
    ticket = services.engine.report_archived(
        call.params["topic"], seq=body.seq, epoch=body.epoch, trimmed=body.trimmed_seq
    )
    return json_when_done(
        ticket, call.request,
        lambda done, took: wire.ArchivedAnswer(
            done.topic.name, done.topic.epoch, done.archived, done.head, done.moved, took
        ),
    )  # fmt: skip
