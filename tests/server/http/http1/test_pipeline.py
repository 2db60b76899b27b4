"""The pipeline without a socket: bytes in, requests out; answers in, bytes out in order."""

import gzip
from collections.abc import Generator

import pytest

from tests.server.harness import request
from tests.server.http.http1.pipeline_driver import CHUNKED, EXPECT, Driver, bodies
from topics.server.http.http1.pipeline import (
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
    TRANSITIONS,
    UPGRADING,
    ConnectionState,
)
from topics.server.http.messages import Response

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
    [(exchange, steps)] = driver.pipeline.packed
    assert not driver.pipeline.wants_input  # what comes behind the parked request has to wait

    def whole() -> Generator[int, None, None]:
        driver.pipeline.unpacked(exchange, (yield from steps))

    assert list(whole())[-1] < 1_000_000
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
    assert driver.pipeline.held_bytes == 0


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
