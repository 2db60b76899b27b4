"""Read a topic as a stream of lines: a bulk read that continues after a broken connection, and long polls."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Raw, Struct

from topics.cli.command import Call
from topics.cli.connect.request import Request, given, post, topic_path
from topics.cli.connect.server import Server
from topics.cli.output.failures import Unreachable
from topics.errors import BY_WIRE, Code, TopicsError

WAIT_MS = 20_000
PAUSE_S = 0.5
MAX_ATTEMPTS = 5
PAGE_RECORDS = 1000


class Position(NamedTuple):
    """The last seq that was read, and the epoch of the topic that it belongs to."""

    seq: int
    epoch: int | None = None


class Sink(Protocol):
    """Takes the lines of a stream."""

    def block(self, lines: bytes) -> bool:
        """Take a block of lines, tombstones among them, or return False to get its lines one at a time."""

    def record(self, line: bytes) -> None: ...

    def gap(self, tombstone: bytes) -> None: ...

    def flush(self) -> None: ...


class OnlyData(Struct):
    data: Raw


NULL = Raw(b"null")  # the decoder does not know `Raw | None`


class _Control(Struct):
    """A line that is not a record."""

    tombstone: Raw = NULL
    end: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class _Page(Struct):
    records: list[Raw]
    next_from_seq: int
    caught_up: bool
    epoch: int
    tombstone: Raw = NULL


_decode_control = msgspec.json.Decoder(_Control).decode
_decode_page = msgspec.json.Decoder(_Page).decode


def scan(call: Call, request: Request, again: Callable[[Position], Request], sink: Sink) -> Position:
    """Pass a bulk read to the sink and return where it ended. `again` makes the request that continues after a seq."""
    attempts = 0
    while True:
        lines = _Lines(sink)
        try:
            for chunk in call.server.stream(request):
                lines.feed(chunk)
            return lines.end(call.server)
        except Unreachable:
            attempts = 0 if lines.position is not None else attempts + 1
            if attempts >= MAX_ATTEMPTS or (attempts and lines.position is None and not lines.began):
                raise
        if lines.position is not None:
            request = again(lines.position)
        time.sleep(PAUSE_S)


class _Lines:
    """Splits chunks into lines. Always holds back the last line, which shows whether the answer is complete."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held = b""
        self._last_block = b""
        self.began = False

    @property
    def position(self) -> Position | None:
        """The last seq that was passed on, or None if there was none."""
        line = self._last_block.rstrip(b"\n").rpartition(b"\n")[2]
        if not line:
            return None
        last = json.loads(line)
        return Position(last["$seq"] if "$seq" in last else last["tombstone"]["gap_to"])

    def feed(self, chunk: bytes) -> None:
        self.began = True
        block = self._held + chunk
        cut = block.rfind(b"\n", 0, len(block) - 1) + 1
        self._held = block[cut:]
        if cut:
            self._pass(block[:cut])

    def _pass(self, block: bytes) -> None:
        self._last_block = block
        if self._sink.block(block):
            return
        for line in block.split(b"\n"):
            if line.startswith(b'{"tombstone"'):
                self._sink.gap(bytes(_decode_control(line).tombstone))
            elif line:
                self._sink.record(line)

    def end(self, server: Server) -> Position:
        """Return the position of the last line. Raise what it reports, or `Unreachable` if the answer was cut off."""
        if self._held.startswith(b'{"end"'):
            end = _decode_control(self._held).end
            assert end is not None
            return Position(end["next_from_seq"], end["epoch"])
        if self._held.startswith(b'{"error"'):
            error = _decode_control(self._held).error
            assert error is not None
            code = BY_WIRE.get(error["code"], Code.INTERNAL)
            raise TopicsError(code, error.get("message", "the read failed"), detail=error.get("detail"))
        if self._held.endswith(b"\n"):
            self._pass(self._held)
        raise server.unreachable("the answer was cut off")


def poll(topic: str, position: Position, fields: dict[str, Any]) -> Request:
    """Return the request that waits for records after a position."""
    body = {
        **fields,
        **given(from_seq=position.seq, epoch=position.epoch),
        "limit": PAGE_RECORDS,
        "wait_ms": WAIT_MS,
    }
    return post(topic_path(topic, "diff"), body, wait_ms=WAIT_MS)


def follow(
    call: Call,
    topic: str,
    position: Position,
    fields: dict[str, Any],
    sink: Sink,
    *,
    until_seq: int | None = None,
) -> None:
    """Pass new records to the sink, up to `until_seq` or until interrupted.

    Continue after broken connections and restarts.
    """
    lost_contact = False
    while until_seq is None or position.seq < until_seq:
        try:
            answer = call.server.send(poll(topic, position, fields))
        except (Unreachable, TopicsError) as error:
            if isinstance(error, TopicsError) and not error.code.retryable:
                raise
            if not lost_contact:
                call.screen.warn(f"{error}; trying again")
                lost_contact = True
            time.sleep(PAUSE_S)
            continue
        lost_contact = False
        page = decode_page(answer)
        if page.tombstone != NULL:
            sink.gap(bytes(page.tombstone))
        for record in page.records:
            sink.record(bytes(record))
        sink.flush()
        position = Position(page.next_from_seq, page.epoch)


def seq_of(line: bytes) -> int:
    """Return the seq of a record."""
    return int(json.loads(line)["$seq"])


def decode_page(body: bytes) -> _Page:
    """Return a page with its records as they are. The decoder refuses half a surrogate pair; `json` keeps it."""
    try:
        return _decode_page(body)
    except msgspec.DecodeError:
        page = json.loads(body)
        page["records"] = [Raw(json.dumps(record).encode()) for record in page["records"]]
        gap = Raw(json.dumps(page["tombstone"]).encode())
        return _Page(page["records"], page["next_from_seq"], page["caught_up"], page["epoch"], gap)
