"""Handlers of records: append, webhooks that come in, scan, delete. The answer of an append, a hot path, is text."""

import time
from functools import partial

import msgspec
from msgspec import UNSET, Raw, structs

from topics.engine.read.read import Query
from topics.engine.read.scan import Scan
from topics.engine.steps import Steps, once_loaded
from topics.engine.write.append import Appended, Prepared
from topics.engine.write.archived import check_epoch
from topics.engine.write.commit import Ticket
from topics.engine.write.render import LARGE_BYTES as RENDERED_IN_STEPS
from topics.errors import Code, TopicsError, invalid
from topics.model.filters import parse_filter
from topics.model.records import DeleteRequest, NewRecord, Projection, ScanRequest, WriteRequest, node_set, parse_match
from topics.model.topic import ConfigPatch
from topics.model.wire import RecordsDeleted, check_u64, check_u64s
from topics.server.access.caller import ANYONE, bind
from topics.server.api.route import Call, in_slices, with_warnings
from topics.server.api.services import Services
from topics.server.http.messages import Answer, Request, Response
from topics.server.http.request import query_string
from topics.server.http.request.unknown_fields import note
from topics.server.http.request.write_request import LARGE_BYTES, decode_write, decode_write_steps
from topics.server.loop.answer import json_when_done, shown_ms, when_done
from topics.server.push.scan_stream import ScanStream, format_for
from topics.webhooks import BadDelivery, check_delivery

_encode = msgspec.json.encode
_now_ns = time.perf_counter_ns
MAX_ID_CHARS = 200
# Ids of deliveries are remembered for so long by a topic that a delivery creates; senders repeat for about that time.
REMEMBERED_MS = 3 * 86_400_000


def append(services: Services, call: Call, prepared: Prepared | None = None) -> Answer:
    request = call.request
    write: WriteRequest | None = call.wanted
    if write is None:
        if len(request.body) > LARGE_BYTES:
            return services.slices.answer(request, _append_large(services, call))
        write = decode_write(request.body, call)
    if call.caller is not ANYONE:
        rights = call.caller.rights
        if not rights.create or rights.node is not None:  # else `bind` changes nothing
            bind(call.caller, write)
    if write.idempotency_key is None and (key := request.headers.get(b"idempotency-key")):
        write.idempotency_key = key.decode("latin-1")
    with_seqs = not request.query or query_string.flag(query_string.parse(request.query), "return_seqs", default=True)
    encode = _appended_listing if with_seqs else partial(_appended, seqs="")
    if services.throttle.pressed:
        answer = services.throttle.append(call.params["topic"], write, request, encode, prepared)
    else:
        answer = when_done(services.engine.append(call.params["topic"], write, prepared), request, encode)
    if services.engine.appends.warning is not None:
        note(call, [services.engine.appends.take_warning()])
    return answer


def _append_large(services: Services, call: Call) -> Steps[Answer]:
    body_bytes, engine = len(call.request.body), services.engine
    call.wanted = write = yield from decode_write_steps(call.request.body, engine.limits, call)
    bind(call.caller, write)
    prepared = yield from engine.prepare_append(call.params["topic"], write, renders=body_bytes > RENDERED_IN_STEPS)
    return with_warnings(call, (yield from once_loaded(lambda: append(services, call, prepared))))


def _appended_listing(ticket: Ticket, request: Request) -> Response:
    if ticket.count != 1:
        first, last = ticket.result.first, ticket.result.last
        seqs = f"[{first}]" if first == last else _encode(list(range(first, last + 1))).decode()
        return _appended(ticket, request, f',"seqs":{seqs}')
    # What `_appended` returns for a single record in a topic that was there: most answers of a busy server.
    seq, topic, sync_ns = ticket.first, ticket.topic, ticket.sync_ns
    assert topic is not None
    body = (
        f'{{"topic":"{topic.name}","first_seq":{seq},"last_seq":{seq},"seqs":[{seq}],"head_seq":{seq},"count":1,'
        f'"created":false,"deduped":false,"performance":{{"server_total_ms":{shown_ms(_now_ns() - request.started_ns)},'
        f'"wal_append_ms":{shown_ms(ticket.wal_ns)},"fsync_ms":{shown_ms(sync_ns) if sync_ns else "0.000"},'
        f'"throttle_wait_ms":0.0}}}}\n'
    )
    return Response(200, body.encode())


