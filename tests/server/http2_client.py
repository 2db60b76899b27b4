"""A client that speaks HTTP/2 over one socket, for tests: requests by stream, and frames that no library would send."""

import contextlib
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions

WAIT_S = 10
GOAWAY = 7
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


@dataclass
class Answered:
    """What has come of an answer."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(self.headers[":status"])


class Http2Client:
    """One connection. `acknowledges` says whether the client allows more bytes after those it has received."""

    def __init__(self, port: int, *, acknowledges: bool = True) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self.acknowledges = acknowledges
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.answers: dict[int, Answered] = {}
        self.goaway: int | None = None
        self.flush()

    def __enter__(self) -> "Http2Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def flush(self) -> None:
        self.sock.sendall(self.h2.data_to_send())

    def send(
        self, path: str, *, method: str = "GET", body: bytes | None = None, fields: Iterable[tuple[str, str]] = ()
    ) -> int:
        """Send a request, and return the number of its stream."""
        number = self.h2.get_next_available_stream_id()
        head = [(":method", method), (":scheme", "http"), (":authority", "127.0.0.1"), (":path", path), *fields]
        self.h2.send_headers(number, head, end_stream=body is None)
        self.answers[number] = Answered()
        self.flush()
        if body is not None:
            with contextlib.suppress(h2.exceptions.StreamClosedError):  # the server does not want the rest
                self._send_body(number, body)
        return number

    def _send_body(self, number: int, body: bytes) -> None:
        while body and self.answers[number].reset is None:
            room = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size)
            if room:
                self.h2.send_data(number, body[:room])
            body = body[room:]
            self.flush()
            if not room:
                self.receive()
        if self.answers[number].reset is None:
            self.h2.end_stream(number)
            self.flush()

    def open(self, path: str, *fields: tuple[str, str]) -> int:
        """Begin a request with a body, and return the number of its stream."""
        number = self.h2.get_next_available_stream_id()
        head = [(":method", "POST"), (":scheme", "http"), (":authority", "127.0.0.1"), (":path", path)]
        self.h2.send_headers(number, [*head, *fields])
        self.answers[number] = Answered()
        self.flush()
        return number

    def raw_frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield frames as they come, until the server closes: kind, flags, stream, payload.

        For what the library refuses: an answer after GOAWAY, or one to a request that it did not send.
        """
        data = b""
        while True:
            while len(data) < 9 or len(data) < 9 + int.from_bytes(data[:3], "big"):
                try:
                    more = self.sock.recv(1 << 16)
                except ConnectionError:
                    return
                if not more:
                    return
                data += more
            end = 9 + int.from_bytes(data[:3], "big")
            yield data[3], data[4], int.from_bytes(data[5:9], "big"), data[9:end]
            data = data[end:]

    def receive(self) -> list[Any]:
        """Read once, and return the events. Raise EOFError if the server has closed."""
        data = self.sock.recv(1 << 16)
        if not data:
            raise EOFError
        events = self.h2.receive_data(data)
        for event in events:
            self._take(event)
        self.flush()
        return events

    def _take(self, event: Any) -> None:
        if isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = int(event.error_code)
            return
        answer = self.answers.get(getattr(event, "stream_id", 0) or 0)
        if answer is None:
            return
        if isinstance(event, h2.events.ResponseReceived):
            answer.headers = dict(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            answer.body += event.data
            if self.acknowledges and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            answer.ended = True
        elif isinstance(event, h2.events.StreamReset):
            answer.reset = int(event.error_code)

    def answer(self, number: int) -> Answered:
        """Read until the answer on this stream has ended, or was reset."""
        found = self.answers[number]
        while not found.ended and found.reset is None:
            self.receive()
        return found

    def ask(self, path: str, **how: Any) -> Answered:
        return self.answer(self.send(path, **how))

    def until_closed(self) -> int | None:
        """Read until the server closes the connection. Return the error code of its GOAWAY."""
        for kind, _, _, payload in self.raw_frames():
            if kind == GOAWAY:
                self.goaway = int.from_bytes(payload[4:8], "big")
        return self.goaway
