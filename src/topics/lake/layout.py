"""Where things lie in a lake, and what they are called.

    LAKE/topic=<percent-encoded>/date=YYYY-MM-DD/<epoch>-<first>-<last>.parquet   records, by topic and UTC date
    LAKE/_gaps/<version>.parquet                                                  the gap ledger
    LAKE/_lake/commits/<version>.json                                             the manifest: what is true
    LAKE/_lake/checkpoint-<version>.json                                          the manifest, folded
    LAKE/_lake/staging/<run>/                                                     files on their way

Readers that list directories (Spark, pyarrow, DuckDB with `topic=*/*/*.parquet`) see the first line alone: names that
begin with an underscore are hidden to them. Numbers in names are padded, so that names sort as what they stand for. A
file made out of others (merged, or rewritten without some records) has a part of its checksum in its name: no name is
ever used for a second content, so nothing has to be ordered to rename or remove files again after a crash.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from urllib.parse import quote

import pyarrow as pa

from topics.lake.errors import LakeError, NoLake

UTC_TIMESTAMP = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("seq", pa.int64()),
        ("ts", UTC_TIMESTAMP),
        ("node", pa.string()),
        ("tag", pa.string()),
        ("meta", pa.string()),  # JSON text
        ("data", pa.string()),  # JSON text, token for token as it was written
    ]
)

GAP_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("epoch", pa.int64()),
        ("from_seq", pa.int64()),
        ("to_seq", pa.int64()),  # inclusive
        ("reason", pa.string()),
        ("met_at", UTC_TIMESTAMP),
    ]
)

HIDDEN = "_lake"
COMMITS = f"{HIDDEN}/commits"
STAGING = f"{HIDDEN}/staging"
GAPS = "_gaps"
CHECKPOINT = "checkpoint-"

MAX_NAME_BYTES = 255  # that file systems take for one directory or file
DAY_US = 86_400_000_000

_COMMIT = re.compile(r"([0-9]{20})\.json")


def local_path(place: str) -> str:
    """A path or `file:` URL as an absolute path. Raises `NoLake` for a place that is no directory."""
    if not place:
        raise NoLake("an empty name is no directory of a lake")
    scheme, colon, rest = place.partition(":")
    if colon and "/" not in scheme:
        if scheme != "file" or not rest.startswith("/"):
            raise NoLake(f"{place}: a lake is a directory that driver and executors see under the same path")
        place = "/" + rest.lstrip("/")
    path = os.path.abspath(place)
    if os.path.exists(path) and not os.path.isdir(path):
        raise NoLake(f"{path} is not a directory: a lake is one")
    return path


def topic_folder(topic: str) -> str:
    """The folder of a topic. Raises `LakeError` where its name, encoded, is too long for one."""
    name = f"topic={quote(topic, safe='')}"
    if len(name) > MAX_NAME_BYTES:
        raise LakeError(
            f"the name of topic {topic[:64]}… is too long for a folder: {len(name)} of {MAX_NAME_BYTES} bytes"
        )
    return name


def file_path(topic: str, date: str, epoch: int, first: int, last: int, mark: str = "") -> str:
    """Where the records `first` to `last` of a date lie, relative to the lake."""
    return f"{topic_folder(topic)}/date={date}/{epoch:016d}-{first:020d}-{last:020d}{mark and '.' + mark}.parquet"


def commit_name(version: int) -> str:
    return f"{version:020d}.json"


def commit_version(name: str) -> int | None:
    """The version that a file of the manifest holds; None for a file that is not ours."""
    return int(found[1]) if (found := _COMMIT.fullmatch(name)) else None


def checkpoint_version(name: str) -> int | None:
    return commit_version(name.removeprefix(CHECKPOINT)) if name.startswith(CHECKPOINT) else None


def date_of(day: int) -> str:
    """A number of days since 1970 as `YYYY-MM-DD`."""
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")
