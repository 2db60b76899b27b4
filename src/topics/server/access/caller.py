"""Callers: their rights, and quotas on what they have open. `authorise` decides for every transport.

A slot of a quota is taken before anything is created. Its `release` may be called twice: the holder calls it on every
path to the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from typing import Any, NamedTuple

from topics.clock import Clock
from topics.config import Settings
from topics.engine.engine import Engine
from topics.engine.state.topics import State
from topics.errors import Code, TopicsError
from topics.keys import END, Rights
from topics.model.records import WriteRequest
from topics.server.access.operations import AUTHENTICATE, CONNECT_SOCKET, OPERATIONS, PING, Operation, Scope
from topics.server.http.messages import Response, body_bytes
from topics.server.limits.budget import SMALL_BYTES, MemoryBudget, check_room, throttled

ALL = Rights()
SECOND_NS = 1_000_000_000
NO_LIMIT = 1 << 62


class Reader(NamedTuple):
    """Who has used a consumer, of a request that has been answered."""

    caller: Caller
    address: str
    client: bytes  # the header `User-Agent`
    at_ms: int


@dataclass(slots=True, eq=False)
class Caller:
    """The rights of one key or token, or of all clients of a server without keys. The same wherever it comes from."""

    name: str  # for counters and logs; never the secret
    rights: Rights = ALL
    counted: bool = False  # true for a key or a token: its requests and streams are counted and capped
    id: str = ""  # of a key: no other key has it, not even a later one with the same name
    parent: Caller | None = None  # the key that a token depends on
    subject: str = ""  # of a token
    signed_by: str = ""  # the id of the key that signed a token
    token: str = ""  # the id of a token
    issued_ms: int = 0
    expires_ms: int | None = None
    slots: set[Slot] = field(default_factory=set)  # open event streams and WebSockets
    inflight: int = 0  # requests that are being answered
    used_ms: int = 0
    ended: str = ""  # why it has no rights any more
    full_ns: int = 0  # when the bucket of its requests is full again
    changes: int = 0  # of its rights and secrets: what was decided before the last one does not hold
    rotated_ms: int = 0  # when the last of its older secrets ends
    scopes: Scope = field(init=False)
    prefixes: tuple[str, ...] = field(init=False)  # see `Rights.covering`
    # Operations that the rights allow. Testing flags per request takes ten times longer than this set.
    operations: frozenset[Operation] = field(init=False)

    def __post_init__(self) -> None:
        self.prefixes = self.rights.covering
        self.scopes = Scope.NONE
        for word in self.rights.scopes:
            self.scopes |= Scope[word.upper()]
        only = self.rights.operations
        self.operations = frozenset(
            one for one in OPERATIONS
            if one.scope in self.scopes and (not only or not one.scope or one.activity in only)
        )  # fmt: skip

    def may_use(self, name: str) -> bool:
        return not self.prefixes or (name + END).startswith(self.prefixes)

    def end_request(self) -> None:
        if self.counted:
            assert self.inflight > 0, "a request ended twice"
            self.inflight -= 1

    def answered(self, response: Response | None) -> None:
        """Uncount a request now, or when a large answer has been sent: the client may not read it."""
        body = b"" if response is None else response.body
        if response is None or (len(body) if type(body) is bytes else body_bytes(body)) <= SMALL_BYTES:
            assert self.inflight > 0, "a request ended twice"  # as `end_request` does it, without a call
            self.inflight -= 1
        else:
            response.sent = self.end_request

    def end(self, reason: str) -> None:
        """Take all rights, and end the streams."""
        self.ended, self.operations = reason, frozenset()
        self.changes += 1
        for slot in list(self.slots):
            if slot.revoke is not None:
                slot.revoke(reason)

    def owns(self, session: Caller) -> bool:
        """Return whether it may continue what `session` began: it is the same, or a newer token with equal rights."""
        alike = (self.parent, self.subject, self.rights) == (session.parent, session.subject, session.rights)
        return self is session or (bool(self.expires_ms and session.expires_ms and not self.id) and alike)


ANYONE = Caller("")
# A WebSocket whose first message will have the key.
UNKNOWN = Caller("", Rights(scopes=()))
UNKNOWN.operations = frozenset((CONNECT_SOCKET, AUTHENTICATE, PING))


def admit(caller: Caller, operation: Operation, *targets: str) -> None:
    """Raise `forbidden` unless the key has the scopes of the operation and may use its targets."""
    if operation not in caller.operations:
        if caller is UNKNOWN:
            raise TopicsError(Code.UNAUTHORIZED, "the first message must be authenticate, with a key or a token")
        if caller.ended:
            raise TopicsError(Code.UNAUTHORIZED, caller.ended)
        if operation.scope in caller.scopes:
            raise TopicsError(
                Code.FORBIDDEN,
                f"the token does not allow this: its operations are {', '.join(caller.rights.operations)}",
                detail={"operations": list(caller.rights.operations)},
            )
        raise TopicsError(
            Code.FORBIDDEN,
            f"the key lacks a scope: this needs {' and '.join(scope_words(operation.scope))}",
            detail={"scope": scope_words(operation.scope)},
        )
    if caller.prefixes:
        for name in targets:
            _check_name(caller, name)


def authorise(engine: Engine, caller: Caller, operation: Operation, *targets: str, wanted: Any = None) -> None:
    """Raise `forbidden` unless the caller may carry out the operation with the decoded request `wanted`.

    Raise `router_not_found` if a name must be looked up in a router that does not exist.
    """
    admit(caller, operation, *targets)
    if caller.prefixes:
        target = targets[0] if targets else ""
        for names_in in operation.names.values():
            for name in names_in(engine, target, wanted):
                if isinstance(name, str):
                    _check_name(caller, name, secret=operation.secret_names)


def bind(caller: Caller, write: WriteRequest) -> None:
    """Give a write the node of a token, and take its right to create if the caller lacks it. Raise for another node."""
    rights = caller.rights
    if not rights.create:
        write.create = False
    if rights.node is not None:
        of_records = (getattr(record, "node", None) for record in write.records)
        if {write.node, *of_records} - {None, rights.node}:
            raise TopicsError(
                Code.FORBIDDEN, f"the token is for records of node {rights.node!r}", detail={"node": rights.node}
            )
        write.node = rights.node


def _check_name(caller: Caller, name: str, *, secret: bool = False) -> None:
    if not caller.may_use(name):
        if secret:
            raise TopicsError(Code.FORBIDDEN, "the key or token does not cover the topics that this uses")
        raise TopicsError(Code.FORBIDDEN, f"the key or token does not cover {name[:64]!r}", detail={"name": name})


def scope_words(scope: Scope) -> list[str]:
    return [one.name.lower() for one in Scope if one in scope and one.name]


class Slot:
    """The place of a stream among those of its caller. The stream sets `revoke`, and calls `release` when it ends."""

    __slots__ = ("_quotas", "caller", "revoke")

    def __init__(self, quotas: Quotas, caller: Caller) -> None:
        self._quotas = quotas
        self.revoke: Callable[[str], None] | None = None  # ends the stream: its caller has lost its rights
        self.caller = caller
        caller.slots.add(self)

    def move(self, caller: Caller) -> None:
        """Count for another caller: a stream goes on with a newer token."""
        if caller is not self.caller:
            self._quotas.check_stream(caller)
        self.caller.slots.discard(self)
        self.caller = caller
        caller.slots.add(self)

    def release(self) -> None:
        """Free the place. May be called twice."""
        self.revoke = None
        if self in self.caller.slots:
            self.caller.slots.discard(self)
            self._quotas.streams -= 1


class Quotas:
    """The counts of one server. Those of a key or a token are on its `Caller`, whose own limits come first."""

    def __init__(self, settings: Settings, budget: MemoryBudget, clock: Clock) -> None:
        self.streams = 0  # open event streams and WebSockets
        self._budget = budget
        self._clock = clock
        self._streams = settings.max_sse_connections
        self._streams_per_key = settings.max_sse_connections_per_key
        self._inflight_per_key = settings.max_inflight_per_key or NO_LIMIT

    def open_stream(self, caller: Caller) -> Slot:
        """Take a slot for a long-lived connection. Raise `throttled` if there is none."""
        self._budget.check(0)
        check_room("max_sse_connections", self.streams, self._streams)
        self.check_stream(caller)
        self.streams += 1
        return Slot(self, caller)

    def most_inflight(self, caller: Caller) -> int:
        return min(self._inflight_per_key, caller.rights.max_inflight or NO_LIMIT)

    def check_stream(self, caller: Caller) -> None:
        if caller.counted:
            check_room("max_sse_connections_per_key", len(caller.slots), self._streams_per_key)
            check_room("max_streams", len(caller.slots), caller.rights.max_streams)

    def begin_request(self, caller: Caller) -> None:
        """Count a request of a key, or raise `throttled`. `Caller.end_request` must follow however it ends."""
        if not caller.counted:
            return
        if caller.inflight >= self._inflight_per_key:
            raise throttled("max_inflight_per_key", self._inflight_per_key)
        rights = caller.rights
        if rights.max_inflight and caller.inflight >= rights.max_inflight:
            raise throttled("max_inflight", rights.max_inflight)
        if rights.rate:
            # A bucket with the requests of one second. It is empty if it is full only a second from now.
            now_ns = self._clock.monotonic_ns()
            full_ns = max(caller.full_ns, now_ns) + SECOND_NS // rights.rate
            if full_ns > now_ns + SECOND_NS:
                raise throttled("rate", rights.rate)
            caller.full_ns = full_ns
        caller.inflight += 1


LOOKED_AT = 300  # of the names that begin alike: comparing one takes up to 10 µs


def with_near_names(error: TopicsError, state: State, caller: Caller) -> TopicsError:
    """Return the error; about a missing topic, with names that the client may have meant and that it may use."""
    name = (error.detail or {}).get("topic")
    if error.code is not Code.TOPIC_NOT_FOUND or not isinstance(name, str) or not name:
        return error
    alike = islice(state.names.visible(caller.prefixes, prefix=name[:2]), LOOKED_AT)
    near = get_close_matches(name, [one for one in alike if abs(len(one) - len(name)) <= 2], n=3, cutoff=0.8)
    if not near:
        return error
    message = f"{error.message}; did you mean {' or '.join(near)}?"
    return TopicsError(error.code, message, detail={**(error.detail or {}), "near": near})
