"""Probes: is the process alive, can it serve, what does it measure, what does it speak."""

from __future__ import annotations

from typing import TYPE_CHECKING

import topics.server.api.metrics as metrics
from topics import __version__
from topics.engine.steps import Steps, run_all
from topics.errors import Code, TopicsError
from topics.model.wire import Health, Ready
from topics.server.http.messages import Answer, Response
from topics.server.loop.answer import json_answer, performance

if TYPE_CHECKING:
    from topics.server.api.route import Call
    from topics.server.app import TopicsApp
    from topics.server.startup import Startup

PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


def health(app: TopicsApp, call: Call) -> Answer:
    return health_while_recovering(app.startup, call)


def health_while_recovering(startup: Startup, call: Call) -> Answer:
    return json_answer(200, Health("ok", __version__, startup.uptime_ms(), performance(call.request)))


def ready(app: TopicsApp, call: Call) -> Answer:
    app.check_ready()
    if (why := app.read_only()) is not None:
        raise TopicsError(
            Code.READ_ONLY, f"the log takes no writes: {why}", detail={"reason": why}, retry_after_ms=1000
        )
    return json_answer(200, Ready("ready", True, len(app.engine.topics), performance(call.request)))


def get_metrics(app: TopicsApp, call: Call) -> Answer:
    """In slices: what there is to measure grows with the topics."""
    return app.slices.answer(call.request, _measured(app, call))


def get_metrics_while_recovering(startup: Startup, call: Call) -> Answer:
    return run_all(_rendered(metrics.collect_while_recovering(startup), call))


def _measured(app: TopicsApp, call: Call) -> Steps[Answer]:
    rows = yield from metrics.collect(app, call.caller.prefixes)
    return (yield from _rendered(rows, call))


def _rendered(rows: list[metrics.Metric], call: Call) -> Steps[Answer]:
    if b"application/json" in call.request.headers.get(b"accept", b""):
        return Response(200, metrics.as_json(rows, call.request))
    text = yield from metrics.as_text(rows)
    return Response(200, text, PROMETHEUS)


def get_openapi(app: TopicsApp, call: Call) -> Answer:
    return get_openapi_while_recovering(app.startup, call)


def get_openapi_while_recovering(startup: Startup, call: Call) -> Answer:
    return Response(200, startup.document())
