"""Node filters: a node does not get its own records."""

from typing import Any

import pytest

from tests.contract.api import Api, data


@pytest.fixture
def written(api: Api, topic: str) -> str:
    """A topic with records of three nodes, and records without a node."""
    api.append(topic, [{"data": node, "node": node} for node in ("a", "b", "A", "ab", "a ")] + [{"data": "none"}])
    return topic


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("a", ["b", "A", "ab", "a ", "none"]),
        ("A", ["a", "b", "ab", "a ", "none"]),
        (["a"], ["b", "A", "ab", "a ", "none"]),
        (["a", "b"], ["A", "ab", "a ", "none"]),
        (["a", "a", "stranger"], ["b", "A", "ab", "a ", "none"]),
        (["a", "b", "A", "ab", "a "], ["none"]),
        ("stranger", ["a", "b", "A", "ab", "a ", "none"]),
        ("", ["a", "b", "A", "ab", "a ", "none"]),
        ([], ["a", "b", "A", "ab", "a ", "none"]),
        (None, ["a", "b", "A", "ab", "a ", "none"]),
    ],
)
def test_node_filter_skips_exactly_the_named_nodes(api: Api, written: str, node: Any, expected: list[str]):
    page = api.diff(written, node=node)
    assert data(page) == expected
    assert (page["next_from_seq"], page["caught_up"], page["tombstone"]) == (6, True, None)


@pytest.mark.parametrize("node", [7, ["a", 7], [None], {"a": 1}, [["a"]], True])
def test_node_is_a_string_or_an_array_of_them(api: Api, written: str, node: Any):
    error = api.refused(400, "invalid_request", "POST", f"/v0/topics/{written}/diff", {"node": node})
    assert error["detail"]["field"].startswith("node")


def test_topic_of_own_records_is_skipped_without_tombstone(api: Api, topic: str):
    api.write(topic, *range(500), node="me")
    page = api.diff(topic, node="me", limit=10)
    assert (page["records"], page["next_from_seq"], page["caught_up"], page["lag"]) == ([], 500, True, 0)
    assert page["tombstone"] is None


def test_topic_can_opt_out_of_the_filter(api: Api, written: str):
    api.put(written, dedupe_node=False)
    assert len(api.diff(written, node=["a", "b"])["records"]) == 6
    api.put(written, dedupe_node=True)
    assert len(api.diff(written, node=["a", "b"])["records"]) == 4


@pytest.mark.parametrize("node", ["é", "e\u0301", "漢字", "😀", 'q"uote', "back\\slash", "new\nline", "x" * 128])
def test_nodes_match_byte_for_byte(api: Api, topic: str, node: str):
    api.write(topic, "mine", node=node)
    api.write(topic, "composed", node="\u00e9")
    kept = data(api.diff(topic, node=node))
    assert kept == ([] if node == "\u00e9" else ["composed"])


def test_records_have_their_node(api: Api, topic: str):
    api.append(topic, [{"data": 1}, {"data": 2, "node": "other"}], node="me")
    assert [(record["data"], record["$node"]) for record in api.diff(topic, node="me")["records"]] == [(2, "other")]


def test_node_filter_tag_filter_and_deletes_combine(api: Api, topic: str):
    api.append(topic, [{"data": n, "node": f"n{n % 2}", "tag": f"t{n % 3}"} for n in range(30)])
    api.delete(topic, before_seq=10, match="t1")
    page = api.diff(topic, node="n0", filter=["tag", "Glob", "t*"], limit=1000)
    assert data(page) == [n for n in range(30) if n % 2 and not (n % 3 == 1 and n + 1 < 10)]
    assert data(api.diff(topic, node="n0", filter="t1")) == [
        n for n in range(30) if n % 2 and n % 3 == 1 and n + 1 >= 10
    ]


def test_each_node_reads_only_records_of_other_nodes(api: Api, topic: str):
    nodes = ["eu", "us", "ap"]
    for n in range(9):
        api.write(topic, n, node=nodes[n % 3])
    for at, node in enumerate(nodes):
        assert data(api.diff(topic, node=node)) == [n for n in range(9) if n % 3 != at]


def test_loss_of_own_records_is_reported(api: Api, topic: str):
    api.put(topic, cap_records=2)
    api.write(topic, 1, 2, 3, 4, node="me")
    page = api.diff(topic, node="me")
    assert page["tombstone"]["gap_to"] == 2
    assert (page["records"], page["next_from_seq"]) == ([], 4)
