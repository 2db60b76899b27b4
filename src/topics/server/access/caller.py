"""Callers: their rights, their keys, and quotas on what they have open. `authorise` decides for every transport.

A slot of a quota is taken before anything is created. Its `release` may be called twice: the holder calls it on every
path to the end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from itertools import repeat
from operator import mul
from typing import Any

from topics.config import Settings
from topics.engine.engine import Engine
from topics.errors import Code, TopicsError
from topics.keys import KeyRule
from topics.server.access.operations import OPERATIONS, Operation, Scope
from topics.server.limits.budget import MemoryBudget, check_room, throttled

ALL = Scope.READ | Scope.WRITE | Scope.DELETE | Scope.ADMIN


@dataclass(slots=True, eq=False)
class Caller:
    """The rights of one API key, or of all clients of a server without keys."""

    name: str  # for counters and logs; never the secret
    scopes: Scope = ALL
    prefixes: tuple[str, ...] = ()  # of topic, router and schedule names; empty means all names
    counted: bool = False  # true for a key: its requests and streams are counted and capped
    streams: int = 0  # open event streams and WebSockets
    inflight: int = 0  # requests that are being answered
    # Operations whose scopes the key has. Testing flags per request takes ten times longer than this set.
    operations: frozenset[Operation] = field(init=False)

    def __post_init__(self) -> None:
        self.operations = frozenset(operation for operation in OPERATIONS if operation.scope in self.scopes)

    def may_use(self, name: str) -> bool:
        return not self.prefixes or name.startswith(self.prefixes)

    def end_request(self) -> None:
        if self.counted:
            assert self.inflight > 0, "a request ended twice"
            self.inflight -= 1


ANYONE = Caller("")


def admit(caller: Caller, operation: Operation, *targets: str) -> None:
    """Raise `forbidden` unless the key has the scopes of the operation and may use its targets."""
    if operation not in caller.operations:
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


def _check_name(caller: Caller, name: str, *, secret: bool = False) -> None:
    if not caller.may_use(name):
        if secret:
            raise TopicsError(Code.FORBIDDEN, "the prefixes of the key do not cover the topics that this uses")
        raise TopicsError(Code.FORBIDDEN, f"the prefixes of the key do not cover {name[:64]!r}", detail={"name": name})


def scope_words(scope: Scope) -> list[str]:
    return [one.name.lower() for one in Scope if one in scope and one.name]


class KeyRing:
    """The callers of a server by the digests of their secrets."""

    def __init__(self, rules: tuple[KeyRule, ...]) -> None:
        self.callers: list[Caller] = []
        self._rules: tuple[KeyRule, ...] = ()
        self.replace(rules)

    def replace(self, rules: tuple[KeyRule, ...]) -> None:
        """Use other rules from now on.

        A key whose rule is unchanged keeps its caller, and with it its counts and watch sessions. Every other caller
        loses its rights, because the WebSockets that it has opened still refer to it.
        """
        kept: dict[KeyRule, Caller | None] = dict(zip(self._rules, self.callers, strict=True))
        self.callers = [kept.pop(rule, None) or _caller(rule) for rule in rules]
        for number, caller in enumerate(self.callers, start=1):
            # The position in the configuration: it appears in logs, and must reveal nothing of the secret.
            caller.name = f"key{number}"
        for dropped in filter(None, kept.values()):
            dropped.operations = frozenset()
        self._rules = rules
        self._digests = [rule.digest for rule in rules]
        self._numbers = range(1, len(rules) + 1)

    def find(self, secret: bytes) -> Caller | None:
        """Return the caller with this secret, or None.

        The digest of the secret is compared with that of every key, each comparison in constant time and none skipped
        after a match. The number of the match is a sum. The time taken therefore reveals neither which key matched nor
        how much of one.
        """
        presented = sha256(secret).digest()
        matches = map(compare_digest, self._digests, repeat(presented))
        number = sum(map(mul, matches, self._numbers))
        return self.callers[number - 1] if number else None


def _caller(rule: KeyRule) -> Caller:
    scopes = Scope.NONE
    for word in rule.scopes:
        scopes |= Scope[word.upper()]
    return Caller("", scopes, rule.prefixes, counted=True)


Release = Callable[[], None]


class Quotas:
    """The counts of one server. The counts of a key are on its `Caller`; without keys only the server is counted."""

    def __init__(self, settings: Settings, budget: MemoryBudget) -> None:
        self.streams = 0  # open event streams and WebSockets
        self._budget = budget
        self._streams = settings.max_sse_connections
        self._streams_per_key = settings.max_sse_connections_per_key
        self._inflight_per_key = settings.max_inflight_per_key

    def open_stream(self, caller: Caller) -> Release:
        """Take a slot for a long-lived connection, and return its release. Raise `throttled` if there is none."""
        self._budget.check(0)
        check_room("max_sse_connections", self.streams, self._streams)
        if caller.counted:
            check_room("max_sse_connections_per_key", caller.streams, self._streams_per_key)
            caller.streams += 1
        self.streams += 1
        held = True

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self.streams -= 1
                if caller.counted:
                    caller.streams -= 1

        return release

    def begin_request(self, caller: Caller) -> None:
        """Count a request of a key, or raise `throttled`. `Caller.end_request` must follow however it ends."""
        if not caller.counted:
            return
        if self._inflight_per_key and caller.inflight >= self._inflight_per_key:
            raise throttled("max_inflight_per_key", self._inflight_per_key)
        caller.inflight += 1
