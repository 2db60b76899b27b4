"""Records and commits for tests of the lake."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from topics.lake import ArchivedEpoch, Change, File, Gap, Lake, TopicState, TypedColumns, write_files
from topics.lake.delta_folder import Actions, DeltaFolder
from topics.lake.files import NO_COLUMNS
from topics.lake.lake import LakeErasure
from topics.lake.rewrite import Erasure
from topics.model.records import TagMatch

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


def written(
    lake: Lake, topic: str, first: int, last: int, *, epoch: int = EPOCH, step_us: int = STEP_US,
    typed: TypedColumns = NO_COLUMNS,
) -> list[File]:  # fmt: skip
    """Write files that are not committed yet."""
    return write_files(lake.storage, topic, epoch, [records(first, last, step_us=step_us)], typed=typed)


def archive(
    lake: Lake, topic: str, first: int, last: int, *, lost: int = 0, base: TopicState | None = None, **more: Any
) -> TopicState:
    """Archive seqs [first, last], of which the first `lost` are a gap."""
    files = written(lake, topic, first + lost, last, **more) if first + lost <= last else []
    gaps = [Gap(first, first + lost - 1, "cap", 1000)] if lost else []
    epoch = more.get("epoch", EPOCH)
    change = Change(op="archive", topic=topic, epoch=epoch, adds=files, gaps=gaps, covered=(first, last))
    return lake.commit(base or lake.table(topic).state(), [change])


def erase(lake: Lake, tag: str, *, topics: Iterable[str] = ("a", "b"), dry_run: bool = False, **more: Any) -> int:
    """Erase by tag. Return the number of removed records."""
    erasure = LakeErasure(lake, topics, lambda topic, epoch: Erasure(match=TagMatch("Eq", tag)), **more)
    found = erasure.count()
    if not dry_run:
        assert erasure.commit() == found
    return sum(map(sum, found.values()))


def merge(lake: Lake, topic: str = "a", epoch: int = EPOCH, *, min_files: int = 2, **more: Any) -> int:
    """Merge small files. Return how many."""
    return lake.merge([(topic, epoch)], min_files=min_files, **more).total()


def archived_epoch_of(lake: Lake, topic: str = "a", epoch: int = EPOCH) -> ArchivedEpoch:
    return lake.table(topic).state().epoch(epoch)


def seen_by_others(lake: Lake, topic: str) -> list[int]:
    """Return the seqs that a program finds that knows only Delta."""
    table = DeltaTable(lake.storage.uri(topic.replace(":", "~")), storage_options=lake.storage.options or None)
    return sorted(table.to_pyarrow_table(columns=["seq"])["seq"].to_pylist())


def known(lake: Lake) -> list[tuple[str, int]]:
    """Return topic and seq of every record."""
    snapshot = lake.snapshot()
    return sorted(
        (archived.topic, seq)
        for topic in snapshot.topics()
        for archived in snapshot.epochs(topic)
        for seq in seqs_of(lake.read(topic, archived.epoch, columns=["seq"], archived=archived))
    )


def seqs_of(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [seq for batch in batches for seq in batch.column("seq").to_pylist()]


def check_content(lake: Lake, topic: str, epoch: int = EPOCH) -> None:
    """Every record is the one that was written under its seq, and every file can be read back."""
    for batch in lake.read(topic, epoch):
        for seq, row in zip(batch.column("seq").to_pylist(), batch.to_pylist(), strict=True):
            [expected] = records(seq, seq).to_pylist()
            assert row == {"epoch": epoch, **expected}
    for file in archived_epoch_of(lake, topic, epoch).files:
        lake.verify(file)


def commit_first(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let another run commit after this one has checked, and before it writes its commit."""
    write, calls = DeltaFolder.write, []

    def late(folder: DeltaFolder, actions: Actions) -> None:
        calls.append(actions)
        if len(calls) == 1:
            act()
        write(folder, actions)

    monkeypatch.setattr(DeltaFolder, "write", late)
