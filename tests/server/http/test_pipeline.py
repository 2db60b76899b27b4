"""The pipeline without a socket: bytes in, requests out; answers in, bytes out in order."""

import gzip
from itertools import pairwise
from typing import Any

import pytest

from tests.server.harness import request
from topics.errors import Code, TopicsError
from topics.server.http.exchange import Exchange
from topics.server.http.http_limits import HttpLimits
from topics.server.http.messages import Deferred, Request, Response, Stream, Upgrade
from topics.server.http.pipeline import Pipeline, Wait
from topics.server.http.pipeline_state import (
    ABORT,
    ABORTED,
    ACTIVE,
    ANSWER,
    AWAITING,
    CLOSE,
    CLOSED,
    CLOSING,
    DEFER,
    DISCARDING,
    FINISHING,
    IDLE,
    LINGERING,
    LOSE,
    OPEN,
    STREAMING,
    TRANSITIONS,
    UPGRADING,
    ConnectionState,
)
from topics.server.http.request_head import HeadCache
from topics.server.http.request_log import RequestLog
from topics.server.http.response_head import AnswerHeads
from topics.server.http.turn_share import MAX_PIECES, TURN_NS
from topics.server.limits.budget import MemoryBudget

CHUNKED = (
    b"POST /echo?a=1 HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nX-Trailer: t\r\n\r\n"
)
EXPECT = b"POST /echo HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
UPGRADE = request("/upgrade", "Connection: Upgrade", "Upgrade: echo")


class FakeService:
    """What a server shares with its pipelines; refuses requests for `/refuse`."""

    def __init__(self, budget_bytes: int = 0, **limits: int) -> None:
        self.limits = HttpLimits(**limits)
        self.budget = MemoryBudget(budget_bytes)
        self.heads = HeadCache()
        self.answers = AnswerHeads(lambda: 0.0)
        self.request_log = RequestLog()
        self.now_ns = 1
        self.abandoned: list[bytes] = []

    def admit(self, request: Request, content_length: int | None) -> Response | None:
        return Response(401, b"no") if request.path == b"/refuse" else None

    def abandon(self, request: Request) -> None:
        if request.path == b"/broken":
            raise RuntimeError("a hook that fails")
        self.abandoned.append(request.path)

    def clock_ns(self) -> int:
        return self.now_ns


class Driver:
    """Does what the asyncio adapter does, by hand."""

    def __init__(self, service: FakeService | None = None, **limits: int) -> None:
        self.service = service or FakeService(**limits)
        self.pipeline = Pipeline(self.service, "peer")
        self.begun: list[Exchange] = []
        self.written = b""

    @property
    def state(self) -> ConnectionState:
        return self.pipeline.state

    def feed(self, data: bytes) -> "list[bytes]":
        """Pass input and return the targets of the requests that were begun."""
        self.pipeline.receive(data)
        return self.begin()

    def begin(self) -> "list[bytes]":
        """Begin requests until one has to wait, and return their targets."""
        targets = []
        while (exchange := self.next_request()) is not None:
            self.begun.append(exchange)
            asked = exchange.head.request
            targets.append(asked.path + (b"?" + asked.query if asked.query else b""))
        return targets

    def answer(self, number: int, body: bytes = b"{}", **fields: Any) -> None:
        self.pipeline.answer(self.begun[number], Response(200, body, **fields))

    def next_request(self) -> Exchange | None:
        """Return the next request; write the output first if it is above the mark."""
        exchange = self.pipeline.next_request()
        if exchange is None and self.pipeline.output.size_bytes > self.service.limits.high_water_bytes:
            self._write()
            exchange = self.pipeline.next_request()
        return exchange

    def _write(self) -> None:
        output = self.pipeline.output
        self.written += b"".join(output.parts)
        output.parts, output.size_bytes = [], 0

    def output(self) -> bytes:
        """Write: return the output and let the pipeline rest."""
        self.begin()
        self._write()
        self.pipeline.rest()
        written, self.written = self.written, b""
        return written

    def exchange(self, data: bytes) -> bytes:
        """Answer every request in `data` with its own body, and return the output."""
        self.pipeline.receive(data)
        while (exchange := self.pipeline.next_request()) is not None:
            self.pipeline.answer(exchange, Response(200, exchange.head.request.body or b"none", b"text/plain"))
        return self.output()


