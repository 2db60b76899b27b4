"""Caps on open requests and streams: refused with 429, counted per key, and released when a request or stream ends."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.api import eventually
from tests.security.conftest import Caller, Reply, read_reply, request
from tests.security.test_matrix import SOCKET, STREAM

Start = Callable[..., Caller]


def throttled(reply: Reply, limit: str, most: int) -> None:
    assert reply.status == 429, reply.text
    error = reply.json["error"]
    assert error["code"] == "throttled"
    assert (error["detail"]["limit"], error["detail"]["max"]) == (limit, most)
    assert error["detail"]["retry_after_ms"] == 1000
    assert reply.headers["retry-after"] == "1"


def hold(server: Caller, method: str, path: str, body: Any = None, **options: Any) -> socket.socket:
    """A connection with a request that is not answered yet, or a stream that stays open."""
    sock = server.connect()
    sock.sendall(request(method, path, body, **options))
    return sock


def opened(server: Caller, path: str, *, key: str | None = None, fields: tuple[str, ...] = STREAM) -> socket.socket:
    """An open stream."""
    sock = hold(server, "GET", path, key=key, fields=fields)
    reply, _ = read_reply(sock)
    assert reply.status in (200, 101), reply.text
    return sock


def poll(server: Caller, key: str | None) -> socket.socket:
    return hold(server, "POST", "/v0/topics/t/diff", {"wait_ms": 30_000, "from_seq": 0}, key=key)


def status(server: Caller, key: str | None = None) -> int:
    return server.send("GET", "/v0/topics/t", key=key).status


def test_a_key_has_so_many_requests_under_way_and_another_key_has_its_own(call: Start):
    server = call(api_keys="a,b", max_inflight_per_key=2)
    server.send("PUT", "/v0/topics/t", {}, key="a")
    held = [poll(server, "a") for _ in range(2)]
    eventually(lambda: status(server, "a"), lambda seen: seen == 429)
    throttled(server.send("GET", "/v0/topics/t", key="a"), "max_inflight_per_key", 2)
    throttled(server.send("GET", "/v0/topics", key="a", fields=("x-any: route",)), "max_inflight_per_key", 2)
    assert status(server, "b") == 200
    assert server.send("GET", "/v0/health", key="a").status == 200
    held.pop().close()
    eventually(lambda: status(server, "a"), lambda seen: seen == 200)
    held += [poll(server, "a")]
    eventually(lambda: status(server, "a"), lambda seen: seen == 429)
    server.send("POST", "/v0/topics/t", {"records": [{"data": 1}]}, key="b")  # answers the polls
    for sock in held:
        assert read_reply(sock)[0].status == 200
        sock.close()
    assert status(server, "a") == 200


def test_a_request_counts_while_its_body_is_on_the_way(call: Start):
    server = call(api_keys="a", max_inflight_per_key=1)
    server.send("PUT", "/v0/topics/t", {}, key="a")
    whole = request("POST", "/v0/topics/t", {"records": [{"data": 1}]}, key="a")
    sock = server.connect()
    sock.sendall(whole[:-5])
    eventually(lambda: status(server, "a"), lambda seen: seen == 429)
    sock.sendall(whole[-5:])
    assert read_reply(sock)[0].status == 200
    assert status(server, "a") == 200
    sock.sendall(whole[:-5])
    eventually(lambda: status(server, "a"), lambda seen: seen == 429)
    sock.close()
    eventually(lambda: status(server, "a"), lambda seen: seen == 200)


def test_streams_have_caps_of_their_own_and_do_not_count_as_requests(call: Start):
    server = call(api_keys="a,b,c", max_sse_connections=3, max_sse_connections_per_key=2, max_inflight_per_key=1)
    server.send("PUT", "/v0/topics/t", {"type": "queue"}, key="a")
    work = "/v0/topics/t/work?node=w"
    url = server.send("POST", "/v0/watch", {"topics": {"t": {}}}, key="a").json["stream_url"]
    held = [opened(server, work, key="a"), opened(server, url, key="a")]
    throttled(server.send("GET", work, key="a", fields=STREAM), "max_sse_connections_per_key", 2)
    throttled(server.send("GET", "/v0/ws", key="a", fields=SOCKET), "max_sse_connections_per_key", 2)
    assert status(server, "a") == 200
    held.append(opened(server, "/v0/ws", key="b", fields=SOCKET))
    throttled(server.send("GET", work, key="c", fields=STREAM), "max_sse_connections", 3)
    assert "topics_sse_connections 3" in server.send("GET", "/v0/metrics", key="c").text
    for sock in held:
        sock.close()
    eventually(lambda: server.send("GET", "/v0/metrics", key="c").text, lambda text: "topics_sse_connections 0" in text)
    for _ in range(2):
        opened(server, work, key="a").close()


def test_without_keys_only_the_caps_of_the_whole_server_hold(call: Start):
    server = call(max_sse_connections=2, max_sse_connections_per_key=1, max_inflight_per_key=1)
    server.send("PUT", "/v0/topics/t", {"type": "queue"})
    work = "/v0/topics/t/work?node=w"
    held = [opened(server, work), opened(server, work), poll(server, None), poll(server, None)]
    throttled(server.send("GET", work, fields=STREAM), "max_sse_connections", 2)
    assert status(server) == 200
    for sock in held:
        sock.close()


def test_sessions_are_capped_before_one_is_made(call: Start):
    server = call(max_watch_sessions=2)
    server.send("PUT", "/v0/topics/t", {})
    for _ in range(2):
        assert server.send("POST", "/v0/watch", {"topics": {"t": {}}}).status == 200
    throttled(server.send("POST", "/v0/watch", {"topics": {"t": {}}}), "max_watch_sessions", 2)


def test_a_cap_of_0_is_none(call: Start):
    caps = ("max_topics", "max_routers", "max_watch_sessions", "max_sse_connections", "max_sse_connections_per_key")
    server = call(api_keys="a", **dict.fromkeys((*caps, "max_inflight_per_key", "max_total_bytes"), 0))
    server.send("PUT", "/v0/topics/t", {"type": "queue"}, key="a")
    held = [poll(server, "a") for _ in range(3)]
    held += [opened(server, "/v0/topics/t/work?node=w", key="a") for _ in range(3)]
    assert server.send("POST", "/v0/watch", {"topics": {"t": {}}}, key="a").status == 200
    assert status(server, "a") == 200
    for sock in held:
        sock.close()


@pytest.mark.parametrize("wait", [True, False], ids=["reset while waiting", "reset at once"])
def test_connections_that_are_reset_leave_nothing_behind(call: Start, wait: bool):
    server = call(api_keys="a,b", max_inflight_per_key=50, max_sse_connections=50)
    server.send("PUT", "/v0/topics/t", {"type": "queue"}, key="a")
    kinds = [
        request("POST", "/v0/topics/t/diff", {"wait_ms": 30_000}, key="a"),
        request("POST", "/v0/topics/t/claim", {"node": "w", "wait_ms": 30_000}, key="a"),
        request("GET", "/v0/topics/t/work?node=w", key="a", fields=STREAM),
        request("GET", "/v0/ws", key="a", fields=SOCKET),
        request("POST", "/v0/topics/t", {"records": [{"data": 1}]}, key="a")[:-3],
    ]
    for _ in range(40):
        socks = []
        for kind in kinds:
            sock = server.connect()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close means reset
            sock.sendall(kind)
            socks.append(sock)
        if wait:
            assert server.send("GET", "/v0/topics/t", key="b").status == 200
        for sock in socks:
            sock.close()
    eventually(lambda: server.send("GET", "/v0/metrics", key="b").text, lambda text: "topics_sse_connections 0" in text)
    held = [poll(server, "a") for _ in range(49)]
    eventually(lambda: status(server, "a"), lambda seen: seen == 200)
    for sock in held:
        sock.close()
