"""Response types for looking at a server: its index, the rights of a key, samples, and the timeline of a topic."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Struct

from topics.model.topic import U64
from topics.model.wire import Performance

SQL_ROWS, MAX_SQL_ROWS = 1000, 10_000  # of an answer: by default, and at most
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


class SqlRequest(Struct):
    """A statement. Topics are tables with the columns `topic`, `seq`, `ts`, `node`, `tag`, `meta` and `data`."""

    query: Annotated[str, "one statement, such as `select tag, count(*) from orders group by tag`"]
    limit: Annotated[int, "most rows of the answer; at most 10000; default: 1000"] = SQL_ROWS


class SqlAnswer(Struct):
    """The rows of a query."""

    columns: Annotated[list[str], "the names of the columns"]
    rows: Annotated[list[list[Any]], "the values of each row, in the order of the columns"]
    more: Annotated[bool, "whether there are more rows than the limit, or than 4 MiB"]
    performance: Performance


class ReplicaFigures(Struct, kw_only=True):
    """What the bucket of a replica has."""

    replica: Annotated[str, "the id of the replica"]
    term: Annotated[U64, "the term of its last object: it grows with each server that takes over"] = 0
    host: Annotated[str, "the machine that wrote it"] = ""
    address: Annotated[str, "where clients reach the writer"] = ""
    last_object: Annotated[U64, "its number"] = 0
    last_ms: Annotated[U64, "when it was written"] = 0
    checkpoint: Annotated[U64, "the number of the last checkpoint; 0 if there is none"] = 0
    clean: Annotated[bool, "whether the writer has stopped in order"] = False
    objects: Annotated[U64, "objects of the log"] = 0
    files: Annotated[U64, "files of checkpoints"] = 0
    bytes: Annotated[U64, "the size of all of them"] = 0
    objects_last_hour: Annotated[U64, "uploads of the log in the last hour"] = 0
    oldest_ms: Annotated[U64, "the oldest moment that can be restored; 0 if there is none"] = 0


class ReplicaAnswer(Struct, kw_only=True):
    """The replica of a server, and who follows it."""

    role: Annotated[Literal["none", "writer", "standby"], "what this server is; `none` without a replica"]
    writer: Annotated[str | None, "the address of the writer, of a standby"] = None
    lag_ms: Annotated[U64 | None, "how far the bucket, or a standby, is behind"] = None
    lag_bytes: Annotated[U64 | None, "bytes of the log that are not uploaded"] = None
    uploads: Annotated[U64 | None, "objects of the log that were uploaded since the start"] = None
    failures: Annotated[U64 | None, "requests to the bucket that failed since the start"] = None
    failure: Annotated[str | None, "the last failure, while the bucket does not answer or cannot be listed"] = None
    followers: Annotated[list[FollowerInfo], "standbys and read replicas; only the writer knows them"] = []
    stored: Annotated[ReplicaFigures | None, "what the bucket has, at most 10 minutes old; null before the first look"]
    performance: Performance


class PromoteRequest(Struct, forbid_unknown_fields=True):
    """Which standby takes over."""

    to: Annotated[str, "the name of the standby, from `followers`"]


class Promoted(Struct):
    """A switch that has begun."""

    standby: Annotated[str, "the server that takes over"]
    performance: Performance
