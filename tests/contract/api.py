"""A client that checks every answer against the rules for all answers."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

T = TypeVar("T")
WAIT_S = 30
JSON_HEADERS = {"content-type": "application/json"}


class Api:
    """The verbs under test. They expect success; `call` accepts any answer."""

    def __init__(self, url: str) -> None:
        # No proxy from the environment, no certificates, and no compression unless a test requests it.
        self.http = httpx.Client(
            base_url=url, timeout=WAIT_S * 4, trust_env=False, verify=False, headers={"accept-encoding": "identity"}
        )

    def close(self) -> None:
        self.http.close()

    def call(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **options: Any
    ) -> httpx.Response:
        """Send a request with `body` as JSON or `raw` bytes. Return the answer after the common checks."""
        headers = dict(options.pop("headers", {}))
        if body is not None:
            raw = json.dumps(body).encode()
        if raw is not None:
            headers = JSON_HEADERS | headers
        answer = self.http.request(method, path, content=raw, headers=headers, **options)
        if method != "HEAD":
            check_conventions(answer)
        return answer

    # --- verbs that must succeed

    def get(self, path: str, **params: Any) -> Any:
        return succeeded(self.call("GET", path, params=params))

    def put(self, topic: str, **config: Any) -> Any:
        return succeeded(self.call("PUT", f"/v0/topics/{topic}", config))

    def state(self, topic: str, *, touch: bool = False) -> Any:
        return self.get(f"/v0/topics/{topic}", touch=str(touch).lower())

    def drop(self, topic: str, **params: Any) -> Any:
        return succeeded(self.call("DELETE", f"/v0/topics/{topic}", params=params))

    def write(self, topic: str, *data: Any, **fields: Any) -> Any:
        """Append a record per `data`, with the given tag or meta. Other keywords are fields of the request."""
        shared = {name: fields.pop(name) for name in ("tag", "meta") if name in fields}
        return self.append(topic, [{"data": value} | shared for value in data], **fields)

    def append(self, topic: str, records: list[Any], **fields: Any) -> Any:
        return succeeded(self.call("POST", f"/v0/topics/{topic}", {"records": records} | fields))

    def append_raw(self, topic: str, data: bytes) -> Any:
        """Append one record whose `data` is sent byte for byte."""
        return succeeded(self.call("POST", f"/v0/topics/{topic}", raw=b'{"records":[{"data":' + data + b"}]}"))

    def diff(self, topic: str, **fields: Any) -> Any:
        return succeeded(self.call("POST", f"/v0/topics/{topic}/diff", fields))

    def delete(self, topic: str, **fields: Any) -> Any:
        return succeeded(self.call("POST", f"/v0/topics/{topic}/delete", fields))

    def read_all(self, topic: str, **fields: Any) -> list[Any]:
        """Return all records, page by page."""
        records: list[Any] = []
        page = self.diff(topic, **fields)
        while True:
            records += page["records"]
            if page["caught_up"]:
                return records
            page = self.diff(topic, **fields | {"from_seq": page["next_from_seq"]})

    # --- verbs that must fail

    def refused(self, status: int, code: str, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """Return the error of a request that must fail with this status and code."""
        return failed(self.call(method, path, body, **options), status, code)


def check_conventions(answer: httpx.Response) -> None:
    """Check the content type, that an error has an error status and vice versa, and the performance block."""
    if answer.headers["content-type"].startswith("text/plain"):
        assert answer.request.url.path in ("/v0/metrics", "/metrics")
        return
    assert answer.content.endswith(b"}\n"), "a terminal shows the next prompt on the same line"
    assert answer.headers["content-type"].split(";")[0] == "application/json"
    body = json.loads(answer.content.decode())
    assert isinstance(body, dict)
    assert ("error" in body) == (not answer.is_success), (answer.status_code, body)
    assert "status" not in body or body["status"] in ("ok", "ready")
    if answer.request.url.path != "/v0/openapi.json":
        assert body["performance"]["server_total_ms"] >= 0
        assert all(isinstance(value, int | float) for value in body["performance"].values())
    if "error" in body:
        check_error(body["error"])


def check_error(error: dict[str, Any]) -> None:
    assert {"code", "message"} <= error.keys() <= {"code", "message", "detail"}
    assert error["code"] == error["code"].lower()
    assert error["code"].replace("_", "").isalpha()
    assert error["message"]
    assert isinstance(error.get("detail", {}), dict)


def succeeded(answer: httpx.Response) -> Any:
    assert answer.is_success, (answer.status_code, answer.text)
    return answer.json()


def failed(answer: httpx.Response, status: int, code: str) -> Any:
    assert answer.status_code == status, (answer.status_code, answer.text)
    error = answer.json()["error"]
    assert error["code"] == code, error
    return error


def seqs(page: Any) -> list[int]:
    return [record["$seq"] for record in page["records"]]


def data(page: Any) -> list[Any]:
    return [record["data"] for record in page["records"]]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def eventually(look: Callable[[], T], accept: Callable[[T], object], *, within_s: float = WAIT_S) -> T:
    """Call `look` until `accept` returns true, for effects of time. Return the last result."""
    deadline = time.monotonic() + within_s
    while True:
        seen = look()
        if accept(seen):
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(0.005)


class Background:
    """Run a call on another thread, for requests that wait."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: Any = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._outcome = call()
        except BaseException as failure:
            self._failure = failure

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(WAIT_S)
        assert self.done, "still waiting"
        if self._failure is not None:
            raise self._failure
        return self._outcome


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Run all calls at the same time and return their results in order."""
    started = [Background(call) for call in calls]
    return [call.result() for call in started]
