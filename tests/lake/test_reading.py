"""Read a lake with its own readers, with pyarrow and with DuckDB."""

from __future__ import annotations

import pickle
from datetime import date
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.lake.making import EPOCH, archive, check_content, records, seqs_of
from topics.lake import GAP_SCHEMA, SCHEMA, Change, Damaged, Gap, Lake, LakeError, write_files

DAY_US = 86_400_000_000
# The most difficult topic names: none of them may turn into another topic or another type.
ODD = ["a:b", "user-42:*.x"[:8], "007", "1e5", "2024-02-29", "true", "null", "A", "a", "a.b-c_d", "x" * 200]


def fill(lake: Lake, topic: str, first: int, last: int, *, step_us: int = 1_000_000, epoch: int = EPOCH) -> None:
    with lake.stage() as staging:
        files = write_files(lake.path, staging.token, topic, epoch, [records(first, last, step_us=step_us)])
        change = Change(op="archive", topic=topic, epoch=epoch, adds=files, covered=(first, last))
        staging.commit(lake.snapshot(), [change])


def test_records_are_sorted_and_limited_to_the_range(lake: Lake):
    with lake.stage() as staging:
        for at in range(5):
            archive(lake, staging, "a", 1 + 100 * at, 100 + 100 * at)
    assert seqs_of(lake.read("a", EPOCH)) == list(range(1, 501))
    assert seqs_of(lake.read("a", EPOCH, first=99, last=301)) == list(range(99, 302))
    assert seqs_of(lake.read("a", EPOCH, first=501)) == []
    assert seqs_of(lake.read("a", EPOCH + 1)) == seqs_of(lake.read("b", EPOCH)) == []
    [batch] = lake.read("a", EPOCH, first=7, last=8, columns=["tag", "data"])
    assert batch.to_pylist() == records(7, 8).select(["tag", "data"]).to_pylist()


def test_gaps_stand_between_records(lake: Lake):
    with lake.stage() as staging:
        archive(lake, staging, "a", 1, 20, lost=5)
        archive(lake, staging, "a", 21, 40, lost=5)
        lake.merge(staging, "a", EPOCH, min_files=2)
        archive(lake, staging, "a", 41, 45, lost=5)

    def reported(**given: int) -> list[tuple[int, int] | Gap]:
        found: list[tuple[int, int] | Gap] = []
        for item in lake.history("a", EPOCH, **given):
            found.append(item if isinstance(item, Gap) else (seqs_of([item])[0], seqs_of([item])[-1]))
        return found

    def gap(first: int, last: int) -> Gap:
        return Gap(first, last, "cap", 1000)

    assert reported() == [gap(1, 5), (6, 20), gap(21, 25), (26, 40), gap(41, 45)]
    assert reported(first=3, last=23) == [gap(3, 5), (6, 20), gap(21, 23)]
    assert reported(first=30, last=40) == [(30, 40)]


