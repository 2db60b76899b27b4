"""Callers and their rights. `authorise` decides for every transport, by the table in `operations.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from topics.errors import Code, TopicsError
from topics.server.access.operations import OPERATIONS, Operation, Scope

if TYPE_CHECKING:
    from topics.engine.engine import Engine

ALL = Scope.READ | Scope.WRITE | Scope.DELETE | Scope.ADMIN


class Caller:
    """The rights of one API key, or of all clients of a server without keys."""

    __slots__ = ("counted", "inflight", "name", "operations", "prefixes", "scopes", "streams")

    def __init__(
        self, name: str, scopes: Scope = ALL, prefixes: tuple[str, ...] = (), *, counted: bool = False
    ) -> None:
        self.name = name  # for counters and logs; never the secret
        self.scopes = scopes
        self.prefixes = prefixes  # of topic and router names; empty means all names
        self.counted = counted  # true for a key: its requests and streams are counted and capped
        self.streams = 0  # open event streams and WebSockets
        self.inflight = 0  # requests that are being answered
        # Operations whose scopes the key has. Testing flags per request takes ten times longer than this set.
        self.operations = frozenset(operation for operation in OPERATIONS if operation.scope in scopes)

    def may_use(self, name: str) -> bool:
        """Return whether the prefixes of the key cover the name."""
        return not self.prefixes or name.startswith(self.prefixes)

    def end_request(self) -> None:
        """Uncount a request that `Quotas.begin_request` has counted."""
        assert self.inflight > 0, "a request ended twice"
        self.inflight -= 1


ANYONE = Caller("")


def admit(caller: Caller, operation: Operation, *targets: str) -> None:
    """Raise `forbidden` unless the key has the scopes of the operation and may use its targets.

    This needs only the head of a request; `authorise` also checks the body and the state.
    """
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
            raise TopicsError(Code.FORBIDDEN, "the prefixes of the key do not cover the topics of this router")
        raise TopicsError(Code.FORBIDDEN, f"the prefixes of the key do not cover {name[:64]!r}", detail={"name": name})


def scope_words(scope: Scope) -> list[str]:
    """Return the names of scopes, as the configuration spells them."""
    return [one.name.lower() for one in Scope if one in scope and one.name]
