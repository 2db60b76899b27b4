"""The server of a command, and the requests that commands send: over HTTP, or printed as `curl` commands."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from topics.cli.connect.target import Target, next_step_of
from topics.cli.output.failures import EXIT_UNREACHABLE, Failure, failure_of
from topics.cli.output.screen import json_text
from topics.client.call import EVENT_STREAM, JSON, PAGE_ROWS, Request, with_query
from topics.client.connection import Connection, Retries
from topics.client.errors import TopicsError, Unreachable
from topics.client.streams import Event, EventParser
from topics.errors import Code

ANSWER_TIMEOUT_S = 30.0
BRIEFLY = Retries(math.inf, for_s=5.0, reconnect=False)
CHUNK_BYTES = 1 << 18


class Server(Connection):
    """The server of a command. Not thread-safe: each thread needs its own."""

    def __init__(self, target: Target, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        super().__init__(target.url, token=target.token, timeout_s=timeout_s, retries=BRIEFLY)
        self.target = target

    def again(self) -> Server:
        """Return another connection to the same server, for another thread."""
        return Server(self.target)

    def json(self, request: Request) -> Any:
        """Send a request and return its decoded answer, without the timings of the server. Raise `TopicsError`."""
        answer = json.loads(self.send(request))
        answer.pop("performance", None)
        return answer

    def rows(self, path: str, member: str, **query: Any) -> Iterator[Any]:
        cursor = None
        while True:
            answer = self.json(get(path, **query, page_size=PAGE_ROWS, cursor=cursor))
            yield from answer[member]
            cursor = answer.get("next_cursor")
            if cursor is None:
                return

    def stream(self, request: Request, *, timeout_s: float | None = None) -> Iterator[bytes]:
        """Yield the chunks of an answer as they arrive, on a connection of its own."""
        with self.opened(request, timeout_s=timeout_s) as response:
            while chunk := response.read1(CHUNK_BYTES):
                yield chunk

    def events(self, watch: Request, *, timeout_s: float) -> Iterator[Event]:
        """Open a watch session and yield the events of its stream. Those of heartbeats have no name."""
        parser = EventParser()
        for chunk in self.stream(events(self.json(watch)["stream_url"]), timeout_s=timeout_s):
            yield from parser.feed(chunk)

    def failure(self, error: TopicsError) -> Failure:
        """Return what a command reports for an error: its exit status, and what to do next."""
        if isinstance(error, Unreachable):
            return Failure(str(error), status=EXIT_UNREACHABLE, next_step=next_step_of(self.target))
        names: list[str] = []
        if error.code is Code.TOPIC_NOT_FOUND:  # to suggest a similar name
            with suppress(TopicsError):
                names = [row["topic"] for row in self.json(get("/v0/topics", page_size=PAGE_ROWS))["topics"]]
        return failure_of(error, names)

    def lags(self) -> dict[str, int]:
        """Return how many records the slowest router or named consumer of each topic is behind."""
        found: dict[str, int] = {}
        for router in self.rows("/v0/routers", "routers"):
            found[router["source"]] = max(found.get(router["source"], 0), router["lag"])
        for consumer in self.rows("/v0/consumers", "consumers"):
            found[consumer["topic"]] = max(found.get(consumer["topic"], 0), consumer["lag_records"])
        return found


# --- requests


def get(path: str, **query: Any) -> Request:
    return Request("GET", with_query(path, **query))


def post(path: str, body: Any, *, accept: str = JSON, safe: bool = True, wait_ms: int = 0) -> Request:
    return Request("POST", path, body if isinstance(body, bytes) else json_text(body), accept, safe, wait_ms)


def put(path: str, body: Any) -> Request:
    return Request("PUT", path, json_text(body))


def delete(path: str) -> Request:
    return Request("DELETE", path)


def events(path: str) -> Request:
    return Request("GET", path, accept=EVENT_STREAM)


def tag_match(text: str | None) -> str | list[str] | None:
    """Return the condition for a tag as the server takes it: a trailing `*` matches the beginning."""
    return ["tag", "Glob", text] if text is not None and text.endswith("*") else text


def as_curl(request: Request, target: Target) -> str:
    """Return the request as a `curl` command. The key is read from its file when the command runs."""
    words = ["curl", "-sS"]
    if request.accept == EVENT_STREAM:
        words.append("-N")
    if request.method != ("GET" if request.body is None else "POST"):
        words += ["-X", request.method]
    words.append(shlex.quote(target.url.partition(",")[0] + request.path))
    if request.accept != JSON:
        words += ["-H", shlex.quote(f"accept: {request.accept}")]
    if target.token is not None:
        key = f"$(cat {target.token_file})" if target.token_file else "$TOPICS_TOKEN"
        words += ["-H", f'"authorization: Bearer {key}"']
    if request.body is not None:
        words += ["-H", shlex.quote(f"content-type: {JSON}"), "--data-binary", shlex.quote(request.body.decode())]
    return " ".join(words)
