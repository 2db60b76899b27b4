"""Handlers of routers: create and configure, get, list, delete, and preview a filter."""

from functools import partial
from typing import Any

from msgspec import structs

from topics.engine.routers.graph import Router
from topics.engine.steps import Steps
from topics.errors import Code, TopicsError
from topics.model import router as model
from topics.model.filters import parse_filter
from topics.model.names import check_router, check_topic
from topics.model.router import PreviewRequest, RouterRequest, fan_in, router_cycle
from topics.model.wire import check_u64s
from topics.server.access.caller import Caller
from topics.server.access.operations import router_names
from topics.server.api.route import Call, in_slices, noted, page_answer
from topics.server.api.services import Services
from topics.server.http.messages import Answer
from topics.server.http.request import query_string
from topics.server.limits.loop_holds import Cause
from topics.server.loop.answer import json_answer, json_when_done, performance

HIDDEN = "…"  # replaces a name that the prefixes of a key do not cover


def put_router(services: Services, call: Call) -> Answer:
    wanted: RouterRequest = call.body()
    try:
        ticket = services.engine.routers.put(call.params["router"], wanted)
    except TopicsError as error:
        raise _visible_to(call.caller, error) from None
    return json_when_done(
        noted(services, call, ticket, config=wanted), call.request,
        lambda done, took: model.RouterPutAnswer(**_fields(done[0]), created=done[1], performance=took),
    )  # fmt: skip


def _visible_to(caller: Caller, error: TopicsError) -> TopicsError:
    """Return the error without the names of topics that the caller may not use."""

    def shown(name: str) -> str:
        return name if caller.may_use(name) else HIDDEN

    detail = error.detail or {}
    if error.code is Code.ROUTER_CYCLE:
        return router_cycle([shown(name) for name in detail["cycle"]])
    if detail.get("reason") == "router_dest_fan_in":
        return fan_in(detail["dest"], shown(detail["source"]))
    return error


def get_router(services: Services, call: Call) -> Answer:
    router = services.engine.routers.get(call.params["router"])
    return json_answer(200, model.RouterAnswer(**_fields(router), performance=performance(call.request)))


@in_slices(Cause.LIST)
def list_routers(services: Services, call: Call) -> Steps[Answer]:
    found, routers = query_string.parse(call.request.query), services.engine.routers
    source, dest = found.get("source"), found.get("dest")

    def find(name: str) -> Router | None:
        router = routers.table.by_name.get(name)
        if router is None or source not in (None, router.edge.source.name) or dest not in (None, router.edge.dest.name):
            return None
        return router if all(map(call.caller.may_use, router_names(router))) else None

    names = routers.names(dest if source is None else source)
    return page_answer(call, names, find, lambda router: model.RouterSummary(**_summary(router)), model.RouterList)


def drop_router(services: Services, call: Call) -> Answer:
    name = call.params["router"]
    ticket = noted(services, call, services.engine.routers.drop(name))
    return json_when_done(ticket, call.request, partial(model.RouterDropped, name))


@in_slices()
def preview_router(services: Services, call: Call) -> Steps[Answer]:
    """Count what a router would forward: as it is, with another filter, or (with `source`) before it exists."""
    wanted: PreviewRequest = call.body()
    check_u64s(wanted, "from_seq", "from_ts")
    name = check_router(call.params["router"])
    match = parse_filter(wanted.filter)
    if wanted.source is None:
        router = services.engine.routers.get(name)
        source = router.edge.source
        match = match or router.config.filter
    else:
        check_topic(wanted.source, field="source")
        source = services.engine.topic(wanted.source)
    found = yield from services.engine.preview(source, match, from_seq=wanted.from_seq, from_ts=wanted.from_ts)
    answer = model.PreviewAnswer(
        router=name,
        source=source.name,
        filter=None if match is None else match.wire(),
        from_seq=wanted.from_seq,
        matched=found.matched,
        bytes=found.bytes,
        scanned=found.scanned,
        first_seq=found.first,
        last_seq=found.last,
        head_seq=source.head,
        performance=performance(call.request),
    )
    return json_answer(200, answer)


def _summary(router: Router) -> dict[str, Any]:
    return {
        "router": router.name,
        "source": router.edge.source.name,
        "dest": router.edge.dest.name,
        "guarantee": router.config.guarantee,
        "forwarded_total": router.forwarded_total,
        "cursor": router.cursor,
        "lag": router.lag,
        "last_error": router.edge.last_error,
    }


def _fields(router: Router) -> dict[str, Any]:
    match = router.config.filter
    return structs.asdict(router.config) | _summary(router) | {"filter": None if match is None else match.wire()}
