"""The options of the data source: one row per option. All of them are checked before the first request to a server.

An unknown option is an error that names the nearest known one: a misspelt `failOnDataLoss` must not fall back to the
default silently. Names follow Spark's Kafka source where the meaning is the same. Case does not matter, as in Spark.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from topics.errors import TopicsError
from topics.model.names import check_consumer, check_topic
from topics.model.records import TagMatch

DEFAULT_URL = "http://127.0.0.1:4000"
DEFAULT_PARTITION_BYTES = 64 << 20
DEFAULT_TIMEOUT_MS = 60_000
DEFAULT_RETRIES = 5

Edge = Literal["earliest", "latest"]
EDGES: dict[Any, Edge] = {"earliest": "earliest", "latest": "latest", -2: "earliest", -1: "latest"}
Offset = int | Edge
EPOCH_SEQ = {"epoch", "seq"}  # the keys of an offset that names its epoch


class BadOption(ValueError):
    """An option is invalid. The message names the option and a valid value."""


class Option(NamedTuple):
    """One option: its name as users write it, and its help text."""

    name: str
    help: str


CONNECTION = (
    Option("url", f"server, or several separated by commas; {DEFAULT_URL} if not given"),
    Option("token", "API key; prefer tokenFile, which does not show in plans"),
    Option("tokenFile", "file with the API key, readable on the driver and on every executor"),
    Option("timeoutMs", f"longest wait for bytes of an answer; {DEFAULT_TIMEOUT_MS}"),
    Option("retries", f"attempts after the first one, if a retry can help; {DEFAULT_RETRIES}"),
)

READ = (
    *CONNECTION,
    Option("path", "data directory or backup to read instead of a server"),
    Option("coldPath", "the cold folder of that directory, if it has one"),
    Option("lake", "lake of `topics pipeline archive`: records that the server no longer has are read from there"),
    Option("lakeOnly", "true: read only the lake, without a server; batch reads only"),
    Option("subscribe", "topics, separated by commas"),
    Option("subscribePrefix", "every topic whose name begins with this prefix"),
    Option("subscribePattern", "every topic whose whole name matches this regular expression"),
    Option(
        "startingOffsets",
        'first seq to read: "earliest", "latest", or JSON {"topic": seq} or {"topic": {"epoch": epoch, "seq": seq}}',
    ),
    Option("endingOffsets", 'seq to stop before: "latest", or JSON {"topic": seq}; batch reads only'),
    Option("startingTimestamp", "from the first record at or after this time: epoch ms or ISO 8601"),
    Option("endingTimestamp", "before the first record at or after this time; batch reads only"),
    Option("maxOffsetsPerTrigger", "seqs a micro-batch may cover; streams only"),
    Option("consumer", "named consumer whose position shows the progress of the stream; streams only"),
    Option("minPartitions", "least number of partitions, if the data allows it"),
    Option("maxPartitionBytes", f"bytes a partition should hold at most; {DEFAULT_PARTITION_BYTES}"),
    Option("node", "leave out records of these nodes (separated by commas), as the node of diff does"),
    Option("tag", "only records with this tag; with a star at the end, with tags of this prefix"),
    Option("failOnDataLoss", "true (default): a lost range fails the query; false: it is a row of kind gap"),
    Option("kafkaColumns", "true: columns have the names of Spark's Kafka source"),
    Option("columns", "only these columns of the record, separated by commas: the others are not sent to Spark"),
    Option("where", "condition on records, such as seq >= 100 AND tag = 'web', checked before they are sent to Spark"),
    Option("typed", "true: columns of the schema are fields of data, and those of the record are _seq, _ts …"),
    Option(
        "pushFilters", "true: conditions on topic, seq, ts and tag narrow the read; for DataFrames that are used once"
    ),
)


class EpochSeq(NamedTuple):
    """A seq of one epoch of a topic. If the topic has another epoch, the seq is stale."""

    epoch: int
    seq: int


class Offsets(Struct, frozen=True):
    """Offsets by topic, and `otherwise` for topics that are not named.

    `by_server` holds offsets for one of several servers. They take precedence over `by_topic`.
    """

    otherwise: Offset
    by_topic: dict[str, Offset | EpochSeq] = {}
    by_server: dict[str, dict[str, Offset | EpochSeq]] = {}

    def of(self, server: str, topic: str) -> Offset:
        found = self._given(server, topic)
        return found.seq if isinstance(found, EpochSeq) else found

    def epoch_of(self, server: str, topic: str) -> int | None:
        """Return the epoch that the offset of the topic belongs to, or None if it is not given."""
        found = self._given(server, topic)
        return found.epoch if isinstance(found, EpochSeq) else None

    def _given(self, server: str, topic: str) -> Offset | EpochSeq:
        return self.by_server.get(server, {}).get(topic, self.by_topic.get(topic, self.otherwise))

    def names(self) -> set[str]:
        return set(self.by_topic).union(*self.by_server.values())


class ConnectionOptions(Struct, frozen=True, kw_only=True):
    """How to reach the servers. Sent to executors, so a key in a file is read on the machine that uses it."""

    servers: tuple[str, ...] = (DEFAULT_URL,)
    token: str | None = None
    token_file: str | None = None
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    retries: int = DEFAULT_RETRIES

    def read_token(self) -> str | None:
        if self.token_file is None:
            return self.token
        try:
            with open(self.token_file, encoding="utf-8") as file:
                return file.read().strip()
        except OSError as error:
            raise BadOption(f"tokenFile: {self.token_file} cannot be read: {error.strerror}") from None


class ReadOptions(Struct, frozen=True, kw_only=True):
    """The checked options of a reader."""

    connection: ConnectionOptions = ConnectionOptions()
    path: str | None = None
    cold_path: str | None = None
    lake: str | None = None
    lake_only: bool = False
    topics: tuple[str, ...] = ()
    prefix: str | None = None
    pattern: str | None = None
    starting: Offsets | None = None  # None: earliest for a batch, latest for a stream
    ending: Offsets | None = None
    starting_ts: int | None = None
    ending_ts: int | None = None
    max_offsets: int | None = None
    consumer: str | None = None
    min_partitions: int = 1
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    nodes: tuple[str, ...] = ()
    tag: TagMatch | None = None
    fail_on_data_loss: bool = True
    kafka_columns: bool = False
    columns: tuple[str, ...] | None = None
    where: str | None = None
    typed: bool = False
    push_filters: bool = False

    @property
    def several_servers(self) -> bool:
        """Whether there are several servers, so that rows have a column with their server."""
        return len(self.connection.servers) > 1

    def wants(self, topic: str) -> bool:
        """Return whether the subscription includes a topic of this name."""
        if self.topics:
            return topic in self.topics
        if self.prefix is not None:
            return topic.startswith(self.prefix)
        return self.pattern is not None and re.fullmatch(self.pattern, topic) is not None

    def subscription(self) -> str:
        if self.topics:
            return f"subscribe={','.join(self.topics)}"
        return f"subscribePattern={self.pattern}" if self.prefix is None else f"subscribePrefix={self.prefix}"


def known(given: Mapping[str, str], rows: Iterable[Option]) -> dict[str, str]:
    """Return the options under the names of their rows. Raise `BadOption` for an unknown option."""
    names = {row.name.lower(): row.name for row in rows}
    found: dict[str, str] = {}
    for key in given:
        name = names.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.0)
            raise BadOption(f"there is no option {key!r}; did you mean {names[near[0]]!r}?")
        found[name] = given[key]
    return found


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the checked options of a reader. Raise `BadOption` if one is invalid."""
    found = known(given, READ)
    starting_ts, ending_ts = _timestamp(found, "startingTimestamp"), _timestamp(found, "endingTimestamp")
    options = ReadOptions(
        connection=connection(found),
        path=_directory(found, "path"),
        cold_path=_directory(found, "coldPath"),
        lake=_lake(found),
        lake_only=flag(found, "lakeOnly", default=False),
        topics=_names(found),
        prefix=found.get("subscribePrefix"),
        pattern=_pattern(found),
        starting=_offsets(found, "startingOffsets", otherwise="earliest"),
        ending=_offsets(found, "endingOffsets", otherwise="latest"),
        starting_ts=starting_ts,
        ending_ts=ending_ts,
        max_offsets=number(found, "maxOffsetsPerTrigger", None, least=1),
        consumer=_consumer(found),
        min_partitions=number(found, "minPartitions", 1, least=1) or 1,
        partition_bytes=number(found, "maxPartitionBytes", DEFAULT_PARTITION_BYTES, least=1) or DEFAULT_PARTITION_BYTES,
        nodes=tuple(listed(found.get("node", ""))),
        tag=_tag(found.get("tag")),
        fail_on_data_loss=flag(found, "failOnDataLoss", default=True),
        kafka_columns=flag(found, "kafkaColumns", default=False),
        columns=_columns(found),
        where=found.get("where"),
        typed=flag(found, "typed", default=False),
        push_filters=flag(found, "pushFilters", default=False),
    )
    _check_together(found, options)
    return options


