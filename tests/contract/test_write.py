"""Writes: stored records, answers, and all limits."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import SMALL_PARTS
from tests.contract.api import Api, data, now_ms, seqs, succeeded, together

# --- the answer


def test_first_write_creates_the_topic(api: Api, topic: str):
    answer = api.call("POST", f"/v0/topics/{topic}", {"records": [{"data": "a"}, {"data": "b"}]})
    assert answer.status_code == 201
    body = answer.json()
    del body["performance"]
    assert body == {
        "topic": topic,
        "first_seq": 1,
        "last_seq": 2,
        "seqs": [1, 2],
        "head_seq": 2,
        "count": 2,
        "created": True,
        "deduped": False,
    }


def test_seqs_continue_across_writes(api: Api, topic: str):
    api.write(topic, 1, 2)
    answer = api.call("POST", f"/v0/topics/{topic}", {"records": [{"data": n} for n in range(3)]})
    assert answer.status_code == 200
    body = answer.json()
    assert (body["first_seq"], body["last_seq"], body["seqs"], body["head_seq"]) == (3, 5, [3, 4, 5], 5)
    assert (body["count"], body["created"], body["deduped"]) == (3, False, False)


def test_seqs_are_given_in_the_order_of_the_array(api: Api, topic: str):
    api.write(topic, *range(50))
    assert [(record["$seq"], record["data"]) for record in api.diff(topic)["records"]] == [
        (n + 1, n) for n in range(50)
    ]


@pytest.mark.parametrize(("value", "listed"), [("false", False), ("0", False), ("true", True), ("1", True)])
def test_list_of_seqs_can_be_omitted(api: Api, topic: str, value: str, listed: bool):
    body = {"records": [{"data": 1}, {"data": 2}]}
    answer = succeeded(api.call("POST", f"/v0/topics/{topic}", body, params={"return_seqs": value}))
    assert (answer["first_seq"], answer["last_seq"], answer["count"]) == (1, 2, 2)
    assert ("seqs" in answer) is listed


def test_concurrent_writers_get_distinct_contiguous_seqs(api: Api, topic: str):
    def write_some() -> list[list[int]]:
        return [api.write(topic, n, n)["seqs"] for n in range(20)]

    batches = [batch for some in together(*[write_some] * 6) for batch in some]
    assert sorted(seq for batch in batches for seq in batch) == list(range(1, 241))
    assert all(second == first + 1 for first, second in batches)


# --- data, token for token

TOKENS = [
    b"null", b"true", b"false", b"0", b"-0", b"-0.0", b"1.0", b"1.10", b"1e2", b"1E+2", b"1e400", b"-1e-400",
    b"0.1000000000000000055511151231257827", b"12345678901234567890123456789", b"9007199254740993",
    b'""', b'"plain"', b'"\\u0041\\u00e9"', b'"\\/\\b\\f\\n\\r\\t\\"\\\\"', b'"\\ud83d\\ude00"', b'"\\u0000"',
    '"é 漢 😀 \u2028\u2029\ufeff"'.encode(), b"[]", b"{}", b"[ 1 ,2 , 3]", b'{"b":1,"a":2}', b'{"a":1,"a":2,"a":1}',
    b'{"":{"":[]}}',
    b'{ "spaced" :\t[ ] }', b'{"$seq":99,"$ts":0,"error":{"code":"x"}}', b'"},{"',
]  # fmt: skip


def stored_data(api: Api, topic: str, seq: int = 1, **fields: Any) -> bytes:
    """Return the bytes of `data` of the only record of a diff."""
    answer = api.call("POST", f"/v0/topics/{topic}/diff", {"from_seq": seq - 1, "limit": 1} | fields)
    start = answer.content.index(b'"data":') + len(b'"data":')
    return answer.content[start : answer.content.rindex(b'}],"next_from_seq"')]


@pytest.mark.parametrize("token", TOKENS, ids=repr)
def test_data_comes_back_token_for_token(api: Api, topic: str, token: bytes):
    api.append_raw(topic, token)
    assert stored_data(api, topic) == token
    assert stored_data(api, topic, include_tags=True, include_meta=False) == token


@pytest.mark.parametrize("line_break", [b"\n", b"\r\n", b"\r"], ids=repr)
def test_record_with_line_breaks_is_one_line(api: Api, topic: str, line_break: bytes):
    value = {"a": [1, 2], "text": "with\nan escaped break"}
    pretty = json.dumps(value, indent=2).encode().replace(b"\n", line_break)
    meta = b'{%b"m"%b:%b1}' % (line_break, line_break, line_break)
    raw = b'{"records":[{"data":%b,"meta":%b}]}' % (pretty, meta)
    succeeded(api.call("POST", f"/v0/topics/{topic}", raw=raw))
    answer = api.call("POST", f"/v0/topics/{topic}/diff", {})
    assert b"\n" not in answer.content.removesuffix(b"\n")
    assert b"\r" not in answer.content
    [record] = answer.json()["records"]
    assert (record["data"], record["meta"]) == (value, {"m": 1})


@pytest.mark.parametrize(
    "token",
    [b"01", b"1.", b".5", b"+1", b"NaN", b"Infinity", b"-", b"1e", b"0x1", b"'a'", b'"\t"', b'"\n"', b'"\\x"',
     b'"\\u12"', b"[1,]", b'{"a":1,}', b"{a:1}", b"tru", b"", b"1 2", b'"open', b"/**/1"],
    ids=repr,
)  # fmt: skip
def test_data_that_is_not_json_is_invalid(api: Api, topic: str, token: bytes):
    api.put(topic)
    raw = b'{"records":[{"data":%b}]}' % token
    api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", raw=raw)
    assert api.state(topic)["head_seq"] == 0


HALVES = [
    b'"\\ud800"',
    b'"\\udc00"',
    b'"\\ud800 and more"',
    b'["\\ud800\\uD800\\ud83d\\ude00"]',
    b'{"\\udfff":"\\\\ud800 \\ue000"}',
]


@pytest.mark.parametrize("token", HALVES, ids=repr)
def test_escaped_lone_surrogate_in_data_is_kept(api: Api, topic: str, token: bytes):
    body = b'{"records":[{"data":%b,"meta":{"k":%b},"tag":"\\ud83d\\ude00"}]}' % (token, token)
    assert api.call("POST", f"/v0/topics/{topic}", raw=body).is_success
    answer = api.call("POST", f"/v0/topics/{topic}/diff", {"include_tags": True})
    assert b'"data":%b,"meta":{"k":%b}}' % (token, token) in answer.content
    assert json.loads(answer.content)["records"][0]["$tag"] == "\N{GRINNING FACE}"


@pytest.mark.parametrize("field", ["tag", "node"])
def test_lone_surrogate_in_a_name_is_refused(api: Api, topic: str, field: str):
    raw = b'{"records":[{"data":1,"%b":"\\ud800"}]}' % field.encode()
    api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", raw=raw)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(_json, min_size=1, max_size=5), meta=st.dictionaries(st.text(), _json, max_size=5))
def test_any_data_and_meta_are_returned_unchanged(api: Api, values: list[Any], meta: dict[str, Any]):
    topic = "any-data"
    first = api.write(topic, *values, meta=meta)["first_seq"]
    records = api.diff(topic, from_seq=first - 1)["records"]
    assert [(record["data"], record["meta"]) for record in records] == [(value, meta) for value in values]


def test_data_may_be_null_but_not_missing(api: Api, topic: str):
    api.write(topic, None)
    [record] = api.diff(topic)["records"]
    assert record["data"] is None
    api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", {"records": [{"tag": "x"}]})
    assert api.state(topic)["head_seq"] == 1


# --- node, tag, meta


def test_absent_fields_of_a_record_are_omitted(api: Api, topic: str):
    api.append(topic, [{"data": 1}, {"data": 1, "tag": None, "node": None, "meta": None}])
    for record in api.diff(topic, include_tags=True)["records"]:
        assert record.keys() == {"$seq", "$ts", "data"}


def test_node_and_tag_come_back_under_a_dollar_sign(api: Api, topic: str):
    api.append(topic, [{"data": 1, "node": "n-1", "tag": "tenant:job", "meta": {"trace": "z9"}}])
    [record] = api.diff(topic, include_tags=True)["records"]
    del record["$ts"]
    assert record == {"$seq": 1, "$node": "n-1", "$tag": "tenant:job", "data": 1, "meta": {"trace": "z9"}}


def test_node_of_a_record_overrides_the_batch(api: Api, topic: str):
    api.append(topic, [{"data": 1}, {"data": 2, "node": "own"}, {"data": 3}], node="batch")
    assert [record["$node"] for record in api.diff(topic)["records"]] == ["batch", "own", "batch"]


@pytest.mark.parametrize(
    "text", ['quote " and \\ slash', "é漢😀", "line\nbreak", "\x00\x1f\x7f", "</script>", "\u2028"]
)
def test_node_tag_and_meta_may_hold_any_text(api: Api, topic: str, text: str):
    api.append(topic, [{"data": "x", "node": text, "tag": text, "meta": {text: text}}])
    [record] = api.diff(topic, include_tags=True)["records"]
    assert (record["$node"], record["$tag"], record["meta"], record["data"]) == (text, text, {text: text}, "x")
    [bare] = api.diff(topic, include_meta=False)["records"]
    assert bare.keys() == {"$seq", "$ts", "$node", "data"}
    assert api.diff(topic, node=text)["records"] == []
    assert api.delete(topic, match=text)["deleted"] == 1


def test_meta_values_are_any_json_and_kept_as_sent(api: Api, topic: str):
    meta = b'{"n":1.0,"l":[1,{"x":null}],"b":true,"n":2}'
    succeeded(api.call("POST", f"/v0/topics/{topic}", raw=b'{"records":[{"data":1,"meta":%b}]}' % meta))
    assert b'"meta":' + meta in api.call("POST", f"/v0/topics/{topic}/diff", {}).content


def test_empty_meta_is_kept(api: Api, topic: str):
    api.write(topic, 1, meta={})
    assert api.diff(topic)["records"][0]["meta"] == {}


def test_meta_has_at_most_64_keys(api: Api, topic: str):
    api.write(topic, 1, meta={f"k{n}": n for n in range(64)})
    body = {"records": [{"data": 1, "meta": {f"k{n}": n for n in range(65)}}]}
    assert (
        api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", body)["detail"]["field"] == "records[0].meta"
    )


def test_meta_has_at_most_16_kib(api: Api, topic: str):
    def body(size_bytes: int) -> bytes:
        meta = b'{"k":"%b"}' % (b"x" * (size_bytes - 8))
        assert len(meta) == size_bytes
        return b'{"records":[{"data":1,"meta":%b}]}' % meta

    succeeded(api.call("POST", f"/v0/topics/{topic}", raw=body(16 * 1024)))
    error = api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", raw=body(16 * 1024 + 1))
    assert error["detail"]["field"] == "records[0].meta"


@pytest.mark.parametrize(("field", "limit_bytes"), [("tag", 256), ("node", 128)])
@pytest.mark.parametrize(("char", "char_bytes"), [("x", 1), ("é", 2), ("😀", 4)])
def test_tag_and_node_are_bounded_in_bytes(
    api: Api, topic: str, field: str, limit_bytes: int, char: str, char_bytes: int
):
    longest = char * (limit_bytes // char_bytes)
    api.append(topic, [{"data": 1, field: longest}])
    error = api.refused(
        400, "invalid_request", "POST", f"/v0/topics/{topic}", {"records": [{"data": 1, field: longest + "x"}]}
    )
    assert error["detail"]["field"].endswith(field)
    assert api.state(topic)["head_seq"] == 1


def test_node_of_a_batch_is_bounded_too(api: Api, topic: str):
    api.write(topic, 1, node="x" * 128)
    body = {"records": [{"data": 1}], "node": "x" * 129}
    assert api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", body)["detail"]["field"] == "node"


# --- sizes


def test_write_has_at_least_one_record(api: Api, topic: str):
    error = api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", {"records": []})
    assert error["detail"]["field"] == "records"
    api.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


def test_write_has_at_most_10000_records(api: Api, topic: str):
    answer = api.write(topic, *[0] * 10_000)
    assert (answer["last_seq"], len(answer["seqs"])) == (10_000, 10_000)
    api.refused(400, "batch_too_large", "POST", f"/v0/topics/{topic}", {"records": [{"data": 0}] * 10_001})
    assert api.state(topic)["head_seq"] == 10_000


def test_record_size_is_limited_to_one_mib(api: Api, topic: str):
    def body(data_bytes: int, meta_bytes: int = 0) -> bytes:
        meta = b',"meta":{"k":"%b"}' % (b"x" * (meta_bytes - 8)) if meta_bytes else b""
        return b'{"records":[{"data":"%b"%b}]}' % (b"x" * (data_bytes - 2), meta)

    limit = 1 << 20
    path = f"/v0/topics/{topic}"
    succeeded(api.call("POST", path, raw=body(limit)))
    succeeded(api.call("POST", path, raw=body(limit - 100, 100)))
    api.refused(400, "record_too_large", "POST", path, raw=body(limit + 1))
    api.refused(400, "record_too_large", "POST", path, raw=body(limit - 99, 100))
    assert api.state(topic)["head_seq"] == 2
    assert len(api.diff(topic)["records"][0]["data"]) == limit - 2


def test_limits_are_settings(start_server, connect, topic: str):
    server = start_server(
        max_batch_records=3, max_record_bytes=1000, max_meta_bytes=100, max_tag_bytes=10, max_node_bytes=5, max_limit=2
    )
    api = connect(server)
    path = f"/v0/topics/{topic}"
    api.append(topic, [{"data": 1, "tag": "x" * 10, "node": "x" * 5}] * 3)
    api.refused(400, "batch_too_large", "POST", path, {"records": [{"data": 1}] * 4})
    api.refused(400, "record_too_large", "POST", path, {"records": [{"data": "x" * 1000}]})
    for record in ({"tag": "x" * 11}, {"node": "x" * 6}, {"meta": {"k": "x" * 100}}):
        api.refused(400, "invalid_request", "POST", path, {"records": [{"data": 1} | record]})
    assert seqs(api.diff(topic, limit=100)) == [1, 2]


@pytest.mark.parametrize(
    "bad",
    [{"tag": "x" * 257}, {"node": "x" * 129}, {"meta": {str(n): n for n in range(65)}}, {"data": "x" * (1 << 20)}],
)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_invalid_record_refuses_the_whole_batch(api: Api, topic: str, bad: Any, at: int):
    api.write(topic, "before")
    records: list[Any] = [{"data": n} for n in range(3)]
    records[at] |= bad
    assert api.call("POST", f"/v0/topics/{topic}", {"records": records}).status_code == 400
    assert api.write(topic, "after")["seqs"] == [2]
    assert data(api.diff(topic)) == ["before", "after"]


# --- create and config


def test_create_false_never_creates_a_topic(api: Api, topic: str):
    body = {"records": [{"data": 1}], "create": False, "config": {"auto_create": True}}
    error = api.refused(404, "topic_not_found", "POST", f"/v0/topics/{topic}", body)
    assert error["detail"]["topic"] == topic
    api.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


def test_create_false_writes_to_an_existing_topic(api: Api, topic: str):
    api.put(topic)
    assert api.write(topic, 1, create=False)["seqs"] == [1]


def test_create_true_overrides_auto_create_off(api: Api, topic: str):
    answer = api.write(topic, 1, create=True, config={"auto_create": False})
    assert answer["created"] is True
    assert api.state(topic)["config"]["auto_create"] is False


def test_existing_topic_with_auto_create_off_accepts_writes(api: Api, topic: str):
    api.put(topic, auto_create=False)
    assert api.write(topic, 1)["seqs"] == [1]


def test_config_applies_to_a_topic_that_the_write_creates(api: Api, topic: str):
    api.write(topic, 1, config={"ttl_ms": 60_000, "cap_records": 9, "durable": True})
    config = api.state(topic)["config"]
    assert (config["ttl_ms"], config["cap_records"], config["durability"]) == (60_000, 9, "fsync")


def test_config_is_ignored_for_an_existing_topic(api: Api, topic: str):
    before = api.put(topic, ttl_ms=60_000)["config"]
    api.write(topic, 1, config={"ttl_ms": 1, "type": "queue", "cap_records": 1})
    assert api.state(topic)["config"] == before


def test_invalid_config_creates_no_topic(api: Api, topic: str):
    body = {"records": [{"data": 1}], "config": {"dead_letter": topic}}
    api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}", body)
    api.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


@pytest.mark.parametrize("value", [True, False])
def test_loader_may_opt_out_of_backpressure(api: Api, topic: str, value: bool):
    assert api.write(topic, 1, disable_backpressure=value)["seqs"] == [1]


# --- time and durability


def test_commit_times_are_the_servers_and_never_go_backwards(api: Api, topic: str):
    start_ms = now_ms()
    for n in range(20):
        api.write(topic, n, n)
    stamps = [record["$ts"] for record in api.diff(topic)["records"]]
    assert stamps == sorted(stamps)
    assert start_ms <= stamps[0]
    assert stamps[-1] <= now_ms()
    assert stamps[0::2] == stamps[1::2]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk"])
def test_only_fsync_waits_for_the_disk(api: Api, topic: str, durability: str):
    api.put(topic, durability=durability)
    assert api.write(topic, 1)["performance"]["fsync_ms"] == 0.0
    assert api.write(topic, *range(9_000))["performance"]["fsync_ms"] == 0.0  # past the first ceiling


def test_fsync_write_says_how_long_the_disk_took(start_server, connect, topic: str, tmp_path):
    api = connect(start_server(data_dir=tmp_path / "data"))
    api.put(topic, durability="fsync")
    assert api.write(topic, 1)["performance"]["fsync_ms"] > 0
    assert data(api.diff(topic)) == [1]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_acknowledged_records_are_readable_at_once(api: Api, topic: str, durability: str):
    api.put(topic, durability=durability)
    for n in range(5):
        api.write(topic, n)
        assert data(api.diff(topic, from_seq=n)) == [n]


# --- full topics


def test_full_topic_evicts_the_oldest_records(api: Api, topic: str):
    api.put(topic, cap_records=3)
    api.write(topic, *range(1, 6))
    state = api.state(topic)
    assert (state["head_seq"], state["earliest_seq"], state["count"]) == (5, 3, 3)
    assert data(api.diff(topic, from_seq=2)) == [3, 4, 5]


def test_batch_larger_than_the_cap_keeps_its_last_records(api: Api, topic: str):
    api.put(topic, cap_records=2)
    assert api.write(topic, *range(10))["last_seq"] == 10
    assert data(api.diff(topic)) == [8, 9]


def test_cap_in_bytes_holds(api: Api, topic: str):
    api.put(topic, cap_bytes=1000)
    for _ in range(20):
        api.write(topic, "x" * 100)
        assert api.state(topic)["bytes"] <= 1000
    state = api.state(topic)
    assert 1 < state["count"] < 10
    assert state["earliest_seq"] == 21 - state["count"]


def test_first_cap_reached_applies(api: Api, topic: str):
    api.put(topic, cap_records=5, cap_bytes=1000)
    api.write(topic, *["x"] * 8)
    assert api.state(topic)["count"] == 5
    api.write(topic, "x" * 800)
    assert api.state(topic)["count"] < 5


@pytest.mark.parametrize("cap", [{"cap_records": 3}, {"cap_bytes": 400}])
def test_full_rejecting_topic_refuses_the_whole_batch(api: Api, topic: str, cap: Any):
    api.put(topic, discard="reject", **cap)
    api.write(topic, "x" * 50, "x" * 50)
    before = api.state(topic)
    api.refused(422, "topic_full", "POST", f"/v0/topics/{topic}", {"records": [{"data": "x" * 150}] * 2})
    after = api.state(topic)
    assert [after[name] for name in ("head_seq", "count", "bytes")] == [
        before[name] for name in ("head_seq", "count", "bytes")
    ]
    assert api.diff(topic)["tombstone"] is None


def test_rejecting_topic_fills_to_its_cap(api: Api, topic: str):
    api.put(topic, discard="reject", cap_records=3)
    api.write(topic, 1, 2, 3)
    api.refused(422, "topic_full", "POST", f"/v0/topics/{topic}", {"records": [{"data": 4}]})
    assert data(api.diff(topic)) == [1, 2, 3]


def test_delete_frees_space_in_a_rejecting_topic(api: Api, topic: str):
    api.put(topic, discard="reject", cap_records=1)
    api.write(topic, 1)
    api.delete(topic, before_seq=2)
    assert api.write(topic, 2)["seqs"] == [2]


def test_write_larger_than_its_new_topic_creates_none(api: Api, topic: str):
    body = {"records": [{"data": 1}] * 2, "config": {"cap_records": 1, "discard": "reject"}}
    api.refused(400, "batch_too_large", "POST", f"/v0/topics/{topic}", body)
    api.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


def test_no_write_is_refused_during_wal_rotation(start_server, connect, tmp_path):
    """Checkpoints start new WAL files while several syncs are running."""
    api = connect(start_server(data_dir=tmp_path / "data", **SMALL_PARTS))

    def work(name: str) -> None:
        for n in range(70):
            api.put(f"{name}{n}", durability="fsync")
            api.write(f"{name}{n}", n)
            api.put(f"{name}{n}", durability="disk")
            api.write(f"{name}{n}", n)

    together(*[lambda name=name: work(name) for name in "ab"])
    metrics = succeeded(api.call("GET", "/v0/metrics", headers={"accept": "application/json"}))
    assert metrics["topics_wal_rotations_total"] > 3
    assert metrics["topics_wal_read_only"] == 0


def test_server_starts_with_only_a_small_body_limit(start_server, connect):
    api = connect(start_server(max_body_bytes=2000))
    api.write("a", "x" * 1900)
    api.refused(413, "payload_too_large", "POST", "/v0/topics/a", {"records": [{"data": "x" * 2000}]})
