"""Topics: create, configure, inspect, list, delete, and the caps on their number."""

import threading
import time
from typing import Any

import httpx
import pytest

from tests.contract.api import Api, data, eventually, now_ms, succeeded

DEFAULTS = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
    "retry": None,
    "max_in_flight": 0,
    "max_in_flight_per_key": 1,
    "rate": None,
    "rate_per_key": None,
    "paused": False,
    "archive": None,
    "schema": None,
    "schema_mode": "reject",
    "compatibility": "backward",
    "schema_versions": [],
}


# --- PUT


def test_empty_body_creates_a_topic_with_every_default(api: Api, topic: str):
    answer = api.call("PUT", f"/v0/topics/{topic}", {})
    assert answer.status_code == 201
    body = answer.json()
    assert (body["topic"], body["created"], body["config"]) == (topic, True, DEFAULTS)


def test_same_put_again_changes_nothing(api: Api, topic: str):
    first = api.put(topic, ttl_ms=60_000, priority=10)
    again = api.call("PUT", f"/v0/topics/{topic}", {"ttl_ms": 60_000, "priority": 10})
    assert again.status_code == 200
    assert again.json()["created"] is False
    assert again.json()["config"] == first["config"]
    assert again.json()["epoch"] == first["epoch"]


def test_put_changes_only_the_given_fields(api: Api, topic: str):
    api.put(topic, ttl_ms=60_000, cap_records=5)
    answer = api.call("PUT", f"/v0/topics/{topic}", {"cap_records": 7, "discard": "reject"})
    assert answer.status_code == 200
    assert answer.json()["created"] is False
    expected = DEFAULTS | {"ttl_ms": 60_000, "cap_records": 7, "discard": "reject"}
    assert answer.json()["config"] == expected
    assert api.state(topic)["config"] == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "queue"),
        ("ttl_ms", 86_400_000),
        ("cap_records", 1_000_000),
        ("cap_bytes", 1 << 40),
        ("discard", "reject"),
        ("durability", "ephemeral"),
        ("durability", "memory"),
        ("durability", "disk"),
        ("priority", -7),
        ("auto_priority", False),
        ("auto_create", False),
        ("idempotency_window_ms", 5),
        ("dedupe_node", False),
        ("lease_ms", 100),
        ("claim_jitter_ms", 5000),
        ("max_deliveries", 3),
        ("dead_letter", "somewhere:else"),
        ("max_in_flight_per_key", 2),
        ("rate", {"per_s": 2.0, "burst": 3}),
        ("rate_per_key", {"per_s": 0.5, "burst": 1}),
        ("leases_durable", True),
        ("retry", {"min_ms": 5, "max_ms": 50, "factor": 1.5, "jitter": 0.0}),
        ("max_in_flight", 7),
        ("paused", True),
        ("archive", {"hold": True}),
    ],
)
def test_every_answer_shows_the_configuration(api: Api, topic: str, field: str, value: Any):
    expected = DEFAULTS | {field: value}
    assert api.put(topic, **{field: value})["config"] == expected
    assert api.put(topic)["config"] == expected
    assert api.state(topic)["config"] == expected


@pytest.mark.parametrize(
    ("field", "given", "kept"),
    [
        ("priority", 5000, 1000),
        ("priority", -5000, -1000),
        ("priority", 1000, 1000),
        ("lease_ms", 1, 100),
        ("lease_ms", 100_000_000, 86_400_000),
        ("claim_jitter_ms", 60_000, 5000),
    ],
)
def test_value_outside_its_range_is_clamped(api: Api, topic: str, field: str, given: int, kept: int):
    assert api.put(topic, **{field: given})["config"][field] == kept


@pytest.mark.parametrize(
    ("given", "durability", "durable"),
    [
        ({"durable": True}, "fsync", True),
        ({"durable": False}, "disk", False),
        ({"durability": "fsync"}, "fsync", True),
        ({"durability": "ephemeral"}, "ephemeral", False),
        ({"durability": "memory", "durable": True}, "memory", False),
        ({"durability": "fsync", "durable": False}, "fsync", True),
    ],
)
def test_durability_overrides_durable(api: Api, topic: str, given: Any, durability: str, durable: bool):
    config = api.put(topic, **given)["config"]
    assert (config["durability"], config["durable"]) == (durability, durable)


