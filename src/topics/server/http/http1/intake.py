"""The input of one connection: bytes become parked requests, a bounded piece at a time. Pure.

A single read can hold thousands of requests, or of chunks. A connection parses and begins a bounded number of them in
one turn of the event loop, and begins none after `TURN_NS`. The rest waits for the next turn.
"""

from topics.errors import TopicsError
from topics.server.http.answers import failure
from topics.server.http.exchange import Exchange, Exchanges, Service
from topics.server.http.messages import Request, error_response
from topics.server.http.request.head import RequestHead
from topics.server.http.request.parser import BETWEEN, IN_BODY, RequestReader

MAX_PIECES = 2048  # pieces of chunked bodies that are parsed in one turn
TURN_NS = 2_000_000  # work on the requests of one connection in one turn


# Input is parsed in pieces of this size: the parser cannot be paused, so a piece bounds how many requests it finds.
PIECE_BYTES = 16 * 1024
HEAD_PIECE_BYTES = 4 * 1024  # the same between requests, which may follow each other every 30 bytes
FULL_PIECE_BYTES = 256  # and while the memory budget is full

_MANY_READS = -2  # in place of a count of requests: the input did not come in one read, or began within a request


class Intake:
    """Parses input into the queue. `ended` is set after the last request of the connection, or after an error.

    There is a parser from the first read on that the fast path cannot take.
    """

    __slots__ = (
        "_at", "_exchanges", "_heads_end", "_peer", "_pieces_end", "_queue", "_read_at_head", "_requests_left",
        "_service", "data", "ended", "reader", "turn_ends_ns",
    )  # fmt: skip

    def __init__(self, service: Service, queue: list[Exchange], exchanges: Exchanges[Exchange], peer: str) -> None:
        self._service = service
        self._queue = queue
        self._exchanges = exchanges
        self._peer = peer
        # The share of this turn. It ends at `turn_ends_ns`, which is 0 while no request was begun in the turn.
        self.turn_ends_ns = self._requests_left = self._heads_end = self._pieces_end = 0
        self.reader: RequestReader | None = None
        self.data: bytes | None = None  # input that is not parsed, from `_at` on; None: all is parsed
        self._at = 0
        self._read_at_head = _MANY_READS  # how many heads had been parsed when `data` came
        self.ended = False

    @property
    def phase(self) -> int:
        return BETWEEN if self.reader is None else self.reader.phase

    @property
    def held_bytes(self) -> int:
        in_reader_bytes = 0 if self.reader is None else self.reader.held_bytes
        return in_reader_bytes + (0 if self.data is None else len(self.data))

    def add(self, data: bytes) -> None:
        if self.data is not None:
            self.data += data
            return
        if self.reader is None:
            self.reader = RequestReader(self, self._service.limits, self._peer)
        self.data, self._at = data, 0
        self._read_at_head = self._exchanges.served if self.reader.phase == BETWEEN else _MANY_READS
        self._allow_parsing(self.reader)

    def begin_turn(self) -> None:
        """Begin a new turn of the event loop: the connection has its whole share again."""
        self.turn_ends_ns = 0
        if self.data is not None and self.reader is not None:
            self._allow_parsing(self.reader)

    def _allow_parsing(self, reader: RequestReader) -> None:
        self._heads_end = self._exchanges.served + self._service.limits.max_pipelined
        self._pieces_end = reader.pieces + MAX_PIECES

    def take_share(self) -> bool:
        """Count a request that is begun; return False if the share of this turn is used up."""
        now_ns = self._service.clock_ns()
        if not self.turn_ends_ns:
            self.turn_ends_ns = now_ns + TURN_NS
            self._requests_left = self._service.limits.max_pipelined
        elif self._requests_left <= 0 or now_ns > self.turn_ends_ns:
            return False
        self._requests_left -= 1
        return True

    def parse_piece(self) -> bool:
        """Parse a piece of the input. Return False if there is none, or it has to wait for the next turn."""
        data, reader = self.data, self.reader
        if data is None or reader is None:
            return False
        if self._exchanges.served >= self._heads_end or reader.pieces >= self._pieces_end:
            return False
        if reader.phase == IN_BODY:
            size_bytes = max(PIECE_BYTES, reader.body_left_bytes)
        else:
            size_bytes = FULL_PIECE_BYTES if self._service.budget.full else HEAD_PIECE_BYTES
        # `feed` uses all that it gets, or ends behind the head of an upgrade: it never uses nothing.
        at = self._at = self._at + reader.feed(memoryview(data)[self._at : self._at + size_bytes])
        if at < len(data):
            return True
        self.data = None
        if reader.head is not None and reader.phase == BETWEEN and self._exchanges.served == self._read_at_head + 1:
            self._service.heads.learn(data, reader.head, fields=reader.fields)
        return True

    def trim(self) -> None:
        if self.data is not None and self._at:
            self.data, self._at, self._read_at_head = self.data[self._at :], 0, _MANY_READS

    def take_rest(self) -> bytes | None:
        """Return the input that is not parsed, for the protocol of an upgrade; None if all is parsed."""
        self.trim()
        data, self.data = self.data, None
        return data

    def take_continue(self) -> bool:
        """Return, once for each request whose body is being read, whether the client waits for 100 Continue."""
        reader = self.reader
        head = None if reader is None or reader.phase != IN_BODY else reader.head
        if reader is None or head is None or not head.expects or not reader.wanted:
            return False
        head.expects = False
        return not reader.body_bytes

    def stop(self) -> None:
        self.ended = True
        if self.reader is not None:
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
        if reader is not None and reader.phase == IN_BODY and reader.wanted and reader.head is not None:
            reader.wanted = False
            self._exchanges.call(self._service.abandon, reader.head.request)

    def release(self) -> None:
        self.data = None
        self.abandon_body()
        if self.reader is not None:
            self.reader.release()
            self.reader = None  # they refer to each other
        del self._exchanges  # the pipeline refers to this object

    def _park(self, exchange: Exchange) -> None:
        self._queue.append(exchange)
        self._exchanges.charges.park(exchange, len(exchange.head.request.body))

    def take_head(self, head: RequestHead) -> bool:
        self._exchanges.served += 1
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
        self._park(Exchange(head, refused))
        if not head.keep_alive:
            self.stop()
        return False

    def take_request(self, head: RequestHead, body: bytes) -> None:
        head.request.body = body
        exchange = Exchange(head)
        self._park(exchange)
        if not head.keep_alive:
            self.stop()
        if head.packed and body:
            self._exchanges.unpack(exchange)

    def take_error(self, error: TopicsError) -> None:
        self.abandon_body()
        request = Request("", b"", b"", {}, b"", self._peer, 0)
        self._park(Exchange(RequestHead(request, keep_alive=False), error_response(error)))
        self.stop()
