"""The application: finds the route, lets the handler run, and turns every failure into an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from topics import logs
from topics.clock import Clock
from topics.config import Settings
from topics.engine.engine import Engine
from topics.engine.state.topics import SegmentLimits, State
from topics.engine.steps import Steps
from topics.errors import Code, TopicsError
from topics.model.records import Limits
from topics.server.access.caller import ANYONE, Caller
from topics.server.access.keyring import KeyRing
from topics.server.access.operations import Scope
from topics.server.access.quotas import Limits as ServerLimits
from topics.server.access.quotas import Release
from topics.server.api import openapi
from topics.server.api.foreign_pages import protected
from topics.server.api.guard import Guard
from topics.server.api.route import Call, Router
from topics.server.api.table import ROUTES
from topics.server.http.browser_origin import Pages
from topics.server.http.messages import Answer, Deferred, Request, Response, body_bytes
from topics.server.http.server import HttpServer
from topics.server.http.write_body import LARGE_BYTES
from topics.server.limits.budget import SMALL_BYTES, MemoryBudget, budget_bytes_of
from topics.server.loop.answer import error_answer
from topics.server.loop.forwarding import Forwarding
from topics.server.loop.loads import Loads, unreadable
from topics.server.loop.poll_cache import PolledAnswers
from topics.server.loop.slices import Slices
from topics.server.loop.storage import Storage
from topics.server.loop.throttle import Throttle
from topics.server.loop.upkeep import Upkeep
from topics.server.push.dispatcher import Hub
from topics.server.push.job_waiters import Desks
from topics.server.push.sessions import Sessions
from topics.server.startup import Startup
from topics.storage.log.stats import WalStats
from topics.storage.segments.cold import Cold

log = logs.Log("app")

JSON_TYPE = b"application/json"


class Poll(Protocol):
    def end(self) -> None: ...


class TopicsApp:
    """Everything a transport needs, and everything a handler may use.

    What belongs to the engine does not exist before recovery has come to its end: a request that arrives earlier is
    answered from `startup`, or refused.
    """

    engine: Engine
    forwarding: Forwarding
    throttle: Throttle
    polled: PolledAnswers
    slices: Slices
    hub: Hub
    sessions: Sessions
    desks: Desks
    upkeep: Upkeep

    def __init__(self, settings: Settings, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self.clock = clock
        self.loop = loop
        self.router = Router(protected(ROUTES, Pages.of(settings)))
        self.limits = ServerLimits(settings)
        self.budget = MemoryBudget(budget_bytes_of(settings))
        rules = settings.key_rules()
        self._guard = Guard(self.router, KeyRing(rules), self.limits, probe_auth=settings.probe_auth) if rules else None
        self.polls: set[Poll] = set()
        self.draining = False
        self.pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="topics-io")
        self.loads = Loads(loop, self.pool)
        self.startup = Startup(clock, partial(openapi.document, ROUTES))
        self._recovered = False
        self._direct = False  # see `answer`
        self._no_wal = WalStats()
        self.storage: Storage | None = None
        self.pressed = False  # whether the server runs late: the one thing that hot paths look at
        self.budget.listeners.append(self._choose_way)

    @property
    def http(self) -> HttpServer | None:
        """The transport, where it wants to be counted."""
        return self.startup.http

    @http.setter
    def http(self, server: HttpServer | None) -> None:
        self.startup.http = server

    @classmethod
    def build(cls, settings: Settings, clock: Clock, loop: asyncio.AbstractEventLoop) -> TopicsApp:
        return cls(settings, clock, loop)

    # --- life

    async def start(self) -> None:
        """Recover what the data directory holds, then begin to serve it."""
        settings = self.settings
        state = State(segments=segment_limits_of(settings), max_keys=settings.max_idempotency_keys)
        self.serve(state, None if settings.data_dir is None else await Storage.open(self, state))

    def serve(self, state: State, storage: Storage | None = None) -> None:
        """Put an engine around the recovered state. Nothing else refers to the state from here on."""
        settings = self.settings
        self.engine = Engine(clock=self.clock, limits=limits_of(settings), state=state, schedule=self.loop.call_soon)
        self.forwarding = Forwarding(self)
        self.throttle = Throttle(self, refuse_ms=settings.pressure_lag_ms)
        self.polled = PolledAnswers()
        self.slices = Slices(self.loop, self.loads, self.clock, self.budget)
        self.hub = Hub(self)
        self.sessions = Sessions(self)
        self.desks = Desks(self)
        self.upkeep = Upkeep(self)
        if storage is not None:
            self.storage = storage
            self.engine.attach(storage.wal, storage.backlog)
            storage.begin(self.engine.commits)
        self._recovered = True
        self._choose_way()
        self.throttle.begin()
        self.upkeep.begin()

    def begin_drain(self) -> None:
        self.draining = True
        for poll in list(self.polls):
            poll.end()

    async def stop(self) -> None:
        if self._recovered:
            self.throttle.end()
            self.upkeep.end()
            self.forwarding.stop()
            self.engine.flush()
        if self.storage is not None:
            await self.storage.close()
        self.loads.stop()
        self.pool.shutdown(wait=True)

    # --- requests

    def admit(self, request: Request, content_length: int | None) -> Response | None:
        """Everything that can be refused by its head alone."""
        guard = self._guard
        try:
            if guard is None:
                call = self.router.find(request)
                call.caller = ANYONE
            else:
                call = guard.admit(request)
            if content_length:
                _check_type(request)
                call.typed = True
                if content_length > SMALL_BYTES:
                    self.budget.check(content_length)
            if guard is not None:
                guard.begin(call.caller)
        except TopicsError as error:
            return error_answer(error, request)
        request.context = call
        return None

    def handle(self, request: Request) -> Answer:
        call: Call = request.context
        request.context = None  # the call holds its request: with this they would keep each other alive for ever
        answer: Answer
        try:
            if request.body and not call.typed:
                _check_type(request)
            answer = self._serve(call) if self._recovered else self._handle_early(call)
        except TopicsError as error:
            answer = error_answer(error, request)
        except Cold as cold:
            answer = self._load_and_retry(cold, call)
        except BaseException:
            if self._guard is not None:
                self._guard.end(call.caller)
            raise
        if self._guard is not None:
            self._guard.end_with(call.caller, answer)
        return answer

    def _serve(self, call: Call) -> Answer:
        """Run the handler for a caller that may have this done now: a retry is authorised again."""
        if self._guard is not None:
            if call.route.decode_steps is not None and call.wanted is None and len(call.request.body) > LARGE_BYTES:
                return self.decode_and_serve(call)
            self._guard.authorise(self.engine, call)
        answer = call.route.handler(self, call)
        if self.budget.full and isinstance(answer, Response) and reads_only(call):
            self.budget.check_answer(body_bytes(answer.body))
        return answer

    def decode_and_serve(self, call: Call) -> Answer:
        """The same for a large body, which is decoded in slices first."""
        return self.slices.answer(call.request, self._decode_and_serve(call))

    def _decode_and_serve(self, call: Call) -> Steps[Answer]:
        assert call.route.decode_steps is not None
        call.wanted = yield from call.route.decode_steps(call.request.body, self.engine.limits)
        # Bound: what was loaded is held until these steps end, so every round needs less than the one before.
        while True:
            try:
                return self._serve(call)
            except Cold as cold:
                yield cold

    def _handle_early(self, call: Call) -> Answer:
        """A request that arrives before the data is recovered."""
        if call.route.while_recovering is None:
            raise self.startup.not_ready()
        return call.route.while_recovering(self.startup, call)

    def answer(self, request: Request) -> Answer:
        """Both at once, for a request that is whole. The hot path: without keys there is nobody to count."""
        if not self._direct:
            refused = self.admit(request, len(request.body))
            return self.handle(request) if refused is None else refused
        try:
            known = self.router.known.get(request.path)
            if known is not None and (route := known[0].get(request.method)) is not None:
                call = Call(request, route, known[1], ANYONE)
            else:
                call = self.router.find(request)
                call.caller = ANYONE
            if request.body and request.headers.get(b"content-type") != JSON_TYPE:
                _check_type(request)
            return call.route.handler(self, call)
        except TopicsError as error:
            return error_answer(error, request)
        except Cold as cold:
            return self._load_and_retry(cold, call)

    def _choose_way(self) -> None:
        """Decide whether requests can take the hot path: there is nothing to look at beside their route."""
        self._direct = self._guard is None and self._recovered and not self.budget.full

    def abandon(self, request: Request) -> None:
        """An admitted request that will never be handled."""
        call: Call | None = request.context
        request.context = None
        if call is not None and self._guard is not None:
            self._guard.end(call.caller)

    def check_ready(self) -> None:
        """503 while the log is being replayed, or once the server was told to stop."""
        if not self._recovered:
            raise self.startup.not_ready()
        if self.draining:
            raise TopicsError(Code.SHUTTING_DOWN, "the server is stopping", retry_after_ms=1000)

    def read_only(self) -> str | None:
        """Why nothing can be written, if so."""
        return None if self.storage is None else self.storage.wal.read_only

    def is_ready(self) -> bool:
        return self._recovered and not self.draining

    def wal_stats(self) -> WalStats:
        return self._no_wal if self.storage is None else self.storage.wal.stats

    def routers_count(self) -> int:
        return len(self.engine.routers.table.by_name)

    def stream_count(self) -> int:
        return self.limits.streams

    def open_stream(self, caller: Caller) -> Release:
        """A slot for a long-lived connection, or `throttled`; call the answer when it has closed."""
        self.budget.check(0)
        return self.limits.open_stream(caller)

    def session_count(self) -> int:
        return len(self.sessions)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(delay_ms / 1000, callback)

    def _load_and_retry(self, cold: Cold, call: Call) -> Deferred:
        """The answer of the handler once what it needs was fetched from the disk."""
        deferred = Deferred()

        def again(failure: BaseException | None) -> None:
            try:
                if failure is not None:
                    raise unreadable(failure)
                answer = self._serve(call)
            except TopicsError as error:
                answer = error_answer(error, call.request)
            except Cold:
                raise
            except Exception as error:
                log.failure("handler_failed", error, route=call.route.path)
                answer = error_answer(TopicsError(Code.INTERNAL, "internal error"), call.request)
            if isinstance(answer, Deferred):
                deferred.on_cancel, deferred.on_hurry = answer.cancel, answer.hurry
                answer.then(deferred.resolve)
            else:
                assert isinstance(answer, Response)
                deferred.resolve(answer)

        deferred.on_cancel = self.loads.load(cold, again).cancel
        return deferred


def reads_only(call: Call) -> bool:
    """Whether the request can be refused after it was handled: an answer that reports an effect must be given."""
    return call.route.scope in (Scope.NONE, Scope.READ)


def _check_type(request: Request) -> None:
    """A body must say that it is JSON; a charset other than UTF-8 would be another encoding."""
    given = request.headers.get(b"content-type", b"")
    if given == JSON_TYPE:
        return
    media, _, rest = given.partition(b";")
    charset = rest.strip().lower().replace(b'"', b"")
    if media.strip().lower() != JSON_TYPE or (
        charset.startswith(b"charset=") and charset not in (b"charset=utf-8", b"charset=utf8")
    ):
        raise TopicsError(Code.UNSUPPORTED_MEDIA_TYPE, "a body needs content-type: application/json")


def limits_of(settings: Settings) -> Limits:
    return Limits(**{name: getattr(settings, name) for name in Limits.__struct_fields__})


def segment_limits_of(settings: Settings) -> SegmentLimits:
    return SegmentLimits(
        max_events=settings.segment_max_events,
        max_bytes=settings.segment_max_bytes,
        max_age_ms=settings.segment_max_age_ms,
    )
