"""The request log of a real server: every request at level debug, slow ones at level info, never a secret."""

import http.client
import json
import logging
import socket
import sys
import time
from typing import Any

import pytest

from tests.conftest import ServerProcess
from tests.contract.api import Api, Background, eventually
from topics.server.http.messages import Request, Response
from topics.server.http.request_log import RequestLog, shown_path


def lines(server: ServerProcess, event: str) -> list[Any]:
    entries = [json.loads(line) for line in server.log().splitlines()]
    return [entry for entry in entries if entry["event"] == event]


def logged(server: ServerProcess, event: str, path: str) -> list[Any]:
    """Return the lines about a path, once there is one: the line is written after the answer."""
    return eventually(lambda: [line for line in lines(server, event) if line["path"].startswith(path)], bool)


def raw(server: ServerProcess, *pieces: bytes, pause_s: float = 0) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        for at, piece in enumerate(pieces):
            if at:
                time.sleep(pause_s)
            sock.sendall(piece)
        return sock.recv(1 << 16)


# --- level debug


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    settings = {"log_level": "debug", "api_keys": "s3cret-key:read+write+admin+delete"}
    server = ServerProcess(tmp_path_factory.mktemp("requests"), settings)
    yield server
    server.stop()


@pytest.fixture
def api(server: ServerProcess) -> Any:
    api = Api(server.url)
    api.http.headers["authorization"] = "Bearer s3cret-key"
    yield api
    api.close()


def test_every_request_is_logged_with_status_size_and_time(server: ServerProcess, api: Api):
    answers = [api.call("POST", "/v0/topics/sizes", {"records": [{"data": 1}]}) for _ in range(3)]
    answers.append(api.call("POST", "/v0/topics/sizes/diff", {}))
    eventually(lambda: logged(server, "request", "/v0/topics/sizes"), lambda found: len(found) == len(answers))
    for line, answer in zip(logged(server, "request", "/v0/topics/sizes"), answers, strict=True):
        assert line["level"] == "debug"
        assert (line["method"], line["path"]) == ("POST", answer.request.url.path)
        assert (line["status"], line["bytes"]) == (answer.status_code, len(answer.content))
        assert line["ms"] >= answer.json()["performance"]["server_total_ms"]


