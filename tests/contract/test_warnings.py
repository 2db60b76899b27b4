"""Requests with unknown fields or parameters: all but the dangerous ones carry on, and say what they ignored."""

import json
from typing import Any

import httpx
import pytest
from msgspec import Struct

from tests.contract.api import Api, Background, eventually, succeeded
from topics.server.api.route_table import ROUTES
from topics.server.http.request.unknown_fields import MAX_WARNINGS, strict
from topics.server.http.request.write_request import LARGE_BYTES, QUICK_BYTES, is_slow

FROM = 'unknown field "from" ignored; did you mean "from_seq"?'


def warnings_of(answer: httpx.Response) -> Any:
    """Return the warnings of a successful answer: those in its body, or those in its header."""
    assert answer.is_success, answer.text
    given = answer.headers.get("topics-warnings")
    return answer.json().get("warnings") if given is None else json.loads(given)


@pytest.mark.parametrize(
    ("path", "body", "warning"),
    [
        ("/topics/{}/diff", {"from": 5}, FROM),
        ("/topics/{}", {"records": [{"data": 1}], "nod": "a"}, 'unknown field "nod" ignored; did you mean "node"?'),
        (
            "/topics/{}",
            {"records": [{"data": 1}, {"data": 2, "tagg": "x"}, {"data": 3, "tagg": "x"}]},
            'unknown field "records[1].tagg" ignored; did you mean "tag"?',
        ),
        ("/topics/{}/claim", {"node": "w", "wait": 0}, 'unknown field "wait" ignored; did you mean "wait_ms"?'),
        ("/topics/{}/ack", {"node": "w", "seqs": [1], "lease_id": []}, '"lease_id" ignored; did you mean "lease_ids"?'),
        ("/topics/{}/nack", {"node": "w", "seqs": [1], "delay": 5}, '"delay" ignored; did you mean "delay_ms"?'),
        ("/topics/{}/extend", {"node": "w", "seqs": [1], "lease_ms": 500, "colour": 1}, '"colour" ignored'),
        ("/topics/{}/archived", {"seq": 1, "epoch": 0, "trimmed": 1}, 'did you mean "trimmed_seq"?'),
        ("/routers/r/preview", {"source": "{}", "form_seq": 1}, 'did you mean "from_seq"?'),
        (
            "/watch",
            {"topics": {"{}": {"from": 1}}},
            'unknown field "topics[...].from" ignored; did you mean "from_seq"?',
        ),
    ],
)
def test_unknown_field_is_ignored_with_a_warning(api: Api, topic: str, path: str, body: Any, warning: str):
    api.put(topic, type="queue")
    api.write(topic, 1, 2, 3)
    text = json.dumps(body).replace("{}", topic).replace('"epoch": 0', f'"epoch": {api.state(topic)["epoch"]}')
    answer = succeeded(api.call("POST", "/v0" + path.format(topic), raw=text.encode()))
    [given] = answer["warnings"]
    assert given.endswith(warning.replace("{}", topic))
    assert list(answer)[-1] == "warnings"


def test_request_without_unknown_fields_has_no_warnings(api: Api, topic: str):
    assert "warnings" not in api.write(topic, 1)
    assert "warnings" not in api.diff(topic, from_seq=0)
    assert "warnings" not in api.get(f"/v0/topics/{topic}", touch="false")


def test_body_gets_a_warning_about_its_first_unknown_field(api: Api, topic: str):
    record = {"data": 1, "tagg": "x"}
    answer = api.append(topic, [record, record | {"nod": "n"}], idempotencykey="k")
    assert answer["warnings"] == [
        'unknown field "records[0].tagg" ignored; did you mean "tag"?',
    ]


def test_number_and_length_of_warnings_are_bounded(api: Api, topic: str):
    api.put(topic)
    found = api.diff(topic, **{"x" * 5000: 1})
    assert len(found["warnings"][0]) < 200
    found = api.get(f"/v0/topics/{topic}", **{f"q{n}": 1 for n in range(90)})
    assert len(found["warnings"]) == MAX_WARNINGS


@pytest.mark.parametrize("slow", [False, True])
def test_unknown_fields_of_a_body_that_is_decoded_in_steps(api: Api, topic: str, slow: bool):
    data = [{}] * 30_000 if slow else "x" * 30_000
    records = [{"data": data}] * 30 + [{"data": 1, "tagg": "x"}] * 2
    body = json.dumps({"records": records, "nod": "n"}).encode()
    assert len(body) > (QUICK_BYTES if slow else LARGE_BYTES)
    assert is_slow(body) == slow
    answer = succeeded(api.call("POST", f"/v0/topics/{topic}?colour=blue", raw=body))
    assert answer["count"] == 32
    assert answer["warnings"][0] == 'unknown query parameter "colour" ignored'
    # A body that is decoded at once reports the first unknown field, one that is decoded in parts the first per part.
    assert 'unknown field "records[30].tagg" ignored; did you mean "tag"?' in answer["warnings"]
    assert ('unknown field "nod" ignored; did you mean "node"?' in answer["warnings"]) == slow


def test_lone_surrogates_beside_an_unknown_field_are_kept(api: Api, topic: str):
    raw = b'{"records":[{"data":"\\ud800","tagg":"x"}]}'
    answer = succeeded(api.call("POST", f"/v0/topics/{topic}", raw=raw))
    assert answer["warnings"] == ['unknown field "records[0].tagg" ignored; did you mean "tag"?']
    assert b'"data":"\\ud800"' in api.call("POST", f"/v0/topics/{topic}/diff", {}).content


