"""Write to topics, and check that a lake has exactly those records."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow.compute as pc
from deltalake import DeltaTable

from topics.client import Client
from topics.lake import ArchivedEpoch, Lake
from topics.lake.layout import topic_folder

Cells = tuple[str | None, str | None, str | None, str]  # node, tag, meta, data


class Written:
    """One epoch of a topic as its writer knows it."""

    def __init__(self, client: Client, topic: str, **config: Any) -> None:
        self.client, self.topic = client, topic
        client.put_topic(topic, **config)
        self.epoch = client.topic(topic).epoch
        self.records: dict[int, Cells] = {}

    def write(self, records: Sequence[dict[str, Any]]) -> None:
        key = uuid.uuid4().hex  # the server may be killed and asked again
        answer = self.client.append(self.topic, records, return_seqs=True, idempotency_key=key)
        assert answer.seqs is not None
        for seq, record in zip(answer.seqs, records, strict=True):
            meta = msgspec.json.encode(record["meta"]).decode() if "meta" in record else None
            data = msgspec.json.encode(record["data"]).decode()
            self.records[seq] = (record.get("node"), record.get("tag"), meta, data)

    def numbers(self, count: int) -> None:
        """More records, of several shapes."""
        first = len(self.records)
        self.write([shaped(first + at) for at in range(count)])

    def forget(self, seqs: Iterable[int]) -> None:
        """These were deleted before they were archived."""
        for seq in seqs:
            del self.records[seq]

    @property
    def head(self) -> int:
        return self.client.topic(self.topic).head_seq


def shaped(n: int) -> dict[str, Any]:
    record: dict[str, Any] = {"data": {"n": n} if n % 3 else f'"{n}" ünïcode\\'}
    if n % 2:
        record["tag"] = f"user-{n % 7}"
    if n % 5 == 0:
        record["node"] = "n:1"
    if n % 11 == 0:
        record["meta"] = {"k": [n, None]}
    return record


def archived_epoch_of(lake: Lake, written: Written) -> ArchivedEpoch:
    archived_epoch = lake.snapshot().archived(written.topic, written.epoch)
    assert archived_epoch is not None
    return archived_epoch


def check_exact(lake: Lake, written: Written, *, deleted: Iterable[int] = (), head: int | None = None) -> int:
    """Check that each record is in the lake once, and each other seq in a gap or deleted. Return the number of rows."""
    archived_epoch = archived_epoch_of(lake, written)
    head = written.head if head is None else head
    assert archived_epoch.archived_to == head
    rows: dict[int, Cells] = {}
    last = 0
    for batch in lake.read(written.topic, written.epoch):
        for row in batch.to_pylist():
            assert row["seq"] > last, "twice, or out of order"
            last = row["seq"]
            rows[last] = (row["node"], row["tag"], row["meta"], row["data"])
    lost = {seq for gap in archived_epoch.gaps for seq in range(gap.first, gap.last + 1)}
    assert sum(gap.last - gap.first + 1 for gap in archived_epoch.gaps) == len(lost), "gaps overlap"
    assert not lost & rows.keys(), "in a gap and there"
    removed = set(deleted)
    assert rows.keys() | lost | removed == set(range(1, head + 1)), "not accounted for"
    assert rows == {seq: written.records[seq] for seq in rows}, "not what was written"
    assert listed(lake, written.topic, written.epoch) == sorted(rows), "another program sees something else"
    for file in archived_epoch.files:
        lake.verify(file)
    return len(rows)


def listed(lake: Lake, topic: str, epoch: int) -> list[int]:
    """Return the seqs that a program finds that knows only Delta."""
    table = DeltaTable(lake.storage.uri(topic_folder(topic)), storage_options=lake.storage.options or None)
    found = table.to_pyarrow_table(columns=["seq", "epoch"])
    return sorted(found.filter(pc.equal(found["epoch"], epoch))["seq"].to_pylist())
