"""Idempotency keys: a write with a known key is not stored again."""

from typing import Any

import pytest

from tests.contract.api import Api, data, eventually, succeeded, together


def test_known_key_returns_the_seqs_of_the_first_write(api: Api, topic: str):
    api.put(topic)
    first = api.write(topic, "a", "b", idempotency_key="k")
    assert first["deduped"] is False
    api.write(topic, "between")
    answer = api.call(
        "POST", f"/v0/topics/{topic}", {"records": [{"data": "a"}, {"data": "b"}], "idempotency_key": "k"}
    )
    assert answer.status_code == 200
    again = answer.json()
    assert again["deduped"] is True
    assert again["seqs"] == first["seqs"] == [1, 2]
    assert (again["first_seq"], again["last_seq"], again["count"], again["created"]) == (1, 2, 2, False)
    assert again["head_seq"] == 3
    assert data(api.diff(topic)) == ["a", "b", "between"]


def test_retry_of_the_creating_write_is_not_a_creation(api: Api, topic: str):
    body = {"records": [{"data": 1}], "idempotency_key": "k"}
    assert api.call("POST", f"/v0/topics/{topic}", body).status_code == 201
    again = api.call("POST", f"/v0/topics/{topic}", body)
    assert (again.status_code, again.json()["created"], again.json()["deduped"]) == (200, False, True)


def test_only_the_key_is_compared_on_a_retry(api: Api, topic: str):
    api.write(topic, "a", idempotency_key="k")
    again = api.write(topic, "x", "y", "z", idempotency_key="k")
    assert (again["deduped"], again["seqs"]) == (True, [1])
    assert data(api.diff(topic)) == ["a"]


def test_writes_without_a_key_are_never_deduplicated(api: Api, topic: str):
    assert [api.write(topic, "a")["deduped"] for _ in range(3)] == [False] * 3
    assert api.state(topic)["count"] == 3


def test_keys_belong_to_their_topic(api: Api, topic: str):
    api.write(f"{topic}a", 1, idempotency_key="k")
    assert api.write(f"{topic}b", 1, idempotency_key="k")["deduped"] is False


def test_keys_differ_by_case(api: Api, topic: str):
    api.write(topic, 1, idempotency_key="k")
    assert api.write(topic, 1, idempotency_key="K")["deduped"] is False


def header(api: Api, topic: str, key: str, **fields: Any) -> Any:
    body = {"records": [{"data": 1}]} | fields
    return succeeded(api.call("POST", f"/v0/topics/{topic}", body, headers={"Idempotency-Key": key}))


def test_key_may_come_in_a_header(api: Api, topic: str):
    assert header(api, topic, "k")["deduped"] is False
    assert header(api, topic, "k")["deduped"] is True
    assert api.write(topic, 1, idempotency_key="k")["deduped"] is True


def test_key_in_the_body_overrides_the_header(api: Api, topic: str):
    api.write(topic, 1, idempotency_key="body")
    assert header(api, topic, "header", idempotency_key="body")["deduped"] is True
    assert header(api, topic, "header")["deduped"] is False


