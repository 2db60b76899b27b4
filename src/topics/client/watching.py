"""Where a watch over many topics begins, and how far it has come."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from msgspec import Struct

from topics.client.items import Match


class Start(Struct, frozen=True, kw_only=True):
    """Where to begin in one topic, and which of its records to deliver.

    `consumer` begins at the position of a named consumer.
    """

    from_seq: int = 0
    tail: bool = False
    epoch: int | None = None
    filter: Match | None = None
    consumer: str | None = None


class WatchPosition(Struct, frozen=True):
    """How far a watch has come: the id of its last event, and the epochs of the topics it names."""

    event_id: str
    epochs: dict[str, int]


class WatchCursor(Protocol):
    """Keeps the position of a watch. The methods may be coroutines where the reader is one."""

    def load(self) -> WatchPosition | Awaitable[WatchPosition | None] | None: ...

    def save(self, position: WatchPosition) -> Awaitable[None] | None: ...


class SessionTopic(Struct):
    from_seq: int
    epoch: int


class Session(Struct):
    """A watch session of the server."""

    stream_url: str
    topics: dict[str, SessionTopic]
