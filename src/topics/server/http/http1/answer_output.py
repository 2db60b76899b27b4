"""Answers of one connection as bytes, in order, gathered for one write. Pure.

A caller that writes `parts` replaces them with an empty list, and sets `size_bytes` to 0.
"""

from collections.abc import Callable

from topics.server.http.answers import BODILESS, CLOSE, CONTINUE, KEEP_ALIVE, AnswerHeads, failure
from topics.server.http.exchange import Exchange
from topics.server.http.messages import Body, Response, Stream, Upgrade, body_bytes


class AnswerOutput:
    """Bytes that are to be written, and the hooks of the answers among them."""

    __slots__ = ("_heads", "parts", "sent_hooks", "size_bytes")

    def __init__(self, heads: AnswerHeads) -> None:
        self._heads = heads
        self.parts: list[bytes | memoryview] = []
        self.size_bytes = 0  # of all parts
        self.sent_hooks: list[Callable[[], None]] = []  # of answers that the system has not taken yet

    def add(self, exchange: Exchange, answer: Response, *, last: bool) -> bool:
        """Add an answer. Return whether the connection ends after it: if it is the `last`, or cannot be sent as it is.

        Without its body if the request was a HEAD or the status has none.
        """
        if answer.sent is not None:
            self.sent_hooks.append(answer.sent)
        head = exchange.head
        after = CLOSE if last else KEEP_ALIVE if head.old else b""
        try:
            start = self._heads.whole(answer, body_bytes(answer.body), after)
        except Exception as error:
            # The application set a header field that cannot be sent. The error answer has no fields of its own.
            self.add_last(failure(head.request, error), head_only=head.head_only)
            return True
        bodiless = head.head_only or answer.status in BODILESS
        self._append(start, b"" if bodiless else answer.body)
        return last

    def add_last(self, answer: Response, *, head_only: bool = False) -> None:
        """Add an answer after which the connection ends."""
        start = self._heads.whole(answer, body_bytes(answer.body), CLOSE)
        self._append(start, b"" if head_only else answer.body)

    def add_stream(self, exchange: Exchange, stream: Stream) -> None:
        """Add the head of a stream. Raise ValueError for a header field that cannot be sent."""
        heads = self._heads
        start = heads.switching(stream.head) if isinstance(stream, Upgrade) else heads.endless(stream.head)
        if exchange.head.head_only:  # nothing follows and the connection ends: the client must not keep it
            start = start.replace(KEEP_ALIVE, CLOSE)
        self._append(start, b"")

    def add_continue(self) -> None:
        """Add 100 Continue."""
        self._append(CONTINUE, b"")

    def take_sent_hooks(self) -> list[Callable[[], None]]:
        """Return the hooks of the answers that were added, and forget them."""
        hooks, self.sent_hooks = self.sent_hooks, []
        return hooks

    def _append(self, start: bytes, body: Body) -> None:
        self.parts.append(start)
        if isinstance(body, bytes):
            if body:
                self.parts.append(body)
            self.size_bytes += len(start) + len(body)
        else:
            self.parts += body
            self.size_bytes += len(start) + body_bytes(body)
