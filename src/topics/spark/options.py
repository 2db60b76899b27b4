"""The options of the data source, as the fields of structs. All are checked before the first request to a server.

An unknown option is an error that names the nearest known one: a misspelt `failOnDataLoss` must not fall back to the
default silently. Names follow Spark's Kafka source where the meaning is the same. Case does not matter, as in Spark.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import msgspec
from msgspec import Struct, field, structs

from topics.errors import TopicsError
from topics.model.filters import parse_filter
from topics.model.names import check_consumer, check_topic
from topics.model.records import TagMatch
from topics.model.topic import ConfigPatch, configure

DEFAULT_URL = "http://127.0.0.1:4000"
DEFAULT_PARTITION_BYTES = 64 << 20

Edge = Literal["earliest", "latest"]
EDGES: dict[Any, Edge] = {"earliest": "earliest", "latest": "latest", -2: "earliest", -1: "latest"}
Offset = int | Edge
EPOCH_SEQ = {"epoch", "seq"}  # the keys of an offset that names its epoch

T = TypeVar("T")


class BadOption(ValueError):
    """An option is invalid. The message names the option and a valid value."""


class EpochSeq(NamedTuple):
    """A seq of one epoch of a topic. If the topic has another epoch, the seq is stale."""

    epoch: int
    seq: int


class Offsets(Struct, frozen=True):
    """Offsets by topic, and `otherwise` for topics that are not named."""

    otherwise: Offset
    by_topic: dict[str, Offset | EpochSeq] = {}

    def of(self, topic: str) -> Offset:
        found = self.by_topic.get(topic, self.otherwise)
        return found.seq if isinstance(found, EpochSeq) else found

    def epoch_of(self, topic: str) -> int | None:
        """Return the epoch that the offset of the topic belongs to, or None if it is not given."""
        found = self.by_topic.get(topic, self.otherwise)
        return found.epoch if isinstance(found, EpochSeq) else None


class ConnectionOptions(Struct, frozen=True, kw_only=True, rename="camel"):
    """How to reach the server. Sent to executors, so a key in a file is read on the machine that uses it."""

    server: str = field(default=DEFAULT_URL, name="url")  # or its addresses, separated by commas
    token: str | None = None
    token_file: str | None = None
    timeout_ms: int = 60_000  # longest wait for bytes of an answer
    retries: int = 5  # after the first attempt, if a retry can help

    def read_token(self) -> str | None:
        if self.token_file is None:
            return self.token
        try:
            with open(self.token_file, encoding="utf-8") as file:
                return file.read().strip()
        except OSError as error:
            raise BadOption(f"tokenFile: {self.token_file} cannot be read: {error.strerror}") from None


class ReadOptions(Struct, frozen=True, kw_only=True, rename="camel"):
    """The checked options of a reader, under their names of the data source. `docs/spark.md` describes them."""

    connection: ConnectionOptions = ConnectionOptions()
    path: str | None = None
    cold_path: str | None = None
    lake: str | None = None
    lake_only: bool = False
    topics: tuple[str, ...] = field(default=(), name="subscribe")
    prefix: str | None = field(default=None, name="subscribePrefix")
    pattern: str | None = field(default=None, name="subscribePattern")
    starting: Offsets | None = field(default=None, name="startingOffsets")  # None: earliest; for a stream, latest
    ending: Offsets | None = field(default=None, name="endingOffsets")
    starting_ts: int | None = field(default=None, name="startingTimestamp")
    ending_ts: int | None = field(default=None, name="endingTimestamp")
    max_offsets: int | None = field(default=None, name="maxOffsetsPerTrigger")
    consumer: str | None = None
    min_partitions: int = 1
    partition_bytes: int = field(default=DEFAULT_PARTITION_BYTES, name="maxPartitionBytes")
    max_bytes_per_second: int | None = None  # from servers; in a task, its share
    nodes: tuple[str, ...] = field(default=(), name="node")
    tag: TagMatch | None = None
    where: TagMatch | None = None  # a filter on fields
    fail_on_data_loss: bool = True
    typed: bool = False
    push_filters: bool = False

    @property
    def match(self) -> TagMatch | None:
        """The conditions on the tag and on fields as one."""
        if self.tag is None or self.where is None:
            return self.where or self.tag
        return parse_filter(["And", [self.tag.wire(), msgspec.json.decode(self.where.text)]])

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


Converters = Mapping[str, Callable[[str, str], Any]]  # from the name and the text of an option to its value


def known(given: Mapping[str, str], converters: Converters) -> dict[str, str]:
    """Return the options under their names, in the usual case. Raise `BadOption` for an unknown option."""
    names = {name.lower(): name for name in (*CONNECTION, *converters)}
    found: dict[str, str] = {}
    for key in given:
        name = names.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.0)
            raise BadOption(f"there is no option {key!r}; did you mean {names[near[0]]!r}?")
        found[name] = given[key]
    return found


def converted(kind: type[Struct], found: Mapping[str, str], converters: Converters) -> dict[str, Any]:
    """Return the fields of `kind` that are given; an empty flag is not. Raise `BadOption` if a value is invalid."""
    names = {one.encode_name: one.name for one in structs.fields(kind)}
    given = {
        name: text for name, text in found.items() if name in converters and (text or converters[name] is not flag)
    }
    return {names[name]: converters[name](name, text) for name, text in given.items()}


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the checked options of a reader. Raise `BadOption` if one is invalid."""
    found = known(given, READ)
    options = ReadOptions(connection=connection(found), **converted(ReadOptions, found, READ))
    _check_together(found, options)
    return options


