"""HTTPS without a proxy: requests, streams, WebSockets, large answers, and certificates that change."""

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from tests.conftest import ServerProcess
from topics.server.http.tls import Certificate
from topics.storage.fs import Fs

CERTS = Path(__file__).parent / "certs"
WAIT_S = 30


def pair(directory: Path, name: str) -> None:
    """Make `name` the certificate of the server in `directory`."""
    for suffix in ("pem", "key"):
        fresh = directory / f"fresh.{suffix}"
        shutil.copy(CERTS / f"{name}.{suffix}", fresh)
        fresh.replace(directory / f"server.{suffix}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    running: list[ServerProcess] = []

    def start(**settings: object) -> ServerProcess:
        pair(tmp_path, "one")
        files = {"tls_cert": tmp_path / "server.pem", "tls_key": tmp_path / "server.key"}
        server = ServerProcess(tmp_path, {"data_dir": tmp_path / "data", **files, **settings}, wait_ready=False)
        running.append(server)
        with client(server) as https:
            wait_for(lambda: https.get("/v0/ready").status_code == 200)
        return server

    yield start
    for server in running:
        server.kill()


@lru_cache
def trust(*names: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    for name in names:
        context.load_verify_locations(CERTS / f"{name}.pem")
    return context


def client(server: ServerProcess, *names: str) -> httpx.Client:
    url = f"https://127.0.0.1:{server.port}"
    return httpx.Client(base_url=url, verify=trust(*(names or ("one",))), timeout=WAIT_S)


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (seen := condition()):
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.01)
    return seen


def events(server: ServerProcess, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


def served(server: ServerProcess) -> bytes:
    """Return the certificate that a new connection gets."""
    return ssl.get_server_certificate(("127.0.0.1", server.port)).encode()


def test_records_come_back_over_https_as_answers_and_as_a_stream(start: Callable[..., ServerProcess]):
    server = start(segment_max_bytes=256 << 10)
    with client(server) as https:
        data = "x" * 1000
        for _ in range(8):
            https.post("/v0/topics/t", json={"records": [{"data": data}] * 1000}).raise_for_status()
        data_dir = Path(events(server, "listening")[0]["data_dir"])
        wait_for(lambda: list(data_dir.rglob("*.seg")))
        read = https.post("/v0/topics/t/diff", json={"from_seq": 0, "limit": 1000, "max_batch_bytes": 8 << 20}).json()
        assert [record["$seq"] for record in read["records"]] == list(range(1, 1001))
        session = https.post("/v0/watch", json={"topics": {"t": {"from_seq": 7999}}}).json()
        with https.stream("GET", session["stream_url"], headers={"accept": "text/event-stream"}) as stream:
            assert next(line for line in stream.iter_lines() if '"$seq":8000' in line)
    assert events(server, "listening")[0]["addresses"] == [f"https://127.0.0.1:{server.port}"]


def test_websocket_runs_over_tls(start: Callable[..., ServerProcess]):
    server = start()

    async def publish() -> dict[str, Any]:
        async with websockets.connect(f"wss://127.0.0.1:{server.port}/v0/ws", ssl=trust("one")) as socket:
            await socket.send(json.dumps({"op": "publish", "topic": "t", "records": [{"data": 1}]}))
            answer: dict[str, Any] = json.loads(await socket.recv())
            return answer

    assert "error" not in asyncio.run(asyncio.wait_for(publish(), WAIT_S))


def test_clients_that_offer_http2_get_it(start: Callable[..., ServerProcess]):
    server = start()
    url = f"https://127.0.0.1:{server.port}"
    with httpx.Client(base_url=url, verify=trust("one"), http2=True, timeout=WAIT_S) as https:
        big = {"records": [{"data": "x" * 200_000}] * 4}
        assert https.post("/v0/topics/t", json=big).http_version == "HTTP/2"
        read = https.post("/v0/topics/t/diff", json={"max_batch_bytes": 8 << 20})
        assert [record["$seq"] for record in read.json()["records"]] == [1, 2, 3, 4]
        session = https.post("/v0/watch", json={"topics": {"t": {"from_seq": 4}}}).json()
        with https.stream("GET", session["stream_url"], headers={"accept": "text/event-stream"}) as stream:
            https.post("/v0/topics/t", json={"records": [{"data": 5}]}).raise_for_status()
            assert next(line for line in stream.iter_lines() if '"$seq":5' in line)
    with client(server) as other:
        assert other.get("/v0/health").http_version == "HTTP/1.1"
    assert events(server, "loop_error") == []


@pytest.mark.parametrize(("option", "version"), [("--http2", "2"), ("--http1.1", "1.1")])
def test_curl_gets_the_protocol_it_asks_for(start: Callable[..., ServerProcess], option: str, version: str):
    found = shutil.which("curl")
    if found is None or b"HTTP2" not in subprocess.run([found, "--version"], capture_output=True).stdout:
        pytest.skip("curl is not installed, or does not speak HTTP/2")
    url = f"https://127.0.0.1:{start().port}/v0/health"
    command = ["curl", "-sS", "--max-time", "10", option, "--cacert", CERTS / "one.pem", "-w", "\n%{http_version}", url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == version


def test_hangup_signal_changes_the_certificate_of_new_connections(start: Callable[..., ServerProcess], tmp_path: Path):
    server = start()
    with client(server) as old:
        assert old.get("/v0/health").status_code == 200
        pair(tmp_path, "two")
        os.kill(server.process.pid, signal.SIGHUP)
        wait_for(lambda: events(server, "certificate_reloaded"))
        assert old.get("/v0/health").status_code == 200, "the open connection goes on"
    assert served(server) == (CERTS / "two.pem").read_bytes()
    with client(server, "two") as new:
        assert new.get("/v0/health").status_code == 200


@pytest.mark.parametrize("broken", ["no certificate", "another key"])
def test_bad_certificate_is_refused_and_the_old_one_stays(
    start: Callable[..., ServerProcess], tmp_path: Path, broken: str
):
    server = start()
    if broken == "another key":
        shutil.copy(CERTS / "two.key", tmp_path / "server.key")
    else:
        (tmp_path / "server.pem").write_text("nothing")
    os.kill(server.process.pid, signal.SIGHUP)
    refused = wait_for(lambda: events(server, "certificate_refused"))[0]
    assert refused["reason"].endswith(
        "the key does not belong to the certificate"
        if broken == "another key"
        else "no certificate in PEM form with its private key"
    )
    assert served(server) == (CERTS / "one.pem").read_bytes()


def test_connection_without_a_handshake_is_closed_in_time(start: Callable[..., ServerProcess]):
    server = start(header_timeout_ms=200)
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as silent:
        assert silent.recv(1) == b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as plain:
        plain.sendall(b"GET /v0/health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        with _closed():
            while plain.recv(65_536):
                pass
    with client(server) as https:
        assert https.get("/v0/health").status_code == 200
    assert events(server, "loop_error") == []


class _closed:
    """Accepts an orderly end and a reset."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        return kind is not None and issubclass(kind, ConnectionError)


class SlowClient:
    """A TLS client that sends its bytes in pieces of any size, and can send bytes that are no TLS."""

    def __init__(self, server: ServerProcess, piece_bytes: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._piece_bytes = piece_bytes
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = trust("one").wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self.until_done(self._tls.do_handshake)

    def until_done(self, call: Callable[[], Any]) -> Any:
        """Call until it needs no more of the server, and send what it wants to send."""
        while True:
            try:
                return call()
            except ssl.SSLWantReadError:
                self.flush()
                received = self.sock.recv(65_536)
                self._incoming.write(received) if received else self._incoming.write_eof()
            finally:
                self.flush()

    def flush(self) -> None:
        data = self._outgoing.read()
        for at in range(0, len(data), self._piece_bytes):
            self.sock.sendall(data[at : at + self._piece_bytes])

    def send(self, data: bytes) -> None:
        self._tls.write(data)
        self.flush()

    def read(self) -> bytes:
        return bytes(self.until_done(lambda: self._tls.read(1 << 20)))

    def end(self) -> None:
        """End TLS, and wait for the server's end."""
        self.until_done(self._tls.unwrap)


Connect = Callable[..., SlowClient]


@pytest.fixture
def connect() -> Iterator[Connect]:
    with ExitStack() as stack:

        def connect(server: ServerProcess, *, piece_bytes: int = 100_000) -> SlowClient:
            made = SlowClient(server, piece_bytes)
            stack.enter_context(made.sock)
            return made

        yield connect


@pytest.mark.parametrize("piece_bytes", [1, 7, 100_000])
def test_tls_records_may_arrive_in_any_pieces(start: Callable[..., ServerProcess], connect: Connect, piece_bytes: int):
    client = connect(start(), piece_bytes=piece_bytes)
    client.send(b"GET /v0/health HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert b'"status":"ok"' in client.read()
    client.end()
    assert client.sock.recv(1) == b""


def test_large_last_answer_comes_whole_and_with_an_end_of_tls(start: Callable[..., ServerProcess], connect: Connect):
    server = start()
    with client(server) as https:
        for _ in range(4):
            https.post("/v0/topics/t", json={"records": [{"data": "x" * 1_000_000}]}).raise_for_status()
    slow = connect(server)
    body = b'{"max_batch_bytes":8000000}'
    slow.send(
        b"POST /v0/topics/t/diff HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    answer = b""
    while data := slow.read():  # an end without that of TLS raises
        answer += data
    head, _, content = answer.partition(b"\r\n\r\n")
    assert f"content-length: {len(content)}".encode() in head.lower()
    assert len(json.loads(content)["records"]) == 4


@pytest.mark.parametrize("junk", [b"\x17\x03\x03\x00\x10" + b"x" * 16, b"no TLS at all"])
def test_connection_that_breaks_tls_is_closed(start: Callable[..., ServerProcess], connect: Connect, junk: bytes):
    server = start()
    broken = connect(server)
    broken.send(b"GET /v0/topics/none/diff HTTP/1.1\r\nhost: localhost\r\n")
    broken.sock.sendall(junk)
    with _closed():
        while broken.sock.recv(65_536):
            pass
    with client(server) as https:
        assert https.get("/v0/health").status_code == 200
    assert events(server, "loop_error") == []


def test_idle_connection_keeps_no_memory_of_large_answers(start: Callable[..., ServerProcess], connect: Connect):
    server = start()
    request = b"POST /v0/topics/t/diff HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n"
    request += b"content-type: application/json\r\n\r\n{}"
    with client(server) as https:
        https.post("/v0/topics/t", json={"records": [{"data": "x" * 900_000}]}).raise_for_status()
        for _ in range(20):
            https.post("/v0/topics/t/diff", json={}).raise_for_status()
    before, idle = resident_bytes(server), []
    for _ in range(30):
        idle.append(connect(server))
        idle[-1].send(request)
        read = 0
        while read < 900_000:
            read += len(idle[-1].read())
    assert (resident_bytes(server) - before) / len(idle) < 300_000


def resident_bytes(server: ServerProcess) -> int:
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_settings_that_cannot_serve_tls_are_refused_with_a_reason(tmp_path: Path):
    def refusal(**settings: Path) -> str:
        env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        env |= {f"TOPICS_{name.upper()}": str(value) for name, value in settings.items()}
        done = subprocess.run(
            [sys.executable, "-m", "topics", "serve", "--port", "0"], env=env, capture_output=True, text=True
        )
        assert done.returncode != 0
        return done.stderr

    assert "needs TOPICS_TLS_CERT" in refusal(tls_key=CERTS / "one.key")
    assert "does not exist" in refusal(tls_cert=tmp_path / "none.pem")
    mismatch = refusal(tls_cert=CERTS / "one.pem", tls_key=CERTS / "two.key")
    assert "the key does not belong to the certificate" in mismatch
    assert "Traceback" not in mismatch


def test_tls_reads_no_mapped_file(tmp_path: Path):
    """TLS encrypts in the process: a mapped page that is cut off would end it."""
    (tmp_path / "file").write_bytes(b"abc")
    assert Fs(maps=False).open(str(tmp_path / "file")).lend(3, 0) is None


def test_encrypted_key_is_refused_without_a_question(tmp_path: Path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", CERTS / "one.key", "-out", key, "-passout", "pass:secret"], check=True
    )
    with pytest.raises(Exception, match="the key is encrypted"):
        Certificate(CERTS / "one.pem", key)