def _appended(ticket: Ticket, request: Request, seqs: str) -> Response:
    """Return the answer. Text is formatted, then encoded: formatting bytes takes twice the time."""
    done: Appended = ticket.result
    first, last = done.first, done.last
    body = (
        f'{{"topic":"{done.topic.name}","first_seq":{first},"last_seq":{last}{seqs},"head_seq":{done.head},'
        f'"count":{last - first + 1},"created":{"true" if done.created else "false"},'
        f'"deduped":{"true" if done.deduped else "false"},"performance":{{'
        f'"server_total_ms":{shown_ms(_now_ns() - request.started_ns)},"wal_append_ms":{shown_ms(ticket.wal_ns)},'
        f'"fsync_ms":{shown_ms(ticket.sync_ns)},"throttle_wait_ms":0.0}}}}\n'
    )
    return Response(201 if done.created else 200, body.encode())


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
    answer = append(services, appended)
    call.warnings = appended.warnings
    return answer


def _staged_delete(services: Services, name: str, wanted: DeleteRequest) -> Steps[Ticket]:
    match = None if wanted.match is UNSET or wanted.match is None else parse_match(wanted.match)
    if wanted.seqs is not None:
        if wanted.before_seq is not None or match is not None:
            raise invalid("seqs goes without before_seq and match", field="seqs")
        seqs = [check_u64(seq, "seqs") for seq in wanted.seqs]
        return (yield from once_loaded(partial(services.engine.delete_seqs, name, seqs, dry_run=wanted.dry_run)))
    if wanted.before_seq is None and match is None:
        raise invalid("a delete needs before_seq, match, or both", field="before_seq")
    before_seq, dry_run = wanted.before_seq, wanted.dry_run
    return (yield from services.engine.delete_records(name, before_seq=before_seq, match=match, dry_run=dry_run))


@in_slices()
def delete_records(services: Services, call: Call) -> Steps[Answer]:
    """Delete records by seq, by tag, or both. Runs in slices: a delete by tag looks at all records of its topic."""
    wanted: DeleteRequest = call.body()
    check_u64s(wanted, "epoch", "before_seq")
    if wanted.epoch is not None:
        check_epoch(services.engine.topic(call.params["topic"]), wanted.epoch)
    ticket = yield from _staged_delete(services, call.params["topic"], wanted)
    return json_when_done(
        ticket, call.request,
        lambda gone, took: RecordsDeleted(
            gone.topic.name, gone.deleted, gone.earliest, gone.head, gone.count, gone.bytes, took, wanted.dry_run
        ),
    )  # fmt: skip


def scan(services: Services, call: Call) -> Answer:
    wanted: ScanRequest = call.body()
    name = call.params["topic"]
    check_u64s(wanted, "from_seq", "upto_seq", "from_ts", "epoch")
    query = Query(
        from_seq=wanted.from_seq,
        nodes=node_set(wanted.node),
        match=parse_filter(wanted.filter),
        from_ts=wanted.from_ts,
        epoch=wanted.epoch,
    )
    form = format_for(call.request, Projection(tags=wanted.include_tags, meta=wanted.include_meta), name)
    services.check_ready()
    if services.throttle.pressed:
        services.throttle.check(name)
    services.engine.topic(name)  # raises 404, which cannot be sent once the stream has begun
    slot = services.quotas.open_stream(call.caller)
    return ScanStream(services, Scan(query, upto_seq=wanted.upto_seq), name, form, slot=slot)
