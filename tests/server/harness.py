"""A real server in a thread, a small application to serve, and raw sockets to talk to it."""

import asyncio
import concurrent.futures
import json
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import uvloop

from topics.server.http.http1.connection import Connection
from topics.server.http.http1.intake import TURN_NS
from topics.server.http.http_limits import HttpLimits
from topics.server.http.messages import Answer, App, Deferred, Request, Response, Sink, Stream, Upgrade
from topics.server.http.server import HttpServer

T = TypeVar("T")
WAIT_S = 10


class FakeApp(App):
    """Answers by path. Reports what happens to it through `events`."""

    def __init__(self) -> None:
        self.events: queue.Queue[Any] = queue.Queue()
        self.waiting: list[Deferred] = []
        self.handled = self.abandoned = 0

    def admit(self, request: Request, content_length: int | None) -> Response | None:
        if request.path == b"/refuse":
            return Response(401, b'{"error":{"code":"unauthorized"}}')
        if request.path == b"/admit-boom":
            raise RuntimeError("admit")
        return None

    def abandon(self, request: Request) -> None:
        self.abandoned += 1

    def handle(self, request: Request) -> Answer:
        self.handled += 1
        name = request.path.strip(b"/").replace(b"-", b"_").decode() or "hello"
        method: Callable[[Request], Answer] = getattr(self, f"on_{name}", self.on_hello)
        return method(request)

    def on_hello(self, request: Request) -> Answer:
        return Response(200, b'{"hello":"world"}')

    def on_echo(self, request: Request) -> Answer:
        return Response(200, request.body, b"application/octet-stream")

    def on_describe(self, request: Request) -> Answer:
        headers = {name.decode(): value.decode("latin-1") for name, value in request.headers.items()}
        about = {"method": request.method, "query": request.query.decode(), "headers": headers, "peer": request.peer}
        return Response(200, json.dumps(about | {"body": len(request.body)}).encode())

    def on_count(self, request: Request) -> Answer:
        return Response(200, b"%d" % len(request.body))

    def on_later(self, request: Request) -> Answer:
        later = Deferred(on_cancel=lambda: self.events.put(("cancelled", request.query)))
        self.waiting.append(later)
        self.events.put(("waiting", request.query))
        return later

    def on_soon(self, request: Request) -> Answer:
        soon = Deferred()
        asyncio.get_running_loop().call_soon(soon.resolve, Response(200, b"soon " + request.query))
        return soon

    def on_mark(self, request: Request) -> Answer:
        asyncio.get_running_loop().call_soon(lambda: self.events.put(("next turn", self.handled)))
        return Response(200, b"{}")

    def on_slow(self, request: Request) -> Answer:
        time.sleep(TURN_NS / 1e9)
        return Response(200, b"{}")

    def on_large(self, request: Request) -> Answer:
        return Response(200, b"x" * int(request.query))

    def on_parts(self, request: Request) -> Answer:
        return Response(200, [b'{"records":[', memoryview(b"1," * 40_000)[:-1], b"]}"])

    def on_json(self, request: Request) -> Answer:
        return Response(200, json.dumps(["word"] * int(request.query)).encode())

    def on_empty(self, request: Request) -> Answer:
        return Response(204, b"", b"")

    def on_boom(self, request: Request) -> Answer:
        raise RuntimeError("secret payload " + request.body.decode())

    def on_bad_field(self, request: Request) -> Answer:
        return Response(200, b"", headers=((b"x", b"a\r\nb: c"),))

    def on_stream(self, request: Request) -> Answer:
        return FakeStream(self)

    def on_upgrade(self, request: Request) -> Answer:
        if b"upgrade" not in request.headers:
            return Response(400, b"{}")
        return FakeUpgrade(self)


class FakeStream(Stream):
    def __init__(self, app: FakeApp) -> None:
        super().__init__(Response(200, b"", b"text/event-stream", ((b"cache-control", b"no-store"),)))
        self._app = app
        self.sink: Sink | None = None

    def opened(self, sink: Sink) -> None:
        self.sink = sink
        sink.write(b"event: hello\n\n")
        self._app.events.put(("opened", self))

    def drained(self) -> None:
        self._app.events.put(("drained", self))

    def closed(self) -> None:
        self._app.events.put(("closed", self))


