"""An object store on this machine (moto), behind a proxy that counts requests and makes them fail.

    with object_store(tmp_path) as store:
        store.set(status=503, share=0.2)

It also stands for Google's store, whose XML API is that of S3 with other headers (`google_settings`).

The proxy is a process of its own: deltalake holds Python's lock while it waits for an answer.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

BUCKET = "lake"
CONTROL = "/__control__"
SIGNED = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


class Store:
    """The running proxy."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def set(self, **faults: Any) -> dict[str, Any]:
        """Set the faults from now on: `status` with its `share` of requests, `delay_s`, `lose_commits`.

        Return the number of `requests` and of those that were `refused`, and the paths of commits whose answer was
        `lost`, so far.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("POST", CONTROL, json.dumps(faults))
        found = json.loads(connection.getresponse().read())
        connection.close()
        assert isinstance(found, dict)
        return found


class Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behind = port
        self.requests = self.refused = 0
        self.faults: dict[str, Any] = {}
        self.lost: list[str] = []
        self.chance = Random(7)
        self.seen: dict[int, int] = {}  # requests of each process that is to be killed
        self.lock = threading.Lock()

    def count(self, key: str) -> None:
        """Count a request. Kill the process that the access key names at the request that it names."""
        with self.lock:
            self.requests += 1
            if key.startswith("kill-"):
                pid, at = int(key.split("-")[1]), int(key.split("-")[2])
                self.seen[pid] = self.seen.get(pid, 0) + 1
                if self.seen[pid] == at:
                    os.kill(pid, signal.SIGKILL)

    def loses(self, method: str, path: str) -> bool:
        """Return whether the answer to this request is lost: the first one to each commit."""
        path = path.partition("?")[0]
        is_commit = method == "PUT" and "_delta_log/" in path and path.endswith(".json")
        if not is_commit or not self.faults.get("lose_commits") or path in self.lost:
            return False
        self.lost.append(path)
        return True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one packet for headers and body, or each answer waits 40 ms for an acknowledgement
    server: Proxy

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path == CONTROL:
            self.server.faults = json.loads(body)
            known = {"requests": self.server.requests, "refused": self.server.refused, "lost": self.server.lost}
            self._answer(200, {}, json.dumps(known).encode())
            return
        self.server.count(self.headers.get("authorization", "").partition("Credential=")[2].partition("/")[0])
        faults = self.server.faults
        time.sleep(faults.get("delay_s", 0))
        if "status" in faults and self.server.chance.random() < faults.get("share", 1):
            self.server.refused += 1
            self._answer(faults["status"], {}, b"<Error><Code>SlowDown</Code></Error>")
            return
        answer = self._forward(body)
        if self.server.loses(self.command, self.path):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(*answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=60)
        skipped = ("connection", "transfer-encoding")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in skipped}
        if not headers.get("authorization", "").startswith("AWS4"):  # a client of Google
            headers["authorization"] = SIGNED
            if headers.get("x-goog-if-generation-match") == "0":
                headers["if-none-match"] = "*"
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), data

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        with suppress(OSError):
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            size = headers.get("Content-Length", str(len(data))) if self.command == "HEAD" else str(len(data))
            self.send_header("content-length", size)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


def settings(url: str, key: str = "test") -> dict[str, str]:
    """Return the environment with which deltalake uses the store."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }


def google_settings(url: str) -> dict[str, str]:
    """Return the environment with which deltalake uses the store as if it were Google's."""
    account = {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account)}


@contextmanager
def object_store(folder: Path) -> Iterator[Store]:
    """Start moto and the proxy, with one bucket."""
    with (folder / "store.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.lake.object_store"], stdout=subprocess.PIPE, stderr=log, stdin=subprocess.PIPE
        )
    with process:
        try:
            assert process.stdout is not None
            yield Store(int(process.stdout.readline()))
        finally:
            process.communicate()  # the end of its input ends the process


def main() -> None:
    """Run moto and the proxy until standard input ends. Print the port of the proxy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    moto = subprocess.Popen(command, stdout=sys.stderr, stderr=sys.stderr)
    try:
        _create_bucket(port, moto)
        proxy = Proxy(port)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        print(proxy.server_port, flush=True)
        sys.stdin.read()
    finally:
        moto.kill()
        moto.wait()


def _create_bucket(port: int, moto: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert moto.poll() is None, "moto has ended"
        try:
            create_bucket(port, BUCKET)
            return
        except OSError:
            assert time.monotonic() < deadline, "moto does not answer"
            time.sleep(0.05)


def create_bucket(port: int, name: str) -> None:
    """Create a bucket. A listing takes as long as its bucket is large: work that is repeated needs one each time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("PUT", f"/{name}")
    assert connection.getresponse().status == 200
    connection.close()


if __name__ == "__main__":
    main()
