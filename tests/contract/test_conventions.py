"""Rules for every endpoint: content types, errors, methods, JSON bodies, the performance block."""

import gzip
import json
from typing import Any

import pytest

from tests.contract.api import Api, data, failed, succeeded


@pytest.fixture
def api(disk_api: Api) -> Api:
    return disk_api


# --- paths and methods


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/v0", "/v1/topics", "/v0/nothing", "/v0/topics/", "/v0/topics/a/", "/v0/topics/a/b/c", "/v0//topics"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unknown_path_is_not_found(api: Api, path: str, method: str):
    api.refused(404, "not_found", method, path)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/v0/topics/a", {"PUT", "GET", "POST", "DELETE", "HEAD"}),
        ("POST", "/v0/topics", {"GET", "HEAD"}),
        ("DELETE", "/v0/topics", {"GET", "HEAD"}),
        ("GET", "/v0/topics/a/diff", {"POST"}),
        ("DELETE", "/v0/topics/a/delete", {"POST"}),
        ("POST", "/v0/health", {"GET", "HEAD"}),
        ("POST", "/healthz", {"GET", "HEAD"}),
        ("PUT", "/v0/ready", {"GET", "HEAD"}),
        ("DELETE", "/readyz", {"GET", "HEAD"}),
        ("POST", "/v0/metrics", {"GET", "HEAD"}),
    ],
)
def test_wrong_method_gets_the_allowed_methods(api: Api, method: str, path: str, allowed: set[str]):
    answer = api.call(method, path)
    error = failed(answer, 405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == allowed
    assert error["detail"] == {"allow": sorted(allowed)}
    assert error["message"] == f"this path does not take {method}; it takes {', '.join(sorted(allowed))}"


@pytest.mark.parametrize(
    ("method", "path", "body", "field", "choices"),
    [
        ("PUT", "/v0/topics/t", {"durability": "fast"}, "durability", "disk, ephemeral, fsync, memory"),
        ("PUT", "/v0/topics/t", {"type": "stream"}, "type", "log, queue"),
        ("POST", "/v0/topics/t", {"records": [], "config": {"discard": "new"}}, "config.discard", "old, reject"),
        ("POST", "/v0/watch", {"topics": {"t": {}}, "consistency": "weak"}, "consistency", "eventual, strong"),
        (
            "PUT", "/v0/routers/r", {"source": "a", "dest": "b", "guarantee": "once"}, "guarantee",
            "at_least_once, exactly_once",
        ),
        ("GET", "/v0/topics/q/jobs?state=done", None, "state", "ready, in_flight, delayed"),
    ],
)  # fmt: skip
def test_unknown_enum_value_gets_the_choices(api: Api, method: str, path: str, body: Any, field: str, choices: str):
    api.put("q", type="queue")
    error = failed(api.call(method, path, body), 400, "invalid_request")
    assert error["detail"] == {"field": field}
    assert error["message"].startswith(f"{field} must be one of {choices}")


def test_head_answers_like_get_without_a_body(api: Api, topic: str):
    api.put(topic)
    answer = api.call("HEAD", f"/v0/topics/{topic}")
    assert answer.status_code == 200
    assert answer.content == b""
    assert api.call("HEAD", "/v0/topics/missing-topic").status_code == 404


def test_path_part_is_percent_decoded_once(api: Api, topic: str):
    name = f"{topic}:a"
    assert succeeded(api.call("PUT", f"/v0/topics/{topic}%3Aa"))["topic"] == name
    assert api.state(name)["topic"] == name
    # Decoded twice, this would name the topic above.
    assert api.refused(400, "invalid_request", "GET", f"/v0/topics/{topic}%253Aa")["detail"]["field"] == "topic"


@pytest.mark.parametrize("part", ["%ff", "%C3%28", "%2F", "%00", "%0A", "a%20b", "%"])
def test_invalid_name_in_the_path_is_refused(api: Api, part: str):
    api.refused(400, "invalid_request", "PUT", f"/v0/topics/{part}")


@pytest.mark.parametrize("value", ["yes", "", "2", "null"])
@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", "/v0/topics/{topic}", "touch"),
        ("GET", "/v0/topics", "touch"),
        ("DELETE", "/v0/topics/{topic}", "if_empty"),
        ("POST", "/v0/topics/{topic}", "return_seqs"),
    ],
)
def test_flag_in_the_query_is_true_or_false(api: Api, topic: str, method: str, path: str, field: str, value: str):
    api.put(topic)
    body = {"records": [{"data": 1}]} if method == "POST" else None
    error = api.refused(400, "invalid_request", method, path.format(topic=topic), body, params={field: value})
    assert error["detail"]["field"] == field
    assert api.state(topic)["head_seq"] == 0


