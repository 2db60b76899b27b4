"""Response types for looking at a server: its index, the rights of a key, samples, and the timeline of a topic."""

from __future__ import annotations

from msgspec import Struct

from topics.model.topic import U64
from topics.model.wire import Performance

RANGES, MAX_RANGES = 500, 2000  # of a timeline: by default, and at most


class Index(Struct):
    """Where to go from here. `console` is null if the console is turned off."""

    name: str
    version: str
    console: str | None
    openapi: str
    client: str
    health: str
    performance: Performance


class Whoami(Struct):
    """The rights of the key that sent the request. A server without keys grants all scopes to every client."""

    key: str | None
    scopes: list[str]
    prefixes: list[str]
    performance: Performance


class Samples(Struct):
    """Figures of the last hour, a row per interval, oldest first. Each row has one value per column."""

    interval_ms: U64
    capacity: U64
    columns: list[str]
    rows: list[list[float]]
    performance: Performance


class TimelineRange(Struct, frozen=True, omit_defaults=True):
    """What has become of a range of seqs, both ends inclusive.

    `state` is `live`, `deleted`, `archived` (an archive deleted the records after it had stored them), the reason of a
    loss, or `merged`: then the numbers say how many seqs of the range are live, deleted and lost.
    """

    from_seq: U64
    to_seq: U64
    state: str
    live: U64 | None = None
    deleted: U64 | None = None
    lost: U64 | None = None


class TimelineAnswer(Struct, kw_only=True):
    """The ranges of a window of seqs. They are exact if `resolution` is 1; else shorter ranges may be merged."""

    topic: str
    epoch: U64
    head_seq: U64
    earliest_seq: U64
    archived_seq: U64
    from_seq: U64
    to_seq: U64
    resolution: U64
    ranges: list[TimelineRange]
    live: U64
    deleted: U64
    lost: U64
    performance: Performance
