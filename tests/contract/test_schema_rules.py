"""The rules of JSON Schema 2020-12, through appends to a real server: it agrees with another library on every value.

`jsonschema`, in Python, is the reference. The server checks with `jsonschema-rs`. The official test suite runs where
`TOPICS_JSON_SCHEMA_SUITE` is its folder `tests/draft2020-12`, which is in the source package of `jsonschema` in `json`
(`pip download --no-deps --no-binary jsonschema jsonschema`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.contract.api import Api

TREE = {"$defs": {"t": {"properties": {"kids": {"items": {"$ref": "#/$defs/t"}}, "n": {"type": "integer"}}}}}

SCHEMAS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "never": {"not": {}},
    **{f"type {one}": {"type": one} for one in ("null", "boolean", "integer", "number", "string", "array", "object")},
    "types": {"type": ["string", "null"]},
    "enum": {"enum": [1, "a", None, [1, 2], {"a": 1}, False]},
    "const 1": {"const": 1},
    "const false": {"const": False},
    "const array": {"const": [0]},
    "minimum": {"minimum": 1},
    "exclusiveMinimum": {"exclusiveMinimum": 1},
    "maximum": {"maximum": 1.5},
    "exclusiveMaximum": {"exclusiveMaximum": 3},
    "multipleOf": {"multipleOf": 2},
    "minLength": {"minLength": 2},
    "maxLength": {"maxLength": 2},
    "pattern": {"pattern": "^a+$"},
    "pattern is not anchored": {"pattern": "b"},
    "minItems": {"minItems": 1},
    "maxItems": {"maxItems": 2},
    "uniqueItems": {"uniqueItems": True},
    "items": {"items": {"type": "integer"}},
    "prefixItems": {"prefixItems": [{"type": "integer"}, {"type": "string"}]},
    "prefixItems and items": {"prefixItems": [{"type": "integer"}], "items": False},
    "contains": {"contains": {"const": 1}},
    "minContains": {"contains": {"type": "integer"}, "minContains": 2, "maxContains": 3},
    "minContains 0": {"contains": {"const": 1}, "minContains": 0, "maxContains": 1},
    "properties": {"properties": {"id": {"type": "integer"}, "name": {"type": "string"}}},
    "required": {"required": ["id", "name"]},
    "additionalProperties": {"properties": {"id": True}, "additionalProperties": False},
    "additionalProperties typed": {"properties": {"id": True}, "additionalProperties": {"type": "string"}},
    "patternProperties": {"patternProperties": {"^n": {"type": "string"}}, "additionalProperties": {"minimum": 5}},
    "propertyNames": {"propertyNames": {"maxLength": 2}},
    "minProperties": {"minProperties": 2},
    "maxProperties": {"maxProperties": 1},
    "dependentRequired": {"dependentRequired": {"id": ["name"]}},
    "dependentSchemas": {"dependentSchemas": {"id": {"properties": {"name": {"minLength": 3}}}}},
    "allOf": {"allOf": [{"minimum": 1}, {"maximum": 3}]},
    "anyOf": {"anyOf": [{"type": "string"}, {"minimum": 2}]},
    "oneOf": {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    "not": {"not": {"type": ["integer", "object"]}},
    "if": {"if": {"type": "integer"}, "then": {"minimum": 2}, "else": {"type": "string"}},
    "unevaluatedProperties": {"allOf": [{"properties": {"id": True}}], "unevaluatedProperties": False},
    "unevaluatedProperties of if": {
        "if": {"required": ["id"], "properties": {"id": True}},
        "then": {"properties": {"name": True}},
        "unevaluatedProperties": False,
    },
    "unevaluatedItems": {"prefixItems": [True], "anyOf": [{"contains": {"const": "a"}}], "unevaluatedItems": False},
    "$ref to the root": {"properties": {"kids": {"items": {"$ref": "#"}}}, "not": {"required": ["bad"]}},
    "$ref beside others": {"$defs": {"i": {"type": "integer"}}, "$ref": "#/$defs/i", "minimum": 2},
    "$ref into itself": {**TREE, "$ref": "#/$defs/t"},
    "$ref with escapes": {"$defs": {"a/b~%": {"type": "string"}}, "$ref": "#/$defs/a~1b~0%25"},
    "$anchor": {"$defs": {"x": {"$anchor": "here", "type": "array"}}, "$ref": "#here"},
    "$dynamicRef": {
        "$dynamicAnchor": "node", "properties": {"kids": {"items": {"$dynamicRef": "#node"}}}, "maxProperties": 2,
    },
    "words that check nothing": {"title": "x", "default": 5, "examples": [1], "$comment": "y", "unknown": {"type": 5}},
    "a property named $ref": {"properties": {"$ref": {"type": "string"}}},
    "no number counts as a text": {"minimum": 5, "minLength": 5, "minItems": 5, "minProperties": 5},
}  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, 2, 3, 1.0, 1.5, -1, 2.5, 1e300, 2**53 + 1, 10**30, "", "a", "b", "aa", "ab", "aaa", "é",
    "💩💩", "💩💩💩", [], [1], [1, 1], [1, 1.0], [0], [False], [1, "a"], [1, 2], [1, True], ["a", "b", "a"],
    [1, 2, 3, 4], [[1], [1]], [{"a": 1}, {"a": 1.0}], {}, {"id": 1}, {"id": "1"}, {"id": 1.0}, {"id": 1, "name": "x"},
    {"id": None, "name": "long"}, {"name": "x"}, {"name": 7}, {"n": 1}, {"n": "x", "other": 7}, {"long name": 5},
    {"a": 1}, {"a": 1, "b": 2, "c": 3}, {"kids": [{"kids": [{"n": "x"}]}]}, {"kids": [{"n": 1, "kids": []}], "n": 2},
    {"kids": [{"bad": 1}]}, {"kids": [{"a": 1, "b": 2, "c": 3}]}, {"$ref": 5}, {"$ref": "#/nowhere"},
]  # fmt: skip


def answers(api: Api, topic: str, schema: dict[str, Any], values: list[Any]) -> list[bool]:
    """Return which values the server takes, each in an append of its own."""
    api.put(topic, schema=schema, compatibility="none")
    found = []
    for value in values:
        answer = api.call("POST", f"/v0/topics/{topic}", {"records": [{"data": value}]})
        if answer.status_code == 400:
            assert answer.json()["error"]["code"] == "schema_violation"
        found.append(answer.is_success)
    assert api.state(topic)["count"] == sum(found)
    return found


def expected(schema: dict[str, Any], values: list[Any]) -> list[bool]:
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    return [validator.is_valid(value) for value in values]


def check(api: Api, topic: str, name: str, schema: dict[str, Any], values: list[Any]) -> None:
    found = zip(values, answers(api, topic, schema, values), expected(schema, values), strict=True)
    assert [(name, value, taken) for value, taken, wanted in found if taken != wanted] == []


def test_each_rule_is_checked_as_the_reference_does(disk_api: Api, topic: str) -> None:
    random = Random(39)
    for number, (name, schema) in enumerate(SCHEMAS.items()):
        check(disk_api, f"{topic}.{number}", name, schema, random.sample(VALUES, 3))


@pytest.mark.torture
def test_all_values_under_each_rule_and_in_random_combinations(
    disk_api: Api, topic: str, counts: Callable[..., None]
) -> None:
    pairs = 0
    for number, (name, schema) in enumerate(SCHEMAS.items()):
        check(disk_api, f"{topic}.{number}", name, schema, VALUES)
        pairs += len(VALUES)
    random, flat = Random(2020), [one for one in SCHEMAS.values() if "#" not in str(one)]  # `#` is the root of a schema
    for number in range(200):
        schema = combined(random, flat, depth=2)
        values = [VALUES[random.randrange(len(VALUES))] for _ in range(10)]
        values += [{"id": value, "name": value} for value in values] + [[value, value] for value in values]
        check(disk_api, f"{topic}.r{number}", str(schema), schema, values)
        pairs += len(values)
    counts("in schemas and values", pairs=pairs)


SUITE = os.environ.get("TOPICS_JSON_SCHEMA_SUITE", "")
UNLIKE = ("format.json", "vocabulary.json")  # a topic checks formats, and takes no other dialect


@pytest.mark.torture
@pytest.mark.skipif(not SUITE, reason="TOPICS_JSON_SCHEMA_SUITE is not set")
def test_official_suite(disk_api: Api, topic: str, counts: Callable[..., None]) -> None:
    wrong, tests, refused = [], 0, 0
    for file in sorted(Path(SUITE).glob("*.json")):
        for number, case in enumerate([] if file.name in UNLIKE else json.loads(file.read_text())):
            schema, name = case["schema"], f"{topic}.{file.stem.lower()}.{number}"
            put = disk_api.call("PUT", f"/v0/topics/{name}", {"schema": schema, "compatibility": "none"})
            if not put.is_success:  # it refers to other documents, or is no object
                assert put.json()["error"]["code"] == "invalid_request"
                refused += 1
                continue
            found = answers(disk_api, name, schema, [test["data"] for test in case["tests"]])
            tests += len(found)
            wrong += [
                (file.name, case["description"], test["description"], taken)
                for test, taken in zip(case["tests"], found, strict=True)
                if taken != test["valid"]
            ]
    counts("in the official suite", tests=tests, refused_schemas=refused)
    assert wrong == []


def combined(random: Random, parts: list[dict[str, Any]], depth: int) -> dict[str, Any]:
    """Return a random schema made of these."""
    if depth == 0:
        return random.choice(parts)

    def part() -> dict[str, Any]:
        return combined(random, parts, depth - 1)

    return random.choice(
        [
            lambda: {random.choice(["allOf", "anyOf", "oneOf"]): [part(), part()]},
            lambda: {"not": part()},
            lambda: {"if": part(), "then": part(), "else": part()},
            lambda: {"properties": {"id": part(), "name": part()}, "additionalProperties": part()},
            lambda: {"prefixItems": [part()], "items": part()},
            lambda: {"contains": part(), "unevaluatedItems": part()},
            lambda: {"anyOf": [part(), part()], "unevaluatedProperties": part()},
        ]
    )()