def test_durability_class_can_change_in_place(api: Api, topic: str):
    api.put(topic, durability="ephemeral")
    api.write(topic, 1)
    for durability in ("memory", "disk", "fsync", "ephemeral"):
        assert api.put(topic, durability=durability)["config"]["durability"] == durability
        api.write(topic, durability)
    assert data(api.diff(topic)) == [1, "memory", "disk", "fsync", "ephemeral"]


@pytest.mark.parametrize("field", ["priority", "dead_letter"])
def test_null_resets_a_nullable_field(api: Api, topic: str, field: str):
    api.put(topic, priority=5, dead_letter="other")
    assert api.put(topic, **{field: None})["config"][field] is None


@pytest.mark.parametrize(("before", "after"), [("log", "queue"), ("queue", "log")])
def test_type_of_a_topic_never_changes(api: Api, topic: str, before: str, after: str):
    api.put(topic, type=before)
    body = {"type": after, "ttl_ms": 5}
    api.refused(409, "topic_exists_incompatible", "PUT", f"/v0/topics/{topic}", body)
    assert api.state(topic)["config"] == DEFAULTS | {"type": before}
    assert api.put(topic, type=before)["created"] is False


@pytest.mark.parametrize(
    ("field", "value"),
    [("type", "stream"), ("discard", "new"), ("durability", "tape"), ("dead_letter", "no spaces"), ("dead_letter", "")],
)
def test_unknown_enum_value_is_refused(api: Api, topic: str, field: str, value: str):
    error = api.refused(400, "invalid_request", "PUT", f"/v0/topics/{topic}", {field: value})
    assert error["detail"]["field"] == field
    api.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


def test_queue_cannot_be_its_own_dead_letter_topic(api: Api, topic: str):
    body = {"type": "queue", "dead_letter": topic}
    error = api.refused(400, "invalid_request", "PUT", f"/v0/topics/{topic}", body)
    assert error["detail"]["field"] == "dead_letter"


@pytest.mark.parametrize(
    "name", ["a", "7", "Z9", "render-queue:tenantA", "a.b_c:d-e", "x" * 255, "jobs-", "diff", "delete"]
)
def test_name_may_use_the_whole_charset(api: Api, name: str):
    assert api.put(name)["topic"] == name
    assert api.state(name)["topic"] == name
    assert api.drop(name)["deleted"] is True


@pytest.mark.parametrize("name", [".a", "_a", ":a", "-a", "a b", "a>b", "a+b", "é", "aé", "a%0A", "x" * 256, "a*", "~"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "", {}),
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "", {"records": [{"data": 1}]}),
        ("POST", "/diff", {}),
        ("POST", "/delete", {"before_seq": 1}),
    ],
)
def test_name_outside_the_charset_is_invalid(api: Api, name: str, method: str, path: str, body: Any):
    error = api.refused(400, "invalid_request", method, f"/v0/topics/{name}{path}", body)
    assert error["detail"]["field"] == "topic"


def test_names_differ_by_case(api: Api, topic: str):
    api.write(f"{topic}a", "small")
    api.write(f"{topic}A", "large")
    assert data(api.diff(f"{topic}a")) == ["small"]
    assert data(api.diff(f"{topic}A")) == ["large"]


def test_change_of_configuration_never_touches_stored_records(api: Api, topic: str):
    api.write(topic, 1, 2, node="n", tag="t", meta={"k": "v"})
    before = api.diff(topic, include_tags=True)["records"]
    api.put(topic, durability="fsync", ttl_ms=3_600_000, cap_records=100, dedupe_node=False)
    assert api.diff(topic, include_tags=True)["records"] == before


# --- GET


def test_fresh_topic_is_empty_and_begins_at_one(api: Api, topic: str):
    epoch = api.put(topic)["epoch"]
    state = api.state(topic)
    assert {name: value for name, value in state.items() if name != "performance"} == {
        "topic": topic,
        "type": "log",
        "epoch": epoch,
        "head_seq": 0,
        "earliest_seq": 1,
        "next_seq": 1,
        "count": 0,
        "bytes": 0,
        "config": DEFAULTS,
        "effective_priority": 0,
        "last_write_ts": None,
        "last_read_ts": None,
    }


def test_state_follows_writes_and_deletes(api: Api, topic: str):
    start_ms = now_ms()
    api.write(topic, "a", "b", "c", "d")
    full = api.state(topic)
    assert (full["head_seq"], full["earliest_seq"], full["next_seq"], full["count"]) == (4, 1, 5, 4)
    assert full["bytes"] > 0
    assert start_ms <= full["last_write_ts"] <= now_ms()

    api.delete(topic, before_seq=3)
    half = api.state(topic)
    assert (half["head_seq"], half["earliest_seq"], half["next_seq"], half["count"]) == (4, 3, 5, 2)
    assert 0 < half["bytes"] < full["bytes"]

    api.delete(topic, before_seq=99)
    empty = api.state(topic)
    assert (empty["head_seq"], empty["earliest_seq"], empty["next_seq"]) == (4, 5, 5)
    assert (empty["count"], empty["bytes"]) == (0, 0)