def bodies(written: bytes) -> list[bytes]:
    """Return the bodies of a sequence of answers, in order."""
    found = []
    while written:
        head, _, written = written.partition(b"\r\n\r\n")
        size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        found.append(written[:size])
        written = written[size:]
    return found


# --- states


def test_table_lets_every_state_end():
    for state in ConnectionState:
        assert TRANSITIONS[state, LOSE] is CLOSED
        assert TRANSITIONS[state, ABORT] in (ABORTED, CLOSED)
        assert TRANSITIONS[state, CLOSE] in (
            CLOSING,
            ABORTED,
            CLOSED,
        )


def test_table_has_the_two_changes_that_the_fast_path_makes_itself():
    assert TRANSITIONS[IDLE, DEFER] is AWAITING
    assert TRANSITIONS[AWAITING, ANSWER] is IDLE


def test_table_never_leads_from_discarded_input_back_to_requests():
    reading = {IDLE, AWAITING, ACTIVE, UPGRADING}
    assert not [key for key, after in TRANSITIONS.items() if key[0] in DISCARDING and after in reading]


def test_unknown_change_of_state_raises():
    with pytest.raises(KeyError):
        Driver().pipeline.change(OPEN)


def test_states_of_a_plain_request():
    driver = Driver()
    assert driver.state is IDLE
    assert driver.feed(request("/a")) == [b"/a"]
    assert driver.state is ACTIVE
    driver.answer(0, b"one")
    assert bodies(driver.output()) == [b"one"]
    assert driver.state is IDLE


# --- bytes in


@pytest.mark.parametrize("data", [CHUNKED, request("/a", method="POST", body=b"hello world")], ids=["chunked", "sized"])
def test_request_is_the_same_wherever_it_is_split(data):
    for at in range(1, len(data)):
        driver = Driver()
        assert driver.exchange(data[:at]) == b""
        assert bodies(driver.exchange(data[at:])) == [b"hello world"], at
        assert driver.state is IDLE


def test_request_is_the_same_byte_by_byte():
    driver = Driver()
    written = b"".join(driver.exchange(CHUNKED[at : at + 1]) for at in range(len(CHUNKED)))
    assert bodies(written) == [b"hello world"]


def test_pipelined_requests_are_the_same_wherever_they_are_split():
    data = request("/1") + CHUNKED + request("/2", method="POST", body=b"two")
    for at in range(1, len(data)):
        driver = Driver()
        assert bodies(driver.exchange(data[:at]) + driver.exchange(data[at:])) == [b"none", b"hello world", b"two"]


def test_head_is_remembered_after_one_whole_request_in_one_read():
    data = request("/a", method="POST", body=b"x" * 50_000)  # parsed in several pieces
    whole, split, two = Driver(), Driver(), Driver()
    head = data.partition(b"\r\n\r\n")[0]
    whole.exchange(data)
    assert whole.service.heads.compose(head) is not None
    split.exchange(data[:100])
    split.exchange(data[100:])
    assert split.service.heads.compose(head) is None
    two.exchange(data * 2)
    assert two.service.heads.compose(head) is None


def test_malformed_input_is_answered_after_the_requests_before_it():
    driver = Driver()
    assert driver.feed(request("/a") + b"nonsense\r\n\r\n") == [b"/a"]
    assert driver.state is FINISHING
    assert driver.feed(request("/b")) == []
    driver.answer(0, b"one")
    first, second = bodies(driver.output())
    assert (first, b"invalid_request" in second) == (b"one", True)
    assert driver.state in (CLOSING, LINGERING)


def test_refused_request_is_answered_in_order_and_its_short_body_skipped():
    driver = Driver()
    data = request("/a") + request("/refuse", method="POST", body=b"secret") + request("/b")
    assert driver.feed(data) == [b"/a", b"/b"]
    driver.answer(1, b"two")
    driver.answer(0, b"one")
    assert bodies(driver.output()) == [b"one", b"no", b"two"]


def test_refused_request_with_a_long_body_ends_the_connection():
    driver = Driver(skip_body_bytes=3)
    assert driver.feed(request("/refuse", "Content-Length: 4", method="POST")) == []
    assert b"connection: close" in driver.output()
    assert driver.state is LINGERING
    assert driver.feed(request("/a")) == []


