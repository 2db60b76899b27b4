"""Generate docs/reference/names.md: the methods and options of the Python and the JavaScript client, side by side.

`python -m tools.docs.names > docs/guide/client-names.md` writes the page. A test fails if the clients differ in a way
that this module does not explain.
"""

import asyncio
import inspect
import re
import sys
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from topics.client import AsyncTopics
from topics.client.errors import Forbidden
from topics.server.api.route_table import ROUTES

INTRODUCTION = """\
# Names in the clients

This page lists the names of the API in the Python and the JavaScript client. `make docs` generates it from both clients.

```python
from topics.client import Topics

with Topics() as topics:
    topics.append("orders", {"sku": "V60"}, idempotency_key="order-7", record_key="ada")
```

```js
import { Topics } from "./topics.mjs" // curl -so topics.mjs localhost:4000/client.js

const topics = new Topics()
await topics.append("orders", { sku: "V60" }, { idempotencyKey: "order-7", recordKey: "ada" })
```

| | API | Python | JavaScript |
|---|---|---|---|
| options and fields that you send | `from_seq` | `from_seq` | `fromSeq` |
| answers that are objects of the client: records, gaps, jobs, pages | `$seq`, `next_from_seq` | `seq`, `next_from_seq` | `seq`, `nextFromSeq` |
| answers of the server: the state of a topic, a router, a consumer | `head_seq` | `head_seq` | `head_seq` |
| times | `lease_ms` | `lease_ms`; of the client itself in seconds: `timeout_s` | `leaseMs`, `timeoutMs` |
| the idempotency key of an append | `idempotency_key` | `idempotency_key`, or `key` | `idempotencyKey` |
| the key of a record | `key` in the record | `record_key`; `key` of `NewRecord` | `recordKey`, or `key`; `key` in `appendMany` |
| what `append` returns | `first_seq`, … | `Appended`: `.seq`, `.deduped`, `.created` | the seq; `appendMany` returns the whole answer |
| to end a call | – | `break`, or cancel the task | the option `signal`, or `break` |

## Methods

The options of a method are the same in both clients, except where the last column says otherwise.

| route | Python | JavaScript | options that one of them lacks |
|---|---|---|---|
"""  # noqa: E501 (rows of tables)

# Methods that one client has under another name, or not at all.
JAVASCRIPT_NAMES = {
    "aclose": None, "run": None, "scan_bytes": None, "stop": None, "worker": "work", "writer": None,
}  # fmt: skip
WITHOUT_ROUTE = {
    "server": "the client of one server of a map of prefixes",
    "aclose": "The JavaScript client holds no connections.",
    "follow": "`diff`, repeated",
    "is_ready": "`GET /v0/ready`, as true or false",
    "jobs": "`claim`, `ack` and `nack`, repeated",
    "read": "`diff` up to the head",
    "run": "runs the workers. In JavaScript, await `work`.",
    "scan_bytes": "`scan` without decoding",
    "stop": "ends `run`. In JavaScript, abort the `signal` of `work`.",
    "worker": "`claim`, `ack` and `nack`. A decorator in Python, a call in JavaScript",
    "writer": "`append_many` in the background",
}
JAVASCRIPT_ONLY = "| a WebSocket: `GET /v0/ws` | – | `connect` |  |\n"
OF_CLIENT_OBJECTS = {"commit"}  # takes rows, and no options
IGNORED = {"signal"}  # in the first table

# Why one client has an option and the other one does not. An option that is not here fails a test.
WHY = {
    "after": "for `preview_schedule` only",
    **dict.fromkeys(("catch_up", "jitter_ms", "overlap"), "`preview_schedule` of Python takes a whole schedule"),
    "config": "an argument of its own in one of them",
    "consistency": "`strong` in Python",
    "handle_signals": "JavaScript programs handle signals themselves",
    "heartbeat_ms": "`follow` of Python reads pages, that of JavaScript a stream",
    "if_new": "`ifSeq: null` in JavaScript",
    "include_data": "`follow` of Python reads pages, that of JavaScript a stream",
    "include_meta": "JavaScript can leave them out",
    "include_tags": "JavaScript can leave them out",
    "key": "short for `idempotency_key` in Python, and for `recordKey` in JavaScript",
    "limit": "the size of a page, which Python chooses",
    "max_batch_bytes": "the size of a page, which Python chooses",
    "on_retry": "JavaScript calls it before each attempt",
    "page_records": "`follow` of Python reads pages, that of JavaScript a stream",
    "page_size": "Python chooses it",
    "paused": "the second argument of `pauseSchedule`; `preview_schedule` of Python takes a whole schedule",
    "retries": "of one call; both have it for the whole client",
    "strong": '`consistency: "strong"` in JavaScript',
    "timeout_ms": "`timeout_s` in Python",
    "timeout_s": "`timeoutMs` in JavaScript",
    "type": "`topics.read<Order>(…)` in TypeScript, which checks nothing at run time",
    "wait_for_topic": "`wait_for_topics` in Python",
    "wait_for_topics": "`waitForTopic` in JavaScript",
    "wait_ms": "`follow` of Python reads pages, that of JavaScript a stream",
}

