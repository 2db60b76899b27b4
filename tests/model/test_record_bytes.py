"""The stored form of a record: what is written is what is cut, and both are the JSON that readers expect."""

import json
import random
from typing import Any

import msgspec
import pytest

from topics.model import record_bytes

SEQS = [1, 9, 10, 4096, 10**12, 2**63 - 1]
NODES = [None, "a", "näive", '"quoted"\\', "\N{GRINNING FACE}"]
DATAS = [b"1", b'"x"', b'{"a":[1,2]}', b"  null "]
METAS = [None, b"{}", b'{"k":"v"}', b'{ "data": 1 }']


def cases() -> list[tuple[int, int, str | None, bytes, bytes | None]]:
    dice = random.Random(4)
    return [
        (dice.choice(SEQS), dice.choice(SEQS), dice.choice(NODES), dice.choice(DATAS), dice.choice(METAS))
        for _ in range(60)
    ]


def written(seq: int, ts: int, node: str | None, data: bytes, meta: bytes | None) -> tuple[bytes, int]:
    part = b"" if meta is None else record_bytes.META + meta
    return record_bytes.write(seq, ts, record_bytes.node_part(node), data, part), len(part)


def as_json(seq: int, ts: int, node: str | None, data: bytes, meta: bytes | None) -> dict[str, Any]:
    found: dict[str, Any] = {"$seq": seq, "$ts": ts, "data": json.loads(data)}
    if node is not None:
        found["$node"] = node
    if meta is not None:
        found["meta"] = json.loads(meta)
    return found


def decoded(row: bytes) -> Any:
    assert row.endswith(b"},")
    return json.loads(row[:-1])


@pytest.mark.parametrize("case", cases())
def test_record_is_the_json_that_its_fields_say(case: tuple[int, int, str | None, bytes, bytes | None]) -> None:
    row, _ = written(*case)
    assert decoded(row) == as_json(*case)


@pytest.mark.parametrize("case", cases())
def test_cut_finds_each_part_where_write_put_it(case: tuple[int, int, str | None, bytes, bytes | None]) -> None:
    seq, ts, node, data, meta = case
    row, part_bytes = written(*case)
    head = record_bytes.head_bytes(seq, ts, node)
    assert row[head:] == b',"data":' + data + row[len(row) - 2 - part_bytes : -2] + b"},"
    if meta is not None:
        assert record_bytes.meta_of(row, part_bytes) == record_bytes.meta_of(row[head:], part_bytes) == meta
    other, other_bytes = record_bytes.with_meta(row, part_bytes, b'{"n":1}')
    assert (other, other_bytes) == written(seq, ts, node, data, b'{"n":1}')
    assert record_bytes.seq_and_ts(seq + 1, ts + 2) + row[head:] == written(seq + 1, ts + 2, None, data, meta)[0]


@pytest.mark.parametrize("case", cases())
def test_parts_left_out_or_put_in_change_nothing_else(case: tuple[int, int, str | None, bytes, bytes | None]) -> None:
    seq, ts, node, data, _ = case
    row, part_bytes = written(*case)
    head = record_bytes.head_bytes(seq, ts, node)
    whole = as_json(*case)
    tag = record_bytes.tag_part("t")
    assert decoded(record_bytes.without(row, head, part_bytes)) == whole
    assert decoded(record_bytes.without(row, head, part_bytes, tag=tag)) == whole | {"$tag": "t"}
    assert decoded(record_bytes.without(memoryview(row), head, part_bytes, data=False)) == {
        key: value for key, value in whole.items() if key != "data"
    }
    assert decoded(record_bytes.without(row, head, part_bytes, meta=False)) == as_json(seq, ts, node, data, None)
    fields = tag[1:] + b',"x":1,' + row[record_bytes.seq_bytes(seq) : -1]
    assert json.loads(record_bytes.with_seq(seq, fields)) == whole | {"$tag": "t", "x": 1}


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("first", [1, 8, 998])
def test_records_written_together_are_those_written_one_by_one(node: str | None, first: int) -> None:
    datas = [msgspec.Raw(data) for data in DATAS]
    blob, sizes = record_bytes.write_alike(datas, node, first, 17)
    rows = [written(first + at, 17, node, data, None)[0] for at, data in enumerate(DATAS)]
    assert blob == b"".join(rows)
    assert sizes == [len(row) for row in rows]
