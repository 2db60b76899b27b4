"""The client's bulk read: runs, gaps, one end; after a broken connection it continues after the last complete piece."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.conftest import StartServer
from topics.client import Client, raw
from topics.client.errors import Unreachable
from topics.client.request import End, Tombstone
from topics.errors import Code, TopicsError
from topics.model.records import Projection
from topics.storage.segments import record_run as runs
from topics.storage.segments.record_run import Run

RECORD = {"data": "x" * 500}


def seqs(found: list[Any]) -> list[int]:
    lines = [line for run in found if isinstance(run, Run) for line in runs.lines(run, Projection()).splitlines()]
    return [json.loads(line)["$seq"] for line in lines]


@contextmanager
def cutting(port: int, *, after_bytes: list[int]) -> Iterator[str]:
    """A way to the server that breaks: each connection after so many bytes of its answer, the last ones never."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            with near, socket.create_connection(("127.0.0.1", port)) as far:
                far.sendall(_request(near))
                left = after_bytes.pop(0) if after_bytes else 1 << 60
                while left > 0 and (data := far.recv(min(left, 1 << 16))):
                    near.sendall(data)
                    left -= len(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def _request(near: socket.socket) -> bytes:
    data = near.recv(1 << 16)
    while not data.endswith(b"}"):  # the body may arrive after the head
        data += near.recv(1 << 16)
    return data


def test_scan_yields_runs_and_gaps_and_an_end(start_server: StartServer):
    server = start_server()
    with Client(server.url) as client:
        client.put_topic("t", cap_records=1500)
        for _ in range(4):
            client.append("t", [RECORD] * 500)
        gap, *found, end = client.scan("t")
        assert isinstance(gap, Tombstone)
        assert (gap.gap_from, gap.gap_to, gap.reason) == (1, 500, "cap")
        assert seqs(found) == list(range(501, 2001))
        assert end == End(2000, 2000, 501, client.topic("t").epoch)
        assert client.topic("t").count == 1500  # the same client is free for other calls


def test_broken_scan_continues_after_last_complete_piece(start_server: StartServer):
    server = start_server()
    with Client(server.url) as client:
        for _ in range(6):
            client.append("t", [RECORD] * 1000)
    with cutting(server.port, after_bytes=[10, 300, 450_000, 1_000_000, 10]) as url, Client(url) as client:
        *found, end = client.scan("t")
        assert seqs(found) == list(range(1, 6001))
        assert isinstance(end, End)


def test_scan_gives_up_when_every_connection_breaks(start_server: StartServer):
    server = start_server()
    with Client(server.url) as client:
        client.append("t", [RECORD])
    with cutting(server.port, after_bytes=[50] * 50) as url, Client(url, retries=2) as client:
        with pytest.raises(Unreachable):
            list(client.scan("t"))


def test_answer_without_end_is_incomplete(start_server: StartServer):
    server = start_server()
    with Client(server.url) as client:
        client.append("t", [RECORD] * 10)
        whole = b"".join(_body(server.port))
    for cut in range(len(whole)):
        take = _taker(whole[:cut])
        with pytest.raises(raw.CutOff):
            list(raw.read_pieces(take, source="test"))
    assert isinstance(list(raw.read_pieces(_taker(whole), source="test"))[-1], End)


def _body(port: int) -> Iterator[bytes]:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        accept = b"application/vnd.topics.segments"
        sock.sendall(
            b"POST /v0/topics/t/scan HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: %b\r\ncontent-length: 0\r\n\r\n" % accept
        )
        data = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    yield data.partition(b"\r\n\r\n")[2]


def _taker(data: bytes) -> Any:
    left = memoryview(data)

    def take(size: int) -> bytes:
        nonlocal left
        found, left = bytes(left[:size]), left[size:]
        return found

    return take


def test_stopping_server_is_retried_and_missing_topic_is_not(start_server: StartServer):
    server = start_server()
    with Client(server.url, retries=1) as client:
        with pytest.raises(TopicsError) as caught:
            list(client.scan("nowhere"))
        assert caught.value.code is Code.TOPIC_NOT_FOUND


def test_unknown_piece_kind_is_ignored():
    end = json.dumps({"end": {"next_from_seq": 1, "head_seq": 1, "earliest_seq": 1, "epoch": 5}}).encode()
    known = len(end).to_bytes(4, "little") + (2).to_bytes(4, "little") + end
    unknown = (3).to_bytes(4, "little") + (99).to_bytes(4, "little") + b"abc"
    assert list(raw.read_pieces(_taker(unknown + known), source="test")) == [End(1, 1, 1, 5)]