def test_refused_requests_are_logged(server: ServerProcess, api: Api):
    api.call("GET", "/v0/nowhere")
    [line] = logged(server, "request", "/v0/nowhere")
    assert line["status"] == 404
    head = b"POST /v0/topics/stranger HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n"
    assert raw(server, head, b"{}   ").startswith(b"HTTP/1.1 401 ")
    [line] = logged(server, "request", "/v0/topics/stranger")
    assert line["status"] == 401
    assert raw(server, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    eventually(lambda: [line for line in lines(server, "request") if line["status"] == 400], bool)


def test_key_in_the_query_is_not_logged(server: ServerProcess, api: Api):
    api.put("jobs", type="queue")
    for at, name in enumerate(("token", "tok%65n", "TOKEN")):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request("GET", f"/v0/topics/jobs/work?node=w{at}&{name}=s3cret-key", headers={"accept": "*/*"})
        assert connection.getresponse().status == (401 if name == "TOKEN" else 200)
        connection.close()
        [line] = logged(server, "request", f"/v0/topics/jobs/work?node=w{at}&")
        assert line["path"].lower().endswith("&token=[hidden]")
    assert "s3cret" not in server.log()


def test_long_poll_reports_for_how_long_it_waited(server: ServerProcess, api: Api):
    api.put("polled")
    api.diff("polled", wait_ms=300)
    [line] = logged(server, "request", "/v0/topics/polled/diff")
    assert 290 <= line["waited_ms"] <= line["ms"]


def test_time_for_which_a_body_is_on_its_way_counts_as_waiting(server: ServerProcess, api: Api):
    body = b'{"records":[{"data":1}]}'
    head = b"POST /v0/topics/uploaded HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nconnection: close\r\n"
    head += b"authorization: Bearer s3cret-key\r\ncontent-length: %d\r\n\r\n" % len(body)
    raw(server, head, body, pause_s=0.2)
    [line] = logged(server, "request", "/v0/topics/uploaded")
    assert 190 <= line["waited_ms"] <= line["ms"]


# --- level info


def test_slow_request_is_logged_and_a_long_poll_is_not(start_server):
    server = start_server(slow_request_ms=2)
    api = Api(server.url)
    api.put("jobs", type="queue")
    api.put("polled")
    api.diff("polled", wait_ms=100)
    assert api.call("POST", "/v0/topics/jobs/claim", {"node": "w", "wait_ms": 100}).is_success
    woken = Background(lambda: api.diff("polled", wait_ms=20_000))
    eventually(lambda: api.state("polled", touch=False)["last_read_ts"], lambda ts: ts is not None)
    api.write("polled", 1)
    woken.result()
    api.append("heavy", [{"data": "x" * 100, "tag": str(n)} for n in range(10_000)])
    [line] = logged(server, "slow_request", "/v0/topics/heavy")
    assert (line["level"], line["method"], line["status"]) == ("info", "POST", 201)
    assert line["ms"] - line.get("waited_ms", 0) > 2
    for slow in lines(server, "slow_request"):  # of a busy machine; its waiting time never counts
        assert slow["ms"] - slow.get("waited_ms", 0) > 2
        assert slow.get("waited_ms", 0) >= 90 or not slow["path"].endswith(("/diff", "/claim"))
    assert lines(server, "request") == []
    api.close()


@pytest.mark.parametrize("settings", [{"slow_request_ms": 0}, {"slow_request_ms": 1, "log_level": "warning"}])
def test_slow_request_log_can_be_turned_off(start_server, settings: dict[str, Any]):
    server = start_server(**settings)
    api = Api(server.url)
    api.append("heavy", [{"data": "x" * 100, "tag": str(n)} for n in range(10_000)])
    api.close()
    server.stop()
    assert lines(server, "slow_request") == []


# --- without a server


def answered(caplog: pytest.LogCaptureFixture, took_ms: int, waited_ms: int, **options: Any) -> list[str]:
    request = Request("GET", b"/", b"", {}, b"", "", time.perf_counter_ns() - took_ms * 1_000_000)
    request.waited_ns = waited_ms * 1_000_000
    with caplog.at_level(logging.DEBUG, "topics.http"):
        RequestLog(**options).note(request, Response(200))
    return [record.message for record in caplog.records]


@pytest.mark.parametrize(
    ("took_ms", "waited_ms", "events"),
    [(50_000, 0, ["slow_request"]), (50_000, 49_900, []), (50_000, 10_000, ["slow_request"]), (10, 0, [])],
)
def test_waiting_time_does_not_make_a_request_slow(caplog, took_ms: int, waited_ms: int, events: list[str]):
    assert answered(caplog, took_ms, waited_ms, slow_ms=1000) == events


def test_log_that_is_off_asks_for_no_answers():
    assert RequestLog().noted_ns == sys.maxsize
    assert RequestLog(slow_ms=1000).noted_ns == 1_000_000_000
    assert RequestLog(every=True, slow_ms=1000).noted_ns == 1


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        (b"", "/v0/a%20b"),
        (b"prefix=a&touch=true", "/v0/a%20b?prefix=a&touch=true"),
        (b"token=abc&x=", "/v0/a%20b?token=[hidden]&x="),
        (b"%74oken=abc", "/v0/a%20b?token=[hidden]"),
        (b"x=%ff&token=abc", "/v0/a%20b?[hidden]"),
        (b"&".join(b"a=1" for _ in range(200)), "/v0/a%20b?[hidden]"),
        (b"x=%0a%1b[31m", "/v0/a%20b?x=%0A%1B%5B31m"),
    ],
)
def test_shown_path_has_no_key(query: bytes, shown: str):
    assert shown_path(Request("GET", b"/v0/a%20b", query, {}, b"", "", 0)) == shown


def test_requests_are_counted_by_route_and_status(api: Api):
    def counted() -> dict[str, float]:
        rows = api.http.get("/v0/metrics", headers={"accept": "application/json"}).json()
        return {name: row["count"] for name, row in rows["topics_http_request_duration_seconds"].items()}

    before = counted()
    api.http.post("/v0/topics/timed", json={"records": [{"data": 1}]})
    api.http.post("/v0/topics/timed/diff", json={"from_seq": 1, "wait_ms": 300})
    api.http.get("/v0/topics/absent-at-all")
    api.http.get("/v0/no/such/path")
    api.http.request("GET", "/v0/topics/timed", content=iter([b""]))  # chunked: not on the fast path
    grown = {name: count - before.get(name, 0) for name, count in counted().items() if count != before.get(name, 0)}
    assert grown.pop("GET /v0/metrics 200") == 1
    assert grown == {
        "POST /v0/topics/{topic} 201": 1, "POST /v0/topics/{topic}/diff 200": 1, "GET /v0/topics/{topic} 404": 1,
        "GET /v0/topics/{topic} 200": 1, " (none) 404": 1,
    }  # fmt: skip
