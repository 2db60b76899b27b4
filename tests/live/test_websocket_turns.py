"""WebSocket input per turn of the loop, counted in frames and bytes, without a socket."""

import json
from typing import Any

import pytest

from tests.live.manual import TickingClock, create, manual_app
from tests.security.fairness import CONTINUATION, PING, PONG, TEXT, frame
from tests.simulated.clock import SimClock
from topics.model.wire import MAX_PLAIN_BODY_BYTES
from topics.server.access.caller import ANYONE
from topics.server.http.messages import Response
from topics.server.http.request.write_request import LARGE_BYTES
from topics.server.push.websocket.commands import MAX_UNACKED
from topics.server.push.websocket.connection import WebSocket
from topics.server.push.websocket.input import BYTES_PER_TURN, FRAMES_PER_TURN, MAX_FRAGMENTS, TURN_NS

CLOSE = 0x88


class RecordingSink:
    """Keeps frames that the server sends. It is full after `takes` frames."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.held = self.closed = False
        self.takes = 1 << 60

    def write(self, data: bytes) -> bool:
        self.written.append(data)
        return len(self.written) < self.takes

    def close(self) -> None:
        self.closed = True

    def give_up(self) -> None:
        pass

    def hold(self, held: bool, /) -> None:
        self.held = held


class Client:
    """One connection of an otherwise idle server."""

    def __init__(self, *, clock: SimClock | None = None, **settings: Any) -> None:
        self.app, self.loop = manual_app(clock, **settings)
        self.sink = RecordingSink()
        self.ws = WebSocket(self.app.services, Response(101), self.app.quotas.open_stream(ANYONE))
        self.ws.opened(self.sink)

    def sent(self, data: bytes) -> int:
        """Return how many frames the server sent back at once."""
        before = len(self.sink.written)
        self.ws.received(data)
        return len(self.sink.written) - before

    def turn(self) -> int:
        before = len(self.sink.written)
        self.loop.turn()
        return len(self.sink.written) - before

    def answers(self) -> list[Any]:
        return [json.loads(each[each.index(b"{") :]) for each in self.sink.written if b"{" in each]

    def close_code(self) -> int:
        assert self.sink.closed
        assert self.sink.written[-1][0] == CLOSE
        return int.from_bytes(self.sink.written[-1][2:4], "big")


@pytest.mark.parametrize("unit", [frame(PING), frame(TEXT, b'{"op":"ping"}'), frame(TEXT)])
def test_one_turn_answers_a_bounded_number_of_frames(unit: bytes) -> None:
    client = Client()
    count = 3 * FRAMES_PER_TURN + 7
    answered = [client.sent(unit * count)]
    while client.sink.held:
        answered.append(client.turn())
    assert max(answered) <= FRAMES_PER_TURN
    assert sum(answered) == count
    assert client.sent(unit) == 1


@pytest.mark.parametrize("unit", [frame(PONG), frame(TEXT, b" ", fin=False)])
def test_frames_without_an_answer_count_too(unit: bytes) -> None:
    client = Client()
    flood = unit + frame(CONTINUATION, b" ", fin=False) * 199 if unit[0] == TEXT else unit * 200
    client.ws.received(flood + frame(PING))
    turns = 1
    while client.sink.held:
        assert not client.sink.written
        client.turn()
        turns += 1
    assert len(client.sink.written) == 1
    assert turns == -(-201 // FRAMES_PER_TURN)


def test_turn_ends_when_its_time_is_over() -> None:
    client = Client(clock=TickingClock())
    assert client.sent(frame(PING) * FRAMES_PER_TURN) == TURN_NS // 1_000_000 + 1
    assert client.sink.held


def test_one_turn_handles_a_bounded_number_of_bytes() -> None:
    client = Client()
    whole = frame(TEXT, b" " * (4 * BYTES_PER_TURN)) + frame(PING)
    client.ws.received(whole)
    turns = 1
    while client.sink.held:
        client.turn()
        turns += 1
    assert turns >= 4
    assert len(client.sink.written) == 2


def test_input_of_a_client_that_does_not_read_waits() -> None:
    client = Client()
    client.sink.takes = 10
    assert client.sent(frame(PING) * 40) == 10
    assert client.sink.held
    assert client.turn() == 0
    client.sink.takes = 1 << 60
    client.ws.drained()
    assert client.turn() == 30
    assert not client.sink.held


def test_excess_publishes_wait_for_acknowledgements() -> None:
    client = Client()
    publish = frame(TEXT, b'{"op":"publish","topic":"t","records":[{"data":1}]}')
    client.ws.commands.unacked = MAX_UNACKED - 1
    client.ws.received(publish * 200)
    assert client.sink.held
    client.ws.commands.unacked = 1
    client.turn()  # writes one publish, whose acknowledgement unblocks the next ones
    head = client.app.services.engine.topic("t").next_seq - 1
    assert 1 <= head <= 1 + FRAMES_PER_TURN
    while client.sink.held:
        client.turn()
    client.turn()
    assert client.app.services.engine.topic("t").head == 200


def test_message_limit_counts_bytes_not_characters() -> None:
    client = Client(max_body_bytes=4096, max_record_bytes=4096, max_meta_bytes=1024)
    client.ws.received(frame(TEXT, "ä".encode() * 2049))
    assert client.close_code() == 1009


def test_empty_fragments_take_no_memory_and_are_limited() -> None:
    client = Client()
    client.ws.received(frame(TEXT, fin=False) + frame(CONTINUATION, fin=False) * MAX_FRAGMENTS)
    while client.sink.held and not client.sink.closed:
        client.turn()
        assert len(client.ws.input.message) == 0
    assert client.close_code() == 1009


def test_message_with_maximum_fragments_is_handled() -> None:
    client = Client()
    command = b'{"op":"ping"}'
    parts = [frame(TEXT, command[:1], fin=False)]
    parts += [frame(CONTINUATION, fin=False)] * (MAX_FRAGMENTS - 2)
    client.ws.received(b"".join(parts) + frame(CONTINUATION, command[1:]))
    while client.sink.held:
        client.turn()
    assert client.answers() == [{"op": "pong"}]


def test_number_of_patterns_per_connection_is_limited() -> None:
    client = Client(max_watch_topics=4)

    def subscribe(*names: str) -> str:
        client.ws.received(
            frame(TEXT, json.dumps({"op": "subscribe", "topics": {name: {} for name in names}}).encode())
        )
        answer = client.answers()[-1]
        return str(answer.get("message", answer["op"]))

    assert subscribe("a*", "b*", "c*") == "subscribed"
    assert subscribe("c*", "d*") == "subscribed"
    assert "more than 4 patterns" in subscribe("e*")
    client.ws.received(frame(TEXT, b'{"op":"unsubscribe","topic":"a*"}'))
    assert subscribe("e*") == "subscribed"
    create(client.app, client.loop, ["a1", "e1"])
    assert [one.topic.name for one in client.ws.commands.subscriptions.subscriptions.values()] == ["e1"]


def publish(records: bytes, *, request_id: int = 1) -> bytes:
    return frame(TEXT, b'{"op":"publish","topic":"t","request_id":%d,"records":[%b]}' % (request_id, records))


def finish(client: Client) -> None:
    for _ in range(100_000):
        if not client.sink.held and not client.loop.soon:
            return
        client.turn()
    raise AssertionError("never finished")


def test_long_publish_is_decoded_in_turns_before_later_ones() -> None:
    client = Client()
    long = rb'{"data":"' + rb"\ud800" * (LARGE_BYTES // 6) + b'"}'
    client.ws.received(publish(long) + publish(b'{"data":2}', request_id=2))
    finish(client)
    assert [answer["request_id"] for answer in client.answers()] == [1, 2]
    assert [answer["last_seq"] for answer in client.answers()] == [1, 2]


def test_long_message_other_than_publish_is_refused() -> None:
    client = Client()
    padding = b" " * MAX_PLAIN_BODY_BYTES
    client.ws.received(frame(TEXT, b'{"op":"subscribe","topic":"t"%b}' % padding))
    finish(client)
    assert [(answer["op"], answer["code"]) for answer in client.answers()] == [("error", "payload_too_large")]
    client.ws.received(frame(TEXT, b'{"op":"ping"}'))
    assert client.answers()[-1]["op"] == "pong"


def test_publish_with_too_many_records_is_refused() -> None:
    client = Client()
    client.ws.received(publish(b'{"data":1},' * (400_000) + b'{"data":1}'))
    finish(client)
    assert client.answers()[0]["code"] == "batch_too_large"


def test_closing_during_a_decode_writes_nothing() -> None:
    client = Client()
    client.ws.received(publish(rb'{"data":"' + rb"\ud800" * (LARGE_BYTES // 6) + b'"}'))
    client.turn()
    client.ws.closed()
    while client.loop.soon:
        client.turn()
    assert not client.app.services.engine.topics