@pytest.mark.parametrize("where", ["body", "header"])
def test_key_has_at_most_256_characters(api: Api, topic: str, where: str):
    def write(key: str) -> Any:
        fields, headers = ({"idempotency_key": key}, {}) if where == "body" else ({}, {"idempotency-key": key})
        return api.call("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]} | fields, headers=headers)

    assert succeeded(write("x" * 256))["deduped"] is False
    assert succeeded(write("x" * 256))["deduped"] is True
    refused = write("x" * 257)
    assert refused.status_code == 400
    assert refused.json()["error"]["detail"]["field"] == "idempotency_key"


def test_key_is_bounded_in_characters_and_not_in_bytes(api: Api, topic: str):
    api.write(topic, 1, idempotency_key="😀" * 256)
    assert api.write(topic, 1, idempotency_key="😀" * 256)["deduped"] is True
    body = {"records": [{"data": 1}], "idempotency_key": "😀" * 257}
    api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", body)


def test_key_is_forgotten_after_its_window(api: Api, topic: str):
    api.put(topic, idempotency_window_ms=20)
    api.write(topic, 1, idempotency_key="k")
    renewed = eventually(lambda: api.write(topic, 1, idempotency_key="k"), lambda answer: not answer["deduped"])
    assert renewed["seqs"] == [2]


def test_key_is_remembered_for_two_minutes(api: Api, topic: str):
    assert api.put(topic)["config"]["idempotency_window_ms"] == 120_000
    api.write(topic, 1, idempotency_key="k")
    for _ in range(3):
        assert api.write(topic, 1, idempotency_key="k")["deduped"] is True


def test_refused_write_does_not_use_its_key(api: Api, topic: str):
    api.put(topic, discard="reject", cap_records=1)
    api.write(topic, 1)
    body = {"records": [{"data": 2}], "idempotency_key": "k"}
    api.refused(422, "topic_full", "POST", f"/v0/topics/{topic}", body)
    api.delete(topic, before_seq=2)
    answer = api.write(topic, 2, idempotency_key="k")
    assert (answer["deduped"], answer["seqs"]) == (False, [2])


def test_retry_succeeds_when_the_topic_is_full(api: Api, topic: str):
    api.put(topic, discard="reject", cap_records=1)
    api.write(topic, 1, idempotency_key="k")
    again = api.write(topic, 1, idempotency_key="k")
    assert (again["deduped"], again["seqs"]) == (True, [1])


def test_key_outlives_its_records(api: Api, topic: str):
    api.write(topic, 1, idempotency_key="k")
    api.delete(topic, before_seq=2)
    assert api.write(topic, 1, idempotency_key="k")["deduped"] is True
    assert api.state(topic)["count"] == 0


def test_key_sent_without_a_window_is_not_remembered(api: Api, topic: str):
    api.put(topic, idempotency_window_ms=0)
    api.write(topic, 1, idempotency_key="k")
    api.put(topic, idempotency_window_ms=120_000)
    answer = api.write(topic, 2, idempotency_key="k")
    assert (answer["deduped"], answer["seqs"]) == (False, [2])


def test_window_of_zero_forgets_the_keys(api: Api, topic: str):
    api.write(topic, 1, idempotency_key="k")
    api.put(topic, idempotency_window_ms=0)
    api.put(topic, idempotency_window_ms=120_000)
    assert api.write(topic, 2, idempotency_key="k")["deduped"] is False


def test_key_is_deleted_with_its_topic(api: Api, topic: str):
    api.write(topic, 1, idempotency_key="k")
    api.drop(topic)
    answer = api.write(topic, 2, idempotency_key="k")
    assert (answer["deduped"], answer["created"], answer["seqs"]) == (False, True, [1])


def test_retry_may_leave_out_the_seqs(api: Api, topic: str):
    body = {"records": [{"data": 1}, {"data": 2}], "idempotency_key": "k"}
    for deduped in (False, True):
        answer = succeeded(api.call("POST", f"/v0/topics/{topic}", body, params={"return_seqs": "false"}))
        assert (answer["deduped"], answer["first_seq"], answer["last_seq"], "seqs" in answer) == (deduped, 1, 2, False)


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_concurrent_retries_store_one_write(api: Api, topic: str, durability: str):
    api.put(topic, durability=durability)
    answers = together(*[lambda: api.write(topic, "once", "only", idempotency_key="k")] * 10)
    assert sorted(answer["deduped"] for answer in answers) == [False] + [True] * 9
    assert [answer["seqs"] for answer in answers] == [[1, 2]] * 10
    assert data(api.diff(topic)) == ["once", "only"]


def test_concurrent_first_writes_create_one_topic(api: Api, topic: str):
    answers = together(*[lambda: api.write(topic, "once", idempotency_key="k")] * 8)
    assert sorted(answer["created"] for answer in answers) == [False] * 7 + [True]
    assert data(api.diff(topic)) == ["once"]
