"""One HTTP/2 connection without I/O: bytes in, requests out; answers in, bytes out, in turn for all streams.

The caller passes input to `receive`, calls `next_request` until it returns None, and passes each answer back. Then it
writes what `fill` returns, and closes the transport once `ended` is set.
"""

import re
from collections import deque
from collections.abc import Iterable

from h2 import events
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from hyperframe.frame import GoAwayFrame

from topics.errors import Code, TopicsError, invalid
from topics.server.http.answers import BODILESS, TRANSPORT_FIELDS, failure, log
from topics.server.http.exchange import Exchanges, Service
from topics.server.http.http2.stream import Frames, Http2Stream, Input, SessionInput, SessionOutput
from topics.server.http.http_limits import HttpLimits
from topics.server.http.messages import JSON, Header, Request, Response, Stream, Upgrade, body_bytes, error_response
from topics.server.http.request.head import SINGLE, RequestHead, check, check_fields

_TARGET = re.compile(rb"[!-~]+")
_METHOD = re.compile(rb"[A-Z]{1,16}")
# Fields that the transport sets, or that HTTP/2 does not have.
_TRANSPORT_FIELDS = TRANSPORT_FIELDS | {b"upgrade", b"proxy-connection"}


def read_head(fields: Iterable[tuple[bytes, bytes]], limits: HttpLimits, peer: str) -> RequestHead:
    """Return the checked head of a request. Raise `TopicsError` for what this server does not accept."""
    special: dict[bytes, bytes] = {}
    headers: dict[bytes, bytes] = {}
    count = size_bytes = 0
    repeated = False
    for name, value in fields:
        size_bytes += len(name) + len(value)
        if name.startswith(b":"):
            special[name] = value
            continue
        count += 1
        value = value.strip(b" \t")
        if name in headers:
            repeated = repeated or name in SINGLE
            value = b"%b, %b" % (headers[name], value)
        headers[name] = value
    if (authority := special.get(b":authority")) is not None:
        headers[b"host"] = authority
    check_fields(headers, limits, count, size_bytes, repeated=repeated)
    method, target = special.get(b":method", b""), special.get(b":path", b"")
    if method == b"CONNECT":
        raise invalid("CONNECT is not supported: this server is not a proxy")
    if _METHOD.fullmatch(method) is None or _TARGET.fullmatch(target) is None:
        raise invalid("the method or the request target is malformed")
    return check(method=method.decode(), version="1.1", url=target, headers=headers, peer=peer, keep_alive=True)


def answer_head(response: Response, date: bytes, length: int | None) -> list[Header]:
    """Return the head of an answer; `length` is None for one without end. Raise ValueError for a bad field."""
    head: list[Header] = [(b":status", b"%d" % response.status), (b"date", date)]
    if response.status not in BODILESS:
        head.append((b"content-type", response.content_type))
        head.append((b"x-content-type-options", b"nosniff"))
        if response.content_type == JSON:
            head.append((b"cache-control", b"no-store"))
        if length is not None:
            head.append((b"content-length", b"%d" % length))
    for name, value in response.headers:
        name = name.lower()
        if name in _TRANSPORT_FIELDS:
            continue
        if b"\r" in value or b"\n" in value:
            raise ValueError("a header field is one line")
        head.append((name, value))
    return head


FRAMES_PER_ANSWER = 3  # that a client may send for each answer, and for each frame of one, without being a flood
MAX_TABLE_BYTES = 4096  # RFC 7541 section 4.2, the default


