"""OpenTelemetry spans, if `opentelemetry-api` is installed: for appends, received records, and jobs.

The trace context travels in `meta["traceparent"]`, so that a consumer's span belongs to the trace of the producer.
Without the package nothing happens, and `meta` is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import structs

from topics.client.items import Gap, NewRecord, Record

try:
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, SpanKind, Tracer

    _tracer: Tracer | None = trace.get_tracer("topics.client")
except ImportError:
    _tracer = None

Written = NewRecord | Mapping[str, Any]


def enabled() -> bool:
    """Return whether spans go anywhere: the package is installed, and the program has set a provider."""
    return _tracer is not None and not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def headers() -> dict[str, str]:
    """Return the trace context of the current span as header fields, so that the server's span belongs to its trace."""
    carrier: dict[str, str] = {}
    if enabled():
        propagate.inject(carrier)
    return carrier


@contextmanager
def sending(topic: str, records: Sequence[Written]) -> Iterator[Sequence[Written]]:
    """Open a span for an append, and yield the records with the trace context in their `meta`."""
    if _tracer is None or not enabled():
        yield records
        return
    attributes = _attributes(topic, "messaging.batch.message_count", len(records))
    with _tracer.start_as_current_span(f"append {topic}", kind=SpanKind.PRODUCER, attributes=attributes):
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        yield [_with_meta(record, carrier) for record in records] if carrier else records


def received(item: Record | Gap) -> None:
    """Record that an item was received, with a link to the span of its append."""
    if _tracer is None or isinstance(item, Gap):
        return
    attributes = _attributes(item.topic, "messaging.message.id", str(item.seq))
    found = trace.get_current_span(propagate.extract(_carrier(item.meta))).get_span_context()
    links = [Link(found)] if found.is_valid else []
    _tracer.start_span(f"receive {item.topic}", kind=SpanKind.CONSUMER, attributes=attributes, links=links).end()


@contextmanager
def job(topic: str, seq: int, meta: Mapping[str, Any], *, is_current: bool = True) -> Iterator[None]:
    """Open a span for a job that continues the trace of its append. A failure is recorded in it.

    The span of a job of a loop is not the current one: a generator cannot set that for its caller.
    """
    if _tracer is None or not enabled():
        yield
        return
    attributes = _attributes(topic, "messaging.message.id", str(seq))
    context = propagate.extract(_carrier(meta))
    span = _tracer.start_span(f"job {topic}", context=context, kind=SpanKind.CONSUMER, attributes=attributes)
    if is_current:
        with trace.use_span(span, end_on_exit=True):
            yield
        return
    try:
        yield
    finally:
        span.end()


def _attributes(topic: str, name: str, value: str | int) -> dict[str, Any]:
    return {"messaging.system": "topics", "messaging.destination.name": topic, name: value}


def _with_meta(record: Written, carrier: Mapping[str, str]) -> Written:
    if isinstance(record, NewRecord):
        return structs.replace(record, meta={**carrier, **(record.meta or {})})
    return {**record, "meta": {**carrier, **(record.get("meta") or {})}}


def _carrier(meta: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in meta.items() if isinstance(value, str)}
