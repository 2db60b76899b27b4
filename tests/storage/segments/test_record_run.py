"""Runs of records as JSON lines."""

import pytest

from topics.model.records import Projection
from topics.storage.segments import record_run
from topics.storage.segments.columns import Columns, extend_plain

RECORD = b'{"$seq":1,"$ts":5,"data":1},'


def run_of(tag: str | None) -> record_run.Run:
    columns = Columns(1)
    assert extend_plain(columns, 5, len(RECORD), None if tag is None else [tag], None)
    return record_run.Run(columns, memoryview(RECORD), None)


def test_run_without_tags_is_passed_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_run, "project", None)  # rendering the records one by one costs four times as much
    wanted = Projection(tags=True, meta=False)
    assert record_run.lines(run_of(None), wanted) == RECORD[:-1] + b"\n"


def test_run_with_tags_shows_them() -> None:
    assert b'"$tag":"a"' in record_run.lines(run_of("a"), Projection(tags=True))
    assert record_run.lines(run_of("a"), Projection()) == RECORD[:-1] + b"\n"
