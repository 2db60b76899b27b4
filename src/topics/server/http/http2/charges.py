"""The charges of one HTTP/2 connection to the memory budget. Pure."""

from __future__ import annotations

from topics.server.http.http2.stream import Http2Stream
from topics.server.limits.budget import ANSWERS, BODIES, EXCHANGE_BYTES, STREAMS, MemoryBudget, Receiver


class SessionCharges:
    """The bytes that one connection holds, by account. `note` charges what has changed since the last time."""

    __slots__ = ("_answer_bytes", "_body_bytes", "_budget", "_charged", "_received_bytes", "_stream_bytes")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._body_bytes = 0  # of requests without an answer
        self._answer_bytes = 0  # of answers that have not gone out
        self._stream_bytes = 0  # the same for answers without end
        self._received_bytes = 0
        self._charged = {BODIES: 0, ANSWERS: 0, STREAMS: 0}

    def request(self, stream: Http2Stream) -> None:
        """Count a request with what has come of its body."""
        size_bytes = EXCHANGE_BYTES + max(len(stream.body), len(stream.head.request.body))
        self._body_bytes += size_bytes - stream.charged_bytes
        stream.charged_bytes = size_bytes

    def unpacking(self, stream: Http2Stream, size_bytes: int) -> None:
        """Count the bytes that a body was unpacked to so far."""
        size_bytes += EXCHANGE_BYTES + len(stream.head.request.body)
        self._body_bytes += size_bytes - stream.charged_bytes
        stream.charged_bytes = size_bytes

    def finish(self, stream: Http2Stream) -> None:
        """Free the body of a request: its answer does not need it any more."""
        self._body_bytes -= stream.charged_bytes
        stream.charged_bytes = 0
        stream.head.request.body = b""
        stream.body = bytearray()

    def queued(self, stream: Http2Stream, delta_bytes: int) -> None:
        """Count bytes of an answer that wait to go out, or went."""
        if stream.answer is None:
            self._answer_bytes += delta_bytes
        else:
            self._stream_bytes += delta_bytes

    def note(self, receiver: Receiver, unparsed_bytes: int, unsent_bytes: int) -> None:
        """Charge the budget. `receiver` is the connection, which may have to give up its input."""
        held = {
            BODIES: self._body_bytes + unparsed_bytes,
            ANSWERS: self._answer_bytes + unsent_bytes,
            STREAMS: self._stream_bytes,
        }
        for account, held_bytes in held.items():
            if held_bytes != self._charged[account]:
                self._budget.charge(account, held_bytes - self._charged[account])
                self._charged[account] = held_bytes
        received_bytes = held[BODIES]
        if received_bytes != self._received_bytes:
            self._received_bytes = received_bytes
            self._budget.receive(receiver, received_bytes)
