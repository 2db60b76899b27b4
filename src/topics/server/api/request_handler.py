"""The application that the transport serves: finds the route, runs the handler, and answers every failure.

`Guard.admit` checks the head of a request, and `Guard.authorise` the names that only the body or the state has. Without
a key, a path that does not exist is refused like any other: a stranger does not learn which paths exist.

A server without keys has no guard, but `protected` routes: a browser sends a GET for an image or a link on any page,
without asking the server first. Such a request is refused where the operation changes something.
"""

from typing import Any

from msgspec import Struct, structs

from topics.clock import Clock
from topics.engine.engine import Engine
from topics.engine.steps import Steps, once_loaded
from topics.errors import Code, TopicsError
from topics.model.wire import MAX_PLAIN_BODY_BYTES, body_too_large
from topics.server.access.caller import ANYONE, UNKNOWN, Caller, Quotas, admit, authorise, with_near_names
from topics.server.access.key_ring import Failures, KeyRing
from topics.server.access.operations import CHANGES, CONNECT_SOCKET, Scope
from topics.server.api.route import TOKEN, Call, Route, RouteTable, note_parameters, with_lag, with_warnings
from topics.server.api.services import Services, Startup
from topics.server.http.browser_origin import Pages, bearer_protocol, offers_protocol
from topics.server.http.messages import Answer, Deferred, Request, Response, body_bytes, error_response
from topics.server.http.request import query_string
from topics.server.http.request.write_request import LARGE_BYTES
from topics.server.limits.budget import SMALL_BYTES, MemoryBudget
from topics.storage.segments.cold import Cold

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
    """Authentication, authorisation, and the count of requests in progress per key."""

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
    """Return the routes; GET routes with effects, which are streams and reads that are noted, refuse foreign pages."""
    return [route if pages is None or route.method != "GET" else _protected(route, pages) for route in routes]


def _protected(route: Route, pages: Pages) -> Route:
    handler, touch = route.handler, next((row for row in route.query if row.name == "touch"), None)
    if touch is None and (not route.stream or route.operation is CONNECT_SOCKET):
        return route

    def has_effects(call: Call) -> bool:
        found = query_string.parse(call.request.query)
        return touch is None or query_string.flag(found, touch.name, default=touch.default)

    def handle(services: Services, call: Call) -> Answer:
        headers = call.request.headers
        if route.stream and b"sec-fetch-site" not in headers:
            return handler(services, call)  # the handler answers an `Accept` that only a page sends with 406
        if pages.is_foreign(headers) and has_effects(call):
            raise TopicsError(
                Code.FORBIDDEN,
                "this GET changes state, and a page of another site sent it; add its origin to TOPICS_CORS_ORIGINS, "
                "or set TOPICS_API_KEYS",
            )
        return handler(services, call)

    return structs.replace(route, handler=handle)


JSON_TYPE = b"application/json"


