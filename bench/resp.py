"""The part of the Redis protocol that the rows need: fill a stream, get its size, read ranges unparsed."""

from __future__ import annotations

import random
import selectors
import socket
import time
from collections.abc import Iterator
from itertools import islice

from payload import DATA, TAG

CHUNK = 1_000
PONG = b"+PONG\r\n"


def command(*words: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(words), b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def ask(port: int, *words: bytes) -> bytes:
    """Return the first line of the answer, without its type byte."""
    with connect(port) as link:
        link.sendall(command(*words))
        line = link.makefile("rb").readline()
    if line.startswith(b"-"):
        raise RuntimeError(f"redis: {line[1:].decode(errors='replace').strip()}")
    return line[1:].strip()


def is_ready(port: int) -> bool:
    """Return whether the server answers commands on data. It refuses them while it loads its log."""
    try:
        ask(port, b"XLEN", b"s")
    except (OSError, RuntimeError):
        return False
    return True


def xadds(stream: bytes, total: int, *, explicit_ids: bool, distinct_tags: bool = False) -> Iterator[bytes]:
    """Yield `total` XADD commands with the ids 1-0, 2-0 …, so that a random number is a valid cursor."""
    for number in range(1, total + 1):
        entry = b"%d-0" % number if explicit_ids else b"*"
        tag = b"o-%08d" % number if distinct_tags else TAG
        yield command(b"XADD", stream, entry, b"data", DATA, b"tag", tag)


def fill(port: int, commands: Iterator[bytes]) -> None:
    """Send the commands in chunks, one chunk ahead of the answers. Every answer is a bulk string: two lines each."""
    with connect(port) as link:
        lines_due = 0
        while chunk := list(islice(commands, CHUNK)):
            link.sendall(b"".join(chunk))
            lines_due = _read_lines(link, lines_due + 2 * len(chunk), leave=2 * CHUNK)
        _read_lines(link, lines_due, leave=0)


def _read_lines(link: socket.socket, due: int, *, leave: int) -> int:
    """Read until at most `leave` lines are due. Return how many still are."""
    while due > leave:
        got = link.recv(1 << 16)
        if not got or b"-ERR" in got:
            raise RuntimeError(f"redis refused a write: {got[:100]!r}")
        due -= got.count(b"\n")
    return due


def read_ranges(port: int, *, last_id: int, clients: int, seconds: float) -> float:
    """Return the XRANGE COUNT 1000 per second of a client that does not parse the answers.

    redis-benchmark builds an object for every field it receives and is itself near its limit at this answer size,
    while wrk only counts the bytes of an HTTP body. A PING after each XRANGE marks the end of the answer, so that
    this reader can treat it as bytes, too.
    """
    waiting = selectors.DefaultSelector()
    links = [connect(port) for _ in range(clients)]
    buffer = memoryview(bytearray(1 << 20))
    for link in links:
        waiting.register(link, selectors.EVENT_READ, link)
        link.sendall(_range_request(last_id))
    done, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for key, _ in waiting.select(1):
            link = key.data
            size = link.recv_into(buffer)
            if buffer[max(size - len(PONG), 0) : size] == PONG:
                done += 1
                link.sendall(_range_request(last_id))
    for link in links:
        link.close()
    return done / elapsed


def _range_request(last_id: int) -> bytes:
    cursor = b"%d" % random.randrange(max(last_id - 1000, 1))
    return command(b"XRANGE", b"s", cursor, b"+", b"COUNT", b"1000") + command(b"PING")
