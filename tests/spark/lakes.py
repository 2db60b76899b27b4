"""Build small lakes for tests of readers, without the archive pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from msgspec import Raw

from topics.client import Client
from topics.client.request import Record, Tombstone
from topics.lake import SCHEMA, ArchivedEpoch, Change, Gap, Lake, write_files


def archive(
    client: Client,
    path: Path,
    topic: str,
    *,
    upto: int | None = None,
    trim: bool = False,
    spoil: Callable[[list[Record]], list[Record]] = list,
) -> ArchivedEpoch:
    """Archive the unarchived records of the topic up to a seq; with `trim`, delete them from the topic."""
    lake = Lake(str(path))
    lake.create()
    state = client.topic(topic)
    base = lake.table(topic).state()
    known = base.epochs.get(state.epoch)
    start = 1 if known is None else known.archived_to + 1
    stop = state.head_seq if upto is None else upto
    found = list(client.read(topic, from_seq=start - 1, include_tags=True))
    lost = [item for item in found if isinstance(item, Tombstone) and item.gap_from <= stop]
    gaps = [Gap(item.gap_from, min(item.gap_to, stop), item.reason, 0) for item in lost]
    records = [item for item in found if isinstance(item, Record) and item.seq <= stop]
    batch = _batch(spoil(records), state.epoch)
    adds = write_files(lake.storage, topic, state.epoch, [batch], typed=lake.table(topic).typed())
    change = Change(op="archive", topic=topic, epoch=state.epoch, adds=adds, gaps=gaps, covered=(start, stop))
    made = lake.commit(base, [change])
    client.archived(topic, seq=stop, epoch=state.epoch)
    if trim:
        made = lake.commit(made, [Change(op="trim", topic=topic, epoch=state.epoch, trimmed_to=stop)])
        client.archived(topic, seq=stop, epoch=state.epoch, trimmed_seq=stop)
        client.delete(topic, before_seq=stop + 1)
    return made.epoch(state.epoch)


def _batch(records: list[Record], epoch: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "epoch": [epoch] * len(records),
            "seq": [record.seq for record in records],
            "ts": pa.array([record.ts * 1000 for record in records], SCHEMA.field("ts").type),
            "node": [record.node for record in records],
            "tag": [record.tag for record in records],
            "meta": [bytes(one.meta).decode() if isinstance(one.meta, Raw) else None for one in records],
            "data": [bytes(record.data).decode() for record in records],
        },
        schema=SCHEMA,
    )