def test_cursor_before_next_seq_reads_only_new_records(api: Api, topic: str):
    api.write(topic, "old")
    cursor = api.state(topic)["next_seq"] - 1
    api.write(topic, "new")
    assert data(api.diff(topic, from_seq=cursor)) == ["new"]


def test_state_request_counts_as_a_read_unless_touch_is_false(api: Api, topic: str):
    api.put(topic)
    assert api.state(topic, touch=False)["last_read_ts"] is None
    start_ms = now_ms()
    touched = api.get(f"/v0/topics/{topic}")
    assert start_ms <= touched["last_read_ts"] <= now_ms()
    assert touched["effective_priority"] > 490
    assert api.state(topic, touch=False)["last_read_ts"] == touched["last_read_ts"]


def test_diff_counts_as_a_read(api: Api, topic: str):
    api.put(topic)
    start_ms = now_ms()
    api.diff(topic)
    assert start_ms <= api.state(topic)["last_read_ts"] <= now_ms()


def test_write_does_not_count_as_a_read(api: Api, topic: str):
    api.write(topic, 1)
    assert api.state(topic)["last_read_ts"] is None


def test_manual_priority_is_the_effective_one(api: Api, topic: str):
    api.put(topic, priority=-3)
    assert api.state(topic, touch=True)["effective_priority"] == -3
    api.put(topic, priority=None)
    assert api.state(topic, touch=True)["effective_priority"] > 490


def test_reads_do_not_matter_without_auto_priority(api: Api, topic: str):
    api.put(topic, auto_priority=False)
    assert api.state(topic, touch=True)["effective_priority"] == 0


def test_state_request_never_creates_a_topic(api: Api, topic: str):
    for _ in range(2):
        api.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


def test_expired_records_are_not_counted(api: Api, topic: str):
    api.put(topic, ttl_ms=1)
    api.write(topic, 1, 2)
    state = eventually(lambda: api.state(topic), lambda state: state["count"] == 0)
    assert (state["head_seq"], state["earliest_seq"], state["bytes"]) == (2, 3, 0)


# --- DELETE


def test_deleted_topic_loses_all_records(api: Api, topic: str):
    api.write(topic, 1)
    answer = api.drop(topic)
    assert (answer["topic"], answer["deleted"], answer["routers_removed"]) == (topic, True, [])
    api.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")
    api.refused(404, "topic_not_found", "POST", f"/v0/topics/{topic}/diff", {})
    assert topic not in [row["topic"] for row in api.get("/v0/topics", prefix=topic)["topics"]]


def test_deleting_an_absent_topic_succeeds(api: Api, topic: str):
    answer = api.call("DELETE", f"/v0/topics/{topic}")
    assert answer.status_code == 200
    assert (answer.json()["deleted"], answer.json()["routers_removed"]) == (False, [])
    assert api.drop(topic, if_empty="true")["deleted"] is False


def test_recreated_topic_starts_at_seq_1(api: Api, topic: str):
    api.put(topic, ttl_ms=60_000)
    api.write(topic, "old", "older")
    old = api.state(topic)["epoch"]
    api.drop(topic)
    assert api.write(topic, "new")["seqs"] == [1]
    state = api.state(topic)
    assert state["config"] == DEFAULTS
    assert state["epoch"] != old
    assert data(api.diff(topic)) == ["new"]


def test_if_empty_keeps_a_topic_that_holds_records(api: Api, topic: str):
    api.write(topic, 1)
    api.refused(409, "topic_not_empty", "DELETE", f"/v0/topics/{topic}", params={"if_empty": "true"})
    assert data(api.diff(topic)) == [1]
    assert api.drop(topic, if_empty="false")["deleted"] is True


def test_if_empty_drops_a_topic_whose_records_were_all_deleted(api: Api, topic: str):
    api.write(topic, 1)
    api.delete(topic, before_seq=2)
    assert api.drop(topic, if_empty="true")["deleted"] is True


