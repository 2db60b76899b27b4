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


def tags_of(run: record_run.Run) -> list[str | None]:
    ids, names = run.columns.tags, run.columns.tag_names
    assert ids is not None
    return [names.name_of(one) if one else None for one in ids]


@pytest.mark.parametrize("spans", [[(1, 4)], [(0, 1), (3, 5)]])
@pytest.mark.parametrize("sealed", [True, False])
def test_shared_names_are_those_of_the_records(spans: list[tuple[int, int]], sealed: bool) -> None:
    tags = ["b", None, "a", "c", "b"]
    columns = Columns(1)
    for tag in tags:
        assert extend_plain(columns, 5, len(RECORD), [tag], None)
    whole = record_run.Run(columns, RECORD * len(tags), None)
    if sealed:
        blob = b"".join(record_run.encode(whole, topic_id=1, epoch=1))
        whole = record_run.decode(blob, source="test")
    parts = [RECORD * (high - low) for low, high in spans]
    cut, shared = (
        record_run.Slice.of(whole.columns, spans, parts).run(all_names=all_names) for all_names in (False, True)
    )
    kept = {at for low, high in spans for at in range(low, high)}
    expected = [tags[at] if at in kept else None for at in range(spans[0][0], spans[-1][1])]
    assert tags_of(cut) == tags_of(shared) == expected
    assert (shared.data, shared.marks) == (cut.data, cut.marks)
