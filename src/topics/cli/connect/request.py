"""Requests as values: what a command sends, and the same request as a `curl` command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from topics.cli.connect.target import Target
from topics.cli.output import json_text

JSON = "application/json"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request. `body` is a JSON value or encoded JSON. `safe` means that it may be sent twice."""

    method: str
    path: str
    body: Any = None
    accept: str = JSON
    safe: bool = True
    wait_ms: int = 0  # how long the server may wait before it answers
    stream: bool = False  # the answer does not end by itself

    def encoded(self) -> bytes | None:
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return json_text.encode(self.body)


def topic_path(topic: str, verb: str = "", **query: Any) -> str:
    return f"/v0/topics/{quote(topic, safe='')}{verb and '/' + verb}{_query(query)}"


def router_path(router: str = "", verb: str = "", **query: Any) -> str:
    name = f"/{quote(router, safe='')}" if router else ""
    return f"/v0/routers{name}{verb and '/' + verb}{_query(query)}"


def list_path(path: str, **query: Any) -> str:
    return path + _query(query)


def get(path: str) -> Request:
    return Request(method="GET", path=path)


def post(path: str, body: Any, *, safe: bool = True, wait_ms: int = 0) -> Request:
    return Request(method="POST", path=path, body=body, safe=safe, wait_ms=wait_ms)


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def tag_match(text: str) -> str | list[str]:
    """Return the condition for a tag as the server takes it: a trailing `*` matches the beginning."""
    return ["tag", "Glob", text] if text.endswith("*") else text


def _query(fields: Mapping[str, Any]) -> str:
    present = {
        name: str(value).lower() if isinstance(value, bool) else value for name, value in given(**fields).items()
    }
    return f"?{urlencode(present)}" if present else ""


def as_curl(request: Request, target: Target) -> str:
    """Return the request as a `curl` command. The key is read from its file when the command runs."""
    words = ["curl", "-sS"]
    if request.stream:
        words.append("-N")
    body = request.encoded()
    if request.method != ("GET" if body is None else "POST"):
        words += ["-X", request.method]
    words.append(shlex.quote(target.url + request.path))
    if request.accept != JSON:
        words += ["-H", shlex.quote(f"accept: {request.accept}")]
    if target.token_in_shell is not None:
        words += ["-H", f'"authorization: Bearer {target.token_in_shell}"']
    if body is not None:
        words += ["-H", shlex.quote(f"content-type: {JSON}"), "--data-binary", shlex.quote(body.decode())]
    return " ".join(words)
