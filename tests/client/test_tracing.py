"""Spans of the client, if the program traces: the spans of a consumer belong to the trace of the producer."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import ServerProcess
from topics.client import AsyncJob, AsyncTopics, NewRecord, Topics, tracing

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed: it is in the extra `dev`")
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytestmark = pytest.mark.anyio


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A program that traces, for one test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


def find(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.trace_id


async def test_append_has_a_span_and_its_context_travels_in_meta(
    spans: InMemorySpanExporter, topics: AsyncTopics, name: str
) -> None:
    await topics.append_many(name, [NewRecord(data=1, meta={"own": "kept"}), {"data": 2}])
    [span] = find(spans, f"append {name}")
    assert span.attributes is not None
    assert (span.kind, span.attributes["messaging.batch.message_count"]) == (trace.SpanKind.PRODUCER, 2)
    records = [record async for record in topics.read(name)]
    for record in records:
        assert f"{trace_of(span):032x}" in record.meta["traceparent"]  # type: ignore[union-attr]
    assert records[0].meta["own"] == "kept"  # type: ignore[union-attr]


async def test_received_record_links_to_its_append(spans: InMemorySpanExporter, topics: AsyncTopics, name: str) -> None:
    async with topics.writer(name) as writer:
        await writer.append("hello")
    async for _ in topics.follow(name):
        break
    async for _ in topics.watch([name]):
        break
    [sent] = find(spans, f"append {name}")
    received = find(spans, f"receive {name}")
    assert [span.links[0].context.span_id for span in received] == [sent.context.span_id] * 2  # type: ignore[union-attr]


async def test_job_continues_the_trace_of_its_append(
    spans: InMemorySpanExporter, topics: AsyncTopics, name: str
) -> None:
    await topics.put_topic(name, type="queue")
    await topics.append(name, "work")
    inside: list[int] = []

    @topics.worker(name, retry_delay_ms=lambda deliveries: 0, on_error=lambda job, error: None)
    async def work(job: AsyncJob) -> None:
        inside.append(trace.get_current_span().get_span_context().trace_id)
        if job.deliveries == 1:
            raise ValueError("bad")
        topics.stop()

    await asyncio.wait_for(topics.run(), 20)
    [sent] = find(spans, f"append {name}")
    failed, done = find(spans, f"job {name}")
    assert [trace_of(failed), trace_of(done), *inside] == [trace_of(sent)] * 4
    assert (failed.status.is_ok, done.status.is_ok) == (False, True)
    assert failed.events[0].name == "exception"


async def test_job_of_a_loop_continues_the_trace_of_its_append(
    spans: InMemorySpanExporter, topics: AsyncTopics, name: str
) -> None:
    await topics.put_topic(name, type="queue")
    await topics.append(name, "work")
    async for _ in topics.jobs(name):
        topics.stop()
    [sent], [done] = find(spans, f"append {name}"), find(spans, f"job {name}")
    assert trace_of(done) == trace_of(sent)


def test_sync_client_traces_too(spans: InMemorySpanExporter, server: ServerProcess, name: str) -> None:
    with Topics(server.url) as topics:
        topics.append(name, 1)
        next(iter(topics.follow(name)))
    assert find(spans, f"append {name}")
    assert find(spans, f"receive {name}")


async def test_program_that_does_not_trace_leaves_meta_alone(topics: AsyncTopics, name: str) -> None:
    await topics.append(name, 1)
    [record] = [record async for record in topics.read(name)]
    assert record.meta == {}  # type: ignore[union-attr]
    assert not tracing.enabled()


def test_client_works_without_the_package() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from topics.client import Topics, tracing\n"
        "assert not tracing.enabled()\n"
        "with tracing.sending('a', [{'data': 1}]) as records: print(records)\n"
        "with tracing.job('a', 1, {}): pass\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[{'data': 1}]\n"
