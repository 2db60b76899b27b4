"""The asyncio adapter with a transport that the test controls."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.harness import FakeApp, request
from topics.server.http.http1.connection import Connection
from topics.server.http.http1.pipeline import ABORTED, AWAITING, CLOSED, IDLE, Pipeline
from topics.server.http.http_limits import HttpLimits
from topics.server.http.messages import Answer, Deferred, Request, Response
from topics.server.http.server import HttpServer


class ManualTransport(asyncio.Transport):
    """Keeps what is written, and what it was asked to do."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.writes: list[bytes] = []
        self.unsent_bytes = 0
        self.reading = True
        self.ended = ""

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.writes.append(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def is_closing(self) -> bool:
        return bool(self.ended)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.writes.append(b"EOF")

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class World:
    """One connection of a server without sockets."""

    def __init__(self, **limits: int) -> None:
        self.app = FakeApp()
        self.http = HttpServer(self.app, HttpLimits(**limits))
        self.transport = ManualTransport()
        self.connection: Connection = Connection(self.http)
        self.connection.connection_made(self.transport)

    def learn(self, data: bytes) -> None:
        """Send a request by the slow path, so that the next one with its head takes the fast path."""
        self.connection.data_received(data)
        if self.app.waiting:
            self.app.waiting.pop().resolve(Response(200, b"{}"))
        self.transport.writes.clear()
        assert self.connection.pipeline.state is IDLE


async def turns_until(look: Callable[[], bool]) -> None:
    """Let the event loop run until `look` returns True; fail after 100 turns."""
    for _ in range(100):
        if look():
            return
        await asyncio.sleep(0)
    pytest.fail("nothing happened in 100 turns of the event loop")


@pytest.fixture
def loop():
    with asyncio.Runner() as runner:
        yield runner


def test_requests_of_one_read_are_answered_with_one_write(loop):
    async def scenario() -> None:
        world = World()
        world.connection.data_received(request("/hello") * 16)
        [written] = world.transport.writes
        assert written.count(b'{"hello":"world"}') == 16

    loop.run(scenario())


def test_known_request_takes_the_fast_path_and_one_write(loop, monkeypatch):
    async def scenario() -> None:
        world = World()
        world.learn(request("/hello"))
        served = world.connection.served
        monkeypatch.setattr(Pipeline, "receive", None)  # only the fast path can answer
        world.connection.data_received(request("/hello"))
        assert len(world.transport.writes) == 1
        assert world.connection.served == served + 1

    loop.run(scenario())


def test_deferred_answer_of_the_fast_path_returns_to_idle(loop):
    async def scenario() -> None:
        world = World()
        world.learn(request("/later"))
        world.connection.data_received(request("/later"))
        assert world.connection.pipeline.state is AWAITING
        world.app.waiting[0].resolve(Response(200, b"late"))
        assert world.transport.writes[0].endswith(b"late")
        assert world.connection.pipeline.state is IDLE

    loop.run(scenario())


@pytest.mark.parametrize("how", ["timeout", "pause", "lost"])
def test_deferred_answer_of_the_fast_path_survives_what_comes_between(loop, how):
    async def scenario() -> None:
        world = World(write_timeout_ms=1000)
        connection, transport = world.connection, world.transport
        world.learn(request("/later"))
        connection.data_received(request("/later"))
        transport.unsent_bytes = 10  # of an answer before it
        if how == "timeout":
            connection.sweep(1.0)
            connection.sweep(9.0)
            assert transport.ended == "aborted"
        elif how == "pause":
            connection.pause_writing()
        else:
            connection.connection_lost(None)
        world.app.waiting[0].resolve(Response(200, b"late"))
        expected = {"timeout": ABORTED, "lost": CLOSED}
        if how in expected:
            assert connection.pipeline.state is expected[how]
        else:
            assert transport.writes[0].endswith(b"late")
            connection.resume_writing()
            assert connection.pipeline.state is IDLE

    loop.run(scenario())


def test_reading_stops_while_requests_are_parked_and_begins_again(loop):
    async def scenario() -> None:
        world = World(max_pipelined=1)
        world.connection.data_received(request("/later") * 2)
        world.connection.data_received(request("/hello"))
        assert not world.transport.reading
        for number in range(2):
            await turns_until(lambda number=number: len(world.app.waiting) > number)
            world.app.waiting[number].resolve(Response(200, b"{}"))
        await turns_until(lambda: b"".join(world.transport.writes).count(b"HTTP/1.1 200") == 3)
        assert world.transport.reading

    loop.run(scenario())


def test_handler_that_resolves_an_earlier_answer_does_not_reorder_them(loop):
    async def scenario() -> None:
        world = World()
        first = Deferred()

        def handle(asked: Request) -> Answer:
            if asked.path == b"/first":
                return first
            first.resolve(Response(200, b"one"))
            return Response(200, b"two")

        world.http.handle = handle
        world.connection.data_received(request("/first") + request("/second"))
        [written] = world.transport.writes
        assert written.index(b"one") < written.index(b"two")

    loop.run(scenario())


def test_last_answer_shuts_the_side_of_the_server_when_input_may_follow(loop):
    async def scenario() -> None:
        world = World()
        world.connection.data_received(request("/hello", "Connection: close") + bytes(20_000))
        assert world.transport.writes[-1] == b"EOF"
        assert (world.transport.ended, world.transport.reading) == ("", True)
        world.connection.data_received(bytes(100))
        assert len(world.transport.writes) == 2

    loop.run(scenario())


def test_kept_head_belongs_to_its_size_status_and_date(loop):
    async def scenario() -> None:
        world = World()
        world.learn(request("/hello"))
        answers = world.http.answers
        answers._clock = lambda: 0.0
        answers.refresh()
        world.learn(request("/hello"))  # the pipeline answers first, and makes the head
        connection, written = world.connection, world.transport.writes
        for answer in (Response(200, b"[1]"), Response(200, b"[2]"), Response(200, b"[34]"), Response(201, b"[5]")):
            connection._answer = lambda _, answer=answer: answer
            connection.data_received(request("/hello"))
            head, _, body = written.pop().partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 %d " % answer.status)
            assert b"\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n" in head
            assert head.endswith(b"\r\ncontent-length: %d" % len(answer.body))
            assert body == answer.body
        assert {3, 4} <= set(answers.usual)
        answers._clock = lambda: 1.0
        answers.refresh()
        connection._answer = lambda _: Response(200, b"[1]")
        connection.data_received(request("/hello"))
        assert b"\r\ndate: Thu, 01 Jan 1970 00:00:01 GMT\r\n" in written.pop()

    loop.run(scenario())
