"""Reading as a named consumer: diff, event streams and WebSockets, with commits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ServerProcess
from tests.contract.api import Api, failed
from tests.live.events import Events, wait_for
from tests.live.test_websocket import Socket


def diff(api: Api, topic: str, **fields: Any) -> tuple[list[int], int]:
    """Return the seqs of the answer, and the position that it reports."""
    found = api.diff(topic, consumer="billing", **fields)
    assert found["consumer"] == "billing"
    return [record["$seq"] for record in found["records"]], found["committed_seq"]


def position(api: Api, topic: str) -> int:
    seq = api.get(f"/v0/topics/{topic}/consumers/billing")["seq"]
    assert isinstance(seq, int)
    return seq


@pytest.fixture
def socket(api: Api) -> Iterator[Socket]:
    found = Socket(str(api.http.base_url).rstrip("/"))
    yield found
    found.close()


def test_loop_of_one_request_is_a_consumer(api: Api, topic: str):
    got = []
    seqs, _ = diff(api, topic, limit=4)
    while seqs:
        got += seqs
        seqs, _ = diff(api, topic, limit=4, commit=True)
    assert got == list(range(1, 11))
    assert position(api, topic) == 10


def test_without_a_commit_the_same_records_come_again(api: Api, topic: str):
    assert diff(api, topic, limit=3) == ([1, 2, 3], 0)
    assert diff(api, topic, limit=3) == ([1, 2, 3], 0)
    assert diff(api, topic, limit=3, commit=True) == ([4, 5, 6], 3)
    assert diff(api, topic, limit=3) == ([4, 5, 6], 3)


def test_commit_of_a_seq_moves_there_and_never_back(api: Api, topic: str):
    assert diff(api, topic, limit=8)[0] == list(range(1, 9))
    assert diff(api, topic, limit=2, commit=5) == ([6, 7], 5)
    assert diff(api, topic, limit=2, commit=2) == ([6, 7], 5)
    api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}/diff", {"consumer": "billing", "commit": 11})
    assert position(api, topic) == 5


def test_first_commit_of_an_unknown_consumer_acknowledges_nothing(api: Api, topic: str):
    assert diff(api, topic, limit=2, commit=True) == ([1, 2], 0)


def test_commit_of_a_seq_creates_the_consumer_there(api: Api, topic: str):
    api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}/diff", {"consumer": "billing", "commit": 11})
    api.refused(404, "consumer_not_found", "GET", f"/v0/topics/{topic}/consumers/billing")
    assert diff(api, topic, limit=2, commit=3) == ([4, 5], 3)
    assert position(api, topic) == 3


@pytest.mark.parametrize("change", [{}, {"meta": {"host": "b7"}}, {"expire_ms": 3_600_000}, {"hold": False}])
def test_put_without_a_seq_keeps_what_was_delivered(api: Api, topic: str, change: dict[str, Any]):
    assert diff(api, topic, limit=3) == ([1, 2, 3], 0)
    assert api.call("PUT", f"/v0/topics/{topic}/consumers/billing", change).status_code == 200
    assert diff(api, topic, limit=3, commit=True) == ([4, 5, 6], 3)


def test_put_of_a_seq_acknowledges_nothing_afterwards(api: Api, topic: str):
    assert diff(api, topic, limit=3) == ([1, 2, 3], 0)
    api.call("PUT", f"/v0/topics/{topic}/consumers/billing", {"seq": 1, "meta": {"host": "b7"}})
    assert diff(api, topic, limit=3, commit=True) == ([2, 3, 4], 1)


def test_tombstone_counts_as_delivered(api: Api, topic: str):
    api.put(topic, cap_records=2)
    found = api.diff(topic, consumer="billing")
    assert found["tombstone"]["gap_to"] == 8
    assert [record["$seq"] for record in found["records"]] == [9, 10]
    api.diff(topic, consumer="billing", commit=True)
    assert position(api, topic) == 10


def test_filtered_records_count_as_delivered(api: Api, topic: str):
    api.write(topic, 1, tag="x")
    assert diff(api, topic, filter="x") == ([11], 0)
    assert diff(api, topic, filter="x", commit=True) == ([], 11)


def test_other_fields_of_diff_apply(api: Api, topic: str):
    api.write(topic, 1, tag="x")
    found = api.diff(topic, consumer="billing", include_tags=True, include_meta=False, filter="x")
    assert found["records"][0]["$tag"] == "x"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"consumer": "billing", "from_seq": 3}, "consumer"),
        ({"consumer": "billing", "from_ts": 3}, "consumer"),
        ({"commit": True}, "commit"),
        ({"consumer": "a b"}, "consumer"),
        ({"consumer": 5}, "consumer"),
        ({"consumer": "billing", "commit": "yes"}, "commit"),
        ({"consumer": "billing", "commit": -1}, "commit"),
        ({"consumer": "billing", "commit": 2**64}, "commit"),
    ],
)
def test_request_that_makes_no_sense_is_refused(api: Api, topic: str, body: Any, field: str):
    error = api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}/diff", body)
    assert error["detail"]["field"] == field


def test_epoch_of_another_topic_is_refused(api: Api, topic: str):
    body = {"consumer": "billing", "commit": True, "epoch": 1}
    api.refused(409, "epoch_mismatch", "POST", f"/v0/topics/{topic}/diff", body)


def test_long_poll_of_a_consumer_returns_new_records(api: Api, topic: str):
    diff(api, topic)
    diff(api, topic, commit=True)
    got: list[Any] = []
    waiter = threading.Thread(target=lambda: got.append(diff(api, topic, commit=True, wait_ms=20_000)))
    waiter.start()
    other = Api(str(api.http.base_url))
    other.write(topic, "new")
    waiter.join(20)
    other.close()
    assert got == [([11], 10)]
    assert diff(api, topic, commit=True, wait_ms=1) == ([], 11)


def test_stored_position_decides_what_is_read_next(api: Api, topic: str):
    diff(api, topic, limit=8)
    api.call("PUT", f"/v0/topics/{topic}/consumers/billing", {"seq": 2})
    assert diff(api, topic, limit=1, commit=True) == ([3], 2)


# --- event streams


def test_event_stream_begins_at_the_position(api: Api, topic: str):
    diff(api, topic, limit=4)
    options = {"consumer": "billing", "commit": True}
    made = api.call("POST", "/v0/watch", {"topics": {topic: options}}).json()
    assert made["topics"][topic]["from_seq"] == 4
    assert position(api, topic) == 4
    events = Events(str(api.http.base_url).rstrip("/"), made["stream_url"])
    assert events.until("record")[-1].seqs[0] == 5
    events.close()


def test_watch_begins_an_unknown_consumer(api: Api, topic: str):
    made = api.call("POST", "/v0/watch", {"topics": {topic: {"consumer": "billing"}}}).json()
    assert made["topics"][topic]["from_seq"] == 0
    assert position(api, topic) == 0


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        ("{topic}", {"consumer": "billing", "from_seq": 3}, "topics.{topic}.consumer"),
        ("{topic}", {"consumer": "billing", "tail": True}, "topics.{topic}.consumer"),
        ("{topic}", {"commit": True}, "topics.{topic}.commit"),
        ("{topic}*", {"consumer": "billing"}, "topics.{topic}*.consumer"),
        ("{topic}", {"consumer": "a b"}, "consumer"),
    ],
)
def test_watch_that_makes_no_sense_is_refused(
    api: Api, topic: str, socket: Socket, name: str, options: Any, field: str
):
    name, field = name.format(topic=topic), field.format(topic=topic)
    error = api.refused(400, "invalid_request", "POST", "/v0/watch", {"topics": {name: options}})
    assert error["detail"]["field"] == field
    answer = socket.call("subscribe", topics={name: options})
    assert (answer["op"], answer["code"]) == ("error", "invalid_request")


def test_lenient_watch_skips_missing_topics(api: Api, topic: str):
    topics = {topic: {"consumer": "billing"}, f"{topic}.absent": {"consumer": "billing"}}
    made = api.call("POST", "/v0/watch?lenient=true", {"topics": topics}).json()
    assert set(made["topics"]) == {topic}
    failed(api.call("POST", "/v0/watch", {"topics": topics}), 404, "topic_not_found")


# --- WebSockets


def test_websocket_begins_at_the_position_and_commits(api: Api, topic: str, socket: Socket):
    api.call("PUT", f"/v0/topics/{topic}/consumers/billing", {"seq": 6})
    answer = socket.call("subscribe", topic=topic, consumer="billing", limit=2)
    assert answer["topics"][topic]["from_seq"] == 6
    frame = socket.until("record")
    assert [record["$seq"] for record in frame["records"]] == [7, 8]
    done = socket.call("commit", topic=topic, seq=frame["to_seq"])
    assert (done["op"], done["topic"], done["consumer"], done["seq"]) == ("committed", topic, "billing", 8)
    assert position(api, topic) == 8
    assert socket.call("commit", topic=topic, seq=3)["seq"] == 8, "a commit never moves back"


def test_websocket_commit_needs_a_known_consumer(api: Api, topic: str, socket: Socket):
    assert socket.call("commit", topic=topic, seq=1)["code"] == "invalid_request"
    for seq in (0, 1):
        assert socket.call("commit", topic=topic, consumer="absent", seq=seq)["code"] == "consumer_not_found"
    assert socket.call("commit", topic="nowhere", consumer="billing", seq=1)["code"] == "topic_not_found"
    assert socket.call("commit", topic=topic, consumer="billing", seqs=1)["code"] == "invalid_request"


def test_commands_behind_a_subscribe_wait_for_it(api: Api, topic: str, socket: Socket):
    api.put(topic, durability="fsync")
    socket.send("subscribe", topic=topic, consumer="billing", limit=3, request_id="s")
    socket.send("commit", topic=topic, seq=2, request_id="c")
    assert socket.until("subscribed")["request_id"] == "s"
    assert socket.until("committed")["seq"] == 2


# --- restarts


def test_commit_after_a_restart_acknowledges_nothing(tmp_path: Any):
    settings = {"data_dir": tmp_path / "data"}
    server = ServerProcess(tmp_path, settings)
    api = Api(server.url)
    api.write("orders", *range(10))
    assert diff(api, "orders", limit=3)[0] == [1, 2, 3]
    assert diff(api, "orders", limit=3, commit=True)[0] == [4, 5, 6]
    api.close()
    server.kill()
    server = ServerProcess(tmp_path, settings)
    api = Api(server.url)
    assert diff(api, "orders", limit=3, commit=True) == ([4, 5, 6], 3), "their processing was never acknowledged"
    wait_for(lambda: position(api, "orders") == 3)
    api.close()
    server.stop()
