"""Many subscribers on one thread: event streams of topics, or channels of Redis, read as bytes and counted.

Subscribers do not parse, because their parsing would dominate the measurement. The arrival time is the kernel's time
stamp of a segment in the socket: many subscribers share one thread, and a time taken by the thread would include the
reads of all earlier subscribers.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import jetstream
import resp
from api import Api
from payload import DATA, TAG, post

SO_TIMESTAMPNS = 35  # linux/socket.h; the constant is not in Python's socket module
STAMP = struct.Struct("qq")
RECORD = b'"$seq":'
TIMED = b'"at":'
MESSAGE = b"$7\r\nmessage\r\n"
CHANNEL = b"c"
READ_BYTES = 1 << 18
OPEN_LIMIT_S = 60.0
SILENCE_S = 5.0  # after which nothing more is expected
SAMPLED = 50

TimedWriter = tuple[socket.socket, Callable[[bytes], bytes]]  # a connection, and the write of some data on it


@dataclass
class Received:
    """The received records of all subscribers: their number, and the arrival times of those with a write time."""

    records: int = 0
    latencies_ms: list[float] = field(default_factory=list)


class Subscribers:
    """Open connections in one poll set. `mark` occurs exactly once in every record on the wire."""

    def __init__(self, links: list[socket.socket], mark: bytes) -> None:
        self.links = {link.fileno(): link for link in links}
        self._mark = mark
        self._cut = dict.fromkeys(self.links, b"")  # the end of the last read: a mark may be in two pieces
        self._poll = select.epoll()
        for number in self.links:
            self._poll.register(number, select.EPOLLIN)

    def read(self, received: Received, *, wait_s: float) -> bool:
        """Read from every connection that has data. Return whether there was any."""
        ready = self._poll.poll(wait_s)
        keep = len(self._mark) - 1
        for number, _ in ready:
            data = self.links[number].recv(READ_BYTES)
            if not data:
                raise RuntimeError("a subscriber was cut off")
            received.records += (self._cut[number] + data).count(self._mark)
            self._cut[number] = data[-keep:]
        return bool(ready)

    def read_stamped(self, received: Received, *, wait_s: float) -> None:
        """The same for records with their write time, `"at":<ns>`. Here one write is one read."""
        for number, _ in self._poll.poll(wait_s):
            data, ancillary, _, _ = self.links[number].recvmsg(READ_BYTES, 64)
            arrived_ns = _stamp(ancillary)
            for piece in data.split(TIMED)[1:]:
                written_ns = int(piece[: piece.index(b"}")])
                received.records += 1
                received.latencies_ms.append((arrived_ns - written_ns) / 1e6)

    def ready(self, wait_s: float) -> bool:
        return bool(self._poll.poll(wait_s))

    def close(self) -> None:
        self._poll.close()
        for link in self.links.values():
            link.close()


def _stamp(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) >= STAMP.size:
            seconds, nanos = STAMP.unpack_from(data)
            return int(seconds) * 1_000_000_000 + int(nanos)
    raise RuntimeError("the kernel does not say when data arrived")


def watch(port: int, topic: str, count: int) -> Subscribers:
    """Open event streams, each with its own session, and wait until all have caught up."""
    return Subscribers(open_streams(port, topic, count), RECORD)


def open_streams(port: int, topic: str, count: int) -> list[socket.socket]:
    api, links = Api(port), []
    for _ in range(count):
        url = api.call("POST", "/v0/watch", {"topics": {topic: {"tail": True}}})["stream_url"]
        link = socket.create_connection(("127.0.0.1", port), timeout=OPEN_LIMIT_S)
        link.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        link.sendall(b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n" % url.encode())
        links.append(link)
    for link in links:
        _read_until(link, b"event: caught-up")
    return links


def open_relayed(port: int, count: int) -> list[socket.socket]:
    """Open connections to the floor (`relay.py`), which get the body of every write."""
    links = []
    for _ in range(count):
        link = socket.create_connection(("127.0.0.1", port), timeout=OPEN_LIMIT_S)
        link.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        link.sendall(b"GET /watch HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        links.append(link)
    for link in links:
        _read_until(link, b"\r\n")
    return links


def subscribe(port: int, count: int) -> Subscribers:
    """Open Redis subscribers, with output limits disabled: Redis would disconnect slow subscribers."""
    resp.ask(port, b"CONFIG", b"SET", b"client-output-buffer-limit", b"pubsub 0 0 0")
    links = []
    for _ in range(count):
        link = resp.connect(port)
        link.sendall(resp.command(b"SUBSCRIBE", CHANNEL))
        links.append(link)
    for link in links:
        _read_until(link, b":1\r\n")
    return Subscribers(links, MESSAGE)


def subscribe_nats(port: int, subject: bytes, count: int) -> Subscribers:
    return Subscribers(open_nats(port, subject, count), b"MSG %b 1 " % subject)


def open_nats(port: int, subject: bytes, count: int) -> list[socket.socket]:
    """Open connections with one subscription each, and wait until the server has all of them."""
    links = [jetstream.subscriber(port, subject) for _ in range(count)]
    for link in links:
        link.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        _read_until(link, b"PONG")
    return links


def _read_until(link: socket.socket, end: bytes) -> None:
    got = b""
    while end not in got:
        piece = link.recv(4096)
        if not piece:
            raise RuntimeError(f"a subscriber was refused: {got[:200]!r}")
        got += piece


# --- writers


def append_request(topic: str) -> bytes:
    body = b'{"records":[{"data":%b,"tag":"%b"}]}' % (DATA, TAG)
    return post(f"/v0/topics/{topic}?return_seqs=false", body)


def topics_writer(port: int, topic: str) -> TimedWriter:
    path = f"/v0/topics/{topic}?return_seqs=false"
    return resp.connect(port), lambda data: post(path, b'{"records":[{"data":%b}]}' % data)


def nats_writer(port: int, subject: bytes) -> TimedWriter:
    link = jetstream.publisher(port)
    link.sendall(b"PING\r\n")
    _read_until(link, b"PONG")
    return link, lambda data: b"PUB %b _INBOX.0.0 %d\r\n%b\r\n" % (subject, len(data), data)


def publish_request() -> bytes:
    return resp.command(b"PUBLISH", CHANNEL, DATA)


class Writer:
    """One connection that keeps `depth` writes in flight. `answer` occurs exactly once in every answer."""

    def __init__(self, link: socket.socket, request: bytes, answer: bytes, *, depth: int) -> None:
        self._link = link
        self._link.setblocking(False)
        self._request = request
        self._answer = answer
        self._depth = depth
        self._due = 0
        self.sent = 0

    def step(self) -> None:
        """Read the available answers, and send as many new writes."""
        try:
            data = self._link.recv(READ_BYTES) if self._due else b""
            self._due -= data.count(self._answer)
        except BlockingIOError:
            return
        if not self._due:
            self._link.send(self._request * self._depth)
            self._due = self._depth
            self.sent += self._depth

    def finish(self) -> None:
        self._link.setblocking(True)
        while self._due > 0:
            self._due -= self._link.recv(READ_BYTES).count(self._answer)
        self._link.close()


class Flood:
    """One writer at full speed, and all of its subscribers. `open` is not part of a round."""

    def __init__(self, subscribers: Callable[[], Subscribers], writer: Callable[[], Writer], seconds: float) -> None:
        self._subscribe = subscribers
        self._writer = writer
        self._seconds = seconds
        self._open: Subscribers | None = None
        self.delivered = 0

    def open(self) -> None:
        self._open = self._subscribe()

    def run(self) -> float:
        """Return the records delivered per second. Raise if a subscriber misses one."""
        assert self._open is not None
        subscribers, writing, received = self._open, self._writer(), Received()
        started = time.perf_counter()
        while time.perf_counter() - started < self._seconds:
            writing.step()
            subscribers.read(received, wait_s=0)
        writing.finish()
        wanted = writing.sent * len(subscribers.links)
        while received.records < wanted and subscribers.read(received, wait_s=SILENCE_S):
            pass
        elapsed = time.perf_counter() - started
        subscribers.close()
        if received.records != wanted:
            raise RuntimeError(f"{received.records:,} records arrived of {wanted:,}")
        self.delivered = received.records
        return received.records / elapsed


def paced(writer: TimedWriter, links: list[socket.socket], *, per_s: int, seconds: float) -> Received:
    """Write at a steady rate, and measure the arrival at a sample of the watchers, picked evenly from all `links`.

    The others are read at the end, for what they must have got: a thread that reads all of a thousand connections is
    itself too slow for the pace, and would hold up the writer.
    """
    watchers = len(links)
    step = max(watchers // SAMPLED, 1)
    sampled, others = (
        Subscribers(links[::step], TIMED),
        Subscribers([link for at, link in enumerate(links) if at % step], TIMED),
    )
    received, rest = Received(), Received()
    writes = int(per_s * seconds)
    link, request = writer
    with link:
        _write_paced(link, request, writes, per_s, lambda wait_s: sampled.read_stamped(received, wait_s=wait_s))
    while received.records < writes * len(sampled.links) and sampled.ready(SILENCE_S):
        sampled.read_stamped(received, wait_s=0)
    while rest.records < writes * len(others.links) and others.read(rest, wait_s=SILENCE_S):
        pass
    sampled.close()
    others.close()
    if received.records + rest.records != writes * watchers:
        raise RuntimeError(f"{received.records + rest.records:,} records arrived of {writes * watchers:,}")
    return received


def _write_paced(
    link: socket.socket, request: Callable[[bytes], bytes], writes: int, per_s: int, read: Callable[[float], None]
) -> None:
    """Read continuously: packets that wait in a socket are merged, and then have the time stamp of the last one."""
    begun = time.perf_counter()
    for number in range(writes):
        while (left_s := begun + number / per_s - time.perf_counter()) > 0:
            read(left_s)
        link.sendall(request(b'{"sku":"AEROPRESS-GO","at":%d}' % time.time_ns()))
        while not select.select([link], [], [], 0)[0]:
            read(0.0005)
        link.recv(4096)
