"""Workers of a queue, all in one process: claim, ack the claimed jobs, and repeat until the queue is empty.

The same loop drives all servers, so that what the client costs is on both sides of the ratio. Only what a
worker has to know of an answer is looked at: the seqs, and where it ends.
"""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Sequence
from typing import Protocol

import resp
from payload import post

_seqs = re.compile(rb'"\$seq":(\d+)').findall
_ids = re.compile(rb"\r\n(\d+-\d+)\r\n").findall
LINES_BEFORE_ENTRIES = 5  # *1, *2, $1, name, *N
LINES_AN_ENTRY = 12  # *2, the id, *4, and two names with their values, each a bulk string


class Dialect(Protocol):
    """The requests of one server to claim jobs and to ack them."""

    def claim(self) -> bytes: ...

    def claimed(self, answer: bytes) -> list[bytes] | None:
        """Return the jobs in a complete answer, or None if it is incomplete."""

    def ack(self, jobs: list[bytes]) -> bytes: ...

    def acked(self, answer: bytes) -> bool:
        """Return whether the answer to an ack is complete. Raise if it is not a success."""


class Topics:
    def __init__(self, topic: str, batch: int) -> None:
        self._claim = post(f"/v0/topics/{topic}/claim", b'{"node":"bench","max":%d}' % batch)
        self._path = f"/v0/topics/{topic}/ack"

    def claim(self) -> bytes:
        return self._claim

    def claimed(self, answer: bytes) -> list[bytes] | None:
        return _seqs(answer) if _is_whole(answer) else None

    def ack(self, jobs: list[bytes]) -> bytes:
        return post(self._path, b'{"node":"bench","seqs":[%b]}' % b",".join(jobs))

    def acked(self, answer: bytes) -> bool:
        if not _is_whole(answer):
            return False
        if b'"skipped":[]' not in answer:
            raise RuntimeError(f"a job was not acked: {answer[-300:]!r}")
        return True


class RedisStream:
    """A consumer group: XREADGROUP, then XACK and XDEL in one write."""

    def __init__(self, stream: bytes, group: bytes, batch: int) -> None:
        self._names = stream, group
        self._claim = resp.command(
            b"XREADGROUP", b"GROUP", group, b"bench", b"COUNT", b"%d" % batch, b"STREAMS", stream, b">"
        )

    def claim(self) -> bytes:
        return self._claim

    def claimed(self, answer: bytes) -> list[bytes] | None:
        if answer == b"*-1\r\n":
            return []
        lines = answer.split(b"\r\n", LINES_BEFORE_ENTRIES)
        if len(lines) <= LINES_BEFORE_ENTRIES or not lines[4].startswith(b"*"):
            return None
        if answer.count(b"\n") < LINES_BEFORE_ENTRIES + LINES_AN_ENTRY * int(lines[4][1:]):
            return None
        return _ids(answer)

    def ack(self, jobs: list[bytes]) -> bytes:
        stream, group = self._names
        return resp.command(b"XACK", stream, group, *jobs) + resp.command(b"XDEL", stream, *jobs)

    def acked(self, answer: bytes) -> bool:
        if answer.count(b"\n") < 2:
            return False
        if not answer.startswith(b":"):
            raise RuntimeError(f"redis did not ack: {answer[:100]!r}")
        return True


def _is_whole(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"a worker was answered {answer[:300]!r}")
    size = int(head[head.lower().index(b"content-length:") + 15 :].split(b"\r\n", 1)[0])
    return len(body) >= size


class _Worker:
    def __init__(self, port: int, dialect: Dialect) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._dialect = dialect
        self._answer = b""
        self._jobs: list[bytes] = []
        self.done = 0

    def begin(self) -> None:
        self.socket.sendall(self._dialect.claim())

    def receive(self) -> bool:
        """Process the received bytes and send the next request. Return False if there is nothing left to do."""
        self._answer += self.socket.recv(1 << 18)
        if self._jobs:
            if self._dialect.acked(self._answer):
                self.done += len(self._jobs)
                self._jobs, self._answer = [], b""
                self.socket.sendall(self._dialect.claim())
            return True
        jobs = self._dialect.claimed(self._answer)
        if jobs is None:
            return True
        if jobs:
            self._jobs, self._answer = jobs, b""
            self.socket.sendall(self._dialect.ack(jobs))
        return bool(jobs)


def work_off(port: int, dialects: Sequence[Dialect], *, jobs: int) -> float:
    """Run one worker per dialect. Return the jobs per second until all are acked. Raise if one is missing."""
    crew = [_Worker(port, dialect) for dialect in dialects]
    waiting = selectors.DefaultSelector()
    started, busy = time.perf_counter(), len(crew)
    for worker in crew:
        waiting.register(worker.socket, selectors.EVENT_READ, worker)
        worker.begin()
    while busy:
        ready = waiting.select(60)
        if not ready:
            raise RuntimeError("no answer for a minute")
        for key, _ in ready:
            if not key.data.receive():
                waiting.unregister(key.fileobj)
                busy -= 1
    elapsed = time.perf_counter() - started
    for worker in crew:
        worker.socket.close()
    if (done := sum(worker.done for worker in crew)) != jobs:
        raise RuntimeError(f"{done} of {jobs} jobs were acked")
    return jobs / elapsed
