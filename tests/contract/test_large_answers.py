"""Large answers that go from a file to the socket without a copy equal all other answers."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import WAIT_S, ServerProcess

RECORDS = 3_000
SEGMENT = 1_000  # records per segment, so that answers start and end inside segments and span several


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory: Path = tmp_path_factory.mktemp("large")
    server = ServerProcess(directory, {"data_dir": directory / "data", "segment_max_events": SEGMENT})
    for topic in ("whole", "holes"):
        for first in range(0, RECORDS, 500):
            rows = [
                {"data": {"n": n, "text": "x" * 150}, "tag": "gone" if n % 97 == 0 else "kept"}
                for n in range(first, first + 500)
            ]
            send(server, topic, "", {"records": rows})
    send(server, "holes", "/delete", {"match": "gone"})
    yield server
    server.stop()


def send(server: ServerProcess, topic: str, verb: str, body: dict, **headers: str) -> dict:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    try:
        connection.request(
            "POST", f"/v0/topics/{topic}{verb}", json.dumps(body), {"content-type": "application/json", **headers}
        )
        response = connection.getresponse()
        answer = response.read()
        assert response.status < 300, answer
        return json.loads(gzip.decompress(answer) if response.getheader("content-encoding") == "gzip" else answer)
    finally:
        connection.close()


def without_time(answer: dict) -> dict:
    return {key: value for key, value in answer.items() if key != "performance"}


@pytest.mark.parametrize("topic", ["whole", "holes"])
@pytest.mark.parametrize("extra", [{}, {"include_tags": True}, {"filter": "kept"}, {"node": "nobody"}])
def test_mapped_answer_equals_copied_answer(server: ServerProcess, topic: str, extra: dict):
    for from_seq in (0, 1, 350, 500, 999, 1_000, 1_700, 2_100, 2_500):
        wanted = {"from_seq": from_seq, "limit": 800, **extra}
        for _ in range(2):  # the first read verifies checksums, the second can be mapped
            lent = send(server, topic, "/diff", wanted)
            packed = send(server, topic, "/diff", wanted, **{"accept-encoding": "gzip"})
            assert without_time(lent) == without_time(packed)
        kept = [n + 1 for n in range(from_seq, RECORDS) if topic == "whole" or n % 97]
        if "filter" in extra:
            kept = [seq for seq in kept if (seq - 1) % 97]
        assert [row["$seq"] for row in lent["records"]] == kept[:800]
        assert all(row["data"]["n"] == row["$seq"] - 1 for row in lent["records"])


def test_pipelined_answers_reach_a_slow_client_in_order(server: ServerProcess):
    starts = [0, 700, 2_000, 150, 1_300, 0] * 5
    fields = b"host: localhost\r\ncontent-type: application/json\r\ncontent-length: "
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        for from_seq in starts:
            body = b'{"from_seq":%d,"limit":1000}' % from_seq
            link.sendall(b"POST /v0/topics/whole/diff HTTP/1.1\r\n%b%d\r\n\r\n%b" % (fields, len(body), body))
        answers = link.makefile("rb")
        for from_seq in starts:
            size = 0
            while (line := answers.readline().strip()) != b"":
                if line.startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            answer = json.loads(answers.read(size))
            assert [row["$seq"] for row in answer["records"]] == list(range(from_seq + 1, from_seq + 1_001))
