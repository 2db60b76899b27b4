"""Access: authentication, authorisation, the count of requests in progress per key, and protection from other sites.

`Guard.admit` checks the head of a request, and `Guard.authorise` the names that only the body or the state has. Without
a key, a path that does not exist is refused like any other: a stranger does not learn which paths exist.

A server without keys has no guard, but `protected` routes: a browser sends a GET for an image or a link on any page,
without asking the server first. Such a request is refused where the operation changes something.
"""

from msgspec import Struct, structs

from topics.clock import Clock
from topics.engine.engine import Engine
from topics.errors import Code, TopicsError
from topics.server.access.caller import ANYONE, UNKNOWN, Caller, Quotas, admit, authorise
from topics.server.access.key_ring import Failures, KeyRing
from topics.server.access.operations import CONNECT_SOCKET
from topics.server.api.route import TOKEN, Call, Route, RouteTable
from topics.server.api.services import Services
from topics.server.http.browser_origin import Pages, bearer_protocol, offers_protocol
from topics.server.http.messages import Answer, Deferred, Request, Response
from topics.server.http.request import query_string
from topics.server.http.request.write_request import LARGE_BYTES

BEARER = b"bearer "
DECIDED_MS = 50  # so long a decision may outlast what no change reports: a clock that is set, a limit of failures
NAME_PARTS = ("topic", "router", "schedule")  # path parameters that the prefixes of a key must cover


class Decision(Struct, gc=False):
    """A caller and a route that requests with one head have, until the caller changes or the time is over."""

    caller: Caller
    route: Route
    params: dict[str, str]
    changes: int  # of the caller
    until_ns: int  # by `perf_counter_ns`
    most_inflight: int
    has_names: bool  # the body may have names, which its prefixes must cover


class Guard:
    def __init__(
        self, routes: RouteTable, keys: KeyRing, quotas: Quotas, failures: Failures, clock: Clock, *, probe_auth: bool
    ) -> None:
        self._routes = routes
        self._keys = keys
        self._failures = failures
        self._clock = clock
        self.quotas = quotas
        self._probe_auth = probe_auth

    def admit(self, request: Request) -> Call:
        """Return the call with its caller. Raise if the head of the request is enough to refuse it."""
        try:
            call = self._routes.find(request)
        except TopicsError:
            self._authenticate(request, None)
            raise
        route = call.route
        if route.signed or (route.probe and not self._probe_auth):
            call.caller = ANYONE
            return call
        caller = self._authenticate(request, route)
        if route.operation not in caller.operations or caller.prefixes:
            admit(caller, route.operation, *targets_of(call))
        call.caller = caller
        return call

    def authorise(self, engine: Engine, call: Call) -> None:
        route = call.route
        if call.caller.prefixes and route.operation.names:
            if route.decode is not None and call.wanted is None:
                call.wanted = call.body()
            authorise(engine, call.caller, route.operation, *targets_of(call), wanted=call.wanted)

    def decide(self, call: Call) -> Decision | None:
        """Return what an admitted call has found, for requests with the same head; None if each must be looked at."""
        caller, now_ms = call.caller, self._clock.now_ms()
        has_names = bool(caller.prefixes and call.route.operation.names)
        if not caller.counted or caller.rights.rate or (has_names and len(call.request.body) > LARGE_BYTES):
            return None
        ends = [one - now_ms for one in (caller.expires_ms, caller.rotated_ms) if one and one > now_ms]
        until_ns = call.request.started_ns + min([DECIDED_MS, *ends]) * 1_000_000
        most = self.quotas.most_inflight(caller)
        return Decision(caller, call.route, call.params, caller.changes, until_ns, most, has_names)

    def _authenticate(self, request: Request, route: Route | None) -> Caller:
        secret = _secret(request, route)
        opens_socket = route is not None and route.operation is CONNECT_SOCKET
        if secret is None and opens_socket and offers_protocol(request.headers):
            return UNKNOWN  # the first message has the key
        return self.authenticate(request, secret or b"")

    def authenticate(self, request: Request, secret: bytes) -> Caller:
        """Return the caller with this key or token. Raise `unauthorized`, or `throttled` after too many failures."""
        self._failures.check(request.peer)
        try:
            caller = self._keys.authenticate(secret)
            check_origin(caller, request)
        except TopicsError as error:
            if secret:
                self._failures.note(request.peer, error)
            raise
        return caller

    def end_with(self, caller: Caller, answer: Answer) -> None:
        """Uncount a request once its answer is delivered; a stream now, because streams have a cap of their own."""
        if not caller.counted:
            return
        if isinstance(answer, Deferred):
            answer.when_over(caller.answered)
        elif isinstance(answer, Response):
            caller.answered(answer)
        else:
            caller.end_request()


def check_origin(caller: Caller, request: Request) -> None:
    """Raise `forbidden` for a request of a page whose origin the key or token does not name."""
    origin = request.headers.get(b"origin")
    if caller.rights.origins and origin is not None and origin.decode("latin-1").lower() not in caller.rights.origins:
        raise TopicsError(
            Code.FORBIDDEN, "the key is for pages of other origins", detail={"origin": origin[:256].decode("latin-1")}
        )


def targets_of(call: Call) -> list[str]:
    return [name for part, name in call.params.items() if part in NAME_PARTS]


def _secret(request: Request, route: Route | None) -> bytes | None:
    """Return the key that the request presents, or None.

    URLs appear in logs and histories: the query counts only where a browser cannot send a header, and only if there is
    none.
    """
    given = request.headers.get(b"authorization")
    if given is not None:
        return given[len(BEARER) :].strip() if given[: len(BEARER)].lower() == BEARER else b""
    if route is not None and route.operation is CONNECT_SOCKET:
        return bearer_protocol(request.headers)
    if route is None or not route.query_token or not request.query:
        return None
    try:
        found = query_string.parse(request.query).get(TOKEN)
    except TopicsError:
        return None
    return None if found is None else found.encode()


def protected(routes: list[Route], pages: Pages | None) -> list[Route]:
    """Return the routes; GET routes with effects refuse pages of other origins."""
    return [route if pages is None or route.method != "GET" else _protected(route, pages) for route in routes]


def _protected(route: Route, pages: Pages) -> Route:
    handler, effects = route.handler, route.operation.effects
    if effects is None:
        return route

    def handle(services: Services, call: Call) -> Answer:
        headers = call.request.headers
        if route.stream and b"sec-fetch-site" not in headers:
            return handler(services, call)  # the handler answers an `Accept` that only a page sends with 406
        if pages.is_foreign(headers) and effects(query_string.parse(call.request.query)):
            raise TopicsError(
                Code.FORBIDDEN,
                "this GET changes state, and a page of another site sent it; add its origin to TOPICS_CORS_ORIGINS, "
                "or set TOPICS_API_KEYS",
            )
        return handler(services, call)

    return structs.replace(route, handler=handle)
