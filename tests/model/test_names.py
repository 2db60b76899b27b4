"""Names of topics and routers: allowed characters, and errors for others."""

import pytest

from topics.errors import Code, TopicsError
from topics.model.names import check_router, check_topic

GOOD = ["a", "0", "chat:general", "A.b_c-d:e", "x" * 255]
BAD = ["", "-a", ".a", ":a", "_a", "a b", "a/b", "a\n", "a\0", "é", "a%20", "x" * 256]


@pytest.mark.parametrize("name", GOOD)
def test_valid_name_is_accepted(name):
    assert check_topic(name) == check_router(name) == name


@pytest.mark.parametrize("name", [*BAD, "a>b"])
def test_topic_name_outside_the_charset_is_refused(name):
    with pytest.raises(TopicsError) as caught:
        check_topic(name)
    assert (caught.value.code, caught.value.detail) == (Code.INVALID_REQUEST, {"field": "topic"})
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("name", BAD)
def test_router_name_outside_the_charset_is_refused(name):
    with pytest.raises(TopicsError) as caught:
        check_router(name)
    assert caught.value.code is Code.INVALID_REQUEST


def test_router_name_can_contain_an_arrow():
    assert check_router("orders->audit") == "orders->audit"
    with pytest.raises(TopicsError):
        check_router(">a")


def test_error_names_the_checked_field():
    with pytest.raises(TopicsError) as caught:
        check_topic("", field="dead_letter")
    assert caught.value.detail == {"field": "dead_letter"}
