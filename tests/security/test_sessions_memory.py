"""Watch sessions and the memory budget: what a session may name, what it holds, and when that is given back."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.conftest import ServerProcess, StartServer
from tests.contract.api import Api, eventually
from tests.live.inside import Inside
from topics.model.records import MAX_NODES

PAGE_BYTES = 4096
TOPICS = 256


def resident_bytes(server: ServerProcess) -> int:
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * PAGE_BYTES


def charged(api: Api, account: str) -> int:
    found = api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json()
    size: int = found["topics_memory_charged_bytes"][account]
    return size


def make_topics(api: Api) -> dict[str, object]:
    for n in range(TOPICS):
        api.put(f"t{n}")
    return {f"t{n}": {} for n in range(TOPICS)}


@pytest.fixture
def inside() -> Iterator[Callable[..., Api]]:
    """Servers with settings of their own, in threads of this process."""
    with ExitStack() as stack:

        def start(**settings: object) -> Api:
            server = Inside(**settings)
            stack.callback(server.stop)
            api = Api(server.url)
            stack.callback(api.close)
            return api

        yield start


@pytest.mark.parametrize("path", ["/v0/watch", "/v0/topics/t0/diff", "/v0/topics/t0/scan"])
def test_more_node_names_than_the_limit_are_refused(inside: Callable[..., Api], path: str):
    api = inside()
    api.put("t0")
    topics = {"topics": {"t0": {}}} if path == "/v0/watch" else {}
    error = api.refused(400, "invalid_request", "POST", path, topics | {"node": ["n"] * (MAX_NODES + 1)})
    assert error["detail"]["field"] == "node"
    assert str(MAX_NODES) in error["message"]
    assert api.http.post(path, json=topics | {"node": ["n"] * MAX_NODES}).is_success


def test_node_names_of_a_session_are_held_once(start_server: StartServer):
    server = start_server()
    api = Api(server.url)
    body = {"topics": make_topics(api), "node": [f"node-{n:04}" for n in range(MAX_NODES)]}
    api.call("POST", "/v0/watch", body)
    before = resident_bytes(server)
    for _ in range(30):
        assert api.call("POST", "/v0/watch", body).is_success
    assert resident_bytes(server) - before < 24 << 20
    api.close()


def test_sessions_are_charged_to_the_budget_until_they_expire(inside: Callable[..., Api]):
    api = inside(memory_budget_bytes=1 << 20, session_ttl_ms=1000)
    body = {"topics": make_topics(api), "node": [f"node-{n:04}" for n in range(MAX_NODES)]}
    made = 0
    while (answer := api.call("POST", "/v0/watch", body)).is_success:
        made += 1
        assert made < 20
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (429, "throttled")
    assert (error["detail"]["limit"], error["detail"]["max"]) == ("memory_budget_bytes", 1 << 20)
    assert answer.headers["retry-after"] == "1"
    assert made >= 2
    assert 1 << 19 < charged(api, "sessions") <= 1 << 20
    eventually(lambda: charged(api, "sessions"), lambda size: size == 0)
    assert api.call("POST", "/v0/watch", body).is_success


def test_a_session_with_long_filters_is_charged_for_them(inside: Callable[..., Api]):
    api = inside(memory_budget_bytes=1 << 20)
    api.put("t0")
    api.put("t1")
    filters = {topic: {"filter": "x" * 15_000} for topic in ("t0", "t1")}
    assert api.call("POST", "/v0/watch", {"topics": filters}).is_success
    assert charged(api, "sessions") > 30_000


def test_sessions_expire_without_another_request_for_one(inside: Callable[..., Api]):
    api = inside(session_ttl_ms=100)
    api.put("t0")
    api.call("POST", "/v0/watch", {"topics": {"t0": {}}})
    deadline = time.monotonic() + 10
    while api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json()["topics_watch_sessions"]:
        assert time.monotonic() < deadline


def test_subscriptions_of_a_websocket_are_charged_until_it_closes(inside: Callable[..., Api]):
    api = inside(memory_budget_bytes=1 << 20)
    make_topics(api)
    address = str(api.http.base_url).replace("http://", "ws://").rstrip("/") + "/v0/ws"
    with connect(address, compression=None, proxy=None) as socket:

        def call(**command: object) -> Any:
            socket.send(json.dumps(command | {"request_id": "r"}))
            while (answer := json.loads(socket.recv(10))).get("request_id") != "r":
                pass
            return answer

        names = [f"node-{n:04}" for n in range(MAX_NODES)]
        for n in range(TOPICS):
            answer = call(op="subscribe", topic=f"t{n}", node=names)
            if answer["op"] == "error":
                break
        assert (answer["code"], answer["detail"]["limit"]) == ("throttled", "memory_budget_bytes")
        assert n < 100, "each subscribe keeps names of its own, although they are the same"
        held = charged(api, "sessions")
        assert 1 << 19 < held <= 1 << 20
        for gone in range(n):
            call(op="unsubscribe", topic=f"t{gone}")
        assert charged(api, "sessions") < 8192
    eventually(lambda: charged(api, "sessions"), lambda size: size == 0)
