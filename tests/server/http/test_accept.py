"""Accepting: a burst of connections never takes more sockets than the limits allow."""

import asyncio
import os
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import uvloop

from tests.server.harness import FakeApp
from topics.server.http.http_limits import HttpLimits
from topics.server.http.server import Acceptor, HttpServer
from topics.server.http.tls import Certificate
from topics.server.run import bind

CERTS = Path(__file__).parent / "certs"
BURST = 60
WAIT_S = 10
LIMITS = HttpLimits(max_connections=4, max_refused=8, linger_timeout_ms=20, header_timeout_ms=200, idle_timeout_ms=200)


async def most_sockets(certificate: Certificate | None) -> int:
    """Return how many sockets were open at most while a server took a burst of connections from its backlog."""
    [sock] = bind("127.0.0.1", 0)
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(sock.getsockname())) for _ in range(BURST)]
        for client in clients:
            client.setblocking(False)
        before = most = _sockets()
        http = HttpServer(FakeApp(), LIMITS)
        acceptor = Acceptor(http, sock, certificate)
        async with asyncio.timeout(WAIT_S):
            while not all(map(_ended, clients)):
                most = max(most, _sockets())
                await asyncio.sleep(0)
        acceptor.close()
        await http.drain(0)
        assert http.budget.charged_bytes == 0
    return most - before


def _sockets() -> int:
    """Return how many sockets this process has."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # of `listdir` itself
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


def _ended(client: socket.socket) -> bool:
    """Return whether the server has closed a connection."""
    try:
        return client.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("tls", [False, True])
def test_burst_takes_no_more_sockets_than_the_limits_allow(tls: bool):
    certificate = Certificate(CERTS / "one.pem", CERTS / "one.key") if tls else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(most_sockets(certificate)) <= LIMITS.max_connections + LIMITS.max_refused


def test_accepting_goes_on_after_the_system_had_no_descriptors():
    async def serve() -> bytes:
        loop = asyncio.get_running_loop()
        [sock] = bind("127.0.0.1", 0)
        failing = FailingSocket(fileno=sock.detach())
        acceptor = Acceptor(http := HttpServer(FakeApp(), LIMITS), failing, None)
        with socket.create_connection(failing.getsockname()) as client:
            client.setblocking(False)
            await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
            async with asyncio.timeout(WAIT_S):
                answer = await loop.sock_recv(client, 1 << 16)
        acceptor.close()
        await http.drain(0)
        assert failing.failures == 0
        return answer

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(serve()).startswith(b"HTTP/1.1 ")


class FailingSocket(socket.socket):
    """A listening socket for which the system has no descriptor at first."""

    failures = 3

    def accept(self):
        if self.failures:
            self.failures -= 1
            raise OSError(24, "Too many open files")
        return super().accept()
