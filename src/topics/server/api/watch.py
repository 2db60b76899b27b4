"""Watching: make a session, open its event stream, open a WebSocket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from topics.model.watch import WatchCreated, WatchRequest
from topics.model.wire import decode_body
from topics.server.http import query_string
from topics.server.http.messages import Answer
from topics.server.loop.answer import json_answer, performance
from topics.server.push import cursors
from topics.server.push.handshake import accept
from topics.server.push.sessions import WatchStream
from topics.server.push.sse import check_accept

if TYPE_CHECKING:
    from topics.server.api.route import Call
    from topics.server.app import TopicsApp

_decode_watch = msgspec.json.Decoder(WatchRequest)


def decode_watch(body: bytes) -> WatchRequest:
    wanted: WatchRequest = decode_body(_decode_watch, body)
    return wanted


def create(app: TopicsApp, call: Call) -> Answer:
    wanted: WatchRequest = call.body()
    lenient = query_string.flag(query_string.parse(call.request.query), "lenient", default=False)
    session, topics = app.sessions.create(wanted, call.caller, lenient=lenient)
    url = f"/v0/watch/{session.wid}"
    answer = WatchCreated(session.wid, url, app.settings.session_ttl_ms, topics, performance(call.request))
    return json_answer(200, answer)


def stream(app: TopicsApp, call: Call) -> Answer:
    request = call.request
    check_accept(request)
    app.check_ready()
    session = app.sessions.find(call.params["wid"], call.caller)
    # A malformed id is ignored: browsers send back any id they once saw, and the session knows its own position.
    position = cursors.find(request.headers.get(b"last-event-id", b"").decode("latin-1"))
    return WatchStream(app, session, position=position, release=app.open_stream(session.caller))


def socket(app: TopicsApp, call: Call) -> Answer:
    app.check_ready()
    return accept(app, call.request, call.caller)
