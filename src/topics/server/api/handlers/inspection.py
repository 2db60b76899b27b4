"""Handlers for looking at a server: probes, metrics, the OpenAPI document, rights of a key, samples, and timelines."""

from functools import partial

from msgspec import UNSET, UnsetType, structs

import topics.server.api.metrics as metrics
from topics import __version__
from topics.engine.read import timeline
from topics.engine.steps import Steps, once_loaded, run_all
from topics.errors import Code, TopicsError, invalid
from topics.model.inspection import MAX_RANGES, RANGES, FollowerInfo, Samples, TimelineAnswer, Whoami
from topics.model.topic import U64_MAX
from topics.model.wire import Health, Ready
from topics.server.access import operations
from topics.server.access.caller import admit
from topics.server.api.route import Call, in_slices
from topics.server.api.services import Services, Startup
from topics.server.http.messages import Answer, Request, Response
from topics.server.http.request import query_string
from topics.server.limits.loop_holds import Cause
from topics.server.loop.answer import json_answer, performance
from topics.server.loop.samples import (
    CAPACITY,
    INTERVAL_MS,
    MINUTE_MS,
    MINUTES,
    QUEUE_CAPACITY,
    QUEUE_COLUMNS,
    QUEUE_INTERVAL_MS,
)

HISTORY_COLUMNS = ["ts", "head", "bytes"]
POINTS, MAX_POINTS = 120, 1000
HOUR_MS, MAX_TS = 3_600_000, 1 << 53  # times are calculated as floating-point numbers

PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


def get_health(startup: Startup, call: Call) -> Answer:
    return json_answer(200, Health("ok", __version__, startup.uptime_ms(), performance(call.request)))


def get_ready(services: Services, call: Call) -> Answer:
    """Report whether the server can serve, and whether checkpoints fail. Raise 503 while it stops or is read-only.

    `for=read` asks for reads alone: a server that is read-only is ready. `for=write` refuses a standby, too.
    """
    storage, purpose = services.storage, query_string.parse(call.request.query).get("for")
    if purpose not in (None, "read", "write"):
        raise invalid("for must be read or write", field="for")
    warnings: list[str] | UnsetType = UNSET
    if storage is not None and (why := storage.wal.read_only) is not None:
        message = f"the log takes no writes: {why}"
        if purpose != "read" or storage.wal.is_fenced:
            code = Code.FENCED if storage.wal.is_fenced else Code.READ_ONLY
            raise TopicsError(code, message, detail={"reason": why}, retry_after_ms=1000)
        warnings = [message]
    services.check_ready()
    if purpose == "write":
        services.check_writer()
    if storage is not None and (why := storage.store.retries.reason) is not None:
        warnings = [*(warnings or []), f"checkpoints fail, so the log grows: {why}"]
    standby = None if services.standby is None else services.standby.standby
    replication = None if services.replica is None else services.replica.replication
    if standby is not None and standby.following.last_failure:
        warnings = [*(warnings or []), f"the replica does not answer: {standby.following.last_failure}"]
    elif standby is None and replication is not None and replication.is_away:
        warnings = [*(warnings or []), f"the replica does not answer: {replication.sequence.last_failure}"]
    answer = Ready("ready", True, len(services.engine.topics), performance(call.request), warnings)
    if standby is not None:
        answer.follows, answer.replica_lag_ms = standby.following.writer.address, standby.lag_ms
    elif replication is not None:
        answer.replica_lag_ms = replication.lag_ms
    return json_answer(200, answer)


def get_metrics(services: Services, call: Call) -> Answer:
    """Return the metrics, measured in slices because their number grows with the topics.

    Requests that want the same share one measurement, and the time that JSON reports is that of the first.
    """
    request, prefixes = call.request, call.caller.prefixes
    make = partial(_measure, services, prefixes, request)
    return services.shared_answers.answer(("metrics", prefixes, _form(request)), request, make, Cause.METRICS)


def get_metrics_while_recovering(startup: Startup, call: Call) -> Answer:
    return run_all(_shown(metrics.collect_while_recovering(startup), call.request))


def _measure(services: Services, prefixes: tuple[str, ...], request: Request) -> Steps[Response]:
    return (yield from _shown((yield from metrics.collect(services, prefixes)), request))


def _form(request: Request) -> tuple[bool, bool]:
    """Return whether the request wants JSON, and whether it wants the old names, too."""
    old_names = query_string.flag(query_string.parse(request.query), "old_names", default=True)
    return b"application/json" in request.headers.get(b"accept", b""), old_names


