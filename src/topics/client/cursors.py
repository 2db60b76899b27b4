"""Positions of readers: where they begin, how far they have come, and who keeps that."""

from __future__ import annotations

import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from topics.client.items import Filter, Position
from topics.model.consumer import ConsumerSummary, LastRead


class Cursor(Protocol):
    """Keeps one position. The methods may be coroutines where the reader is one."""

    def load(self) -> Position | Awaitable[Position | None] | None:
        """Return the position that was saved last, or None."""

    def save(self, position: Position) -> Awaitable[None] | None:
        """Keep a position."""


class MemoryCursor:
    """Keeps a position for as long as the program runs."""

    def __init__(self, position: Position | None = None) -> None:
        self.position = position

    def load(self) -> Position | None:
        return self.position

    def save(self, position: Position) -> None:
        self.position = position


class FileCursor:
    """Keeps a position in a file. A crash leaves the old position or the new one, never half of one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def load(self) -> Position | None:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Position)
        except FileNotFoundError:
            return None

    def save(self, position: Position) -> None:
        fresh = self.path.with_name(self.path.name + ".new")
        with fresh.open("wb") as file:
            file.write(msgspec.json.encode(position))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)


# --- named consumers, whose positions the server keeps


class ConsumerInfo(ConsumerSummary):
    """A consumer of a topic: its position, and how far it is behind.

    `lag_ms` is the age of the oldest record that it has not read. `lost` lists records that were lost before it read
    them.
    """

    meta: dict[str, Any] | None  # type: ignore[assignment]  # decoded
    last_read: LastRead | None = None  # an older server does not say


class ConsumerPage(Struct):
    consumers: list[ConsumerInfo]
    next_cursor: str | None = None


class ServerCursor(Struct, frozen=True):
    """Keeps the position of `follow` on the server, as the consumer `name` of the topic.

    topics.follow("orders", cursor=ServerCursor("billing"))

    With `hold`, the server keeps records until the consumer has read them, up to `max_hold_bytes`. A consumer that is
    not used for `expire_ms` is forgotten.
    """

    name: str
    hold: bool | None = None
    max_hold_bytes: int | None = None
    expire_ms: int | None = None


# --- watches over many topics


class Start(Struct, frozen=True, kw_only=True):
    """Where to begin in one topic, and which of its records to deliver.

    `consumer` begins at the position of a named consumer.
    """

    from_seq: int = 0
    tail: bool = False
    epoch: int | None = None
    filter: Filter | None = None
    consumer: str | None = None


class WatchPosition(Struct, frozen=True):
    """How far a watch has come: the id of its last event, and the epochs of the topics it names."""

    event_id: str
    epochs: dict[str, int]


class WatchCursor(Protocol):
    """Keeps the position of a watch. The methods may be coroutines where the reader is one."""

    def load(self) -> WatchPosition | Awaitable[WatchPosition | None] | None: ...

    def save(self, position: WatchPosition) -> Awaitable[None] | None: ...
