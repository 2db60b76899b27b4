"""Output tables: rows and position in one commit, in a directory and in an object store."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.lake.object_store import BUCKET, object_store, settings
from tests.lake.output_rounds import LAST, SCHEMA, STEP, one_round, opened, rows, run_to_the_end, seen_by_others
from topics.lake import delta_folder as commits
from topics.lake import output
from topics.lake.errors import Conflict, Damaged, LakeError, Moved, NoLake, NoTable
from topics.lake.files import RowsWriter, Statistics, read_rows
from topics.lake.output import OutputTable


@pytest.fixture(autouse=True)
def _tidy_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "CHECKPOINT_EVERY", 3)
    monkeypatch.setattr(output, "MERGE_FILES", 3)


@pytest.fixture
def table(tmp_path: Path) -> OutputTable:
    made = opened(str(tmp_path / "out" / "table"))
    made.load()
    made.create(SCHEMA, name="test")
    return made


def written(table: OutputTable, first: int, last: int) -> Any:
    with RowsWriter(table.storage, SCHEMA) as writer:
        writer.write(rows(first, last))
        return writer.finish()


def test_other_programs_read_rows_and_position(table: OutputTable):
    run_to_the_end(table)
    assert seen_by_others(table) == list(range(1, LAST + 1))
    assert sorted(pl.read_delta(table.uri)["seq"].to_list()) == list(range(1, LAST + 1))
    delta = DeltaTable(table.uri)
    dataset = delta.to_pyarrow_dataset()
    assert duckdb.sql("SELECT count(*), max(seq) FROM dataset").fetchall() == [(LAST, LAST)]
    assert dataset.count_rows() == LAST
    assert delta.transaction_version("topics/rounds/done") == LAST
    assert delta.transaction_version(f"topics/gap/7/{STEP}/1/cap") == STEP


def test_replaced_files_are_removed_by_the_vacuum_of_a_later_commit(table: OutputTable):
    at = 0
    for _ in range(40):
        at = one_round(table, at)
    left = {path.name for path in Path(table.uri).glob("*.parquet")}
    assert {file.path for file in table.files()} <= left
    assert len(left) < 12
    assert seen_by_others(table) == list(range(1, at + 1))


def test_second_run_from_the_same_position_is_refused(table: OutputTable):
    other = opened(table.uri)
    other.load()
    table.commit({"done": 2}, written(table, 1, 2))
    with pytest.raises(Moved, match="another run is writing to"):
        other.commit({"done": 2}, written(table, 1, 2))
    assert seen_by_others(table) == [1, 2]
    assert other.load() == {"done": 2}
    other.commit({"done": 4}, written(table, 3, 4))
    assert seen_by_others(table) == [1, 2, 3, 4]


def test_merge_by_another_program_is_no_second_run(table: OutputTable):
    for at in (0, 2):
        table.commit({"done": at + 2}, written(table, at + 1, at + 2))
    before = table.files()
    DeltaTable(table.uri).optimize.compact()
    table.commit({"done": 6}, written(table, 5, 6))
    with pytest.raises(Conflict, match="was replaced meanwhile"):
        table.commit({"done": 8}, written(table, 7, 8), [before[0].path])
    assert seen_by_others(table) == [1, 2, 3, 4, 5, 6]


def test_restart_replaces_rows_columns_and_position_at_once(table: OutputTable):
    run_to_the_end(table)
    schema = pa.schema([("seq", pa.int64()), ("more", pa.float64())])
    table.commit({"done": 0, "generation": 1}, schema=schema)
    delta = DeltaTable(table.uri)
    assert (delta.to_pyarrow_table().num_rows, pa.schema(delta.schema().to_arrow()).names) == (0, ["seq", "more"])
    assert opened(table.uri).load() == {"done": 0, "generation": 1}


def test_places_with_other_content_are_refused(tmp_path: Path, table: OutputTable):
    with pytest.raises(NoTable, match="it contains table"):
        opened(str(tmp_path / "out")).load()
    table.commit({"done": 2}, written(table, 1, 2))
    with pytest.raises(NoTable, match="has not written"):
        OutputTable(table.uri, "other").load()
    (tmp_path / "file").write_text("x")
    with pytest.raises(NoLake, match="is a file, and a table is a directory"):
        opened(str(tmp_path / "file"))


def test_missing_file_of_a_task_is_refused(table: OutputTable):
    [file] = written(table, 1, 2)
    (Path(table.uri) / file.path).unlink()
    with pytest.raises(LakeError, match="driver and all executors share"):
        table.commit({"done": 2}, [file])
    with pytest.raises(Damaged, match="is missing"):
        list(read_rows(table.storage, file.path, SCHEMA))


def test_failed_writer_leaves_no_file(table: OutputTable):
    def fail() -> None:
        with RowsWriter(table.storage, SCHEMA) as writer:
            writer.write(rows(1, 2))
            writer.cut()
            writer.write(rows(3, 4))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(Path(table.uri).glob("*.parquet")) == []


def test_table_in_an_object_store_is_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with object_store(tmp_path) as store:
        given = settings(store.url)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        table = opened(f"s3://{BUCKET}/out/table")
        run_to_the_end(table)
        assert seen_by_others(table) == list(range(1, LAST + 1))
        found = pl.read_delta(table.uri, storage_options=given)
        assert sorted(found["seq"].to_list()) == list(range(1, LAST + 1))


def test_statistics_cover_structs_and_leave_out_what_json_cannot_show():
    found = Statistics()
    day = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    window = pa.struct([("start", pa.timestamp("us", "UTC"))])
    for number, real in ((2, 1.5), (1, float("nan"))):
        found.add(
            pa.record_batch(
                {
                    "window": pa.array([{"start": day + datetime.timedelta(days=number)}, None], window),
                    "n": pa.array([number, None], pa.int32()),
                    "real": pa.array([real, 0.0]),
                    "price": pa.array([Decimal(f"{number}.50"), None], pa.decimal128(10, 2)),
                    "text": pa.array(["x" * 2000, "y"]),
                    "list": pa.array([[1], None]),
                    "none": pa.array([None, None], pa.string()),
                }
            )
        )
    assert json.loads(found.json()) == {
        "numRecords": 4,
        "minValues": {"window": {"start": "2024-03-01T12:00:00.000000Z"}, "n": 1, "price": 1.5},
        "maxValues": {"window": {"start": "2024-03-02T12:00:00.000000Z"}, "n": 2, "price": 2.5},
        "nullCount": {"window": {"start": 2}, "n": 2, "real": 0, "price": 2, "text": 0, "list": 2, "none": 4},
    }
