"""Write the rows of a replay to their topic: the part that runs in a task.

One task writes the rows of a plan, one request after the other, so that the replay has the order of its source.
Requests are cut at multiples of `GRID` source seqs, and their idempotency keys contain the seqs that they cover. The
plan was saved before, so a repetition sends the same requests. Every record has its origin in its meta:

    {"trace": "abc", "_topics_replay": {"id": "9f…", "topic": "orders", "epoch": 1794715944778, "seq": 17,
                                        "ts": 1794715950000, "node": "till-1"}}

The rest of its meta is unchanged. From the origins a restart finds how far an interrupted run came.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import xxhash
from msgspec import UNSET, Struct, UnsetType

from topics.model import surrogates
from topics.spark.failures import BadUsage, Failed
from topics.spark.options import ConnectionOptions, offset_option, read_options
from topics.spark.pipelines.run import delivery
from topics.spark.pipelines.run.delivery import DeliveryResult, OutgoingRow, RangeDelivery, cut, fields_of, record_of
from topics.spark.sink.chunks import MAX_RECORDS
from topics.spark.sink.write_options import WriteOptions
from topics.spark.source import plan
from topics.spark.source.catalog import catalog_of, client_for
from topics.spark.source.read import read_span
from topics.spark.sql.text import lenient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from topics.spark.sql.tables import Tables

KEY = "_topics_replay"
_MARK = f'"{KEY}"'.encode()
SMOOTH_S = 0.2  # the rate holds over intervals of this length
OUTCOME = pa.schema([pa.field("outcome", pa.binary())])

_encode = msgspec.json.Encoder().encode


class Origin(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The origin of a replayed record, under `_topics_replay` in its meta. `to` is the last seq of a gap."""

    id: str
    topic: str
    epoch: int
    seq: int
    ts: int | UnsetType = UNSET
    node: str | None = None
    to: int | UnsetType = UNSET

    @property
    def last(self) -> int:
        return self.seq if isinstance(self.to, UnsetType) else self.to