def test_long_gzip_body_is_left_for_a_thread():
    fields = ("Content-Encoding: gzip",)
    driver = Driver()
    short, long = gzip.compress(b"short"), gzip.compress(bytes(1_000_000))
    assert bodies(driver.exchange(request("/a", *fields, method="POST", body=short))) == [b"short"]
    assert driver.feed(request("/b", *fields, method="POST", body=long)) == []
    assert driver.feed(request("/c")) == []
    [(exchange, gunzip)] = driver.pipeline.queue.packed
    assert not driver.pipeline.wants_input  # what comes behind the parked request has to wait
    body = None
    while body is None:
        body = gunzip.advance()
    driver.pipeline.unpacked(exchange, body)
    assert driver.begin() == [b"/b", b"/c"]
    assert driver.begun[0].head.request.body == bytes(1_000_000)


def test_gzip_body_that_cannot_be_unpacked_is_answered_and_abandoned():
    driver = Driver()
    data = request("/a", "Content-Encoding: gzip", method="POST", body=b"no gzip") + request("/b")
    assert driver.feed(data) == [b"/b"]
    assert driver.service.abandoned == [b"/a"]
    driver.answer(0, b"two")
    first, second = bodies(driver.output())
    assert (b"invalid_request" in first, second) == (True, b"two")


# --- 100 Continue


def test_continue_is_sent_once_and_only_if_the_client_waits():
    driver = Driver()
    driver.pipeline.receive(EXPECT)
    assert driver.output() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert driver.output() == b""
    assert bodies(driver.exchange(b"body")) == [b"body"]
    assert bodies(driver.exchange(EXPECT + b"body")) == [b"body"]  # it did not wait
    assert driver.exchange(EXPECT + b"bo") == b""


def test_continue_waits_for_the_answers_before_it():
    driver = Driver()
    assert driver.feed(request("/a") + EXPECT) == [b"/a"]
    assert driver.output() == b""
    driver.answer(0, b"one")
    assert driver.output().endswith(b"one" + b"HTTP/1.1 100 Continue\r\n\r\n")


# --- answers in


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_answers_go_out_in_the_order_of_the_requests(order):
    driver = Driver()
    assert driver.feed(request("/0") + request("/1") + request("/2")) == [b"/0", b"/1", b"/2"]
    written = b""
    for number in order:
        driver.answer(number, b"%d" % number)
        written += driver.output()
    assert bodies(written) == [b"0", b"1", b"2"]
    assert driver.pipeline.queue.held_bytes == 0


def test_head_is_answered_without_its_body():
    driver = Driver()
    driver.feed(request("/a", method="HEAD") + request("/b"))
    driver.answer(0, b"one")
    driver.answer(1, b"two")
    head, rest = driver.output().split(b"\r\n\r\n", 1)
    assert b"content-length: 3" in head
    assert rest.startswith(b"HTTP/1.1 200 OK")
    assert bodies(rest) == [b"two"]


def test_input_behind_connection_close_makes_the_pipeline_linger():
    for behind, state in ((b"", CLOSING), (bytes(20_000), LINGERING)):
        driver = Driver()
        assert driver.feed(request("/a", "Connection: close") + behind) == [b"/a"]
        driver.answer(0)
        assert b"connection: close" in driver.output()
        assert driver.state is state


def test_large_answer_to_a_client_that_takes_gzip_is_compressed_elsewhere():
    driver = Driver()
    driver.feed(request("/a", "Accept-Encoding: gzip") * 2)
    small, large = Response(200, b"1" * 2000), Response(200, b"2" * 100_000)
    assert driver.pipeline.answer(driver.begun[0], small)
    assert not driver.pipeline.answer(driver.begun[1], large)
    driver.pipeline.answer_compressed(driver.begun[1], large, gzip.compress(b"2" * 100_000))
    assert [gzip.decompress(body) for body in bodies(driver.output())] == [b"1" * 2000, b"2" * 100_000]


def test_unsendable_answer_becomes_an_error_and_ends_the_connection(caplog):
    driver = Driver()
    driver.feed(request("/a") * 2)
    driver.answer(0, headers=((b"x", b"a\r\nb: c"),))
    driver.answer(1)
    [body] = bodies(driver.output())
    assert b"internal" in body
    assert driver.state is CLOSING


# --- bounds


def test_parked_requests_stop_the_input():
    driver = Driver(max_pipelined=2)
    assert driver.feed(request("/a") * 3) == [b"/a"] * 2
    assert driver.pipeline.has_work
    assert driver.feed(request("/b")) == []
    assert not driver.pipeline.wants_input
    for number, begun in ((0, [b"/a"]), (1, [b"/b"])):
        driver.answer(number)
        driver.pipeline.begin_turn()
        assert driver.begin() == begun
    assert driver.pipeline.wants_input


