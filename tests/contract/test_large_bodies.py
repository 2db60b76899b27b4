"""Oversized bodies are refused quickly, with a clear error."""

import json

import pytest

from tests.contract.api import Api
from topics.model.wire import MAX_PLAIN_BODY_BYTES
from topics.server.http.request.write_request import is_slow


def test_body_with_far_too_many_records_is_refused(api: Api, topic: str):
    body = b'{"records":[' + b'{"data":1},' * 400_000 + b'{"data":1}]}'
    error = api.refused(400, "batch_too_large", "POST", f"/v0/topics/{topic}", raw=body)
    assert error["detail"]["max"] == 10_000


def test_large_batch_of_nested_objects_is_accepted(api: Api, topic: str):
    data = [{"n": n, "inner": [{}] * 8} for n in range(4000)]
    body = json.dumps({"records": [{"data": data}] * 16, "node": "a"}).encode()
    assert is_slow(body)
    answer = api.call("POST", f"/v0/topics/{topic}", raw=body)
    assert answer.json()["count"] == 16
    assert api.diff(topic, limit=1)["records"][0]["data"] == data


@pytest.mark.parametrize("wrong", ['{"data":1,"tag":7}', '{"tag":"x"}', "7"])
def test_invalid_record_in_a_large_body_is_named(api: Api, topic: str, wrong: str):
    fine = '{"data":[' + "{}," * 30_000 + "1]}"
    body = ('{"records":[' + f"{fine}," * 30 + f"{wrong},{fine}]}}").encode()
    assert is_slow(body)
    error = api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", raw=body)
    assert error["detail"]["field"].startswith("records[30]")


@pytest.mark.parametrize("size", [1, 40_000])
def test_lone_surrogates_are_kept_in_batches_of_any_size(api: Api, topic: str, size: int):
    text = '"' + "\\ud800\\uDC00\\udbff\\n" * size + '"'
    api.append_raw(topic, text.encode())
    assert api.call("POST", f"/v0/topics/{topic}/diff", {}).text.count(text) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("diff", b'{"node":["%b"]}'),
        ("delete", b'{"seqs":[1],"match":"%b"}'),
        ("ack", b'{"node":"%b","seqs":[1]}'),
    ],
)
def test_requests_other_than_writes_have_a_smaller_limit(api: Api, topic: str, path: str, body: bytes):
    api.put(topic, type="queue")
    fits = body % (b"x" * (MAX_PLAIN_BODY_BYTES - len(body) + 2))
    assert len(fits) == MAX_PLAIN_BODY_BYTES
    assert api.call("POST", f"/v0/topics/{topic}/{path}", raw=fits).status_code in (200, 400)
    error = api.refused(413, "payload_too_large", "POST", f"/v0/topics/{topic}/{path}", raw=fits + b" ")
    assert error["detail"]["max"] == MAX_PLAIN_BODY_BYTES


def test_large_write_is_stored_like_a_small_one(api: Api, topic: str):
    records = [{"data": f"{n} é " + "x" * 5000, "tag": f"t{n % 3}", "meta": {"n": n}} for n in range(500)]
    api.append(topic, [{"data": 1}])
    for first in (2, 502):
        answer = api.call("POST", f"/v0/topics/{topic}", {"records": records, "node": "a"}).json()
        assert (answer["first_seq"], answer["last_seq"]) == (first, first + 499)
        assert answer["seqs"] == list(range(first, first + 500))
    api.append(topic, [{"data": 2}])
    page = api.diff(topic, from_seq=990, include_tags=True, limit=100)["records"]
    assert [row["$seq"] for row in page] == list(range(991, 1003))
    assert [{"data": row["data"], "tag": row["$tag"], "meta": row["meta"]} for row in page[:-1]] == records[-11:]
    assert page[-1]["data"] == 2


def test_second_large_write_with_the_same_key_is_deduplicated(api: Api, topic: str):
    body = {"records": [{"data": "x" * 10_000}] * 300, "idempotency_key": "k"}
    first, second = (api.call("POST", f"/v0/topics/{topic}", body).json() for _ in range(2))
    assert (first["deduped"], second["deduped"]) == (False, True)
    assert (first["last_seq"], second["last_seq"], second["head_seq"]) == (300, 300, 300)


def test_large_write_into_a_full_topic_is_refused(api: Api, topic: str):
    api.put(topic, cap_records=30, discard="reject")
    body = {"records": [{"data": "x" * 100_000}] * 20}
    assert api.call("POST", f"/v0/topics/{topic}", body).status_code == 200
    api.refused(422, "topic_full", "POST", f"/v0/topics/{topic}", body)
    assert api.diff(topic, from_seq=20)["head_seq"] == 20
