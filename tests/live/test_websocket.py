"""`/v0/ws` through the `websockets` client, and through raw bytes for invalid input."""

import base64
import itertools
import json
import os
import socket
from contextlib import ExitStack
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.live.events import as_documented, wait_for
from tools.docs.pushed import ANSWERS, DELIVERIES

WAIT_S = 10


class Socket:
    """JSON in, JSON out."""

    def __init__(self, url: str, **options: Any) -> None:
        options = {"compression": None, "proxy": None} | options
        self._stack = ExitStack()
        address = url.replace("http://", "ws://") + "/v0/ws"
        self.ws: ClientConnection = self._stack.enter_context(connect(address, **options))
        self._ids = itertools.count(1)

    def close(self) -> None:
        self._stack.close()

    def send(self, op: str, **fields: Any) -> None:
        self.ws.send(json.dumps({"op": op} | fields))

    def next(self) -> Any:
        message = json.loads(self.ws.recv(WAIT_S))
        kinds = DELIVERIES if message["op"] in DELIVERIES else ANSWERS
        body = message if kinds is ANSWERS else {name: value for name, value in message.items() if name != "op"}
        as_documented(kinds, message["op"], body)
        return message

    def until(self, op: str, **fields: Any) -> Any:
        """Return the next message of that kind. Messages before it are dropped."""
        while True:
            frame = self.next()
            if frame["op"] == op and all(frame.get(name) == value for name, value in fields.items()):
                return frame

    def call(self, op: str, **fields: Any) -> Any:
        """Return the answer to one command."""
        number = next(self._ids)
        self.send(op, request_id=number, **fields)
        while (frame := self.next()).get("request_id") != number:
            pass
        return frame


@pytest.fixture
def open_socket():
    sockets = []

    def open_one(url, **options):
        sockets.append(Socket(url, **options))
        return sockets[-1]

    yield open_one
    for each in sockets:
        each.close()


def test_subscription_reports_its_position_and_delivers_from_it(live, topic, open_socket):
    live.api.write(topic, 1, 2)
    ws = open_socket(live.url)
    ws.send("subscribe", request_id="s1", topic=topic, from_seq=1)
    subscribed = ws.next()
    epoch = live.api.state(topic)["epoch"]
    where = {"from_seq": 1, "head_seq": 2, "earliest_seq": 1, "epoch": epoch}
    assert subscribed == {"op": "subscribed", "request_id": "s1", "topics": {topic: where}}
    record = ws.next()
    [one] = record.pop("records")
    assert record == {"op": "record", "topic": topic, "from_seq": 1, "to_seq": 2, "head_seq": 2}
    assert (one["$seq"], one["data"]) == (2, 2)
    assert ws.next() == {"op": "caught_up", "topic": topic, "head_seq": 2}
    live.api.write(topic, 3)
    assert [each["$seq"] for each in ws.next()["records"]] == [3]


def test_publish_is_acknowledged_and_reaches_subscribers(live, topic, open_socket):
    ws = open_socket(live.url)
    ack = ws.call("publish", topic=topic, records=[{"data": {"packet": 1}, "node": "u1"}, {"data": 2}])
    assert (ack["op"], ack["topic"], ack["last_seq"], ack["head_seq"]) == ("ack", topic, 2, 2)
    assert (ack["seqs"], ack["created"], ack["deduped"]) == ([1, 2], True, False)
    assert ack["performance"]["fsync_ms"] == 0.0
    ws.call("subscribe", topic=topic, node="u1", include_meta=False)
    assert [each["$seq"] for each in ws.until("record")["records"]] == [2]
    ack = ws.call("publish", topic=topic, records=[{"data": 3}], return_seqs=False)
    assert "seqs" not in ack
    assert live.api.state(topic)["head_seq"] == 3


def test_socket_subscribes_with_a_filter_and_refuses_an_invalid_one(live, topic, open_socket):
    live.api.append(topic, [{"data": {"id": n}} for n in range(10)])
    ws = open_socket(live.url)
    refused = ws.call("subscribe", topic=topic, filter=["Where", "id = "])
    assert (refused["code"], refused["detail"]["position"]) == ("invalid_request", 6)
    ws.call("subscribe", topic=topic, filter=["Where", "id in (7, 8)"])
    assert [record["$seq"] for record in ws.until("record")["records"]] == [8, 9]


