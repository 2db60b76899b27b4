"""The options of the sinks, checked in the same way as those of the readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct, field, structs

from topics.errors import TopicsError
from topics.model.names import check_topic
from topics.model.topic import ConfigPatch, configure
from topics.spark.options import (
    BadOption,
    ConnectionOptions,
    Converters,
    at_least,
    connection,
    converted,
    flag,
    known,
    valid,
)

DataFormat = Literal["json", "text"]
KeyBy = Literal["rows", "source"]
DEFAULT_WINDOW_MS = 7 * 24 * 3_600_000
# A sink waits for a server that restarts, because a failed query must be started again by hand. The pauses between
# so many attempts add up to about half a minute.
PATIENT_RETRIES = 12

OF_SPARK = ("checkpointlocation", "queryname")  # options that Spark's own streams read


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
    reached = patient(connection(found), found)
    if len(reached.servers) > 1:
        raise BadOption(f"url: rows are written to one server, not to {len(reached.servers)}; start a query for each")
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


def _write_id(name: str, text: str) -> str:
    if not 1 <= len(text) <= 64:
        raise BadOption(f"writeId: {len(text)} characters; 1 to 64 are allowed")
    return text


WRITE: Converters = {
    "topic": valid(check_topic), "dataFormat": _choice(*get_args(DataFormat)), "createTopics": flag,
    "topicConfig": _config, "idempotencyWindowMs": at_least(0), "keyBy": _choice(*get_args(KeyBy)), "sortRows": flag,
    "writeId": _write_id,
}  # fmt: skip
