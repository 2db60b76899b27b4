"""The bare floor of the latencies: the least that a server on this stack does for a write that must be on the disk, or
that another connection waits for.

    python relay.py PORT FILE

A POST to `/sync` is written to FILE, synced and answered. A POST to any other path is answered, and its body goes to
the connections that have sent a GET. All of it happens in the event loop, with nothing between.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import ClassVar, cast

import httptools
import uvloop

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
ANSWER = HEAD + b"200\r\n\r\n" + b"x" * 200
FILE_BYTES = 64 << 20


class Connection(asyncio.Protocol):
    """Answers writes, and sends them on to the watchers."""

    file = -1
    at = 0
    watchers: ClassVar[set[asyncio.Transport]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not registered as one
        self.parser = httptools.HttpRequestParser(self)
        self.body = self.url = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self.watchers.discard(self.transport)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_body(self, body: bytes) -> None:
        self.body = body

    def on_message_complete(self) -> None:
        if self.parser.get_method() == b"GET" and self.url == b"/watch":
            self.watchers.add(self.transport)
            self.transport.write(HEAD[:17] + b"\r\n")
            return
        if self.url == b"/sync":
            os.pwrite(self.file, self.body, Connection.at)
            os.fdatasync(self.file)
            Connection.at = (Connection.at + len(self.body)) % FILE_BYTES
        self.transport.write(ANSWER)
        for watcher in self.watchers:
            watcher.write(self.body)


async def serve(port: int, path: str) -> None:
    Connection.file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(Connection.file, 0, FILE_BYTES + (1 << 16))
    os.fsync(Connection.file)
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2]))
