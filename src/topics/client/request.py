"""Encode requests of `/v0` and decode their answers. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

import msgspec
from msgspec import Raw, Struct, structs

from topics.client.json_text import encode
from topics.errors import BY_WIRE, Code, TopicsError
from topics.model import surrogates
from topics.model.records import DiffRequest, ScanRequest
from topics.model.topic import ConfigPatch, TopicConfig

JSON = "application/json"
NDJSON = "application/x-ndjson"
SEGMENTS = "application/vnd.topics.segments"


class ApiCall(Struct, frozen=True):
    """One request. `safe` means that sending it twice has the same effect as sending it once."""

    method: str
    path: str
    body: bytes = b""
    accept: str = JSON
    safe: bool = True
    timeout_ms: int = 0  # added to the client's timeout, for a call that waits on the server

    def headers(self, token: str | None) -> dict[str, str]:
        headers = {"accept": self.accept}
        if self.body:
            headers["content-type"] = JSON
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        return headers


class Server(Struct, frozen=True):
    """The address of a server."""

    host: str
    port: int
    secure: bool
    prefix: str  # put before every path, for a server behind a proxy


class Record(Struct, rename={"seq": "$seq", "ts": "$ts", "node": "$node", "tag": "$tag"}):
    """One record. `data` and `meta` are JSON text; `value` decodes `data`."""

    seq: int
    ts: int
    data: Raw
    node: str | None = None
    tag: str | None = None
    meta: Raw | msgspec.UnsetType = msgspec.UNSET

    @property
    def value(self) -> Any:
        return surrogates.value(self.data)


class Tombstone(Struct):
    """A lost range, both ends inclusive: evicted, expired or corrupt, not deleted on request."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int = 0
    earliest_seq: int = 0
    head_seq: int = 0
    epoch: int = 0  # the epoch that the reader continues with, if the answer contains it


class State(Struct):
    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    type: str = "log"
    effective_priority: int = 0
    last_write_ts: int | None = None
    last_read_ts: int | None = None
    archived_seq: int | None = None
    trimmed_seq: int | None = None


class Summary(Struct):
    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    type: str = "log"


class Topics(Struct):
    topics: list[Summary]
    next_cursor: str | None = None


class Put(Struct):
    topic: str
    created: bool
    epoch: int
    config: TopicConfig


class Dropped(Struct):
    topic: str
    deleted: bool
    routers_removed: list[str] = []


class Written(Struct):
    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool
    seqs: list[int] | None = None


class Diff(Struct):
    topic: str
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int
    epoch: int = 0
    tombstone: Tombstone | None = None


class End(Struct):
    """The end of a bulk read: every seq up to `next_from_seq` was delivered, reported as lost, deleted or filtered."""

    next_from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int


class Deleted(Struct):
    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class RouterSummary(Struct):
    router: str
    source: str
    dest: str
    guarantee: str
    cursor: int
    lag: int
    last_error: str | None = None


class Router(RouterSummary, kw_only=True):
    preserve_node: bool
    preserve_tag: bool
    filter: list[str] | None = None


class Routers(Struct):
    routers: list[RouterSummary]
    next_cursor: str | None = None


class Archived(Struct):
    topic: str
    epoch: int
    archived_seq: int
    head_seq: int
    moved: bool


class StoredConsumer(Struct):
    topic: str
    consumer: str
    created: bool
    epoch: int
    seq: int
    head_seq: int


class _ErrorFields(Struct):
    code: str
    message: str = ""
    detail: dict[str, Any] | None = None


class _ErrorEnvelope(Struct):
    error: _ErrorFields


_decode_diff = msgspec.json.Decoder(Diff).decode


