"""Deletes by seq, by tag, or both: permanent, immediate, silent, and only of stored records."""

from typing import Any

import pytest

from tests.contract.api import Api, data

TAGS = ["a:1", "a:2", "b:1", None, "a:1", "ab", "a:"]


@pytest.fixture
def filled(api: Api, topic: str) -> str:
    """Seven records, one without a tag; `data` is the seq."""
    api.append(topic, [{"data": seq} | ({"tag": tag} if tag else {}) for seq, tag in enumerate(TAGS, 1)])
    return topic


def test_delete_answer_has_the_new_state(api: Api, filled: str):
    answer = api.delete(filled, before_seq=3)
    del answer["performance"]
    state = api.state(filled)
    assert answer == {
        "topic": filled,
        "deleted": 2,
        "earliest_seq": 3,
        "head_seq": 7,
        "count": 5,
        "bytes": state["bytes"],
    }
    assert (state["count"], state["earliest_seq"], state["head_seq"]) == (5, 3, 7)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ({"before_seq": 0}, [1, 2, 3, 4, 5, 6, 7]),
        ({"before_seq": 1}, [1, 2, 3, 4, 5, 6, 7]),
        ({"before_seq": 2}, [2, 3, 4, 5, 6, 7]),
        ({"before_seq": 7}, [7]),
        ({"before_seq": 8}, []),
        ({"before_seq": 2**64 - 1}, []),
        ({"match": "a:1"}, [2, 3, 4, 6, 7]),
        ({"match": ["tag", "Eq", "a:1"]}, [2, 3, 4, 6, 7]),
        ({"match": ["tag", "Eq", "a:*"]}, [1, 2, 3, 4, 5, 6, 7]),
        ({"match": ["tag", "Glob", "a:*"]}, [3, 4, 6]),
        ({"match": ["tag", "Glob", "a*"]}, [3, 4]),
        ({"match": ["tag", "Glob", "*"]}, [4]),
        ({"match": ["tag", "Glob", "a:1*"]}, [2, 3, 4, 6, 7]),
        ({"match": ["tag", "Glob", "zzz*"]}, [1, 2, 3, 4, 5, 6, 7]),
        ({"match": "a:1*"}, [1, 2, 3, 4, 5, 6, 7]),
        ({"match": "A:1"}, [1, 2, 3, 4, 5, 6, 7]),
        ({"match": "a:1", "before_seq": 5}, [2, 3, 4, 5, 6, 7]),
        ({"match": ["tag", "Glob", "a:*"], "before_seq": 3}, [3, 4, 5, 6, 7]),
        ({"match": ["tag", "Glob", "*"], "before_seq": 99}, [4]),
        ({"match": None, "before_seq": 3}, [3, 4, 5, 6, 7]),
        ({"match": "b:1", "before_seq": None}, [1, 2, 4, 5, 6, 7]),
    ],
)
def test_delete_removes_only_matching_records(api: Api, filled: str, body: Any, left: list[int]):
    answer = api.delete(filled, **body)
    assert answer["deleted"] == 7 - len(left)
    assert answer["count"] == len(left)
    assert answer["earliest_seq"] == (left[0] if left else 8)
    assert answer["head_seq"] == 7
    page = api.diff(filled)
    assert (data(page), page["next_from_seq"], page["caught_up"], page["tombstone"]) == (left, 7, True, None)


def test_deleting_again_finds_nothing(api: Api, filled: str):
    assert api.delete(filled, match="a:1")["deleted"] == 2
    assert api.delete(filled, match="a:1")["deleted"] == 0
    assert api.delete(filled, before_seq=6)["deleted"] == 3
    assert api.delete(filled, before_seq=6)["deleted"] == 0


def test_delete_does_not_affect_later_records(api: Api, filled: str):
    api.delete(filled, match=["tag", "Glob", "a*"])
    api.delete(filled, before_seq=100)
    api.write(filled, "new", tag="a:1")
    assert data(api.diff(filled)) == ["new"]
    assert api.state(filled)["earliest_seq"] == 8


def test_next_seq_does_not_decrease_after_a_delete(api: Api, filled: str):
    api.delete(filled, before_seq=100)
    assert api.write(filled, "x")["seqs"] == [8]


def test_delete_removes_earlier_versions_and_keeps_the_newest(api: Api, topic: str):
    for version in (1, 2, 3):
        api.write(topic, f"v{version}", tag="msg-123")
    assert api.delete(topic, match=["tag", "Eq", "msg-123"], before_seq=3)["deleted"] == 2
    assert data(api.diff(topic)) == ["v3"]