Call = Callable[[AsyncTopics], Any]

# One call for each route. Calls that read a stream end when the stream does.
CALLS: list[tuple[str, Call]] = [
    ("put_topic", lambda t: t.put_topic("a")),
    ("topic", lambda t: t.topic("a")),
    ("topics", lambda t: t.topics()),
    ("drop_topic", lambda t: t.drop_topic("a")),
    ("append", lambda t: t.append("a", 1)),
    ("append_many", lambda t: t.append_many("a", [])),
    ("diff", lambda t: t.diff("a")),
    ("scan", lambda t: t.scan("a")),
    ("delete", lambda t: t.delete("a", before_seq=1)),
    ("report_archived", lambda t: t.report_archived("a", seq=1, epoch=1)),
    ("put_consumer", lambda t: t.put_consumer("a", "a", seq=1)),
    ("consumer", lambda t: t.consumer("a", "a")),
    ("consumers", lambda t: t.consumers("a")),
    ("consumers", lambda t: t.consumers()),
    ("commit", lambda t: t.commit([("a", "a", 1)])),
    ("drop_consumer", lambda t: t.drop_consumer("a", "a")),
    ("watch", lambda t: t.watch(["a"])),
    ("claim", lambda t: t.claim("a", node="w")),
    ("ack", lambda t: t.ack("a", [1], node="w")),
    ("nack", lambda t: t.nack("a", [1], node="w")),
    ("extend", lambda t: t.extend("a", [1], node="w", lease_ms=1000)),
    ("pushed_jobs", lambda t: t.pushed_jobs("a", handle_signals=False)),
    ("list_jobs", lambda t: t.list_jobs("a")),
    ("redrive", lambda t: t.redrive("a")),
    ("put_router", lambda t: t.put_router("a", source="a", dest="b")),
    ("router", lambda t: t.router("a")),
    ("routers", lambda t: t.routers()),
    ("drop_router", lambda t: t.drop_router("a")),
    ("preview_router", lambda t: t.preview_router("a")),
    ("put_schedule", lambda t: t.put_schedule("a", topic="a", record={"data": 1}, every_ms=1000)),
    ("schedule", lambda t: t.schedule("a")),
    ("schedules", lambda t: t.schedules()),
    ("drop_schedule", lambda t: t.drop_schedule("a")),
    ("run_schedule", lambda t: t.run_schedule("a")),
    ("pause_schedule", lambda t: t.pause_schedule("a", paused=False)),
    ("preview_schedule", lambda t: t.preview_schedule("a", cron="@hourly")),
    ("create_token", lambda t: t.create_token()),
    ("revoke_tokens", lambda t: t.revoke_tokens(id="a")),
    ("create_key", lambda t: t.create_key("a")),
    ("keys", lambda t: t.keys()),
    ("rotate_key", lambda t: t.rotate_key("a")),
    ("revoke_key", lambda t: t.revoke_key("a")),
    ("health", lambda t: t.health()),
    ("ready", lambda t: t.ready()),
    ("metrics", lambda t: t.metrics()),
    ("openapi", lambda t: t.openapi()),
    ("samples", lambda t: t.samples()),
    ("sql", lambda t: t.sql("select 1")),
    ("replica", lambda t: t.replica()),
    ("promote", lambda t: t.promote("a")),
    ("whoami", lambda t: t.whoami()),
    ("schema", lambda t: t.schema("a")),
    ("timeline", lambda t: t.timeline("a")),
]

JAVASCRIPT = Path(__file__).parents[2] / "clients" / "js" / "topics.js"


def javascript_options() -> dict[str, list[str]]:
    """Return the options of each method, from the table that the JavaScript client checks calls with."""
    text = JAVASCRIPT.read_text()
    lists: dict[str, list[str]] = {}
    for name, body in re.findall(r"^const ([A-Z_]+) = \[(.*?)\]$", text, re.M | re.S):
        lists[name] = _names(body, lists)
    table = text[text.index("const OPTIONS = ") :]
    rows = re.findall(r'^  (?:"([^"]+)"|(\w+)): (?:\[(.*?)\]|([A-Z_]+)),$', table[: table.index("\n}\n")], re.M | re.S)
    return {quoted or plain: _names(body or f"...{one}", lists) for quoted, plain, body, one in rows}


