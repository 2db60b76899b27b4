"""Filters on fields of `data` and `meta`: of reads, scans, watches and routers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.api import Api, succeeded

ORDERS: list[dict[str, Any]] = [
    {"data": {"customer": {"id": 7, "name": "Ada"}, "total": 150, "lines": [{"sku": "V60"}]}, "tag": "eu:1"},
    {"data": {"customer": {"id": 7.0, "name": "Ada"}, "total": 99.5, "lines": []}, "tag": "us:1"},
    {"data": {"customer": {"id": "7", "name": "Bo"}, "total": 3499, "lines": [{"sku": "MUG"}]}, "tag": "eu:2"},
    {"data": "Ada", "meta": {"trace": "z9", "retry": True}},
    {"data": None, "tag": "eu:3"},
]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["data.customer.id", "Eq", 7], [1, 2]),
        (["data.customer.id", "Ne", 7], [3]),
        (["Not", ["data.customer.id", "Eq", 7]], [3, 4, 5]),
        (["data.total", "Gt", 100], [1, 3]),
        (["data.total", "Le", 150.0], [1, 2]),
        (["data.customer.id", "In", ["7", 8]], [3]),
        (["data.lines.0.sku", "Glob", "*6*"], [1]),
        (["data.lines", "Exists"], [1, 2, 3]),
        (["data.customer.name", "Contains", "d"], [1, 2]),
        (["data", "Grep", "Ada"], [1, 2, 4]),
        (["data", "Eq", None], [5]),
        (["meta.retry", "Eq", True], [4]),
        ([["meta", "trace"], "Eq", "z9"], [4]),
        (["And", [["tag", "Glob", "eu:*"], ["data.total", "Ge", 150]]], [1, 3]),
        (["Or", [["tag", "Eq", "us:1"], ["Where", "meta.trace = 'z9'"]]], [2, 4]),
        (["Where", "customer.id = 7 and total > 100"], [1]),
        (["Where", "not (total > 100 or data exists) or tag = 'eu:3'"], [5]),
    ],
)
def test_reads_scans_and_previews_agree_about_a_filter(api: Api, topic: str, wanted: Any, expected: list[int]) -> None:
    api.append(topic, ORDERS)
    page = api.diff(topic, filter=wanted)
    assert [record["$seq"] for record in page["records"]] == expected
    assert (page["next_from_seq"], page["caught_up"], page["tombstone"]) == (5, True, None)
    assert page["performance"]["records_scanned"] == 5
    found = succeeded(api.call("POST", "/v0/routers/p/preview", {"source": topic, "filter": wanted}))
    assert (found["matched"], found["scanned"]) == (len(expected), 5)


@pytest.mark.parametrize(
    ("wanted", "at", "position"),
    [
        (["data.total", "Above", 1], "[1]", None),
        (["And", [["data.total", "Gt", 1], ["data.total", "Gt", None]]], "[1][1][2]", None),
        (["And", []], "[1]", None),
        (["data..x", "Eq", 1], "[0]", None),
        (["body.x", "Eq", 1], "[0]", None),
        (["data.x", "In", []], "[2]", None),
        (["data.x", "Eq", {}], "[2]", None),
        (["data.x", "Grep", "x"], "[2]", None),
        (["data.x", "Exists", False], "[2]", None),
        (["data.x", "Eq"], "", None),
        (["Where", "total > "], "[1]", 9),
        (["Where", "total > 100 and customer.id ~ 7"], "[1]", 29),
        (["Where", "a = 'x"], "[1]", 5),
        (["Where", "a in (1, 2"], "[1]", 11),
        (["Where", ""], "[1]", 1),
    ],
)
def test_invalid_filter_is_refused_with_its_place(
    api: Api, topic: str, wanted: Any, at: str, position: int | None
) -> None:
    api.put(topic)
    error = api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}/diff", {"filter": wanted})
    assert error["detail"] == {"field": "filter", "at": at} | ({} if position is None else {"position": position})


@pytest.mark.parametrize(
    "wanted",
    [
        ["And", [["data.x", "Eq", n] for n in range(65)]],
        ["data.x", "In", list(range(257))],
        ["data.x", "Eq", "x" * 17_000],
        ["Where", "(" * 20 + "a = 1" + ")" * 20],
        ["Where", "not " * 5000 + "a = 1"],
        ["data." + "a." * 20 + "b", "Exists"],
    ],
)
def test_a_filter_has_limits(api: Api, topic: str, wanted: Any) -> None:
    api.put(topic)
    deep: Any = ["data.x", "Eq", 1]
    for _ in range(17):
        deep = ["Not", deep]
    for one in (wanted, deep):
        api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}/diff", {"filter": one})


def test_router_stores_its_filter_as_it_was_sent(api: Api, topic: str) -> None:
    wanted = ["And", [["data.total", "Gt", 12345678901234567890123.5], ["Where", "tag = 'x'"]]]
    router = f"{topic}>copy"
    succeeded(api.call("PUT", f"/v0/routers/{router}", {"source": topic, "dest": f"{topic}.copy", "filter": wanted}))
    assert api.get(f"/v0/routers/{router}")["filter"] == wanted
