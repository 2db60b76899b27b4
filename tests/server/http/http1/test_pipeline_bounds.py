"""Bounds of the pipeline: parked requests, shares of a turn, unread answers, and the memory budget."""

from itertools import pairwise

from tests.server.harness import request
from tests.server.http.http1.pipeline_driver import CHUNKED, UPGRADE, Driver, SilentUpgrade, bodies
from topics.errors import Code, TopicsError
from topics.server.http.http1.intake import MAX_PIECES, TURN_NS
from topics.server.http.http1.pipeline import (
    FINISHING,
    LINGERING,
)
from topics.server.http.messages import Response

# --- requests and answers


def test_parked_requests_stop_the_input():
    driver = Driver(max_pipelined=2)
    assert driver.feed(request("/a") * 3) == [b"/a"] * 2
    assert len(driver.pipeline.queue) == 3
    assert driver.feed(request("/b")) == []
    assert not driver.pipeline.wants_input
    for number, begun in ((0, [b"/a"]), (1, [b"/b"])):
        driver.answer(number)
        driver.pipeline.intake.begin_turn()
        assert driver.begin() == begun
    assert driver.pipeline.wants_input


def test_one_turn_begins_no_more_than_its_share_of_requests():
    driver = Driver(max_pipelined=4)
    driver.pipeline.receive(request("/a") * 10)
    turns = []
    while len(turns) < 3:
        handled = 0
        while (exchange := driver.pipeline.next_request()) is not None:
            driver.pipeline.answer(exchange, Response(200, b"{}"))
            handled += 1
        turns.append(handled)
        assert driver.pipeline.needs_turn
        driver.pipeline.intake.begin_turn()
    assert turns == [4, 4, 2]
    assert len(bodies(driver.output())) == 10


def test_one_turn_begins_no_request_after_its_time():
    driver = Driver()
    driver.pipeline.receive(request("/a") * 3)
    assert driver.pipeline.next_request() is not None
    driver.service.now_ns += TURN_NS + 1
    assert driver.pipeline.next_request() is None
    assert driver.pipeline.needs_turn
    driver.pipeline.intake.begin_turn()
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
        driver.pipeline.intake.begin_turn()
        turns += 1
    assert begun == [b"/echo?a=1"]
    assert turns in (2, 3)
    assert driver.begun[0].head.request.body == b"x" * 3 * MAX_PIECES


def test_refused_requests_share_turns_too():
    driver = Driver(max_pipelined=4)
    driver.pipeline.receive(request("/refuse") * 400)
    turns = 1
    while driver.begin() == [] and driver.pipeline.needs_turn:
        driver.pipeline.intake.begin_turn()
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
    assert driver.pipeline.intake.held_bytes == 0


def test_upgrade_whose_input_is_given_up_is_refused():
    driver = Driver()
    upgrade = SilentUpgrade(Response(101, b"", b"", ((b"upgrade", b"echo"),)))
    driver.pipeline.receive(request("/a") + UPGRADE + bytes(50_000))
    first, second = driver.pipeline.next_request(), driver.pipeline.next_request()
    assert first is not None
    assert second is not None
    driver.pipeline.grant(second, upgrade)
    assert driver.begin() == []
    assert driver.pipeline.intake.held_bytes == 50_000
    driver.pipeline.give_up_input(TopicsError(Code.THROTTLED, "full"))
    assert upgrade.ended == 1
    driver.pipeline.answer(first, Response(200, b"one"))
    one, two = bodies(driver.output())
    assert (one, b"throttled" in two) == (b"one", True)


def test_unparsed_input_is_counted_and_what_was_parsed_is_freed():
    driver = Driver(max_pipelined=1)
    one = request("/a")
    driver.feed(one * 300)
    sizes = [driver.pipeline.intake.held_bytes]
    while driver.begun:
        for exchange in driver.begun:
            driver.pipeline.answer(exchange, Response(200, b"{}"))
        driver.begun.clear()
        driver.output()
        driver.pipeline.intake.begin_turn()
        driver.begin()
        sizes.append(driver.pipeline.intake.held_bytes)
    assert sizes[0] > 0
    assert sizes[-1] == 0
    assert all(before >= after for before, after in pairwise(sizes))
