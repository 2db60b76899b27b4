"""Generate the OpenAPI 3.1 document that the server returns, from the route table and two files of texts.

`python -m tools.docs.openapi > src/topics/server/api/openapi.json` writes it. The server fills in its version, and
leaves out the routes that its settings turn off.

`openapi_operations.json` has one entry per operation: what it does, a request, and the answer that a server gave to it.
`openapi_texts.json` has the frame of the document and what several operations share.
The entries are in an order in which a new server can answer all requests; `tests/contract/test_openapi.py` sends them.
"""

import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import msgspec
from msgspec import UNSET, Struct, structs

from topics.errors import Code
from topics.model import access, consumer, inspection, names, queue, records, router, schedule, topic, watch, wire
from topics.model.queue import ListedJob
from topics.model.topic import DEFAULT_CONFIG, ArchiveConfig, ConfigPatch, TopicConfig
from topics.model.wire import ErrorAnswer
from topics.server.access.operations import CHANGES, Scope
from topics.server.api.route import Route
from topics.server.api.route_table import ROUTES
from topics.server.push import scan_stream as formats

FILE = Path(__file__).with_name("openapi_operations.json")
TEXTS: dict[str, dict[str, Any]] = msgspec.json.decode(FILE.with_name("openapi_texts.json").read_bytes())
_LIMITS = {
    "max_hops": router.MAX_HOPS, "priority": topic.PRIORITY_LIMIT, "lease_ms": topic.LEASE_MS_RANGE,
    "claim_jitter_ms": topic.CLAIM_JITTER_MS_RANGE, "max_nodes": records.MAX_NODES,
    "max_key_chars": records.MAX_IDEMPOTENCY_KEY_CHARS, **structs.asdict(records.Limits()),
}  # fmt: skip
EVERYWHERE = {name: text.format(**_LIMITS) for name, text in TEXTS["fields"].items()}


class Described(Struct, forbid_unknown_fields=True):
    """One operation. `path` and `query` are examples, `answer` the body with `status`; text if it is no JSON."""

    tag: str
    summary: str
    description: str
    errors: list[Code] = []  # besides those that any route can return
    parameters: dict[str, str] = {}  # of the query string
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
_UNLESS_SERVING = (Code.NOT_READY, Code.SHUTTING_DOWN, Code.FENCED)
_PATTERNS = {"topic": names.TOPIC_PATTERN, "router": names.ROUTER_PATTERN, "schedule": names.TOPIC_PATTERN,
             "consumer": names.TOPIC_PATTERN, "key": names.TOPIC_PATTERN}  # fmt: skip
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


def document(routes: Sequence[Route]) -> dict[str, Any]:
    schema_of, components = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
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
    frame = TEXTS["document"]
    examples = {
        code: {
            "summary": code,
            "value": {
                "error": {"code": code, "message": text.replace("`", "")},
                "performance": {"server_total_ms": 0.05},
            },
        }
        for code, text in TEXTS["errors"].items()
    }
    return frame | {
        "info": frame["info"] | {"version": ""},
        "paths": paths,
        "components": frame["components"] | {"schemas": components, "examples": examples},
    }


def _schemas(routes: Sequence[Route]) -> tuple[dict[Any, Any], dict[str, Any]]:
    types = [ErrorAnswer]
    for route in routes:
        types += [kind for kind in (route.body, *route.answers.values()) if _is_schema(kind)]
    schema_of: dict[Any, Any] = {}
    components: dict[str, Any] = {}
    for kind in dict.fromkeys(types):
        (schema_of[kind],), found = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
        components |= found
    for kind in {kind for route in routes for kind in route.answers.values() if _is_schema(kind)}:
        components[kind.__name__]["properties"]["warnings"] = dict(_WARNINGS)
    for name in (TopicConfig.__name__, ArchiveConfig.__name__):  # answers of later versions have more settings
        components.get(name, {}).pop("additionalProperties", None)
    for name, component in components.items():
        for field, schema in component.get("properties", {}).items():
            _give_arrays_items(schema)
            if (text := meaning(name, field)) is not None and (name, field) != ("TokenRequest", "ttl_ms"):
                schema["description"] = text
            # The default moves to the description, because generators make a field with a default a required one.
            if (default := schema.pop("default", None)) is not None:
                shown = f"default: {msgspec.json.encode(default).decode()}"
                schema["description"] = f"{schema['description']}; {shown}" if "description" in schema else shown
            if "enum" in schema and all(isinstance(value, str) for value in schema["enum"]):
                schema["type"] = "string"
            if name == ConfigPatch.__name__ and (default := _CONFIG_DEFAULTS.get(field)) is not None:
                schema["description"] += f"; default: {msgspec.json.encode(default).decode()}"
    if (job := components.get(ListedJob.__name__)) is not None:
        # A job has `node`, its worker, and `$node`, its sender. Generators drop the sign, and would name both alike.
        del job["properties"]["$node"]
        job["description"] += " `$node`, the node that sent the job, is a further member if it has one."
    return schema_of, components


