"""Who calls, and what they may do."""

from __future__ import annotations

from topics.errors import Code, TopicsError
from topics.model.topic import ConfigPatch
from topics.server.routes import Route, Scope

ALL = Scope.READ | Scope.WRITE | Scope.DELETE | Scope.ADMIN


class Caller:
    """One API key's rights, or everybody's where no keys are in use."""

    __slots__ = ("counted", "inflight", "name", "prefixes", "routes", "scopes", "streams")

    def __init__(
        self, name: str, scopes: Scope = ALL, prefixes: tuple[str, ...] = (), *, counted: bool = False
    ) -> None:
        self.name = name  # for counters and logs: never the secret
        self.scopes = scopes
        self.prefixes = prefixes  # of topic and router names; none means any name
        self.counted = counted  # a key: what it holds open is counted and capped
        self.streams = 0  # open event streams and WebSockets
        self.inflight = 0  # requests that are being answered
        self.routes: frozenset[Route] = frozenset()  # those whose scopes it has; testing flags takes ten times longer

    def may_use(self, name: str) -> bool:
        return not self.prefixes or name.startswith(self.prefixes)

    def check(self, scope: Scope, *names: str) -> None:
        """`forbidden` unless the key has every scope and may touch every name."""
        if scope not in self.scopes:
            raise TopicsError(Code.FORBIDDEN, "the key lacks a scope that this needs", detail={"scope": _words(scope)})
        self.check_names(*names)

    def check_names(self, *names: str) -> None:
        for name in names:
            if not self.may_use(name):
                raise TopicsError(Code.FORBIDDEN, "the key may not touch this name", detail={"name": name})

    def check_config(self, patch: ConfigPatch) -> None:
        """A queue writes to its dead-letter topic on behalf of whoever configured it, who must be allowed to."""
        if isinstance(patch.dead_letter, str):
            self.check_names(patch.dead_letter)

    def end_request(self) -> None:
        assert self.inflight > 0, "a request ended twice"
        self.inflight -= 1


ANYONE = Caller("")


def _words(scope: Scope) -> list[str]:
    return [one.name.lower() for one in Scope if one in scope and one.name]
