"""Rounds of a pipeline that writes to an output table, without Spark: for tests that kill it and run it again."""

from __future__ import annotations

import os

import pyarrow as pa
from deltalake import DeltaTable

from topics.lake import delta_folder as commits
from topics.lake import output
from topics.lake.files import RowsWriter, read_rows
from topics.lake.output import OutputTable

SCHEMA = pa.schema([("seq", pa.int64()), ("text", pa.string())])
STEP, LAST = 2, 16  # seqs


def rows(first: int, last: int) -> pa.RecordBatch:
    seqs = range(first, last + 1)
    return pa.record_batch([pa.array(seqs, pa.int64()), pa.array([f"row {seq}" for seq in seqs])], schema=SCHEMA)


def opened(where: str) -> OutputTable:
    """Return the table, which keeps no replaced file."""
    return OutputTable(where, "rounds", kept_hours=0)


def tidy_often() -> None:
    """Write checkpoints, merge and vacuum every few commits, in this process."""
    commits.CHECKPOINT_EVERY, output.MERGE_FILES = 3, 3


def one_round(table: OutputTable, done: int) -> int:
    """Write the next rows after `done`. Each third round replaces all files, as a compaction does."""
    stop = done + STEP
    replaced = table.files() if stop % (3 * STEP) == 0 else []
    with RowsWriter(table.storage, SCHEMA) as writer:
        for file in replaced:
            for batch in read_rows(table.storage, file.path, SCHEMA):
                writer.write(batch)
        writer.write(rows(done + 1, stop))
        adds = writer.finish()
    table.commit({"done": stop}, adds, [file.path for file in replaced], facts={f"topics/gap/7/{stop}/1/cap": stop})
    table.merge_small_files()
    return stop


def run_to_the_end(table: OutputTable, done: int = -1) -> None:
    """All rounds that are left; `done` is a descriptor to which one byte is written after each."""
    at = table.load().get("done", 0)
    table.create(SCHEMA, name="rounds")
    while at < LAST:
        at = one_round(table, at)
        if done >= 0:
            os.write(done, b".")


def write(where: str, done: int) -> None:
    tidy_often()
    run_to_the_end(opened(where), done)


def seen_by_others(table: OutputTable) -> list[int]:
    """Return the seqs that a program finds that knows only Delta."""
    found = DeltaTable(table.uri, storage_options=table.storage.options or None).to_pyarrow_table()
    assert found["text"].to_pylist() == [f"row {seq}" for seq in found["seq"].to_pylist()]
    return sorted(found["seq"].to_pylist())


def check(where: str, done: int) -> None:
    """The table has the rows of its position, each once; and a second run adds exactly the others."""
    tidy_often()
    table = opened(where)
    at = table.load().get("done", 0)
    assert at in (done * STEP, done * STEP + STEP), "a round is done, or it is not"
    if table.exists():
        assert seen_by_others(table) == list(range(1, at + 1))
    run_to_the_end(table)
    assert seen_by_others(table) == list(range(1, LAST + 1))
    assert table.load() == {"done": LAST}
