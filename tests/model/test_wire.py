"""Request bodies: every invalid body raises `invalid_request`, with its field if there is one."""

from typing import Any

import pytest
from msgspec.structs import asdict

from topics.errors import Code, TopicsError
from topics.model.records import DeleteRequest, DiffRequest, WriteRequest
from topics.model.topic import ConfigPatch
from topics.model.watch import Command
from topics.model.wire import TEXT_STEP_BYTES, check_text, check_text_steps, check_u64
from topics.server.http.request.unknown_fields import Notes, RequestDecoder


def decode(kind: Any, body: bytes) -> Any:
    return RequestDecoder[Any](kind).decode(body, Notes())


def field_at_fault(kind, body: bytes) -> str | None:
    with pytest.raises(TopicsError) as caught:
        decode(kind, body)
    assert caught.value.code is Code.INVALID_REQUEST
    return None if caught.value.detail is None else caught.value.detail["field"]


def test_missing_body_is_an_empty_object():
    assert asdict(decode(DiffRequest, b"")) == asdict(DiffRequest())
    assert asdict(decode(ConfigPatch, b"")) == asdict(ConfigPatch())


def test_unknown_fields_are_ignored():
    assert decode(DiffRequest, b'{"later":1,"from_seq":5}').from_seq == 5


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (WriteRequest, b"{}", "records"),
        (WriteRequest, b"", "records"),
        (WriteRequest, b'{"records":5}', "records"),
        (WriteRequest, b'{"records":[{"data":1},{}]}', "records[1].data"),
        (WriteRequest, b'{"records":[{"data":1,"tag":5}]}', "records[0].tag"),
        (WriteRequest, b'{"records":[{"data":1}],"create":"yes"}', "create"),
        (WriteRequest, b'{"records":[{"data":1}],"config":{"ttl_ms":-1}}', "config.ttl_ms"),
        (DiffRequest, b'{"from_seq":-1}', "from_seq"),
        (DiffRequest, b'{"from_seq":1.5}', "from_seq"),
        (DiffRequest, b'{"from_seq":"1"}', "from_seq"),
        (DiffRequest, b'{"limit":null}', "limit"),
        (DiffRequest, b'{"node":5}', "node"),
        (DiffRequest, b'{"include_tags":1}', "include_tags"),
        (DeleteRequest, b'{"before_seq":-5}', "before_seq"),
        (ConfigPatch, b'{"discard":"new"}', "discard"),
        (ConfigPatch, b'{"durability":"tape"}', "durability"),
        (ConfigPatch, b"[]", None),
        (ConfigPatch, b"null", None),
    ],
)
def test_wrong_type_names_its_field(kind, body, field):
    assert field_at_fault(kind, body) == field


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"nonsense", b'{"records":[{"data":}]}', b'{"records":[{"data":1}]} x', b'{"records":[{"data":01}]}',
        b'{"records":[{"data":"\xff"}]}', b'{"records":[{"data":"\xed\xa0\x80"}]}',
        b'\xef\xbb\xbf{"records":[{"data":1}]}',
        b'{"records":[{"data":1,"tag":"\\ud800"}]}', b'{"records":[{"data":1,"tag":"\\udc00 and more text"}]}',
        b'{"records":[{"data":1,"node":"\\ud800\\u0041 and more"}]}', b'{"records":[{"data":"raw\nbreak"}]}',
    ],
)  # fmt: skip
def test_invalid_json_or_utf8_is_refused(body):
    assert field_at_fault(WriteRequest, body) is None


def test_deep_nesting_is_refused():
    deep = b"[" * 200_000 + b"]" * 200_000
    assert field_at_fault(WriteRequest, b'{"records":[{"data":%b}]}' % deep) is None


def test_data_and_meta_keep_the_bytes_of_the_client():
    request = decode(WriteRequest, b'{"records":[{"data": {"b":1.50 ,"a":"\\u00e9"} ,"meta":{"k" : 1e5}}]}')
    [record] = request.records
    assert (bytes(record.data), bytes(record.meta)) == (b'{"b":1.50 ,"a":"\\u00e9"}', b'{"k" : 1e5}')


def test_data_may_be_null_but_not_missing():
    [record] = decode(WriteRequest, b'{"records":[{"data":null}]}').records
    assert bytes(record.data) == b"null"


def test_numbers_above_u64_are_refused():
    assert check_u64(2**64 - 1, "from_seq") == 2**64 - 1
    with pytest.raises(TopicsError) as caught:
        check_u64(2**64, "from_seq")
    assert caught.value.detail == {"field": "from_seq"}


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (ConfigPatch, b'{"discard":"new"}', "discard must be one of old, reject, not 'new'"),
        (WriteRequest, b'{"records":[],"config":{"type":"x"}}', "config.type must be one of log, queue, not 'x'"),
        (
            Command,
            b'{"op":"sub"}',
            "op must be one of authenticate, subscribe, unsubscribe, publish, commit, ping, not 'sub'",
        ),
        (list[dict[str, ConfigPatch]], b'[{"a":{"type":"x"}}]', "must be one of log, queue, not 'x'"),
    ],
)
def test_unknown_enum_value_is_reported_with_the_choices(kind: Any, body: bytes, message: str):
    with pytest.raises(TopicsError) as caught:
        decode(kind, body)
    assert caught.value.message.endswith(message)


@pytest.mark.parametrize("text", [b"", b"plain", "é".encode(), b"\xff", b"\xe2\x82", "€".encode() * 3, b"\xed\xa0\x80"])
@pytest.mark.parametrize("before", [0, TEXT_STEP_BYTES - 1, TEXT_STEP_BYTES, 2 * TEXT_STEP_BYTES - 2])
@pytest.mark.parametrize("after", [b"", b"x", "é".encode(), b"x" * TEXT_STEP_BYTES])
def test_text_is_checked_in_steps_as_at_once(text: bytes, before: int, after: bytes) -> None:
    body = b"a" * before + text + after
    found = []
    for check in (check_text, lambda body: list(check_text_steps(body))):
        try:
            check(body)
            found.append("valid")
        except TopicsError as error:
            found.append(error.message)
    assert found[0] == found[1]
