"""Runs every Python block of docs/spark.md, in order, against a real server and in one session."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.conftest import StartServer
from topics.client import Client
from topics.storage import backup
from topics.storage.fs import Fs

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_snippet_of_the_page_runs(spark: SparkSession, start_server: StartServer, tmp_path: Path, capsys: Any):
    server = start_server(data_dir=tmp_path / "data")
    with Client(server.url) as client:
        client.append("orders", [{"data": {"sku": "first"}}])
        backup.copy(Fs(), str(tmp_path / "data"), str(tmp_path / "backup"))
        client.drop_topic("orders")
    text = PAGE.read_text()
    names: dict[str, Any] = {"__name__": "docs"}
    blocks = BLOCK.findall(text)
    assert len(blocks) > 8
    for block in blocks:
        code = block
        for shown, meant in {
            "http://127.0.0.1:4000": server.url,
            "http://127.0.0.1:4001": server.url.replace("127.0.0.1", "localhost"),  # the same server stands for another
            "/backup/topics": str(tmp_path / "backup"),
            "/checkpoints": str(tmp_path / "checkpoints"),
        }.items():
            code = code.replace(shown, meant)
        line = text[: text.index(block)].count("\n") + 1
        exec(compile("\n" * (line - 1) + code, str(PAGE), "exec"), names)  # so that a failure names the page's line
    assert "AEROPRESS-GO" in capsys.readouterr().out
