"""Health and readiness probes."""

import json
import resource
import socket

import pytest

from tests.conftest import ServerProcess
from tests.contract.api import Api, eventually
from topics import __version__


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_health_of_a_running_server_is_ok(api: Api, path: str):
    body = api.get(path)
    assert (body["status"], body["version"]) == ("ok", __version__)
    assert isinstance(body["uptime_ms"], int)
    assert body["uptime_ms"] >= 0


def test_uptime_increases(api: Api):
    first = api.get("/v0/health")["uptime_ms"]
    eventually(lambda: api.get("/v0/health")["uptime_ms"], lambda later: later > first)


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_ready_answer_counts_topics(start_server, connect, path: str):
    api = connect(start_server())
    body = api.get(path)
    assert (body["status"], body["wal_replay_complete"], body["topics"]) == ("ready", True, 0)
    api.put("a")
    api.write("b", 1)
    assert api.get(path)["topics"] == 2
    api.drop("a")
    assert api.get(path)["topics"] == 1


def test_stopping_server_reports_shutting_down(start_server, connect, topic: str):
    """Send half of a request head, which keeps the connection open at the start of the drain."""
    server: ServerProcess = start_server()
    connect(server).put(topic)
    with half_sent(server, "/v0/ready") as probe, half_sent(server, f"/v0/topics/{topic}") as read:
        server.terminate()
        eventually(server.log, lambda log: '"draining"' in log)
        status, headers, body = finish(probe)
        assert (status, body["error"]["code"]) == (503, "shutting_down")
        assert int(headers["retry-after"]) >= 1
        assert "performance" in body
        assert finish(read)[0] in (200, 503)


def half_sent(server: ServerProcess, path: str) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    sock.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n".encode())
    return sock


def finish(sock: socket.socket) -> tuple[int, dict[str, str], dict[str, object]]:
    """Finish the request head and read until the server closes the connection."""
    sock.sendall(b"connection: close\r\n\r\n")
    answer = b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    status_line, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status_line.split()[1]), headers, json.loads(body)


def test_read_only_server_is_ready_for_reads(start_server, connect, tmp_path):
    server: ServerProcess = start_server(data_dir=tmp_path / "data", wal_file_bytes=65_536)
    api = connect(server)
    api.write("a", 1)
    assert [api.get("/v0/ready", **{"for": purpose})["status"] for purpose in ("read", "write")] == ["ready", "ready"]
    api.refused(400, "invalid_request", "GET", "/v0/ready?for=lunch")

    # The log cannot begin another file, as on a full disk.
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (65_000, resource.RLIM_INFINITY))
    large = {"records": [{"data": "x" * 10_000}]}
    statuses = [api.call("POST", "/v0/topics/a", large).status_code for _ in range(10)]
    assert statuses[-1] == 503
    for path in ("/v0/ready", "/v0/ready?for=write"):
        api.refused(503, "read_only", "GET", path)
    (warning,) = api.get("/v0/ready", **{"for": "read"})["warnings"]
    assert warning.startswith("the log takes no writes: ")
    assert api.read_all("a")[0]["data"] == 1
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    eventually(lambda: api.call("GET", "/v0/ready").status_code, lambda status: status == 200)
    server.kill()  # it has logged an error
