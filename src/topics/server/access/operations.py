"""The operations: everything a client can request, and what a key needs for it. One table for all transports. Pure.

A row of the route table and a WebSocket command each refer to an operation. A body that asks for more than its route
(`MORE`) is authorised for that operation as well. Names are looked up in the state with all writes in progress applied,
as the handler will find it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Flag, auto
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from topics.engine.engine import Engine
from topics.engine.routers.graph import Router
from topics.errors import Code, TopicsError
from topics.keys import Activity
from topics.model.consumer import CommitRequest, ConsumerRequest
from topics.model.names import AUDIT
from topics.model.queue import RedriveRequest
from topics.model.records import DiffRequest, WriteRequest
from topics.model.router import PreviewRequest
from topics.model.topic import ConfigPatch
from topics.model.watch import Authenticate, Command, CommitCommand, Ping, Publish, Subscribe, Unsubscribe, WatchRequest
from topics.server.http.request.unknown_fields import strict


class Scope(Flag):
    """Rights of a key. A combination means all of them."""

    NONE = 0
    READ = auto()
    WRITE = auto()
    DELETE = auto()
    ADMIN = auto()


CHANGES = Scope.WRITE | Scope.DELETE | Scope.ADMIN  # rights that a read does not need
CONSUME = Scope.READ | Scope.WRITE

NamesIn = Callable[["Engine", str, Any], Iterable[str | UnsetType | None]]


OPERATIONS: list[Operation] = []


class Operation(Struct, frozen=True, eq=False):
    name: str
    scope: Scope = Scope.NONE  # scopes that the key must have, all of them
    # Names besides the target (the topic, router or schedule in the path) that the prefixes of the key must cover, by
    # their source: a field of the request, or the state. Called with the engine, the target and the decoded request.
    names: Mapping[str, NamesIn] = {}
    activity: Activity | None = None  # the part of a token's `operations` that allows it; they never limit scope NONE
    secret_names: bool = False  # `names` come from the state and may be unknown to the caller: errors leave them out

    def __post_init__(self) -> None:
        OPERATIONS.append(self)


# --- where names come from


def _dead_letter(engine: Engine, target: str, patch: ConfigPatch) -> Iterable[str | UnsetType | None]:
    """Return the dead-letter topic, to which the queue writes on behalf of the key that configured it.

    That key sets `dead_letter`, or turns dead letters on (`max_deliveries`) where another key has set it.
    """
    if patch.dead_letter is UNSET and patch.max_deliveries:
        topic = engine.find(target)
        return () if topic is None else (topic.config.dead_letter,)
    return (patch.dead_letter,)


def _inline_dead_letter(_: Engine, __: str, write: WriteRequest | Publish) -> Iterable[str | UnsetType | None]:
    """Return the dead-letter topic of an inline configuration, which applies only if the write creates the topic."""
    return () if write.config is None else (write.config.dead_letter,)


def _redriven(engine: Engine, target: str, wanted: RedriveRequest) -> Iterable[str | None]:
    if wanted.dead_letter is not None:
        return (wanted.dead_letter,)
    topic = engine.find(target)
    return () if topic is None else (topic.config.dead_letter,)


def _watched(_: Engine, __: str, wanted: WatchRequest | Subscribe) -> Iterable[str]:
    """Return the watched names. A pattern counts with its `*`, so that it lies within a prefix and no exact name."""
    return wanted.watched()


def _router_topics(engine: Engine, target: str, _: Any) -> Iterable[str]:
    """Return the topics of a router: its state shows their names, so the key must be allowed to use them."""
    return router_names(engine.routers.get(target))[1:]


def _previewed(engine: Engine, target: str, wanted: PreviewRequest) -> Iterable[str]:
    return _router_topics(engine, target, wanted) if wanted.source is None else (wanted.source,)


def router_names(router: Router) -> tuple[str, ...]:
    """Return all names that a key must be allowed to use to see the router in a list."""
    return router.name, router.edge.source.name, router.edge.dest.name


def _schedule_topic(engine: Engine, target: str, _: Any) -> Iterable[str]:
    one = engine.state.schedules.by_name.get(target)
    return () if one is None else (one.config.topic,)


def _committed(_: Engine, __: str, wanted: CommitRequest) -> Iterable[str]:
    return {one.topic for one in wanted.commits}


def _field(name: str) -> NamesIn:
    return lambda _, __, wanted: (getattr(wanted, name),)


# --- the rows

CONFIGURE_TOPIC = Operation("configure topic", Scope.ADMIN, names={"dead_letter": _dead_letter})
READ_STATE = Operation("read state", Scope.READ)
LIST_TOPICS = Operation("list topics", Scope.READ)
DROP_TOPIC = Operation("drop topic", Scope.DELETE)
APPEND = Operation("append", Scope.WRITE, names={"config.dead_letter": _inline_dead_letter}, activity="publish")
RECEIVE_WEBHOOK = Operation("receive webhook", Scope.WRITE)
# The contract requires more over a WebSocket (section 7) than over HTTP (section 0.2), where `write` is enough.
PUBLISH_CONFIGURED = Operation(
    "publish with config", Scope.WRITE | Scope.ADMIN, names={"config.dead_letter": _inline_dead_letter},
    activity="publish",
)  # fmt: skip
READ_SCHEMA = Operation("read schema", Scope.READ)
READ_TIMELINE = Operation("read timeline", Scope.READ)
DIFF = Operation("diff", Scope.READ, activity="diff")
# Reading by name begins and moves a consumer, so it needs what storing one needs.
DIFF_AS_CONSUMER = Operation("diff as consumer", CONSUME, activity="diff")
SCAN = Operation("scan", Scope.READ, activity="diff")
DELETE_RECORDS = Operation("delete records", Scope.DELETE)
# A report ends the hold of the records up to its seq, and a PUT of the topic began it: it needs what configuring needs.
REPORT_ARCHIVED = Operation("report archived", Scope.ADMIN)

WATCH = Operation("watch", Scope.READ, names={"topics": _watched}, activity="watch")
WATCH_AS_CONSUMER = Operation("watch as consumer", CONSUME, names={"topics": _watched}, activity="watch")
COMMIT = Operation("commit", CONSUME, activity="watch")
# The session was authorised when it was created, and `Sessions.find` returns it only to the key that created it.
OPEN_SESSION = Operation("open session")
# Every command is authorised by itself. The handshake refuses pages of other sites.
CONNECT_SOCKET = Operation("connect socket")
AUTHENTICATE = Operation("authenticate")  # the command checks the key itself
UNSUBSCRIBE = Operation("unsubscribe")
PING = Operation("ping")

CLAIM = Operation("claim", CONSUME, activity="work")
WORK = Operation("work", CONSUME, activity="work")
ACK = Operation("ack", Scope.WRITE, activity="work")
NACK = Operation("nack", Scope.WRITE, activity="work")
EXTEND = Operation("extend", Scope.WRITE, activity="work")
LIST_JOBS = Operation("list jobs", Scope.READ)
REDRIVE = Operation("redrive", CONSUME | Scope.DELETE, names={"dead_letter": _redriven})

PUT_CONSUMER = Operation("put consumer", CONSUME)
# A hold keeps records past the caps that the topic was configured with, so it needs what configuring needs; and so does
# its end.
HOLD_FOR_CONSUMER = Operation("hold for consumer", CONSUME | Scope.ADMIN)
COMMIT_MANY = Operation("commit many", CONSUME, names={"commits": _committed})
READ_CONSUMER = Operation("read consumer", Scope.READ)
LIST_CONSUMERS = Operation("list consumers", Scope.READ)
DROP_CONSUMER = Operation("drop consumer", Scope.DELETE)

PUT_ROUTER = Operation("put router", Scope.ADMIN, names={"source": _field("source"), "dest": _field("dest")})
_OF_ROUTER: Mapping[str, NamesIn] = {"source and dest of the router": _router_topics}
READ_ROUTER = Operation("read router", Scope.READ, names=_OF_ROUTER, secret_names=True)
LIST_ROUTERS = Operation("list routers", Scope.READ)
DROP_ROUTER = Operation("drop router", Scope.DELETE)
PREVIEW_ROUTER = Operation(
    "preview router", Scope.READ, names={"source, or those of the router": _previewed}, secret_names=True
)

PUT_SCHEDULE = Operation("put schedule", Scope.ADMIN, names={"topic": _field("topic")})
_OF_SCHEDULE: Mapping[str, NamesIn] = {"topic of the schedule": _schedule_topic}
READ_SCHEDULE = Operation("read schedule", Scope.READ, names=_OF_SCHEDULE, secret_names=True)
LIST_SCHEDULES = Operation("list schedules", Scope.READ)
DROP_SCHEDULE = Operation("drop schedule", Scope.DELETE)
RUN_SCHEDULE = Operation("run schedule", Scope.WRITE, names=_OF_SCHEDULE, secret_names=True)
PAUSE_SCHEDULE = Operation("pause schedule", Scope.ADMIN, names=_OF_SCHEDULE, secret_names=True)
PREVIEW_SCHEDULE = Operation("preview schedule", Scope.READ, names=_OF_SCHEDULE, secret_names=True)

PROBE = Operation("probe")
READ_METRICS = Operation("read metrics", Scope.READ)
READ_SAMPLES = Operation("read samples", Scope.READ)
QUERY = Operation("query", Scope.READ, activity="diff")
READ_REPLICA = Operation("read replica", Scope.READ)
PROMOTE = Operation("promote", Scope.ADMIN)
READ_OWN_RIGHTS = Operation("read own rights")
CREATE_TOKEN = Operation("create token")  # which has at most the rights of the key
REVOKE_TOKENS = Operation("revoke tokens", Scope.ADMIN)
LIST_KEYS = Operation("list keys", Scope.ADMIN)
CREATE_KEY = Operation("create key", Scope.ADMIN)
ROTATE_KEY = Operation("rotate key", Scope.ADMIN)
DROP_KEY = Operation("revoke key", Scope.ADMIN)
READ_AUDIT = Operation("read audit", Scope.READ | Scope.ADMIN)  # every read of that topic, in place of its own
READ_DOCUMENT = Operation("read document")


# --- requests whose body asks for more than the operation of their route


def _consumes(wanted: WatchRequest | Subscribe) -> bool:
    return any(options.by_name for options in wanted.watched().values())


MORE: Mapping[type[Any], tuple[Operation, Callable[[Any], bool]]] = {
    ConsumerRequest: (HOLD_FOR_CONSUMER, lambda wanted: wanted.hold is not UNSET or wanted.max_hold_bytes is not UNSET),
    DiffRequest: (DIFF_AS_CONSUMER, lambda wanted: wanted.consumer is not None),
    WatchRequest: (WATCH_AS_CONSUMER, _consumes),
}


def more_than_route(wanted: Any) -> Operation | None:
    """Return the operation that a decoded body asks for besides that of its route; None if there is none."""
    operation, asks = next(row for kind, row in MORE.items() if isinstance(wanted, kind))
    return operation if asks(wanted) else None


# --- WebSocket commands


COMMANDS: Mapping[type[Any], Callable[[Any], Operation]] = {
    Publish: lambda command: APPEND if command.config is None else PUBLISH_CONFIGURED,
    Subscribe: lambda command: WATCH_AS_CONSUMER if _consumes(command) else WATCH,
    Authenticate: lambda _: AUTHENTICATE,
    Unsubscribe: lambda _: UNSUBSCRIBE,
    CommitCommand: lambda _: COMMIT,
    Ping: lambda _: PING,
}


_PICK = {**COMMANDS, **{strict(kind): pick for kind, pick in COMMANDS.items()}}


def read_only() -> TopicsError:
    return TopicsError(Code.FORBIDDEN, f"{AUDIT} can only be read: the server writes it", detail={"topic": AUDIT})


def operation_of(command: Command) -> tuple[Operation, tuple[str, ...]]:
    targets = (command.topic,) if isinstance(command, (Publish, CommitCommand)) else ()
    if AUDIT in targets:
        raise read_only()
    return _PICK[type(command)](command), targets
