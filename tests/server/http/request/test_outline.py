"""The outline of a write finds the same records as the decoder, for any text and any pieces."""

import json
import random
from collections.abc import Generator
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from topics.errors import Code, TopicsError
from topics.model.records import Limits
from topics.server.http.request import write_request
from topics.server.http.request.write_request import Outline

TEXTS = [1, "x", 'a"b', "\\", "{[", "records", None, ']}\\"', "\\\\"]
T = TypeVar("T")


def finish(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def some_value(dice: random.Random, depth: int) -> Any:
    kind = dice.random()
    if depth > 3 or kind < 0.3:
        return dice.choice(TEXTS)
    if kind < 0.6:
        return [some_value(dice, depth + 1) for _ in range(dice.randint(0, 4))]
    return {dice.choice(["records", "a", 'q"']): some_value(dice, depth + 1) for _ in range(dice.randint(0, 3))}


def some_write(dice: random.Random) -> dict[str, Any]:
    names = dice.sample(["config", "node", "x", "recordsx"], dice.randint(0, 4))
    write = {name: some_value(dice, 0) for name in names}
    write["records"] = [{"data": some_value(dice, 0)} for _ in range(dice.randint(0, 6))]
    shuffled = list(write.items())
    dice.shuffle(shuffled)
    return dict(shuffled)


@pytest.mark.parametrize("seed", range(20))
def test_parts_contain_all_records_whole(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(write_request, "PART_BYTES", 1)
    for number in range(10):
        write = some_write(dice)
        body = json.dumps(write, separators=dice.choice([(",", ":"), (" , ", " :\n")])).encode()
        body = body.replace(b'"records"', rb'"\u0072ecords"', dice.randint(0, 1))
        count = len(write["records"])
        for piece_bytes in (7, 4096) if number % 5 else (1, 7, 4096):  # pieces of a byte take ten times as long
            monkeypatch.setattr(write_request, "PIECE_BYTES", piece_bytes)
            found: Outline = finish(write_request.outline(body, Limits(max_batch_records=max(count, 1))))
            assert json.loads(b"[%b]" % body[found.low : found.high]) == write["records"]
            cuts = [*found.parts, found.high]
            parts = [body[low:high].strip().rstrip(b",") for low, high in pairwise(cuts)]
            assert list(map(json.loads, parts)) == write["records"]
            if count > 1:
                with pytest.raises(TopicsError) as refused:
                    finish(write_request.outline(body, Limits(max_batch_records=count - 1)))
                assert refused.value.code is Code.BATCH_TOO_LARGE


def test_scan_stops_at_the_first_record_too_many() -> None:
    body = b'{"records":[' + b'{"data":1},' * 300_000 + b'{"data":1}]}'
    taken: list[None] = []
    with pytest.raises(TopicsError):
        taken.extend(write_request.outline(body, Limits()))
    assert len(taken) <= 10_000 // write_request.RECORDS_A_STEP


def test_scan_stops_at_an_oversized_record() -> None:
    body = b'{"records":[{"data":1},{"data":"' + rb"\n" * (8 << 20) + b'"}]}'
    taken: list[None] = []
    with pytest.raises(TopicsError) as refused:
        taken.extend(write_request.outline(body, Limits()))
    assert (refused.value.code, refused.value.detail and refused.value.detail["record"]) == (Code.RECORD_TOO_LARGE, 1)
    assert len(taken) < (4 << 20) // write_request.PIECE_BYTES


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"a":[{}]}', b'{"records":[{}', b'{"records":{}}', b'{"records":[],"records":[]}', b"", b"\\", b"]]"],
)
def test_body_without_an_outline_is_invalid(body: bytes) -> None:
    with pytest.raises(TopicsError) as refused:
        finish(write_request.outline(body, Limits()))
    assert refused.value.code is Code.INVALID_REQUEST


def test_slow_bodies_are_detected_by_samples() -> None:
    size = 64 << 20
    assert write_request.is_slow(b'{"records":[' + b'{"data":1},' * (size // 11))
    assert write_request.is_slow(b'{"records":[{"data":"' + rb"\n" * (size // 2))
    assert not write_request.is_slow(b'{"records":[' + (b'{"data":"' + b"x" * 6000 + b'"},') * (size // 6000))
    assert not write_request.is_slow(b'{"data":1},' * 50_000)


def test_body_near_the_limit_is_always_decoded_in_the_same_way() -> None:
    slow_bytes = write_request.SLOW_NS * 11 // write_request.OBJECT_NS
    body = b'{"data":1},' * (slow_bytes // 11) + b"x" * (3 * slow_bytes)
    assert len({write_request.is_slow(body) for _ in range(20)}) == 1