class Pace:
    """Limits the rate of records. Unused time is not saved up, so there is no burst after a pause."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._free_at = 0.0

    def pause_s(self, count: int, now_s: float) -> float:
        """Return how long to wait before sending `count` records."""
        if self._rate is None:
            return 0.0
        begin = max(self._free_at, now_s)
        self._free_at = begin + count / self._rate
        return begin - now_s


class Sender(Struct, kw_only=True):
    """Sends the rows of one plan. On Spark it is called by `mapInArrow`."""

    target: ConnectionOptions
    into: str
    id: str
    topic: str
    epoch: int
    start: int
    stop: int
    present: int = 0  # the target has every record up to this source seq already
    rate: float | None = None
    node: str | None = None  # replaces the node of every record

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"outcome": _encode(self.deliver(batches))}], schema=OUTCOME)

    def deliver(self, batches: Iterable[pa.RecordBatch]) -> DeliveryResult:
        return self.send(row for batch in batches for row in self._rows(batch))

    def send(self, rows: Iterable[OutgoingRow]) -> DeliveryResult:
        outcome, pace = DeliveryResult(), Pace(self.rate)
        with client_for(self.target, self.target.servers[0]) as client:
            sending = RangeDelivery(
                client=client, options=WriteOptions(connection=self.target), topic=self.into,
                epoch=self.epoch, present=self.present, gap_row=self._gap_row, outcome=outcome,
            )  # fmt: skip
            for _, _, held in cut(rows, self.start, self.stop, most=self.most):
                key, missing = sending.new(self._key(held), held)
                if missing:
                    time.sleep(pace.pause_s(len(missing), time.monotonic()))
                    sending.send(key, missing)
        return outcome

    @property
    def most(self) -> int:
        """The most records in a request: few at a low rate, so that they are evenly spread."""
        return MAX_RECORDS if self.rate is None else min(max(int(self.rate * SMOOTH_S), 1), MAX_RECORDS)

    def _gap_row(self, first: int, last: int, reason: str) -> OutgoingRow:
        data = _encode({"topic": self.topic, "gap_from": first, "gap_to": last, "reason": reason})
        origin = Origin(id=self.id, topic=self.topic, epoch=self.epoch, seq=first, to=last)
        return OutgoingRow(first, last, record_of(data, None, None, stamped(b'{"kind":"gap"}', origin)), reason)

    def _key(self, rows: list[OutgoingRow]) -> str:
        seqs = xxhash.xxh3_64_hexdigest(str([(row.first, row.last) for row in rows]).encode())
        return f"replay/{self.id}/{self.epoch}/{rows[0].first}-{rows[-1].last}/{seqs}"

    def _rows(self, batch: pa.RecordBatch) -> Iterator[OutgoingRow]:
        for one in fields_of(batch):
            if one.kind == "gap":
                yield self._gap_row(one.seq, one.to, one.reason)
                continue
            origin = Origin(id=self.id, topic=self.topic, epoch=self.epoch, seq=one.seq, ts=one.ts, node=one.node)
            yield OutgoingRow(
                one.seq, one.seq, record_of(one.data, self.node or one.node, one.tag, stamped(one.meta, origin))
            )


def stamped(meta: bytes | None, origin: Origin) -> bytes:
    """Return the meta with this origin, replacing an older one."""
    return delivery.stamped(meta, KEY, origin)


def origin_of(meta: bytes | None) -> Origin | None:
    """Return the origin of a replayed record, or None for another record."""
    if meta is None or _MARK not in meta:
        return None
    try:
        return msgspec.json.decode(surrogates.members(meta)[KEY], type=Origin)
    except (msgspec.MsgspecError, KeyError):
        return None


# --- the rows that a replay reads: in this process as Arrow batches, or on Spark as a DataFrame

ONE_PARTITION = str(1 << 40)  # one task reads a whole step, in order


class ReplaySource:
    """The selected rows of one topic, and all of its gaps: the condition applies only to records.

    A condition (`where`) is an expression of Spark SQL, so that a replay with one needs Spark.
    """

    def __init__(self, topic: str, options: dict[str, str], *, where: str | None, warn: Callable[[str], None]) -> None:
        self._topic, self._options, self._where, self._warn = topic, options, where, warn
        self._tables: Tables | None = None

    def batches(self, start: int, stop: int, *, allow_gaps: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows of seqs [start, stop). Raise `DataLoss` at a gap that is not allowed."""
        assert self._where is None, "a condition needs Spark"
        options = read_options(self._range(start, stop, allow_gaps=allow_gaps))
        with catalog_of(options) as catalog:
            spans = plan.spans(options, catalog.extents(), catalog.seq_at)
            parts = [(span, catalog.excerpt(span)) for span in spans]
        for span, excerpt in parts:
            yield from read_span(span, options, excerpt=excerpt)

    def frame(self, spark: SparkSession, start: int, stop: int, *, allow_gaps: bool) -> DataFrame:
        """Return the rows of seqs [start, stop), in one partition."""
        given = self._range(start, stop, allow_gaps=allow_gaps) | {"maxPartitionBytes": ONE_PARTITION}
        frame = spark.read.format("topics").options(**given).load()
        if self._where is None:
            return frame
        from topics.spark.sql.tables import Tables

        self._tables = self._tables or Tables(spark, self._options)
        try:
            condition = f"kind = 'gap' OR ({lenient(self._where)})"
            return self._tables.matching(frame, self._topic, condition, self._warn)
        except Failed as error:
            raise BadUsage(f"where: {error}") from None

    def _range(self, start: int, stop: int, *, allow_gaps: bool) -> dict[str, str]:
        return self._options | {
            "subscribe": self._topic,
            "startingOffsets": offset_option(self._topic, start),
            "endingOffsets": offset_option(self._topic, stop),
            "failOnDataLoss": str(not allow_gaps).lower(),
        }
