"""The input of one connection: bytes become parked requests, a bounded piece at a time. Pure.

A single read can hold thousands of requests, or of chunks. A connection parses and begins a bounded number of them in
one turn of the event loop (`TurnShare`), and begins none after `TURN_NS`. The rest waits until the other connections
have had their turn.
"""

from collections.abc import Callable

from topics.errors import TopicsError
from topics.server.http.answers import failure
from topics.server.http.exchange import Exchange, Exchanges
from topics.server.http.http1.exchange_queue import ExchangeQueue
from topics.server.http.messages import Request, error_response
from topics.server.http.request.head import RequestHead
from topics.server.http.request.parser import BETWEEN, IN_BODY, RequestReader
from topics.server.http.service import Service

MAX_PIECES = 2048  # pieces of chunked bodies that are parsed in one turn
TURN_NS = 2_000_000  # work on the requests of one connection in one turn


class TurnShare:
    """What a connection may still do in this turn."""

    __slots__ = ("_clock_ns", "_heads_end", "_max_requests", "_pieces_end", "_requests_left", "ends_ns", "heads")

    def __init__(self, max_requests: int, clock_ns: Callable[[], int]) -> None:
        self._max_requests = max_requests
        self._clock_ns = clock_ns
        self.ends_ns = 0  # when the share is used up; 0 in a new turn, while no request was begun in it
        self._requests_left = 0
        self.heads = 0  # parsed since the connection was opened
        self._heads_end = self._pieces_end = 0

    def take_request(self) -> bool:
        """Count a request that is begun; return False if the share is used up."""
        if not self.ends_ns:
            self.ends_ns = self._clock_ns() + TURN_NS
            self._requests_left = self._max_requests
        elif self._requests_left <= 0 or self._clock_ns() > self.ends_ns:
            return False
        self._requests_left -= 1
        return True

    def allow_parsing(self, pieces: int) -> None:
        """Allow a turn's share of heads and pieces after the `pieces` that were parsed before."""
        self._heads_end = self.heads + self._max_requests
        self._pieces_end = pieces + MAX_PIECES

    def may_parse(self, pieces: int) -> bool:
        """Return whether more may be parsed after the `pieces` that were parsed before."""
        return self.heads < self._heads_end and pieces < self._pieces_end


# Input is parsed in pieces of this size: the parser cannot be paused, so a piece bounds how many requests it finds.
PIECE_BYTES = 16 * 1024
HEAD_PIECE_BYTES = 4 * 1024  # the same between requests, which may follow each other every 30 bytes
FULL_PIECE_BYTES = 256  # and while the memory budget is full

_MANY_READS = -2  # in place of a count of requests: the input did not come in one read, or began within a request


class Intake:
    """Parses input into the queue. `ended` is set after the last request of the connection, or after an error."""

    __slots__ = (
        "_at",
        "_exchanges",
        "_peer",
        "_queue",
        "_read_at_head",
        "_service",
        "_share",
        "data",
        "ended",
        "reader",
    )

    def __init__(
        self, service: Service, queue: ExchangeQueue, share: TurnShare, exchanges: Exchanges[Exchange], peer: str
    ) -> None:
        self._service = service
        self._queue = queue
        self._share = share
        self._exchanges = exchanges
        self._peer = peer
        self.reader = RequestReader(self, service.limits, peer)
        self.data: bytes | None = None  # input that is not parsed, from `_at` on; None: all is parsed
        self._at = 0
        self._read_at_head = _MANY_READS  # how many heads had been parsed when `data` came
        self.ended = False

    @property
    def is_whole(self) -> bool:
        """Whether nothing but whole requests has come."""
        return self.data is None and self.reader.phase == BETWEEN

    # --- bytes in

    def add(self, data: bytes) -> None:
        """Add input."""
        if self.data is not None:
            self.data += data
            return
        self.data, self._at = data, 0
        self._read_at_head = self._share.heads if self.reader.phase == BETWEEN else _MANY_READS
        self._share.allow_parsing(self.reader.pieces)

    def parse_piece(self) -> None:
        """Parse a piece of the input. There is some."""
        data, reader = self.data, self.reader
        assert data is not None
        size_bytes = max(self._piece_bytes(), reader.body_left_bytes)
        # `feed` uses all that it gets, or ends behind the head of an upgrade: it never uses nothing.
        at = self._at = self._at + reader.feed(memoryview(data)[self._at : self._at + size_bytes])
        if at < len(data):
            return
        self.data = None
        if reader.head is not None and reader.phase == BETWEEN and self._share.heads == self._read_at_head + 1:
            self._service.heads.learn(data, reader.head, fields=reader.fields)

    def trim(self) -> None:
        """Free the input that is parsed, because the rest has to wait."""
        if self.data is not None and self._at:
            self.data, self._at, self._read_at_head = self.data[self._at :], 0, _MANY_READS

    def take_rest(self) -> bytes | None:
        """Return the input that is not parsed, for the protocol of an upgrade; None if all is parsed."""
        self.trim()
        data, self.data = self.data, None
        return data

    def _piece_bytes(self) -> int:
        if self.reader.phase == IN_BODY:
            return PIECE_BYTES
        return FULL_PIECE_BYTES if self._service.budget.full else HEAD_PIECE_BYTES

    def take_continue(self) -> bool:
        """Return, once for each request whose body is being read, whether the client waits for 100 Continue."""
        reader = self.reader
        head = reader.head
        if head is None or not head.expects or not reader.wanted:
            return False
        head.expects = False
        return not reader.body_bytes

    # --- the end

    def stop(self) -> None:
        """Read no further request."""
        self.ended = True
        self.reader.stop()

    def fail(self, error: TopicsError) -> None:
        """Give up the input: park `error` as the last answer, and free what has come."""
        self.take_error(error)
        self.discard()

    def discard(self) -> None:
        """Free the input that is not parsed. It does not count as parsed: the client may still be sending."""
        if self.data is not None:
            self.data, self._at = b"", 0

    def abandon_body(self) -> None:
        """Report a request to the application that was admitted and whose body does not come to its end."""
        reader = self.reader
        if reader.phase == IN_BODY and reader.wanted and reader.head is not None:
            reader.wanted = False
            self._exchanges.call(self._service.abandon, reader.head.request)

    def release(self) -> None:
        """Free everything when the connection has ended."""
        self.data = None
        self.abandon_body()
        self.reader.release()
        del self.reader  # they refer to each other

    # --- what the reader finds

    def take_head(self, head: RequestHead) -> bool:
        self._share.heads += 1
        request = head.request
        length = None if head.chunked else head.content_length
        try:
            refused = self._service.admit(request, length)
        except Exception as error:
            refused = failure(request, error)
        if refused is None:
            return True
        # A client that waits for 100 Continue may send the body or not: only closing makes clear where the next
        # request begins.
        if head.expects or length is None or length > self._service.limits.skip_body_bytes:
            head.keep_alive = False
        self._queue.park(Exchange(head, refused))
        if not head.keep_alive:
            self.stop()
        return False

    def take_request(self, head: RequestHead, body: bytes) -> None:
        head.request.body = body
        exchange = Exchange(head)
        self._queue.park(exchange)
        if not head.keep_alive:
            self.stop()
        if head.packed and body:
            self._exchanges.unpack(exchange)

    def take_error(self, error: TopicsError) -> None:
        self.abandon_body()
        request = Request("", b"", b"", {}, b"", self._peer, 0)
        self._queue.park(Exchange(RequestHead(request, keep_alive=False), error_response(error)))
        self.stop()
