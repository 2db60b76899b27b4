"""The bare floor: the best rate of uvloop + httptools + asyncio.Protocol without an engine.

    python floor.py PORT BODY_BYTES [SPREAD_BYTES]

Every request is answered with a body of BODY_BYTES: always the same bytes, or bytes from anywhere in a stretch of
SPREAD_BYTES of memory, which shows what it costs that no cache holds them.
"""

from __future__ import annotations

import asyncio
import mmap
import random
import sys
from typing import cast

import httptools
import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


class Connection(asyncio.Protocol):
    """Parses requests and sends the same bytes as every answer."""

    answer = b""
    head = b""
    body_bytes = 0
    spread = memoryview(b"")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not registered as one
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_body(self, body: bytes) -> None:
        self.body = body

    def on_message_complete(self) -> None:
        if not self.spread:
            self.transport.write(self.answer)
            return
        at = int(random.random() * (len(self.spread) - self.body_bytes))
        self.transport.writelines([self.head, self.spread[at : at + self.body_bytes]])


async def serve(port: int, body_bytes: int, spread_bytes: int) -> None:
    Connection.head, Connection.body_bytes = HEAD % body_bytes, body_bytes
    Connection.answer = Connection.head + b"x" * body_bytes
    if spread_bytes:
        memory = mmap.mmap(-1, spread_bytes)
        for at in range(0, spread_bytes, body_bytes):
            memory[at : at + body_bytes] = b"x" * min(body_bytes, spread_bytes - at)
        Connection.spread = memoryview(memory)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0))
