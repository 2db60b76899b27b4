"""The options of the sinks: one row per option, checked in the same way as those of the readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct, structs

from topics.errors import TopicsError
from topics.model.names import check_topic
from topics.model.topic import ConfigPatch, configure
from topics.spark.options import CONNECTION, BadOption, ConnectionOptions, Option, connection, flag, known, number
from topics.spark.sink.chunks import KeyBy

DataFormat = Literal["json", "text"]
DEFAULT_WINDOW_MS = 7 * 24 * 3_600_000
# A sink waits for a server that restarts, because a failed query must be started again by hand. The pauses between
# so many attempts add up to about half a minute.
PATIENT_RETRIES = 12

WRITE = (
    *CONNECTION,
    Option("topic", "topic to write to; without it, the column topic of each row"),
    Option("dataFormat", 'of a string column data: "json" (default), written as the JSON it holds, or "text"'),
    Option("createTopics", "true (default): topics that do not exist are created by the first write"),
    Option("topicConfig", 'settings for topics created here, as JSON: {"ttl_ms": 86400000}'),
    Option(
        "idempotencyWindowMs",
        f"idempotency window of created topics; {DEFAULT_WINDOW_MS} (a week). "
        "If it is given, an existing topic must have at least this window",
    ),
    Option("keyBy", 'how a repeated write is recognised: "rows" (default), or "source" if columns have random parts'),
    Option("sortRows", "true: rows without a source are sorted in each task, so that a shuffle cannot reorder them"),
    Option("writeId", "name of this write; repeating it under the same name writes nothing twice"),
)

OF_SPARK = ("checkpointlocation", "queryname")  # options that Spark's own streams read


class WriteOptions(Struct, frozen=True, kw_only=True):
    """The checked options of a writer."""

    connection: ConnectionOptions = ConnectionOptions()
    topic: str | None = None
    data_format: DataFormat = "json"
    create: bool = True
    config: dict[str, Any] = {}
    window_ms: int | None = None  # None: idempotencyWindowMs is not set
    key_by: KeyBy = "rows"
    sort_rows: bool = False
    write_id: str | None = None
    is_insert: bool = False  # the options are those of a table in the catalog

    @property
    def creation(self) -> dict[str, Any]:
        """The settings for a topic that a write creates."""
        return {"idempotency_window_ms": DEFAULT_WINDOW_MS, **self.config}


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Return the checked options of a writer. Raise `BadOption` if one is invalid."""
    if any(key.lower() == "path" for key in given):
        raise BadOption("path: a topic is written through its server; use the options topic and url")
    found = known({key: given[key] for key in given if key.lower() not in OF_SPARK}, WRITE)
    window_ms = number(found, "idempotencyWindowMs", None, least=0)
    config = _config(found)
    if window_ms is not None:
        config["idempotency_window_ms"] = window_ms
    return WriteOptions(
        connection=_one_server(found),
        topic=_topic(found),
        data_format=_choice(found, "dataFormat", get_args(DataFormat)),
        create=flag(found, "createTopics", default=True),
        config=config,
        window_ms=window_ms,
        key_by=_choice(found, "keyBy", get_args(KeyBy)),
        sort_rows=flag(found, "sortRows", default=False),
        write_id=_write_id(found),
    )


def _one_server(found: Mapping[str, str]) -> ConnectionOptions:
    made = connection(found)
    if len(made.servers) > 1:
        raise BadOption(f"url: rows are written to one server, not to {len(made.servers)}; start a query for each")
    return patient(made, found)


def patient(made: ConnectionOptions, given: Mapping[str, str]) -> ConnectionOptions:
    """Return the connection of a stream or sink, with more retries than the default unless `retries` is set."""
    if any(key.lower() == "retries" for key in given):
        return made
    return structs.replace(made, retries=PATIENT_RETRIES)


def _topic(found: Mapping[str, str]) -> str | None:
    if "topic" not in found:
        return None
    try:
        return check_topic(found["topic"])
    except TopicsError as error:
        raise BadOption(f"topic: {error.message}") from None


def _config(found: Mapping[str, str]) -> dict[str, Any]:
    text = found.get("topicConfig")
    if text is None:
        return {}
    try:
        config = msgspec.json.decode(text, type=dict[str, Any])
        if unknown := sorted(set(config) - set(ConfigPatch.__struct_fields__)):
            raise BadOption(f"topicConfig: a topic has no setting {unknown[0]!r}")
        configure("topic", msgspec.convert(config, ConfigPatch))
    except (msgspec.MsgspecError, TopicsError) as error:
        raise BadOption(f"topicConfig: {text[:200]!r} are not settings of a topic: {error}") from None
    return config


def _choice(found: Mapping[str, str], name: str, choices: tuple[Any, ...]) -> Any:
    value = found.get(name, choices[0]).lower()
    if value not in choices:
        raise BadOption(f"{name}: {found[name]!r} is neither {' nor '.join(choices)}")
    return value


def _write_id(found: Mapping[str, str]) -> str | None:
    name = found.get("writeId")
    if name is not None and not 1 <= len(name) <= 64:
        raise BadOption(f"writeId: {len(name)} characters; 1 to 64 are allowed")
    return name
