"""`topics pipeline init`: a project that runs as it is with any topic, and never writes over another."""

from __future__ import annotations

import compileall
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ServerProcess
from tests.spark.processes import Process, free_port, slim_home
from topics.cli.fields import COLUMNS_MAX, infer
from topics.cli.main import main
from topics.client import Client
from topics.client.request import Record
from topics.spark.declarative import is_written_anew

ODD = {
    "sku": "V60", "price": 12.5, "customer": {"name": "Ada", "geo": {"lat": 1.5, "lon": 2}}, "lines": [{"qty": 1}],
    "a.b": 1, "it's": "q", "we`ird": 7, "Total": 1, "total": 2.5, "seq": 9, "": "e", "new\nline": True, "ünï": "x",
    "2024": 3, "big": 2**70, "nothing": None, "mixed": 1, "o": {}, "_malformed": "m", 'we "q" \\ b': 1,
}  # fmt: skip


def run(project: Path, log: Path) -> None:
    """As its README says, but for what makes it quick."""
    tool = str(Path(sys.executable).with_name("spark-pipelines"))
    command = [tool, "run", "--spec", str(project / "spark-pipeline.yml")]
    command += ["--conf", "spark.ui.enabled=false", "--conf", f"spark.sql.warehouse.dir={log.parent / 'warehouse'}"]
    running = Process(command, log, SPARK_HOME=slim_home(log.parent))
    try:
        running.succeed()
    finally:
        running.kill()


def table(project: Path, name: str, order: str = "seq") -> list[dict[str, Any]]:
    """A table of the project, as a stranger reads it."""
    import duckdb

    rows = duckdb.sql(f"SELECT * FROM '{project}/storage/tables/{name}/*.parquet' ORDER BY {order}")
    return [dict(zip(rows.columns, row, strict=True)) for row in rows.fetchall()]


def append(client: Client, topic: str, *data: object) -> None:
    # With a key, since a connection that was idle during a slow run may be closed: the write can then be sent again.
    records = [{"data": value, "tag": "web", "node": "till-1"} for value in data]
    client.append(topic, records, idempotency_key=uuid.uuid4().hex)


def copies(client: Client, topic: str) -> list[tuple[object, ...]]:
    return [
        (item.value, item.tag, item.node) for item in client.read(topic, include_tags=True) if isinstance(item, Record)
    ]


