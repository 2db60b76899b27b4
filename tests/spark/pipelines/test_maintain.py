"""Maintenance of a lake, without a server and without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lake.making import EPOCH, archive, archived_epoch_of, check_content, written
from topics.cli.main import main
from topics.lake import Lake
from topics.spark.pipelines.maintain import maintain
from topics.spark.pipelines.run.job import BadUsage


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(str(tmp_path / "lake"))
    made.create()
    for at in range(6):
        archive(made, "a", 1 + 10 * at, 10 + 10 * at)
    archive(made, "b", 1, 3)
    return made


def test_small_files_are_merged_and_old_ones_removed(lake: Lake, capsys: pytest.CaptureFixture[str]):
    assert main(["pipeline", "maintain", "--lake", lake.path, "--retention", "0"]) == 0
    shown = capsys.readouterr().out
    assert f"  a → {lake.path}: merged 6, removed files 6, removed bytes " in shown
    assert ", files 1\n" in shown
    assert shown.splitlines()[-1].startswith("maintain: 2 topics, merged 6, removed files 6, removed bytes ")
    assert len(archived_epoch_of(lake).files) == len(lake.table("a").files()) == 1
    check_content(Lake(lake.path), "a")


def test_replaced_and_uncommitted_files_stay_for_a_week(lake: Lake):
    written(lake, "a", 61, 70)
    report = maintain(lake=lake.path)
    assert (report.figures["merged"], report.figures["removed_files"]) == (6, 0)
    assert len(lake.table("a").files()) == 8
    report = maintain(lake=lake.path, topics=["a"], retention_hours=0)
    assert (report.figures["merged"], report.figures["removed_files"]) == (0, 7)


def test_dry_run_reports_and_changes_nothing(lake: Lake, capsys: pytest.CaptureFixture[str]):
    before = lake.table("a").state()
    assert main(["pipeline", "maintain", "--lake", lake.path, "--dry-run", "--retention", "0", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["topics"][0]["would"] == ["merge 6 files, and remove 0 files, 0 bytes"]
    assert lake.table("a").state() == before


def test_option_that_is_none_is_not_given(lake: Lake):
    given: Any = dict.fromkeys(["max_bytes_per_second", "dry_run", "token", "spark", "storage_options"])
    report = maintain(lake=lake.path, **given)
    assert (report.dry_run, report.figures["merged"]) == (False, 6)
    with pytest.raises(BadUsage, match="maintain has no option dryrun"):
        maintain(lake=lake.path, dryrun=None)  # type: ignore[call-arg]


def test_wrong_arguments_are_refused(lake: Lake, tmp_path: Path):
    with pytest.raises(BadUsage, match="topic nothing does not exist"):
        maintain(lake=lake.path, topics=["nothing"])
    with pytest.raises(BadUsage, match="is not a lake"):
        maintain(lake=str(tmp_path))
    with pytest.raises(BadUsage, match="maintain has no option max_bytes_per_second"):
        maintain(lake=lake.path, max_bytes_per_second=1)  # type: ignore[call-arg]
    with pytest.raises(BadUsage, match="2 or more"):
        maintain(lake=lake.path, merge_files=1)
    assert archived_epoch_of(lake, "a", EPOCH).archived_to == 60
