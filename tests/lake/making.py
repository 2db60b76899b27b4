"""Records and commits for tests of the lake."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from topics.lake import Change, Gap, Lake, Snapshot, Staged, Staging, write_files

NOON_US = 1_709_208_000_000_000  # 2024-02-29T12:00:00Z
STEP_US = 1_000_000
EPOCH = 7


def records(first: int, last: int, *, step_us: int = STEP_US, tags: int = 3) -> pa.RecordBatch:
    """Return the records of a topic for these seqs: all fields are derived from the seq."""
    seqs = range(first, last + 1)
    return pa.record_batch(
        {
            "seq": pa.array(seqs, pa.int64()),
            "ts": pa.array([NOON_US + seq * step_us for seq in seqs], pa.timestamp("us", "UTC")),
            "node": pa.array([None if seq % 2 else "n1" for seq in seqs], pa.string()),
            "tag": pa.array([f"t{seq % tags}" for seq in seqs], pa.string()),
            "meta": pa.array([None if seq % 5 else '{"k":1}' for seq in seqs], pa.string()),
            "data": pa.array([f'{{"n":{seq}}}' for seq in seqs], pa.string()),
        }
    )


def staged(lake: Lake, staging: Staging, topic: str, first: int, last: int, epoch: int = EPOCH) -> list[Staged]:
    return write_files(lake.path, staging.token, topic, epoch, [records(first, last)])


def archive(
    lake: Lake, staging: Staging, topic: str, first: int, last: int, *, lost: int = 0, base: Snapshot | None = None
) -> Snapshot:
    """Archives seqs [first, last], of which the first `lost` are a gap."""
    files = staged(lake, staging, topic, first + lost, last) if first + lost <= last else []
    gaps = [Gap(first, first + lost - 1, "cap", 1000)] if lost else []
    change = Change(op="archive", topic=topic, epoch=EPOCH, adds=files, gaps=gaps, covered=(first, last))
    return staging.commit(base or lake.snapshot(), [change])


def listed(lake: Lake) -> list[tuple[str, int]]:
    """Return topic and seq of every record that a directory listing finds."""
    names = list(Path(lake.path).glob("topic=*/date=*/*.parquet"))
    if not names:
        return []
    schema = pa.schema([("topic", pa.string()), ("date", pa.string())])
    table = ds.dataset(lake.path, partitioning=ds.partitioning(schema, flavor="hive")).to_table(["topic", "seq"])
    return sorted(zip(table["topic"].to_pylist(), table["seq"].to_pylist(), strict=True))


def known(lake: Lake) -> list[tuple[str, int]]:
    """The same by the manifest."""
    snapshot = lake.snapshot()
    return sorted(
        (archived.topic, seq)
        for topic in snapshot.topics()
        for archived in snapshot.epochs(topic)
        for seq in seqs_of(lake.read(topic, archived.epoch, columns=["seq"], snapshot=snapshot))
    )


def seqs_of(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [seq for batch in batches for seq in batch.column("seq").to_pylist()]


def check_content(lake: Lake, topic: str, epoch: int = EPOCH) -> None:
    """Every record is the one that was written under its seq, and every file has its checksum."""
    for batch in lake.read(topic, epoch):
        for seq, row in zip(batch.column("seq").to_pylist(), batch.to_pylist(), strict=True):
            [written] = records(seq, seq).to_pylist()
            assert row == {"epoch": epoch, **written}
    archived = lake.snapshot().archived(topic, epoch)
    for file in () if archived is None else archived.files:
        lake.verify(file)
