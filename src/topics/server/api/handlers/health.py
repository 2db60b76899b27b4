"""Handlers of probes: liveness, readiness, metrics, and the OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

import topics.server.api.metrics as metrics
from topics import __version__
from topics.engine.steps import Steps, run_all
from topics.errors import Code, TopicsError
from topics.model.wire import Health, Ready
from topics.server.http.messages import Answer, Response
from topics.server.limits.loop_holds import Cause
from topics.server.loop.answer import json_answer, performance

if TYPE_CHECKING:
    from topics.server.api.route import Call
    from topics.server.api.services import Services
    from topics.server.startup import Startup

PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


def health(services: Services, call: Call) -> Answer:
    """Report that the process is alive."""
    return health_while_recovering(services.startup, call)


def health_while_recovering(startup: Startup, call: Call) -> Answer:
    """Report that the process is alive, before the data is recovered."""
    return json_answer(200, Health("ok", __version__, startup.uptime_ms(), performance(call.request)))


def ready(services: Services, call: Call) -> Answer:
    """Report whether the server can serve, and whether checkpoints fail. Raise 503 while it stops or is read-only."""
    services.check_ready()
    if (why := services.read_only()) is not None:
        raise TopicsError(
            Code.READ_ONLY, f"the log takes no writes: {why}", detail={"reason": why}, retry_after_ms=1000
        )
    warnings: list[str] | UnsetType = UNSET
    if (why := services.checkpoint_failure()) is not None:
        warnings = [f"checkpoints fail, so the log grows: {why}"]
    return json_answer(200, Ready("ready", True, len(services.engine.topics), performance(call.request), warnings))


def get_metrics(services: Services, call: Call) -> Answer:
    """Return the metrics, measured in slices because their number grows with the topics. Requests share the text."""
    if _wants_json(call):
        return services.slices.answer(call.request, _measure(services, call), Cause.METRICS)
    prefixes = call.caller.prefixes
    return services.shared_answers.answer(
        ("metrics", prefixes), call.request, lambda: _measure_text(services, prefixes), Cause.METRICS
    )


def get_metrics_while_recovering(startup: Startup, call: Call) -> Answer:
    """Return the metrics of the process, before the data is recovered."""
    rows = metrics.collect_while_recovering(startup)
    if _wants_json(call):
        return Response(200, run_all(metrics.as_json(rows, call.request)))
    return Response(200, run_all(metrics.as_text(rows)), PROMETHEUS)


def _measure(services: Services, call: Call) -> Steps[Answer]:
    rows = yield from metrics.collect(services, call.caller.prefixes)
    return Response(200, (yield from metrics.as_json(rows, call.request)))


def _measure_text(services: Services, prefixes: tuple[str, ...]) -> Steps[Response]:
    rows = yield from metrics.collect(services, prefixes)
    return Response(200, (yield from metrics.as_text(rows)), PROMETHEUS)


def _wants_json(call: Call) -> bool:
    return b"application/json" in call.request.headers.get(b"accept", b"")


def get_openapi(services: Services, call: Call) -> Answer:
    """Return the OpenAPI document."""
    return services.slices.answer(call.request, _describe(services.startup))


def get_openapi_while_recovering(startup: Startup, call: Call) -> Answer:
    """Return the OpenAPI document, before the data is recovered."""
    return run_all(_describe(startup))


def _describe(startup: Startup) -> Steps[Answer]:
    return Response(200, (yield from startup.document()))
