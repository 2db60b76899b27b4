"""Strict twins of request types, and the warnings about unknown fields."""

from typing import Any

import pytest

from topics.errors import TopicsError
from topics.model.queue import ClaimRequest
from topics.model.records import DiffRequest, WriteRequest
from topics.model.topic import ConfigPatch
from topics.model.watch import Command, Publish, Subscribe, WatchRequest
from topics.model.wire import did_you_mean
from topics.server.http.request.unknown_fields import Notes, RequestDecoder, note, strict


def decode(kind: Any, body: bytes) -> tuple[Any, list[str] | None]:
    notes = Notes()
    return RequestDecoder[Any](kind).decode(body, notes), notes.warnings


def test_twin_is_a_subclass_with_the_same_fields_and_tag():
    for kind in (WriteRequest, DiffRequest, ClaimRequest, WatchRequest, Publish, Subscribe):
        twin = strict(kind)
        assert issubclass(twin, kind)
        assert sorted(twin.__struct_fields__) == sorted(kind.__struct_fields__)
        assert twin.__struct_config__.tag == kind.__struct_config__.tag
        assert twin.__struct_config__.gc == kind.__struct_config__.gc
        assert strict(kind) is twin
    assert strict(ConfigPatch) is ConfigPatch


def test_accepted_request_is_decoded_once_by_the_twin():
    request, warnings = decode(WriteRequest, b'{"records":[{"data":1,"tag":"a"}],"node":"n"}')
    assert type(request) is strict(WriteRequest)
    assert (request.records[0].tag, request.node, warnings) == ("a", "n", None)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"from":5,"limit":"x"}', "limit"),
        (b'{"limit":"x","from":5}', "limit"),
        (b'{"from":5', None),
        (b'{"from":"\xff"}', None),
        (b"[]", None),
    ],
)
def test_unknown_field_does_not_hide_another_error(body: bytes, field: str | None):
    with pytest.raises(TopicsError) as caught:
        decode(DiffRequest, body)
    assert (caught.value.detail or {}).get("field") == field


def test_first_unknown_field_of_a_command_is_compared_with_the_kind_that_its_tag_names():
    command, warnings = decode(Command, b'{"op":"subscribe","topic":"a","tial":true,"records":[]}')
    assert isinstance(command, Subscribe)
    assert warnings == ['unknown field "tial" ignored; did you mean "tail"?']


def test_same_field_of_several_items_is_noted_once():
    notes = Notes()
    note(notes, ['unknown field "records[1].x" ignored', 'unknown field "records[2].x" ignored'])
    note(notes, ['unknown field "records[7].x" ignored', 'unknown field "y" ignored'])
    assert notes.warnings == ['unknown field "records[1].x" ignored', 'unknown field "y" ignored']


@pytest.mark.parametrize(
    ("name", "meant"),
    [("from", "from_seq"), ("form_seq", "from_seq"), ("includetags", "include_tags"), ("colour", None), ("", None)],
)
def test_suggestion_is_the_most_similar_field(name: str, meant: str | None):
    assert did_you_mean(name, ["from_seq", "limit", "include_tags", "from_ts"]) == meant
