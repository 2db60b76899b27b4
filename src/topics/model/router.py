"""Routers: what a client asks for, what is stored, and what the answers look like."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from topics.errors import Code, TopicsError, invalid
from topics.model.names import check_router, check_topic
from topics.model.records import MatchWire, TagMatch, parse_match
from topics.model.topic import U64
from topics.model.wire import Performance, check_u64

Guarantee = Literal["at_least_once", "exactly_once"]

STAMP = "_topics_router"  # the member of `meta` that says where an `exactly_once` copy comes from
MAX_HOPS = 16  # topics that a record may pass on its way through routers that form a cycle


class RouterRequest(Struct, kw_only=True):
    """Body of `PUT /v0/routers/:router`. `from_seq` or `from_ts` says where a new router begins: else at the head."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: MatchWire = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"
    from_seq: U64 | None = None
    from_ts: U64 | None = None


class RouterConfig(Struct, frozen=True, kw_only=True):
    """How a router forwards, as stored."""

    preserve_node: bool = True
    preserve_tag: bool = True
    filter: TagMatch | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"


class PreviewRequest(Struct, kw_only=True):
    """Body of `POST /v0/routers/:router/preview`. Left out, `source` and `filter` are those of the router."""

    source: str | None = None
    filter: MatchWire = None
    from_seq: U64 = 0
    from_ts: U64 | None = None


class RouterAnswer(Struct, kw_only=True):
    """A router and how far it has come. `lag` counts the records of the source that it has not looked at yet."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: list[str] | None
    allow_cycle: bool
    guarantee: Guarantee
    forwarded_total: U64
    cursor: U64
    lag: U64
    last_error: str | None
    performance: Performance


class RouterPutAnswer(RouterAnswer, kw_only=True):
    """The same, and whether this call made it."""

    created: bool


class RouterSummary(Struct, kw_only=True):
    router: str
    source: str
    dest: str
    guarantee: Guarantee
    forwarded_total: U64
    cursor: U64
    lag: U64
    last_error: str | None


class RouterList(Struct, omit_defaults=True):
    routers: list[RouterSummary]
    performance: Performance
    next_cursor: str | None = None


class RouterDropped(Struct):
    router: str
    deleted: bool
    performance: Performance


class PreviewAnswer(Struct, kw_only=True):
    """What a filter would forward of what the source still has. `scanned` counts the live records looked at."""

    router: str
    source: str
    filter: list[str] | None
    from_seq: U64
    matched: U64
    bytes: U64
    scanned: U64
    first_seq: U64 | None
    last_seq: U64 | None
    head_seq: U64
    performance: Performance


def check_request(name: str, request: RouterRequest) -> RouterConfig:
    """What of the request is stored, or `invalid_request`."""
    check_router(name)
    check_topic(request.source, field="source")
    check_topic(request.dest, field="dest")
    if request.source == request.dest:
        raise invalid("dest must differ from source", field="dest")
    if request.from_seq is not None and request.from_ts is not None:
        raise invalid("from_seq and from_ts exclude each other", field="from_ts")
    for field in ("from_seq", "from_ts"):
        if (value := getattr(request, field)) is not None:
            check_u64(value, field)
    return RouterConfig(
        preserve_node=request.preserve_node,
        preserve_tag=request.preserve_tag,
        filter=parse_filter(request.filter),
        allow_cycle=request.allow_cycle,
        guarantee=request.guarantee,
    )


def parse_filter(value: Any) -> TagMatch | None:
    return None if value is None else parse_match(value, field="filter")


def router_not_found(name: str) -> TopicsError:
    return TopicsError(Code.ROUTER_NOT_FOUND, f'router "{name}" does not exist', detail={"router": name})


def router_cycle(cycle: list[str]) -> TopicsError:
    shown = " → ".join(cycle)
    return TopicsError(
        Code.ROUTER_CYCLE, f"this router would close a cycle: {shown}; allow_cycle permits it", detail={"cycle": cycle}
    )


def fan_in(dest: str, source: str) -> TopicsError:
    return TopicsError(
        Code.TOPIC_EXISTS_INCOMPATIBLE,
        f'topic "{dest}" is already fed from "{source}"; a destination has one source',
        detail={"reason": "router_dest_fan_in", "dest": dest, "source": source},
    )
