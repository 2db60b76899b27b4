"""A small HTTP server whose answers a test decides."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, str], tuple[int, Any]]


class FakeServer:
    """Answers each request with the status and the JSON that `answer(method, path)` returns."""

    def __init__(self, answer: Answer) -> None:
        self.asked = 0
        self._open: list[Any] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                fake._open.append(self.connection)

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                fake.asked += 1
                status, value = answer(self.command, self.path)
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_DELETE = _answer

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Refuse connections, and end the open ones, as the end of a process does."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        for connection in self._open:
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)
