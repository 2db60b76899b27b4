"""The OpenAPI document: valid, and complete by the route table."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import jsonschema
import openapi_spec_validator
import pytest

from tests.contract.api import Api
from tools.docs import openapi
from tools.docs.openapi import Described, described
from topics import __version__
from topics.config import Settings
from topics.installation import is_installed
from topics.model import consumer, inspection, queue, records, topic, watch
from topics.model.names import TOPIC_PATTERN
from topics.model.records import Limits
from topics.server.api.route_table import ROUTES


@pytest.fixture
def api(disk_api: Api) -> Api:
    return disk_api


@pytest.fixture
def document(api: Api) -> Any:
    return api.get("/v0/openapi.json")


def test_document_is_valid_openapi_3_1(document: Any):
    assert document["openapi"].startswith("3.1")
    assert document["info"]["version"] == __version__
    openapi_spec_validator.validate(document)


def test_document_matches_the_route_table(document: Any):
    document["info"]["version"] = ""
    assert document == openapi.document(ROUTES), "run `make docs`"


def test_every_array_says_what_it_holds(document: Any):
    def arrays(part: Any) -> Iterator[Any]:
        if isinstance(part, dict | list):
            if isinstance(part, dict) and part.get("type") == "array":
                yield part
            for inner in part.values() if isinstance(part, dict) else part:
                yield from arrays(inner)

    found = list(arrays(document))
    assert found
    assert [array for array in found if "items" not in array and "prefixItems" not in array] == []


def operations(document: Any) -> dict[tuple[str, str], Any]:
    return {
        (method.upper(), path): operation
        for path, row in document["paths"].items()
        for method, operation in row.items()
    }


def test_every_route_is_in_the_document_and_nothing_else(document: Any):
    routes = {(route.method, route.path) for route in ROUTES}
    documented = operations(document).keys()
    assert routes <= documented
    assert {
        (method, path) for method, path in documented - routes if method != "HEAD" or ("GET", path) not in routes
    } == set()


def test_every_operation_has_its_own_name(document: Any):
    names = [operation["operationId"] for operation in operations(document).values()]
    assert len(names) == len(set(names))
    assert all(operation["summary"] for operation in operations(document).values())


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_operation_documents_what_its_route_declares(document: Any, route: Any):
    operation = operations(document)[route.method, route.path]
    statuses = {str(status) for status in route.answers} | {
        str(code.status) for code in described()[openapi.operation_name(route)].errors
    }
    assert statuses <= operation["responses"].keys()
    parameters = {(row["in"], row["name"]) for row in operation["parameters"]}
    assert {("query", row.name) for row in route.query} <= parameters
    assert ("requestBody" in operation) == (route.body is not None or route.signed)
    for status, answer in operation["responses"].items():
        assert answer["description"]
        if int(status) >= 400:
            schema = answer["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorAnswer"}


def test_topic_name_is_described_by_its_pattern(document: Any):
    [name] = [row for row in operations(document)["PUT", "/v0/topics/{topic}"]["parameters"] if row["in"] == "path"]
    assert name["schema"]["pattern"] == TOPIC_PATTERN


def test_fields_of_a_record_carry_their_dollar_sign(document: Any):
    record = document["components"]["schemas"]["Record"]
    assert {"$seq", "$ts", "$node", "$tag", "$key", "data", "meta"} == record["properties"].keys()
    assert {"$seq", "$ts", "data"} == set(record["required"])


def test_every_json_answer_may_have_warnings(document: Any):
    schemas = document["components"]["schemas"]
    for (method, path), operation in operations(document).items():
        for status, answer in operation["responses"].items():
            schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
            if status < "300" and "$ref" in schema:
                found = schemas[schema["$ref"].rpartition("/")[2]]
                assert found["properties"]["warnings"]["items"] == {"type": "string"}, (method, path)
                assert "warnings" not in found["required"]


def test_body_is_required_only_where_a_field_is(document: Any):
    found = {key: row["requestBody"]["required"] for key, row in operations(document).items() if "requestBody" in row}
    assert found["POST", "/v0/topics/{topic}"] is True
    assert found["PUT", "/v0/topics/{topic}"] is False
    assert found["POST", "/v0/topics/{topic}/diff"] is False


# --- descriptions and examples


def test_every_operation_and_parameter_is_described(document: Any):
    tags = {tag["name"] for tag in document["tags"] if tag["description"]}
    for (method, path), operation in operations(document).items():
        assert operation["description"].endswith("."), (method, path)
        assert set(operation["tags"]) <= tags, (method, path)
        for row in operation["parameters"]:
            assert row["description"], (method, path, row["name"])


def test_every_field_is_described(document: Any):
    schemas = document["components"]["schemas"]
    fields = {(name, field): row for name, schema in schemas.items() for field, row in schema["properties"].items()}
    without = [key for key, row in fields.items() if row.get("description", "default").startswith("default")]
    assert without == [], "describe the fields in their annotations, or in openapi_texts.json"


def test_table_of_fields_describes_no_field_that_does_not_exist(document: Any):
    schemas = document["components"]["schemas"]
    names = {field for schema in schemas.values() for field in schema["properties"]}
    assert openapi.EVERYWHERE.keys() - names == {
        "op",
        "retry_after_ms",
    }  # of pushed messages alone


LIMITS = Limits()


@pytest.mark.parametrize(
    ("kind", "field", "limits"),
    [
        ("DiffRequest", "limit", (records.DEFAULT_LIMIT, LIMITS.max_limit)),
        ("DiffRequest", "wait_ms", (records.MAX_WAIT_MS,)),
        ("DiffRequest", "max_batch_bytes", (records.DEFAULT_BATCH_BYTES, records.MAX_BATCH_BYTES)),
        ("NewRecord", "data", (LIMITS.max_record_bytes,)),
        ("NewRecord", "tag", (LIMITS.max_tag_bytes,)),
        ("NewRecord", "node", (LIMITS.max_node_bytes,)),
        ("NewRecord", "meta", (records.MAX_META_KEYS, LIMITS.max_meta_bytes)),
        ("WriteRequest", "node", (LIMITS.max_node_bytes,)),
        ("DeleteRequest", "seqs", (LIMITS.max_batch_records,)),
        ("ConsumerRequest", "meta", (consumer.MAX_META_BYTES,)),
        ("Lost", "gaps", (consumer.MAX_GAPS,)),
        ("CommitRequest", "commits", (LIMITS.max_batch_records,)),
        ("ViewOptions", "limit", (LIMITS.max_limit,)),
        ("ViewOptions", "max_batch_bytes", (records.MAX_BATCH_BYTES,)),
        ("WatchRequest", "topics", (Settings.max_watch_topics,)),
        ("WatchRequest", "heartbeat_ms", watch.HEARTBEAT_MS_RANGE),
        ("ClaimRequest", "node", (LIMITS.max_node_bytes,)),
        ("ClaimRequest", "max", (LIMITS.max_claim,)),
        ("ClaimRequest", "lease_ms", topic.LEASE_MS_RANGE),
        ("ClaimRequest", "wait_ms", (records.MAX_WAIT_MS,)),
        ("NackRequest", "delay_ms", (queue.MAX_DELAY_MS,)),
        ("ExtendRequest", "lease_ms", topic.LEASE_MS_RANGE),
        ("RedriveRequest", "limit", (queue.MAX_REDRIVE,)),
        ("TimelineAnswer", "ranges", (inspection.RANGES, inspection.MAX_RANGES)),
    ],
)
def test_described_limit_is_the_one_in_force(kind: str, field: str, limits: tuple[int, ...]):
    text = openapi.annotated(kind)[field]
    assert [int(number) for number in re.findall(r"\d+", text) if int(number) in limits] == list(limits), text


def test_default_of_a_topic_field_is_in_its_description(document: Any):
    fields = document["components"]["schemas"]["ConfigPatch"]["properties"]
    assert fields["lease_ms"]["description"].endswith("; default: 30000")
    assert fields["durability"]["description"].endswith('; default: "disk"')
    assert "default" not in fields["lease_ms"]


def examples(document: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield every example with its schema: of requests, of answers, and of errors."""
    for (method, path), operation in operations(document).items():
        places = [("request", operation.get("requestBody", {}))]
        places += [(f"answer {status}", answer) for status, answer in operation["responses"].items()]
        for place, holder in places:
            for media, content in holder.get("content", {}).items():
                where = f"{method} {path} {place} {media}"
                if "example" in content:
                    yield where, content["schema"], content["example"]
                for row in content.get("examples", {}).values():
                    named = row["$ref"].rpartition("/")[2]
                    yield where, content["schema"], document["components"]["examples"][named]["value"]