def _names(body: str, lists: dict[str, list[str]]) -> list[str]:
    """Return the texts of an array, with those of other arrays in place of `...NAME`."""
    found: list[str] = []
    for spread, name in re.findall(r'\.\.\.([A-Z_]+)|"(\w+)"', body):
        found += lists[spread] if spread else [name]
    return found


def routes_of_methods() -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each method of the Python client that is one request, with the method and the path of its route."""
    paths = {(route.method, re.sub(r"\{\w+\}", "a", route.path)): route.path for route in ROUTES}
    for name, call in CALLS:
        asked: list[tuple[str, str]] = []
        asyncio.run(_ask(call, asked))
        yield from ((name, (verb, paths[verb, path])) for verb, path in dict.fromkeys(asked))


async def _ask(call: Call, asked: list[tuple[str, str]]) -> None:
    """Make a call against a server that refuses everything but a watch session, and note what it was asked for."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.url.path))
        if request.url.path == "/v0/watch":
            times = {"session_ttl_ms": 1000, "performance": {"server_total_ms": 0.1}}
            return httpx.Response(200, json={"wid": "a", "stream_url": "/v0/watch/a", "topics": {}, **times})
        return httpx.Response(403, json={"error": {"code": "forbidden", "message": "no"}})

    async with AsyncTopics("http://127.0.0.1:4000", transport=httpx.MockTransport(answer)) as topics:
        made = call(topics)
        try:
            await (anext(made) if isinstance(made, AsyncIterator) else made)
        except Forbidden:
            return
    raise AssertionError(f"{asked} was not refused")


def python_options(method: Callable[..., Any]) -> list[str]:
    """Return the keyword arguments of a method, with those of its `**` argument."""
    found = []
    for parameter in inspect.signature(method).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            found.append(parameter.name)
        elif parameter.kind is parameter.VAR_KEYWORD:
            unpacked = typing.get_type_hints(method, include_extras=True)[parameter.name]
            found += typing.get_type_hints(typing.get_args(unpacked)[0])
    return found


def camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda letter: letter[1].upper(), name)


def differences(name: str, method: Callable[..., Any], options: dict[str, list[str]]) -> str:
    """Return the cell of a method: the options that one client lacks, and why. Raise `ValueError` without a reason."""
    javascript = JAVASCRIPT_NAMES.get(name, camel(name))
    if javascript is None or name in OF_CLIENT_OBJECTS:
        return ""
    ours, theirs = python_options(method), options.get(javascript, [])
    python_only = [option for option in ours if camel(option) not in theirs]
    known = {camel(option) for option in (*ours, *inspect.signature(method).parameters)}
    javascript_only = [snake(option) for option in theirs if option not in known]
    parts = []
    for language, names in (("Python", python_only), ("JavaScript", javascript_only)):
        wanted = [option for option in names if option not in IGNORED]
        if unexplained := [option for option in wanted if option not in WHY]:
            raise ValueError(f"{name}: {', '.join(unexplained)} is in {language} only; explain it in WHY")
        shown = [f"`{option if language == 'Python' else camel(option)}`" for option in wanted]
        parts += [f"{language} only: {', '.join(shown)}"] if shown else []
    return "; ".join(parts)


def snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def page() -> str:
    """Return the page."""
    options = javascript_options()
    routes: dict[str, list[str]] = {}
    for name, (verb, path) in routes_of_methods():
        if f"`{verb} {path}`" not in routes.setdefault(name, []):
            routes[name].append(f"`{verb} {path}`")
    rows, used = [], set()
    methods = {name: value for name, value in inspect.getmembers(AsyncTopics, callable) if not name.startswith("_")}
    for name, method in sorted(methods.items(), key=lambda row: (row[0] not in routes, row[0])):
        javascript = JAVASCRIPT_NAMES.get(name, camel(name))
        cell = differences(name, method, options)
        used |= set(re.findall(r"`(\w+)`", cell))
        where = ", ".join(routes[name]) if name in routes else WITHOUT_ROUTE[name]
        rows.append(f"| {where} | `{name}` | {f'`{javascript}`' if javascript else '–'} | {cell} |\n")
    reasons = [f"| `{option}` | {WHY[snake(option)]} |\n" for option in sorted(used)]
    return "".join(
        [INTRODUCTION, *rows, JAVASCRIPT_ONLY, "\n## Why they differ\n\n| option | |\n|---|---|\n", *reasons]
    )


if __name__ == "__main__":
    sys.stdout.write(page())
