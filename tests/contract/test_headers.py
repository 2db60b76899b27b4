"""Empty and malformed request headers are ignored if the request is valid without them."""

import http.client
import json
from typing import Any

import pytest

from tests.contract.api import Api
from tests.live.events import Events, encode_id

WRITE = json.dumps({"records": [{"data": 1}]}).encode()


def send(api: Api, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    """Send a request with exactly these headers. Client libraries drop empty headers and add their own."""
    url = api.http.base_url
    connection = http.client.HTTPConnection(url.host, url.port or 80, timeout=30)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in ({"content-type": "application/json", "content-length": len(body)} if body else {}).items():
            connection.putheader(name, value)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders(body)
        answer = connection.getresponse()
        streams = "text/event-stream" in answer.headers["content-type"]
        return answer.status, b"" if streams else answer.read()
    finally:
        connection.close()


def append(api: Api, topic: str, **headers: str) -> Any:
    status, answer = send(api, "POST", f"/v0/topics/{topic}", WRITE, **headers)
    assert status in (200, 201), answer
    return json.loads(answer)


def test_empty_idempotency_key_header_means_no_key(disk_api: Api, topic: str):
    assert [append(disk_api, topic, idempotency_key="")["first_seq"] for _ in range(2)] == [1, 2]


def test_empty_idempotency_key_in_the_body_is_refused(disk_api: Api, topic: str):
    body = {"records": [{"data": 1}], "idempotency_key": ""}
    assert disk_api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", body)["detail"] == {
        "field": "idempotency_key"
    }


def test_invalid_idempotency_key_header_is_refused(disk_api: Api, topic: str):
    status, answer = send(disk_api, "POST", f"/v0/topics/{topic}", WRITE, idempotency_key="k" * 257)
    assert (status, json.loads(answer)["error"]["code"]) == (400, "invalid_request"), "ignored, it would not protect"


def test_empty_content_encoding_means_none(disk_api: Api, topic: str):
    assert append(disk_api, topic, content_encoding="")["first_seq"] == 1


def test_empty_accept_allows_any_format(disk_api: Api, topic: str):
    disk_api.put(topic, type="queue")
    session = (
        disk_api.append(topic, [{"data": 1}]) and disk_api.call("POST", "/v0/watch", {"topics": {topic: {}}}).json()
    )
    assert send(disk_api, "POST", f"/v0/topics/{topic}/scan", b"{}", accept="")[0] == 200
    assert send(disk_api, "GET", session["stream_url"], accept="")[0] == 200
    assert send(disk_api, "GET", f"/v0/topics/{topic}/work?node=n", accept="")[0] == 200
    assert send(disk_api, "GET", "/v0/metrics", accept="")[0] == 200


@pytest.mark.parametrize(
    "last_id",
    ["!!!", "AAAA", encode_id({"a": -1}), encode_id({"a": 1 << 64}), encode_id({"a": "b"}), encode_id([1]), "ä"],
)
def test_malformed_last_event_id_leaves_the_session_where_it_is(disk_api: Api, topic: str, last_id: str):
    disk_api.write(topic, 1, 2, 3)
    session = disk_api.call("POST", "/v0/watch", {"topics": {topic: {"from_seq": 1}}}).json()
    with Events(str(disk_api.http.base_url), session["stream_url"], last_id=last_id) as events:
        assert events.status == 200
        assert events.next().seqs == [2, 3]