def test_publish_takes_all_fields_of_a_write(live, topic, open_socket):
    ws = open_socket(live.url)
    first = ws.call("publish", topic=topic, records=[{"data": 1}], config={"durability": "fsync"}, idempotency_key="k")
    again = ws.call("publish", topic=topic, records=[{"data": 1}], idempotency_key="k", disable_backpressure=True)
    assert (first["created"], again["deduped"], again["last_seq"]) == (True, True, 1)
    assert live.api.state(topic)["config"]["durable"] is True
    assert ws.call("publish", topic=f"{topic}.no", records=[{"data": 1}], create=False)["code"] == "topic_not_found"


def test_one_websocket_watches_topics_and_patterns(live, topic, open_socket):
    live.api.write(f"{topic}.a", 1)
    ws = open_socket(live.url)
    subscribed = ws.call("subscribe", topics={f"{topic}.*": {}, f"{topic}.a": {"tail": True}})
    assert subscribed["topics"][f"{topic}.a"]["from_seq"] == 1
    live.api.write(f"{topic}.b", 7)
    assert ws.until("record")["topic"] == f"{topic}.b"
    live.api.drop(f"{topic}.b")
    assert ws.until("topic_deleted") == {
        "op": "topic_deleted", "topic": f"{topic}.b", "head_seq": 1, "reason": "deleted",
    }  # fmt: skip
    assert ws.call("unsubscribe", topic=f"{topic}.*")["op"] == "unsubscribed"
    live.api.write(f"{topic}.c", 1)
    live.api.write(f"{topic}.a", 1)
    assert ws.call("ping") == {"op": "pong", "request_id": 3}


def test_second_subscribe_replaces_the_first(live, topic, open_socket):
    live.api.write(topic, 1, 2)
    ws = open_socket(live.url)
    for from_seq in (0, 1):
        ws.call("subscribe", topic=topic, from_seq=from_seq)
        assert ws.until("record")["from_seq"] == from_seq
        ws.until("caught_up")
    live.api.write(topic, 3)
    assert ws.next()["to_seq"] == 3
    assert ws.call("ping")["op"] == "pong"


@pytest.mark.parametrize(("config", "reason", "upto"), [({"cap_records": 2}, "cap", 7), ({"ttl_ms": 1}, "ttl", 9)])
def test_subscription_reports_why_records_were_lost(live, topic, open_socket, config, reason, upto):
    live.api.put(topic, **config)
    live.api.write(topic, *range(9))
    wait_for(lambda: live.api.state(topic)["earliest_seq"] == upto + 1)
    ws = open_socket(live.url)
    ws.call("subscribe", topic=topic)
    gap = ws.next()
    assert (gap["op"], gap["reason"], gap["gap_from"], gap["gap_to"]) == ("tombstone", reason, 1, upto)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("nonsense", "invalid_request"),
        ("[1]", "invalid_request"),
        ('{"op":"dance","request_id":1}', "invalid_request"),
        ('{"request_id":1}', "invalid_request"),
        ('{"op":"subscribe","request_id":1}', "invalid_request"),
        ('{"op":"subscribe","request_id":1,"topic":"a","topics":{"a":{}}}', "invalid_request"),
        ('{"op":"subscribe","request_id":1,"topic":"a b"}', "invalid_request"),
        ('{"op":"subscribe","request_id":1,"topic":"unknown"}', "topic_not_found"),
        ('{"op":"unsubscribe","request_id":1}', "invalid_request"),
        ('{"op":"publish","request_id":1,"topic":"a"}', "invalid_request"),
        ('{"op":"publish","request_id":1,"topic":"a","records":[]}', "invalid_request"),
        ('{"op":"publish","request_id":1,"topic":"a","records":[{"data":1,"tag":7}]}', "invalid_request"),
        ("[" * 100_000, "invalid_request"),
    ],
)
def test_invalid_command_gets_an_error_and_the_next_works(live, open_socket, message, code):
    ws = open_socket(live.url)
    ws.ws.send(message)
    error = ws.next()
    assert (error["op"], error["code"]) == ("error", code)
    assert error.get("request_id") == (1 if "request_id" in message else None)
    assert ws.call("ping")["op"] == "pong"


