"""The named consumers of one topic: where each is, and what is only known while the process runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct


class Consumer(Struct, array_like=True, gc=False):
    """One named consumer, as the log and snapshots have it. It has processed every record up to `seq`."""

    number: int  # its name in the log: unique in the topic, and never used again
    name: str
    seq: int
    at_ms: int  # when it was last changed
    meta: bytes | None = None  # a JSON object
    expire_ms: int = 0  # the time without use after which it is forgotten; 0 is never
    hold: bool = False
    max_hold_bytes: int = 0


@dataclass(slots=True, eq=False)
class TopicConsumers:
    by_name: dict[str, Consumer] = field(default_factory=dict)
    by_number: dict[int, Consumer] = field(default_factory=dict)
    next_number: int = 1
    holders: list[Consumer] = field(default_factory=list)  # those with `hold`
    expiring: int = 0  # how many have `expire_ms`
    # Of the running process only: the last seq that an answer to a consumer had; when one with `expire_ms` was last
    # used, by its number and the monotonic clock; changes, oldest first (`consumers.verbs.BatchPart`).
    delivered: dict[str, int] = field(default_factory=dict)
    used_ns: dict[int, int] = field(default_factory=dict)
    readers: dict[str, Any] = field(default_factory=dict)  # who used each last, by name: what the caller has given
    pending: list[Any] = field(default_factory=list)

    def put(self, consumer: Consumer) -> None:
        """Add a consumer, or replace the one of the same number."""
        self._take_out(consumer.number)
        if consumer.name in self.by_name:  # damage took the entry that ended it
            self._take_out(self.by_name[consumer.name].number)
        self.by_name[consumer.name] = consumer
        self.by_number[consumer.number] = consumer
        self.next_number = max(self.next_number, consumer.number + 1)
        self.expiring += consumer.expire_ms > 0
        if consumer.hold:
            self.holders.append(consumer)

    def remove(self, number: int) -> None:
        consumer = self._take_out(number)
        if consumer is not None:
            self.delivered.pop(consumer.name, None)
            self.readers.pop(consumer.name, None)
            self.used_ns.pop(number, None)

    def _take_out(self, number: int) -> Consumer | None:
        consumer = self.by_number.pop(number, None)
        if consumer is not None:
            del self.by_name[consumer.name]
            self.expiring -= consumer.expire_ms > 0
            if consumer.hold:
                self.holders.remove(consumer)
        return consumer
