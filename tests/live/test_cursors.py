import pytest

from tests.live.events import decode_id, encode_id
from topics.server.push import cursors


def test_event_id_is_unpadded_base64url_of_the_positions():
    assert cursors.encode({"jobs": 5210, "events": 88130}) == b"eyJqb2JzIjo1MjEwLCJldmVudHMiOjg4MTMwfQ"


def test_event_id_round_trips():
    assert cursors.find(cursors.encode({"a": 1, "b": 2**64 - 1}).decode()) == cursors.Position(
        {"a": 1, "b": 2**64 - 1}, {}
    )
    assert cursors.find(cursors.encode([0, 7, 3, 9]).decode()) == cursors.Position({}, {0: 7, 3: 9})
    assert decode_id(cursors.encode({}).decode()) == {}


@pytest.mark.parametrize(
    "text", ["", "é", "????", "bnVsbA", encode_id(7), encode_id({"a": "1"}), encode_id({"a": 2**64}), encode_id([1])]
)
def test_malformed_event_id_is_refused(text):
    assert cursors.find(text) is None


def test_key_may_carry_the_epoch_of_a_topic():
    assert cursors.split_key("jobs") == ("jobs", None)
    assert cursors.split_key("jobs@17") == ("jobs", 17)
    assert cursors.split_key("jobs@x") == ("jobs", None)
