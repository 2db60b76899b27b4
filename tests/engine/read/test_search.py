"""Reads with a filter on fields: the same records as a naive evaluator finds, wherever they are stored."""

from __future__ import annotations

import json
import re
from itertools import chain

import pytest
from msgspec import Raw

from tests.engine.harness import Sealer, append, done, open_engine, read, record
from tests.model.naive_filter import Pairs, loads, matches
from tests.simulated.disk import SimDisk
from topics.engine.engine import Engine
from topics.engine.read import search
from topics.engine.read.read import Query, Reading
from topics.engine.read.scan import Scan
from topics.engine.steps import once_loaded, run_all
from topics.model.filters import parse_filter
from topics.model.records import TagMatch


def where(text: str) -> TagMatch:
    match = parse_filter(Raw(text.encode()))
    assert match is not None
    return match


def seqs(page: Reading) -> list[int]:
    """Return the seqs of a page. Its numbers may be too large for a decoder."""
    return [int(seq) for seq in re.findall(rb'{"\$seq":(\d+),"\$ts":', b"".join(map(bytes, page.parts)))]


def pages(engine: Engine, match: TagMatch, **query: object) -> tuple[list[int], int]:
    """Return the seqs of all pages up to the head, and how many pages there were."""
    found, cursor, count = [], 0, 0
    while cursor < engine.topic("a").head:
        page = read(engine, "a", match=match, from_seq=cursor, **query)
        assert page.next_from_seq > cursor, "a page moves the cursor"
        assert all(cursor < seq <= page.next_from_seq for seq in seqs(page))
        found += seqs(page)
        cursor, count = page.next_from_seq, count + 1
    return found, count


@pytest.mark.parametrize("stored", ["memory", "files", "cold files"])
def test_pages_have_the_records_that_a_naive_evaluator_finds(stored: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "STRETCH_BYTES", 700)
    monkeypatch.setattr(search, "AHEAD_BYTES", 2000)
    pairs, engine = Pairs(5), open_engine()
    made = {seq: pairs.record() for seq in range(1, 81)}
    for data, meta, tag in made.values():
        append(engine, "a", record(data.decode(), tag=tag, meta=None if meta is None else meta.decode(), node="n"))
    if stored != "memory":
        Sealer(SimDisk(cold=stored == "cold files"), columns_bytes=1).seal(engine.topic("a"))
    done(engine, run_all(once_loaded(lambda: engine.delete_seqs("a", [3, 4, 40]))))
    live = {seq: parts for seq, parts in made.items() if seq not in (3, 4, 40)}
    for number in range(60):
        text = pairs.filter()
        expected = [seq for seq, parts in live.items() if matches(loads(text.encode()), *parts)]
        match = where(text)
        assert pages(engine, match, limit=pairs.rng.choice([1, 3, 100]))[0] == expected, (number, text)
        found = run_all(engine.preview(engine.topic("a"), match, from_seq=0, from_ts=None))
        assert (found.matched, found.scanned) == (len(expected), len(live))


def test_a_search_ends_its_answer_after_some_work_and_continues_at_the_cursor():
    engine = open_engine()
    needle = '{"id": 8, "text": "' + "id 7 " * 2000 + '"}'
    for _ in range(80):
        append(engine, "a", *[record(needle)] * 5)
    append(engine, "a", record('{"id": 7}'))
    first = read(engine, "a", match=where('["data.id", "Eq", 7]'), limit=1000)
    assert (first.count, first.next_from_seq) < (1, 401)
    assert first.scanned == first.next_from_seq
    assert first.searched_ns < 3 * 2_000_000
    found, count = pages(engine, where('["data.id", "Eq", 7]'))
    assert (found, count > 3) == ([401], True)


def test_search_pauses_sooner_the_more_conditions_look_at_all_of_a_value():
    engine = open_engine()
    for _ in range(10):
        append(engine, "a", record("[" + "0," * 5000 + "0]"))
    one = read(engine, "a", match=where('["data", "Contains", 1]'))
    many = read(engine, "a", match=where(json.dumps(["Or", [["data", "Contains", n] for n in range(1, 65)]])))
    assert (one.next_from_seq, many.next_from_seq) == (10, 1)


def test_a_cold_search_answers_with_what_it_has_before_it_loads_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "STRETCH_BYTES", 200)
    monkeypatch.setattr(search, "AHEAD_BYTES", 400)
    engine = open_engine()
    append(engine, "a", record('{"id": 7}'))
    for seq in range(60):
        append(engine, "a", record(f'{{"id": {seq + 100}, "more": "{"x" * 50}"}}'))
    Sealer(SimDisk(cold=True), columns_bytes=1).seal(engine.topic("a"))
    page = read(engine, "a", match=where('["data.id", "Eq", 7]'))
    assert seqs(page) == [1]
    assert 1 < page.next_from_seq < 50
    assert pages(engine, where('["data.id", "Eq", 159]'))[0] == [61]


def test_a_scan_has_only_matching_records_and_ends_at_its_last_seq():
    engine = open_engine()
    append(engine, "a", *[record(f'{{"n": {n}}}') for n in range(100)])
    scan, found, steps = Scan(Query(match=where('["data.n", "In", [3, 50, 98]]')), upto_seq=60), [], 0
    while True:
        step = scan.step(lambda query: engine.read("a", query))
        found += [one.columns.first + at for one in step.slices for at in chain(*(range(*span) for span in one.spans))]
        steps += 1
        if step.done:
            break
    assert (found, step.next_from_seq) == ([4, 51], 60)


def test_a_router_counts_what_it_would_forward_in_steps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "STRETCH_BYTES", 500)
    engine = open_engine()
    append(engine, "a", *[record(f'{{"n": {n}}}') for n in range(200)])
    steps = engine.preview(engine.topic("a"), where('["Where", "n < 10 or n = 150"]'), from_seq=5, from_ts=None)
    yielded = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
            break
        yielded += 1
    assert yielded > 5
    assert (found.scanned, found.matched, found.first, found.last) == (195, 6, 6, 151)
