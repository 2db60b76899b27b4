"""Handler of bulk reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.engine.read.read import Query
from topics.engine.read.scan import Scan
from topics.model.records import Projection, ScanRequest, node_set, parse_match
from topics.model.unknown_fields import RequestDecoder
from topics.model.wire import check_u64
from topics.server.http.messages import Answer
from topics.server.push import scan_formats as formats
from topics.server.push.scan_stream import ScanStream

if TYPE_CHECKING:
    from topics.server.api.route import Call
    from topics.server.api.services import Services

_decode_scan = RequestDecoder[ScanRequest](ScanRequest).decode


def scan(services: Services, call: Call) -> Answer:
    """Return a range of records as one stream."""
    wanted = _decode_scan(call.request.body, call)
    name = call.params["topic"]
    query = _query(wanted)
    form = formats.format_for(call.request, Projection(tags=wanted.include_tags, meta=wanted.include_meta), name)
    services.check_ready()
    if services.throttle.pressed:
        services.throttle.check(name)
    services.engine.topic(name)  # raises 404, which cannot be sent once the stream has begun
    return ScanStream(
        services.runtime, services.throttle, services.budget, Scan(query, upto_seq=wanted.upto_seq), name, form,
        release=services.quotas.open_stream(call.caller),
    )  # fmt: skip


def _query(wanted: ScanRequest) -> Query:
    for field in ("from_seq", "upto_seq", "from_ts", "epoch"):
        if (value := getattr(wanted, field)) is not None:
            check_u64(value, field)
    nodes = node_set(wanted.node)
    match = None if wanted.filter is None else parse_match(wanted.filter, field="filter")
    return Query(from_seq=wanted.from_seq, nodes=nodes, match=match, from_ts=wanted.from_ts, epoch=wanted.epoch)
