"""Read a lake with its own readers, and with other programs that read Delta."""

from __future__ import annotations

import pickle
from datetime import date
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.lake.making import EPOCH, archive, archived_epoch_of, check_content, erase, merge, records, seqs_of
from topics.lake import Gap, Lake, TypedColumns, write_files
from topics.lake.files import FILE_SCHEMA
from topics.lake.layout import parse_path, topic_folder, topic_of

DAY_US = 86_400_000_000
# The most difficult topic names: none of them may turn into another topic or another type.
ODD = ["a:b", "user-42:", "007", "1e5", "2024-02-29", "true", "null", "A", "a", "a.b-c_d", "x:" * 100]
COLUMNS = ["epoch", "seq", "ts", "node", "tag", "meta", "data", "date"]


def test_records_are_sorted_and_limited_to_the_range(lake: Lake):
    for at in range(5):
        archive(lake, "a", 1 + 100 * at, 100 + 100 * at)
    assert seqs_of(lake.read("a", EPOCH)) == list(range(1, 501))
    assert seqs_of(lake.read("a", EPOCH, first=99, last=301)) == list(range(99, 302))
    assert seqs_of(lake.read("a", EPOCH, first=501)) == []
    assert seqs_of(lake.read("a", EPOCH + 1)) == seqs_of(lake.read("b", EPOCH)) == []
    [batch] = lake.read("a", EPOCH, first=7, last=8, columns=["tag", "data"])
    assert batch.to_pylist() == records(7, 8).select(["tag", "data"]).to_pylist()


def test_gaps_stand_between_records(lake: Lake):
    archive(lake, "a", 1, 20, lost=5)
    archive(lake, "a", 21, 40, lost=5)
    merge(lake, "a", min_files=2)
    archive(lake, "a", 41, 45, lost=5)

    def reported(**given: int) -> list[tuple[int, int] | Gap]:
        found: list[tuple[int, int] | Gap] = []
        for item in lake.history(archived_epoch_of(lake), **given):
            found.append(item if isinstance(item, Gap) else (seqs_of([item])[0], seqs_of([item])[-1]))
        return found

    def gap(first: int, last: int) -> Gap:
        return Gap(first, last, "cap", 1000)

    assert reported() == [gap(1, 5), (6, 20), gap(21, 25), (26, 40), gap(41, 45)]
    assert reported(first=3, last=23) == [gap(3, 5), (6, 20), gap(21, 23)]
    assert reported(first=30, last=40) == [(30, 40)]