# --- content types and bodies


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON; Charset=UTF-8",
        'application/json;charset="utf-8"',
    ],
)
def test_utf_8_charset_is_accepted(api: Api, topic: str, content_type: str):
    succeeded(api.call("PUT", f"/v0/topics/{topic}", {}, headers={"content-type": content_type}))


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", "", "application/json; charset=latin1"],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v0/topics/{topic}"),
        ("POST", "/v0/topics/{topic}"),
        ("POST", "/v0/topics/{topic}/diff"),
        ("POST", "/v0/topics/{topic}/delete"),
    ],
)
def test_body_of_another_type_is_refused(api: Api, topic: str, method: str, path: str, content_type: str):
    raw = b'{"records":[{"data":1}],"before_seq":1}'
    options = {"raw": raw, "headers": {"content-type": content_type}}
    api.refused(415, "unsupported_media_type", method, path.format(topic=topic), **options)
    api.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


def test_body_without_a_type_is_refused(api: Api, topic: str):
    answer = api.http.put(f"/v0/topics/{topic}", content=b"{}")
    failed(answer, 415, "unsupported_media_type")


def test_put_without_a_body_counts_as_an_empty_object(api: Api, topic: str):
    answer = api.call("PUT", f"/v0/topics/{topic}")
    assert answer.status_code == 201
    assert answer.json()["config"] == api.put(topic)["config"]


def test_post_without_a_body_counts_as_an_empty_object(api: Api, topic: str):
    api.write(topic, "x")
    assert data(succeeded(api.call("POST", f"/v0/topics/{topic}/diff"))) == ["x"]
    assert api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}")["detail"] == {"field": "records"}
    api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}/delete")


@pytest.mark.parametrize("raw", [b"[]", b'"x"', b"1", b"null", b"true"])
@pytest.mark.parametrize("path", ["/v0/topics/{topic}", "/v0/topics/{topic}/diff", "/v0/topics/{topic}/delete"])
def test_body_must_be_an_object(api: Api, topic: str, path: str, raw: bytes):
    api.put(topic)
    api.refused(400, "invalid_request", "POST", path.format(topic=topic), raw=raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"{}}",
        b"{} {}",
        b"{'a':1}",
        b'{"a":}',
        b"nonsense",
        b" ",
        b"\xef\xbb\xbf{}",
        b'{"a":01}',
        b'{"a":NaN}',
        b"{\x00}",
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v0/topics/{topic}"),
        ("POST", "/v0/topics/{topic}"),
        ("POST", "/v0/topics/{topic}/diff"),
        ("POST", "/v0/topics/{topic}/delete"),
    ],
)
def test_body_that_is_not_json_is_invalid(api: Api, topic: str, method: str, path: str, raw: bytes):
    api.refused(400, "invalid_request", method, path.format(topic=topic), raw=raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"records":[{"data":"\xff"}]}',
        b'{"records":[{"data":{"\xc3\x28":1}}]}',
        b'{"records":[{"data":1,"meta":{"a":"\xed\xa0\x80"}}]}',
        b'{"records":[{"data":1,"tag":"\xfe"}]}',
        b'{"records":[{"data":1}],"unknown":"\xff"}',
        b'{"records":[{"data":"\xe2\x82"}]}',
    ],
    ids=repr,
)
def test_invalid_utf_8_is_refused_everywhere(api: Api, topic: str, raw: bytes):
    api.put(topic)
    api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", raw=raw)
    assert api.state(topic)["head_seq"] == 0


@pytest.mark.parametrize("depth", [5_000, 100_000])
@pytest.mark.parametrize(
    "template",
    [
        b'{"records":[{"data":%b}]}',
        b'{"records":[{"data":1,"meta":{"a":%b}}]}',
        b'{"records":[{"data":1}],"unknown":%b}',
        b'{"records":%b}',
    ],
)
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_body_nested_too_deeply_is_invalid(
    api: Api, topic: str, template: bytes, opening: bytes, closing: bytes, depth: int
):
    api.put(topic)
    raw = template % (opening * depth + b"1" + closing * depth)
    api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", raw=raw)
    assert api.state(topic)["head_seq"] == 0


def test_ordinary_nesting_is_accepted(api: Api, topic: str):
    deep = b"[" * 100 + b"]" * 100
    api.append_raw(topic, deep)
    assert data(api.diff(topic)) == [json.loads(deep)]


# --- fields