def test_one_turn_begins_no_more_than_its_share_of_requests():
    driver = Driver(max_pipelined=4)
    driver.pipeline.receive(request("/a") * 10)
    turns = []
    while driver.pipeline.has_work:
        handled = 0
        while (exchange := driver.pipeline.next_request()) is not None:
            driver.pipeline.answer(exchange, Response(200, b"{}"))
            handled += 1
        turns.append(handled)
        assert driver.pipeline.needs_turn
        driver.pipeline.begin_turn()
    assert turns == [4, 4, 2]
    assert len(bodies(driver.output())) == 10


def test_one_turn_begins_no_request_after_its_time():
    driver = Driver()
    driver.pipeline.receive(request("/a") * 3)
    assert driver.pipeline.next_request() is not None
    driver.service.now_ns += TURN_NS + 1
    assert driver.pipeline.next_request() is None
    assert driver.pipeline.needs_turn
    driver.pipeline.begin_turn()
    assert driver.pipeline.next_request() is not None


def test_one_turn_parses_no_more_than_its_share_of_chunks():
    driver = Driver()
    head = CHUNKED.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    data = head + b"1\r\nx\r\n" * (3 * MAX_PIECES) + b"0\r\n\r\n"
    driver.pipeline.receive(data)
    turns = 1
    while not (begun := driver.begin()):
        assert driver.pipeline.needs_turn
        assert not driver.pipeline.wants_input
        driver.pipeline.begin_turn()
        turns += 1
    assert begun == [b"/echo?a=1"]
    assert turns in (2, 3)
    assert driver.begun[0].head.request.body == b"x" * 3 * MAX_PIECES


def test_refused_requests_share_turns_too():
    driver = Driver(max_pipelined=4)
    driver.pipeline.receive(request("/refuse") * 400)
    turns = 1
    while driver.begin() == [] and driver.pipeline.needs_turn:
        driver.pipeline.begin_turn()
        turns += 1
    assert turns > 2
    assert len(bodies(driver.output())) == 400


def test_client_that_does_not_read_gets_no_new_request_handled():
    driver = Driver()
    driver.pipeline.paused = True
    assert driver.feed(request("/a")) == []
    assert driver.feed(request("/b")) == []
    assert not driver.pipeline.wants_input
    driver.pipeline.paused = False
    assert driver.begin() == [b"/a", b"/b"]
    assert driver.pipeline.wants_input


def test_answers_above_the_mark_are_written_before_more_is_handled():
    driver = Driver(high_water_bytes=1000)
    driver.pipeline.receive(request("/a") * 3)
    first = driver.pipeline.next_request()
    assert first is not None
    driver.pipeline.answer(first, Response(200, bytes(2000)))
    assert driver.pipeline.next_request() is None
    driver.pipeline.output.parts, driver.pipeline.output.size_bytes = [], 0
    assert driver.pipeline.next_request() is not None


def test_answers_that_wait_behind_a_late_one_are_bounded():
    driver = Driver(high_water_bytes=1000)
    driver.pipeline.receive(request("/a") * 9)
    late = driver.pipeline.next_request()
    assert late is not None
    handled = 0
    while (exchange := driver.pipeline.next_request()) is not None:
        driver.pipeline.answer(exchange, Response(200, bytes(600)))
        handled += 1
    assert handled == 2
    driver.pipeline.answer(late, Response(200, b"{}"))
    assert driver.next_request() is not None


# --- streams and upgrades


class FakeEnding:
    ended = 0

    def closed(self) -> None:
        self.ended += 1


class SilentStream(FakeEnding, Stream):
    pass


class SilentUpgrade(FakeEnding, Upgrade):
    pass


def test_stream_waits_for_the_answers_before_it_and_drops_what_follows():
    driver = Driver()
    stream = SilentStream(Response(200, b"", b"text/event-stream"))
    driver.pipeline.receive(request("/a") + request("/stream") + request("/b") + bytes(20_000))
    first, second = driver.pipeline.next_request(), driver.pipeline.next_request()
    assert first is not None
    assert second is not None
    driver.pipeline.grant(second, stream)
    assert driver.service.abandoned == [b"/b"]
    assert driver.begin() == []
    assert driver.state is FINISHING
    driver.pipeline.answer(first, Response(200, b"one"))
    assert b"one" + b"HTTP/1.1 200 OK" in driver.output()
    assert (driver.state, driver.pipeline.stream) == (STREAMING, stream)
    assert driver.pipeline.wants_input  # or the end of the client would never be seen
    driver.pipeline.lose()
    assert stream.ended == 1


