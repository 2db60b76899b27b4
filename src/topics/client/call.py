"""Requests of `/v0` as values, their paths, and the waits between attempts. No I/O.

Both transports send these: httpx (`_async/transport.py`) for programs, and `http.client` (`connection.py`) for the
command line and Spark. `errors.from_answer` has the exception of an answer that is not 2xx.
"""

from __future__ import annotations

import random
import time
import traceback
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlencode

from topics.errors import TopicsError

JSON = "application/json"
NDJSON = "application/x-ndjson"
SEGMENTS = "application/vnd.topics.segments"
EVENT_STREAM = "text/event-stream"
PAGE_ROWS = 1000  # of a list
FIRST_S = 0.1
LONGEST_S = 10.0


def failure_of(error: BaseException) -> dict[str, Any]:
    """Return `reason` and `error` of a nack from an exception, shortened to what the server takes."""
    kind, message = type(error).__qualname__, _first_bytes(str(error), 2048)
    stack = "".join(traceback.format_exception(error)).encode("utf-8", "replace")[-4096:].decode(errors="ignore")
    return {
        "reason": f"{kind}: {message}" if message else kind,
        "error": {"type": kind, "message": message, "stack": stack},
    }


def _first_bytes(text: str, most: int) -> str:
    return text.encode("utf-8", "replace")[:most].decode(errors="ignore")


class Request(NamedTuple):
    """One request. `safe` means that sending it twice has the same effect as sending it once."""

    method: str
    path: str
    body: bytes | None = None
    accept: str = JSON
    safe: bool = True
    wait_ms: int = 0  # how long the server may wait before it answers

    def headers(self, token: str | None) -> dict[str, str]:
        headers = {"accept": self.accept}
        if self.body is not None:
            headers["content-type"] = JSON
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        return headers


class ListPage(Protocol):
    next_cursor: str | None


def topic_path(topic: str, verb: str = "", **query: Any) -> str:
    return with_query(f"/v0/topics/{quote(topic, safe='')}{verb and '/' + verb}", **query)


def consumer_path(topic: str, consumer: str) -> str:
    return topic_path(topic, f"consumers/{quote(consumer, safe='')}")


def router_path(router: str, verb: str = "") -> str:
    return f"/v0/routers/{quote(router, safe='')}{verb and '/' + verb}"


def with_query(path: str, **fields: Any) -> str:
    """Return a path with a query string of the fields that are not None."""
    texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in given(**fields).items()}
    return f"{path}{'&' if '?' in path else '?'}{urlencode(texts)}" if texts else path


def given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


class Backoff:
    """Waits that double up to ten seconds, with jitter, and are never shorter than the server asks."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin again: the last attempt succeeded."""
        self.attempts = 0
        self._began_s = time.monotonic()

    @property
    def passed_s(self) -> float:
        """The time since the first attempt."""
        return time.monotonic() - self._began_s

    def next_s(self, error: TopicsError | None = None) -> float:
        most = min(FIRST_S * 2.0 ** min(self.attempts, 16), LONGEST_S)
        self.attempts += 1
        asked = error.retry_after if error is not None and error.retry_after is not None else 0.0
        return max(asked, most / 2) + random.random() * most / 2
