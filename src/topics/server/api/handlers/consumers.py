"""Handlers of named consumers: store, commit, get, list, delete."""

from collections.abc import Iterator
from functools import partial
from itertools import islice

import msgspec

from topics.engine.consumers.lag import lag_of, lost_of
from topics.engine.consumers.verbs import ConsumerBatch, StoredConsumer
from topics.engine.state.consumers import Consumer
from topics.engine.state.topic import Topic
from topics.engine.steps import Steps, once_loaded
from topics.engine.write.commit import Ticket
from topics.errors import Code, TopicsError
from topics.model import consumer as model
from topics.model.consumer import Commit, CommitRequest, ConsumerRequest, ConsumerSummary, RefusedCommit
from topics.model.names import AUDIT
from topics.model.wire import Performance, check_u64s
from topics.server.access.caller import Reader, authorise
from topics.server.access.operations import Scope, more_than_route, read_only
from topics.server.api.route import Call, in_slices, noted
from topics.server.api.services import Services
from topics.server.http.messages import Answer, Deferred
from topics.server.http.request import query_string
from topics.server.loop.answer import json_answer, json_when_done, performance, when_all_done

COMMITS_PER_STEP = 100


def put_consumer(services: Services, call: Call) -> Answer:
    wanted: ConsumerRequest = call.body()
    check_u64s(wanted, "seq", "epoch", "if_seq", "expire_ms", "max_hold_bytes")
    topic, name = call.params["topic"], call.params["consumer"]
    if (more := more_than_route(wanted)) is not None:
        authorise(services.engine, call.caller, more, topic)
    who = call.reader(services.runtime.clock.now_ms())

    def answer(done: StoredConsumer, took: Performance) -> model.ConsumerPut:
        services.engine.consumers.note_reader(done.topic, done.name, who)
        return model.ConsumerPut(topic, done.name, done.created, done.topic.epoch, done.seq, done.topic.head, took)

    return json_when_done(services.engine.consumers.put(topic, name, wanted), call.request, answer)


@in_slices()
def commit_consumers(services: Services, call: Call) -> Steps[Answer]:
    """Move many consumers with one request. Answers when all commits are in the log, or were refused."""
    wanted: CommitRequest = call.body()
    commits, limit = wanted.commits, services.engine.limits.max_batch_records
    if len(commits) > limit:
        what = f"{len(commits)} commits; a request may have {limit}"
        raise TopicsError(Code.BATCH_TOO_LARGE, what, detail={"max": limit})
    if any(one.topic == AUDIT for one in commits):
        raise read_only()
    move, topics = services.engine.consumers.move, services.engine.topics
    who = call.reader(services.runtime.clock.now_ms())
    refused: list[RefusedCommit] = []
    # By batch, and one ticket for each: a ticket for each commit would cost as much as the commit.
    moved: dict[ConsumerBatch, list[Commit]] = {}
    tickets: dict[ConsumerBatch, Ticket] = {}
    for start in range(0, len(commits), COMMITS_PER_STEP):
        yield None
        for one in commits[start : start + COMMITS_PER_STEP]:
            try:
                batch = move(one.topic, one.consumer, one.seq)
            except TopicsError as error:
                refused.append(_refused(one, error))
                continue
            if (topic := topics.get(one.topic)) is not None:
                services.engine.consumers.note_reader(topic, one.consumer, who)
            if batch in moved:
                moved[batch].append(one)
            elif batch is not None:
                moved[batch] = [one]
                tickets[batch] = batch.follow(None)
    deferred = Deferred()

    def done() -> None:
        for batch, ticket in tickets.items():
            if ticket.error is not None:
                refused.extend(_refused(one, ticket.error) for one in moved[batch])
        answer = model.CommitAnswer(len(commits) - len(refused), refused, performance(call.request))
        deferred.resolve(json_answer(200, answer))

    when_all_done(tickets.values(), done)
    return deferred


def _refused(one: Commit, error: TopicsError) -> RefusedCommit:
    return RefusedCommit(one.topic, one.consumer, error.code.wire, error.message)


def get_consumer(services: Services, call: Call) -> Answer:
    topic, consumer = services.engine.consumers.get(call.params["topic"], call.params["consumer"])
    found = _summary(services, call, topic, consumer)
    return json_answer(200, model.ConsumerState(**msgspec.structs.asdict(found), performance=performance(call.request)))


def drop_consumer(services: Services, call: Call) -> Answer:
    topic, name = call.params["topic"], call.params["consumer"]
    ticket = noted(services, call, services.engine.consumers.drop(topic, name))
    return json_when_done(ticket, call.request, partial(model.ConsumerDropped, topic, name))


@in_slices()
def list_topic_consumers(services: Services, call: Call) -> Steps[Answer]:
    """Return a page of the consumers of a topic, in slices: the lag of each is a look at the topic's segments."""
    found, topic = query_string.parse(call.request.query), services.engine.topic(call.params["topic"])
    return _page(services, call, found, services.engine.consumers.of_topic(topic, after=_after(found)[1]))


@in_slices()
def list_consumers(services: Services, call: Call) -> Steps[Answer]:
    found = query_string.parse(call.request.query)
    after, prefix = _after(found), found.get("prefix", "")
    rows = services.engine.consumers.everywhere(prefix=prefix, prefixes=call.caller.prefixes, after=after)
    return _page(services, call, found, rows)


def _page(
    services: Services, call: Call, found: dict[str, str], rows: Iterator[tuple[Topic, Consumer]]
) -> Steps[Answer]:
    size = query_string.page_size(found)
    page = list(islice(rows, size + 1))
    summaries = []
    for topic, consumer in page[:size]:
        if not topic.gone:
            summaries.append((yield from once_loaded(partial(_summary, services, call, topic, consumer))))
        yield None
    next_cursor = None
    if len(page) > size:
        topic, consumer = page[size - 1]
        next_cursor = query_string.cursor(f"{topic.name} {consumer.name}")
    return json_answer(200, model.ConsumerList(summaries, performance(call.request), next_cursor))


def _after(found: dict[str, str]) -> tuple[str, str]:
    """Return topic and name of the last consumer of the page before: neither name can have a space."""
    topic, _, name = query_string.cursor_after(found).partition(" ")
    return topic, name


def _summary(services: Services, call: Call, topic: Topic, consumer: Consumer) -> ConsumerSummary:
    """Return the row of a consumer. Raises `Cold` like a read."""
    services.engine.expire(topic)
    lag = lag_of(topic, consumer, services.runtime.clock.now_ms())
    return ConsumerSummary(
        topic=topic.name,
        consumer=consumer.name,
        epoch=topic.epoch,
        seq=consumer.seq,
        head_seq=topic.head,
        lag_records=lag.records,
        lag_ms=lag.age_ms,
        lost=lost_of(topic, consumer),
        meta=None if consumer.meta is None else msgspec.Raw(consumer.meta),
        expire_ms=consumer.expire_ms,
        hold=consumer.hold,
        max_hold_bytes=consumer.max_hold_bytes,
        updated_ms=consumer.at_ms,
        last_read=_last_read(topic, consumer, call),
    )


def _last_read(topic: Topic, consumer: Consumer, call: Call) -> model.LastRead | None:
    """Return who has read or committed last. Only a key with `admin` sees addresses."""
    last: Reader | None = None if topic.consumers is None else topic.consumers.readers.get(consumer.name)
    if last is None:
        return None
    address = last.address.rpartition(":")[0] if Scope.ADMIN in call.caller.scopes else ""
    return model.LastRead(last.caller.name or None, address or None, last.client.decode("latin-1"), last.at_ms)
