"""Answers of one HTTP/2 connection as frames, in turn for all streams, as far as the client's windows allow. Pure."""

from __future__ import annotations

from h2.connection import H2Connection
from h2.exceptions import ProtocolError

from topics.server.http.http2.charges import SessionCharges
from topics.server.http.http2.stream import Http2Stream
from topics.server.http.messages import Body

FRAME_BYTES = 1 << 14  # of one stream, before the next stream has its turn


class SessionOutput:
    """The streams that have something to send."""

    __slots__ = ("_charges", "_frames", "_waiting", "_writable", "drained", "finished", "lost")

    def __init__(self, frames: H2Connection, charges: SessionCharges) -> None:
        self._frames = frames
        self._charges = charges
        self._writable: dict[Http2Stream, None] = {}  # in turn; they have bytes to send, or their end
        self._waiting: dict[Http2Stream, None] = {}  # the same, but the client allows no bytes now
        self.finished: list[Http2Stream] = []  # streams whose end was sent
        self.drained: list[Http2Stream] = []  # streams that were full, and have sent everything
        self.lost: list[Http2Stream] = []  # streams that took no more bytes

    def __bool__(self) -> bool:
        return bool(self._writable)

    def queue(self, stream: Http2Stream, body: Body) -> None:
        """Send bytes of an answer, as far as the client allows."""
        before_bytes = stream.unsent_bytes
        stream.add(body)
        self._charges.queued(stream, stream.unsent_bytes - before_bytes)
        self._writable[stream] = None

    def end(self, stream: Http2Stream) -> None:
        """End a stream after what was queued."""
        stream.ends = True
        self._writable[stream] = None

    def remove(self, stream: Http2Stream) -> None:
        """Send nothing more of a stream."""
        self._charges.queued(stream, -stream.unsent_bytes)
        stream.drop()
        self._writable.pop(stream, None)
        self._waiting.pop(stream, None)

    def unblock(self, stream: Http2Stream | None) -> None:
        """Let one stream go on, or all if it is None: the client allows more bytes."""
        if stream is None:
            self._writable |= self._waiting
            self._waiting.clear()
        elif stream in self._waiting:
            del self._waiting[stream]
            self._writable[stream] = None

    def send(self, most_bytes: int) -> int:
        """Send about `most_bytes`, a frame of each stream in turn. Return the number of frames."""
        frames, writable, count = self._frames, self._writable, 0
        # Bound: each round sends a part of `most_bytes`, ends a stream, or removes it from `writable`.
        while most_bytes > 0 and writable:
            stream = next(iter(writable))
            del writable[stream]
            data = b""
            if stream.unsent_bytes:
                window_bytes = frames.local_flow_control_window(stream.number)
                if window_bytes <= 0:
                    self._waiting[stream] = None
                    continue
                data = stream.take(min(window_bytes, frames.max_outbound_frame_size, FRAME_BYTES))
                self._charges.queued(stream, -len(data))
            ends = stream.ends and not stream.unsent_bytes
            if data or ends:
                try:
                    frames.send_data(stream.number, data, end_stream=ends)
                except ProtocolError:  # the stream has ended
                    self.lost.append(stream)
                    continue
                most_bytes -= len(data)
                count += 1
            if ends:
                self.finished.append(stream)
            elif stream.unsent_bytes:
                writable[stream] = None
            elif stream.full:
                stream.full = False
                self.drained.append(stream)
        return count