def test_every_example_matches_its_schema(document: Any):
    found = list(examples(document))
    for where, schema, example in found:
        jsonschema.validate(example, schema | {"components": document["components"]}), where
    assert len(found) > 400


def test_every_request_and_answer_with_a_body_has_an_example(document: Any):
    have = {where for where, _, _ in examples(document)}
    for (method, path), operation in operations(document).items():
        if "requestBody" in operation:
            assert f"{method} {path} request application/json" in have
        for status, answer in operation["responses"].items():
            media = list(answer.get("content", {}))[:1]
            if media and int(status) not in (302, 304) and not path.startswith(("/v0/openapi", "/client", "/console")):
                assert f"{method} {path} answer {status} {media[0]}" in have


def test_examples_are_what_a_server_answers(start_server: Any, connect: Any):
    api = connect(start_server())
    api.put("emails-dead")
    api.put("invoices", schema={"type": "object", "required": ["sku"]})
    api.put("emails", type="queue", dead_letter="emails-dead", max_deliveries=5)
    jobs = [{"data": {"to": f"{name}@example.org"}} for name in "abc"]
    api.append("emails", jobs, node="shop")
    routes = {openapi.operation_name(route): route for route in ROUTES}
    assert routes.keys() == described().keys()
    asked = 0
    for name, texts in described().items():
        route = routes[name]
        if (route.body is None and not isinstance(texts.answer, dict)) or route.stream or name == "list_samples":
            continue
        if route.path.startswith("/v0/keys") or route.signed:
            continue  # refused by a server without keys: tests/security/test_stored_keys.py has the others
        if name == "promote" or (name == "run_sql" and not is_installed("duckdb")):
            continue  # tests/server/api/test_commands.py promotes a standby
        answer = ask(api, route, texts)
        assert answer.status_code == texts.status, (name, answer.text)
        asked += 1
        if isinstance(texts.answer, dict):
            assert shape(answer.json()) == shape(texts.answer), name
        else:
            assert answer.text.count("\n") == texts.answer.count("\n"), name
    assert asked > 25