def test_file_holds_one_date(lake: Lake):
    archive(lake, "a", 1, 10, step_us=DAY_US // 4)
    assert [(file.date, file.first, file.last) for file in archived_epoch_of(lake).files] == [
        ("2024-02-29", 1, 1), ("2024-03-01", 2, 5), ("2024-03-02", 6, 9), ("2024-03-03", 10, 10),
    ]  # fmt: skip
    table = DeltaTable(f"{lake.path}/a")
    dataset = table.to_pyarrow_dataset()
    found = duckdb.sql("SELECT seq FROM dataset WHERE date = DATE '2024-03-02' ORDER BY seq").fetchall()
    assert found == [(6,), (7,), (8,), (9,)]
    assert len(table.file_uris(file_pruning_predicate=[("date", "=", "2024-03-02")])) == 1, "other files are not opened"
    assert dataset.count_rows() == 10


def test_files_have_ordered_columns_sorted_and_compressed(lake: Lake):
    archive(lake, "a", 1, 1000)
    [path] = Path(lake.path).glob("a/epoch=7/date=2024-02-29/*.parquet")
    named = parse_path(str(path.relative_to(f"{lake.path}/a")))
    assert named is not None
    assert (named.epoch, named.first, named.last) == (EPOCH, 1, None)
    parquet = pq.ParquetFile(path)
    assert parquet.schema_arrow.equals(FILE_SCHEMA)
    group = parquet.metadata.row_group(0)
    assert {group.column(at).compression for at in range(group.num_columns)} == {"ZSTD"}
    assert group.sorting_columns[0].column_index == FILE_SCHEMA.get_field_index("seq")


def test_large_range_is_written_in_bounded_files(lake: Lake):
    batches = [records(1 + 1000 * at, 1000 + 1000 * at) for at in range(20)]
    files = write_files(lake.storage, "a", EPOCH, batches, file_bytes=1000)
    assert [(one.first, one.last) for one in files] == [(1, 20_000)]  # one row group is held back
    big = [records(1, 1).set_column(5, "data", pa.array(['"' + "x" * (9 << 20) + '"']))]
    more = [batch.set_column(0, "seq", pa.array([at], pa.int64())) for at, batch in enumerate(big * 5, 1)]
    files = write_files(lake.storage, "a", EPOCH, more, file_bytes=1000)
    assert [(one.first, one.last) for one in files] == [(1, 2), (3, 4), (5, 5)]


def test_failed_write_leaves_no_file(lake: Lake):
    def broken():
        yield records(1, 10, step_us=DAY_US)
        raise OSError("the server is gone")

    with pytest.raises(OSError, match="server is gone"):
        write_files(lake.storage, "a", EPOCH, broken())
    assert lake.table("a").files() == []


@pytest.mark.parametrize("topic", ODD)
def test_every_topic_name_has_its_own_table(lake: Lake, topic: str):
    archive(lake, topic, 1, 3)
    assert (topic_of(topic_folder(topic)), lake.topics()) == (topic, [topic])
    path = f"{lake.path}/{topic_folder(topic)}"
    assert pl.read_delta(path)["seq"].to_list() == [1, 2, 3]
    assert seqs_of(Lake(lake.path).read(topic, EPOCH)) == [1, 2, 3]


def test_folders_of_odd_names_differ():
    assert len({topic_folder(topic) for topic in ODD}) == len(ODD)


def changed_table(lake: Lake) -> str:
    """A table that went through archive, erase, merge and a change of its columns."""
    archive(lake, "a", 1, 20, lost=5)
    archive(lake, "a", 21, 40)
    assert merge(lake, "a", min_files=2) == 2
    assert erase(lake, "t1") > 0
    lake.table("a").add_columns(TypedColumns.parse("n INT"))
    archive(lake, "a", 41, 60, lost=3, typed=lake.table("a").typed())
    return f"{lake.path}/a"


LEFT = [seq for seq in (*range(6, 21), *range(21, 41)) if seq % 3 != 1] + list(range(44, 61))
TYPED = [None if seq < 41 else seq for seq in LEFT]


def test_deltalake_reads_records_and_no_gaps(lake: Lake):
    table = DeltaTable(changed_table(lake)).to_pandas().sort_values("seq")
    assert list(table.columns) == [*COLUMNS, "n"]
    assert table["seq"].to_list() == LEFT
    assert table["data"].to_list() == [f'{{"n":{seq}}}' for seq in LEFT]
    assert set(table["date"]) == {date(2024, 2, 29)}
    assert DeltaTable(f"{lake.path}/a").metadata().description == "records of topic a; a row per record"
    comments = {one.name: one.metadata.get("comment") for one in DeltaTable(f"{lake.path}/a").schema().fields}
    assert comments["ts"] == "commit time"
    assert [name for name, comment in comments.items() if not comment] == ["n"]


def test_polars_reads_records_and_no_gaps(lake: Lake):
    table = pl.read_delta(changed_table(lake)).sort("seq")
    assert (table["seq"].to_list(), table["n"].to_list()) == (LEFT, TYPED)


def test_duckdb_reads_records_and_no_gaps(lake: Lake):
    dataset = DeltaTable(changed_table(lake)).to_pyarrow_dataset()
    assert dataset.schema.names == [*COLUMNS, "n"]
    found = duckdb.sql("SELECT seq, n FROM dataset ORDER BY seq").fetchall()
    assert found == list(zip(LEFT, TYPED, strict=True))


def test_ledger_lists_every_gap(lake: Lake):
    assert lake.ledger().num_rows == 0
    archive(lake, "a:b", 1, 20, lost=5)
    archive(lake, "c", 1, 20, lost=20)
    rows = [
        (row["topic"], row["epoch"], row["from_seq"], row["to_seq"], row["reason"]) for row in lake.ledger().to_pylist()
    ]
    assert rows == [("a:b", EPOCH, 1, 5, "cap"), ("c", EPOCH, 1, 20, "cap")]
    assert lake.ledger(["c"]).num_rows == 1


def test_lake_can_be_pickled_for_executors(lake: Lake):
    archive(lake, "a", 1, 100)
    there = pickle.loads(pickle.dumps(lake))
    assert seqs_of(there.read("a", EPOCH)) == list(range(1, 101))
    check_content(there, "a")
