"""Deeply nested JSON is refused with 400, or works with every verb. Never a 500."""

import base64
import time
from typing import Any

import pytest

from tests.contract.api import Api, failed, succeeded

DEPTHS = range(930, 1000)  # contains the deepest accepted nesting


@pytest.fixture
def api(disk_api: Api) -> Api:
    return disk_api


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def append(api: Api, topic: str, record: bytes) -> bool:
    """Write a record. Return whether it was accepted."""
    answer = api.call("POST", f"/v0/topics/{topic}", raw=b'{"records":[%b]}' % record)
    if not answer.is_success:
        failed(answer, 400, "invalid_request")
    return answer.is_success


def test_deepest_accepted_job_can_be_dead_lettered_and_redriven(api: Api, topic: str):
    api.put(topic, type="queue", max_deliveries=1, dead_letter=f"{topic}.dead")
    accepted = [depth for depth in DEPTHS if append(api, topic, b'{"data":%b}' % nested(depth))]
    assert DEPTHS[0] in accepted
    assert DEPTHS[-1] not in accepted
    verbs: list[tuple[str, dict[str, Any]]] = [
        ("claim", {"node": "w", "max": 1000}),
        ("nack", {"node": "w", "seqs": list(range(1, len(accepted) + 1))}),
        ("claim", {"node": "w", "max": 1000}),
    ]
    for verb, body in verbs:  # without the checks of `api.call`: this interpreter cannot decode the answer either
        assert api.http.post(f"/v0/topics/{topic}/{verb}", json=body).status_code == 200
    assert api.state(f"{topic}.dead")["count"] == len(accepted)
    answer = succeeded(api.call("POST", f"/v0/topics/{topic}/redrive", {}))
    assert (answer["redriven"], answer["caught_up"]) == (len(accepted), True)


@pytest.mark.parametrize("field", [b"_topics_router", b"other"])
def test_deepest_accepted_meta_is_forwarded_once(api: Api, topic: str, field: bytes):
    body = {"source": topic, "dest": f"{topic}.copy", "guarantee": "exactly_once", "from_seq": 0}
    succeeded(api.call("PUT", f"/v0/routers/{topic}", body))
    accepted = [
        depth for depth in DEPTHS if append(api, topic, b'{"data":1,"meta":{"%b":%b}}' % (field, nested(depth)))
    ]
    assert DEPTHS[0] in accepted
    deadline = time.monotonic() + 20
    while (router := api.get(f"/v0/routers/{topic}"))["lag"]:
        assert time.monotonic() < deadline, router
    assert (router["forwarded_total"], router["last_error"]) == (len(accepted), None)


def test_meta_with_lone_surrogate_and_long_number_is_accepted(api: Api, topic: str):
    """The decoder of the standard library refuses integers of more than 4,300 digits."""
    assert append(api, topic, rb'{"data":1,"meta":{"a":"\ud800","b":%b}}' % (b"1" * 5000))


@pytest.mark.parametrize("path", ["/v0/topics", "/v0/routers"])
@pytest.mark.parametrize("text", [b'{"x":%b}', b"%b", b'{"after":%b}', b'{"after":"a","x":%b}'])
@pytest.mark.parametrize("depth", [900, 1000, 2000])
def test_list_cursor_of_nested_json_is_refused_or_ignored(api: Api, path: str, text: bytes, depth: int):
    cursor = base64.urlsafe_b64encode(text % nested(depth)).decode()
    answer = api.call("GET", path, params={"cursor": cursor})
    if not answer.is_success:
        failed(answer, 400, "invalid_request")
    assert not answer.is_success or b'"after":"a"' in text