def test_file_holds_one_date(lake: Lake):
    fill(lake, "a", 1, 10, step_us=DAY_US // 4)
    archived = lake.snapshot().archived("a", EPOCH)
    assert archived is not None
    assert [(file.date, file.first, file.last) for file in archived.files] == [
        ("2024-02-29", 1, 1), ("2024-03-01", 2, 5), ("2024-03-02", 6, 9), ("2024-03-03", 10, 10),
    ]  # fmt: skip
    check_content_with(lake, DAY_US // 4)
    rows = duckdb.sql(f"SELECT seq FROM '{lake.path}/topic=*/*/*.parquet' WHERE date = DATE '2024-03-02' ORDER BY seq")
    assert [row[0] for row in rows.fetchall()] == [6, 7, 8, 9]


def check_content_with(lake: Lake, step_us: int) -> None:
    for batch in lake.read("a", EPOCH):
        for row in batch.to_pylist():
            [written] = records(row["seq"], row["seq"], step_us=step_us).to_pylist()
            assert row == {"epoch": EPOCH, **written}


def test_files_have_ordered_columns_sorted_and_compressed(lake: Lake):
    fill(lake, "a", 1, 1000)
    [path] = Path(lake.path).glob("topic=a/date=2024-02-29/*.parquet")
    assert path.name == "0000000000000007-00000000000000000001-00000000000000001000.parquet"
    parquet = pq.ParquetFile(path)
    assert parquet.schema_arrow.equals(SCHEMA)
    group = parquet.metadata.row_group(0)
    assert {group.column(at).compression for at in range(group.num_columns)} == {"ZSTD"}
    assert group.sorting_columns[0].column_index == SCHEMA.get_field_index("seq")


def test_large_range_is_written_in_bounded_files(lake: Lake):
    with lake.stage() as staging:
        batches = [records(1 + 1000 * at, 1000 + 1000 * at) for at in range(20)]
        files = write_files(lake.path, staging.token, "a", EPOCH, batches, file_bytes=1000)
        assert [(one.file.first, one.file.last) for one in files] == [(1, 20_000)]  # one row group is held back
        big = [records(1, 1).set_column(5, "data", pa.array(['"' + "x" * (9 << 20) + '"']))]
        more = [batch.set_column(0, "seq", pa.array([at], pa.int64())) for at, batch in enumerate(big * 5, 1)]
        files = write_files(lake.path, staging.token, "a", EPOCH, more, file_bytes=1000)
        assert [(one.file.first, one.file.last) for one in files] == [(1, 2), (3, 4), (5, 5)]


@pytest.mark.parametrize("topic", ODD)
def test_every_topic_name_is_read_by_pyarrow_and_duckdb(lake: Lake, topic: str):
    fill(lake, topic, 1, 3)
    schema = pa.schema([("topic", pa.string()), ("date", pa.date32())])
    table = ds.dataset(lake.path, partitioning=ds.partitioning(schema, flavor="hive")).to_table()
    assert table["topic"].to_pylist() == [topic] * 3
    assert lake.dataset().to_table()["topic"].to_pylist() == [topic] * 3
    found = duckdb.sql(
        f"SELECT topic, date, seq FROM read_parquet('{lake.path}/topic=*/*/*.parquet', "
        "hive_partitioning = true, hive_types = {'topic': VARCHAR, 'date': DATE}) ORDER BY seq"
    )
    assert found.fetchall() == [(topic, date(2024, 2, 29), seq) for seq in (1, 2, 3)]


def test_similar_odd_names_stay_two_topics(lake: Lake):
    for number, topic in enumerate(ODD, 1):
        fill(lake, topic, 1, number)
    table = lake.dataset().to_table(["topic"])
    counts = {
        row["topic"]: row["topic_count"] for row in table.group_by("topic").aggregate([("topic", "count")]).to_pylist()
    }
    assert counts == {topic: number for number, topic in enumerate(ODD, 1)}
    assert lake.dataset("a:b").count_rows() == 1


def test_name_too_long_for_a_folder_is_refused(lake: Lake):
    with pytest.raises(LakeError, match="too long"):
        fill(lake, "a:" * 60 + "b" * 100, 1, 1)


def test_ledger_is_a_readable_table_before_the_first_gap(lake: Lake):
    assert ds.dataset(f"{lake.path}/_gaps").to_table().schema.equals(GAP_SCHEMA)
    assert duckdb.sql(f"SELECT count(*) FROM '{lake.path}/_gaps/*.parquet'").fetchall() == [(0,)]
    with lake.stage() as staging:
        archive(lake, staging, "a:b", 1, 20, lost=5)
        archive(lake, staging, "c", 1, 20, lost=20)
    rows = duckdb.sql(
        f"SELECT topic, epoch, from_seq, to_seq, reason, epoch_ms(met_at) FROM '{lake.path}/_gaps/*.parquet'"
    )
    assert sorted(rows.fetchall()) == [("a:b", EPOCH, 1, 5, "cap", 1000), ("c", EPOCH, 1, 20, "cap", 1000)]
    table = ds.dataset(f"{lake.path}/_gaps").to_table()
    assert table.sort_by("topic").to_pylist() == lake.ledger().to_pylist()


def test_epochs_are_distinguished_by_a_column(lake: Lake):
    fill(lake, "a", 1, 5, epoch=100)
    fill(lake, "a", 1, 3, epoch=200)
    rows = duckdb.sql(f"SELECT epoch, max(seq) FROM '{lake.path}/topic=*/*/*.parquet' GROUP BY epoch ORDER BY epoch")
    assert rows.fetchall() == [(100, 5), (200, 3)]


def test_changed_bytes_are_noticed(lake: Lake):
    fill(lake, "a", 1, 100)
    archived = lake.snapshot().archived("a", EPOCH)
    assert archived is not None
    [file] = archived.files
    lake.verify(file)
    path = Path(lake.path) / file.path
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(Damaged, match="does not hold"):
        lake.verify(file)
    path.unlink()
    with pytest.raises(Damaged, match="is missing"):
        list(lake.read("a", EPOCH))


def test_lake_can_be_pickled_for_executors(lake: Lake):
    fill(lake, "a", 1, 100)
    there = pickle.loads(pickle.dumps(lake))
    assert seqs_of(there.read("a", EPOCH, snapshot=pickle.loads(pickle.dumps(lake.snapshot())))) == list(range(1, 101))
    check_content(there, "a")
