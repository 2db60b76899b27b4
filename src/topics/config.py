"""Settings: one table, read from `TOPICS_*` variables and the flags of the same names.

`Settings` is the table. A field is a row: its name gives the variable and the flag (`data_dir` is `TOPICS_DATA_DIR`
and `--data-dir`), and its value carries kind, default, bounds and help. Loading, `--help`, the documentation and the
tests all read the rows, so a setting is declared once. An empty value counts as unset.
"""

import dataclasses
import difflib
import ipaddress
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from topics.keys import BadKeys, KeyRule, check_distinct
from topics.setting_kinds import (
    BUCKET_URL,
    COUNT,
    DAY_MS,
    DIRECTORY,
    FLAG,
    GIB,
    HOUR_MS,
    HTTP_URL,
    INPUT_FILE,
    KEY_FILE,
    KEYS,
    KIB,
    MIB,
    MILLIS,
    NAMES,
    ORIGINS,
    OUTPUT_FILE,
    SIZE,
    TEXT,
    TOKEN_KEY_FILE,
    U63,
    WEBHOOKS_FILE,
    Kind,
    SecretFile,
    choice,
)

PREFIX = "TOPICS_"


class BadSettings(Exception):
    """Invalid settings, one line per problem. No line contains a secret."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
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
        """Whether the only upper bound is a signed 64-bit integer."""
        return self.high == U63

    def read(self, text: str) -> Any:
        """Return the value of a text. Raise ValueError if it does not parse or is out of bounds."""
        value = self.kind.parse(text)
        if self.low is not None and value < self.low:
            raise ValueError(f"{text} is below the minimum ({self._bounds()})")
        if self.high is not None and value > self.high:
            raise ValueError(f"{text} is above the maximum ({self._bounds()})")
        return value

    def _bounds(self) -> str:
        low = self.kind.show(self.low)
        return f"at least {low}" if self.unbounded else f"{low} to {self.kind.show(self.high)}"

    def shown(self, value: Any) -> str:
        """Return the value as an operator would write it. A secret is hidden."""
        if value in (None, "", ()):
            return ""
        return "(hidden)" if self.secret else self.kind.show(value)


def _cap(default: int, help: str) -> Any:
    return COUNT(default, help + " 0 means unlimited.", low=0)


TIERS = "Hot and cold segments"
GROUPS = {  # by their first settings
    "host": "Address",
    "log_level": "Logging",
    "api_keys": "Security",
    "max_batch_records": "Sizes of requests and answers",
    "max_topics": "Resource caps",
    "max_connections": "Connections",
    "data_dir": "Storage",
    "cold_dir": TIERS,
    "replica": "Replica",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a server. `load` reads them from the environment and flags; tests pass them by keyword."""

    host: str = TEXT("127.0.0.1", "Address or host name to listen on. A non-loopback address needs API keys.")
    port: int = COUNT(4000, "Port to listen on. 0 chooses a free port.", low=0, high=65_535)
    port_file: Path | None = OUTPUT_FILE(None, "File to which the server writes its port once it listens.")
    cors_origins: tuple[str, ...] = ORIGINS(
        (), "Origins whose pages may call the API, separated by commas. * allows all."
    )
    console: bool = FLAG(True, "Serve the web console at /console.")
    mcp_destructive: bool = FLAG(False, "Offer the tools that delete to agents at /mcp, too; keys limit them further.")

    log_level: str = choice("debug", "info", "warning", "error")("info", "Minimum severity of log lines.")
    log_format: str = choice("auto", "human", "json")(
        "auto", "Format of log lines. auto means human on a terminal and json elsewhere."
    )
    slow_request_ms: int = MILLIS(1000, "Log requests that take longer. 0 disables this.", low=0)

    api_keys: tuple[KeyRule, ...] = KEYS(
        (),
        "API keys, separated by commas, each secret[:scopes[:prefixes]]. Other users of the machine can see flags: use "
        "the variable or the file.",
        secret=True,
    )
    api_keys_file: SecretFile | None = KEY_FILE(
        None, "File with one API key per line, in addition to those above. Lines that start with # are comments."
    )
    token_keys_file: SecretFile | None = TOKEN_KEY_FILE(
        None,
        "File with the keys that sign tokens: secrets, public keys in PEM form, or a JWKS. Without it, the server "
        "signs with a secret of its own, and tokens end when it restarts.",
    )
    webhooks_file: SecretFile | None = WEBHOOKS_FILE(
        None, "File with the topics that take webhooks: a JSON object with the style and the secrets of each."
    )
    max_auth_failures: int = COUNT(
        60,
        "Failed authentications per minute after which an address is refused for up to a minute. 0 refuses none, and "
        "addresses of this machine never are, because they may be a proxy.",
        low=0,
    )
    auto_create: tuple[str, ...] = NAMES(
        ("all",),
        "Topics that a write may create: all, none, or names, and prefixes with a star at their end, separated by "
        "commas.",
    )
    allow_insecure_no_auth: bool = FLAG(False, "Allow a non-loopback address without API keys.")
    probe_auth: bool = FLAG(False, "Require an API key for the health and readiness probes too.")
    tls_cert: Path | None = INPUT_FILE(None, "Certificate chain in PEM form. The server then serves HTTPS only.")
    tls_key: Path | None = INPUT_FILE(None, "Private key of the certificate, if it is not in the same file.")

    max_batch_records: int = COUNT(10_000, "Maximum records in one write.", high=1_000_000)
    max_record_bytes: int = SIZE(
        MIB, "Data and meta of one record. If unset, it follows the body and meta limits.", high=GIB
    )
    max_body_bytes: int = SIZE(
        64 * MIB, "A request body, decompressed. If unset, it is at least the record limit.", high=GIB
    )
    max_meta_bytes: int = SIZE(16 * KIB, "Meta of one record. If unset, it is at most the record limit.", high=GIB)
    max_tag_bytes: int = SIZE(256, "Maximum size of a tag.", high=64 * KIB - 1)
    max_node_bytes: int = SIZE(128, "Maximum size of a node name.", high=64 * KIB - 1)
    max_limit: int = COUNT(1000, "Maximum records in one read; larger is clamped.", high=1_000_000)
    max_claim: int = COUNT(1000, "Maximum jobs in one claim, ack, nack or extend.", high=1_000_000)
    max_watch_topics: int = COUNT(
        256, "Maximum topics, and patterns, in one watch session or WebSocket.", high=1_000_000
    )

    max_topics: int = _cap(100_000, "Maximum number of topics.")
    max_routers: int = _cap(10_000, "Maximum number of routers.")
    max_copies: int = _cap(10_000, "Maximum copies of one record, if routers share source and destination.")
    max_schedules: int = _cap(10_000, "Maximum number of schedules.")
    max_consumers: int = _cap(1000, "Maximum number of named consumers per topic.")
    max_watch_sessions: int = _cap(10_000, "Maximum number of watch sessions.")
    max_sse_connections: int = _cap(10_000, "Maximum open event streams, WebSockets and scans.")
    max_sse_connections_per_key: int = _cap(1000, "Maximum open event streams, WebSockets and scans per API key.")
    max_inflight_per_key: int = _cap(1000, "Maximum number of concurrent requests per API key.")
    max_total_bytes: int = SIZE(0, "Maximum size of all stored records. 0 means unlimited.", low=0)
    memory_budget_bytes: int | None = SIZE(
        None,
        "Maximum memory for clients: bodies, answers, sessions, idempotency keys. Past it, large requests get 429. If "
        "unset, a quarter of the memory of the machine or its cgroup. 0 means unlimited.",
        low=0,
        high=U63,
    )
    max_idempotency_keys: int = COUNT(1_000_000, "Maximum number of idempotency keys per topic.")
    metrics_max_topics: int = COUNT(
        1000, "Maximum number of topics with their own metrics, the last written first. The others are summed.", low=0
    )
    metrics_topics: tuple[str, ...] = NAMES(
        (),
        "Topics that always have their own metrics: names, and prefixes with a star at their end, separated by commas.",
    )
    session_ttl_ms: int = MILLIS(300_000, "Time until a watch session without a stream expires.")

    max_connections: int = COUNT(
        0,
        "Maximum number of open connections. Past it, a new connection replaces an idle one, or gets 429. 0 means as "
        "many as the file descriptor limit (ulimit -n) allows; larger values are lowered to that.",
        low=0,
    )
    max_header_bytes: int = SIZE(32 * KIB, "Maximum size of the request line and headers.", low=KIB, high=MIB)
    max_headers: int = COUNT(100, "Maximum number of header fields in a request.", high=10_000)
    header_timeout_ms: int = MILLIS(10_000, "Maximum time from the first byte of a request to the end of its headers.")
    body_timeout_ms: int = MILLIS(60_000, "Maximum time from the end of the headers to the end of the body.")
    idle_timeout_ms: int = MILLIS(75_000, "Time after which an idle connection is closed.")
    buffer_grace_ms: int = MILLIS(
        5_000,
        "Time for which a watcher's connection may be full before its gaps are reported as from_seq_too_old.",
        low=0,
    )
    slow_consumer_timeout_ms: int = MILLIS(
        30_000, "Time for which a watcher's connection may be full before it is closed."
    )
    pressure_lag_ms: int = MILLIS(
        250, "Loop lag at which requests get 429; pushes are delayed earlier. 0 disables this.", low=0
    )
    drain_timeout_ms: int = MILLIS(10_000, "Maximum time for open requests to finish after SIGTERM or SIGINT.", low=0)

    data_dir: Path | None = DIRECTORY(
        None, "Data directory. If unset, records are in memory only and lost when the server stops."
    )
    sync_interval_ms: int = MILLIS(
        100, "Time after which writes are synced, for topics that do not wait for the sync.", high=60_000
    )
    wal_file_bytes: int = SIZE(
        16 * MIB, "Size at which a new write-ahead log file is started.", low=64 * KIB, high=4 * GIB
    )
    checkpoint_wal_bytes: int = SIZE(
        64 * MIB, "Growth of the write-ahead log after which a checkpoint is taken.", low=64 * KIB
    )
    checkpoint_interval_ms: int = MILLIS(300_000, "Maximum time between two checkpoints.", low=100)
    segment_max_events: int = COUNT(65_536, "Number of records at which a segment is sealed.", low=16, high=1_048_576)
    segment_max_bytes: int = SIZE(64 * MIB, "Size at which a segment is sealed.", low=4 * KIB, high=GIB)
    segment_max_age_ms: int = MILLIS(HOUR_MS, "Age at which a segment is sealed.", low=100, high=365 * DAY_MS)
    scrub_interval_ms: int = MILLIS(
        7 * DAY_MS, "Time in which every stored checksum is compared about once. 0 disables this.", low=0,
        high=365 * DAY_MS,
    )  # fmt: skip
    backup_dir: Path | None = DIRECTORY(
        None, "Target of `topics backup`, for the metric topics_backup_age_seconds. The server only looks at its time."
    )
    rewrite_removed_percent: int = COUNT(
        50, "Share of removed bytes from which a sealed segment is rewritten without them. 0 disables this.", low=0,
        high=99,
    )  # fmt: skip

    cold_dir: Path | None = DIRECTORY(None, "Directory for sealed segments beyond the limits below.")
    hot_retain_segments: int = _cap(0, "Maximum sealed segments per topic in the data directory.")
    hot_retain_bytes: int = SIZE(
        0, "Maximum size of sealed segments per topic in the data directory. 0 means unlimited.", low=0
    )

    replica: str | None = BUCKET_URL(
        None, "Replica of the data directory: s3://bucket/prefix, gs://…, az://… or file:///directory."
    )
    replica_interval_ms: int = MILLIS(
        1000, "Time after which writes are uploaded, for topics that do not wait for it.", low=10, high=3_600_000
    )
    replica_timeout_ms: int = MILLIS(
        10_000, "Time after which a write that waits for the replica gets 503.", low=100, high=600_000
    )
    replica_max_lag_bytes: int = SIZE(4 * GIB, "Log that is kept while the replica cannot be reached.", low=MIB)
    replica_keep_ms: int = MILLIS(
        7 * DAY_MS, "Time for which every moment can be restored from the replica.", low=0, high=3650 * DAY_MS
    )

    standby: bool = FLAG(False, "Follow the writer of the replica: serve reads, and take over if it is silent.")
    no_takeover: bool = FLAG(False, "As a standby, never take over by itself: a read replica.")
    takeover_after_ms: int = MILLIS(
        15_000, "Silence of the writer after which a standby takes over. The same for all servers.", low=100
    )
    advertised_url: str | None = HTTP_URL(
        None, "Where clients reach this server, as others report it. The address that it listens on, if unset."
    )

    @classmethod
    def load(cls, env: Mapping[str, str], flags: Mapping[str, str]) -> Self:
        """Return the settings; a flag (by field name) overrides its variable. Raise `BadSettings` with all problems."""
        values: dict[str, Any] = {}
        problems: list[str] = []
        for row in SETTINGS:
            source, text = row.variable, env.get(row.variable, "")
            if row.name in flags:  # an empty flag unsets the variable
                source, text = row.flag, flags[row.name]
            if not text.strip():
                continue
            try:
                values[row.name] = row.read(text.strip())
            except (ValueError, OSError) as error:
                is_safe = not row.secret or isinstance(error, BadKeys)
                problems.append(f"{source}: {error if is_safe else 'the value is invalid'}")
        problems += _size_conflicts(values)
        settings = cls(**_with_followers(values))
        problems += _conflicts(settings)
        if problems:
            raise BadSettings(problems)
        return settings

    def key_rules(self) -> tuple[KeyRule, ...]:
        """Return the rules of all configured API keys. If there are none, the server requires no key."""
        return self.api_keys + (self.api_keys_file.keys if self.api_keys_file is not None else ())

    def reread(self) -> Self:
        """Return these settings with what the files with secrets hold now. Raise `ValueError` if one is invalid."""
        kinds = {"api_keys_file": KEY_FILE, "token_keys_file": TOKEN_KEY_FILE, "webhooks_file": WEBHOOKS_FILE}
        files = {name: kind.parse(str(getattr(self, name).path)) for name, kind in kinds.items() if getattr(self, name)}
        read = dataclasses.replace(self, **files)
        check_distinct(read.key_rules())
        return read

    def is_loopback(self) -> bool:
        """Return whether only this machine can reach the server. Host names other than localhost count as reachable."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False


def _rows() -> Iterator[Setting]:
    group = ""
    for field in dataclasses.fields(Settings):
        group = GROUPS.get(field.name, group)
        yield Setting(name=field.name, group=group, **field.metadata)


SETTINGS = tuple(_rows())


def _conflicts(settings: Settings) -> list[str]:
    """Return a problem for each set of valid settings that conflict. A row that did not parse has its default here."""
    found: list[str] = []
    if not settings.is_loopback() and not settings.allow_insecure_no_auth and not settings.key_rules():
        found.append(
            f"TOPICS_HOST: {settings.host} is reachable from other machines and no API key is set; set TOPICS_API_KEYS "
            "or TOPICS_API_KEYS_FILE, or TOPICS_ALLOW_INSECURE_NO_AUTH=1 to give every client full access"
        )
    try:
        check_distinct(settings.key_rules())
    except BadKeys as error:
        found.append(f"TOPICS_API_KEYS, TOPICS_API_KEYS_FILE: {error}")
    if settings.cold_dir is not None and settings.cold_dir == settings.data_dir:
        found.append("TOPICS_COLD_DIR: is the same directory as TOPICS_DATA_DIR; choose another")
    return found + [
        f"{PREFIX}{name.upper()}: needs {PREFIX}{other.upper()}, {what}; set both"
        for name, other, what in NEEDS
        if getattr(settings, name) and not getattr(settings, other)
    ]


# Settings, each with the one that it needs, and what that is.
NEEDS = (
    ("tls_key", "tls_cert", "the certificate of this key"),
    ("cold_dir", "data_dir", "whose segments it receives"),
    ("replica", "data_dir", "which it is a copy of"),
    ("standby", "replica", "which it follows"),
    ("no_takeover", "standby", "which it limits"),
    ("hot_retain_segments", "cold_dir", "to which segments move"),
    ("hot_retain_bytes", "cold_dir", "to which segments move"),
)


# Each limit covers a part of the next one, so it must not be larger.
_NESTED_SIZES = ("max_meta_bytes", "max_record_bytes", "max_body_bytes")


def _size_conflicts(values: Mapping[str, Any]) -> list[str]:
    """Return a problem for each pair of size limits that contradict each other."""
    given = [row for name in _NESTED_SIZES for row in SETTINGS if row.name == name and name in values]
    return [
        f"{small.variable}: {small.shown(values[small.name])} is above {large.variable} "
        f"({large.shown(values[large.name])}); lower the first or raise the second"
        for small, large in itertools.pairwise(given)
        if values[small.name] > values[large.name]
    ]


def _with_followers(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with defaults for unset size limits, adjusted to the limits that are set."""
    followed = dict(values)
    for row in SETTINGS:
        if row.name in _NESTED_SIZES and row.name not in values:
            at = _NESTED_SIZES.index(row.name)
            low = max((values[name] for name in _NESTED_SIZES[:at] if name in values), default=0)
            high = min((values[name] for name in _NESTED_SIZES[at + 1 :] if name in values), default=row.high)
            followed[row.name] = min(max(row.default, low), high)
    return followed


# Variables of commands that talk to a server, or run a pipeline; a shell may have them beside the settings.
CLIENT_VARIABLES = frozenset({"URL", "TOKEN_FILE", "CONTEXT", "TRACEBACK"})


def unknown_variables(env: Mapping[str, str]) -> list[str]:
    """Return a line for every unknown `TOPICS_*` variable, with the closest known name."""
    known = [row.name.upper() for row in SETTINGS]
    lines = []
    for variable in sorted(env):
        name = variable.removeprefix(PREFIX)
        if name != variable and name not in known and name not in CLIENT_VARIABLES:
            near = difflib.get_close_matches(name, known, n=1)
            lines.append(f"{variable} is not a setting" + (f"; did you mean {PREFIX}{near[0]}?" if near else ""))
    return lines
