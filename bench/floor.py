"""The bare floor: what uvloop + httptools + asyncio.Protocol do at best, with no engine behind them.

    python floor.py PORT BODY_BYTES

Every request is answered with the same body of BODY_BYTES.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import httptools
import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


class Connection(asyncio.Protocol):
    """Parses requests and answers each with the same bytes."""

    answer = b""

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
        self.transport.write(self.answer)


async def serve(port: int, body_bytes: int) -> None:
    Connection.answer = HEAD % body_bytes + b"x" * body_bytes
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