def made(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["pipeline", "init", *map(str, arguments), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.torture
def test_the_project_runs_as_it_was_made_and_takes_up_what_comes_whatever_the_fields(
    server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    pytest.importorskip("pandas")
    pytest.importorskip("grpc")
    append(client, topic, ODD, {"sku": "K", "price": "many", "mixed": {"a": 1}}, [1, 2])
    project = tmp_path / "shop"
    assert main(["pipeline", "init", str(project), "--url", server.url, "--topic", topic]) == 0
    run(project, tmp_path / "log")
    append(client, topic, {"sku": "F", "price": 5, "customer": {"name": "Bob"}})
    run(project, tmp_path / "log")

    assert [row["seq"] for row in table(project, "records")] == [1, 2, 3, 4]
    assert [(row["tag"], row["node"], row["kind"]) for row in table(project, "records")] == [
        ("web", "till-1", "record")
    ] * 4
    assert {row["tag"] for row in table(project, "per_minute", "minute")} == {"web"}
    assert sum(row["records"] for row in table(project, "per_minute", "minute")) == 4
    first, second, third, fourth = table(project, "fields")
    assert (first["sku"], first["price"], first["customer"]["geo"]) == ("V60", "12.5", {"lat": 1.5, "lon": 2})
    assert (first["a_b"], first["it_s"], first["we_ird"], first["Total"], first["total_2"]) == (1, "q", 7, 1, 2.5)
    assert (first["data_seq"], first["field"], first["new_line"], first["ünï"], first["_2024"]) == (
        9,
        "e",
        True,
        "x",
        3,
    )
    assert (first["big"], first["nothing"], first["we_q_b"], first["lines"]) == (str(2**70), None, 1, [{"qty": 1}])
    assert (first["data__malformed"], first["_malformed"]) == ("m", None)
    assert (second["price"], second["mixed"], third["_malformed"]) == ("many", '{"a":1}', "[1,2]")
    assert (fourth["seq"], fourth["customer"]["name"]) == (4, "Bob")
    written = [record.value for record in client.read(topic) if isinstance(record, Record)]
    assert copies(client, f"{topic}.copy") == [(value, "web", "till-1") for value in written]


@pytest.mark.torture
def test_the_project_runs_before_there_is_a_topic_and_where_records_are_lost(
    server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    project = tmp_path / "shop"
    options = ["--url", server.url, "--topic", topic, "--into", f"{topic}.out"]
    assert main(["pipeline", "init", str(project), *options]) == 0
    run(project, tmp_path / "log")  # before there is a topic
    append(client, topic, 1)
    run(project, tmp_path / "log")
    client.put_topic(topic, cap_records=1)
    append(client, topic, 2, 3)  # 2 is gone before anybody came
    run(project, tmp_path / "log")
    rows = [(row["kind"], row["seq"], row["gap_to"], row["reason"]) for row in table(project, "records")]
    assert rows == [("record", 1, None, None), ("gap", 2, 2, "cap"), ("record", 3, None, None)]
    assert [value for value, _, _ in copies(client, f"{topic}.out")][::2] == [1, 3]


def test_what_is_made_is_whole_and_says_what_to_type_next(
    server: ServerProcess, client: Client, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    append(client, topic, ODD)
    project = tmp_path / "shop"
    report = made(capsys, project, "--url", server.url, "--topic", topic)
    there = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    flows = {"transformations/flows.py", "transformations/fields.py"}
    assert there == {"spark-pipeline.yml", "README.md", ".gitignore", *flows}
    assert {file["path"] for file in report["files"]} == there
    assert compileall.compile_dir(project / "transformations", quiet=1)
    assert f"file://{project}/storage" in (project / "spark-pipeline.yml").read_text()
    assert report["next"] == f"cd {project} && spark-pipelines run"
    assert (report["topic"], report["into"], report["sampled"]) == (topic, f"{topic}.copy", 1)
    assert report["fields"][0] == {"name": "sku", "column": "sku", "type": "STRING", "by_key": False}


def test_a_dry_run_prints_the_files_and_writes_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    url = f"http://127.0.0.1:{free_port()}"
    assert main(["pipeline", "init", str(tmp_path / "shop"), "--url", url, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"would make {tmp_path}/shop/transformations/flows.py" in said
    assert "@dp.materialized_view" in said
    assert "no answer from" in said
    assert not (tmp_path / "shop").exists()


def test_a_topic_without_records_or_without_objects_has_no_table_of_fields(
    server: ServerProcess, client: Client, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    options = ("--url", server.url, "--topic", topic)
    report = made(capsys, tmp_path / "missing", *options)
    assert (report["fields"], report["warnings"]) == (
        [],
        [f"topic {topic} is not there yet: there is no table of fields"],
    )
    client.put_topic(topic)
    [warning] = made(capsys, tmp_path / "empty", *options)["warnings"]
    assert "has no records yet" in warning
    append(client, topic, 1, "two", [3])
    [warning] = made(capsys, tmp_path / "plain", *options)["warnings"]
    assert "none of 3 records is a JSON object" in warning
    assert not (tmp_path / "plain" / "transformations" / "fields.py").exists()


def test_no_key_is_written_into_the_project(server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    key = "topics-secret-0123456789"
    (tmp_path / "key").write_text(key)
    for number, option in enumerate((("--token", key), ("--token-file", str(tmp_path / "key")))):
        report = made(capsys, tmp_path / f"shop{number}", "--url", server.url, "--topic", "any", *option)
        assert "TOPICS_TOKEN_FILE=" in report["next"]
        assert key not in json.dumps(report)
    assert not [path for path in tmp_path.glob("shop*/**/*") if path.is_file() and key in path.read_text()]


@pytest.mark.parametrize(
    "options",
    [
        ["--topic", "no good"], ["--into", "orders"], ["--url", "nowhere"], ["--url", 'http://a"b'],
        ["--url", "http://key:word@host:4000"], ["--token-file", "/nowhere/key"],
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_before_anything_is_made(options: list[str], tmp_path: Path):
    assert main(["pipeline", "init", str(tmp_path / "shop"), *options]) == 2
    assert not (tmp_path / "shop").exists()


def test_a_path_that_spark_would_misread_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["pipeline", "init", str(tmp_path / "my shop")]) == 2
    assert "has ' ' in it" in capsys.readouterr().err


def test_files_that_are_there_are_left_alone_unless_told_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    url = ["--url", f"http://127.0.0.1:{free_port()}"]
    (tmp_path / "README.md").write_text("precious")
    (tmp_path / "mine").write_text("precious")
    assert main(["pipeline", "init", str(tmp_path), *url]) == 2
    assert "has README.md already\nnext: " in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "README.md"}
    assert main(["pipeline", "init", str(tmp_path), *url, "--force"]) == 0
    assert "spark-pipelines run" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "mine").read_text() == "precious"
    assert main(["pipeline", "init", str(tmp_path / "mine"), *url]) == 2


def test_types_hold_every_value_of_the_sample():
    values = [{"n": 1, "x": None, "m": 1, "deep": {"a": [1]}}, {"n": 2.5, "x": True, "m": "s", "deep": {"b": {}}}]
    assert {field.name: field.type for field in infer(values)} == {
        "n": "DOUBLE", "x": "BOOLEAN", "m": "STRING", "deep": "STRUCT<`a`: ARRAY<BIGINT>, `b`: STRING>",
    }  # fmt: skip
    assert infer([{"deep": {"A": 1, "a": 2}}, {"deep": {"b`c": 1}}])[0].type == "STRING"
    assert infer([1, "two", None, [{}]]) == []


def test_a_record_that_is_a_map_of_ids_has_the_columns_that_most_records_have():
    values = [{"kind": "a", f"id{number}": number} for number in range(3 * COLUMNS_MAX)]
    assert infer(values)[0].name == "kind"
    assert len(infer(values)) == COLUMNS_MAX


@pytest.mark.parametrize(
    ("command", "records", "view"),
    [
        ("run", False, True),
        ("dry-run", False, False),
        ("run --refresh records", False, False),
        ("run --refresh=view,other", False, True),
        ("run --full-refresh records", True, False),
        ("run --full-refresh-all", True, True),
    ],
)
def test_tables_are_cleared_by_the_commands_that_fill_them_from_nothing(command: str, records: bool, view: bool):
    assert is_written_anew("records", command.split(), always=False) is records
    assert is_written_anew("view", command.split(), always=True) is view
