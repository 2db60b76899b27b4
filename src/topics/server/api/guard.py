"""The door of a server with keys: who calls, whether they may, and how much of theirs is under way.

A route refers to an operation. Here the head of a request is checked against it: the scopes, and the names in the path.
`authorise` checks the names that only the body or the state has, before the handler runs. A path that does not exist is
refused like any other to a caller without a key: what there is to call is not a stranger's business.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from topics.errors import Code, TopicsError
from topics.server.access.caller import ANYONE, Caller, admit, authorise
from topics.server.access.keyring import KeyRing
from topics.server.access.quotas import Limits
from topics.server.api.route import Call, Route, Router
from topics.server.http.messages import Answer, Deferred, Request, Response, body_bytes
from topics.server.limits.budget import SMALL_BYTES

if TYPE_CHECKING:
    from topics.engine.engine import Engine

BEARER = b"bearer "
TOKEN = "token"
NAME_PARTS = ("topic", "router")  # parts of a path that name something a prefix can rule out


class Guard:
    """What the application asks about every request when there are keys."""

    __slots__ = ("_keys", "_limits", "_probe_auth", "_router")

    def __init__(self, router: Router, keys: KeyRing, limits: Limits, *, probe_auth: bool) -> None:
        self._router = router
        self._keys = keys
        self._limits = limits
        self._probe_auth = probe_auth

    def admit(self, request: Request) -> Call:
        """The call with its caller; or the reason why not."""
        try:
            call = self._router.find(request)
        except TopicsError:
            self._authenticate(request, None)
            raise
        route = call.route
        if route.probe and not self._probe_auth:
            call.caller = ANYONE
            return call
        caller = self._authenticate(request, route)
        if route.operation not in caller.operations or caller.prefixes:
            admit(caller, route.operation, *targets_of(call))
        call.caller = caller
        return call

    def authorise(self, engine: Engine, call: Call) -> None:
        """Decide what the head of the request could not: the names in its body, and those that the state holds."""
        route = call.route
        if call.caller.prefixes and route.operation.names:
            if route.decode is not None and call.wanted is None:
                call.wanted = route.decode(call.request.body)
            authorise(engine, call.caller, route.operation, *targets_of(call), wanted=call.wanted)

    def _authenticate(self, request: Request, route: Route | None) -> Caller:
        secret = _secret(request, route)
        caller = None if secret is None else self._keys.find(secret)
        if caller is None:
            what = "the key is not known" if secret else "a key is needed: Authorization: Bearer <key>"
            raise TopicsError(Code.UNAUTHORIZED, what)
        return caller

    def begin(self, caller: Caller) -> None:
        """One more request of the caller is under way; one of the two below follows, whatever becomes of it."""
        if caller.counted:
            self._limits.begin_request(caller)

    def end(self, caller: Caller) -> None:
        if caller.counted:
            caller.end_request()

    def end_with(self, caller: Caller, answer: Answer) -> None:
        """Count a request until its answer is delivered. A stream does not count: it has a cap of its own."""
        if not caller.counted:
            return
        if isinstance(answer, Deferred):
            answer.when_over(partial(_count_until_sent, caller))
        elif isinstance(answer, Response):
            _count_until_sent(caller, answer)
        else:
            caller.end_request()


def targets_of(call: Call) -> list[str]:
    """The topic or router in the path."""
    return [name for part, name in call.params.items() if part in NAME_PARTS]


def _count_until_sent(caller: Caller, response: Response | None) -> None:
    """End a request, or have the transport end it once a large answer has left: a client may not read it."""
    if response is None or body_bytes(response.body) <= SMALL_BYTES:
        caller.end_request()
    else:
        response.sent = caller.end_request


def _secret(request: Request, route: Route | None) -> bytes | None:
    """What the request presents as its key. A URL is written to logs and histories: it counts only where a browser
    cannot send a header, and only if there is none."""
    given = request.headers.get(b"authorization")
    if given is not None:
        return given[len(BEARER) :].strip() if given[: len(BEARER)].lower() == BEARER else b""
    if route is None or not route.query_token or not request.query:
        return None
    try:
        pairs = parse_qsl(request.query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        return None
    return next((value.encode() for name, value in pairs if name == TOKEN), None)
