"""Requests of `/v0` as values, their paths, the addresses they go to, and the waits between attempts. No I/O.

Both transports send these: httpx (`_async/transport.py`) for programs, and `http.client` (`connection.py`) for the
command line and Spark. `errors.from_answer` has the exception of an answer that is not 2xx.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from topics.client.errors import BadUrl, NotWriter, TopicsError, Unreachable
from topics.errors import Code

JSON = "application/json"
NDJSON = "application/x-ndjson"
SEGMENTS = "application/vnd.topics.segments"
EVENT_STREAM = "text/event-stream"
PAGE_ROWS = 1000  # of a list
FIRST_S = 0.1
LONGEST_S = 10.0
TAKEOVER_LONGEST_S = 1.0  # with several addresses: a takeover takes seconds, and a client should notice its end
CONNECT_TIMEOUT_S = 10.0
TAKEOVER_CONNECT_TIMEOUT_S = 3.0  # with several addresses: a machine that is lost does not refuse connections
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
ELSEWHERE = (Code.NOT_WRITER, Code.FENCED, Code.REPLICA_UNAVAILABLE, Code.SHUTTING_DOWN, Code.NOT_READY)
OWN_FRAMES = ("topics.client.", "asyncio.", "concurrent.")  # modules between a worker and its function
GATEWAY_STATUSES = (502, 503, 504)  # of a proxy whose server does not answer


def of_caller(error: BaseException) -> BaseException:
    """Return an exception of a function that this client calls, with the stack from that function on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith(OWN_FRAMES):
        frames = frames.tb_next
    return error if frames is None else error.with_traceback(frames)


def failure_of(error: BaseException) -> dict[str, Any]:
    """Return `reason` and `error` of a nack from an exception, shortened to what the server takes."""
    kind = type(error).__qualname__
    message = str(error).encode("utf-8", "replace")[:2048].decode(errors="ignore")
    stack = "".join(traceback.format_exception(error)).encode("utf-8", "replace")[-4096:].decode(errors="ignore")
    return {
        "reason": f"{kind}: {message}" if message else kind,
        "error": {"type": kind, "message": message, "stack": stack},
    }


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


def _path(kind: str, name: str, verb: str = "", **query: Any) -> str:
    return with_query(f"/v0/{kind}/{quote(name, safe='')}{verb and '/' + verb}", **query)


topic_path, router_path = partial(_path, "topics"), partial(_path, "routers")
schedule_path, key_path = partial(_path, "schedules"), partial(_path, "keys")


def consumer_path(topic: str, consumer: str) -> str:
    return topic_path(topic, f"consumers/{quote(consumer, safe='')}")


def with_query(path: str, **fields: Any) -> str:
    """Return a path with a query string of the fields that are not None."""
    texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in given(**fields).items()}
    return f"{path}{'&' if '?' in path else '?'}{urlencode(texts)}" if texts else path


def tag_match(tag: str | None) -> tuple[Literal["tag"], Literal["Eq", "Glob"], str] | None:
    """Return the condition for a tag; a trailing `*` matches the beginning."""
    return None if tag is None else ("tag", "Glob" if tag.endswith("*") else "Eq", tag)


def filter_of(tag: str | None, where: str | None, grep: str | None = None) -> Sequence[Any] | None:
    """Return the filter for records that match all conditions; None without any."""
    conditions = (
        tag_match(tag),
        None if where is None else ("Where", where),
        None if grep is None else ("data", "Grep", grep),
    )
    parts = [one for one in conditions if one is not None]
    return ("And", parts) if len(parts) > 1 else parts[0] if parts else None


def given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def with_schemes(text: str) -> str:
    """Return a list of addresses with `http://` before those that have no scheme."""
    return ",".join(url if "//" in url else f"http://{url}" for url in _split(text))


def _split(text: str) -> list[str]:
    """Return addresses that are separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


class Addresses:
    """The addresses of a server and of its standbys, and the one that the next request goes to.

    A client stays with an address until a request fails that another server may answer. Only a standby sends it away
    for a write, so it stays with the writer after its first write, and later reads see what it wrote.
    """

    def __init__(self, text: str) -> None:
        """Read addresses. Raise `BadUrl` if one is not the URL of a server."""
        self.all = tuple(dict.fromkeys(url.rstrip("/") for url in _split(text)))
        for url in self.all or (text,):
            try:
                parts = urlsplit(url)
                valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            except ValueError:
                valid = False
            if not valid:
                raise BadUrl(url)
        self.url = self.all[0]
        self._at = 0  # of the last address that was chosen from the list

    @property
    def connect_timeout_s(self) -> float:
        return CONNECT_TIMEOUT_S if len(self.all) == 1 else TAKEOVER_CONNECT_TIMEOUT_S

    def leave(self, url: str, error: TopicsError) -> None:
        """Choose the address of the next request, after one to `url` failed."""
        if not may_help_elsewhere(error):
            return
        writer = (error.detail or {}).get("writer") if isinstance(error, NotWriter) else None
        named = writer.rstrip("/") if isinstance(writer, str) and _is_followed(url, writer) else url
        error.has_others = any(other != url for other in (named, *self.all))
        if url != self.url:
            return  # another request has chosen already
        if named != url:
            self.url = named
            return
        # Go on in the list after the last address of it, so that no other is left out if writers are away.
        order = self.all[self._at + 1 :] + self.all[: self._at + 1]
        self.url = next((other for other in order if other != url), url)
        self._at = self.all.index(self.url)


def may_help_elsewhere(error: TopicsError) -> bool:
    """Return whether another server of the same replica may take a request that failed so."""
    is_of_proxy = not isinstance(error.code, Code) and error.status in GATEWAY_STATUSES
    return isinstance(error, Unreachable) or error.code in ELSEWHERE or is_of_proxy


def _is_followed(standby: str, writer: str) -> bool:
    """Return whether a client may go where a standby sends it: the key is sent there, too.

    The address of a writer that does not know under which one others reach it means another machine than this one.
    """
    here, there = urlsplit(standby), urlsplit(writer)
    return here.scheme == there.scheme and (here.hostname in LOCAL_HOSTS or there.hostname not in LOCAL_HOSTS)


class Backoff:
    """Waits that double up to ten seconds, with jitter, and are never shorter than the server asks.

    With several addresses they double up to one second only.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin again: the last attempt succeeded."""
        self.attempts = 0
        self._began_s = time.monotonic()
        self.tried: set[str] = set()  # addresses, since the last wait

    def goes_on(self, addresses: Addresses, error: TopicsError) -> bool:
        """Return whether to send the request to the next address at once: it was not tried since the last wait."""
        return may_help_elsewhere(error) and addresses.url not in self.tried

    @property
    def passed_s(self) -> float:
        """The time since the first attempt."""
        return time.monotonic() - self._began_s

    def next_s(self, error: TopicsError | None = None) -> float:
        longest = min(TAKEOVER_LONGEST_S, LONGEST_S) if error is not None and error.has_others else LONGEST_S
        most = min(FIRST_S * 2.0 ** min(self.attempts, 16), longest)
        self.attempts += 1
        self.tried.clear()
        asked = error.retry_after if error is not None and error.retry_after is not None else 0.0
        return max(asked, most / 2) + random.random() * most / 2
