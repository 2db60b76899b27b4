"""The requests of named consumers, against a server on a real socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.conftest import ServerProcess, StartServer
from tests.contract.api import Api, succeeded
from tests.live.events import wait_for


def url(topic: str, name: str = "billing") -> str:
    return f"/v0/topics/{topic}/consumers/{name}"


def put(api: Api, topic: str, name: str = "billing", **fields: Any) -> Any:
    return succeeded(api.call("PUT", url(topic, name), fields))


def test_put_creates_then_changes(api: Api, topic: str):
    created = api.call("PUT", url(topic), {"seq": 4})
    assert created.status_code == 201
    answer = created.json()
    assert {key: answer[key] for key in ("topic", "consumer", "created", "seq", "head_seq")} == {
        "topic": topic, "consumer": "billing", "created": True, "seq": 4, "head_seq": 10,
    }  # fmt: skip
    changed = api.call("PUT", url(topic), {"seq": 6, "if_seq": 4, "epoch": answer["epoch"]})
    assert (changed.status_code, changed.json()["created"], changed.json()["seq"]) == (200, False, 6)


def test_get_returns_position_lag_and_losses(api: Api, topic: str):
    put(api, topic, seq=4, meta={"host": "a", "n": [1, None]}, expire_ms=60_000)
    found = api.get(url(topic))
    assert found["lag_ms"] >= 0
    assert found["updated_ms"] > 1_600_000_000_000
    assert (found["last_read"]["key"], found["last_read"]["address"]) == (None, "127.0.0.1")
    for varies in ("lag_ms", "updated_ms", "performance", "epoch", "last_read"):
        del found[varies]
    assert found == {
        "topic": topic, "consumer": "billing", "seq": 4, "head_seq": 10, "lag_records": 6, "lost": None,
        "meta": {"host": "a", "n": [1, None]}, "expire_ms": 60_000, "hold": False, "max_hold_bytes": 0,
    }  # fmt: skip


def test_last_reader_is_known_by_its_key_and_program(start_server: StartServer):
    server = start_server(api_keys="root,worker:read+write,page:read")
    headers = {key: {"authorization": f"Bearer {key}", "user-agent": f"{key}/1"} for key in ("root", "worker", "page")}
    with httpx.Client(base_url=f"{server.url}/v0") as http:
        http.post("/topics/jobs", json={"records": [{"data": n} for n in range(3)]}, headers=headers["root"])
        place = "/topics/jobs/consumers/billing"

        def last(key: str = "root") -> Any:
            return http.get(place, headers=headers[key]).json()["last_read"]

        names = [row["key"] for row in http.get("/keys", headers=headers["root"]).json()["keys"]]
        http.put(place, json={"seq": 1}, headers=headers["root"])
        first = last()
        assert (first["key"] in names, first["client"], first["address"]) == (True, "root/1", "127.0.0.1")
        http.post("/topics/jobs/diff", json={"consumer": "billing"}, headers=headers["worker"])
        assert (last()["client"], last()["key"] != first["key"], last()["at_ms"] >= first["at_ms"]) == (
            "worker/1",
            True,
            True,
        )
        commit = {"commits": [{"topic": "jobs", "consumer": "billing", "seq": 2}]}
        http.post("/consumers", json=commit, headers=headers["root"])
        assert last("page") == last() | {"address": None}
        assert last()["client"] == "root/1"
        http.delete(place, headers=headers["root"])
        http.put(place, json={"seq": 0}, headers=headers["worker"])
        assert last()["client"] == "worker/1"


def test_commit_over_a_websocket_is_of_its_key(api: Api, topic: str):
    put(api, topic, seq=1)
    with connect(f"ws://127.0.0.1:{api.http.base_url.port}/v0/ws") as socket:
        socket.send(json.dumps({"op": "commit", "topic": topic, "consumer": "billing", "seq": 2}))
        assert json.loads(socket.recv(20))["op"] == "committed"
    last = api.get(url(topic))["last_read"]
    assert (last["client"], last["address"]) == ("WebSocket", None)


def test_lost_unread_records_are_reported_with_their_range(api: Api, topic: str):
    put(api, topic, seq=2)
    api.put(topic, cap_records=3)
    found = api.get(url(topic))
    assert found["lost"] == {"records": 5, "gaps": [{"gap_from": 3, "gap_to": 7, "reason": "cap"}]}
    assert found["lag_records"] == 3


def test_conflict_names_the_present_seq(api: Api, topic: str):
    put(api, topic, seq=4)
    error = api.refused(409, "consumer_moved", "PUT", url(topic), {"seq": 9, "if_seq": 3})
    assert error["detail"] == {"topic": topic, "consumer": "billing", "seq": 4}


def test_other_epoch_is_refused(api: Api, topic: str):
    put(api, topic, seq=4)
    api.refused(409, "epoch_mismatch", "PUT", url(topic), {"seq": 5, "epoch": 1})


@pytest.mark.parametrize(
    ("body", "field", "hint"),
    [
        ({"seqs": 4}, "seqs", "did you mean seq?"),
        ({"ifseq": 4}, "ifseq", "did you mean if_seq?"),
        ({"expires_ms": 4}, "expires_ms", "did you mean expire_ms?"),
        ({"holds": True}, "holds", "did you mean hold?"),
        ({"xyz": True}, "xyz", "there are seq, epoch,"),
    ],
)
def test_unknown_field_is_refused_with_a_suggestion(api: Api, topic: str, body: Any, field: str, hint: str):
    error = api.refused(400, "invalid_request", "PUT", url(topic), body)
    assert error["detail"] == {"field": field}
    assert hint in error["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"seq": 11}, "seq"),
        ({"seq": -1}, "seq"),
        ({"seq": "4"}, "seq"),
        ({"seq": 2**64}, "seq"),
        ({"seq": None}, "seq"),
        ({"if_seq": 2**64}, "if_seq"),
        ({"meta": []}, "meta"),
        ({"meta": {"text": "x" * 1024}}, "meta"),
        ({"hold": True}, "max_hold_bytes"),
        ({"expire_ms": 1.5}, "expire_ms"),
    ],
)
def test_invalid_field_is_named(api: Api, topic: str, body: Any, field: str):
    assert api.refused(400, "invalid_request", "PUT", url(topic), body)["detail"] == {"field": field}


def test_missing_topic_and_missing_consumer_differ(api: Api, topic: str):
    api.refused(404, "topic_not_found", "GET", url("nowhere"))
    api.refused(404, "topic_not_found", "PUT", url("nowhere"), {"seq": 0})
    api.refused(404, "topic_not_found", "GET", "/v0/topics/nowhere/consumers")
    error = api.refused(404, "consumer_not_found", "GET", url(topic, "absent"))
    assert error["detail"] == {"topic": topic, "consumer": "absent"}


def test_delete_is_repeatable(api: Api, topic: str):
    put(api, topic, seq=4)
    assert succeeded(api.call("DELETE", url(topic)))["deleted"] is True
    assert succeeded(api.call("DELETE", url(topic)))["deleted"] is False
    api.refused(404, "consumer_not_found", "GET", url(topic))


def test_list_of_a_topic_is_paged_by_name(api: Api, topic: str):
    for name in ("c", "a", "b", "d"):
        put(api, topic, name, seq=1)
    rows, cursor = [], None
    while True:
        page = api.get(f"/v0/topics/{topic}/consumers", page_size=3, **({"cursor": cursor} if cursor else {}))
        rows += page["consumers"]
        cursor = page.get("next_cursor")
        if cursor is None:
            break
    assert [row["consumer"] for row in rows] == ["a", "b", "c", "d"]
    assert {(row["topic"], row["seq"], row["lag_records"]) for row in rows} == {(topic, 1, 9)}


def test_list_of_all_topics_is_paged_by_topic_and_name(api: Api, topic: str):
    names = [f"{topic}.{at}" for at in range(3)]
    for name in names:
        api.write(name, 1)
        for consumer in ("x", "y"):
            put(api, name, consumer, seq=0)
    api.write(f"{topic}.none", 1)
    rows, cursor = [], None
    while True:
        page = api.get("/v0/consumers", prefix=f"{topic}.", page_size=3, **({"cursor": cursor} if cursor else {}))
        rows += [(row["topic"], row["consumer"]) for row in page["consumers"]]
        cursor = page.get("next_cursor")
        if cursor is None:
            break
    assert rows == [(name, consumer) for name in names for consumer in ("x", "y")]
    api.drop(names[1])
    assert len(api.get("/v0/consumers", prefix=f"{topic}.")["consumers"]) == 4


def test_number_per_topic_is_bounded(api: Api, topic: str):
    for at in range(20):
        put(api, topic, f"c{at}", seq=0)
    error = api.refused(429, "throttled", "PUT", url(topic, "more"), {"seq": 0})
    assert error["detail"]["limit"] == "max_consumers"


def test_recreated_topic_has_no_consumers(api: Api, topic: str):
    epoch = put(api, topic, seq=4)["epoch"]
    api.drop(topic)
    api.write(topic, 1)
    api.refused(404, "consumer_not_found", "GET", url(topic))
    api.refused(409, "epoch_mismatch", "PUT", url(topic), {"seq": 1, "epoch": epoch})


def test_unused_consumer_is_forgotten(api: Api, topic: str):
    put(api, topic, seq=4, expire_ms=1)
    wait_for(lambda: api.call("GET", url(topic)).status_code == 404)
    api.refused(404, "consumer_not_found", "GET", url(topic))


def test_positions_survive_a_kill(tmp_path: Path):
    settings = {"data_dir": tmp_path / "data"}
    server = ServerProcess(tmp_path, settings)
    api = Api(server.url)
    api.write("orders", *range(10))
    put(api, "orders", seq=7)
    api.close()
    server.kill()
    server = ServerProcess(tmp_path, settings)
    api = Api(server.url)
    assert api.get(url("orders"))["seq"] == 7
    api.close()
    server.stop()


def test_metrics_have_the_lag_of_each_consumer(api: Api, topic: str):
    put(api, topic, seq=4)
    put(api, topic, "mail", seq=10)
    metrics = api.call("GET", "/v0/metrics").text
    assert f'topics_consumer_lag_records{{topic="{topic}",consumer="billing"}} 6' in metrics
    assert f'topics_consumer_lag_records{{topic="{topic}",consumer="mail"}} 0' in metrics
    assert f'topics_consumer_lag_seconds{{topic="{topic}",consumer="mail"}} 0.0' in metrics
    found = api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json()
    assert found["topics_consumer_lag_records"][f"{topic}/billing"] == 6
    assert found["topics_consumer_lag_seconds"][f"{topic}/billing"] > 0


def test_metrics_name_a_bounded_number_of_consumers(tmp_path: Path):
    server = ServerProcess(tmp_path, {"metrics_max_topics": 2})
    api = Api(server.url)
    for name in ("a", "b"):
        api.write(name, 1)
        put(api, name, "x", seq=0)
        put(api, name, "y", seq=0)
    found = api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json()
    assert list(found["topics_consumer_lag_records"]) == ["a/x", "a/y"]
    assert found["topics_consumer_metrics_truncated"] == 1
    api.close()
    server.stop()


def test_many_consumers_commit_with_one_request(api: Api, topic: str):
    other = f"{topic}.other"
    api.write(other, 1, 2)
    for name in (topic, other):
        put(api, name, seq=1)
    wanted = [
        {"topic": topic, "consumer": "billing", "seq": 5},
        {"topic": other, "consumer": "billing", "seq": 2},
        {"topic": topic, "consumer": "billing", "seq": 3},
        {"topic": other, "consumer": "billing", "seq": 9},
        {"topic": topic, "consumer": "absent", "seq": 1},
        {"topic": "nowhere", "consumer": "billing", "seq": 1},
        {"topic": other, "consumer": "billing", "seq": 2**64},
    ]
    answer = succeeded(api.call("POST", "/v0/consumers", {"commits": wanted}))
    assert answer["committed"] == 3, "a commit that is behind the position has taken effect before"
    assert [(row["topic"], row["code"]) for row in answer["refused"]] == [
        (other, "invalid_request"), (topic, "consumer_not_found"), ("nowhere", "topic_not_found"),
        (other, "invalid_request"),
    ]  # fmt: skip
    assert (api.get(url(topic))["seq"], api.get(url(other))["seq"]) == (5, 2)


def test_unknown_field_of_a_commit_is_refused(api: Api):
    error = api.refused(400, "invalid_request", "POST", "/v0/consumers", {"commits": [], "commit": 1})
    assert "did you mean commits?" in error["message"]
    body = {"commits": [{"topic": "t", "consumer": "c", "seqs": 1}]}
    assert api.refused(400, "invalid_request", "POST", "/v0/consumers", body)["detail"]["field"] == "commits[0].seqs"
