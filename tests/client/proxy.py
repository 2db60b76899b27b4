"""A TCP proxy that cuts connections, to see what clients make of it."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextlib import suppress


class CuttingProxy:
    """Forwards to a server, and cuts each connection after a random number of bytes if `cut` says so.

    The cut can hit a request on its way or the answer on its way back: then the server has done its work, and the
    client does not know.
    """

    def __init__(
        self, target_port: Callable[[], int], *, seed: int, cut_one_in: int = 3, upto_bytes: int = 4000
    ) -> None:
        self._target_port = target_port
        self._random = random.Random(seed)
        self._cut_one_in = cut_one_in
        self._upto_bytes = upto_bytes
        self.cuts = 0
        self.full_answers = 0  # reads with a refusal of a full topic in them
        self.quiet = False  # forwards everything from now on
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> CuttingProxy:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _run(self) -> None:
        async def serve() -> None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]
            self._started.set()

        self._loop.run_until_complete(serve())
        self._loop.run_forever()
        self._server.close()
        self._loop.run_until_complete(self._end(asyncio.all_tasks(self._loop)))
        self._loop.close()

    async def _end(self, left: set[asyncio.Task[None]]) -> None:
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)  # transports that were aborted close in the next turn

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cut = not self.quiet and self._random.randrange(self._cut_one_in) == 0
        left = [self._random.randrange(self._upto_bytes) if cut else 1 << 62]
        try:
            upstream, downstream = await asyncio.open_connection("127.0.0.1", self._target_port())
        except OSError:
            writer.transport.abort()
            return
        pipes = [
            asyncio.ensure_future(self._pipe(reader, downstream, left)),
            asyncio.ensure_future(self._pipe(upstream, writer, left)),
        ]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pipe in pipes:
                pipe.cancel()
            for transport in (writer.transport, downstream.transport):
                transport.abort()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int]) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                self.full_answers += b'"topic_full"' in data
                writer.write(data[: max(left[0], 0)])
                left[0] -= len(data)
                if left[0] <= 0:
                    self.cuts += 1
                    return
                await writer.drain()
