"""Handlers of watching: create a session, open its event stream, open a WebSocket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.model.unknown_fields import RequestDecoder
from topics.model.watch import WatchCreated, WatchRequest
from topics.server.http import query_string
from topics.server.http.messages import Answer
from topics.server.loop.answer import json_answer, performance
from topics.server.push import cursors
from topics.server.push.sessions import WatchStream
from topics.server.push.sse import check_accept
from topics.server.push.websocket.handshake import accept

if TYPE_CHECKING:
    from topics.server.api.route import Call
    from topics.server.api.services import Services

decode_watch = RequestDecoder[WatchRequest](WatchRequest).decode  # the body of `POST /v0/watch`


def create(services: Services, call: Call) -> Answer:
    """Create a watch session."""
    wanted: WatchRequest = call.body()
    lenient = query_string.flag(query_string.parse(call.request.query), "lenient", default=False)
    session, topics = services.sessions.create(wanted, call.caller, lenient=lenient)
    url = f"/v0/watch/{session.wid}"
    answer = WatchCreated(session.wid, url, services.runtime.settings.session_ttl_ms, topics, performance(call.request))
    return json_answer(200, answer)


def stream(services: Services, call: Call) -> Answer:
    """Open the event stream of a session."""
    request = call.request
    check_accept(request)
    services.check_ready()
    session = services.sessions.find(call.params["wid"], call.caller)
    # A malformed id is ignored: browsers return any id they once received, and the session has its own position.
    position = cursors.find(request.headers.get(b"last-event-id", b"").decode("latin-1"))
    return WatchStream(
        services.runtime, services.dispatcher, services.sessions, session,
        position=position, release=services.quotas.open_stream(session.caller),
    )  # fmt: skip


def socket(services: Services, call: Call) -> Answer:
    """Open a WebSocket."""
    services.check_ready()
    return accept(services.sockets, call.request, call.caller, services.quotas.open_stream)
