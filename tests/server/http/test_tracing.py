"""Request ids, and one trace from the producer through the server to the worker, with a real collector."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from tests.conftest import ServerProcess
from tests.contract.api import eventually
from topics.client import Topics, TopicsError, tracing
from topics.server.http.messages import Answer, App, Deferred, Request
from topics.server.http.tracing import TracedApp

CERTS = Path(__file__).parent / "certs"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("ids"), {"log_level": "debug"})
    yield server
    server.kill()


def test_answers_repeat_the_id_of_the_request(server: ServerProcess):
    with httpx.Client(base_url=server.url) as http:
        for method, path, body in (
            ("GET", "/v0/health", None),
            ("POST", "/v0/topics/ids", {"records": [{"data": 1}]}),
            ("POST", "/v0/topics/ids/diff", {"from_seq": 1, "wait_ms": 20}),
            ("GET", "/v0/topics/absent", None),
        ):
            for number in range(2):  # the second one would take the fast path
                given = f"id-{path.rpartition('/')[2]}-{number}"
                answer = http.request(method, path, json=body, headers={"x-request-id": given})
                assert answer.headers.get_list("x-request-id") == [given]
                if not answer.is_success:
                    assert answer.json()["request_id"] == given
    entries = eventually(
        lambda: [one for one in map(json.loads, server.log().splitlines()) if "request_id" in one], bool
    )
    assert {"id-health-0", "id-ids-1", "id-absent-1"} <= {one["request_id"] for one in entries}


def test_errors_have_an_id_and_other_answers_need_none(server: ServerProcess):
    with httpx.Client(base_url=server.url) as http:
        assert "x-request-id" not in http.get("/v0/health").headers
        refused = http.get("/v0/topics/absent", headers={"x-request-id": 'not "usable"'})
        assert refused.headers["x-request-id"] == refused.json()["request_id"] != 'not "usable"'
    with Topics(server.url) as client, pytest.raises(TopicsError) as failed:
        client.topic("absent")
    assert failed.value.request_id is not None
    assert eventually(server.log, lambda log: failed.value.request_id in log)


class Collector(HTTPServer):
    """Takes spans as OTLP in JSON."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                for resource in body["resourceSpans"]:
                    for scope in resource["scopeSpans"]:
                        collector.spans += scope["spans"]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


def test_one_trace_goes_from_the_producer_through_the_server_to_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("opentelemetry.exporter.otlp.json.http", reason="the extra `tracing` is not installed")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("test"))
    collector = Collector()
    Thread(target=collector.serve_forever, daemon=True).start()
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    server = ServerProcess(tmp_path, {}, variables=variables)
    try:
        with Topics(server.url) as client:
            client.put_topic("work", type="queue")
            client.append("work", {"n": 1})
            for _ in client.jobs("work"):
                break
        found = eventually(
            lambda: {one["name"]: one for one in collector.spans}, lambda found: "POST /v0/topics/{topic}" in found
        )
        by_name = {span.name: span for span in exporter.get_finished_spans()}
        produced, worked = by_name["append work"], by_name["job work"]
        served = found["POST /v0/topics/{topic}"]
        assert served["traceId"] == f"{produced.context.trace_id:032x}" == f"{worked.context.trace_id:032x}"
        assert served["parentSpanId"] == f"{produced.context.span_id:016x}"
        attributes = {one["key"]: one["value"] for one in served["attributes"]}
        assert attributes["http.response.status_code"] in ({"intValue": "200"}, {"intValue": "201"})
    finally:
        server.kill()
        collector.shutdown()
        collector.server_close()
        provider.shutdown()


class Unanswered(App):
    """An application whose answers never come."""

    def handle(self, request: Request) -> Answer:
        return Deferred()

    admit = abandon = None  # type: ignore[assignment]


def test_span_of_a_request_whose_client_has_gone_ends_and_has_no_secret():
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed: it is in the extra `tracing`")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app = TracedApp(Unanswered(), provider.get_tracer("test"))
    for path in (b"/s3cret-key", b"/v0/topics/a"):
        answer = app.handle(Request("GET", path, b"token=s3cret-key", {}, b"", "127.0.0.1", 1))
        assert isinstance(answer, Deferred)
        answer.cancel()
    spans = [span.attributes or {} for span in exporter.get_finished_spans()]
    assert [one["http.response.status_code"] for one in spans] == [499, 499]
    assert [one["url.path"] for one in spans] == ["/[hidden]", "/v0/topics/a"]
