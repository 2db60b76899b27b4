"""OpenTelemetry spans of requests, if `opentelemetry-sdk` is installed and a collector is configured.

A span belongs to the trace of the client whose request has a `traceparent`, so that one trace goes from the producer
through the server to the worker. `OTEL_EXPORTER_OTLP_ENDPOINT` names the collector; the SDK and its exporter read the
other variables of OpenTelemetry (sampler, resource, batches, headers). Spans go out as OTLP in JSON, on a thread of the
SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from topics import __version__, logs
from topics.server.http.messages import Answer, App, Deferred, Request, Response
from topics.server.http.request_log import shown_path

log = logs.Log("tracing")

ENDPOINT, TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
GONE = 499  # the status of a span whose client has gone before its answer


def traced(app: App, environ: Mapping[str, str]) -> App:
    """Return the application with a span for each request, or as it is if no collector is configured."""
    url = environ.get(TRACES_ENDPOINT) or (environ.get(ENDPOINT, "").rstrip("/") + "/v1/traces")
    if not url.startswith(("http://", "https://")) or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return app
    try:
        from opentelemetry.exporter.otlp.json.http import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
    except ImportError:
        log.warning("tracing_is_off", hint="install it with `pip install topics-engine[tracing]`")
        return app

    class Exporter(OTLPSpanExporter):
        def export(self, spans: Sequence[Any]) -> Any:
            result = super().export(spans)
            if result is SpanExportResult.FAILURE:
                log.warning("spans_not_sent", collector=url, spans=len(spans))
            return result

    name = environ.get("OTEL_SERVICE_NAME", "topics")
    resource = Resource.create({"service.name": name, "service.version": __version__})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(Exporter(endpoint=url)))
    log.info("tracing", collector=url)
    return TracedApp(app, provider.get_tracer("topics.server", __version__))


class TracedApp:
    """Opens a span when the application gets a request, and ends it with the answer."""

    def __init__(self, app: App, tracer: Any) -> None:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        self._kind = SpanKind.SERVER
        self._extract = TraceContextTextMapPropagator().extract
        self.admit, self.abandon = app.admit, app.abandon
        self.handle, self.answer = partial(self._traced, app.handle), partial(self._traced, app.answer)

    def _traced(self, serve: Callable[[Request], Answer], request: Request) -> Answer:
        names = (b"traceparent", b"tracestate")
        carrier = {name.decode(): value.decode("latin-1") for name in names if (value := request.headers.get(name))}
        span = self._tracer.start_span(request.method, context=self._extract(carrier), kind=self._kind)
        try:
            answer = serve(request)
        except BaseException:
            _end(span, request, 500)
            raise
        if isinstance(answer, Deferred):
            later = answer.mapped(lambda response: response)
            later.when_over(lambda response: _end(span, request, GONE if response is None else response.status))
            return later
        _end(span, request, (answer if isinstance(answer, Response) else answer.head).status)
        return answer


def _end(span: Any, request: Request, status: int) -> None:
    route = request.timings.route[1]
    span.update_name(f"{request.method} {route}")
    span.set_attributes({
        "http.request.method": request.method, "http.route": route, "http.response.status_code": status,
        "url.path": shown_path(request).partition("?")[0], "network.peer.address": request.peer,
    })  # fmt: skip
    if status >= 500:
        from opentelemetry.trace import StatusCode

        span.set_status(StatusCode.ERROR)
    span.end()
