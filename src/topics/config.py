"""Settings: one table, read from `TOPICS_*` variables and the flags of the same names.

`Settings` is the table. A field is a row: its name gives the variable and the flag (`data_dir` is `TOPICS_DATA_DIR`
and `--data-dir`), and its value carries kind, default, bounds and help. Loading, `--help`, the documentation and the
tests all read the rows, so a setting is declared once.

Nothing is guessed: a value that does not parse, or is out of bounds, is a problem with a name, and every problem of a
start is told at once. An empty value counts as unset.
"""

import dataclasses
import difflib
import ipaddress
import itertools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from topics.keys import BadKeys, KeyRule, check_distinct, parse_lines, parse_list

PREFIX = "TOPICS_"

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
U63 = (1 << 63) - 1


class BadSettings(Exception):
    """Every setting that cannot be used, one line each; none of the lines holds a secret."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """How text becomes a value, and how the value is shown. `parse` raises ValueError with the reason."""

    name: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One row of the table."""

    name: str
    group: str
    kind: Kind
    default: Any
    low: int | None
    high: int | None
    help: str
    secret: bool

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def unbounded(self) -> bool:
        """Whether only what a signed 64-bit column can hold limits the value from above."""
        return self.high == U63

    def read(self, text: str) -> Any:
        value = self.kind.parse(text)
        if self.low is not None and value < self.low:
            raise ValueError(f"{text} is below the least allowed, {self.kind.show(self.low)}")
        if self.high is not None and value > self.high:
            raise ValueError(f"{text} is above the most allowed, {self.kind.show(self.high)}")
        return value

    def shown(self, value: Any) -> str:
        """The value as a person would write it; a secret never shows."""
        if value in (None, "", ()):
            return ""
        return "(hidden)" if self.secret else self.kind.show(value)


# --- kinds ---

_SIZE = re.compile(r"([0-9]+) ?(|k|K|M|G|T|KiB|MiB|GiB|TiB)")
_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1 << 40}
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s@]+")