def server_at(url: str) -> Server:
    """Parse a base URL such as `http://127.0.0.1:4000`. Raise `ValueError` if it is not an http(s) URL."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not the http(s) URL of a server")
    secure = parts.scheme == "https"
    return Server(parts.hostname, parts.port or (443 if secure else 80), secure, parts.path.rstrip("/"))


# --- verbs


def put_topic(topic: str, config: Mapping[str, Any]) -> ApiCall:
    return ApiCall("PUT", _topic(topic), encode(_checked(config)))


def get_topic(topic: str, *, touch: bool = False) -> ApiCall:
    return ApiCall("GET", _topic(topic) + _query(touch="true" if touch else "false"))


def list_topics(*, prefix: str = "", cursor: str | None = None, page_size: int = 1000) -> ApiCall:
    return ApiCall("GET", "/v0/topics" + _query(prefix=prefix, cursor=cursor, page_size=page_size))


def drop_topic(topic: str, *, if_empty: bool = False) -> ApiCall:
    return ApiCall("DELETE", _topic(topic) + _query(if_empty="true" if if_empty else None))


def append(
    topic: str,
    records: Sequence[Mapping[str, Any] | Raw],
    *,
    node: str | None = None,
    idempotency_key: str | None = None,
    create: bool | None = None,
    config: Mapping[str, Any] | None = None,
    disable_backpressure: bool = False,
    return_seqs: bool = False,
) -> ApiCall:
    """Append records: mappings with `data` and optionally `tag`, `node`, `meta`, or encoded JSON objects."""
    body: dict[str, Any] = {"records": records}
    if node is not None:
        body["node"] = node
    if idempotency_key is not None:
        body["idempotency_key"] = idempotency_key
    if create is not None:
        body["create"] = create
    if config is not None:
        body["config"] = _checked(config)
    if disable_backpressure:
        body["disable_backpressure"] = True
    query = "" if return_seqs else _query(return_seqs="false")
    return ApiCall("POST", _topic(topic) + query, encode(body), safe=idempotency_key is not None)


def diff(topic: str, *, from_seq: int = 0, wait_ms: int = 0, **fields: Any) -> ApiCall:
    """Read one page. `fields` are those of `DiffRequest`: limit, node, include_tags, filter, from_ts, epoch …"""
    body = {"from_seq": from_seq, "wait_ms": wait_ms, **_fields(fields, DiffRequest)}
    return ApiCall("POST", _topic(topic) + "/diff", encode(body), timeout_ms=wait_ms)


def scan(topic: str, *, from_seq: int = 0, accept: str = SEGMENTS, **fields: Any) -> ApiCall:
    """Read in bulk. `fields` are those of `ScanRequest`: upto_seq, node, filter …; include_tags is for JSON lines."""
    body = {"from_seq": from_seq, **_fields(fields, ScanRequest)}
    return ApiCall("POST", _topic(topic) + "/scan", encode(body), accept=accept)


def delete(
    topic: str,
    *,
    before_seq: int | None = None,
    match: str | Sequence[str] | None = None,
    seqs: Sequence[int] | None = None,
    epoch: int | None = None,
    dry_run: bool = False,
) -> ApiCall:
    """Delete by seq, by tag or both, or a list of `seqs`. The request fails if the topic has another `epoch`."""
    body: dict[str, Any] = {}
    if seqs is not None:
        body["seqs"] = list(seqs)
    if epoch is not None:
        body["epoch"] = epoch
    if dry_run:
        body["dry_run"] = True
    if before_seq is not None:
        body["before_seq"] = before_seq
    if match is not None:
        body["match"] = match
    return ApiCall("POST", _topic(topic) + "/delete", encode(body))


def archived(topic: str, *, seq: int, epoch: int, trimmed_seq: int = 0) -> ApiCall:
    body = {"seq": seq, "epoch": epoch, "trimmed_seq": trimmed_seq}
    return ApiCall("POST", _topic(topic) + "/archived", encode(body))


def put_consumer(topic: str, consumer: str, *, seq: int, epoch: int) -> ApiCall:
    path = f"{_topic(topic)}/consumers/{quote(consumer, safe='')}"
    return ApiCall("PUT", path, encode({"seq": seq, "epoch": epoch}))


def get_router(router: str) -> ApiCall:
    return ApiCall("GET", f"/v0/routers/{quote(router, safe='')}")


def list_routers(
    *,
    prefix: str | None = None,
    source: str | None = None,
    dest: str | None = None,
    cursor: str | None = None,
    page_size: int = 1000,
) -> ApiCall:
    query = _query(prefix=prefix, source=source, dest=dest, cursor=cursor, page_size=page_size)
    return ApiCall("GET", "/v0/routers" + query)


def ready() -> ApiCall:
    return ApiCall("GET", "/v0/ready")


# --- answers


def diff_answer(body: bytes) -> Diff:
    """Decode the answer of `diff`. Half surrogate pairs, which the decoder rejects, are masked and then restored."""
    try:
        answer = _decode_diff(body)
    except msgspec.DecodeError:
        masked = surrogates.mask(body)
        if masked is None:
            raise
        answer = _decode_diff(masked.text)
        for record in answer.records:
            record.data = masked.restore(record.data)
            if not isinstance(record.meta, msgspec.UnsetType):
                record.meta = masked.restore(record.meta)
    if answer.tombstone is not None:
        answer.tombstone.epoch = answer.epoch
    return answer


def upto(items: Iterable[Record | Tombstone], last: int) -> Iterator[Record | Tombstone]:
    """Yield the items of a read up to the seq `last`, without reading further. A gap across `last` is clipped."""
    for item in items:
        if isinstance(item, Record):
            if item.seq > last:
                return
        elif item.reason != "recreated":  # which reports a new epoch, not a range
            if item.gap_from > last:
                return
            if item.gap_to > last:
                missed = min(item.missed_estimate, last - item.gap_from + 1)
                item = structs.replace(item, gap_to=last, missed_estimate=missed)
        yield item


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> TopicsError:
    """Return the error of a non-2xx answer. If the body is not ours (but a proxy's), the status decides the code."""
    try:
        error = msgspec.json.decode(body, type=_ErrorEnvelope).error
        code, message, detail = BY_WIRE.get(error.code, Code.INTERNAL), error.message, error.detail
    except msgspec.MsgspecError:
        known = [code for code in Code if code.status == status]
        code, message, detail = (known or [Code.INTERNAL])[0], f"the server answered {status}", None
    return TopicsError(code, message, detail=detail, retry_after_ms=_retry_after(headers, detail))


def refusal(error: TopicsError, call: ApiCall, url: str, *, has_key: bool) -> str:
    """Return the message for a 401 or 403: which right is missing, for what, and on which server."""
    if error.code is Code.UNAUTHORIZED:
        return f"{url} does not know the key" if has_key else f"{url} asks for a key, and none was given"
    detail = error.detail or {}
    if "scope" in detail:
        what = _named_in(call.path)
        return f"the key lacks the scope {' and '.join(detail['scope'])}{what and f' for {what}'} on {url}"
    if "name" in detail:
        return f"the key may not use {detail['name']} on {url}: its prefixes do not cover that name"
    return f"{url}: {error.message}"


def _named_in(path: str) -> str:
    """Return the topic or router that a path names, or an empty string."""
    parts = path.partition("?")[0].split("/")
    return f"{parts[2].removesuffix('s')} {unquote(parts[3])}" if len(parts) > 3 else ""


def _retry_after(headers: Mapping[str, str], detail: dict[str, Any] | None) -> int | None:
    retry_after_ms = (detail or {}).get("retry_after_ms")
    if isinstance(retry_after_ms, int):
        return retry_after_ms
    seconds = headers.get("retry-after", "")
    return int(seconds) * 1000 if seconds.isdigit() else None


def _fields(given: Mapping[str, Any], request: type[Struct]) -> dict[str, Any]:
    """Return the fields that are not None. Raise `TypeError` for an unknown field: a server would ignore it."""
    for name in given:
        if name not in request.__struct_fields__:
            raise TypeError(f"there is no field {name!r}; the fields are {', '.join(request.__struct_fields__)}")
    return {name: value for name, value in given.items() if value is not None}


def _checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings after a check of their names. None is kept: it resets a setting to its default."""
    _fields(config, ConfigPatch)
    return dict(config)


def _topic(name: str) -> str:
    return f"/v0/topics/{quote(name, safe='')}"


def _query(**given: Any) -> str:
    present = {key: value for key, value in given.items() if value not in (None, "")}
    return f"?{urlencode(present)}" if present else ""