def connection(found: Mapping[str, str]) -> ConnectionOptions:
    """Return the connection options, which readers and writers share; `found` is the result of `known`."""
    if "token" in found and "tokenFile" in found:
        raise BadOption("token and tokenFile: give one of them")
    return ConnectionOptions(**converted(ConnectionOptions, found, CONNECTION))


def _server(name: str, text: str) -> str:
    """Return the addresses of a server and its standbys, which are separated by commas."""
    addresses = [url.rstrip("/") for url in listed(text)]
    for url in addresses or [text]:
        if not re.match(r"https?://[^/]", url):
            raise BadOption(f"url: {url!r} is not the URL of a server, such as {DEFAULT_URL}")
    return ",".join(addresses)


def as_text(name: str, text: str) -> str:
    return text


def flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise BadOption(f"{name}: {text!r} is neither true nor false")
    return text.lower() == "true"


def at_least(least: int) -> Callable[[str, str], int]:
    def number(name: str, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise BadOption(f"{name}: {text!r} is not a whole number of at least {least}")
        return int(text)

    return number


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
        if unknown := sorted(topic for topic in offsets.by_topic if not options.wants(topic)):
            raise BadOption(f"{name}: topic {unknown[0]!r} is not one of {options.subscription()}")


def some(name: str, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(listed(text)))
    if not names:
        raise BadOption(f"{name}: at least one topic is needed")
    for topic in names:
        valid(check_topic)(name, topic)
    return names


def valid(check: Callable[[str], T]) -> Callable[[str, str], T]:
    """Return a converter that accepts what `check` accepts."""

    def converter(name: str, text: str) -> T:
        try:
            return check(text)
        except TopicsError as error:
            raise BadOption(f"{name}: {error.message}") from None

    return converter


def _directory(name: str, text: str) -> str:
    """Return the absolute path of a directory that the driver and every executor open under the same name."""
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
    converters = {"path": _directory, "coldpath": _directory, "lake": _lake, "tokenfile": _absolute}
    for name, value in options.items():
        with suppress(BadOption):  # the source reports it
            if (convert := converters.get(name.lower())) is not None:
                found[name] = convert(name, value)
    return found


def _absolute(name: str, text: str) -> str:
    return os.path.abspath(text)


def _lake(name: str, text: str) -> str:
    from topics.lake.errors import LakeError
    from topics.lake.storage import location

    try:
        return location(text)
    except LakeError as error:
        raise BadOption(f"lake: {error}") from None


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise BadOption(f"subscribePattern: {text!r} is not a regular expression: {error}") from None
    return text


def _offsets(name: str, text: str) -> Offsets:
    if text.lower() in ("earliest", "latest"):
        return Offsets(EDGES[text.lower()])
    wrong = BadOption(f'{name}: {text[:200]!r} is neither "earliest" nor "latest" nor JSON such as {{"orders": 1}}')
    try:
        decoded: Any = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        raise wrong from None
    if not isinstance(decoded, dict):
        raise wrong
    otherwise: Offset = "earliest" if name == "startingOffsets" else "latest"
    return Offsets(otherwise, {topic: _offset(value, wrong) for topic, value in decoded.items()})


def offset_option(topic: str, seq: int) -> str:
    """Return a seq of one topic as a value of `startingOffsets` or `endingOffsets`."""
    return msgspec.json.encode({topic: seq}).decode()


def range_options(ranges: Mapping[str, tuple[int, int]], *, fail_on_data_loss: bool = False) -> dict[str, str]:
    """Return the options that read the seqs [start, stop) of each topic."""
    starts, stops = (msgspec.json.encode({topic: pair[at] for topic, pair in ranges.items()}).decode() for at in (0, 1))
    return {
        "subscribe": ",".join(ranges), "failOnDataLoss": str(fail_on_data_loss).lower(),
        "startingOffsets": starts, "endingOffsets": stops,
    }  # fmt: skip


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


def _timestamp(name: str, text: str) -> int:
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


CONNECTION: Converters = {
    "url": _server, "token": as_text, "tokenFile": _absolute, "timeoutMs": at_least(1), "retries": at_least(0),
}  # fmt: skip
READ: Converters = {
    "path": _directory, "coldPath": _directory, "lake": _lake, "lakeOnly": flag, "subscribe": some,
    "subscribePrefix": as_text, "subscribePattern": _pattern, "startingOffsets": _offsets, "endingOffsets": _offsets,
    "startingTimestamp": _timestamp, "endingTimestamp": _timestamp, "maxOffsetsPerTrigger": at_least(1),
    "consumer": valid(check_consumer), "minPartitions": at_least(1), "maxPartitionBytes": at_least(1),
    "maxBytesPerSecond": at_least(1),
    "node": lambda _, text: tuple(listed(text)), "failOnDataLoss": flag,
    "tag": lambda _, text: TagMatch("Glob", text[:-1]) if text.endswith("*") else TagMatch("Eq", text),
    "where": valid(lambda text: parse_filter(["Where", text], field="where")),
    "typed": flag, "pushFilters": flag,
}  # fmt: skip


# --- the options of the sinks

DataFormat = Literal["json", "text"]
KeyBy = Literal["rows", "source", "range"]
DEFAULT_WINDOW_MS = 7 * 24 * 3_600_000
# A sink waits for a server that restarts, because a failed query must be started again by hand. The pauses between
# so many attempts add up to about half a minute.
PATIENT_RETRIES = 12

OF_SPARK = "queryname"  # an option that Spark's own streams read


class WriteOptions(Struct, frozen=True, kw_only=True, rename="camel"):
    """The checked options of a writer, under their names of the data source. `docs/spark.md` describes them."""

    connection: ConnectionOptions = ConnectionOptions()
    topic: str | None = None
    data_format: DataFormat = "json"
    create: bool = field(default=True, name="createTopics")
    config: dict[str, Any] = field(default={}, name="topicConfig")
    window_ms: int | None = field(default=None, name="idempotencyWindowMs")
    key_by: KeyBy = "rows"
    sort_rows: bool = False
    write_id: str | None = None
    checkpoint: str | None = field(default=None, name="checkpointLocation")  # None also if it is not a directory

    @property
    def creation(self) -> dict[str, Any]:
        """The settings for a topic that a write creates."""
        return {"idempotency_window_ms": DEFAULT_WINDOW_MS, **self.config}


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Return the checked options of a writer. Raise `BadOption` if one is invalid."""
    if any(key.lower() == "path" for key in given):
        raise BadOption("path: a topic is written through its server; use the options topic and url")
    found = known({key: given[key] for key in given if key.lower() != OF_SPARK}, WRITE)
    reached = patient(connection(found), found)
    options = WriteOptions(connection=reached, **converted(WriteOptions, found, WRITE))
    if options.window_ms is None:
        return options
    return structs.replace(options, config={**options.config, "idempotency_window_ms": options.window_ms})


def patient(made: ConnectionOptions, given: Mapping[str, str]) -> ConnectionOptions:
    """Return the connection of a stream or sink, with more retries than the default unless `retries` is set."""
    if any(key.lower() == "retries" for key in given):
        return made
    return structs.replace(made, retries=PATIENT_RETRIES)


def _config(name: str, text: str) -> dict[str, Any]:
    try:
        config = msgspec.json.decode(text, type=dict[str, Any])
        if unknown := sorted(set(config) - set(ConfigPatch.__struct_fields__)):
            raise BadOption(f"topicConfig: a topic has no setting {unknown[0]!r}")
        configure("topic", msgspec.convert(config, ConfigPatch))
    except (msgspec.MsgspecError, TopicsError) as error:
        raise BadOption(f"topicConfig: {text[:200]!r} are not settings of a topic: {error}") from None
    return config


def _choice(*choices: str) -> Callable[[str, str], str]:
    def converter(name: str, text: str) -> str:
        if text.lower() not in choices:
            raise BadOption(f"{name}: {text!r} is neither {' nor '.join(choices)}")
        return text.lower()

    return converter


def _checkpoint(name: str, text: str) -> str | None:
    with suppress(BadOption):  # an object store
        return _directory(name, text)
    return None


def _write_id(name: str, text: str) -> str:
    if not 1 <= len(text) <= 64:
        raise BadOption(f"writeId: {len(text)} characters; 1 to 64 are allowed")
    return text


WRITE: Converters = {
    "topic": valid(check_topic), "dataFormat": _choice(*get_args(DataFormat)), "createTopics": flag,
    "topicConfig": _config, "idempotencyWindowMs": at_least(0), "keyBy": _choice(*get_args(KeyBy)), "sortRows": flag,
    "writeId": _write_id, "checkpointLocation": _checkpoint,
}  # fmt: skip
