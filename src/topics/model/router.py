"""Request, stored and response types of routers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Struct

from topics.errors import Code, TopicsError, invalid
from topics.model.filters import parse_filter
from topics.model.names import check_router, check_topic
from topics.model.records import FilterWire, TagMatch
from topics.model.topic import U64
from topics.model.wire import Performance, check_u64s

Guarantee = Literal["at_least_once", "exactly_once"]

STAMP = "_topics_router"  # member of `meta` with the origin of an `exactly_once` copy
MAX_HOPS = 16  # topics that a record can pass on a cycle of routers


class RouterRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `PUT /v0/routers/:router`. `from_seq` or `from_ts` is the start of a new router; default: the head."""

    source: str
    dest: Annotated[str, "the topic that the router writes; another one than `source`, with no other source"]
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: Annotated[bool, "whether the server creates the destination if it does not exist"] = True
    filter: FilterWire = None  # type: ignore[assignment]  # msgspec has no optional `Raw`
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"
    from_seq: Annotated[U64 | None, "where a new router starts: after this seq of the source; the head by default"] = (
        None
    )
    from_ts: Annotated[
        U64 | None, "where a new router starts: at the first record of this time, in milliseconds since 1970"
    ] = None


class RouterConfig(Struct, frozen=True, kw_only=True, gc=False):
    """The stored configuration of a router."""

    preserve_node: bool = True
    preserve_tag: bool = True
    filter: TagMatch | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"


class PreviewRequest(Struct, kw_only=True):
    """Body of `POST /v0/routers/:router/preview`. `source` and `filter` default to those of the router."""

    source: Annotated[str | None, "the topic to examine; the source of the router by default"] = None
    filter: FilterWire = None  # type: ignore[assignment]  # the filter of the router
    from_seq: Annotated[U64, "examine records after this seq"] = 0
    from_ts: U64 | None = None


class RouterSummary(Struct, kw_only=True):
    router: str
    source: str
    dest: str
    guarantee: Guarantee
    forwarded_total: U64
    cursor: U64
    lag: Annotated[U64, "the number of source records that the router has not processed"]
    last_error: str | None


class RouterAnswer(RouterSummary, kw_only=True):
    """A router and its position. `lag` is the number of source records that it has not processed."""

    preserve_node: bool
    preserve_tag: bool
    filter: Annotated[list[Any] | None, "only records that match are copied; null is all"]
    allow_cycle: bool
    performance: Performance


class RouterPutAnswer(RouterAnswer, kw_only=True):
    """A router, and whether this request created it."""

    created: bool


class RouterList(Struct, omit_defaults=True):
    routers: Annotated[list[RouterSummary], "a page of routers by name"]
    performance: Performance
    next_cursor: str | None = None


class RouterDropped(Struct):
    router: str
    deleted: Annotated[bool, "whether the router existed"]
    performance: Performance


class PreviewAnswer(Struct, kw_only=True):
    """What a filter would forward of the stored source records. `scanned` counts the live records examined."""

    router: str
    source: str
    filter: Annotated[list[Any] | None, "the filter that was tried; null is none"]
    from_seq: Annotated[U64, "records after this seq were examined"]
    matched: Annotated[U64, "the number of records that the router would copy"]
    bytes: Annotated[U64, "the size of these records"]
    scanned: Annotated[U64, "the number of live records examined"]
    first_seq: Annotated[U64 | None, "the first matching seq; null if there is none"]
    last_seq: Annotated[U64 | None, "the last matching seq; null if there is none"]
    head_seq: U64
    performance: Performance


def check_request(name: str, request: RouterRequest) -> RouterConfig:
    """Return the configuration to store. Raise `invalid_request` if the request is invalid."""
    check_router(name)
    check_topic(request.source, field="source")
    check_topic(request.dest, field="dest")
    if request.source == request.dest:
        raise invalid("dest is the same topic as source; choose another", field="dest")
    if request.from_seq is not None and request.from_ts is not None:
        raise invalid("from_seq and from_ts are both set; send only one", field="from_ts")
    check_u64s(request, "from_seq", "from_ts")
    stored = {name: getattr(request, name) for name in RouterConfig.__struct_fields__}
    return RouterConfig(**(stored | {"filter": parse_filter(request.filter)}))


def router_not_found(name: str) -> TopicsError:
    return TopicsError(Code.ROUTER_NOT_FOUND, f'router "{name}" does not exist', detail={"router": name})


def router_cycle(cycle: list[str]) -> TopicsError:
    shown = " → ".join(cycle)
    return TopicsError(
        Code.ROUTER_CYCLE,
        f"this router would close a cycle: {shown}; set allow_cycle to allow it",
        detail={"cycle": cycle},
    )


def fan_in(dest: str, source: str) -> TopicsError:
    return TopicsError(
        Code.TOPIC_EXISTS_INCOMPATIBLE,
        f'topic "{dest}" already has the source "{source}"; a destination can have only one',
        detail={"reason": "router_dest_fan_in", "dest": dest, "source": source},
    )