def test_every_command_is_authorised(start_live, open_socket):
    live = start_live(api_keys="admin-key,r:read:a,w:write:a,wa:write+admin:a")
    live.api.call("PUT", "/v0/topics/a", {}, headers={"authorization": "Bearer admin-key"})

    def outcome(key, op, topic="a", **fields):
        ws = open_socket(live.url, additional_headers={"authorization": f"Bearer {key}"})
        answer = ws.call(op, topic=topic, **fields)
        return answer["code"] if answer["op"] == "error" else answer["op"]

    record = {"records": [{"data": 1}]}
    assert outcome("r", "subscribe") == "subscribed"
    assert outcome("r", "publish", **record) == "forbidden"
    assert outcome("w", "publish", **record) == "ack"
    assert outcome("w", "subscribe") == "forbidden"
    assert outcome("w", "publish", config={}, **record) == "forbidden"
    assert outcome("wa", "publish", topic="a.new", config={}, **record) == "ack"
    assert outcome("w", "publish", topic="b", **record) == "forbidden"
    assert outcome("r", "subscribe", topic="b*") == "forbidden"
    with pytest.raises(InvalidStatus) as refused:
        open_socket(live.url)
    assert refused.value.response.status_code == 401


def test_websocket_counts_as_a_stream(start_live, open_socket):
    live = start_live(max_sse_connections=1)
    open_socket(live.url)
    with pytest.raises(InvalidStatus) as refused:
        open_socket(live.url)
    assert refused.value.response.status_code == 429


def test_page_of_another_site_may_not_connect(start_live, open_socket):
    live = start_live(cors_origins="https://console.example")
    open_socket(live.url, origin=live.url)
    open_socket(live.url, origin="https://console.example")
    with pytest.raises(InvalidStatus) as refused:
        open_socket(live.url, origin="https://evil.example")
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    "change",
    [
        {"upgrade": None}, {"connection": "close"}, {"sec-websocket-version": "12"},
        {"sec-websocket-key": "short"}, {"sec-websocket-key": None},
    ],
)  # fmt: skip
def test_invalid_handshake_gets_an_http_error(live, change):
    headers = {
        "connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
        "sec-websocket-key": base64.b64encode(os.urandom(16)).decode(),
    } | change  # fmt: skip
    sent = {name: value for name, value in headers.items() if value is not None}
    live.api.refused(400, "invalid_request", "GET", "/v0/ws", headers=sent)


def test_ping_and_close_are_answered(live, open_socket):
    ws = open_socket(live.url)
    assert ws.ws.ping(b"hello").wait(WAIT_S)
    ws.ws.close(1000, "done")
    assert ws.ws.close_code == 1000


def test_binary_message_or_broken_frame_closes_the_connection(live, open_socket):
    ws = open_socket(live.url)
    ws.ws.send(b"\x00")
    with pytest.raises(ConnectionClosed) as closed:
        ws.next()
    assert closed.value.rcvd.code == 1003
    ws = open_socket(live.url)
    ws.ws.socket.sendall(b"\x81\x05hello")  # not masked
    with pytest.raises(ConnectionClosed) as closed:
        ws.next()
    assert closed.value.rcvd.code == 1002


def send_and_wait(ws, message):
    ws.ws.send(message)
    ws.next()


def test_too_long_message_is_refused_before_it_is_complete(start_live, open_socket):
    live = start_live(max_body_bytes=10_000, max_record_bytes=10_000, max_meta_bytes=1_000)
    ws = open_socket(live.url)
    with pytest.raises(ConnectionClosed) as closed:
        send_and_wait(ws, ["x" * 4_000] * 10)
    assert closed.value.rcvd.code == 1009


def test_client_that_goes_on_sending_reads_why_the_connection_ends(start_live):
    live = start_live(max_body_bytes=10_000, max_record_bytes=10_000, max_meta_bytes=1_000)
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", live.server.port), WAIT_S) as raw:
            raw.sendall(
                b"GET /v0/ws HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
                b"sec-websocket-version: 13\r\nsec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
            )
            head = raw.recv(4096)
            assert b" 101 " in head
            too_long = b"\x81\xff" + (4_000_000).to_bytes(8) + b"mask"
            raw.sendall(too_long + b"x" * 4_000_000)
            read = b"".join(iter(lambda: raw.recv(4096), b""))
            assert (read[:1], int.from_bytes(read[2:4])) == (b"\x88", 1009)


def test_fragmented_message_is_assembled(live, topic, open_socket):
    ws = open_socket(live.url)
    text = json.dumps({"op": "publish", "topic": topic, "records": [{"data": "häppchen"}]}, ensure_ascii=False)
    ws.ws.send(iter([text[:9], text[9:60], text[60:]]))
    assert ws.next()["last_seq"] == 1


def test_offered_compression_is_declined(live, open_socket):
    assert open_socket(live.url, compression="deflate").ws.protocol.extensions == []


