"""The configurations of nginx and Caddy for several servers, with the real proxies (docs/sizing.md)."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.conftest import WAIT_S, ServerProcess
from tests.docs.blocks import blocks_of

PAGE = Path(__file__).parents[2] / "docs" / "sizing.md"
WAIT_MS = 20_000
PROXIES = [
    pytest.param(
        name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed (Debian: {name})")
    )
    for name in ("nginx", "caddy")
]


def config(proxy: str, *, of_replicas: bool, ports: list[int], listen: int) -> str:
    """Return the configuration of the page for these ports."""
    language = {"nginx": "nginx", "caddy": "caddyfile"}[proxy]
    found = [block.text for block in blocks_of(PAGE.read_text()) if block.language == language]
    assert len(found) == 2, f"{PAGE} has {len(found)} configurations of {proxy}"
    text = found[of_replicas]
    for number, port in enumerate(ports):
        assert f"127.0.0.1:{4000 + number}" in text
        text = text.replace(f"127.0.0.1:{4000 + number}", f"127.0.0.1:{port}")
    if proxy == "caddy":
        assert text.startswith("example.com {")
        text = text.replace("example.com", f"http://127.0.0.1:{listen}", 1)
        return f"{{\n\tadmin off\n\tauto_https off\n}}\n{text}"
    assert "listen 80;" in text
    text = text.replace("listen 80;", f"listen 127.0.0.1:{listen};")
    paths = "".join(f"{name}_temp_path {name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return (
        "daemon off; master_process off; pid nginx.pid; error_log error.log;"
        f"events {{}}\nhttp {{ access_log off; {paths}\n{text}}}"
    )


@contextmanager
def running(proxy: str, directory: Path, *, of_replicas: bool, ports: list[int]) -> Iterator[int]:
    """Run the proxy and yield its port."""
    directory.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        listen = probe.getsockname()[1]
    path = directory / "config"
    path.write_text(config(proxy, of_replicas=of_replicas, ports=ports, listen=listen))
    command = {
        "nginx": ["nginx", "-p", str(directory), "-e", "error.log", "-c", str(path)],
        "caddy": ["caddy", "run", "--config", str(path), "--adapter", "caddyfile"],
    }[proxy]
    home = {"HOME": str(directory), "XDG_DATA_HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, env=os.environ | home, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + WAIT_S
        while True:
            assert process.poll() is None, (directory / "log").read_text()
            try:
                socket.create_connection(("127.0.0.1", listen)).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        yield listen
    finally:
        process.kill()  # an orderly end waits for open streams
        process.wait(WAIT_S)


def ask(port: int, method: str, path: str, body: object = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2 * WAIT_S)
    try:
        connection.request(method, f"/v0/{path}", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def append(port: int, topic: str, data: object) -> None:
    status, answer = ask(port, "POST", f"topics/{topic}", {"records": [{"data": data}]})
    assert status in (200, 201), answer


def heads(port: int) -> dict[str, int]:
    return {row["topic"]: row["head_seq"] for row in ask(port, "GET", "topics?page_size=1000")[1]["topics"]}


def check_nothing_is_held_back(port: int, writes: int, topic: str) -> None:
    """A stream, a WebSocket and a long poll through the proxy get a record while they wait."""
    status, session = ask(port, "POST", "watch", {"topics": {topic: {"tail": True}}})
    assert status in (200, 201), session
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request("GET", session["stream_url"], headers={"accept": "text/event-stream"})
    stream = connection.getresponse()
    assert stream.status == 200
    head = ask(port, "POST", f"topics/{topic}/diff", {"from_seq": 0})[1]["head_seq"]
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        poll = pool.submit(ask, port, "POST", f"topics/{topic}/diff", {"from_seq": head, "wait_ms": WAIT_MS})
        append(writes, topic, "streamed")
        assert [row["data"] for row in poll.result()[1]["records"]] == ["streamed"]
        assert time.monotonic() - began < WAIT_MS / 1000
    while b"streamed" not in (line := stream.readline()):
        assert line, "the stream has ended"
    connection.close()

    async def socket_gets_a_record() -> None:
        async with asyncio.timeout(WAIT_S), connect(f"ws://127.0.0.1:{port}/v0/ws") as ws:
            await ws.send(json.dumps({"op": "subscribe", "topics": {topic: {"tail": True}}}))
            assert json.loads(await ws.recv())["op"] == "subscribed"
            await asyncio.to_thread(append, writes, topic, "over a socket")
            while b"over a socket" not in (text := await ws.recv(decode=False)):
                assert text

    asyncio.run(socket_gets_a_record())


@pytest.mark.parametrize("proxy", PROXIES)
def test_proxy_maps_prefixes_to_servers(proxy: str, tmp_path: Path) -> None:
    servers = [ServerProcess(tmp_path / name, {"data_dir": tmp_path / name / "data"}) for name in ("eu", "us")]
    try:
        ports = [server.port for server in servers]
        with running(proxy, tmp_path / proxy, of_replicas=False, ports=ports) as port:
            for topic in ("eu.orders", "us.orders", "europe"):
                append(port, topic, 1)
            assert ask(port, "PUT", "routers/eu.copy", {"source": "eu.orders", "dest": "eu.copied"})[0] == 201
            assert heads(ports[0]).keys() == {"eu.orders", "eu.copied"}
            assert heads(ports[1]).keys() == {"us.orders", "europe"}
            assert ask(port, "POST", "topics/eu.orders/diff", {"from_seq": 0})[1]["records"][0]["data"] == 1
            check_nothing_is_held_back(port, port, "us.orders")
    finally:
        for server in servers:
            server.kill()


@pytest.mark.parametrize("proxy", PROXIES)
def test_proxy_spreads_reads_over_replicas(proxy: str, tmp_path: Path) -> None:
    common = {"replica": f"file://{tmp_path}/replica", "replica_interval_ms": 200, "checkpoint_interval_ms": 300}
    servers = [ServerProcess(tmp_path / "writer", {"data_dir": tmp_path / "writer" / "data", **common})]
    try:
        append(servers[0].port, "orders", 1)
        for name in ("one", "two"):
            settings = {"data_dir": tmp_path / name / "data", "standby": "true", "no_takeover": "true", **common}
            servers.append(ServerProcess(tmp_path / name, settings))
        writer, *replicas = ports = [server.port for server in servers]
        with running(proxy, tmp_path / proxy, of_replicas=True, ports=ports) as port:
            append(port, "orders", 2)
            assert heads(writer) == {"orders": 2}
            for replica in replicas:
                deadline = time.monotonic() + WAIT_S
                while heads(replica) != {"orders": 2}:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            check_nothing_is_held_back(port, port, "orders")
            asked = [requests_of(replica, "/v0/topics/{topic}/diff") for replica in replicas]
            assert sum(asked) >= 2
            assert requests_of(writer, "/v0/topics/{topic}/diff") == 0
    finally:
        for server in servers:
            server.kill()


def requests_of(port: int, route: str) -> int:
    """Return how many requests of a route a server has answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request("GET", "/v0/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    name = "topics_http_request_duration_seconds_count"
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(name) and f'route="{route}"' in line)