def test_head_of_a_stream_closes_it_at_once():
    driver = Driver()
    stream = SilentStream(Response(200, b"", b"text/event-stream"))
    driver.feed(request("/stream", method="HEAD"))
    driver.pipeline.grant(driver.begun[0], stream)
    assert b"connection: close" in driver.output()
    assert (driver.state, stream.ended) == (CLOSING, 1)


def test_upgrade_keeps_the_input_behind_its_request():
    driver = Driver()
    upgrade = SilentUpgrade(Response(101, b"", b"", ((b"upgrade", b"echo"),)))
    driver.pipeline.receive(request("/a") + UPGRADE + b"early")
    first, second = driver.pipeline.next_request(), driver.pipeline.next_request()
    assert first is not None
    assert second is not None
    driver.pipeline.grant(second, upgrade)
    driver.pipeline.receive(b" bytes")
    assert driver.begin() == []
    assert driver.state is UPGRADING
    assert not driver.pipeline.wants_input
    driver.pipeline.answer(first, Response(200, b"one"))
    assert b"101 Switching Protocols" in driver.output()
    assert driver.state is STREAMING
    assert driver.pipeline.take_rest() == b"early bytes"
    assert driver.pipeline.wants_input


def test_upgrade_that_is_not_granted_leaves_plain_http():
    driver = Driver()
    assert bodies(driver.exchange(UPGRADE + request("/b"))) == [b"none", b"none"]
    assert driver.state is IDLE


# --- deadlines


def test_deadlines_follow_the_state():
    driver = Driver()
    limits, pipeline = driver.service.limits, driver.pipeline
    assert pipeline.deadline(0) == (Wait.BEGIN, limits.idle_timeout_ms)
    driver.feed(CHUNKED[:20])
    assert pipeline.deadline(0) == (Wait.END_HEAD, limits.header_timeout_ms)
    driver.feed(CHUNKED[20:-10])
    assert pipeline.deadline(0) == (Wait.END_BODY, limits.body_timeout_ms)
    assert driver.feed(CHUNKED[-10:]) == [b"/echo?a=1"]
    assert pipeline.deadline(0) is None
    assert pipeline.deadline(1) == (Wait.READ, limits.write_timeout_ms)
    driver.answer(0)
    driver.output()
    pipeline.refuse(TopicsError(Code.THROTTLED, "full"))
    assert pipeline.deadline(0) == (Wait.CLOSE, limits.linger_timeout_ms)
    pipeline.change(CLOSE)
    assert pipeline.deadline(0) == (Wait.CLOSE, limits.write_timeout_ms)
    pipeline.give_up()
    assert pipeline.deadline(1) == (Wait.READ, limits.linger_timeout_ms)


def test_request_that_is_not_finished_in_time_is_answered_with_408():
    driver = Driver()
    driver.feed(CHUNKED[:-10])
    driver.pipeline.time_out(Wait.END_BODY)
    assert b"408 Request Timeout" in driver.output()
    assert driver.state is LINGERING
    assert driver.service.abandoned == [b"/echo"]


def test_expired_deadline_closes_or_aborts_the_connection():
    idle, unread, skipped = Driver(), Driver(), Driver()
    idle.pipeline.time_out(Wait.BEGIN)
    unread.pipeline.time_out(Wait.READ)
    skipped.feed(request("/refuse", "Content-Length: 9", method="POST"))
    assert b"401" in skipped.output()
    skipped.pipeline.time_out(Wait.END_BODY)  # it has its answer: a second one would answer the next request
    assert [idle.state, unread.state, skipped.state] == [
        CLOSING,
        ABORTED,
        ABORTED,
    ]
    assert skipped.output() == b""


# --- the end


def test_drained_pipeline_answers_what_has_begun_and_closes():
    driver = Driver()
    assert driver.feed(request("/a") + request("/b")[:10]) == [b"/a"]
    driver.pipeline.drain()
    driver.answer(0, b"one")
    assert b"connection: close" not in driver.output()
    written = driver.exchange(request("/b")[10:])
    assert b"connection: close" in written
    assert driver.state is CLOSING


