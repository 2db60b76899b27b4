"""Requests while a real server replays its log: only probes are answered, and no request changes data."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ServerProcess
from tests.contract.api import Api, eventually, now_ms
from tests.contract.test_metrics import Scrape
from tests.faults.written import killed
from topics.engine.queue.verbs import Want
from topics.server.api.route import Route
from topics.server.api.route_table import ROUTES

HELD_START = str(Path(__file__).with_name("held_start.py"))
# Everything that is answered before the end of recovery.
EARLY = {
    "/v0/health", "/healthz", "/v0/metrics", "/metrics", "/v0/openapi.json", "/client.js", "/client.d.ts", "/",
    "/console",
    "/console/{file}", "/console/parts/{file}", "/console/pages/{file}",
}  # fmt: skip
PARTS = {
    "{schedule}": "s", "{key}": "k", "{topic}": "t", "{consumer}": "c", "{router}": "r",
    "{wid}": "wid_AAAAAAAAAAAAAAAAAAAAAA",
    "parts/{file}": "parts/dom.js", "pages/{file}": "pages/topics.js", "{file}": "app.js",
}  # fmt: skip
SOCKET = {
    "connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}  # fmt: skip


class HeldServer:
    """A server whose recovery waits in the middle of its log."""

    def __init__(self, directory: Path, data: Path, *, hold_at: float = 0.5, **settings: object) -> None:
        self._go = directory / "go"
        variables = {"HOLD_AT": str(hold_at), "HOLD_UNTIL": str(self._go)}
        self.process = ServerProcess(
            directory,
            {"data_dir": data, **settings},
            wait_ready=False,
            program=(HELD_START,),
            variables=variables,
        )
        self.api = Api(self.process.url)
        eventually(self.progress, lambda share: share >= hold_at)

    def progress(self) -> float:
        error = self.api.refused(503, "not_ready", "GET", "/v0/ready")
        share: float = error["detail"]["replay_progress"]
        return share

    def resume(self) -> None:
        self._go.touch()
        self.process.wait_ready()

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.process.port, timeout=20)
        sent = None if body is None else json.dumps(body).encode()
        if sent is not None:
            headers = {"content-type": "application/json"} | (headers or {})
        try:
            connection.request(method, path, sent, headers or {})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()


@contextlib.contextmanager
def held(directory: Path, data: Path, **options: Any) -> Iterator[HeldServer]:
    server = HeldServer(directory, data, **options)
    try:
        yield server
        server.api.close()
        server.process.stop()
    finally:
        server.api.close()
        if server.process.process.poll() is None:
            server.process.kill()


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[HeldServer]:
    """A server that has replayed half of its log and waits."""
    with killed(tmp_path / "data", now_ms=now_ms()) as writer:
        writer.put("t")
        writer.pad("t", 20)
    with held(tmp_path / "server", tmp_path / "data", cors_origins="https://page.example") as server:
        yield server


def path_of(route: Route) -> str:
    path = route.path
    for part, value in PARTS.items():
        path = path.replace(part, value)
    assert "{" not in path, f"{route.path}: the test has no value for a part"
    return path


@pytest.mark.parametrize("method", [None, "HEAD", "OPTIONS"])
def test_only_probes_are_answered_during_recovery(starting: HeldServer, method: str | None) -> None:
    answered = set()
    for route in ROUTES:
        if method == "HEAD" and route.method != "GET":
            continue
        asked = method or route.method
        status, headers, body = starting.ask(asked, path_of(route))
        if status == 200:
            answered.add(route.path)
        elif asked == "OPTIONS":
            assert status == 405, route.path
        else:
            assert status == 503, (route.path, status, body)
            assert int(headers["retry-after"]) >= 1
        if status == 503 and body:
            assert json.loads(body)["error"]["code"] == "not_ready"
    assert answered == (set() if method == "OPTIONS" else EARLY)


def test_streams_and_sockets_are_refused_during_recovery(starting: HeldServer) -> None:
    events = {"accept": "text/event-stream"}
    for path in (path_of(route) for route in ROUTES if route.stream):
        status, _, body = starting.ask("GET", f"{path}?node=w", headers=SOCKET if path == "/v0/ws" else events)
        assert (status, json.loads(body)["error"]["code"]) == (503, "not_ready"), path
    record = {"records": [{"data": 1}]}
    assert starting.ask("POST", "/v0/topics/new", record)[0] == 503
    starting.resume()
    assert starting.api.get("/v0/ready")["topics"] == 1


def test_preflight_is_answered_during_recovery(starting: HeldServer) -> None:
    preflight = {"origin": "https://page.example", "access-control-request-method": "POST"}
    status, headers, _ = starting.ask("OPTIONS", "/v0/topics/t", headers=preflight)
    assert (status, headers["access-control-allow-origin"]) == (204, "https://page.example")


def test_metrics_during_recovery_report_the_process_only(starting: HeldServer) -> None:
    early = Scrape(starting.api)
    assert early["topics_ready"] == 0
    assert 0.5 <= early["topics_recovery_progress"] < 1
    assert not [name for name, _ in early.samples if name.startswith("topics_topic")]
    starting.resume()
    late = Scrape(starting.api)
    assert (late["topics_ready"], late["topics_recovery_progress"], late["topics_topics"]) == (1, 1, 1)
    assert early.types.items() <= late.types.items()


def test_stop_during_recovery_does_not_wait_for_its_end(starting: HeldServer) -> None:
    starting.process.terminate()
    assert starting.process.process.wait(10) == 0
    starting.process.stop()


def test_keys_are_required_during_recovery(tmp_path: Path) -> None:
    with killed(tmp_path / "data", now_ms=now_ms()) as writer:
        writer.pad("t", 20)
    with held(tmp_path / "server", tmp_path / "data", api_keys="k:read") as server:
        key = {"authorization": "Bearer k"}
        assert [server.ask("GET", "/v0/metrics", headers=sent)[0] for sent in ({}, key)] == [401, 200]
        assert [server.ask("GET", "/v0/topics", headers=sent)[0] for sent in ({}, key)] == [401, 503]
        server.resume()


# --- what requests did to the state that was being recovered


def test_scrape_during_replay_expires_no_record(tmp_path: Path) -> None:
    """The records survive because a later entry of the log removes the TTL."""
    with killed(tmp_path / "data", now_ms=now_ms() - 20_000) as writer:
        writer.put("t", durability="fsync", ttl_ms=9_000)
        writer.append("t", *map(str, range(100)))
        writer.pad("other", 200)
        writer.clock.advance(ms=6_000)
        writer.put("t", ttl_ms=0)
    with held(tmp_path / "server", tmp_path / "data") as server:
        send_probes(server)
        server.resume()
        answer = server.api.diff("t", limit=1000)
        assert answer["tombstone"] is None
        assert [record["data"] for record in answer["records"]] == list(range(100))


def test_scrape_during_replay_keeps_an_extended_lease(tmp_path: Path) -> None:
    with killed(tmp_path / "data", now_ms=now_ms() - 20_000) as writer:
        engine = writer.engine
        writer.put("q", type="queue", durability="fsync", leases_durable=True)
        writer.append("q", "1")
        topic = engine.queues.get("q")
        [claimed], ticket = engine.queues.claim(topic, [Want(node="w", max=1, lease_ms=5_000)])
        assert ticket is not None
        writer.done(ticket)
        [job] = claimed.jobs
        writer.pad("other", 50)
        writer.clock.advance(ms=4_000)
        writer.done(engine.queues.extend(topic, "w", [job.seq], None, lease_ms=3_600_000))
    with held(tmp_path / "server", tmp_path / "data") as server:
        send_probes(server)
        server.resume()
        assert server.api.state("q")["queue"]["in_flight"] == 1
        acked: Any = server.api.call("POST", "/v0/topics/q/ack", {"node": "w", "seqs": [job.seq]}).json()
        assert (acked["acked"], acked["skipped"]) == (1, [])


def test_scrapes_during_the_whole_replay_do_not_stop_the_start(tmp_path: Path) -> None:
    """The start does not wait: scrapes and replay run concurrently at full speed."""
    names = [f"t{number}" for number in range(20)]
    with killed(tmp_path / "data", now_ms=now_ms() - 60_000) as writer:
        for name in names:
            writer.put(name, ttl_ms=1_000)
        for number in range(500):
            for name in names:
                writer.append(name, str(number))
            writer.clock.advance(ms=10)
    server = ServerProcess(tmp_path / "server", {"data_dir": tmp_path / "data"}, wait_ready=False)
    early = threading.Thread(target=scrape_until_ready, args=(server.port,))
    early.start()
    server.wait_ready()
    early.join(30)
    with contextlib.closing(Api(server.url)) as api:
        assert {api.state(name)["head_seq"] for name in names} == {500}
    server.stop()


def send_probes(server: HeldServer) -> None:
    """Send the requests of a monitoring system and of a client during recovery."""
    assert server.ask("GET", "/v0/metrics")[0] == 200
    assert server.ask("GET", "/v0/topics")[0] == 503
    assert server.ask("GET", "/v0/topics/t")[0] == 503


def scrape_until_ready(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        while True:
            connection.request("GET", "/v0/metrics", headers={"accept": "application/json"})
            if json.loads(connection.getresponse().read())["topics_ready"]:
                return
