"""An idle connection that the server has closed: the next request is sent once, on a new connection."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from topics.client import Client
from topics.client.errors import Unreachable

ANSWER = (
    b'{"topic":"t","first_seq":1,"last_seq":1,"head_seq":1,"count":1,"created":false,"deduped":false,'
    b'"performance":{"server_total_ms":0}}'
)


class ClosingServer:
    """Answers one request per connection, and closes it. `answers` says how many connections get an answer."""

    def __init__(self, answers: int) -> None:
        self.received = 0
        self.closed = threading.Semaphore(0)
        self._answers = answers
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            with connection:
                if not connection.recv(1 << 16):
                    return
                self.received += 1
                if self.received <= self._answers:
                    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    connection.sendall(head % len(ANSWER) + ANSWER)
            self.closed.release()

    def stop(self) -> None:
        socket.create_connection(self._listening.getsockname()).close()
        self._thread.join()
        self._listening.close()


@contextmanager
def closing_server(answers: int) -> Iterator[ClosingServer]:
    server = ClosingServer(answers)
    try:
        yield server
    finally:
        server.stop()


def test_append_after_an_idle_time_uses_a_new_connection():
    with closing_server(answers=3) as server, Client(server.url) as client:
        for sent in (1, 2, 3):
            assert client.append("t", [{"data": 1}]).count == 1
            assert server.closed.acquire(timeout=10)
            assert server.received == sent


def test_append_that_was_received_is_not_sent_again():
    with closing_server(answers=1) as server, Client(server.url) as client:
        client.append("t", [{"data": 1}])
        assert server.closed.acquire(timeout=10)
        with pytest.raises(Unreachable):
            client.append("t", [{"data": 2}])
        assert server.received == 2
