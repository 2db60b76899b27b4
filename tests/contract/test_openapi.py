"""The OpenAPI document: valid, and complete by the route table."""

import json
from typing import Any

import openapi_spec_validator
import pytest

from tests.contract.api import Api
from topics import __version__
from topics.model.names import TOPIC_PATTERN
from topics.server.api import openapi
from topics.server.api.table import ROUTES


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
    assert document == json.loads(openapi.document(ROUTES))


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
    statuses = {str(status) for status in route.answers} | {str(code.status) for code in route.errors}
    assert statuses <= operation["responses"].keys()
    parameters = {(row["in"], row["name"]) for row in operation["parameters"]}
    assert {("query", row.name) for row in route.query} <= parameters
    assert ("requestBody" in operation) == (route.body is not None)
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
    assert {"$seq", "$ts", "$node", "$tag", "data", "meta"} == record["properties"].keys()
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
