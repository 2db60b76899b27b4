"""Schemas without their library, and the comparison of versions."""

from __future__ import annotations

import sys

import pytest

from topics.errors import Code, TopicsError
from topics.model.records import NewRecord
from topics.model.schemas import _closed, violation
from topics.model.topic import ConfigPatch, configure


def test_server_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    for call in (lambda: configure("t", ConfigPatch(schema={"a": 1})), lambda: violation({"a": 2}, [NewRecord(b"1")])):
        with pytest.raises(TopicsError, match="install its extra `schema`") as raised:
            call()
        assert raised.value.code is Code.READ_ONLY


def test_configuration_of_a_copy_has_its_versions():
    first = configure("t", ConfigPatch(schema={"type": "object"}))
    second = configure("t", ConfigPatch(schema={"type": ["object", "null"]}), first)
    fields = {name: getattr(second, name) for name in ("schema", "schema_mode", "compatibility", "schema_versions")}
    assert configure("copy", ConfigPatch(**fields)) == second
    assert configure("t", ConfigPatch(**fields), second) == second
    with pytest.raises(TopicsError, match="schema_versions is kept by the server"):
        configure("t", ConfigPatch(schema_versions=({},)), second)
    with pytest.raises(TopicsError, match="no JSON Schema"):
        configure("copy", ConfigPatch(schema_versions=({"type": 5},)))


def test_topic_keeps_a_limited_number_of_versions():
    config = configure("t", ConfigPatch(schema={"$comment": "0"}))
    for number in range(1, 100):
        config = configure("t", ConfigPatch(schema={"$comment": str(number)}), config)
    with pytest.raises(TopicsError, match="at most 100 versions"):
        configure("t", ConfigPatch(schema={"$comment": "100"}), config)


def test_objects_are_closed_at_every_depth_but_not_in_values():
    assert _closed({"properties": {"a": {"properties": {}}}, "enum": [{"properties": {}}]}) == {
        "properties": {"a": {"properties": {}, "additionalProperties": False}},
        "additionalProperties": False,
        "enum": [{"properties": {}}],
    }
