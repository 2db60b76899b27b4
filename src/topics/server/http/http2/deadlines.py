"""Deadlines of one HTTP/2 connection: what a client must do in time, on the connection and on each stream. Pure."""

from __future__ import annotations

from h2.errors import ErrorCodes

from topics.server.http.http2.session import Http2Session
from topics.server.http.http2.stream import Input
from topics.server.http.http_limits import HttpLimits


def time_out(session: Http2Session, limits: HttpLimits, now: float) -> bool:
    """End what the client has not done in time: send the rest of a frame or of a body, or take an answer.

    Return whether anything was ended. A stream that is open and has nothing to send waits for nothing. One that is full
    has a deadline of its own.
    """
    ended = False
    since = session.input.waits_since(now)
    if since is not None and not session.paused and (now - since) * 1000 > limits.header_timeout_ms:
        session.fail(ErrorCodes.PROTOCOL_ERROR)
        ended = True
    for number, answered_at in list(session.unwanted.items()):
        if (now - answered_at) * 1000 > limits.linger_timeout_ms:
            session.stop_body(number)
            ended = True
    for stream in list(session.streams.values()):
        if stream.input is Input.COMING:
            if (now - stream.begun_at) * 1000 > limits.body_timeout_ms:
                session.refuse_late(stream)
                ended = True
        elif stream.unsent_bytes != stream.seen or not stream.ends:
            stream.seen, stream.seen_at = stream.unsent_bytes, now
        else:
            timeout_ms = limits.linger_timeout_ms if stream.given_up else limits.write_timeout_ms
            if (now - stream.seen_at) * 1000 > timeout_ms:
                session.reset(stream, ErrorCodes.CANCEL)
                ended = True
    return ended