class FakeUpgrade(Upgrade):
    def __init__(self, app: FakeApp) -> None:
        super().__init__(Response(101, b"", b"", ((b"upgrade", b"echo"),)))
        self._app = app
        self.sink: Sink | None = None

    def opened(self, sink: Sink) -> None:
        self.sink = sink

    def received(self, data: bytes) -> None:
        assert self.sink is not None
        if data == b"boom":
            raise RuntimeError("received")
        self.sink.write(data.upper())

    def closed(self) -> None:
        self._app.events.put(("closed", self))


class Answered:
    """An answer as a client read it."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.fields = headers
        self.headers = dict(headers)
        self.body = body

    @property
    def code(self) -> str:
        described = json.loads(self.body)
        assert isinstance(described["performance"]["server_total_ms"], float)
        code: str = described["error"]["code"]
        return code


class Client:
    """A raw socket that reads answers."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.sock = socket.socket()
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(WAIT_S)
        try:
            self.sock.connect(("127.0.0.1", port))
        except OSError:
            self.sock.close()
            raise
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.unread = b""

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def get(self, path: str, *fields: str, method: str = "GET") -> Answered:
        self.send(request(path, *fields, method=method))
        return self.answer(bodiless=method == "HEAD")

    def post(self, path: str, body: bytes, *fields: str) -> Answered:
        self.send(request(path, *fields, method="POST", body=body))
        return self.answer()

    def until(self, mark: bytes) -> bytes:
        while mark not in self.unread:
            more = self.sock.recv(1 << 16)
            if not more:
                raise EOFError(self.unread)
            self.unread += more
        found, _, self.unread = self.unread.partition(mark)
        return found + mark

    def exactly(self, size: int) -> bytes:
        pieces, have = [self.unread], len(self.unread)
        while have < size:
            more = self.sock.recv(1 << 20)
            if not more:
                raise EOFError(b"".join(pieces))
            pieces.append(more)
            have += len(more)
        data = b"".join(pieces)
        self.unread = data[size:]
        return data[:size]

    def answer(self, *, bodiless: bool = False) -> Answered:
        lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ")[1])
        headers = [(name, value) for name, _, value in (line.partition(": ") for line in lines[1:-2])]
        described = dict(headers)
        size = 0 if bodiless or status < 200 else int(described.get("content-length", "0"))
        return Answered(status, headers, self.exactly(size))

    def rest(self) -> bytes:
        """Return everything until the server closes its side."""
        while more := self.sock.recv(1 << 16):
            self.unread += more
        rest, self.unread = self.unread, b""
        return rest


def request(path: str, *fields: str, method: str = "GET", body: bytes | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *fields]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class Harness:
    """`HttpServer` on its own event loop in its own thread."""

    def __init__(self, app: App, limits: HttpLimits) -> None:
        self.http = HttpServer(app, limits)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._listener: asyncio.AbstractServer = self.wait(self._listen())
        self.port: int = self._listener.sockets[0].getsockname()[1]

    async def _listen(self) -> asyncio.AbstractServer:
        return await self._loop.create_server(lambda: Connection(self.http), "127.0.0.1", 0, backlog=2048)

    def connect(self, **options: Any) -> Client:
        return Client(self.port, **options)

    def wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def call(self, work: Callable[[], T]) -> T:
        """Run a function on the loop's thread."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(work()))
        return done.result(WAIT_S)

    def wait_until(self, look: Callable[[], Any], expected: Any = True) -> None:
        """Call `look` on the loop's thread until it returns `expected`. Fail with the last value after `WAIT_S`."""
        deadline = time.monotonic() + WAIT_S
        while (seen := self.call(look)) != expected:
            assert time.monotonic() < deadline, f"{seen!r} and not {expected!r} after {WAIT_S} s"

    def drain(self, timeout_ms: int = 5000) -> int:
        self._listener.close()
        left: int = self.wait(self.http.drain(timeout_ms))
        return left

    def start_drain(self, timeout_ms: int = 5000) -> "concurrent.futures.Future[int]":
        """Begin a drain, and return when the server is draining."""
        self.call(self._listener.close)
        drained = asyncio.run_coroutine_threadsafe(self.http.drain(timeout_ms), self._loop)
        self.wait_until(lambda: self.http.draining)
        return drained

    def stop(self) -> None:
        self.call(self._listener.close)
        self.wait(self.http.drain(0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()


if __name__ == "__main__":
    # A server in its own process, for tests that measure its memory. It prints its port and ends with its input.
    harness = Harness(FakeApp(), HttpLimits())
    print(harness.port, flush=True)
    sys.stdin.read()
    harness.stop()
