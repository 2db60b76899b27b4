"""`make demo-pipeline`, small: every seq is accounted for, and the picture shows it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import StartServer

ROOT = Path(__file__).parents[2]


def test_demo_archives_evicts_heals_audits_and_draws(
    spark: SparkSession,
    start_server: StartServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.syspath_prepend(str(ROOT / "demo"))
    import pipeline  # type: ignore[import-not-found]

    monkeypatch.setattr(pipeline, "READ_S", 0.1)
    server = start_server(data_dir=tmp_path / "data")
    assert pipeline.run_demo(server.url, str(tmp_path / "lake"), spark, tmp_path / "demo.svg", records=2400)
    shown = capsys.readouterr().out
    assert "orders:   2,400 written      600 live     2,400 with the lake        0 in gaps" in shown
    assert "a tombstone, seqs 1 to 1,800 are lost (cap)" in shown
    assert ": 0 unexplained" in shown
    words = [element.text for element in ET.parse(tmp_path / "demo.svg").iter() if element.text]
    assert {"orders", "clicks", "audit", "0 unexplained", "2,400 of 2,400: healed"} <= set(words)
    assert any(text.startswith("tombstone: seqs 301 to ") for text in words)
