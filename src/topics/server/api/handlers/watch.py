"""Handlers of watching: create a session, open its event stream, open a WebSocket."""

from msgspec import structs

from topics.engine.steps import once_loaded
from topics.engine.write.commit import Ticket
from topics.model.watch import WatchCreated, WatchRequest
from topics.server.access.caller import Caller, authorise
from topics.server.access.operations import more_than_route
from topics.server.api.route import Call
from topics.server.api.services import Services
from topics.server.http.messages import Answer, Deferred, Request, Response
from topics.server.http.request import query_string
from topics.server.loop.answer import json_answer, performance
from topics.server.push import cursors
from topics.server.push.live_stream import check_accept
from topics.server.push.sessions import WatchStream
from topics.server.push.subscription_set import open_positions
from topics.server.push.websocket.connection import accept, check_origin


def create_watch(services: Services, call: Call) -> Answer:
    wanted: WatchRequest = call.body()
    lenient = query_string.flag(query_string.parse(call.request.query), "lenient", default=False)
    more = more_than_route(wanted)
    if more is None:
        return _created(services, call, wanted, lenient=lenient)
    authorise(services.engine, call.caller, more, wanted=wanted)
    services.check_writer()
    most = services.runtime.settings.max_watch_topics
    opened = open_positions(services.engine, wanted.topics, max_topics=most, lenient=lenient)

    def made() -> Response:
        return _created(services, call, structs.replace(wanted, topics=opened.value()), lenient=lenient)

    if opened.done:
        return made()
    deferred = Deferred()

    def begin(_: Ticket) -> None:
        """Answer: the positions of the consumers are in the log."""
        if not deferred.cancelled:
            services.slices.resolve(deferred, call.request, once_loaded(made))

    opened.on_done(begin)
    return deferred


def _created(services: Services, call: Call, wanted: WatchRequest, *, lenient: bool) -> Response:
    session, topics = services.sessions.create(wanted, call.caller, lenient=lenient)
    url = f"/v0/watch/{session.wid}"
    answer = WatchCreated(session.wid, url, services.runtime.settings.session_ttl_ms, topics, performance(call.request))
    return json_answer(200, answer)


def open_watch(services: Services, call: Call) -> Answer:
    request = call.request
    check_accept(request)
    services.check_ready()
    session = services.sessions.find(call.params["wid"], call.caller)
    # A malformed id is ignored: browsers return any id they once received, and the session has its own position.
    position = cursors.find(request.headers.get(b"last-event-id", b"").decode("latin-1"))
    slot = services.quotas.open_stream(session.caller)
    return WatchStream(services, services.sessions, session, position=position, slot=slot)


def open_socket(services: Services, call: Call) -> Answer:
    services.check_ready()
    request = call.request
    if services.authenticate is None:
        return accept(services, request, call.caller, services.quotas.open_stream)
    # Not the request itself, which is much larger.
    origin = {name: value for name, value in request.headers.items() if name in (b"origin", b"host")}
    kept, of_key = Request("", b"", b"", origin, b"", request.peer, 0), services.authenticate

    def authenticate(secret: bytes) -> Caller:
        caller = of_key(kept, secret)
        check_origin(services, kept, caller)
        return caller

    return accept(services, request, call.caller, services.quotas.open_stream, authenticate)
