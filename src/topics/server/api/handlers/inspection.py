"""Handlers for looking at a server: probes, metrics, the OpenAPI document, rights of a key, samples, and timelines.

Static files, too: the index, the web console, and the JavaScript client. They are answered at any time.
"""

from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

from msgspec import UNSET, UnsetType, structs

import topics
from topics import __version__
from topics.engine.read import timeline
from topics.engine.steps import Steps, once_loaded, run_all
from topics.errors import Code, TopicsError, invalid
from topics.model.inspection import MAX_RANGES, RANGES, Index, Samples, TimelineAnswer, Whoami
from topics.model.topic import U64_MAX
from topics.model.wire import Health, Ready
from topics.server.access import operations
from topics.server.access.caller import admit
from topics.server.api import exposition, metrics
from topics.server.api.handlers.commands import followers
from topics.server.api.route import Call, in_slices
from topics.server.api.services import Services, Startup
from topics.server.http.browser_origin import PAGE_MEDIA, names_any
from topics.server.http.messages import Answer, Header, Request, Response
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
from topics.storage.log.wal import LogState

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
        if purpose != "read" or storage.wal.state is LogState.FENCED:
            code = Code.FENCED if storage.wal.state is LogState.FENCED else Code.READ_ONLY
            raise TopicsError(code, message, detail={"reason": why}, retry_after_ms=1000)
        warnings = [message]
    services.check_ready()
    if purpose == "write":
        services.check_writer()
    if storage is not None and (why := storage.store.retries.reason) is not None:
        warnings = [*(warnings or []), f"checkpoints fail, so the log grows: {why}"]
    answer, why = Ready("ready", True, len(services.engine.topics), performance(call.request)), None
    if (standby := services.following) is not None:
        answer.follows, answer.replica_lag_ms = standby.following.writer.address, standby.lag_ms
        why = standby.following.last_failure or None
    elif (replication := services.replication) is not None:
        answer.replica_lag_ms = replication.lag_ms
        why = replication.sequence.last_failure if replication.is_away else None
    answer.warnings = [*(warnings or []), f"the replica does not answer: {why}"] if why is not None else warnings
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


def _shown(rows: list[exposition.Metric], request: Request) -> Steps[Response]:
    """Return the metrics as JSON, with the time that `request` took, or as text."""
    as_json, old_names = _form(request)
    rows = exposition.renamed(rows, old_names=old_names)
    if as_json:
        return Response(200, (yield from exposition.as_json(rows, request)))
    return Response(200, (yield from exposition.as_text(rows)), PROMETHEUS)


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
    following = None if services.standby is not None else followers(services) or None
    return json_answer(200, Samples(*sampled, rows, performance(call.request), following))


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


FOUND, NOT_MODIFIED = 302, 304

# A wheel holds a copy of the client and of its types; a checkout has the originals.
_PACKAGE = Path(topics.__file__).parent
_PLACES = (_PACKAGE / "server" / "assets" / "client.js", _PACKAGE.parents[1] / "clients" / "js" / "topics.js")
_CONSOLE = _PACKAGE / "server" / "console"
_TYPES = {
    ".html": b"text/html; charset=utf-8", ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8", ".svg": b"image/svg+xml", ".ts": b"text/typescript; charset=utf-8",
}  # fmt: skip

# A page of the console runs its own scripts and calls its own server, and nothing else. Trusted types keep its scripts
# from turning text into markup at all.
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_PROTECTION: tuple[Header, ...] = (
    (b"content-security-policy", POLICY),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


def get_index(startup: Startup, call: Call) -> Answer:
    """Return the addresses of the server, or send a browser to the console."""
    console = "/console" if startup.console else None
    if console is not None and names_any(call.request.headers.get(b"accept", b"").lower(), PAGE_MEDIA):
        headers = ((b"location", console.encode()), (b"vary", b"accept"), (b"cache-control", b"no-store"))
        return Response(FOUND, b"", _TYPES[".html"], headers)
    took = performance(call.request)
    return json_answer(200, Index("topics", __version__, console, "/v0/openapi.json", "/client.js", "/v0/health", took))


def get_asset(startup: Startup, call: Call) -> Answer:
    """Return a file of the package by its path, or 304 if the client has this version."""
    found = _assets().get(unquote(call.request.path.decode("latin-1")).lstrip("/"))
    if found is None:
        raise TopicsError(Code.NOT_FOUND, "the console has no such file; it begins at /console")
    body, content_type, headers = found
    if headers[0][1] in call.request.headers.get(b"if-none-match", b""):
        return Response(NOT_MODIFIED, b"", content_type, headers)
    return Response(200, body, content_type, headers)


@cache
def _assets() -> dict[str, tuple[bytes, bytes, tuple[Header, ...]]]:
    """Return the files by path, each with its type and headers. A page of any origin may import the client."""
    client = next(path for path in _PLACES if path.exists())
    shared = ((b"cache-control", b"public, max-age=300"), (b"access-control-allow-origin", b"*"))
    headers = {"client.js": shared, "client.d.ts": shared}
    paths = {f"console/{path.relative_to(_CONSOLE).as_posix()}": path for path in sorted(_CONSOLE.rglob("*.*"))}
    named = {"console": _CONSOLE / "index.html", "client.js": client, "client.d.ts": client.with_suffix(".d.ts")}
    files = {}
    for name, path in (named | paths).items():
        if path.suffix in _TYPES:
            body = path.read_bytes()
            etag = b'"%b"' % sha256(body).hexdigest()[:16].encode()
            more = headers.get(name, (*_PROTECTION, (b"cache-control", b"no-cache")))
            files[name] = body, _TYPES[path.suffix], ((b"etag", etag), *more)
    return files
