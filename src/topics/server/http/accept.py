"""Accepts connections on one listening socket, as long as the server has room for another.

The event loop's own server accepts every connection of the backlog in one turn, and reports one with TLS only after its
handshake. Until then such connections would be in no limit, and a flood of them could take the descriptors of files.
"""

import asyncio
import socket
from typing import Any

from topics.server.http.server import HttpServer
from topics.server.http.tls import Certificate

_ACCEPTED_AT_ONCE = 32  # connections that are accepted in one turn of the loop
_TRY_AGAIN_S = 0.02  # pause when there is no room, or when the system cannot accept
TLS_CLOSE_S = 5.0  # how long a closed connection waits for the client's end of TLS


class Acceptor:
    """Passes new connections to an `HttpServer`. The clients that it has no room for wait in the backlog."""

    def __init__(self, http: HttpServer, sock: socket.socket, certificate: Certificate | None) -> None:
        self._http = http
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.TimerHandle | None = None
        self._tls: dict[str, Any] = {}
        if certificate is not None:
            self._tls = {
                "ssl": certificate.context,
                "ssl_handshake_timeout": http.limits.header_timeout_ms / 1000,
                "ssl_shutdown_timeout": TLS_CLOSE_S,
            }
        self._begin()

    def close(self) -> None:
        """Stop listening."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _begin(self) -> None:
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        try:
            for _ in range(_ACCEPTED_AT_ONCE):
                if not self._http.has_room():
                    if not self._http.make_room():
                        self._pause()
                    return
                self._http.accept(self._sock.accept()[0], self._tls)
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # the backlog is empty, or a client has left it
        except OSError:
            self._pause()  # the system lacks descriptors or memory

    def _pause(self) -> None:
        self._loop.remove_reader(self._sock)
        self._waiting = self._loop.call_later(_TRY_AGAIN_S, self._begin)