def _shown(rows: list[metrics.Metric], request: Request) -> Steps[Response]:
    """Return the metrics as JSON, with the time that `request` took, or as text."""
    as_json, old_names = _form(request)
    rows = metrics.renamed(rows, old_names=old_names)
    if as_json:
        return Response(200, (yield from metrics.as_json(rows, request)))
    return Response(200, (yield from metrics.as_text(rows)), PROMETHEUS)


def get_openapi(startup: Startup, call: Call) -> Answer:
    return Response(200, startup.document)


def whoami(services: Services, call: Call) -> Answer:
    caller, rights = call.caller, call.caller.rights
    answer = Whoami(
        caller.name or None, list(rights.scopes), list(rights.prefixes), performance(call.request), list(rights.names),
        list(rights.operations), rights.create, caller.expires_ms,
    )  # fmt: skip
    return json_answer(200, answer)


def list_samples(services: Services, call: Call) -> Answer:
    """Return the samples of the server, of a queue or of all readers after a time, or the history of a topic."""
    found = query_string.parse(call.request.query)
    after = query_string.number(found, "after", default=0)
    if queue := found.get("queue"):
        admit(call.caller, operations.READ_SAMPLES, queue)
        rows = services.queue_samples.rows(services.engine.queues.get(queue), after)
        sampled = QUEUE_INTERVAL_MS, QUEUE_CAPACITY, QUEUE_COLUMNS
    elif name := found.get("topic"):
        admit(call.caller, operations.READ_SAMPLES, name)
        return _history(services, call, name, found)
    elif query_string.flag(found, "readers", default=False):
        columns, rows = services.reader_samples.rows(call.caller.may_use, after)
        sampled = QUEUE_INTERVAL_MS, QUEUE_CAPACITY, columns
    elif query_string.flag(found, "minutes", default=False):
        rows = services.samples.rows(after, minutes=True)
        sampled = MINUTE_MS, MINUTES, services.samples.names
    else:
        rows, sampled = services.samples.rows(after), (INTERVAL_MS, CAPACITY, services.samples.names)
    replication = None if services.replica is None else services.replica.replication
    announced = [] if replication is None else replication.followers
    followers = [FollowerInfo(one.name, one.address, one.takes_over, one.lag_ms) for one in announced]
    return json_answer(200, Samples(*sampled, rows, performance(call.request), followers or None))


def _history(services: Services, call: Call, name: str, found: dict[str, str]) -> Answer:
    to_ts = query_string.number(found, "to_ts", default=services.runtime.clock.now_ms())
    from_ts = query_string.number(found, "from_ts", default=max(to_ts - HOUR_MS, 0))
    points = min(query_string.number(found, "points", default=POINTS) or POINTS, MAX_POINTS)
    if not from_ts < to_ts <= MAX_TS:
        raise invalid("to_ts is not after from_ts", field="to_ts")
    rows = timeline.at_times(services.engine.topic(name), from_ts, to_ts, points)
    interval_ms = max((to_ts - from_ts) // points, 1)
    return json_answer(200, Samples(interval_ms, points + 1, HISTORY_COLUMNS, rows, performance(call.request)))


@in_slices()
def get_timeline(services: Services, call: Call) -> Steps[Answer]:
    """Return what has become of each seq of a window. Runs in slices: marks may have to be loaded."""
    found = query_string.parse(call.request.query)
    from_seq = query_string.number(found, "from_seq", default=1)
    to_seq = query_string.number(found, "to_seq", default=U64_MAX)
    if to_seq < from_seq:
        raise invalid("to_seq is below from_seq", field="to_seq")
    most = min(query_string.number(found, "ranges", default=RANGES) or RANGES, MAX_RANGES)
    topic = yield from once_loaded(lambda: services.engine.expire_and_get(call.params["topic"], touch=False))
    seen = yield from timeline.build(topic, from_seq, to_seq, most)
    lost = topic.losses.total
    answer = TimelineAnswer(
        topic=topic.name,
        epoch=topic.epoch,
        head_seq=topic.head,
        earliest_seq=topic.earliest,
        archived_seq=topic.archived,
        **structs.asdict(seen),
        live=topic.count,
        deleted=topic.head - topic.count - lost,
        lost=lost,
        performance=performance(call.request),
    )
    return json_answer(200, answer)