def _parse_integer(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None or len(text) > 24:
        raise ValueError(f"{text!r} is not a size; write bytes, or a number with KiB, MiB or GiB (k, M, G for short)")
    return int(match[1]) * _UNITS[match[2][:1].upper()]


def _show_size(value: int) -> str:
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return str(value)


def _parse_bool(text: str) -> bool:
    word = text.lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(f"{text!r} is not a yes or a no; write 1, 0, true, false, yes or no")
    return word in _TRUE


def _parse_origins(text: str) -> tuple[str, ...]:
    origins = tuple(part.strip() for part in text.split(",") if part.strip())
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ValueError(f"{origin!r} is not an origin; write * or scheme://host[:port], without a path")
    return origins


@dataclasses.dataclass(frozen=True)
class KeyFile:
    """A file of API keys, read once: its secrets are hashed and forgotten with the text they stood in."""

    path: Path
    rules: tuple[KeyRule, ...] = dataclasses.field(repr=False)


def _parse_key_file(text: str) -> KeyFile:
    path = Path(text)
    try:
        return KeyFile(path, parse_lines(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{text} cannot be read: {_reason(error)}") from None
    except BadKeys as error:
        raise ValueError(f"{text}: {error}") from None


def _parse_output_file(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir():
        raise ValueError(f"the directory of {text} does not exist")
    return path


def _parse_directory(text: str) -> Path:
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{text} is not a directory")
    return path


def _choice(*words: str) -> Kind:
    def parse(text: str) -> str:
        word = text.lower()
        if word not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return word

    return Kind(name=" | ".join(words), parse=parse)


def _reason(error: Exception) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__


TEXT = Kind(name="text", parse=str)
COUNT = Kind(name="integer", parse=_parse_integer)
MILLIS = Kind(name="milliseconds", parse=_parse_integer)
SIZE = Kind(name="size", parse=_parse_size, show=_show_size)
FLAG = Kind(name="boolean", parse=_parse_bool, show=lambda value: "true" if value else "false")
ORIGINS = Kind(name="list of origins", parse=_parse_origins, show=",".join)
DIRECTORY = Kind(name="directory", parse=_parse_directory)
KEYS = Kind(name="list of keys", parse=parse_list)
KEY_FILE = Kind(name="file", parse=_parse_key_file, show=lambda value: str(value.path))
OUTPUT_FILE = Kind(name="file", parse=_parse_output_file)

_ROW = "setting"


def _row(
    kind: Kind,
    default: Any,
    help: str,
    *,
    group: str,
    low: int | None = None,
    high: int | None = None,
    secret: bool = False,
) -> Any:
    """A field of `Settings` that knows its row; `Any` lets the annotation beside it say the type."""
    row = {"kind": kind, "default": default, "low": low, "high": high, "help": help, "group": group, "secret": secret}
    return dataclasses.field(default=default, repr=not secret, metadata={_ROW: row})


def _count(default: int, help: str, *, group: str, low: int = 1, high: int = U63) -> Any:
    return _row(COUNT, default, help, group=group, low=low, high=high)


def _size(default: int, help: str, *, group: str, low: int = 1, high: int = U63) -> Any:
    return _row(SIZE, default, help, group=group, low=low, high=high)


def _millis(default: int, help: str, *, group: str, low: int = 1, high: int = DAY_MS) -> Any:
    return _row(MILLIS, default, help, group=group, low=low, high=high)


def _cap(default: int, help: str) -> Any:
    return _row(COUNT, default, help + " 0 is unlimited.", group=CAPS, low=0, high=U63)


ADDRESS = "Address"
LOGGING = "Logging"
SECURITY = "Security"
REQUESTS = "Sizes of requests and answers"
CAPS = "Resource caps"
CONNECTIONS = "Connections"
STORAGE = "Storage"
TIERS = "Hot and cold segments"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What a server runs with. Made by `load` from the outside world, or directly, by keyword, in tests."""

    host: str = _row(
        TEXT, "127.0.0.1", "Address or name to listen on. One beyond loopback needs API keys.", group=ADDRESS
    )
    port: int = _count(4000, "Port to listen on; 0 takes a free one.", group=ADDRESS, low=0, high=65_535)
    port_file: Path | None = _row(
        OUTPUT_FILE, None, "File that receives the bound port once the server listens.", group=ADDRESS
    )
    cors_origins: tuple[str, ...] = _row(
        ORIGINS, (), "Origins whose pages may call the API, separated by commas; * is any.", group=ADDRESS
    )

    log_level: str = _row(
        _choice("debug", "info", "warning", "error"), "info", "Least severity that is logged.", group=LOGGING
    )
    log_format: str = _row(
        _choice("auto", "human", "json"),
        "auto",
        "Form of a log line; auto is human on a terminal and json elsewhere.",
        group=LOGGING,
    )

    api_keys: tuple[KeyRule, ...] = _row(
        KEYS,
        (),
        "API keys, separated by commas, each key[:scopes[:prefixes]]. Other users of the machine can see flags: "
        "prefer the variable or the file.",
        group=SECURITY,
        secret=True,
    )
    api_keys_file: KeyFile | None = _row(
        KEY_FILE, None, "File with one API key a line, added to those above; lines with # are comments.", group=SECURITY
    )
    allow_insecure_no_auth: bool = _row(
        FLAG, False, "Allow a bind beyond loopback without any API key.", group=SECURITY
    )
    probe_auth: bool = _row(FLAG, False, "Ask for a key on the health and readiness probes too.", group=SECURITY)

    max_batch_records: int = _count(10_000, "Records in one write.", group=REQUESTS, high=1_000_000)
    max_record_bytes: int = _size(
        MIB,
        "Data and meta of one record. Unset, it follows a body or meta limit that was set.",
        group=REQUESTS,
        high=GIB,
    )
    max_body_bytes: int = _size(
        64 * MIB,
        "One request body, after decompression. Unset, it is at least the record limit.",
        group=REQUESTS,
        high=GIB,
    )
    max_meta_bytes: int = _size(
        16 * KIB, "Meta of one record. Unset, it is at most the record limit.", group=REQUESTS, high=GIB
    )
    max_tag_bytes: int = _size(256, "Tag of one record.", group=REQUESTS, high=64 * KIB - 1)
    max_node_bytes: int = _size(128, "Node name of one record.", group=REQUESTS, high=64 * KIB - 1)
    max_limit: int = _count(1000, "Records in one read; a larger limit is clamped.", group=REQUESTS, high=1_000_000)
    max_claim: int = _count(1000, "Jobs in one claim, ack, nack or extend.", group=REQUESTS, high=1_000_000)
    max_watch_topics: int = _count(256, "Topics in one watch session.", group=REQUESTS, high=1_000_000)

    max_topics: int = _cap(100_000, "Topics.")
    max_routers: int = _cap(10_000, "Routers.")
    max_watch_sessions: int = _cap(10_000, "Watch sessions.")
    max_sse_connections: int = _cap(10_000, "Open event streams and WebSockets.")
    max_sse_connections_per_key: int = _cap(1000, "Open event streams and WebSockets of one API key.")
    max_inflight_per_key: int = _cap(1000, "Requests of one API key that are being answered.")
    max_total_bytes: int = _row(SIZE, 0, "Bytes of all retained records. 0 is unlimited.", group=CAPS, low=0, high=U63)
    memory_budget_bytes: int | None = _row(
        SIZE, None,
        "Bytes that clients may make the server hold beside records: bodies, answers, sessions, idempotency keys. Past "
        "it new requests are refused with 429. Unset: a quarter of the memory of the machine or its cgroup. 0 is "
        "unlimited.",
        group=CAPS, low=0, high=U63,
    )  # fmt: skip
    max_idempotency_keys: int = _count(1_000_000, "Idempotency keys remembered for one topic.", group=CAPS)
    metrics_max_topics: int = _count(1000, "Topics that metrics name; the rest are summed.", group=CAPS, low=0)
    session_ttl_ms: int = _millis(300_000, "Life of a watch session that has no open stream.", group=CAPS)

    max_connections: int = _count(
        0,
        "Open connections. One more closes a connection that is idle, or is refused with 429. 0 is as many as the "
        "limit of descriptors (ulimit -n) leaves beside files; a larger number is lowered to that.",
        group=CONNECTIONS,
        low=0,
    )
    max_header_bytes: int = _size(32 * KIB, "Request line and headers together.", group=CONNECTIONS, low=KIB, high=MIB)
    max_headers: int = _count(100, "Header fields in one request.", group=CONNECTIONS, high=10_000)
    header_timeout_ms: int = _millis(
        10_000, "From the first byte of a request to the end of its head.", group=CONNECTIONS
    )
    body_timeout_ms: int = _millis(60_000, "From the end of the head to the end of the body.", group=CONNECTIONS)
    idle_timeout_ms: int = _millis(75_000, "Life of a connection between two requests.", group=CONNECTIONS)
    buffer_grace_ms: int = _millis(
        5_000, "How long a watcher's connection may be full before what it lost meanwhile is told as too old.",
        group=CONNECTIONS, low=0,
    )  # fmt: skip
    slow_consumer_timeout_ms: int = _millis(
        30_000, "How long a watcher's connection may be full before it is closed.", group=CONNECTIONS
    )
    ws_deflate: bool = _row(FLAG, False, "Compress WebSocket messages for clients that offer it.", group=CONNECTIONS)
    pressure_lag_ms: int = _millis(
        250,
        "How late the server may run before it refuses requests with 429; pushes wait before that. 0 is never.",
        group=CONNECTIONS,
        low=0,
    )
    drain_timeout_ms: int = _millis(
        10_000, "How long open requests may still take once the server was told to stop.", group=CONNECTIONS, low=0
    )

    data_dir: Path | None = _row(
        DIRECTORY, None, "Where records are kept. Unset: in memory only, and lost when the server stops.", group=STORAGE
    )
    sync_interval_ms: int = _millis(
        100,
        "How soon after a write its bytes are synced, for topics that do not wait for it.",
        group=STORAGE,
        high=60_000,
    )
    wal_file_bytes: int = _size(
        16 * MIB,
        "Size of a write-ahead log file, at which the next one begins.",
        group=STORAGE,
        low=64 * KIB,
        high=4 * GIB,
    )
    checkpoint_wal_bytes: int = _size(
        64 * MIB, "Write-ahead log that has grown by this much is checkpointed.", group=STORAGE, low=64 * KIB
    )
    checkpoint_interval_ms: int = _millis(300_000, "Longest time between two checkpoints.", group=STORAGE, low=100)
    segment_max_events: int = _count(
        65_536, "Records in a segment before it is sealed.", group=STORAGE, low=16, high=1_048_576
    )
    segment_max_bytes: int = _size(
        64 * MIB, "Bytes in a segment before it is sealed.", group=STORAGE, low=4 * KIB, high=GIB
    )
    segment_max_age_ms: int = _millis(
        HOUR_MS, "Age of a segment before it is sealed.", group=STORAGE, low=100, high=365 * DAY_MS
    )

    cold_dir: Path | None = _row(
        DIRECTORY,
        None,
        "Where sealed segments go once a topic has more than it may keep in the data directory.",
        group=TIERS,
    )
    hot_retain_segments: int = _count(
        0, "Sealed segments a topic keeps in the data directory. 0 is no bound.", group=TIERS, low=0
    )
    hot_retain_bytes: int = _size(
        0, "Bytes of sealed segments a topic keeps in the data directory. 0 is no bound.", group=TIERS, low=0
    )

    @classmethod
    def load(cls, env: Mapping[str, str], flags: Mapping[str, str]) -> Self:
        """A process's settings: a flag (by field name) beats its variable. Raises `BadSettings` with every problem."""
        values: dict[str, Any] = {}
        problems: list[str] = []
        for row in SETTINGS:
            source, text = _given(row, env, flags)
            if not text:
                continue
            try:
                values[row.name] = row.read(text)
            except (ValueError, OSError) as error:
                told = not row.secret or isinstance(error, BadKeys)
                problems.append(f"{source}: {error if told else 'the value cannot be used'}")
        problems += _size_conflicts(values)
        settings = cls(**_with_followers(values))
        problems += _conflicts(settings)
        if problems:
            raise BadSettings(problems)
        return settings

    def key_rules(self) -> tuple[KeyRule, ...]:
        """What the configured API keys allow, those of the setting first. Empty: nobody is asked for a key."""
        return self.api_keys + (self.api_keys_file.rules if self.api_keys_file is not None else ())

    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server. A name other than localhost may resolve to anything."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False


SETTINGS: tuple[Setting, ...] = tuple(
    Setting(name=field.name, **field.metadata[_ROW]) for field in dataclasses.fields(Settings)
)


def _given(row: Setting, env: Mapping[str, str], flags: Mapping[str, str]) -> tuple[str, str]:
    """Where the text of a setting comes from, and the text; an empty flag takes a variable back."""
    if row.name in flags:
        return row.flag, flags[row.name].strip()
    return row.variable, env.get(row.variable, "").strip()


def _conflicts(settings: Settings) -> list[str]:
    """Settings that are fine alone and make no sense together. A row that did not parse stands at its default here."""
    found: list[str] = []
    if not settings.is_loopback() and not settings.allow_insecure_no_auth and not settings.key_rules():
        found.append(
            f"TOPICS_HOST: {settings.host} is reachable from other machines and no API key is set; set TOPICS_API_KEYS "
            "or TOPICS_API_KEYS_FILE, or TOPICS_ALLOW_INSECURE_NO_AUTH=1 if anybody there may read and write everything"
        )
    try:
        check_distinct(settings.key_rules())
    except BadKeys as error:
        found.append(f"TOPICS_API_KEYS, TOPICS_API_KEYS_FILE: {error}")
    if settings.cold_dir is not None and settings.data_dir is None:
        found.append("TOPICS_COLD_DIR: there is nothing to move there without TOPICS_DATA_DIR")
    if settings.cold_dir is not None and settings.cold_dir == settings.data_dir:
        found.append("TOPICS_COLD_DIR: must differ from TOPICS_DATA_DIR")
    if settings.cold_dir is None and (settings.hot_retain_segments or settings.hot_retain_bytes):
        found.append("TOPICS_HOT_RETAIN_SEGMENTS, TOPICS_HOT_RETAIN_BYTES: need TOPICS_COLD_DIR to move segments to")
    return found


# Each of these is part of the next: a larger limit on the part could never be used.
_NESTED_SIZES = ("max_meta_bytes", "max_record_bytes", "max_body_bytes")


def _size_conflicts(values: Mapping[str, Any]) -> list[str]:
    """Return a problem for every two size limits that were set and contradict each other."""
    given = [row for name in _NESTED_SIZES for row in SETTINGS if row.name == name and name in values]
    return [
        f"{small.variable}: {small.shown(values[small.name])} is more than {large.variable} allows "
        f"({large.shown(values[large.name])}); lower the one or raise the other"
        for small, large in itertools.pairwise(given)
        if values[small.name] > values[large.name]
    ]


def _with_followers(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values, with the size limits that were not set moved as far as those that were require."""
    followed = dict(values)
    for row in SETTINGS:
        if row.name in _NESTED_SIZES and row.name not in values:
            at = _NESTED_SIZES.index(row.name)
            low = max((values[name] for name in _NESTED_SIZES[:at] if name in values), default=0)
            high = min((values[name] for name in _NESTED_SIZES[at + 1 :] if name in values), default=row.high)
            followed[row.name] = min(max(row.default, low), high)
    return followed


def unknown_variables(env: Mapping[str, str]) -> list[str]:
    """A line for every `TOPICS_*` variable that is no setting, with the name it may be a slip of."""
    known = [row.name.upper() for row in SETTINGS]
    lines = []
    for variable in sorted(env):
        name = variable.removeprefix(PREFIX)
        if name != variable and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            lines.append(f"{variable} is no setting" + (f"; did you mean {PREFIX}{near[0]}?" if near else ""))
    return lines
