"""The surface of the clients: every route and every error code is there, typed and explained, in all three clients."""

import inspect
import json
import re
from pathlib import Path

import httpx
import pytest

from tools.docs import names
from topics.client import AsyncTopics, Topics, errors
from topics.client._async.queues import AsyncJob
from topics.client._async.writer import AsyncWriter
from topics.errors import Code
from topics.server.api.route_table import ROUTES

JAVASCRIPT = Path(__file__).parents[2] / "clients" / "js" / "topics.js"
PUBLIC = [
    (kind, name)
    for kind in (AsyncTopics, AsyncWriter, AsyncJob)
    for name, value in inspect.getmembers(kind, callable)
    if not name.startswith("_")
]


def test_each_code_is_a_class_of_its_own() -> None:
    assert errors.BY_CODE.keys() == set(Code)
    assert len(set(errors.BY_CODE.values())) == len(Code)


def test_javascript_has_the_same_errors_as_python() -> None:
    text = JAVASCRIPT.read_text()
    table = re.findall(r"^  (\w+): (\w+),$", text[text.index("const ERRORS") : text.index("const RETRYABLE")], re.M)
    assert dict(table) == {code.wire: kind.__name__ for code, kind in errors.BY_CODE.items()}
    retryable = re.search(r"const RETRYABLE = new Set\(\[(.*?)\]\)", text, re.S)
    assert retryable is not None
    assert set(re.findall(r'"(\w+)"', retryable[1])) == {code.wire for code in Code if code.retryable}


def test_every_route_has_a_method() -> None:
    asked = {("GET", "/v0/ws"), *(route for _, route in names.routes_of_methods())}
    assert asked == {
        (route.method, route.path) for route in ROUTES if route.path.startswith("/v0") and not route.signed
    }


def test_clients_differ_only_as_the_table_of_names_explains() -> None:
    page = Path(__file__).parents[2] / "docs" / "guide" / "client-names.md"
    assert page.read_text() == names.page(), "run `make docs`"


def test_difference_without_a_reason_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(names.WHY, "strong")
    with pytest.raises(ValueError, match="watch: strong"):
        names.page()


@pytest.mark.parametrize("option", ["key", "idempotency_key"])
def test_idempotency_key_has_its_long_name_too(option: str) -> None:
    sent: list[object] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content)["idempotency_key"])
        return httpx.Response(403, json={"error": {"code": "forbidden", "message": "no"}})

    with Topics(transport=httpx.MockTransport(answer)) as topics:
        for append in (lambda **key: topics.append("a", 1, **key), lambda **key: topics.append_many("a", [], **key)):
            with pytest.raises(errors.Forbidden):
                append(**{option: "order-7"})
    assert sent == ["order-7", "order-7"]


def test_settings_of_a_newer_server_are_ignored() -> None:
    config = {"type": "log", "not_yet_known": 1, "archive": {"hold": True, "also_new": 2}}
    state = {
        "topic": "a", "type": "log", "epoch": 1, "head_seq": 0, "earliest_seq": 1, "next_seq": 1, "count": 0,
        "bytes": 0, "config": config, "effective_priority": 0, "last_write_ts": None, "last_read_ts": None,
        "created": True, "performance": {"server_total_ms": 0.1},
    }  # fmt: skip
    with Topics(transport=httpx.MockTransport(lambda request: httpx.Response(200, json=state))) as topics:
        for found in (topics.topic("a"), topics.put_topic("a")):
            assert found.config.archive is not None
            assert found.config.archive.hold


@pytest.mark.parametrize(("kind", "name"), PUBLIC, ids=lambda value: getattr(value, "__name__", value))
def test_method_is_typed_and_explained(kind: type, name: str) -> None:
    method = getattr(kind, name)
    assert method.__doc__, f"{kind.__name__}.{name} has no docstring"
    signature = inspect.signature(method)
    for parameter in list(signature.parameters.values())[1:]:
        assert parameter.annotation not in (inspect.Parameter.empty, "Any"), f"{parameter} of {name} has no type"
    assert signature.return_annotation != inspect.Signature.empty


@pytest.mark.parametrize(("kind", "name"), PUBLIC, ids=lambda value: getattr(value, "__name__", value))
def test_docstring_has_an_example(kind: type, name: str) -> None:
    assert re.search(rf"\b{name}\(", getattr(kind, name).__doc__), f"no example for {kind.__name__}.{name}"


def test_sync_client_has_the_methods_of_the_async_one() -> None:
    def names(kind: type) -> set[str]:
        return {name.replace("aclose", "close") for name in dir(kind) if not name.startswith("_")}

    assert names(Topics) == names(AsyncTopics)


def test_javascript_has_the_methods_of_python() -> None:
    """The names are the same in camelCase. `worker`, `run` and `stop` are `work` with a signal."""
    text = JAVASCRIPT.read_text()
    javascript = set(re.findall(r"^  (?:async |\*)*\*?(\w+)\(", text[text.index("export class Topics ") :], re.M))
    only_python = {"aclose", "worker", "run", "stop", "writer", "scan_bytes"}
    wanted = {name for kind, name in PUBLIC if kind is AsyncTopics} - only_python
    camel = {re.sub(r"_(\w)", lambda letter: letter[1].upper(), name) for name in wanted}
    assert camel - javascript == set()


def test_types_name_every_class_and_method_of_the_module() -> None:
    types = JAVASCRIPT.with_suffix(".d.ts").read_text()
    text = JAVASCRIPT.read_text()
    for name in re.findall(r"^export (?:class|function) (\w+)", text, re.M):
        assert f"class {name}" in types, f"{name} is not in topics.d.ts: run tsc -p clients/js"
    for name in re.findall(
        r"^  (?:async |\*)*\*?([a-z]\w+)\([^)]*\) \{$", text[text.index("export class Topics ") :], re.M
    ):
        if name not in ("constructor", "for", "while", "if", "switch", "catch"):
            assert re.search(rf"\b{name}[(<]", types), f"{name} is not in topics.d.ts: run tsc -p clients/js"