class RequestHandler:
    """Admits, authorises and answers requests; see `http.messages.App`."""

    _services: Services  # set once `_recovered`

    def __init__(self, routes: RouteTable, guard: Guard | None, budget: MemoryBudget, startup: Startup) -> None:
        self.routes = routes
        self.guard = guard  # None for a server without keys
        self.direct = False  # whether `answer` may take its fast path
        self._budget = budget
        self._startup = startup
        self._recovered = False
        self._replaying = False  # records of some topics wait to be replayed
        self._follows = False  # the server is a standby
        self._fenced = ""  # why, if another server has taken over
        budget.listeners.append(self._choose_path)

    def begin(self, services: Services) -> None:
        self._services = services
        self._recovered = True
        self._replaying = services.engine.is_replaying
        self._follows = services.standby is not None
        self._choose_path()

    def fence(self, reason: str) -> None:
        """Refuse all requests but those of monitoring: clients go to the server that has taken over."""
        self._fenced = reason
        self._choose_path()

    def pause(self) -> None:
        """Answer as during a start, until `begin` is called again."""
        self._recovered = False
        self._choose_path()

    def admit(self, request: Request, content_length: int | None) -> Response | None:
        """Find the route and the caller. Return an answer if the head of the request is enough to refuse it."""
        guard = self.guard
        try:
            if guard is None:
                call = self.routes.find(request)
                call.caller = ANYONE
            else:
                call = guard.admit(request)
            request.timings = call.route.timings
            if content_length:
                _check_type(request)
                call.typed = True
                if content_length > SMALL_BYTES:
                    if content_length > MAX_PLAIN_BODY_BYTES and call.route.decode_steps is None:
                        raise body_too_large(content_length)
                    self._budget.check(content_length)
            if guard is not None:
                guard.quotas.begin_request(call.caller)
        except TopicsError as error:
            return error_response(error, request)
        request.context = call
        return None

    def handle(self, request: Request) -> Answer:
        call: Call = request.context
        request.context = None  # the call refers to its request: this breaks the reference cycle
        answer: Answer
        try:
            if request.body and not call.typed:
                _check_type(request)
            if self._recovered:
                answer = self._serve(call)
            elif call.route.while_recovering is not None:
                answer = call.route.while_recovering(self._startup, call)
            else:
                raise self._startup.not_ready()
        except TopicsError as error:
            answer = self._refused(error, request, call)
        except Cold:
            answer = self._serve_later(call)
        except BaseException:
            call.caller.end_request()
            raise
        if self.guard is not None:
            self.guard.end_with(call.caller, answer)
        return answer

    def answer(self, request: Request) -> Answer:
        """Admit and handle a complete request. The fast path: route and caller are known, or there are no keys."""
        if not self.direct:
            return self._answer_new(request)
        guard, call = self.guard, None
        if guard is not None:
            found: Decision | None = None if request.memo is None else request.memo.found
            if found is None or request.started_ns >= found.until_ns:
                return self._answer_new(request)
            caller = found.caller
            if caller.changes != found.changes or caller.inflight >= found.most_inflight:
                return self._answer_new(request)
            caller.inflight += 1
            call = Call(request, found.route, found.params, caller)
        try:
            if call is None:
                known = self.routes.known.get(request.path)
                if known is not None and (route := known[0].get(request.method)) is not None:
                    call = Call(request, route, known[1], ANYONE)
                else:
                    call = self.routes.find(request)
                    call.caller = ANYONE
            elif guard is not None and found is not None and found.has_names:
                guard.authorise(self._services.engine, call)
            request.timings = call.route.timings
            if request.body and request.headers.get(b"content-type") != JSON_TYPE:
                _check_type(request)
            if request.query:
                note_parameters(call)
            answer = call.route.handler(self._services, call)
            if call.warnings is not None:
                answer = with_warnings(call, answer)
        except TopicsError as error:
            answer = self._refused(error, request, call)
        except Cold:
            assert call is not None, "a path is found without the disk"
            answer = self._serve_later(call)
        except BaseException:
            if call is not None:
                call.caller.end_request()
            raise
        if guard is not None and call is not None:
            if isinstance(answer, Deferred):  # as `end_with` does it, without a call
                answer.when_over(call.caller.answered)
            else:
                guard.end_with(call.caller, answer)
        return answer

    def _answer_new(self, request: Request) -> Answer:
        """Admit and handle a request. What was decided about it counts for the next ones with its head."""
        refused = self.admit(request, len(request.body))
        if refused is not None:
            return refused
        if self.guard is not None and request.memo is not None:
            request.memo.found = self.guard.decide(request.context)
        return self.handle(request)

    def _refused(self, error: TopicsError, request: Request, call: Call | None) -> Response:
        """Return the answer to a request that failed, with the names that it may have meant."""
        if error.code is Code.TOPIC_NOT_FOUND:
            caller = ANYONE if call is None else call.caller
            error = with_near_names(error, self._services.engine.state, caller)
        return error_response(error, request)

    def abandon(self, request: Request) -> None:
        call: Call | None = request.context
        request.context = None
        if call is not None:
            call.caller.end_request()

    def _choose_path(self) -> None:
        """Allow the fast path if nothing but the route and the caller of a request must be checked."""
        self.direct = self._recovered and not self._budget.full
        self.direct = self.direct and not self._replaying and not self._follows and not self._fenced

    def _serve(self, call: Call) -> Answer:
        """Authorise the caller and run the handler. A retry is authorised again."""
        services = self._services
        if self._follows and call.route.scope & CHANGES:
            services.check_writer()
        if self._fenced and not (call.route.probe or call.route.while_recovering):
            detail = {"reason": self._fenced, "outcome": "refused"}
            raise TopicsError(Code.FENCED, self._fenced, detail=detail, retry_after_ms=1000)
        if call.request.query:
            note_parameters(call)
        if self._replaying and self._must_replay(call):
            replay = services.engine.replay_in_steps(call.params["topic"])
            return services.slices.answer(call.request, self._serve_after(replay, call))
        if self.guard is not None:
            body, decode_steps = call.request.body, call.route.decode_steps
            if decode_steps is not None and call.wanted is None and len(body) > LARGE_BYTES:
                decode = decode_steps(body, services.engine.limits, call)
                return services.slices.answer(call.request, self._serve_after(decode, call))
            self.guard.authorise(services.engine, call)
        answer = call.route.handler(services, call)
        # An answer that reports an effect must be sent.
        if self._budget.full and isinstance(answer, Response) and call.route.scope in (Scope.NONE, Scope.READ):
            self._budget.check_answer(body_bytes(answer.body))
        if self._follows and services.following is not None:
            answer = with_lag(answer, services.following)
        return answer if call.warnings is None else with_warnings(call, answer)

    def _must_replay(self, call: Call) -> bool:
        """Return whether records of the topic in the path wait to be replayed. A stream has no answer to defer."""
        engine = self._services.engine
        if not engine.is_replaying:
            self._replaying = False
            self._choose_path()
            return False
        is_stream = isinstance(call.route.answers.get(200), str)
        return not is_stream and engine.waits_for_replay(call.params.get("topic", ""))

    def _serve_after(self, steps: Steps[Any], call: Call) -> Steps[Answer]:
        """Serve after steps that replay the records of the topic, or that decode and return a large body."""
        call.wanted = yield from steps
        return (yield from once_loaded(lambda: self._serve(call)))

    def _serve_later(self, call: Call) -> Deferred:
        """Return the answer of the handler, which runs again once what it needs was loaded from the disk."""
        deferred = Deferred()
        self._services.slices.resolve(deferred, call.request, once_loaded(lambda: self._serve(call)))
        return deferred


def _check_type(request: Request) -> None:
    """Raise 415 unless the body is declared as JSON, in UTF-8 if a charset is given."""
    given = request.headers.get(b"content-type", b"")
    if given == JSON_TYPE:
        return
    media, _, rest = given.partition(b";")
    charset = rest.strip().lower().replace(b'"', b"")
    if media.strip().lower() != JSON_TYPE or (
        charset.startswith(b"charset=") and charset not in (b"charset=utf-8", b"charset=utf8")
    ):
        raise TopicsError(Code.UNSUPPORTED_MEDIA_TYPE, "a body needs content-type: application/json")
