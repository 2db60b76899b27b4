"""The paths of the files of a lake, and the columns of its tables.

    LAKE/_lake.json                                           marks the place as a lake
    LAKE/<topic>/_delta_log/                                  one Delta table for each topic
    LAKE/<topic>/epoch=E/date=YYYY-MM-DD/<first>-a<token>.parquet          records that an archive run copied
    LAKE/<topic>/epoch=E/date=YYYY-MM-DD/<first>-<last>-m<token>.parquet   records of older files

The folder of a topic is its name, with `~` for `:`, which many programs do not accept in paths. Names of topics never
begin with an underscore. Numbers in file names are padded, so that names sort by number. A name is used once. In a
local lake, a name ends with the checksum of the file (XXH3-64); object stores have checksums of their own.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pyarrow as pa
from msgspec import Struct

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

MARKER = "_lake.json"
LOG = "_delta_log"
PARTITIONS = ("epoch", "date")  # columns that are in the paths and not in the files

DAY_US = 86_400_000_000

_NAME = re.compile(r"epoch=([0-9]+)/date=[0-9-]+/([0-9]{20})-(?:([0-9]{20})-m|a)[0-9a-f]+(?:-([0-9a-f]{16}))?\.parquet")


class NamedFile(Struct, frozen=True):
    """The content of a file according to its name."""

    epoch: int
    first: int
    last: int | None  # None: the file was written by an archive run from a topic, and not from other files
    sum: str | None = None


def topic_folder(topic: str) -> str:
    return topic.replace(":", "~")


def topic_of(folder: str) -> str:
    return folder.replace("~", ":")


def file_path(topic: str, date: str, epoch: int, first: int, token: str, *, last: int | None = None) -> str:
    """Return the path, relative to the lake, of a new file of one date. `last` is given if older files are replaced."""
    name = f"{first:020d}-a{token}" if last is None else f"{first:020d}-{last:020d}-m{token}"
    return f"{topic_folder(topic)}/epoch={epoch}/date={date}/{name}.parquet"


def parse_path(path: str) -> NamedFile | None:
    """Return the content of a file by its path below the table, or None if it has another kind of name."""
    found = _NAME.fullmatch(path)
    if found is None:
        return None
    return NamedFile(int(found[1]), int(found[2]), int(found[3]) if found[3] else None, found[4])


def date_of(day: int) -> str:
    """Return a number of days since 1970 as `YYYY-MM-DD`."""
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")
