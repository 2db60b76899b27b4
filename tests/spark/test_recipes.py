"""The recipes that need Spark: docs/recipes/spark-delta.md and docs/recipes/two-servers.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.conftest import StartServer
from tests.docs.programs import Programs
from tests.spark.processes import wait_for
from topics.cli.main import main
from topics.client import Topics

MERGED = 'open_table().delete("name IS NULL")'


def test_change_feed_is_merged_once_into_a_delta_table(
    spark: SparkSession, start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(data_dir=tmp_path / "data")
    real = {"http://127.0.0.1:4000": server.url}
    real |= {f"{name}/products": str(tmp_path / name) for name in ("tables", "checkpoints")}
    Programs("recipes/spark-delta.md", tmp_path, real)
    program = (tmp_path / "feed_to_delta.py").read_text()
    assert MERGED in program
    with Topics(server.url) as topics:
        for key, price in [("V60", 1299), ("KETTLE", 4999), ("V60", 1199)]:
            topics.append("products", {"name": key.title(), "price": price}, tag=key)
        with pytest.raises(StreamingQueryException, match="killed"):  # after the merge, and before the checkpoint
            _run(program.replace(MERGED, f"{MERGED}; raise RuntimeError('killed')"))
        assert _rows(tmp_path) == [("KETTLE", 4999, 2), ("V60", 1199, 3)]
        topics.append("products", None, tag="KETTLE")
        _run(program)
        assert _rows(tmp_path) == [("V60", 1199, 3)]

        topics.put_topic("products", cap_records=1)
        topics.append("products", {"name": "Scale", "price": 1999}, tag="SCALE")
        topics.append("products", {"name": "Scale", "price": 1899}, tag="SCALE")
        with pytest.raises(StreamingQueryException, match="the feed has lost records"):
            _run(program)
        assert _rows(tmp_path) == [("V60", 1199, 3)]


def test_consumer_changes_sites_and_processes_each_order_once(
    spark: SparkSession, start_server: StartServer, tmp_path: Path
) -> None:
    berlin, madrid = (start_server(data_dir=tmp_path / name) for name in ("berlin", "madrid"))
    programs = Programs("recipes/two-servers.md", tmp_path, {})
    mirror = ["pipeline", "mirror", "--from", berlin.url, "--to", madrid.url, "--from-name", "berlin"]
    mirror += ["--to-name", "madrid", "--prefix", "shop.", "--both-ways"]
    with Topics(berlin.url) as one, Topics(madrid.url) as other:
        one.append("shop.orders", {"id": "b-1"})
        other.append("shop.orders", {"id": "m-1"})
        assert main(mirror) == 0
        with programs.start("consumer.py", berlin.url) as consumer:
            assert consumer.line().startswith("reading at berlin/")
            seen = [consumer.line().split("/")[0] for _ in range(2)]
            assert seen == ["order b-1 of berlin", "order m-1 of madrid"]
            wait_for(lambda: len(json.loads((tmp_path / "processed.json").read_text())) == 2, "both positions")
        other.append("shop.orders", {"id": "m-2"})
        one.append("shop.orders", {"id": "b-2"})
        assert main(mirror) == 0
        with programs.start("consumer.py", madrid.url) as consumer:
            assert consumer.line().startswith("reading at madrid/")
            seen = [consumer.line().split("/")[0] for _ in range(2)]
            assert sorted(seen) == ["order b-2 of berlin", "order m-2 of madrid"]


def _run(program: str) -> None:
    exec(compile(program, "feed_to_delta.py", "exec"), {"__name__": "__main__"})


def _rows(directory: Path) -> list[tuple[object, ...]]:
    table = DeltaTable(directory / "tables").to_pyarrow_table(columns=["id", "price", "seq"])
    return sorted(tuple(row.values()) for row in table.to_pylist())