def test_cached_answer_keeps_the_warnings_of_its_own_request(api: Api, topic: str):
    api.write(topic, 1)
    for _ in range(3):
        assert api.diff(topic, from_seq=1, colour=1)["warnings"] == ['unknown field "colour" ignored']
        assert "warnings" not in api.diff(topic, from_seq=1)
        answer = api.call("POST", f"/v0/topics/{topic}/diff?colour=1", {"from_seq": 1})
        assert warnings_of(answer) == ['unknown query parameter "colour" ignored']


def test_long_poll_and_large_answer_carry_their_warnings(api: Api, topic: str):
    api.put(topic)
    waiting = Background(lambda: api.diff(topic, wait_ms=20_000, colour=1))
    eventually(lambda: api.state(topic, touch=False)["last_read_ts"], lambda ts: ts is not None)
    api.write(topic, "x" * 40_000)
    for page in (waiting.result(), api.diff(topic, colour=1)):
        assert page["records"][0]["data"] == "x" * 40_000
        assert page["warnings"] == ['unknown field "colour" ignored']


def test_error_answer_has_no_warnings(api: Api, topic: str):
    answer = api.call("POST", f"/v0/topics/{topic}/diff?colour=1", {"colour": 1})
    assert answer.status_code == 404
    assert "warnings" not in answer.json()


# --- the query string


def test_unknown_query_parameter_is_ignored_with_a_warning(api: Api, topic: str):
    api.put(topic)
    found = api.get(f"/v0/topics/{topic}", tuoch="false")
    assert found["warnings"] == ['unknown query parameter "tuoch" ignored; did you mean "touch"?']
    listed = api.get("/v0/topics", prefix=topic, limit=5)
    assert listed["warnings"] == ['unknown query parameter "limit" ignored']
    assert [row["topic"] for row in listed["topics"]] == [topic]


def test_warning_about_a_token_in_the_query_does_not_quote_it(api: Api, topic: str):
    api.put(topic)
    answer = api.call("GET", f"/v0/topics/{topic}?token=s3cret")
    assert answer.json()["warnings"] == ['unknown query parameter "token" ignored']
    assert b"s3cret" not in answer.content


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/topics/{}?if_emty=true", None),
        ("PUT", "/topics/{}?cap_records=5", {}),
        ("POST", "/topics/{}/delete?dry_run=true", {"before_seq": 3}),
        ("POST", "/topics/{}/redrive?dry_run=true", {}),
        ("DELETE", "/routers/none?if_empty=true", None),
    ],
)
def test_unknown_parameter_of_a_request_that_deletes_or_configures_is_refused(
    api: Api, topic: str, method: str, path: str, body: Any
):
    api.append(topic, [{"data": 1}, {"data": 2}])
    error = api.refused(400, "invalid_request", method, "/v0" + path.format(topic), body)
    assert error["detail"]["field"] == path.partition("?")[2].partition("=")[0]
    assert api.state(topic)["count"] == 2


def test_misspelt_parameter_of_a_delete_gets_a_suggestion(api: Api, topic: str):
    api.put(topic)
    error = api.refused(400, "invalid_request", "DELETE", f"/v0/topics/{topic}?if_emty=true")
    assert error["message"] == "there is no query parameter if_emty; did you mean if_empty?"


# --- answers without a JSON object of their own


@pytest.mark.parametrize("path", ["/v0/metrics", "/v0/openapi.json", "/client.js"])
def test_document_is_the_same_with_an_unknown_parameter(api: Api, path: str):
    def get(url: str) -> httpx.Response:
        return api.http.get(url, headers={"accept": "*/*"})

    assert warnings_of(get(f"{path}?v=2")) == ['unknown query parameter "v" ignored']
    assert "topics-warnings" not in get(path).headers
    if path != "/v0/metrics":
        assert get(f"{path}?v=2").content == get(path).content


def test_scan_reports_unknown_fields_in_a_header(api: Api, topic: str):
    api.write(topic, 1, 2)
    answer = api.http.post(f"/v0/topics/{topic}/scan", json={"naïve": 2})
    assert warnings_of(answer) == ['unknown field "naïve" ignored']
    assert len(answer.text.splitlines()) == 3
    assert "topics-warnings" not in api.http.post(f"/v0/topics/{topic}/scan", json={"from_seq": 1}).headers


def test_event_stream_reports_unknown_parameters_in_a_header(api: Api, topic: str):
    api.write(topic, 1)
    session = succeeded(api.call("POST", "/v0/watch", {"topics": {topic: {}}}))
    with api.http.stream("GET", session["stream_url"] + "?token=s3cret&colour=blue") as answer:
        assert json.loads(answer.headers["topics-warnings"]) == ['unknown query parameter "colour" ignored']


# --- every route


def test_every_request_type_refuses_or_reports_unknown_fields():
    for route in ROUTES:
        if route.body is not None:
            assert _is_strict(strict(route.body)), route.path
            assert route.body.__struct_config__.forbid_unknown_fields == route.is_strict, route.path


def _is_strict(kind: Any) -> bool:
    assert issubclass(kind, Struct)
    return kind.__struct_config__.forbid_unknown_fields
