"""The lag of a stream, from a progress report. Pure."""

import json
from typing import Any

from topics.spark import lag


def progress(end: Any, latest: Any) -> dict[str, Any]:
    as_text = [None if offset is None else json.dumps({"from": {}, "to": offset}) for offset in (end, latest)]
    return {"sources": [{"endOffset": as_text[0], "latestOffset": as_text[1]}]}


def at(epoch: int, seq: int) -> dict[str, int]:
    return {"epoch": epoch, "seq": seq}


def test_lag_is_the_number_of_unread_seqs():
    assert lag(progress({"a": at(1, 5)}, {"a": at(1, 9), "new": at(1, 3)})) == {"a": 4, "new": 2}


def test_recreated_topic_is_unread_from_its_first_seq():
    assert lag(progress({"a": at(1, 500)}, {"a": at(2, 9)})) == {"a": 8}


def test_unknown_latest_offset_is_no_lag():
    assert lag(progress({"a": at(1, 5)}, None)) is None
    assert lag({"sources": [{"endOffset": "7", "latestOffset": "9"}]}) is None
