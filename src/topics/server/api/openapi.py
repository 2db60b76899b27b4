"""The OpenAPI 3.1 document, generated from the route table, with the descriptions and examples of the operations.

`openapi_operations.json` has one entry per operation: what it does, a request, and the answer that a server gave to it.
The entries are in an order in which a new server can answer all requests; `tests/contract/test_openapi.py` sends them.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from topics import __version__
from topics.engine.steps import Steps, run_all
from topics.errors import Code
from topics.model import names
from topics.model.error_meanings import MEANINGS
from topics.model.queue import ListedJob
from topics.model.topic import DEFAULT_CONFIG, ArchiveConfig, ConfigPatch, TopicConfig
from topics.model.wire import ErrorAnswer
from topics.server.access.operations import CHANGES, Scope
from topics.server.api.openapi_fields import meaning
from topics.server.api.route import Route
from topics.server.push import scan_formats as formats

FILE = Path(__file__).with_name("openapi_operations.json")

TAGS = {
    "topics": "Streams of records: create and configure them, and list them.",
    "records": "Append, read and delete records.",
    "consumers": "Positions of readers, by name, with their lag.",
    "watch": "New records as they arrive, over event streams and WebSockets.",
    "queues": "Topics whose records are jobs: workers lease them, and ack them when they are done.",
    "routers": "Copies of records from topic to topic.",
    "server": "Probes, metrics, this document, the console and the JavaScript client.",
}

PATH_PARAMETERS = {
    "topic": "the name of a topic",
    "router": "the name of a router",
    "consumer": "the name of a consumer",
    "wid": "`wid` of the watch session",
    "file": "the name of a file",
}


class Described(Struct, forbid_unknown_fields=True):
    """One operation. `answer` is the body of the answer with `status`; text for an answer that is no JSON."""

    description: str
    path: dict[str, str] = {}
    query: dict[str, str] = {}
    body: Any = UNSET
    status: int = 200
    answer: Any = UNSET


@lru_cache(maxsize=1)
def described() -> dict[str, Described]:
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, Described])


# Errors that any route can return.
_EVERYWHERE = (Code.INVALID_REQUEST, Code.REQUEST_TIMEOUT, Code.HEADERS_TOO_LARGE)
_WITH_BODY = (Code.PAYLOAD_TOO_LARGE, Code.UNSUPPORTED_MEDIA_TYPE)
_WITH_SCOPE = (Code.UNAUTHORIZED, Code.FORBIDDEN, Code.THROTTLED)
_WHILE_STARTING = (Code.NOT_READY, Code.SHUTTING_DOWN)
_PATTERNS = {"topic": names.TOPIC_PATTERN, "router": names.ROUTER_PATTERN, "consumer": names.TOPIC_PATTERN}
_TAGS = {
    "/consumers": "consumers",
    "/routers": "routers", "/watch": "watch", "/ws": "watch", "/claim": "queues", "/ack": "queues", "/nack": "queues",
    "/extend": "queues", "/work": "queues", "/jobs": "queues", "/redrive": "queues", "/diff": "records",
    "/scan": "records", "/delete": "records", "/archived": "records", "/topics": "topics",
}  # fmt: skip
_WARNINGS = {"type": "array", "items": {"type": "string"}}
_CONFIG_DEFAULTS = msgspec.to_builtins(DEFAULT_CONFIG)
_TYPES = {bool: "boolean", int: "integer", str: "string"}
_TEXT, _BINARY = {"type": "string"}, {"type": "string", "format": "binary"}
# What else than its first type a route can answer with, by its first type.
_OTHER_TYPES = {
    formats.NDJSON.decode(): {
        formats.TEXT.decode(): _TEXT, formats.SEGMENTS.decode(): _BINARY, formats.ARROW.decode(): _BINARY,
    },
}  # fmt: skip
_ANSWERS = {
    "application/x-ndjson": "A record per line, and a last line with the end.",
    "text/event-stream": "Server-sent events, without end.",
    "text/plain": "Prometheus text exposition.",
    "text/javascript": "An ES module.",
    "text/html": "A page.",
    "application/json": "JSON messages in both directions.",
}


def document(routes: Sequence[Route]) -> bytes:
    return run_all(document_steps(routes))


def document_steps(routes: Sequence[Route]) -> Steps[bytes]:
    """Return the document as JSON, made in steps of a type or a route each: all together take some 50 ms."""
    schema_of, components = yield from _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        yield None
        operation = _operation(route, schema_of)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
        if route.method == "GET" and not route.stream:
            paths[route.path]["head"] = operation | {
                "operationId": operation["operationId"] + "_head",
                "summary": f"{operation['summary']}: the headers alone",
                "responses": {
                    status: {"description": answer["description"]} for status, answer in operation["responses"].items()
                },
            }
    return (
        msgspec.json.encode(
            {
                "openapi": "3.1.0",
                "info": {
                    "title": "topics",
                    "version": __version__,
                    "summary": "A persistent event engine for one machine.",
                    "description": "JSON over HTTP. Every answer has a `performance` field with the time it took. An "
                    "answer with a top-level `error` is a failure; branch on `error.code`. Times are milliseconds, and "
                    "seqs unsigned 64-bit integers.",
                    "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
                },
                "servers": [{"url": "http://127.0.0.1:4000", "description": "The default address."}],
                "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
                "paths": paths,
                "components": {
                    "schemas": components,
                    "examples": {
                        code.wire: {
                            "summary": code.wire,
                            "value": {
                                "error": {"code": code.wire, "message": MEANINGS[code].replace("`", "")},
                                "performance": {"server_total_ms": 0.05},
                            },
                        }
                        for code in Code
                    },
                    "securitySchemes": {
                        "bearer": {
                            "type": "http",
                            "scheme": "bearer",
                            "description": "An API key. A server without keys needs none.",
                        }
                    },
                },
                "security": [{"bearer": []}, {}],
            }
        )
        + b"\n"
    )


def _schemas(routes: Sequence[Route]) -> Steps[tuple[dict[Any, Any], dict[str, Any]]]:
    types = [ErrorAnswer]
    for route in routes:
        types += [kind for kind in (route.body, *route.answers.values()) if _is_schema(kind)]
    schema_of: dict[Any, Any] = {}
    components: dict[str, Any] = {}
    for kind in dict.fromkeys(types):
        (schema_of[kind],), found = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
        components |= found
        yield None
    for kind in {kind for route in routes for kind in route.answers.values() if _is_schema(kind)}:
        components[kind.__name__]["properties"]["warnings"] = dict(_WARNINGS)
    for name in (TopicConfig.__name__, ArchiveConfig.__name__):  # answers of later versions have more settings
        components.get(name, {}).pop("additionalProperties", None)
    for name, component in components.items():
        for field, schema in component.get("properties", {}).items():
            if (text := meaning(name, field)) is not None:
                schema["description"] = text
            # The default moves to the description, because generators make a field with a default a required one.
            if (default := schema.pop("default", None)) is not None:
                shown = f"default: {msgspec.json.encode(default).decode()}"
                schema["description"] = f"{schema['description']}; {shown}" if "description" in schema else shown
            if "enum" in schema and all(isinstance(value, str) for value in schema["enum"]):
                schema["type"] = "string"
            if name == ConfigPatch.__name__ and (default := _CONFIG_DEFAULTS[field]) is not None:
                schema["description"] += f"; default: {msgspec.json.encode(default).decode()}"
    if (job := components.get(ListedJob.__name__)) is not None:
        # A job has `node`, its worker, and `$node`, its sender. Generators drop the sign, and would name both alike.
        del job["properties"]["$node"]
        job["description"] += " `$node`, the node that sent the job, is a further member if it has one."
    return schema_of, components


def _operation(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    name = operation_name(route)
    texts = described().get(name, Described(""))
    tag = next((tag for part, tag in _TAGS.items() if part in route.path), "server")
    operation: dict[str, Any] = {
        "operationId": name + ("_at_root" if route.path in ("/healthz", "/readyz", "/metrics") else ""),
        "tags": ["records" if name == "append" else tag],
        "summary": route.summary,
        "description": texts.description,
        "parameters": _parameters(route, texts),
        "responses": {str(status): _answer(status, kind, schema_of, texts) for status, kind in route.answers.items()},
    }
    if route.scope:
        operation["x-scope"] = [scope.name.lower() for scope in Scope if scope in route.scope and scope.name]
    if route.body is not None:
        content = {"schema": schema_of[route.body]}
        needed = any(field.required for field in msgspec.structs.fields(route.body))
        if texts.body is not UNSET:
            content["example"] = texts.body
        operation["requestBody"] = {"required": needed, "content": {"application/json": content}}
    codes = [*_EVERYWHERE, *route.errors]
    if Code.READ_ONLY in codes:
        codes += [Code.REPLICA_UNAVAILABLE, Code.FENCED]
    if route.scope & CHANGES:
        codes.append(Code.NOT_WRITER)
    if route.body is not None:
        codes += _WITH_BODY
    if route.scope:
        codes += _WITH_SCOPE
    elif route.probe:
        codes += (Code.UNAUTHORIZED,)
    if route.while_recovering is None:
        codes += _WHILE_STARTING
    by_status: dict[int, list[Code]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(code.status, []).append(code)
    for status, codes in by_status.items():
        examples = {code.wire: {"$ref": f"#/components/examples/{code.wire}"} for code in codes}
        operation["responses"][str(status)] = {
            "description": " or ".join(f"`{code.wire}`" for code in codes),
            "content": {"application/json": {"schema": schema_of[ErrorAnswer], "examples": examples}},
        }
    return operation


def _answer(status: int, kind: Any, schema_of: dict[Any, Any], texts: Described) -> dict[str, Any]:
    if isinstance(kind, str):
        content: dict[str, Any] = {kind: {"schema": _TEXT}}
        content |= {other: {"schema": schema} for other, schema in _OTHER_TYPES.get(kind, {}).items()}
        if isinstance(texts.answer, str):
            content[kind] = {"schema": _TEXT, "example": texts.answer}
        return {"description": _ANSWERS.get(kind, kind), "content": content}
    described = {"schema": schema_of.get(kind, {"type": "object"})}
    if isinstance(texts.answer, dict):
        example = texts.answer
        described["example"] = example | {"created": status == 201} if "created" in example else example
    description = (kind.__doc__ or "").strip().split("\n")[0] if _is_schema(kind) else ""
    return {"description": description or "Success.", "content": {"application/json": described}}


def _is_schema(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def operation_name(route: Route) -> str:
    """Return the name of the operation. Two paths to the same operation share it."""
    return route.handler.__name__


def _parameters(route: Route, texts: Described) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in re.findall(r"{(\w+)}", route.path):
        schema: dict[str, Any] = {"type": "string"}
        if name in _PATTERNS:
            schema["pattern"] = _PATTERNS[name]
        text = PATH_PARAMETERS.get(name, name)
        rows.append({"name": name, "in": "path", "required": True, "description": text, "schema": schema})
        if name in texts.path:
            rows[-1]["example"] = texts.path[name]
    for row in route.query:
        schema = {"type": _TYPES[row.type]}
        if row.type is int:
            schema["minimum"] = 0
        if row.default is not None:
            schema["default"] = row.default
        rows.append(
            {"name": row.name, "in": "query", "required": row.required, "description": row.help, "schema": schema}
        )
        if (given := texts.query.get(row.name)) is not None:
            rows[-1]["example"] = given if row.type is str else msgspec.json.decode(given)
    return rows
