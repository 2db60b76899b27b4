"""A body in chunks of one byte does not make other clients wait."""

import socket
import time

from tests.conftest import StartServer

ROUNDS = 40


def test_flood_of_tiny_chunks_does_not_stop_the_others(start_server: StartServer) -> None:
    server = start_server()
    flood = socket.create_connection(("127.0.0.1", server.port))
    flood.settimeout(0.05)
    flood.sendall(
        b"POST /v0/topics/t HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    chunks = memoryview(b"1\r\n \r\n" * 20_000)
    polite = socket.create_connection(("127.0.0.1", server.port))
    polite.settimeout(30)
    answered, slowest_s, at = 0, 0.0, 0
    while answered < ROUNDS:
        try:
            at = (at + flood.send(chunks[at:])) % len(chunks)
        except TimeoutError:
            pass  # it is kept from sending more than its share
        began = time.monotonic()
        polite.sendall(b"GET /v0/health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b'"status":"ok"' in polite.recv(65_536)
        slowest_s = max(slowest_s, time.monotonic() - began)
        answered += 1
    flood.close()
    polite.close()
    assert slowest_s < 2, "the server parsed one client's chunks and nothing else"