def _give_arrays_items(schema: dict[str, Any]) -> None:
    """Give each array of a schema `items`, at any depth: generators refuse an array without them."""
    if schema.get("type") == "array":
        _give_arrays_items(schema.setdefault("items", {}))
    for part in schema.get("anyOf", ()):
        _give_arrays_items(part)


def _operation(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    name = operation_name(route)
    texts = described()[name]
    operation: dict[str, Any] = {
        "operationId": name + ("_at_root" if route.path in ("/healthz", "/readyz", "/metrics") else ""),
        "tags": [texts.tag],
        "summary": texts.summary,
        "description": texts.description,
        "parameters": _parameters(route, texts),
        "responses": {str(status): _answer(status, kind, schema_of, texts) for status, kind in route.answers.items()},
    }
    if route.scope and not route.signed:
        operation["x-scope"] = [scope.name.lower() for scope in Scope if scope in route.scope and scope.name]
    if route.body is not None:
        content = {"schema": schema_of[route.body]}
        needed = any(field.required for field in msgspec.structs.fields(route.body))
        if texts.body is not UNSET:
            content["example"] = texts.body
        operation["requestBody"] = {"required": needed, "content": {"application/json": content}}
    if route.signed:
        content = {"schema": {"description": "any JSON value"}, "example": texts.body}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    codes = [*_EVERYWHERE, *texts.errors]
    if Code.READ_ONLY in codes:
        codes.append(Code.REPLICA_UNAVAILABLE)
    if route.scope & CHANGES:
        codes.append(Code.NOT_WRITER)
    if route.body is not None or route.signed:
        codes += _WITH_BODY
    if route.scope and not route.signed:
        codes += _WITH_SCOPE
    elif route.probe:
        codes += (Code.UNAUTHORIZED,)
    if route.while_recovering is None:
        codes += _UNLESS_SERVING
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
        return {"description": TEXTS["answers"].get(kind, kind), "content": content}
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
        text = TEXTS["path_parameters"].get(name, name)
        rows.append({"name": name, "in": "path", "required": True, "description": text, "schema": schema})
        if name in texts.path:
            rows[-1]["example"] = texts.path[name]
    for row in route.query:
        schema = {"type": _TYPES[row.type]}
        if row.type is int:
            schema["minimum"] = 0
        if row.default is not None:
            schema["default"] = row.default
        text = texts.parameters.get(row.name) or TEXTS["query_parameters"][row.name]
        rows.append({"name": row.name, "in": "query", "required": row.required, "description": text, "schema": schema})
        if (given := texts.query.get(row.name)) is not None:
            rows[-1]["example"] = given if row.type is str else msgspec.json.decode(given)
    return rows


# --- what a field of a request, an answer or a message means
#
# The meaning is in the annotation of the field, or in `openapi_texts.json` if a name means the same in several types. A
# field without either fails `tests/contract/test_openapi.py`. Limits that the settings can change show their default.


def types_in(*modules: ModuleType) -> dict[str, type[Struct]]:
    return {
        name: kind
        for module in modules
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, Struct)
    }


TYPES = types_in(access, consumer, inspection, queue, records, router, schedule, topic, watch, wire)


def annotated(type_name: str) -> dict[str, str]:
    """Return the meanings of the fields of a type that its annotations have, by their names in JSON."""
    kind = TYPES.get(type_name)
    if kind is None:
        return {}
    hints = get_type_hints(kind, include_extras=True)
    texts = {field: getattr(hints[field], "__metadata__", ()) for field in kind.__struct_fields__}
    return {
        name: text
        for name, field in zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
        for text in texts[field]
        if isinstance(text, str)
    }


def meaning(type_name: str, field: str) -> str | None:
    return annotated(type_name).get(field) or EVERYWHERE.get(field)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document(ROUTES)), indent=1) + b"\n")
