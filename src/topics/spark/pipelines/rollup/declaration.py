"""The declaration of a rollup: its topic, windows and aggregates, as arguments or as a small TOML file.

    topic = "orders"
    into = "orders.hourly"                       # or: table = "/out/orders-hourly", or "s3://bucket/orders-hourly"
    window = "1 hour"                            # and: slide = "15 minutes", for windows that overlap
    time = "timestamp_millis(value:at::bigint)"  # event time; the commit time (ts) if not given
    watermark = "10 minutes"                     # how late a record may arrive
    where = "tag = 'web'"
    by = ["value:sku::string AS sku"]
    select = ["count(*) AS orders", "sum(value:total::bigint) AS total"]

One statement can replace `by`, `select` and `where`:

    sql = "SELECT window, tag, count(*) AS n FROM records GROUP BY ALL"

Its table `records` has the columns of the source, `value` (data as a VARIANT), `time` and `window`.
"""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import Struct

from topics.errors import TopicsError
from topics.model.names import check_topic
from topics.spark.pipelines.rollup.windows import duration_ms
from topics.spark.sql.rewrite import tokens

COUNT = ("count(*) AS count",)
DIGEST_DIGITS = 15  # the digest is also stored as a signed number of 64 bits


class Declaration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The declaration of one rollup."""

    topic: str
    window: str
    into: str | None = None
    table: str | None = None
    slide: str | None = None
    time: str = "ts"
    watermark: str = "0 seconds"
    where: str | None = None
    by: tuple[str, ...] = ()
    select: tuple[str, ...] = COUNT
    sql: str | None = None
    tag: str | None = None  # SQL over the result: the tag of the records written

    def __post_init__(self) -> None:
        if (self.into is None) == (self.table is None):
            raise ValueError("choose one output: a topic (into) or a Delta table (table)")
        if self.sql is not None and (self.by or self.where or self.select != COUNT):
            raise ValueError("sql replaces by, select and where: remove them")
        if self.sql is not None and not {"window", "records"} <= {token.name.lower() for token in tokens(self.sql)}:
            raise ValueError("sql: must be a query FROM records with window among its columns")
        if self.tag is not None and self.into is None:
            raise ValueError("tag: only records of a topic have a tag; a table has columns")
        if self.window_ms < 1 or not 1 <= self.slide_ms <= self.window_ms:
            raise ValueError("window: at least 1 ms; slide: at least 1 ms and at most the window")
        try:
            for name in filter(None, (self.topic, self.into)):
                check_topic(name)
        except TopicsError as error:
            raise ValueError(error.message) from None
        if self.into == self.topic:
            raise ValueError("into: a rollup cannot be written to its own source topic")
        duration_ms(self.watermark)

    @property
    def window_ms(self) -> int:
        return duration_ms(self.window)

    @property
    def slide_ms(self) -> int:
        return self.window_ms if self.slide is None else duration_ms(self.slide)

    @property
    def delay_ms(self) -> int:
        return duration_ms(self.watermark)

    @property
    def statement(self) -> str:
        """The query over `records` that returns one row per window and group."""
        if self.sql is not None:
            return self.sql
        where = "" if self.where is None else f" WHERE {self.where}"
        return f"SELECT {', '.join(['window', *self.by, *self.select])} FROM records{where} GROUP BY ALL"

    @property
    def digest(self) -> str:
        """A hash of everything that the result of a window depends on."""
        parts = (self.topic, self.window_ms, self.slide_ms, self.time, self.delay_ms, self.statement, self.tag)
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:DIGEST_DIGITS]