class Http2Session(Exchanges[Http2Stream]):
    def __init__(self, service: Service, peer: str, now: float) -> None:
        super().__init__(service)
        limits = service.limits
        self._peer = peer
        self.streams: dict[int, Http2Stream] = {}
        self.ended = False  # nothing more is read or answered: close the transport once the output is written
        self.draining = False  # no further stream is accepted
        self.paused = False  # the transport holds more than the high-water mark
        self.opened: list[Http2Stream] = []  # streams whose answer is to be opened
        self._ready: deque[Http2Stream] = deque()  # whole requests that were not begun
        self._last_number = 0  # of the streams that were accepted
        self.unwanted: dict[int, float] = {}  # streams whose request was answered while its body came, and when
        self.input = SessionInput(service.clock_ns, max_block_bytes=limits.max_header_bytes, now=now)
        self.goaway = b""
        self._h2 = Frames(limits.max_header_bytes)
        self.output = SessionOutput(self._h2)

    # --- bytes in

    def receive(self, data: bytes, now: float) -> None:
        if not self.ended:
            self.input.add(data, now)

    @property
    def needs_turn(self) -> bool:
        """Whether `input.begin_turn` and `next_request` must be called in the next turn of the event loop."""
        return not self.ended and not self.paused and (bool(self._ready) or self.input.has_frame)

    @property
    def wants_input(self) -> bool:
        """Whether to read from the client: all that was read is parsed, but for a part of a frame."""
        return self.ended or not (self.paused or self._ready or self.input.has_frame)

    def next_request(self) -> Http2Stream | None:
        """Return the next whole request, or None if there is none, or it has to wait for the next turn."""
        # Bound: each round takes a part of the connection's share of the turn.
        while not self.ended and not self.paused and self.input.take_share():
            if self._ready:
                stream = self._ready.popleft()
                stream.admitted = False  # the application gets it now
                self.charges.begin(stream)
                return stream
            frame = self.input.next_frame()
            if frame is None:
                if self.input.error is not None:
                    self.fail(self.input.error)
                break
            try:
                for event in self._h2.receive_data(frame):
                    if not self.ended:
                        self._take_event(event)
            except ProtocolError:
                self._end()  # `h2` has made the GOAWAY
            except Exception as error:
                log.failure("http2_input_failed", error)
                self.fail(ErrorCodes.INTERNAL_ERROR)
        return None

    def _take_event(self, event: events.Event) -> None:
        if isinstance(event, events.DataReceived):
            if event.flow_controlled_length:
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            stream = self.streams.get(event.stream_id)
            if stream is not None and stream.input is Input.COMING and event.data:
                stream.body += event.data
                if len(stream.body) > self._service.limits.max_body_bytes:
                    self.refuse(stream, error_response(self._service.limits.body_too_large()))
                else:
                    self.charges.park(stream, len(stream.body))
        elif isinstance(event, events.RequestReceived):
            self._take_head(event)
        elif isinstance(event, events.StreamEnded):
            self.unwanted.pop(event.stream_id, None)
            stream = self.streams.get(event.stream_id)
            if stream is not None:
                self._take_end(stream)
        elif isinstance(event, events.StreamReset):
            self.unwanted.pop(event.stream_id, None)
            stream = self.streams.get(event.stream_id)
            if stream is not None:
                self._drop(stream)
        elif isinstance(event, events.WindowUpdated):
            number = event.stream_id
            if not number or number in self.streams:
                self.output.unblock(self.streams[number] if number else None)
        elif isinstance(event, events.RemoteSettingsChanged):
            # The client decides how much both sides must remember to pack heads. This server remembers no more than
            # the default, whatever the client allows.
            self._h2.encoder.header_table_size = min(self._h2.encoder.header_table_size, MAX_TABLE_BYTES)
            self.output.unblock(None)  # the windows of all streams may have grown
        elif isinstance(event, events.ConnectionTerminated):
            self.draining = True  # the client opens no further stream

    # --- requests

    def _take_head(self, event: events.RequestReceived) -> None:
        number = event.stream_id
        assert number is not None
        if self.draining:
            self._h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            return
        self._last_number = number
        limits = self._service.limits
        refused: Response | None = None
        try:
            head = read_head(event.headers or (), limits, self._peer)
            self.served += 1
        except TopicsError as error:
            head, refused = RequestHead(Request("", b"", b"", {}, b"", self._peer, 0)), error_response(error)
        now = self.input.now
        stream = self.streams[number] = Http2Stream(head, number=number, begun_at=now, seen_at=now)
        self.charges.park(stream, 0)
        length = head.content_length if b"content-length" in head.request.headers else None
        if event.stream_ended is not None:
            length = 0
        if length is not None and length > limits.max_body_bytes:
            refused = error_response(limits.body_too_large())
        if refused is None:
            try:
                refused = self._service.admit(head.request, length)
            except Exception as error:
                refused = failure(head.request, error)
        if refused is not None:
            self.refuse(stream, refused)
            return
        stream.admitted = True
        if head.expects and length != 0:
            self._h2.send_headers(number, [(b":status", b"100")])

    def refuse(self, stream: Http2Stream, response: Response) -> None:
        self._abandon(stream)
        if stream.input is Input.COMING:
            stream.input = Input.UNWANTED
        stream.body = bytearray()
        self._service.request_log.note(stream.head.request, response)
        self.send(stream, response)

    def _take_end(self, stream: Http2Stream) -> None:
        wanted, stream.input = stream.input is Input.COMING, Input.WHOLE
        if not wanted:
            return
        request = stream.head.request
        request.body, stream.body = bytes(stream.body), bytearray()
        if stream.head.packed and request.body:
            self.unpack(stream)
        else:
            self._ready.append(stream)

    def unpacked(self, exchange: Http2Stream, body: bytes) -> None:
        super().unpacked(exchange, body)
        self._ready.append(exchange)

    def unpack_failed(self, exchange: Http2Stream, error: BaseException) -> None:
        exchange.unpacking = False
        self._abandon(exchange)
        self.send(exchange, failure(exchange.head.request, error))

    def _abandon(self, stream: Http2Stream) -> None:
        """Report a request to the application that was admitted and will not be handled."""
        if stream.admitted:
            stream.admitted = False
            self.call(self._service.abandon, stream.head.request)

    # --- answers

    def grant(self, exchange: Http2Stream, stream: Stream) -> None:
        if isinstance(stream, Upgrade):
            self.call(stream.closed)
            error = TopicsError(Code.INVALID_REQUEST, "a WebSocket needs a connection of its own, with HTTP/1.1")
            self.send(exchange, error_response(error))
            return
        self.charges.finish(exchange)
        try:
            head = answer_head(stream.head, self._service.answers.date, None)
        except ValueError as error:
            self.call(stream.closed)
            self.send(exchange, failure(exchange.head.request, error))
            return
        exchange.answer = stream
        exchange.ends = exchange.head.head_only
        if self._send_head(exchange, head, ends=exchange.ends) and not exchange.ends:
            exchange.is_live = True
            self.opened.append(exchange)

    def send(self, exchange: Http2Stream, response: Response) -> None:
        stream = exchange
        self.charges.finish(stream)
        if stream.dropped:
            self.never_sent(response)
            return
        date = self._service.answers.date
        try:
            head = answer_head(response, date, body_bytes(response.body))
        except Exception as error:
            self.never_sent(response)
            response = failure(stream.head.request, error)
            head = answer_head(response, date, body_bytes(response.body))
        stream.answer = response
        stream.ends = True
        bodiless = stream.head.head_only or response.status in BODILESS or not body_bytes(response.body)
        if self._send_head(stream, head, ends=bodiless) and not bodiless:
            self.output.queue(stream, response.body)

    def _send_head(self, stream: Http2Stream, head: list[tuple[bytes, bytes]], *, ends: bool) -> bool:
        """Send the head of an answer. Return False if the stream has ended."""
        try:
            self._h2.send_headers(stream.number, head, end_stream=ends)
        except ProtocolError:
            self._drop(stream)
            return False
        if ends:
            self._finish(stream)
        return True

    # --- bytes out

    def fill(self, most_bytes: int) -> bytes:
        """Return bytes to write: frames of the protocol, and about `most_bytes` of answers, a frame of each in turn."""
        output = self.output
        if not self.ended:
            self.input.earn(FRAMES_PER_ANSWER * output.send(most_bytes))
            finished, output.finished = output.finished, []
            for stream in finished:
                self._finish(stream)
            lost, output.lost = output.lost, []
            for stream in lost:
                self._drop(stream)
            drained, output.drained = output.drained, []
            for stream in drained:
                if isinstance(stream.answer, Stream):
                    self.call(stream.answer.drained)
        # What is ready goes first: the Python library `h2`, in clients, takes nothing behind a GOAWAY.
        sent = self._h2.data_to_send() + self.goaway
        self.goaway = b""
        return sent

    def _finish(self, stream: Http2Stream) -> None:
        """Forget a stream: all of its answer was sent."""
        if stream.input is not Input.WHOLE:
            self.unwanted[stream.number] = self.input.now
        self.input.earn(FRAMES_PER_ANSWER)
        self._forget(stream)

    # --- the end

    def fail(self, code: ErrorCodes) -> None:
        if not self.ended:
            self._h2.close_connection(code)
            self._end()

    def drain(self) -> None:
        if not self.draining:
            self.draining = True
            self.goaway = GoAwayFrame(0, last_stream_id=self._last_number, error_code=ErrorCodes.NO_ERROR).serialize()

    def lose(self) -> None:
        self._end()
        # Break the cycles of references in `h2`, whose tables hold bound methods, so that the connection is freed now
        # and not by a full garbage collection.
        vars(self._h2).clear()

    def _end(self) -> None:
        self.ended = True
        self.input.drop()
        self.unwanted.clear()
        for stream in list(self.streams.values()):
            self._drop(stream)

    def stop_body(self, number: int) -> None:
        """Tell the client to stop sending a body that is not wanted (RFC 9113 section 8.1).

        Until then the body is read and dropped: some clients that are stopped at once report that, not the answer.
        """
        del self.unwanted[number]
        self._h2.reset_stream(number, ErrorCodes.NO_ERROR)

    def reset(self, stream: Http2Stream, code: ErrorCodes) -> None:
        if not stream.dropped:
            self._h2.reset_stream(stream.number, code)
            self._drop(stream)

    def _drop(self, stream: Http2Stream) -> None:
        """Forget a stream that the client or the server has reset."""
        if stream.dropped:
            return
        self._abandon(stream)
        self._forget(stream)
        if stream.deferred is not None:
            self.call(stream.deferred.cancel)

    def _forget(self, stream: Http2Stream) -> None:
        stream.dropped = True
        self.charges.finish(stream)
        self.output.remove(stream)
        self.streams.pop(stream.number, None)
        answer, stream.answer = stream.answer, None  # the answer may refer to its sink, and that to the stream
        if isinstance(answer, Stream):
            self.call(answer.closed)
        elif answer is not None:
            self.never_sent(answer)
        if stream in self._ready:
            self._ready.remove(stream)

    def give_up_input(self, error: TopicsError) -> None:
        """Refuse the requests that are still being received: the memory budget is exhausted."""
        for stream in list(self.streams.values()):
            if stream.input is Input.COMING or stream.unpacking:
                stream.unpacking = False
                self.refuse(stream, error_response(error))

    def _hook_failed(self) -> None:
        self.fail(ErrorCodes.INTERNAL_ERROR)