def ask(api: Api, route: Any, texts: Described) -> Any:
    path = route.path.format(**{name: quote(value, safe="") for name, value in texts.path.items()})
    body = texts.body if route.body is not None else None
    if body is not None and "epoch" in body:
        body = body | {"epoch": api.state(texts.path["topic"])["epoch"]}
    content = None if body is None else json.dumps(body)
    headers = {} if body is None else {"content-type": "application/json"}
    return api.http.request(route.method, path, params=texts.query, content=content, headers=headers)


def shape(answer: Any) -> Any:
    """Return the answer without the values that differ from run to run: times, epochs, ids and names of sessions."""
    if isinstance(answer, dict):
        return {name: None if name == "performance" else shape(value) for name, value in answer.items()}
    if isinstance(answer, list):
        return [shape(value) for value in answer]
    return type(answer).__name__ if isinstance(answer, str | int | float) else answer


def test_generators_can_name_all_fields_of_an_object_apart(document: Any):
    for name, schema in document["components"]["schemas"].items():
        fields = [field.lstrip("$").lower() for field in schema.get("properties", {})]
        assert len(fields) == len(set(fields)), name


def test_optional_fields_have_no_default_that_makes_them_required(document: Any):
    for name, schema in document["components"]["schemas"].items():
        for field, row in schema.get("properties", {}).items():
            assert "default" not in row, (name, field)
    diff = document["components"]["schemas"]["DiffRequest"]["properties"]
    assert diff["include_meta"]["description"].endswith("; default: true")


def test_scan_answers_plain_text_if_asked(api: Api):
    api.write("texts", 1)
    answer = api.http.post("/v0/topics/texts/scan", headers={"accept": "text/plain"})
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert [json.loads(line).get("$seq") for line in answer.text.splitlines()] == [1, None]
