"""Response types for looking at a server: its index, the rights of a key, samples, and the timeline of a topic."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from topics.model.topic import U64
from topics.model.wire import Performance

RANGES, MAX_RANGES = 500, 2000  # of a timeline: by default, and at most


class Index(Struct):
    """Where to go from here. `console` is null if the console is turned off."""

    name: Annotated[str, "`topics`"]
    version: str
    console: Annotated[str | None, "the path of the console; null if it is turned off"]
    openapi: Annotated[str, "the path of the OpenAPI document"]
    client: Annotated[str, "the path of the JavaScript client"]
    health: Annotated[str, "the path of the health probe"]
    performance: Performance


class Whoami(Struct):
    """The rights of the key that sent the request. A server without keys grants all scopes to every client."""

    key: Annotated[str | None, "the short name of the key; null on a server without keys"]
    scopes: Annotated[list[str], "what the key may do"]
    prefixes: Annotated[list[str], "prefixes of the names that the key may use; without prefixes and names: all"]
    performance: Performance
    names: Annotated[list[str], "exact names that it may use, too"] = []
    operations: Annotated[list[str], "what a token may do; empty: what its scopes allow"] = []
    create: Annotated[bool, "whether a write may create a topic"] = True
    expires_at: Annotated[U64 | None, "when the key or the token expires"] = None


class FollowerInfo(Struct):
    """A standby or read replica of this server, as it has announced itself last."""

    name: Annotated[str, "the name that it has announced"]
    address: Annotated[str, "where clients reach it"]
    takes_over: Annotated[bool, "false for a read replica"]
    lag_ms: Annotated[U64, "how far it is behind"]


class Samples(Struct, omit_defaults=True):
    """Figures of the last hour, a row per interval, oldest first. Each row has one value per column."""

    interval_ms: Annotated[U64, "time between two rows"]
    capacity: Annotated[U64, "the number of rows that the server keeps"]
    columns: Annotated[list[str], "the names of the values of a row"]
    rows: Annotated[list[list[float]], "the values, oldest first"]
    performance: Performance
    followers: Annotated[list[FollowerInfo] | None, "the standbys and read replicas, if there are any"] = None


class TimelineRange(Struct, frozen=True, omit_defaults=True):
    """What has become of a range of seqs, both ends inclusive.

    `state` is `live`, `deleted`, `archived` (an archive deleted the records after it had stored them), the reason of a
    loss, or `merged`: then the numbers say how many seqs of the range are live, deleted and lost.
    """

    from_seq: Annotated[U64, "the first seq of the range"]
    to_seq: Annotated[U64, "the last seq of the range"]
    state: Annotated[str, "`live`, `deleted`, `archived`, the reason of a loss, or `merged`"]
    live: Annotated[U64 | None, "the number of stored records, if the state is `merged`"] = None
    deleted: Annotated[U64 | None, "the number of deleted records, if the state is `merged`"] = None
    lost: Annotated[U64 | None, "the number of lost records, if the state is `merged`"] = None


class TimelineAnswer(Struct, kw_only=True):
    """The ranges of a window of seqs. They are exact if `resolution` is 1; else shorter ranges may be merged."""

    topic: str
    epoch: U64
    head_seq: U64
    earliest_seq: U64
    archived_seq: Annotated[U64, "the last seq that an archive has reported; 0 if none"]
    from_seq: Annotated[U64, "the first seq of the window"]
    to_seq: Annotated[U64, "the last seq of the window"]
    resolution: Annotated[U64, "1 if the ranges are exact; otherwise ranges shorter than this may be merged"]
    ranges: Annotated[list[TimelineRange], "the ranges in order; about 500 by default, at most 2000"]
    live: Annotated[U64, "the number of stored records"]
    deleted: Annotated[U64, "the number of deleted records"]
    lost: Annotated[U64, "the number of lost records"]
    performance: Performance
