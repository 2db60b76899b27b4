"""One request of the protocol: from our HTTP server to that of the SDK, whose tools ask our server again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

import httpx

from topics.client import AsyncTopics
from topics.mcp.tools import Tools, build
from topics.server.http.messages import Request, Response
from topics.server.loop.processes import Processes

Ask = Callable[[Request], Awaitable[Response]]
LOCAL = "http://localhost"


class Exchange:
    def __init__(self, ask: Ask, *, destructive: bool, processes: Processes) -> None:
        self._ask = ask
        self._client: ContextVar[AsyncTopics] = ContextVar("client")
        self._key: ContextVar[str | None] = ContextVar("key")
        url = processes.own_url()
        sql = None if url is None else lambda: (url, self._key.get())
        server = build(Tools(self._client.get, sql=sql, processes=processes), destructive=destructive)
        server.streamable_http_app(json_response=True, stateless_http=True)
        self._manager = server.session_manager

    async def begin(self) -> asyncio.Task[None]:
        """Start the tasks of the SDK. They run until the returned task is cancelled."""
        ready = asyncio.Event()

        async def run() -> None:
            async with self._manager.run():
                ready.set()
                await asyncio.Event().wait()

        task = asyncio.get_running_loop().create_task(run())
        await ready.wait()
        return task

    async def answer(self, request: Request) -> Response:
        status, content_type, parts = 500, b"application/json", [b""]
        received = False

        async def receive() -> dict[str, Any]:
            nonlocal received
            if received:
                await asyncio.Event().wait()  # the client is there until this is cancelled
            received = True
            return {"type": "http.request", "body": request.body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status, content_type
            if message["type"] == "http.response.start":
                status = message["status"]
                content_type = dict(message["headers"]).get(b"content-type", content_type)
            else:
                parts.append(message.get("body", b""))

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": request.method,
            "scheme": "http", "path": "/mcp", "raw_path": b"/mcp", "root_path": "", "query_string": b"",
            "headers": list(request.headers.items()), "client": None, "server": None,
        }  # fmt: skip
        async with AsyncTopics(LOCAL, retries=0, transport=_InProcess(self._ask, request)) as topics:
            self._client.set(topics)
            self._key.set(request.key)
            await self._manager.handle_request(scope, receive, send)
        return Response(status, b"".join(parts), content_type)


class _InProcess(httpx.AsyncBaseTransport):
    """Sends requests to the server of this process, with the key and the address of the agent."""

    def __init__(self, ask: Ask, agent: Request) -> None:
        self._ask, self._agent = ask, agent
        # A key may be for pages of some origins only.
        kept = {name: value for name, value in agent.headers.items() if name in (b"authorization", b"origin")}
        self._headers = kept | {b"host": b"localhost", b"content-type": b"application/json"}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path, _, query = request.url.raw_path.partition(b"?")
        body = await request.aread()
        asked = Request(request.method, path, query, self._headers, body, self._agent.peer, time.perf_counter_ns())
        answer = await self._ask(asked)
        content = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)
        headers = [(b"content-type", answer.content_type), *answer.headers]
        return httpx.Response(answer.status, headers=headers, content=content)
