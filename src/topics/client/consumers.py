"""Named consumers: positions that the server keeps."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from topics.model.consumer import Lost


class ConsumerInfo(Struct):
    """A consumer of a topic: its position, and how far it is behind.

    `lag_ms` is the age of the oldest record that it has not read. `lost` lists records that were lost before it read
    them.
    """

    topic: str
    consumer: str
    epoch: int
    seq: int
    head_seq: int
    lag_records: int
    lag_ms: int
    expire_ms: int = 0
    hold: bool = False
    max_hold_bytes: int = 0
    updated_ms: int = 0
    meta: dict[str, Any] | None = None
    lost: Lost | None = None


class ConsumerPage(Struct):
    """One page of a list of consumers."""

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

    def settings(self) -> dict[str, int | bool]:
        """Return the settings that were given."""
        given = {"hold": self.hold, "max_hold_bytes": self.max_hold_bytes, "expire_ms": self.expire_ms}
        return {name: value for name, value in given.items() if value is not None}
