"""The paths and names of the files of a lake.

    LAKE/topic=<percent-encoded>/date=YYYY-MM-DD/<epoch>-<first>-<last>.parquet   records, by topic and UTC date
    LAKE/_gaps/<version>.parquet                                                  the gap ledger
    LAKE/_lake/commits/<version>.json                                             the manifest, one file per commit
    LAKE/_lake/checkpoint-<version>.json                                          the manifest, folded
    LAKE/_lake/staging/<run>/                                                     files that are not published yet

Readers that list directories (Spark, pyarrow, DuckDB with `topic=*/*/*.parquet`) see only the first line, because they
skip names that begin with an underscore. Numbers in names are padded, so that names sort by number. A file made from
others (merged, or rewritten without some records) has a part of its checksum in its name. So a name never stands for
two contents, and renames and removals can be repeated in any order after a crash.
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

MAX_NAME_BYTES = 255  # the limit of file systems for one name
DAY_US = 86_400_000_000

_COMMIT = re.compile(r"([0-9]{20})\.json")


def local_path(location: str) -> str:
    """Return a path or `file:` URL as an absolute path. Raise `NoLake` if it cannot be a directory."""
    if not location:
        raise NoLake("the path of the lake is empty: give the directory of a lake")
    scheme, colon, rest = location.partition(":")
    if colon and "/" not in scheme:
        if scheme != "file" or not rest.startswith("/"):
            raise NoLake(f"{location}: a lake is a directory that driver and executors see under the same path")
        location = "/" + rest.lstrip("/")
    path = os.path.abspath(location)
    if os.path.exists(path) and not os.path.isdir(path):
        raise NoLake(f"{path} is a file, and a lake is a directory")
    return path


def topic_folder(topic: str) -> str:
    """Return the folder of a topic. Raise `LakeError` if its encoded name is too long for a folder."""
    name = f"topic={quote(topic, safe='')}"
    if len(name) > MAX_NAME_BYTES:
        raise LakeError(
            f"the name of topic {topic[:64]}… is too long for a folder: {len(name)} of {MAX_NAME_BYTES} bytes"
        )
    return name


def file_path(topic: str, date: str, epoch: int, first: int, last: int, mark: str = "") -> str:
    """Return the path, relative to the lake, of the file with the records `first` to `last` of a date."""
    return f"{topic_folder(topic)}/date={date}/{epoch:016d}-{first:020d}-{last:020d}{mark and '.' + mark}.parquet"


def commit_name(version: int) -> str:
    return f"{version:020d}.json"


def commit_version(name: str) -> int | None:
    """Return the version in the name of a commit file, or None for another name."""
    return int(found[1]) if (found := _COMMIT.fullmatch(name)) else None


def checkpoint_version(name: str) -> int | None:
    return commit_version(name.removeprefix(CHECKPOINT)) if name.startswith(CHECKPOINT) else None


def date_of(day: int) -> str:
    """Return a number of days since 1970 as `YYYY-MM-DD`."""
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")