def test_publisher_that_never_reads_is_not_read_from(start_live, topic, open_socket):
    """The acknowledgements fill the socket; then the sends of the client block, and the server holds no more."""
    live = start_live()
    ws = open_socket(live.url, max_queue=1, close_timeout=0.1)
    raw: socket.socket = ws.ws.socket
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    message = json.dumps({"op": "publish", "topic": topic, "records": [{"data": 1}] * 200}).encode()
    frame = b"\x81\xfe" + len(message).to_bytes(2, "big") + b"\0\0\0\0" + message
    raw.settimeout(1)
    with pytest.raises(TimeoutError):
        raw.sendall(frame * 100_000)
    assert live.api.state(topic)["head_seq"] > 0


def test_stopping_server_closes_websockets_as_going_away(start_live, open_socket):
    live = start_live()
    ws = open_socket(live.url)
    live.server.terminate()
    assert ws.next()["code"] == "shutting_down"
    with pytest.raises(ConnectionClosed) as closed:
        ws.next()
    assert closed.value.rcvd.code == 1001


def test_published_topic_can_be_subscribed_to_at_once(live, topic, open_socket):
    socket = open_socket(live.url)
    for number in range(20):
        name = f"{topic}-{number}"
        socket.send("publish", topic=name, records=[{"data": 1}])
        socket.send("subscribe", request_id=f"s{number}", topic=name)
        assert socket.until("caught_up", topic=name)["head_seq"] == 1


def test_publish_accepts_lone_surrogates_like_http(live, topic, open_socket):
    ws = open_socket(live.url)
    record = r'{"data":"cut \ud83d here","tag":"t","meta":{"k\ud83d":"\udc00"}}'
    live.api.call("POST", f"/v0/topics/{topic}", raw=b'{"records":[%b]}' % record.encode())
    ws.ws.send(f'{{"op":"publish","topic":"{topic}","request_id":"a","records":[{record}]}}')
    assert (ws.next()["op"], live.api.state(topic)["count"]) == ("ack", 2)
    text = live.api.call("POST", f"/v0/topics/{topic}/diff", {}).content
    assert text.count(rb'"data":"cut \ud83d here","meta":{"k\ud83d":"\udc00"}') == 2


@pytest.mark.parametrize(
    "fields",
    [
        r'"records":[{"data":1,"tag":"\ud800"}]',
        r'"records":[{"data":1,"node":"\ud800"}]',
        r'"records":[{"data":1}],"node":"\ud800"',
        r'"records":[{"data":1}],"idempotency_key":"\ud800"',
        r'"records":[{"data":"\ud800"}],"config":{"dead_letter":"\udfff"}',
        r'"records":[{"data":"\ud800"},]',
    ],
)
def test_publish_refuses_lone_surrogates_like_http(live, topic, open_socket, fields):
    answer = live.api.call("POST", f"/v0/topics/{topic}", raw=f"{{{fields}}}".encode())
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    ws = open_socket(live.url)
    ws.ws.send(f'{{"op":"publish","topic":"{topic}","request_id":"a",{fields}}}')
    frame = ws.next()
    message = answer.json()["error"]["message"].partition(" (byte")[0]
    assert (frame["op"], frame["code"], frame["message"].partition(" (byte")[0]) == (
        "error",
        "invalid_request",
        message,
    )
    assert topic not in [one["topic"] for one in live.api.get("/v0/topics", prefix=topic)["topics"]]


@pytest.mark.parametrize("command", [r'"op":"subscribe","topic":"\ud800"', r'"op":"ping","request_id":"\ud800"'])
def test_lone_surrogate_in_a_name_is_refused(live, open_socket, command):
    ws = open_socket(live.url)
    ws.ws.send(f"{{{command}}}")
    assert ws.next()["code"] == "invalid_request"
    assert ws.call("ping")["op"] == "pong"


# --- unknown fields


def test_unknown_field_of_a_command_is_reported_in_its_answer(live, topic, open_socket):
    live.api.write(topic, 1)
    ws = open_socket(live.url)
    ack = ws.call("publish", topic=topic, records=[{"data": 2, "tga": "x"}], nod="n")
    assert ack["warnings"] == ['unknown field "records[0].tga" ignored; did you mean "tag"?']
    subscribed = ws.call("subscribe", topics={topic: {"from": 1}})
    assert subscribed["warnings"] == ['unknown field "topics[...].from" ignored; did you mean "from_seq"?']
    assert ws.call("ping", colour=1)["warnings"] == ['unknown field "colour" ignored']
    assert ws.call("unsubscribe", topic=topic, colour=1)["warnings"] == ['unknown field "colour" ignored']
    assert "warnings" not in ws.call("publish", topic=topic, records=[{"data": 3}])


