"""`POST /mcp` of a server: the protocol over HTTP, without sessions. The tools call the server within its process.

The SDK is imported with the first request, by a thread: that takes a second.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

from topics import logs
from topics.clock import Clock
from topics.config import Settings
from topics.errors import Code, TopicsError
from topics.server.access.operations import READ_OWN_RIGHTS
from topics.server.api.route import Call, Route
from topics.server.api.services import Services
from topics.server.app import TopicsApp
from topics.server.http.messages import Answer, Deferred, Request, Response, error_response

if TYPE_CHECKING:
    from topics.mcp.exchange import Exchange

log = logs.Log("mcp")


def build(settings: Settings, clock: Clock, loop: asyncio.AbstractEventLoop) -> TopicsApp:
    """Return a server that has `/mcp`, too."""
    endpoint = Endpoint(destructive=settings.mcp_destructive)
    app = TopicsApp(settings, clock, loop, more_routes=(Route("POST", "/mcp", endpoint.handle, READ_OWN_RIGHTS),))
    endpoint.app = app
    return app


class Endpoint:
    app: TopicsApp

    def __init__(self, *, destructive: bool) -> None:
        self._destructive = destructive
        self._exchange: asyncio.Task[Exchange] | None = None
        self._serving: set[asyncio.Task[Any]] = set()

    def handle(self, _: Services, call: Call) -> Answer:
        deferred = Deferred()
        task = asyncio.get_running_loop().create_task(self._serve(call.request, deferred))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        deferred.on_cancel = task.cancel
        return deferred

    async def _serve(self, request: Request, deferred: Deferred) -> None:
        try:
            if self._exchange is None:
                self._exchange = asyncio.get_running_loop().create_task(self._begin())
            answer = await (await asyncio.shield(self._exchange)).answer(request)
        except Exception as error:
            log.failure("mcp_failed", error)
            answer = error_response(TopicsError(Code.INTERNAL, "the request of the agent failed"))
        deferred.resolve(answer)

    async def _begin(self) -> Exchange:
        module = await asyncio.to_thread(import_module, "topics.mcp.exchange")
        processes = self.app.processes
        exchange: Exchange = module.Exchange(self._in_process, destructive=self._destructive, processes=processes)
        self._serving.add(await exchange.begin())
        return exchange

    async def _in_process(self, request: Request) -> Response:
        """Answer a request of a tool, as one of its client."""
        answer = self.app.answer(request)
        if isinstance(answer, Deferred):
            deferred, done = answer, asyncio.get_running_loop().create_future()
            deferred.then(done.set_result)
            try:
                answer = await done
            finally:
                deferred.cancel()
        assert isinstance(answer, Response), "no tool opens a stream"
        if answer.sent is not None:
            answer.sent()
        return answer
