"""Webhooks that come in: a delivery with the right signature becomes an append."""

from __future__ import annotations

import msgspec
from msgspec import Raw, structs

from topics.errors import Code, TopicsError, invalid
from topics.model.records import NewRecord, WriteRequest
from topics.model.topic import ConfigPatch
from topics.server.api.handlers import records
from topics.server.api.route import Call
from topics.server.api.services import Services
from topics.server.http.messages import Answer
from topics.webhooks import BadDelivery, check_delivery

MAX_ID_CHARS = 200
REMEMBERED_MS = (
    3 * 86_400_000
)  # ids of deliveries, by a topic that a delivery creates; senders repeat for about so long


def receive_webhook(services: Services, call: Call) -> Answer:
    """Append the body of a delivery, once for each id. It has no key: its signature says who sent it."""
    request, name = call.request, call.params["topic"]
    services.failures.check(request.peer)
    try:
        webhook = services.webhooks.get(name)
        delivery = check_delivery(webhook, request.headers, request.body, services.runtime.clock.now_ms() / 1000)
    except BadDelivery as error:
        refused = TopicsError(Code.UNAUTHORIZED, f"the webhook is refused: {error}")
        services.failures.note(request.peer, refused)
        raise refused from None
    if not 0 < len(delivery.id) <= MAX_ID_CHARS:
        raise invalid(f"a webhook needs an id of at most {MAX_ID_CHARS} characters")
    try:
        data = msgspec.json.decode(request.body, type=Raw)
    except (msgspec.MsgspecError, RecursionError):
        raise invalid("the body of a webhook must be JSON") from None
    meta = {"$webhook_id": delivery.id}
    record = NewRecord(data=data, tag=delivery.event, meta=Raw(msgspec.json.encode(meta)))
    write = WriteRequest(
        records=[record], idempotency_key=f"webhook:{delivery.id}",
        config=ConfigPatch(idempotency_window_ms=REMEMBERED_MS),
    )  # fmt: skip
    # The write is decoded and checked as every append. A copy: the handler is called again if it waits for the disk.
    appended = structs.replace(call, request=structs.replace(request, body=msgspec.json.encode(write), query=b""))
    answer = records.append(services, appended)
    call.warnings = appended.warnings
    return answer
