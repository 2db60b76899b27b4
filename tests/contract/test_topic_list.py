"""The list of topics: pages, cursors, prefixes and page sizes."""

import base64
from typing import Any

import pytest

from tests.contract.api import Api


def names(page: Any) -> list[str]:
    return [row["topic"] for row in page["topics"]]


def test_list_has_the_position_of_each_topic(api: Api, topic: str):
    api.put(f"{topic}.a", durable=True)
    api.write(f"{topic}.b", 1, 2)
    api.delete(f"{topic}.b", before_seq=2)
    page = api.get("/v0/topics", prefix=f"{topic}.")
    assert names(page) == [f"{topic}.a", f"{topic}.b"]
    a, b = page["topics"]
    assert (a["head_seq"], a["earliest_seq"], a["count"], a["bytes"], a["durable"]) == (0, 1, 0, 0, True)
    assert (b["head_seq"], b["earliest_seq"], b["count"], b["durable"]) == (2, 2, 1, False)
    assert b["bytes"] == api.state(f"{topic}.b")["bytes"]
    assert a["effective_priority"] == b["effective_priority"] == 0
    assert "next_cursor" not in page


def test_pages_join_to_the_whole_list_without_gaps_or_repeats(api: Api, topic: str):
    created = [f"{topic}.{n:02}" for n in range(7)]
    for name in reversed(created):
        api.put(name)
    found: list[str] = []
    params: dict[str, Any] = {"prefix": f"{topic}.", "page_size": 3}
    sizes = []
    while True:
        page = api.get("/v0/topics", **params)
        found += names(page)
        sizes.append(len(page["topics"]))
        if "next_cursor" not in page:
            break
        base64.urlsafe_b64decode(page["next_cursor"])
        params["cursor"] = page["next_cursor"]
    assert found == created
    assert sizes == [3, 3, 1]


def test_last_page_that_is_just_full_has_no_cursor(api: Api, topic: str):
    for n in range(4):
        api.put(f"{topic}.{n}")
    page = api.get("/v0/topics", prefix=f"{topic}.", page_size=2)
    last = api.get("/v0/topics", prefix=f"{topic}.", page_size=2, cursor=page["next_cursor"])
    assert len(last["topics"]) == 2
    assert "next_cursor" not in last


def test_list_cursor_survives_deletion_of_its_topic(api: Api, topic: str):
    for n in range(4):
        api.put(f"{topic}.{n}")
    page = api.get("/v0/topics", prefix=f"{topic}.", page_size=2)
    api.drop(f"{topic}.1")
    rest = api.get("/v0/topics", prefix=f"{topic}.", cursor=page["next_cursor"])
    assert names(rest) == [f"{topic}.2", f"{topic}.3"]


def test_list_page_size_defaults_to_100_and_is_clamped(start_server, connect):
    api = connect(start_server())
    for n in range(1002):
        api.put(f"t{n:04}")
    assert len(api.get("/v0/topics")["topics"]) == 100
    largest = api.get("/v0/topics", page_size=5000)
    assert len(largest["topics"]) == 1000
    assert names(api.get("/v0/topics", page_size=5000, cursor=largest["next_cursor"])) == ["t1000", "t1001"]
    assert len(api.get("/v0/topics", page_size=1000)["topics"]) == 1000


def test_unused_prefix_returns_an_empty_page(api: Api):
    page = api.get("/v0/topics", prefix="zzz.unused")
    assert page["topics"] == []
    assert "next_cursor" not in page


@pytest.mark.parametrize("value", ["-1", "1.5", "many", "", "99999999999999999999999"])
def test_page_size_is_a_whole_number(api: Api, value: str):
    error = api.refused(400, "invalid_request", "GET", "/v0/topics", params={"page_size": value})
    assert error["detail"]["field"] == "page_size"


@pytest.mark.parametrize(
    "cursor", ["nonsense", "e30=", "!!!!", "eyJhZnRlciI6MX0=", "bnVsbA==", "é", "a", "eyJhZnRlciI6ImEifQ==x"]
)
def test_forged_list_cursor_is_refused(api: Api, cursor: str):
    error = api.refused(400, "invalid_request", "GET", "/v0/topics", params={"cursor": cursor})
    assert error["detail"]["field"] == "cursor"


def test_list_counts_as_a_read_only_with_touch(api: Api, topic: str):
    api.put(topic)
    api.get("/v0/topics", prefix=topic, page_size=1000)
    assert api.state(topic)["last_read_ts"] is None
    api.get("/v0/topics", prefix=topic, page_size=1000, touch="true")
    assert api.state(topic)["last_read_ts"] is not None
