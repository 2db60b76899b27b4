"""A body that is decoded in slices is authorised like any other."""

from typing import Any

import pytest

from tests.security.conftest import Caller
from topics.server.http.request.write_request import LARGE_BYTES

KEYS = "all,in:read+write+admin:in."


@pytest.mark.parametrize(
    ("topic", "dead_letter", "status"),
    [("in.a", "in.dead", 201), ("in.b", "out.dead", 403), ("out.c", "in.dead", 403)],
)
def test_a_large_write_reaches_no_topic_outside_the_prefix(
    call: Any, topic: str, dead_letter: str, status: int
) -> None:
    caller: Caller = call(api_keys=KEYS)
    records = [{"data": "x" * LARGE_BYTES}]
    config = {"type": "queue", "max_deliveries": 1, "dead_letter": dead_letter}
    answer = caller.send("POST", f"/v0/topics/{topic}", {"records": records, "config": config}, key="in")
    assert answer.status == status, answer.text
    assert caller.send("GET", f"/v0/topics/{topic}", key="all").status == (200 if status == 201 else 404)
