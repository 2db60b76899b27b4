"""The part of the NATS protocol that the rows need: streams, publishing with acks, a pull consumer, subscriptions."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

from inflight import connect, keep_in_flight
from payload import record

ACK = b'"seq":'
HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
FILL_DEPTH = 500
_acks = re.compile(rb"^MSG \S+ \d+ (\$JS\.ACK\.\S+) \d+\r\n", re.MULTILINE).findall
_header = re.compile(rb"^MSG \S+ \d+ (?:\S+ )?(\d+)\r\n", re.MULTILINE)


def publisher(port: int, number: int = 0) -> socket.socket:
    """Return a connection that gets the answers to `_INBOX.<number>.*`."""
    return connect(port, _hello(number))


def subscriber(port: int, subject: bytes) -> socket.socket:
    """Return a connection that gets the messages of a subject as they are stored. `PONG` follows the subscription."""
    return connect(port, HELLO + b"SUB %b 1\r\nPING\r\n" % subject)


def _hello(number: int) -> bytes:
    return HELLO + b"SUB _INBOX.%d.* 1\r\n" % number


def publishes(subject: bytes, number: int = 0) -> Iterator[bytes]:
    """Yield publishes of one record, each with a reply subject of its own, as clients do to match acks."""
    body = record()
    form = b"PUB %b _INBOX.%d.%%d %d\r\n" % (subject, number, len(body))
    tail = body + b"\r\n"
    return (form % message + tail for message in count())


def ask(port: int, subject: str, **body: Any) -> dict[str, Any]:
    """Return the answer of the API of JetStream. Raise if it is an error."""
    payload = json.dumps(body).encode()
    answer = b""
    with publisher(port) as link:
        link.sendall(b"PUB $JS.API.%b _INBOX.0.0 %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))
        while (found := _header.search(answer)) is None or len(answer) < found.end() + int(found[1]):
            piece = link.recv(1 << 16)
            if not piece or b"HMSG" in piece:
                raise RuntimeError(f"nats-server did not answer {subject}: {(answer + piece)[-200:]!r}")
            answer += piece
    decoded: dict[str, Any] = json.loads(answer[found.end() : found.end() + int(found[1])])
    if "error" in decoded:
        raise RuntimeError(f"{subject}: {decoded['error']}")
    return decoded


def is_ready(port: int) -> bool:
    try:
        ask(port, "INFO")
    except (OSError, RuntimeError):
        return False
    return True


def create_stream(port: int, name: str, **config: Any) -> None:
    ask(port, f"STREAM.CREATE.{name}", name=name, subjects=[name], storage="file", **config)


def messages_in(port: int, name: str) -> int:
    return int(ask(port, f"STREAM.INFO.{name}")["state"]["messages"])


def fill_queue(port: int, name: str, total: int) -> None:
    """Create a stream whose acked messages are removed, with `total` messages and a pull consumer `w`. An empty stream
    of an earlier round is kept."""
    create_stream(port, name, retention="workqueue")
    with publisher(port) as link:
        keep_in_flight([(link, islice(publishes(name.encode()), total))], ACK, depth=FILL_DEPTH)
    config = {"name": "w", "durable_name": "w", "ack_policy": "explicit", "max_ack_pending": -1}
    ask(port, f"CONSUMER.CREATE.{name}.w", stream_name=name, config=config)


class PullConsumer:
    """One worker of the queue: a pull of a batch, then an ack of each message. The last ack asks for an answer, which
    the server sends after it has processed those before it."""

    def __init__(self, stream: bytes, batch: int, number: int) -> None:
        body = b'{"batch":%d,"no_wait":true}' % batch
        self._claim = b"PUB $JS.API.CONSUMER.MSG.NEXT.%b.w _INBOX.%d.pull %d\r\n%b\r\n" % (
            stream, number, len(body), body,
        )  # fmt: skip
        self._hello = _hello(number)
        self._batch = batch
        self._payload = record() + b"\r\n"
        self._answer_to = b"_INBOX.%d.ack" % number

    def claim(self) -> bytes:
        hello, self._hello = self._hello, b""
        return hello + self._claim

    def claimed(self, answer: bytes) -> list[bytes] | None:
        """Return the reply subjects, which an ack is sent to. A pull ends with the batch, or with a status."""
        ended = b"HMSG" in answer and b"\r\n\r\n\r\n" in answer
        return _acks(answer) if ended or answer.count(self._payload) == self._batch else None

    def ack(self, jobs: list[bytes]) -> bytes:
        *others, last = jobs
        quiet = b"".join(b"PUB %b 4\r\n+ACK\r\n" % job for job in others)
        return quiet + b"PUB %b %b 4\r\n+ACK\r\n" % (last, self._answer_to)

    def acked(self, answer: bytes) -> bool:
        if b"-ERR" in answer or b"HMSG" in answer:
            raise RuntimeError(f"nats-server did not ack: {answer[:200]!r}")
        return self._answer_to + b" 1 0\r\n\r\n" in answer
