"""The application that the transport serves: finds the route, runs the handler, and answers every failure."""

from typing import Any

from topics.engine.steps import Steps, once_loaded
from topics.errors import Code, TopicsError
from topics.model.wire import MAX_PLAIN_BODY_BYTES, body_too_large
from topics.server.access.caller import ANYONE, with_near_names
from topics.server.access.operations import CHANGES, Scope
from topics.server.api.guard import Decision, Guard
from topics.server.api.route import Call, RouteTable, note_parameters, with_lag, with_warnings
from topics.server.api.services import Services, Startup
from topics.server.http.messages import Answer, Deferred, Request, Response, body_bytes, error_response
from topics.server.http.request.write_request import LARGE_BYTES
from topics.server.limits.budget import SMALL_BYTES, MemoryBudget
from topics.storage.segments.cold import Cold

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
        if self._follows and services.standby is not None:
            answer = with_lag(answer, services.standby)
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