def test_unknown_field_of_a_long_publish_is_reported_in_its_ack(live, topic, open_socket):
    ws = open_socket(live.url, max_size=None)
    ack = ws.call("publish", topic=topic, records=[{"data": "x" * 400_000}], retrun_seqs=False)
    assert ack["warnings"] == ['unknown field "retrun_seqs" ignored; did you mean "return_seqs"?']


def test_unknown_field_in_the_configuration_of_a_publish_is_refused(live, topic, open_socket):
    ws = open_socket(live.url)
    error = ws.call("publish", topic=topic, records=[{"data": 1}], config={"cap_record": 5})
    assert (error["op"], error["code"], error["detail"]) == ("error", "invalid_request", {"field": "config.cap_record"})


def test_publishes_behind_a_large_one_keep_the_order(live, topic, open_socket):
    """The large one is rendered in slices: later commands must wait for it."""
    socket = open_socket(live.url)
    large = [{"data": "x" * 10_000, "meta": {"n": n}} for n in range(400)]
    for at, records in enumerate(([{"data": 0}], large, [{"data": 1}], large, [{"data": 2}])):
        socket.send("publish", topic=topic, records=records, request_id=at, return_seqs=False)
    acks = [socket.until("ack", request_id=at) for at in range(5)]
    assert [(ack["first_seq"], ack["last_seq"]) for ack in acks] == [
        (1, 1), (2, 401), (402, 402), (403, 802), (803, 803),
    ]  # fmt: skip
    [last] = live.api.diff(topic, from_seq=801, limit=1)["records"]
    assert (last["data"], last["meta"]) == ("x" * 10_000, {"n": 399})


def test_refused_large_publish_does_not_block_the_next_command(live, topic, open_socket):
    socket = open_socket(live.url)
    records = [{"data": "x" * 10_000, "meta": [1]}] * 300
    refused = socket.call("publish", topic=topic, records=records)
    assert (refused["op"], refused["code"]) == ("error", "invalid_request")
    assert socket.call("publish", topic=topic, records=[{"data": 1}])["first_seq"] == 1


def masked(**command: Any) -> bytes:
    """Return a frame with a command, which is padded to the length of one that has two bytes for it."""
    text = json.dumps(command).encode().ljust(126)
    return b"\x81\xfe" + len(text).to_bytes(2, "big") + b"\0\0\0\0" + text


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_acked_publishes_of_one_read_survive_a_kill(start_live, tmp_path, durability, open_socket):
    """The server is killed when a part of the acks has arrived: the records of all of these are there after it."""
    live = start_live(data_dir=tmp_path / "data")
    live.api.put("t", durability=durability)
    ws = open_socket(live.url, close_timeout=0.1)
    size = 600
    frames = [masked(op="publish", topic="t", request_id=n, records=[{"data": n}]) for n in range(size)]
    ws.ws.socket.sendall(b"".join(frames))
    acks = [ws.next() for _ in range(size // 2)]
    live.server.kill()
    assert [ack["request_id"] for ack in acks] == list(range(size // 2))
    assert [ack["first_seq"] for ack in acks] == list(range(1, size // 2 + 1))
    assert {ack["performance"]["fsync_ms"] > 0 for ack in acks} == {durability == "fsync"}
    again = start_live(data_dir=tmp_path / "data")
    found = [record["data"] for record in again.api.diff("t", from_seq=0, limit=1000)["records"]]
    assert found[: size // 2] == list(range(size // 2))
    assert found == list(range(len(found)))


def test_pings_between_publishes_are_answered_once_each(live, topic, open_socket):
    ws = open_socket(live.url)
    commands = [{"op": "ping"}, {"op": "publish", "topic": topic, "records": [{"data": 1}]}]
    frames = [masked(request_id=n, **commands[n % 3 > 0]) for n in range(300)]
    ws.ws.socket.sendall(b"".join(frames))
    answers = [ws.next() for _ in range(300)]
    assert sorted(answer["request_id"] for answer in answers) == list(range(300))
    acks = [answer for answer in answers if answer["op"] == "ack"]
    assert [ack["request_id"] for ack in acks] == [n for n in range(300) if n % 3]
    assert [ack["last_seq"] for ack in acks] == list(range(1, 201))
