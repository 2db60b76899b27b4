"""Server-sent events, without a connection: bytes in, events out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Event(NamedTuple):
    """One event. A comment, such as a heartbeat, has an empty name."""

    name: str
    data: bytes
    id: str | None


class EventParser:
    """Splits a `text/event-stream` into events, wherever the chunks are cut."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that are complete with this chunk."""
        searched = max(len(self._held) - 1, 0)
        self._held += chunk
        start = 0
        while (end := self._held.find(b"\n\n", max(start, searched))) >= 0:
            yield _event(bytes(self._held[start:end]))
            start = end + 2
        del self._held[:start]


def _event(block: bytes) -> Event:
    name, data, event_id = "", b"", None
    for line in block.split(b"\n"):
        if line.startswith(b"data: "):
            data = line[6:]
        elif line.startswith(b"event: "):
            name = line[7:].decode()
        elif line.startswith(b"id: "):
            event_id = line[4:].decode()
    return Event(name, data, event_id)
