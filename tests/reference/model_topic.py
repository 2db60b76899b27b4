"""One topic of the reference model: its records with their fates, its idempotency keys and its consumers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from topics.model.records import STORED_FORM, Projection
from topics.model.topic import TopicConfig

LIVE = "live"
DELETED = "deleted"


@dataclass
class Fact:
    """One record. Only `fate` changes, and only once."""

    seq: int
    ts: int
    data: bytes
    node: str | None
    tag: str | None
    meta: bytes | None
    fate: str = LIVE  # or "deleted", or the reason of its loss: "cap", "ttl", "restart"

    @property
    def live(self) -> bool:
        return self.fate == LIVE

    @property
    def lost(self) -> bool:
        return self.fate not in (LIVE, DELETED)

    @property
    def size_bytes(self) -> int:
        return len(self.rendered())

    def rendered(self, projection: Projection = STORED_FORM) -> bytes:
        """Return the record as readers get it, followed by a comma."""
        parts = [b'"$seq":%d' % self.seq, b'"$ts":%d' % self.ts]
        if self.node is not None:
            parts.append(b'"$node":' + _quoted(self.node))
        if projection.tags and self.tag is not None:
            parts.append(b'"$tag":' + _quoted(self.tag))
        if projection.data:
            parts.append(b'"data":' + self.data)
        if projection.meta and self.meta is not None:
            parts.append(b'"meta":' + self.meta)
        return b"{" + b",".join(parts) + b"},"


@dataclass(frozen=True)
class ModelConsumer:
    """One consumer. `used_ms` is when it was last changed or read, or when the server started, in elapsed time."""

    seq: int
    used_ms: int
    expire_ms: int = 0
    hold: bool = False
    max_hold_bytes: int = 0

    def shown(self) -> tuple[int, int, bool, int]:
        """Return what clients see, except for times."""
        return self.seq, self.expire_ms, self.hold, self.max_hold_bytes


@dataclass
class Key:
    first: int
    last: int
    at_ms: int


@dataclass
class ModelTopic:
    """One topic, from its creation to its deletion."""

    name: str
    config: TopicConfig
    facts: list[Fact] = field(default_factory=list)  # all seqs from 1 to head
    keys: dict[str, Key] = field(default_factory=dict)
    archived: int = 0  # the last archived seq
    consumers: dict[str, ModelConsumer] = field(default_factory=dict)

    def written_with(self, key: str, now_ms: int) -> Key | None:
        """Return the write that had the key within the window, unless a crash or damage took its records."""
        seen = self.keys.get(key)
        if seen is None or now_ms - seen.at_ms > self.config.idempotency_window_ms:
            return None
        return None if self.facts[seen.last - 1].fate in ("restart", "corrupt") else seen

    @property
    def holds(self) -> bool:
        return self.config.archive is not None and self.config.archive.hold

    @property
    def head(self) -> int:
        return len(self.facts)

    @property
    def live(self) -> list[Fact]:
        return [fact for fact in self.facts if fact.live]

    @property
    def count(self) -> int:
        return len(self.live)

    @property
    def bytes(self) -> int:
        return sum(fact.size_bytes for fact in self.live)

    @property
    def earliest(self) -> int:
        return min((fact.seq for fact in self.live), default=self.head + 1)

    @property
    def evict_floor(self) -> int:
        earliest = self.earliest
        return max((fact.seq for fact in self.facts[: earliest - 1] if fact.lost), default=0) + 1

    def expire(self, now_ms: int) -> None:
        if self.config.ttl_ms:
            for fact in self.live:
                if now_ms - fact.ts > self.config.ttl_ms and not (self.holds and fact.seq > self.archived):
                    fact.fate = "ttl"

    def forget(self, fates: list[str]) -> None:
        """Apply a restart of an ephemeral topic: seqs 1, 2, … now have these fates, and none is live.

        There is one fate for each seq that may have been assigned, which can be more than there were records.
        """
        assert LIVE not in fates
        assert len(fates) >= self.head
        for fact, fate in zip(self.facts, fates, strict=False):
            assert DELETED in (fact.fate, fate) or fact.lost or fate == "restart"
            assert fact.fate == DELETED or fate != DELETED, "a record is lost without a report"
        ts = self.facts[-1].ts if self.facts else 0
        self.consumers = {}  # they end with the process, too
        known = len(self.facts)
        self.facts += [Fact(seq, ts, b"", None, None, None) for seq in range(known + 1, len(fates) + 1)]
        for fact, fate in zip(self.facts, fates, strict=True):
            fact.fate = fate

    def enforce_caps(self) -> None:
        """Evict the oldest live records until the topic is within its caps.

        A topic that rejects evicts only archived records, and only with `hold`.
        """
        cap_records, cap_bytes = self.config.cap_records, self.config.cap_bytes
        while (cap_records and self.count > cap_records) or (cap_bytes and self.bytes > cap_bytes):
            if self.config.discard == "reject" and self.live[0] not in self.spare:
                return
            if self.is_held(self.live[0]):
                return
            self.live[0].fate = "cap"

    def is_held(self, fact: Fact) -> bool:
        """Return whether a consumer with `hold` keeps the oldest record past the caps."""
        unread = [one for one in self.consumers.values() if one.hold and one.seq < fact.seq]
        return any(self.config.discard == "reject" or self.bytes <= one.max_hold_bytes for one in unread)

    @property
    def spare(self) -> list[Fact]:
        """Return the records that a full topic that rejects may evict."""
        if not self.holds or self.config.type == "queue":
            return []
        return [fact for fact in self.live if fact.seq <= self.archived and not self.is_held(fact)]


def _quoted(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()
