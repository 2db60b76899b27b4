"""The OpenAPI 3.1 document, generated from the route table."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

from topics import __version__
from topics.errors import Code
from topics.model import names
from topics.model.wire import ErrorAnswer
from topics.server.access.operations import Scope
from topics.server.api.route import Parameter, Route

# Errors that any route can return.
_EVERYWHERE = (Code.INVALID_REQUEST, Code.REQUEST_TIMEOUT, Code.HEADERS_TOO_LARGE)
_WITH_BODY = (Code.PAYLOAD_TOO_LARGE, Code.UNSUPPORTED_MEDIA_TYPE)
_WITH_SCOPE = (Code.UNAUTHORIZED, Code.FORBIDDEN, Code.THROTTLED)
_WHILE_STARTING = (Code.NOT_READY, Code.SHUTTING_DOWN)
_PATTERNS = {"topic": names.TOPIC_PATTERN, "router": names.ROUTER_PATTERN, "consumer": names.CONSUMER_PATTERN}
# Names of operations where the name of the handler alone says too little.
_NAMES = {
    "create": "create_watch", "stream": "open_watch", "socket": "open_socket", "delete": "delete_records",
    "report": "report_archived", "jobs": "list_jobs", "preview": "preview_router", "health": "get_health",
    "ready": "get_ready", "work": "open_work_stream", "client_js": "get_client_js", "timeline": "get_timeline",
    "samples": "list_samples", "index": "get_index", "console": "get_console", "console_file": "get_console_file",
    "console_part": "get_console_part", "console_page": "get_console_page",
}  # fmt: skip
_TAGS = {
    "/consumers": "consumers",
    "/routers": "routers", "/watch": "watch", "/ws": "watch", "/claim": "queues", "/ack": "queues", "/nack": "queues",
    "/extend": "queues", "/work": "queues", "/jobs": "queues", "/redrive": "queues", "/diff": "records",
    "/scan": "records", "/delete": "records", "/archived": "records", "/topics": "topics",
}  # fmt: skip
_WARNINGS = {
    "type": "array",
    "items": {"type": "string"},
    "description": "unknown fields and query parameters that the server ignored; absent if there are none",
}
_TYPES = {bool: "boolean", int: "integer", str: "string"}


def document(routes: list[Route]) -> bytes:
    """Return the document as JSON."""
    return _document(tuple(routes))


@lru_cache(maxsize=4)
def _document(routes: tuple[Route, ...]) -> bytes:
    types = [ErrorAnswer]
    for route in routes:
        types += [kind for kind in (route.body, *route.answers.values()) if _is_schema(kind)]
    unique = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(unique, schemas, strict=True))
    for kind in {kind for route in routes for kind in route.answers.values() if _is_schema(kind)}:
        components[kind.__name__]["properties"]["warnings"] = _WARNINGS
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, schema_of)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
        if route.method == "GET" and not route.stream:
            paths[route.path]["head"] = _head_of(operation)
    return (
        msgspec.json.encode(
            {
                "openapi": "3.1.0",
                "info": {
                    "title": "topics",
                    "version": __version__,
                    "description": "A persistent event engine for one machine: JSON over HTTP.",
                    "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
                },
                "servers": [{"url": "http://127.0.0.1:4000", "description": "The default address."}],
                "paths": paths,
                "components": {
                    "schemas": components,
                    "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
                },
                "security": [{"bearer": []}, {}],
            }
        )
        + b"\n"
    )


def _operation(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "tags": [_tag(route)],
        "summary": route.summary,
        "parameters": [_path_parameter(name) for name in re.findall(r"{(\w+)}", route.path)]
        + [_query_parameter(row) for row in route.query],
        "responses": {str(status): _answer(kind, schema_of) for status, kind in route.answers.items()},
    }
    if route.scope:
        operation["x-scope"] = [scope.name.lower() for scope in Scope if scope in route.scope and scope.name]
    if route.body is not None:
        operation["requestBody"] = {
            "required": _needs_body(route.body),
            "content": {"application/json": {"schema": schema_of[route.body]}},
        }
    for status, codes in _errors(route).items():
        operation["responses"][str(status)] = {
            "description": " or ".join(f"`{code.wire}`" for code in codes),
            "content": {"application/json": {"schema": schema_of[ErrorAnswer]}},
        }
    return operation


def _errors(route: Route) -> dict[int, list[Code]]:
    codes = [*_EVERYWHERE, *route.errors]
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
    return by_status


def _answer(kind: Any, schema_of: dict[Any, Any]) -> dict[str, Any]:
    if isinstance(kind, str):
        return {"description": kind, "content": {kind: {"schema": {"type": "string"}}}}
    schema = schema_of.get(kind, {"type": "object"})
    description = (kind.__doc__ or "").strip().split("\n")[0] if _is_schema(kind) else ""
    return {"description": description or "Success", "content": {"application/json": {"schema": schema}}}


def _head_of(operation: dict[str, Any]) -> dict[str, Any]:
    answers = {status: {"description": answer["description"]} for status, answer in operation["responses"].items()}
    return operation | {"operationId": operation["operationId"] + "_head", "responses": answers}


def _is_schema(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _needs_body(kind: Any) -> bool:
    return any(field.required for field in msgspec.structs.fields(kind))


def _operation_id(route: Route) -> str:
    """Return the name that a generated client gives the operation."""
    name = route.handler.__name__
    alias = "_at_root" if route.path in ("/healthz", "/readyz", "/metrics") else ""
    return _NAMES.get(name, name) + alias


def _tag(route: Route) -> str:
    """Return the group of the operation."""
    return next((tag for part, tag in _TAGS.items() if part in route.path), "server")


def _path_parameter(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if name in _PATTERNS:
        schema["pattern"] = _PATTERNS[name]
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameter(row: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _TYPES[row.type]}
    if row.type is int:
        schema["minimum"] = 0
    if row.default is not None:
        schema["default"] = row.default
    return {"name": row.name, "in": "query", "required": row.required, "description": row.help, "schema": schema}
