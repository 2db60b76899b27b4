"""Filters on archived records: the same ones match as on a server."""

from __future__ import annotations

import pyarrow as pa

from tests.model.naive_filter import Pairs, loads, matches
from topics.lake.rewrite import matching
from topics.model.filters import parse_filter
from topics.model.records import TagMatch


def test_archived_records_match_as_in_a_naive_evaluator() -> None:
    pairs = Pairs(3)
    made = [pairs.record() for _ in range(50)]
    texts = [data.decode() for data, _, _ in made]
    metas = [meta and meta.decode() for _, meta, _ in made]
    tags = [tag for _, _, tag in made]
    batch = pa.record_batch([texts, pa.array(metas, pa.string()), pa.array(tags)], ["data", "meta", "tag"])
    for _ in range(30):
        text = pairs.filter()
        kept = batch.filter(matching(batch, TagMatch("Where", text)))
        expected = [row for row in made if matches(loads(text.encode()), *row)]
        assert kept.column("data").to_pylist() == [row[0].decode() for row in expected], text
    assert batch.filter(matching(batch, parse_filter(["tag", "Eq", "t"]))).num_rows == tags.count("t")