@pytest.mark.parametrize(
    ("method", "path", "body", "field", "meant"),
    [
        ("POST", "/topics/{}/delete", {"before_seq": 3, "dryrun": True}, "dryrun", "dry_run"),
        ("PUT", "/topics/{}", {"cap_record": 5}, "cap_record", "cap_records"),
        ("PUT", "/topics/{}", {"archive": {"hodl": True}}, "archive.hodl", "hold"),
        (
            "POST",
            "/topics/{}",
            {"records": [{"data": 1}], "config": {"cap_record": 5}},
            "config.cap_record",
            "cap_records",
        ),
        ("POST", "/topics/{}/redrive", {"dryrun": True}, "dryrun", "dry_run"),
        ("PUT", "/routers/r", {"source": "a", "dest": "b", "fliter": "x"}, "fliter", "filter"),
    ],
)
def test_misspelt_field_of_a_request_with_effects_is_refused(
    api: Api, topic: str, method: str, path: str, body: Any, field: str, meant: str
):
    api.append(topic, [{"data": 1}, {"data": 2}])
    error = api.refused(400, "invalid_request", method, f"/v0{path.format(topic)}", body)
    assert error["detail"] == {"field": field}
    assert f"did you mean {meant}?" in error["message"]
    assert api.state(topic)["count"] == 2


def test_unknown_field_without_a_similar_one_lists_all(api: Api, topic: str):
    api.append(topic, [{"data": 1}])
    error = api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}/delete", {"colour": 1})
    assert "there are before_seq, match" in error["message"]


INTEGERS = [
    ("PUT", "", "ttl_ms"),
    ("PUT", "", "cap_records"),
    ("PUT", "", "cap_bytes"),
    ("PUT", "", "idempotency_window_ms"),
    ("PUT", "", "lease_ms"),
    ("PUT", "", "claim_jitter_ms"),
    ("PUT", "", "max_deliveries"),
    ("POST", "/diff", "from_seq"),
    ("POST", "/diff", "limit"),
    ("POST", "/diff", "wait_ms"),
    ("POST", "/diff", "max_batch_bytes"),
    ("POST", "/diff", "from_ts"),
    ("POST", "/diff", "epoch"),
    ("POST", "/delete", "before_seq"),
]
FLAGS = [
    ("PUT", "", "durable"),
    ("PUT", "", "auto_priority"),
    ("PUT", "", "auto_create"),
    ("PUT", "", "dedupe_node"),
    ("PUT", "", "leases_durable"),
    ("POST", "", "create"),
    ("POST", "", "disable_backpressure"),
    ("POST", "/diff", "include_tags"),
    ("POST", "/diff", "include_meta"),
]
STRINGS = [
    ("PUT", "", "type"),
    ("PUT", "", "discard"),
    ("PUT", "", "durability"),
    ("PUT", "", "dead_letter"),
    ("POST", "", "node"),
    ("POST", "", "idempotency_key"),
    ("POST", "/diff", "node"),
]


def _check_refused(api: Api, topic: str, method: str, path: str, field: str, token: str) -> None:
    """Send the field with this JSON token as its value, and expect an error that names the field."""
    api.put(topic)
    before = api.state(topic)
    start = '{"records":[{"data":1}],' if (method, path) == ("POST", "") else "{"
    raw = f'{start}"{field}":{token}}}'.encode()
    error = api.refused(400, "invalid_request", method, f"/v0/topics/{topic}{path}", raw=raw)
    assert error["detail"]["field"] == field
    after = api.state(topic)
    assert (after["head_seq"], after["config"]) == (before["head_seq"], before["config"])


@pytest.mark.parametrize("token", ["-1", "1.5", "18446744073709551616", "1e400", '"1"', "true", "[1]", "{}"])
@pytest.mark.parametrize(("method", "path", "field"), INTEGERS)
def test_integer_is_an_unsigned_64_bit_number(api: Api, topic: str, method: str, path: str, field: str, token: str):
    _check_refused(api, topic, method, path, field, token)


@pytest.mark.parametrize(
    ("method", "path", "field"), [row for row in INTEGERS if row[2] not in ("from_seq", "wait_ms")]
)
def test_integer_may_be_as_large_as_64_bits_allow(api: Api, topic: str, method: str, path: str, field: str):
    api.put(topic)
    raw = f'{{"{field}":18446744073709551615}}'.encode()
    succeeded(api.call(method, f"/v0/topics/{topic}{path}", raw=raw))


@pytest.mark.parametrize("token", ["1", '"true"', "[]", "{}"])
@pytest.mark.parametrize(("method", "path", "field"), FLAGS)
def test_flag_is_true_or_false(api: Api, topic: str, method: str, path: str, field: str, token: str):
    _check_refused(api, topic, method, path, field, token)


