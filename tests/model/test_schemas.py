"""Schemas without their library, and the comparison of versions."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.simulated.harness import SimServer, request
from topics.engine.steps import run_all
from topics.engine.write.append import STEP_RECORDS
from topics.errors import Code, TopicsError
from topics.model import schemas
from topics.model.records import NewRecord
from topics.model.schemas import MAX_EXPANDED, _closed, validator_of, violation
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


@pytest.mark.parametrize("anchors", [False, True])
def test_references_that_double_at_each_level_are_refused(anchors: bool):
    def doubled(levels: int) -> dict[str, Any]:
        ref = "#a" if anchors else "#/$defs/a"
        parts = {f"a{at}": {"allOf": [{"$ref": f"{ref}{at + 1}"}] * 2} for at in range(levels)}
        parts |= {f"a{levels}": {"type": "object"}}
        if anchors:
            parts = {name: part | {"$anchor": name} for name, part in parts.items()}
        return {"$defs": parts, "$ref": f"{ref}0"}

    with pytest.raises(TopicsError, match=f"more than {MAX_EXPANDED} parts"):
        validator_of(doubled(30))  # a record would take minutes
    assert violation(doubled(5), [NewRecord(b"{}")]) is None
    assert violation(doubled(5), [NewRecord(b"1")]) is not None


def test_chain_of_references_that_is_too_long_is_refused():
    with pytest.raises(TopicsError, match="nested too deeply"):
        validator_of({"$defs": {f"a{at}": {"$ref": f"#/$defs/a{at + 1}"} for at in range(3000)}, "$ref": "#/$defs/a0"})


def test_part_that_refers_to_itself_is_allowed():
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "n": {"type": "integer"}}}
    assert violation(tree, [NewRecord(b'{"left": {"right": {"n": 1}}}')]) is None
    assert violation(tree, [NewRecord(b'{"left": {"right": {"n": ""}}}')]) is not None


@pytest.mark.parametrize("mode", ["reject", "warn"])
def test_large_write_is_checked_in_steps_and_once(mode: str, monkeypatch: pytest.MonkeyPatch):
    server = SimServer.start()
    server.put("t", schema={"type": "integer"}, schema_mode=mode)
    appends, write = server.engine.appends, request(*(str(n) for n in range(2 * STEP_RECORDS)), '"x"')
    steps = appends.prepare("t", write, renders=False)
    if mode == "reject":
        with pytest.raises(TopicsError, match="does not match"):
            list(steps)
        return
    assert [next(steps), next(steps)] == [None, None]
    prepared = run_all(steps)
    monkeypatch.setattr(schemas, "violation", None)
    server.done(server.engine.append("t", write, prepared))
    assert f"records[{2 * STEP_RECORDS}].data does not match" in appends.take_warning()
