"""Descriptors: files keep theirs, idle connections give way, and connections past the cap are refused clearly."""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.conftest import SMALL_PARTS, ServerProcess, StartServer
from tests.contract.api import Api, eventually
from tests.live.events import wait_for
from tests.security.conftest import Reply, read_reply, request

WAIT_S = 10
CERTS = Path(__file__).parents[1] / "server/http/certs"
SMALL_FILES = 64 + 600 // 8  # descriptors that are reserved for files
TLS = {"tls_cert": CERTS / "one.pem", "tls_key": CERTS / "one.key"}
TLS_BYTES = 64 << 10  # what a connection with TLS is charged


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class TlsClient:
    """A client with one connection."""

    def __init__(self, server: ServerProcess, stack: ExitStack) -> None:
        trust = ssl.create_default_context(cafile=CERTS / "one.pem")
        self._sock = stack.enter_context(trust.wrap_socket(connect(server, stack), server_hostname="localhost"))

    def send(self, method: str, path: str, body: object = None) -> Reply:
        self._sock.sendall(request(method, path, body, fields=("accept: application/json",)))
        return read_reply(self._sock)[0]


def connect(server: ServerProcess, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S))


def ask(server: ServerProcess, method: str, path: str, body: object = None) -> Reply | None:
    """The answer on a connection of its own; None if the server reset it."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as sock, suppress(ConnectionError):
        sock.sendall(request(method, path, body))
        return read_reply(sock)[0]
    return None


def served(server: ServerProcess, method: str, path: str, body: object = None) -> Reply:
    """The first answer that is not a refusal for want of connections."""
    reply = eventually(lambda: ask(server, method, path, body), lambda reply: reply is not None and reply.status != 429)
    assert reply is not None
    return reply


def is_open(sock: socket.socket) -> bool:
    """Whether the server has neither closed nor refused this connection."""
    sock.setblocking(False)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK)) and False
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def files_of(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def test_idle_connections_leave_descriptors_for_files(start_server: StartServer, tmp_path: Path, stack: ExitStack):
    server = start_server(ulimit="-n 300", data_dir=tmp_path / "data", **SMALL_PARTS)
    api = Api(server.url)
    stack.callback(api.close)
    for n in range(12):
        for _ in range(10):
            api.write(f"t{n}", *(["x" * 300] * 16))
    api.close()
    idle = [connect(server, stack) for _ in range(350)]
    for n in range(12):
        written = served(server, "POST", f"/v0/topics/t{n}", {"records": [{"data": 1}]})
        assert written.status == 200, written.text
        cursor = 0
        while cursor < 160:
            read = served(server, "POST", f"/v0/topics/t{n}/diff", {"from_seq": cursor})
            assert read.status == 200, read.text
            cursor = read.json["next_from_seq"]
    assert files_of(server) < 300
    assert 100 < sum(map(is_open, idle)) < 300


def test_a_connection_past_the_cap_sheds_one_that_is_idle(start_server: StartServer, stack: ExitStack):
    server = start_server(max_connections=4)
    idle = [connect(server, stack) for _ in range(4)]
    idle[0].sendall(request("GET", "/v0/health"))
    assert read_reply(idle[0])[0].status == 200
    assert served(server, "GET", "/v0/health").status == 200
    wait_for(lambda: sum(map(is_open, idle)) < 4)  # the client may see the answer before the end of the other one
    assert sum(map(is_open, idle)) == 3, "no more are shed than are needed"


def test_busy_connections_are_never_shed_and_new_ones_are_refused(start_server: StartServer, stack: ExitStack):
    server = start_server(max_connections=3)
    busy = [connect(server, stack) for _ in range(3)]
    busy[0].sendall(request("PUT", "/v0/topics/q", {"type": "queue"}))
    assert read_reply(busy[0])[0].status == 201
    busy[0].sendall(request("POST", "/v0/topics/q/diff", {"wait_ms": 30_000}))
    busy[1].sendall(request("POST", "/v0/topics/q", {"records": [{"data": 1}]})[:-3])
    busy[2].sendall(request("GET", "/v0/topics/q/work?node=w", fields=("accept: text/event-stream",)))
    read_reply(busy[2])
    refused = eventually(lambda: ask(server, "GET", "/v0/health"), lambda reply: reply is not None)
    for _ in range(3):
        refused = ask(server, "GET", "/v0/health")
        assert refused is not None
        assert refused.status == 429
    error = refused.json["error"]
    assert (error["code"], error["detail"]["limit"], error["detail"]["max"]) == ("throttled", "max_connections", 3)
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["connection"] == "close"
    busy[1].sendall(b"1}]}"[-3:])
    assert read_reply(busy[1])[0].status == 200
    assert read_reply(busy[0])[0].status == 200
    assert served(server, "GET", "/v0/health").status == 200


def test_metrics_show_connections_shed_and_refused(start_server: StartServer, stack: ExitStack):
    server = start_server(max_connections=2)
    for _ in range(8):
        connect(server, stack)
    reply = served(server, "GET", "/v0/metrics")
    found = dict(line.rsplit(" ", 1) for line in reply.text.splitlines() if not line.startswith("#"))
    assert int(found["topics_http_connections_max"]) == 2
    assert int(found["topics_http_connections_refused_total"]) + int(found["topics_http_connections_shed_total"]) >= 6


def test_a_cap_above_the_descriptors_is_lowered_and_reported(start_server: StartServer):
    server = start_server(ulimit="-n 200", max_connections=5000)
    lines = [json.loads(line) for line in server.log().splitlines()]
    [warning] = [line for line in lines if line["event"] == "few_descriptors"]
    assert warning["limit"] == 200
    assert 50 < warning["connections"] < 200


def test_the_soft_limit_is_raised_to_the_hard_one(start_server: StartServer):
    server = start_server(ulimit="-Sn 100")
    limits = Path(f"/proc/{server.process.pid}/limits").read_text()
    [line] = [line for line in limits.splitlines() if line.startswith("Max open files")]
    soft, hard = line.split()[3:5]
    assert soft == hard


def test_half_open_handshakes_leave_descriptors_for_files(start_server: StartServer, tmp_path: Path, stack: ExitStack):
    server = start_server(
        ulimit="-n 600", wait_ready=False, max_connections=100, data_dir=tmp_path / "data", **SMALL_PARTS, **TLS
    )
    client = TlsClient(server, stack)
    wait_for(lambda: client.send("GET", "/v0/ready").status == 200)
    files = files_of(server)
    for _ in range(900):
        connect(server, stack).sendall(b"\x16")
    most = 0
    for _ in range(40):
        written = client.send("POST", "/v0/topics/t", {"records": [{"data": "x" * 3000}] * 20})
        assert written.status in (200, 201), written.text
        most = max(most, files_of(server))
    assert most <= files + 100 + 600 // 16 + SMALL_FILES
    assert TlsClient(server, stack).send("GET", "/v0/ready").status == 200, "a new client is served as well"


def test_half_open_handshakes_are_charged(start_server: StartServer, stack: ExitStack):
    server = start_server(wait_ready=False, **TLS)
    client = TlsClient(server, stack)
    silent = [connect(server, stack) for _ in range(20)]

    def charged() -> int:
        found: int = client.send("GET", "/v0/metrics").json["topics_memory_charged_bytes"]["connections"]
        return found

    eventually(charged, lambda found: found == 21 * TLS_BYTES)
    for sock in silent:
        sock.close()
    eventually(charged, lambda found: found == TLS_BYTES)
