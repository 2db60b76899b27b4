"""Streams, upgrades, deadlines and the end of a pipeline."""

from tests.server.harness import request
from tests.server.http.http1.pipeline_driver import CHUNKED, UPGRADE, Driver, SilentStream, SilentUpgrade, bodies
from topics.errors import Code, TopicsError
from topics.server.http.http1.pipeline import (
    ABORTED,
    CLOSE,
    CLOSED,
    CLOSING,
    FINISHING,
    IDLE,
    LINGERING,
    STREAMING,
    UPGRADING,
    Wait,
)
from topics.server.http.messages import Deferred, Response

# --- streams and upgrades


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
    assert driver.pipeline.intake.take_rest() == b"early bytes"
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
    pipeline.close_timeout_ms = limits.linger_timeout_ms
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
