"""Outputs of `compact` and `rollup` in an object store, by commands in processes of their own."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.lake.object_store import BUCKET, object_store, settings
from tests.spark.pipelines.test_pipeline_kills import BASE, MINUTE, run_to_its_end
from tests.spark.processes import Server
from topics.client import Client


@pytest.mark.torture
def test_commands_write_tables_to_an_object_store(tmp_path: Path):
    server = Server(tmp_path)
    try:
        with object_store(tmp_path) as store, Client(server.url, retries=30) as client:
            given = settings(store.url)
            options = [part for name, value in given.items() for part in ("--storage-option", f"{name}={value}")]
            place = f"s3://{BUCKET}/out"
            for at in range(2):
                record = {"data": {"at": BASE + at * MINUTE}, "tag": "a" if at else "b"}
                client.append("t", [record], idempotency_key=f"record-{at}")
                for command in (
                    ("compact", "--table", f"{place}/latest"),
                    ("rollup", "--table", f"{place}/sums", "--window", "1 minute", "--time",
                     "timestamp_millis(value:at::bigint)"),
                ):  # fmt: skip
                    run_to_its_end(tmp_path / "log", *command, "--url", server.url, "--topic", "t", *options)
            latest = pl.read_delta(f"{place}/latest", storage_options=given)
            assert dict(latest.select("key", "seq").iter_rows()) == {"b": 1, "a": 2}
            sums = pl.read_delta(f"{place}/sums", storage_options=given)
            assert sums["count"].to_list() == [1]
    finally:
        server.kill()