def test_if_empty_drops_a_topic_whose_records_have_all_expired(api: Api, topic: str):
    api.write(topic, 1, config={"ttl_ms": 1})

    def drop() -> int:
        return api.call("DELETE", f"/v0/topics/{topic}", params={"if_empty": "true"}).status_code

    assert eventually(drop, lambda status: status != 409) == 200


def test_recreated_topic_has_a_new_epoch(api: Api, topic: str):
    epochs = set()
    for _ in range(5):
        epochs.add(api.put(topic)["epoch"])
        api.drop(topic)
    assert len(epochs) == 5


# --- caps


def test_topic_cap_is_enforced(start_server, connect):
    api = connect(start_server(max_topics=2))
    api.put("a")
    api.write("b", 1)
    for method, body in (("PUT", {}), ("POST", {"records": [{"data": 1}]})):
        answer = api.call(method, "/v0/topics/c", body)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        error = answer.json()["error"]
        assert error["code"] == "throttled"
        assert (error["detail"]["limit"], error["detail"]["max"]) == ("max_topics", 2)
    api.refused(404, "topic_not_found", "GET", "/v0/topics/c")

    # Existing topics can still be changed and written to, and freed space can be used.
    assert api.put("a", ttl_ms=5)["config"]["ttl_ms"] == 5
    api.write("b", 2)
    api.drop("a")
    assert api.put("c")["created"] is True


def test_total_bytes_cap_is_enforced(start_server, connect):
    api = connect(start_server(max_total_bytes=2000))
    api.write("a", "x" * 500)
    api.write("b", "x" * 500)
    answer = api.call("POST", "/v0/topics/a", {"records": [{"data": "x" * 1000}]})
    assert answer.status_code == 429
    assert "retry-after" in answer.headers
    assert (answer.json()["error"]["code"], answer.json()["error"]["detail"]["limit"]) == (
        "throttled",
        "max_total_bytes",
    )
    assert api.state("a")["head_seq"] == 1

    api.delete("b", before_seq=2)
    assert api.write("a", "x" * 1000)["seqs"] == [2]


def test_cap_of_zero_means_unlimited(start_server, connect):
    api = connect(start_server(max_topics=0, max_total_bytes=0))
    for n in range(5):
        succeeded(api.call("PUT", f"/v0/topics/t{n}"))


def test_uptime_and_commit_times_are_milliseconds(api: Api, topic: str):
    api.write(topic, 1)
    [record] = api.diff(topic)["records"]
    assert isinstance(record["$ts"], int)
    assert abs(record["$ts"] - time.time() * 1000) < 60_000


def test_readers_and_writers_of_a_recreated_topic_get_valid_answers(api: Api, topic: str):
    def churn() -> None:
        with httpx.Client(base_url=str(api.http.base_url), timeout=30, trust_env=False) as client:
            for _ in range(60):
                client.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}]})
                client.delete(f"/v0/topics/{topic}")

    thread = threading.Thread(target=churn)
    thread.start()
    seen = set()
    while thread.is_alive():
        seen.add(api.http.post(f"/v0/topics/{topic}/diff", json={"from_seq": 0}).status_code)
        seen.add(api.http.get(f"/v0/topics/{topic}").status_code)
    thread.join()
    assert seen <= {200, 404}


# --- a tighter cap


@pytest.mark.parametrize("cap", [{"cap_records": 2}, {"cap_bytes": 100}])
def test_tighter_cap_of_a_topic_that_rejects_evicts_nothing(api: Api, cap: dict[str, int]):
    name = f"tighter:reject:{next(iter(cap))}"
    api.put(name, discard="reject")
    api.write(name, *range(5))
    api.put(name, **cap)
    path, body = f"/v0/topics/{name}", {"records": [{"data": 5}]}
    assert api.state(name)["count"] == 5
    api.refused(422, "topic_full", "POST", path, body)
    api.delete(name, before_seq=4)
    api.refused(422, "topic_full", "POST", path, body)
    api.delete(name, before_seq=5)
    assert api.write(name, 5)["seqs"] == [6]
    page = api.diff(name)
    assert ([record["$seq"] for record in page["records"]], page["tombstone"]) == ([5, 6], None)


def test_change_from_reject_to_old_evicts_down_to_the_cap(api: Api):
    api.put("tighter:then-old", discard="reject")
    api.write("tighter:then-old", *range(5))
    api.put("tighter:then-old", cap_records=2)
    api.put("tighter:then-old", discard="old")
    assert (api.state("tighter:then-old")["earliest_seq"], api.state("tighter:then-old")["count"]) == (4, 2)
