"""The control calls of the rows to a topics server: one connection per call; errors raise."""

from __future__ import annotations

import http.client
import json
from typing import Any

TIMEOUT_S = 30


class Api:
    """The HTTP interface of a topics server on one loopback port."""

    def __init__(self, port: int, key: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self.port = port
        self.timeout_s = timeout_s
        self.headers = {"content-type": "application/json"}
        if key is not None:
            self.headers["authorization"] = f"Bearer {key}"

    def raw(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout_s)
        try:
            payload = None if body is None else json.dumps(body).encode()
            connection.request(method, path, payload, self.headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        status, answer = self.raw(method, path, body)
        if status >= 300:
            raise RuntimeError(f"{method} {path} answered {status}: {answer[:200].decode(errors='replace')}")
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    def is_ready(self) -> bool:
        try:
            return self.raw("GET", "/v0/ready")[0] == 200
        except OSError:
            return False

    def create(self, topic: str, **config: Any) -> None:
        self.call("PUT", f"/v0/topics/{topic}", config)

    def count(self, topic: str) -> int:
        return int(self.call("GET", f"/v0/topics/{topic}")["count"])

    def diff(self, topic: str, **body: Any) -> dict[str, Any]:
        return self.call("POST", f"/v0/topics/{topic}/diff", body)

    def diff_size(self, topic: str, **body: Any) -> int:
        """Return the size of a diff's answer, which the floor must send as well for a fair comparison."""
        status, answer = self.raw("POST", f"/v0/topics/{topic}/diff", body)
        if status != 200:
            raise RuntimeError(f"diff of {topic} answered {status}")
        return len(answer)