def test_bytes_return_to_zero_with_the_last_record(api: Api, filled: str):
    for tag in ("a:1", "a:2", "b:1", "ab", "a:"):
        api.delete(filled, match=tag)
    assert api.state(filled)["count"] == 1
    answer = api.delete(filled, before_seq=5)
    assert (answer["deleted"], answer["count"], answer["bytes"], answer["earliest_seq"]) == (1, 0, 0, 8)


@pytest.mark.parametrize("tag", ["é", "a*b", "*", "q\"'\\", "😀:1", "", "x" * 256])
def test_tag_may_be_any_text(api: Api, topic: str, tag: str):
    api.append(topic, [{"data": 1, "tag": tag}, {"data": 2, "tag": tag + "x" if len(tag) < 256 else "y"}, {"data": 3}])
    assert api.delete(topic, match=["tag", "Eq", tag])["deleted"] == 1
    assert data(api.diff(topic)) == [2, 3]


@pytest.mark.parametrize(
    "body", [{}, {"before_seq": None}, {"match": None}, {"before_seq": None, "match": None}, {"other": 1}]
)
def test_delete_without_a_condition_is_refused(api: Api, filled: str, body: Any):
    api.refused(400, "invalid_request", "POST", f"/v0/topics/{filled}/delete", body)
    assert api.state(filled)["count"] == 7


@pytest.mark.parametrize(
    "match",
    [
        ["tag", "Eq"],
        ["tag", "Eq", "x", "y"],
        ["node", "Eq", "x"],
        ["tag", "eq", "x"],
        ["tag", "Regex", "x"],
        ["tag", "Glob", "x"],
        ["tag", "Glob", "x*y"],
        ["tag", "Glob", "*x*"],
        ["tag", "Glob", "**"],
        ["tag", "Glob", ""],
        ["tag", "Eq", 7],
        [],
        {},
        7,
        True,
        [["tag", "Eq", "x"]],
    ],
)
def test_invalid_match_is_refused(api: Api, filled: str, match: Any):
    body = {"match": match, "before_seq": 99}
    error = api.refused(400, "invalid_request", "POST", f"/v0/topics/{filled}/delete", body)
    assert error["detail"]["field"] == "match"
    assert api.state(filled)["count"] == 7


def test_delete_never_creates_a_topic(api: Api, topic: str):
    error = api.refused(404, "topic_not_found", "POST", f"/v0/topics/{topic}/delete", {"before_seq": 1})
    assert error["detail"]["topic"] == topic
    api.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


def test_delete_in_an_empty_topic_finds_nothing(api: Api, topic: str):
    api.put(topic)
    answer = api.delete(topic, before_seq=10)
    assert (answer["deleted"], answer["earliest_seq"], answer["head_seq"]) == (0, 1, 0)
    assert api.delete(topic, match="x")["deleted"] == 0


def test_delete_by_tag_finds_its_records_among_many(api: Api, topic: str):
    for batch in range(5):
        api.append(topic, [{"data": n, "tag": f"user-{n % 97}:{batch}"} for n in range(2000)])
    expected = sum(1 for n in range(2000) if n % 97 == 5) * 5
    assert api.delete(topic, match=["tag", "Glob", "user-5:*"])["deleted"] == expected
    assert api.state(topic)["count"] == 10_000 - expected
    assert len(api.read_all(topic, limit=1000)) == 10_000 - expected
    assert api.diff(topic, filter=["tag", "Glob", "user-5:*"])["records"] == []


def test_dry_run_counts_matches_and_deletes_nothing(api: Api, topic: str):
    api.append(topic, [{"data": n, "tag": f"t{n % 2}"} for n in range(10)])
    api.call("POST", f"/v0/topics/{topic}/delete", {"match": "t0", "before_seq": 4})
    dry = api.call("POST", f"/v0/topics/{topic}/delete", {"match": "t0", "dry_run": True}).json()
    assert (dry["deleted"], dry["dry_run"], dry["count"]) == (3, True, 8)
    assert api.call("POST", f"/v0/topics/{topic}/delete", {"before_seq": 6, "dry_run": True}).json()["deleted"] == 3
    assert api.state(topic)["count"] == 8
    done = api.call("POST", f"/v0/topics/{topic}/delete", {"match": "t0"}).json()
    assert done["deleted"] == 3
    assert "dry_run" not in done
