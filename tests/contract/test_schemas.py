"""Schemas of topics: what is refused, what is stored, and how versions follow each other."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect as connect_socket

from tests.conftest import ServerProcess
from tests.contract.api import Api, eventually, succeeded

ORDER = {
    "type": "object",
    "properties": {"sku": {"type": "string"}, "qty": {"type": "integer", "minimum": 1}},
    "required": ["sku"],
}


class Orders:
    """One topic, and what tests ask of it."""

    def __init__(self, api: Api, topic: str) -> None:
        self.api, self.topic, self.path = api, topic, f"/v0/topics/{topic}"

    def put(self, schema: Any = ORDER, **config: Any) -> Any:
        return self.api.put(self.topic, schema=schema, **config)

    def append(self, *data: Any, **fields: Any) -> Any:
        return self.api.write(self.topic, *data, **fields)

    def refused(self, *data: Any, **more: Any) -> Any:
        body = {"records": [{"data": one} for one in data], **more}
        return self.api.refused(400, "schema_violation", "POST", self.path, body)

    def versions(self, **params: Any) -> Any:
        return self.api.get(f"{self.path}/schema", **params)


@pytest.fixture
def orders(disk_api: Api, topic: str) -> Orders:
    return Orders(disk_api, topic)


def test_record_that_does_not_match_is_refused_and_nothing_is_stored(orders: Orders) -> None:
    config = orders.put()["config"]
    assert (config["schema"], config["schema_mode"], config["compatibility"]) == (ORDER, "reject", "backward")
    error = orders.refused({"sku": "a"}, {"sku": "b", "qty": 0})
    assert error["detail"] == {"record": 1, "path": "data.qty", "rule": "properties/qty/minimum"}
    assert "records[1].data.qty" in error["message"]
    assert orders.api.state(orders.topic)["count"] == 0
    assert orders.append({"sku": "a"}, {"sku": "b", "qty": 2})["count"] == 2
    assert orders.refused("no object")["detail"] == {"record": 0, "path": "data", "rule": "type"}


def test_mode_warns_or_is_off(orders: Orders) -> None:
    orders.put(schema_mode="warn")
    answer = orders.append({"qty": 1})
    assert answer["count"] == 1
    assert "records[0].data does not match" in answer["warnings"][0]
    assert "warnings" not in orders.append({"sku": "a"})
    orders.put(schema_mode="off")
    assert "warnings" not in orders.append({"qty": 1})
    orders.put(None, schema_mode="reject")
    assert orders.append(5)["head_seq"] == 4


def test_warning_of_a_refused_write_is_not_that_of_the_next_one(orders: Orders) -> None:
    orders.put(schema_mode="warn", cap_records=1, discard="reject")
    assert "warnings" in orders.append(5)
    orders.api.refused(422, "topic_full", "POST", orders.path, {"records": [{"data": 6}]})
    assert "warnings" not in orders.api.write(f"{orders.topic}.other", 7)


def test_write_that_creates_its_topic_is_checked(orders: Orders) -> None:
    orders.refused({"qty": 1}, config={"schema": ORDER})
    orders.api.refused(404, "topic_not_found", "GET", orders.path)
    assert orders.append({"sku": "a"}, config={"schema": ORDER})["created"]
    orders.refused({"qty": 1})


def test_repeated_write_gets_its_first_answer_under_a_new_schema(orders: Orders) -> None:
    first = orders.append({"qty": 5}, idempotency_key="k")
    orders.put()
    again = orders.append({"qty": 5}, idempotency_key="k")
    assert (again["deduped"], again["seqs"]) == (True, first["seqs"])


@pytest.mark.parametrize(
    ("compatibility", "change", "allowed"),
    [
        ("backward", {"properties": {**ORDER["properties"], "note": {"type": "string"}}}, True),
        ("backward", {"required": []}, True),
        ("backward", {"required": ["sku", "qty"]}, False),
        ("backward", {"properties": {"sku": {"type": "string"}, "qty": {"type": "number"}}}, True),
        ("backward", {"properties": {"sku": {"type": "string", "maxLength": 3}}}, False),
        ("backward", {"additionalProperties": False}, True),
        ("backward", {"additionalProperties": False, "properties": {"sku": {"type": "string"}}}, False),
        ("forward", {"required": ["sku", "qty"]}, True),
        ("forward", {"required": []}, False),
        ("full", {"required": []}, False),
        ("full", {"properties": {**ORDER["properties"], "note": {"type": "string"}}}, True),
        ("none", {"properties": {"sku": {"type": "integer"}}}, True),
    ],
)
def test_only_compatible_changes_are_allowed_unless_forced(
    orders: Orders, compatibility: str, change: dict[str, Any], allowed: bool
) -> None:
    orders.put(compatibility=compatibility)
    new = {"schema": {**ORDER, **change}}
    if not allowed:
        error = orders.api.refused(409, "schema_incompatible", "PUT", orders.path, new)
        assert error["detail"] == {"topic": orders.topic, "version": 1, "compatibility": compatibility}
        assert len(orders.api.state(orders.topic)["config"]["schema_versions"]) == 1
        new["force"] = True  # type: ignore[assignment]
    assert orders.api.put(orders.topic, **new)["config"]["schema"] == new["schema"]
    assert "force" not in orders.api.state(orders.topic)["config"]


def test_versions_are_kept_and_listed(orders: Orders) -> None:
    orders.api.put(orders.topic)
    orders.api.refused(404, "not_found", "GET", f"{orders.path}/schema")
    second = {**ORDER, "required": []}
    orders.put()
    orders.put()  # the same schema is no new version
    orders.put(second)
    seen = orders.versions()
    assert (seen["version"], seen["versions"], seen["active"], seen["schema"]) == (2, 2, True, second)
    old = orders.versions(version=1)
    assert (old["version"], old["active"], old["schema"]) == (1, False, ORDER)
    orders.api.refused(404, "not_found", "GET", f"{orders.path}/schema?version=3")
    orders.put(None)
    assert orders.versions()["active"] is False
    orders.api.refused(409, "schema_incompatible", "PUT", orders.path, {"schema": ORDER})  # compared with the last one
    orders.put(second)
    assert orders.versions()["versions"] == 2


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "objec"}, "schema is no JSON Schema 2020-12"),
        ({"$ref": "http://127.0.0.1:9/x"}, "only references within it"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "only references within it"),
        ({"$ref": "#/$defs/nowhere"}, "schema is no JSON Schema 2020-12"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "only references within it"),
        ({"enum": ["x" * 70_000]}, "more than 65536 bytes"),
        ([], "schema"),
        (True, "schema"),
    ],
)
def test_invalid_schemas_are_refused(orders: Orders, schema: Any, message: str) -> None:
    error = orders.api.refused(400, "invalid_request", "PUT", orders.path, {"schema": schema})
    assert message in error["message"]
    orders.api.refused(404, "topic_not_found", "GET", orders.path)


def test_large_write_is_checked_in_steps(orders: Orders) -> None:
    orders.put()
    records = [{"sku": "x" * 500, "qty": at + 1} for at in range(900)]
    assert orders.append(*records)["count"] == 900
    assert orders.refused(*records[:-1], {"sku": 5})["detail"]["record"] == 899


def test_copies_of_routers_are_not_checked(orders: Orders) -> None:
    orders.put()
    raw = f"{orders.topic}.raw"
    body = {"source": raw, "dest": orders.topic, "from_seq": 0}
    orders.api.put(raw)
    succeeded(orders.api.call("PUT", f"/v0/routers/{orders.topic}", body))
    orders.api.write(raw, "anything")
    eventually(lambda: orders.api.state(orders.topic)["count"], lambda count: count == 1)


def test_jobs_that_a_schema_would_refuse_are_buried_and_redriven(orders: Orders) -> None:
    dead = f"{orders.topic}.dead"
    orders.api.put(dead, type="queue", schema={"type": "integer"})
    orders.api.put(orders.topic, type="queue", max_deliveries=1, dead_letter=dead)
    orders.append({"qty": 1})
    orders.put()
    claimed = succeeded(orders.api.call("POST", f"{orders.path}/claim", {"node": "a"}))
    held = {"node": "a", "seqs": [1], "lease_ids": [claimed["claimed"][0]["lease_id"]], "retry": False}
    succeeded(orders.api.call("POST", f"{orders.path}/nack", held))
    eventually(lambda: orders.api.state(dead)["count"], lambda count: count == 1)
    succeeded(orders.api.call("POST", f"{orders.path}/redrive", {}))
    eventually(lambda: orders.api.state(orders.topic)["queue"]["ready"], lambda ready: ready == 1)


def test_surrogates_and_deep_values_are_checked(orders: Orders) -> None:
    orders.put({"type": "object"})
    orders.api.append_raw(orders.topic, b'{"a":"\\ud800"}')
    orders.refused(json.loads("[" * 400 + "]" * 400))


def test_append_of_the_same_turn_obeys_a_change_before_it(orders: Orders) -> None:
    """Both requests arrive in one packet, so the append is handled while the change waits for its sync."""
    orders.api.put(orders.topic, durability="fsync")
    change = request("PUT", orders.path, {"schema": ORDER})
    write = request("POST", orders.path, {"records": [{"data": {"qty": 1}}]})
    with socket.create_connection((orders.api.http.base_url.host, orders.api.http.base_url.port or 80)) as raw:
        raw.sendall(write + change + write)
        raw.settimeout(30)
        answers = b""
        while answers.count(b'"server_total_ms"') < 3:
            answers += raw.recv(65_536)
    statuses = re.findall(rb"HTTP/1.1 (\d+)", answers)
    assert statuses == [b"200", b"200", b"400"]
    assert b"schema_violation" in answers
    assert orders.api.state(orders.topic)["count"] == 1


def request(method: str, path: str, body: Any) -> bytes:
    text = json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "host: localhost", "content-type: application/json"]
    return "\r\n".join([*head, f"content-length: {len(text)}", "", ""]).encode() + text


def test_schema_survives_a_kill(tmp_path: Path, connect: Callable[[ServerProcess], Api]) -> None:
    first = ServerProcess(tmp_path, {"data_dir": tmp_path / "data"})
    orders = Orders(connect(first), "orders")
    orders.put()
    orders.put({**ORDER, "required": []}, schema_mode="warn")
    first.kill()
    second = ServerProcess(tmp_path, {"data_dir": tmp_path / "data"})
    orders = Orders(connect(second), "orders")
    assert (orders.versions()["versions"], orders.versions()["schema_mode"]) == (2, "warn")
    assert "warnings" in orders.append({"qty": 0})
    second.stop()


def test_publish_over_a_websocket_is_checked(orders: Orders) -> None:
    orders.put(schema_mode="warn")
    address = str(orders.api.http.base_url).replace("http", "ws").rstrip("/") + "/v0/ws"
    with connect_socket(address, proxy=None) as ws:
        publish = {"op": "publish", "topic": orders.topic, "request_id": "1", "records": [{"data": 5}]}
        ws.send(json.dumps(publish))
        answer = json.loads(ws.recv())
        assert "records[0].data does not match" in answer["warnings"][0]
        orders.put(schema_mode="reject")
        ws.send(json.dumps(publish))
        assert json.loads(ws.recv())["code"] == "schema_violation"
    assert orders.api.state(orders.topic)["count"] == 1