@pytest.mark.parametrize("token", ["1", "true", "{}"])
@pytest.mark.parametrize(("method", "path", "field"), STRINGS)
def test_string_is_a_string(api: Api, topic: str, method: str, path: str, field: str, token: str):
    _check_refused(api, topic, method, path, field, token)


@pytest.mark.parametrize("token", ['"high"', "1.5", "true", "[]"])
def test_priority_is_an_integer_or_null(api: Api, topic: str, token: str):
    _check_refused(api, topic, "PUT", "", "priority", token)


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ('{"tag":"x"}', "data"),
        ('{"data":1,"tag":7}', "tag"),
        ('{"data":1,"node":["a"]}', "node"),
        ('{"data":1,"meta":[]}', "meta"),
        ('{"data":1,"meta":"x"}', "meta"),
    ],
)
def test_invalid_field_in_a_record_is_named_with_its_path(api: Api, topic: str, record: str, field: str):
    raw = f'{{"records":[{{"data":0}},{record}]}}'.encode()
    named = api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", raw=raw)["detail"]["field"]
    assert named.startswith("records[")
    assert named.endswith(f"].{field}")


@pytest.mark.parametrize("records", ["{}", '"x"', "1", "null", "true"])
def test_records_is_an_array(api: Api, topic: str, records: str):
    raw = f'{{"records":{records}}}'.encode()
    assert api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", raw=raw)["detail"]["field"] == "records"


def test_invalid_field_in_config_is_named_with_its_path(api: Api, topic: str):
    body = {"records": [{"data": 1}], "config": {"ttl_ms": "soon"}}
    assert (
        api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", body)["detail"]["field"] == "config.ttl_ms"
    )


# --- sizes and compression


def test_body_above_the_limit_is_refused_for_any_framing(start_server, connect, topic: str):
    api = connect(start_server(max_body_bytes=4096, max_record_bytes=4096, max_meta_bytes=4096))
    path, fits, long = f"/v0/topics/{topic}", b"{%b}" % (b" " * 4000), b"{%b}" % (b" " * 5000)

    succeeded(api.call("PUT", path, raw=fits))
    failed(api.call("PUT", path, raw=long), 413, "payload_too_large")

    headers = {"content-type": "application/json"}
    succeeded(api.http.put(path, content=iter([fits]), headers=headers))
    failed(api.http.put(path, content=iter([long]), headers=headers), 413, "payload_too_large")

    bomb = gzip.compress(b'{"unknown":"%b"}' % (b"x" * 1_000_000))
    assert len(bomb) < 4096
    failed(api.call("PUT", path, raw=bomb, headers={"content-encoding": "gzip"}), 413, "payload_too_large")
    assert api.state(topic)["head_seq"] == 0


def test_gzip_body_is_decompressed(api: Api, topic: str):
    raw = gzip.compress(json.dumps({"records": [{"data": "packed"}]}).encode())
    succeeded(api.call("POST", f"/v0/topics/{topic}", raw=raw, headers={"content-encoding": "gzip"}))
    assert data(api.diff(topic)) == ["packed"]


def test_broken_gzip_body_is_invalid(api: Api, topic: str):
    raw = gzip.compress(b'{"records":[{"data":1}]}')[:-6]
    headers = {"content-encoding": "gzip"}
    api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", raw=raw, headers=headers)


def test_unknown_content_encoding_is_refused(api: Api, topic: str):
    headers = {"content-encoding": "br"}
    api.refused(415, "unsupported_media_type", "PUT", f"/v0/topics/{topic}", raw=b"{}", headers=headers)


def test_answer_is_compressed_only_on_request(api: Api, topic: str):
    api.write(topic, *["same words again"] * 200)
    plain = api.call("POST", f"/v0/topics/{topic}/diff", {})
    packed = api.call("POST", f"/v0/topics/{topic}/diff", {}, headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"])
    assert packed.json()["records"] == plain.json()["records"]


# --- errors and timing


def test_missing_topic_is_named_in_the_error(api: Api):
    error = api.refused(404, "topic_not_found", "GET", "/v0/topics/missing-topic")
    assert error["detail"]["topic"] == "missing-topic"
    assert "missing-topic" in error["message"]


def test_write_answer_has_timings(api: Api, topic: str):
    spent = api.write(topic, 1)["performance"]
    assert {"server_total_ms", "wal_append_ms", "fsync_ms"} <= spent.keys()
    assert spent["fsync_ms"] == 0.0


def test_read_answer_has_the_number_of_examined_seqs(api: Api, topic: str):
    api.write(topic, *range(7), node="me")
    assert api.diff(topic, node="me")["performance"]["records_scanned"] == 7
    assert api.diff(topic, from_seq=7)["performance"]["records_scanned"] == 0
