"""Handlers for looking at a server: the rights of a key, samples of the last hour, and the timeline of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.errors import invalid
from topics.model.inspection import MAX_RANGES, RANGES, Samples, TimelineAnswer, Whoami
from topics.model.topic import U64_MAX
from topics.server.access import operations
from topics.server.access.caller import admit, scope_words
from topics.server.http.messages import Answer
from topics.server.http.request import query_string
from topics.server.loop import queue_samples
from topics.server.loop.answer import json_answer, performance
from topics.server.loop.samples import CAPACITY, INTERVAL_MS

if TYPE_CHECKING:
    from topics.engine.steps import Steps
    from topics.server.api.route import Call
    from topics.server.api.services import Services


def whoami(services: Services, call: Call) -> Answer:
    """Return the scopes and prefixes of the caller."""
    caller = call.caller
    answer = Whoami(caller.name or None, scope_words(caller.scopes), list(caller.prefixes), performance(call.request))
    return json_answer(200, answer)


def samples(services: Services, call: Call) -> Answer:
    """Return the samples of the server or of a queue after a time."""
    found = query_string.parse(call.request.query)
    after = query_string.number(found, "after", default=0)
    if queue := found.get("queue"):
        admit(call.caller, operations.READ_SAMPLES, queue)
        rows = services.queue_samples.rows(services.engine.queues.get(queue), after)
        sampled = queue_samples.INTERVAL_MS, queue_samples.CAPACITY, queue_samples.COLUMNS
        return json_answer(200, Samples(*sampled, rows, performance(call.request)))
    ring = services.samples
    rows = list(ring.rows(after))
    return json_answer(200, Samples(INTERVAL_MS, CAPACITY, ring.names, rows, performance(call.request)))


def timeline(services: Services, call: Call) -> Answer:
    """Return what has become of each seq of a window. Runs in slices: marks may have to be loaded."""
    return services.slices.answer(call.request, _timeline(services, call))


def _timeline(services: Services, call: Call) -> Steps[Answer]:
    found = query_string.parse(call.request.query)
    from_seq = query_string.number(found, "from_seq", default=1)
    to_seq = query_string.number(found, "to_seq", default=U64_MAX)
    if to_seq < from_seq:
        raise invalid("to_seq is below from_seq", field="to_seq")
    most = min(query_string.number(found, "ranges", default=RANGES) or RANGES, MAX_RANGES)
    topic, seen = yield from services.engine.expire_and_describe(
        call.params["topic"], from_seq=from_seq, to_seq=to_seq, most=most
    )
    lost = topic.losses.total
    answer = TimelineAnswer(
        topic=topic.name,
        epoch=topic.epoch,
        head_seq=topic.head,
        earliest_seq=topic.earliest,
        archived_seq=topic.archived,
        from_seq=seen.from_seq,
        to_seq=seen.to_seq,
        resolution=seen.resolution,
        ranges=seen.ranges,
        live=topic.count,
        deleted=topic.head - topic.count - lost,
        lost=lost,
        performance=performance(call.request),
    )
    return json_answer(200, answer)