def test_idle_pipeline_closes_when_drained():
    driver = Driver()
    driver.pipeline.drain()
    driver.pipeline.rest()
    assert driver.state is CLOSING


def test_client_that_shuts_its_side_gets_its_answers_sooner():
    driver = Driver()
    hurried: list[int] = []
    driver.feed(request("/a") * 2)
    for number in range(2):
        driver.pipeline.defer(driver.begun[number], Deferred(on_hurry=lambda number=number: hurried.append(number)))
    assert driver.pipeline.receive_eof()
    assert hurried == [0, 1]
    driver.answer(0, b"one")
    driver.answer(1, b"two")
    written = driver.output()
    assert bodies(written) == [b"one", b"two"]
    assert written.count(b"connection: close") == 1
    assert driver.state is CLOSING


def test_lost_pipeline_cancels_abandons_and_reports_everything():
    driver = Driver(max_pipelined=2)
    events: list[str] = []
    data = request("/a") * 2 + request("/b") + request("/c", "Content-Length: 4", method="POST")
    driver.feed(data)
    driver.pipeline.defer(driver.begun[0], Deferred(on_cancel=lambda: events.append("cancelled")))
    driver.pipeline.answer(driver.begun[1], Response(200, b"{}", sent=lambda: events.append("sent")))
    driver.pipeline.lose()
    assert events == ["cancelled", "sent"]
    assert b"/b" in driver.service.abandoned
    assert driver.state is CLOSED
    assert driver.feed(request("/d")) == []


def test_lost_pipeline_abandons_a_request_whose_body_is_not_whole():
    driver = Driver()
    driver.feed(request("/c", "Content-Length: 4", method="POST") + b"bo")
    driver.pipeline.lose()
    assert driver.service.abandoned == [b"/c"]


def test_hook_that_fails_aborts_the_connection(caplog):
    driver = Driver()
    driver.feed(request("/broken", "Content-Length: 4", method="POST") + b"bo")
    driver.pipeline.time_out(Wait.END_BODY)
    assert driver.state is ABORTED
    driver.begin()
    driver.pipeline.rest()
    assert driver.state is ABORTED
    assert caplog.records[0].name == "topics.http"


# --- memory


def test_input_given_up_is_answered_with_the_error_and_dropped():
    driver = Driver(max_pipelined=1)
    driver.feed(request("/a") + request("/b", method="POST", body=bytes(5000)) + request("/c")[:30])
    driver.pipeline.give_up_input(TopicsError(Code.THROTTLED, "full"))
    assert driver.service.abandoned == [b"/b"]
    assert driver.state is FINISHING
    driver.answer(0, b"one")
    first, second = bodies(driver.output())
    assert (first, b"throttled" in second) == (b"one", True)
    assert driver.state is LINGERING
    assert driver.pipeline.intake_bytes == 0


def test_upgrade_whose_input_is_given_up_is_refused():
    driver = Driver()
    upgrade = SilentUpgrade(Response(101, b"", b"", ((b"upgrade", b"echo"),)))
    driver.pipeline.receive(request("/a") + UPGRADE + bytes(50_000))
    first, second = driver.pipeline.next_request(), driver.pipeline.next_request()
    assert first is not None
    assert second is not None
    driver.pipeline.grant(second, upgrade)
    assert driver.begin() == []
    assert driver.pipeline.intake_bytes == 50_000
    driver.pipeline.give_up_input(TopicsError(Code.THROTTLED, "full"))
    assert upgrade.ended == 1
    driver.pipeline.answer(first, Response(200, b"one"))
    one, two = bodies(driver.output())
    assert (one, b"throttled" in two) == (b"one", True)


def test_unparsed_input_is_counted_and_what_was_parsed_is_freed():
    driver = Driver(max_pipelined=1)
    one = request("/a")
    driver.feed(one * 300)
    sizes = [driver.pipeline.intake_bytes]
    while driver.begun:
        for exchange in driver.begun:
            driver.pipeline.answer(exchange, Response(200, b"{}"))
        driver.begun.clear()
        driver.output()
        driver.pipeline.begin_turn()
        driver.begin()
        sizes.append(driver.pipeline.intake_bytes)
    assert sizes[0] > 0
    assert sizes[-1] == 0
    assert all(before >= after for before, after in pairwise(sizes))
