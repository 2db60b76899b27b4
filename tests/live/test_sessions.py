"""`POST /v0/watch`: sessions, their lifetime, and invalid requests."""

import re

import pytest

from tests.live.events import encode_id, wait_for


def refused(live, status, code, body, path="/v0/watch"):
    return live.api.refused(status, code, "POST", path, body)


def test_new_session_reports_the_position_of_each_topic(live, topic):
    live.api.write(topic, 1, 2, 3)
    live.api.delete(topic, before_seq=2)
    live.api.write(f"{topic}.b", 1)
    session = live.session({topic: {"from_seq": 1}, f"{topic}.b": {"tail": True}})
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", session["wid"])
    assert session["stream_url"] == f"/v0/watch/{session['wid']}"
    assert session["session_ttl_ms"] == 300_000
    epoch = live.api.state(topic)["epoch"]
    assert session["topics"][topic] == {"from_seq": 1, "head_seq": 3, "earliest_seq": 2, "epoch": epoch}
    assert session["topics"][f"{topic}.b"]["from_seq"] == 1


def test_session_ids_are_unique(live, topic):
    live.api.put(topic)
    assert len({live.session(topic)["wid"] for _ in range(50)}) == 50


def test_unknown_topic_is_refused_unless_lenient(live, topic):
    live.api.put(topic)
    error = refused(live, 404, "topic_not_found", {"topics": {topic: {}, "unknown": {}}})
    assert error["detail"]["topic"] == "unknown"
    assert list(live.session(f"{topic} unknown", lenient=True)["topics"]) == [topic]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"topics": {}},
        {"topics": []},
        {"topics": {"a": 1}},
        {"topics": {"a": {"from_seq": -1}}},
        {"topics": {"a": {"from_seq": 1.5}}},
        {"topics": {"a": {"from_seq": 2**64}}},
        {"topics": {"a": {"tail": 1}}},
        {"topics": {"a": {"filter": ["tag", "Like", "x"]}}},
        {"topics": {"no/slash": {}}},
        {"topics": {"a*b": {}}},
        {"topics": {".*": {}}},
        {"topics": {"a": {}}, "limit": "9"},
        {"topics": {"a": {}}, "limit": 2**64},
        {"topics": {"a": {}}, "consistency": "weak"},
        {"topics": {"a": {}}, "heartbeat_ms": None},
        {"topics": {"a": {}}, "node": 7},
        {"topics": {"a": {}}, "cursor": "%%%"},
        {"topics": {"a": {}}, "cursor": encode_id([1])},
        {"topics": {"a": {}}, "cursor": encode_id({"a": -1})},
        {"topics": {f"t{n}": {} for n in range(257)}},
    ],
)
def test_malformed_watch_request_is_refused(live, body):
    live.api.put("a")
    refused(live, 400, "invalid_request", body)


def test_session_starts_at_the_cursor_of_an_earlier_one(live, topic):
    live.api.write(topic, *range(5))
    live.api.put(f"{topic}.b")
    events = live.watch({topic: {}, f"{topic}.b": {"tail": True}}, cursor=encode_id({topic: 3, "stranger": 9}))
    frame = events.next()
    assert (frame.event, frame.seqs) == ("record", [4, 5])


def test_pattern_watches_topics_with_its_prefix(live, topic):
    for name in ("a", "b"):
        live.api.put(f"{topic}.{name}")
    live.api.put(f"{topic}x")
    assert sorted(live.session(f"{topic}.*")["topics"]) == [f"{topic}.a", f"{topic}.b"]
    assert live.session("nothing-like-this.*")["topics"] == {}


def test_unopened_session_expires_and_frees_its_slot(start_live):
    live = start_live(max_watch_sessions=2, session_ttl_ms=300)
    live.api.put("a")
    first, second = live.session("a"), live.session("a")
    error = refused(live, 429, "throttled", {"topics": {"a": {}}})
    assert error["detail"]["limit"] == "max_watch_sessions"
    events = live.open(first)
    events.expect("caught-up")
    wait_for(lambda: live.api.call("POST", "/v0/watch", {"topics": {"a": {}}}).status_code == 200)
    assert live.open(second).status == 404
    live.api.write("a", 1)
    events.expect("record")
    assert live.metric("topics_watch_sessions") == 2


def test_session_expires_after_its_stream_ends(start_live):
    live = start_live(session_ttl_ms=1000)
    live.api.put("a")
    session = live.session("a")
    with live.open(session) as events:
        events.expect("caught-up")
        assert events.quiet(1.3)
    wait_for(lambda: live.metric("topics_sse_connections") == 0)
    assert live.open(session).status == 200


def test_malformed_wid_is_invalid_and_unknown_wid_not_found(live, topic):
    assert live.open("/v0/watch/wid_" + "A" * 22).body()["error"]["code"] == "not_found"
    for wid in ("nonsense", "wid_", "wid_%2F%2F"):
        events = live.open(f"/v0/watch/{wid}")
        assert events.status == 400
        assert events.body()["error"]["detail"] == {"field": "wid"}


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream;q=0", "text/html, image/*"])
def test_client_that_accepts_no_event_stream_gets_406(live, topic, accept):
    live.api.put(topic)
    events = live.open(live.session(topic), accept=accept)
    assert (events.status, events.body()["error"]["code"]) == (406, "not_acceptable")


@pytest.mark.parametrize("accept", ["text/event-stream", "*/*", "text/html, text/*;q=0.1"])
def test_client_that_accepts_anything_gets_the_stream(live, topic, accept):
    live.api.put(topic)
    assert live.open(live.session(topic), accept=accept).status == 200


def test_head_request_opens_no_stream(live, topic):
    live.api.put(topic)
    session = live.session(topic)
    events = live.open(session)
    events.expect("caught-up")
    answer = live.api.call("HEAD", session["stream_url"])
    assert answer.status_code == 200
    live.api.write(topic, 1)
    events.expect("record")


def test_number_of_streams_is_limited(start_live):
    live = start_live(max_sse_connections=1)
    live.api.put("a")
    first = live.watch("a")
    first.expect("caught-up")
    second = live.watch("a")
    assert (second.status, second.body()["error"]["detail"]["limit"]) == (429, "max_sse_connections")
    first.close()
    wait_for(lambda: live.metric("topics_sse_connections") == 0)
    live.watch("a").expect("caught-up")


def test_only_the_key_that_created_a_session_opens_it(start_live):
    live = start_live(api_keys="admin-key,reader:read:a,other:read:a")
    admin, reader = {"authorization": "Bearer admin-key"}, {"authorization": "Bearer reader"}
    live.api.call("PUT", "/v0/topics/a", {}, headers=admin)
    live.api.call("PUT", "/v0/topics/b", {}, headers=admin)
    made = live.api.call("POST", "/v0/watch", {"topics": {"a": {}}}, headers=reader)
    path = made.json()["stream_url"]
    assert live.open(path).status == 401
    assert live.open(path, authorization="Bearer other").status == 401
    assert live.open(path, authorization="Bearer admin-key").status == 401
    live.open(path, authorization="Bearer reader").expect("caught-up")
    live.open(path + "?token=reader").expect("caught-up")
    for name in ("b", "b*", "*"):
        live.api.refused(403, "forbidden", "POST", "/v0/watch", {"topics": {name: {}}}, headers=reader)
    found = live.api.call("POST", "/v0/watch", {"topics": {"a*": {}}}, headers=reader)
    assert list(found.json()["topics"]) == ["a"]