def connection(found: Mapping[str, str]) -> ConnectionOptions:
    """Return the connection options, which readers and writers share; `found` is the result of `known`."""
    servers = tuple(dict.fromkeys(url.rstrip("/") for url in listed(found.get("url", DEFAULT_URL))))
    if not servers:
        raise BadOption("url: at least one server is needed")
    for url in servers:
        if not re.match(r"https?://[^/]", url):
            raise BadOption(f"url: {url!r} is not the URL of a server, such as {DEFAULT_URL}")
    if "token" in found and "tokenFile" in found:
        raise BadOption("token and tokenFile: give one of them")
    token_file = found.get("tokenFile")
    return ConnectionOptions(
        servers=servers,
        token=found.get("token"),
        token_file=None if token_file is None else os.path.abspath(token_file),
        timeout_ms=number(found, "timeoutMs", DEFAULT_TIMEOUT_MS, least=1) or DEFAULT_TIMEOUT_MS,
        retries=number(found, "retries", DEFAULT_RETRIES, least=0) or 0,
    )


def flag(found: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = found.get(name, "").lower()
    if value not in ("", "true", "false"):
        raise BadOption(f"{name}: {found[name]!r} is neither true nor false")
    return default if not value else value == "true"


def number(found: Mapping[str, str], name: str, default: int | None, *, least: int) -> int | None:
    text = found.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise BadOption(f"{name}: {text!r} is not a whole number of at least {least}")
    return int(text)


def listed(text: str) -> list[str]:
    return [part for part in (piece.strip() for piece in text.split(",")) if part]


def _check_together(found: Mapping[str, str], options: ReadOptions) -> None:
    ways = [name for name in ("subscribe", "subscribePrefix", "subscribePattern") if name in found]
    if len(ways) != 1:
        present = " and ".join(ways) or "nothing"
        raise BadOption(f"choose topics with one of subscribe, subscribePrefix and subscribePattern; given: {present}")
    for one, other in (
        ("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp"), ("path", "url"),
        ("path", "token"), ("path", "tokenFile"), ("path", "lake"),
    ):  # fmt: skip
        if one in found and other in found:
            raise BadOption(f"{one} and {other}: give one of them")
    if "coldPath" in found and "path" not in found:
        raise BadOption("coldPath: only a data directory (path) has a cold folder")
    if options.lake_only and "lake" not in found:
        raise BadOption("lakeOnly: the option lake is missing; it names the directory of the lake")
    if options.lake_only and "url" in found:
        raise BadOption("lakeOnly and url: lakeOnly reads without a server; remove one of them")
    if options.ending is not None and "earliest" in (options.ending.otherwise, *options.ending.by_topic.values()):
        raise BadOption('endingOffsets: "earliest" (-2) is the start of a topic; a read cannot end there')
    for offsets, name in ((options.starting, "startingOffsets"), (options.ending, "endingOffsets")):
        if offsets is None:
            continue
        if unknown := sorted(topic for topic in offsets.names() if not options.wants(topic)):
            raise BadOption(f"{name}: topic {unknown[0]!r} is not one of {options.subscription()}")
        if unknown := sorted(set(offsets.by_server) - set(options.connection.servers)):
            raise BadOption(f"{name}: {unknown[0]!r} is not one of the servers in url")


def _names(found: Mapping[str, str]) -> tuple[str, ...]:
    if "subscribe" not in found:
        return ()
    names = tuple(dict.fromkeys(listed(found["subscribe"])))
    if not names:
        raise BadOption("subscribe: at least one topic is needed")
    for name in names:
        try:
            check_topic(name)
        except TopicsError as error:
            raise BadOption(f"subscribe: {error.message}") from None
    return names


def _columns(found: Mapping[str, str]) -> tuple[str, ...] | None:
    if "columns" not in found:
        return None
    names = tuple(dict.fromkeys(listed(found["columns"])))
    if not names:
        raise BadOption("columns: at least one column is needed")
    return names


def _consumer(found: Mapping[str, str]) -> str | None:
    name = found.get("consumer")
    try:
        return None if name is None else check_consumer(name)
    except TopicsError as error:
        raise BadOption(f"consumer: {error.message}") from None


def _directory(found: Mapping[str, str], name: str) -> str | None:
    """Return the absolute path of a directory that the driver and every executor open under the same name."""
    text = found.get(name)
    if text is None:
        return None
    scheme, colon, rest = text.partition(":")
    if colon and "/" not in scheme:
        if scheme != "file" or not rest.startswith("/"):
            raise BadOption(f"{name}: {text!r} is not a directory that executors can open as a path")
        text = "/" + rest.lstrip("/")
    return os.path.abspath(text)


def with_absolute_paths(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the source with absolute paths, for a session of Spark.

    The processes of Spark resolve a relative path, too, but they may have another working directory than the caller.
    """
    found = dict(options)
    for name, value in options.items():
        with suppress(BadOption):  # the source reports it
            if name.lower() in ("path", "coldpath"):
                found[name] = _directory({name: value}, name) or value
            elif name.lower() == "lake":
                found[name] = _lake({"lake": value}) or value
            elif name.lower() == "tokenfile":
                found[name] = os.path.abspath(value)
    return found


def _lake(found: Mapping[str, str]) -> str | None:
    """Return the absolute path or the URL of the lake."""
    if "lake" not in found:
        return None
    from topics.lake.errors import LakeError
    from topics.lake.storage import location

    try:
        return location(found["lake"])
    except LakeError as error:
        raise BadOption(f"lake: {error}") from None


def _pattern(found: Mapping[str, str]) -> str | None:
    pattern = found.get("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadOption(f"subscribePattern: {pattern!r} is not a regular expression: {error}") from None
    return pattern


def _offsets(found: Mapping[str, str], name: str, *, otherwise: Edge) -> Offsets | None:
    text = found.get(name)
    if text is None:
        return None
    if text.lower() in ("earliest", "latest"):
        return Offsets(EDGES[text.lower()])
    wrong = BadOption(
        f'{name}: {text[:200]!r} is neither "earliest" nor "latest" nor JSON such as {{"orders": 1}}; '
        'with several servers {"http://…": {"orders": 1}} is valid as well'
    )
    try:
        decoded: Any = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        raise wrong from None
    if not isinstance(decoded, dict):
        raise wrong
    nested = {key: value for key, value in decoded.items() if isinstance(value, dict) and set(value) != EPOCH_SEQ}
    flat = {key: value for key, value in decoded.items() if key not in nested}
    return Offsets(
        otherwise,
        {topic: _offset(value, wrong) for topic, value in flat.items()},
        {
            server.rstrip("/"): {topic: _offset(value, wrong) for topic, value in topics.items()}
            for server, topics in nested.items()
        },
    )


def offset_option(topic: str, seq: int) -> str:
    """Return a seq of one topic as a value of `startingOffsets` or `endingOffsets`."""
    return msgspec.json.encode({topic: seq}).decode()


def _offset(value: Any, wrong: BadOption) -> Offset | EpochSeq:
    if isinstance(value, dict) and set(value) == EPOCH_SEQ:
        epoch, seq = value["epoch"], _offset(value["seq"], wrong)
        if type(epoch) is not int or not isinstance(seq, int):
            raise wrong
        return EpochSeq(epoch, seq)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise wrong
    if value in EDGES:
        return EDGES[value]
    if isinstance(value, str) or not 1 <= value < 1 << 63:
        raise wrong  # seqs begin at 1
    return value


def _timestamp(found: Mapping[str, str], name: str) -> int | None:
    text = found.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        example = "2025-05-28T17:00:00Z"
        raise BadOption(f"{name}: {text!r} is neither epoch milliseconds nor a time such as {example}") from None
    return ms_of(at)


def ms_of(at: datetime) -> int:
    """Return `at` in ms since 1970, rounded up, so that no later millisecond is before `at`. No time zone means UTC."""
    since = (at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return max(-(-micros // 1000), 0)


def _tag(text: str | None) -> TagMatch | None:
    if text is None:
        return None
    return TagMatch("Glob", text[:-1]) if text.endswith("*") else TagMatch("Eq", text)
