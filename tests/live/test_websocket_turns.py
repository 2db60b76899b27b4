"""WebSocket input per turn of the loop, counted in frames and bytes, without a socket."""

import json
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Raw

from tests.engine.harness import read
from tests.live.manual import TickingClock, create, manual_app
from tests.security.fairness import CONTINUATION, PING, PONG, TEXT, frame
from tests.simulated.clock import SimClock
from topics.engine.write.append import Appended
from topics.keys import Rights
from topics.model.records import NewRecord
from topics.model.topic import ConfigPatch
from topics.model.watch import Publish, PublishAck, PublishTimes
from topics.model.wire import MAX_PLAIN_BODY_BYTES
from topics.server.access.caller import ANYONE, Caller
from topics.server.http.messages import Response
from topics.server.http.request.write_request import LARGE_BYTES
from topics.server.push.websocket.commands import MAX_UNACKED, ack_texts
from topics.server.push.websocket.connection import WebSocket
from topics.server.push.websocket.input import BYTES_PER_TURN, FRAMES_PER_TURN, MAX_FRAGMENTS, TURN_NS, SocketInput

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


def texts_of(sent: bytes) -> list[bytes]:
    """Return the text messages among the frames that a server sent."""
    found, at = [], 0
    while at < len(sent):
        first, size, begin = sent[at], sent[at + 1], at + 2
        if size > 125:
            begin += 2 if size == 126 else 8
            size = int.from_bytes(sent[at + 2 : begin], "big")
        at = begin + size
        if first == 0x81:
            found.append(sent[begin:at])
    return found


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
        return [json.loads(text) for text in texts_of(b"".join(self.sink.written))]

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


def create_topic(client: Client, **config: Any) -> None:
    client.app.services.engine.put_topic("t", ConfigPatch(**config))
    client.app.services.engine.flush()


def outcome(client: Client) -> list[tuple[Any, Any]]:
    """Return each answer as its request id, and its seqs or its error."""
    shown = []
    for answer in client.answers():
        detail = (
            (answer["first_seq"], answer["last_seq"]) if answer["op"] == "ack" else answer.get("code", answer["op"])
        )
        shown.append((answer.get("request_id"), detail))
    return shown


def test_publishes_of_one_read_share_a_ticket_and_a_write_to_the_socket() -> None:
    client = Client()
    create_topic(client)
    sizes = [1, 3, 1, 2]
    reads = b"".join(publish(b",".join([b'{"data":1}'] * n), request_id=n * 10 + at) for at, n in enumerate(sizes))
    client.ws.received(reads)
    assert client.app.services.engine.topic("t").pending == 1
    assert not client.sink.written
    assert client.turn() == 1
    assert outcome(client) == [(10, (1, 1)), (31, (2, 4)), (12, (5, 5)), (23, (6, 7))]
    assert [answer["head_seq"] for answer in client.answers()] == [1, 4, 5, 7]
    assert [answer["seqs"] for answer in client.answers()] == [[1], [2, 3, 4], [5], [6, 7]]
    assert (client.ws.commands.unacked, client.ws.commands.unacked_bytes, client.ws.commands.publishes) == (0, 0, {})


REFUSED = [
    (b'{"data":1,"tag":"%b"}' % (b"x" * 257), "invalid_request"),
    (b'{"data":1,"meta":[]}', "invalid_request"),
    (b'{"data":1,"node":5}', "invalid_request"),
    (b"", "invalid_request"),
    (b'{"data":"%b"}' % (b"x" * 5000), "record_too_large"),
]


@pytest.mark.parametrize(("records", "code"), REFUSED)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_refused_publish_among_others_of_one_read_takes_no_seq(at: int, records: bytes, code: str) -> None:
    client = Client(max_record_bytes=4096, max_body_bytes=1 << 20, max_meta_bytes=1024)
    create_topic(client)
    sent = [publish(b'{"data":%d}' % number, request_id=number) for number in (1, 2)]
    sent.insert(at, publish(records, request_id=9))
    client.ws.received(b"".join(sent))
    finish(client)
    assert sorted(outcome(client), key=str) == [(1, (1, 1)), (2, (2, 2)), (9, code)]
    assert outcome(client)[0] == (9, code)  # an error does not wait for the log


@pytest.mark.parametrize(
    "between",
    [
        b'{"op":"ping","request_id":"between"}',
        b'{"op":"subscribe","topic":"t","tail":true,"request_id":"between"}',
        b'{"op":"unsubscribe","topic":"t","request_id":"between"}',
        b'{"op":"publish","topic":"u","records":[{"data":1}],"request_id":"between"}',
        b'{"op":"publish","topic":"t","idempotency_key":"k","records":[{"data":1}],"request_id":"between"}',
        b'{"op":"publish","topic":"t","records":[{"data":1,"meta":{"a":1}}],"request_id":"between"}',
        b'{"op":"publish","topic":"t","records":[{"data":1}],"config":{"ttl_ms":1},"request_id":"between"}',
        b'{"op":"publish","topic":"t","records":[{"data":1}],"colour":"red","request_id":"between"}',
    ],
)
def test_command_between_publishes_of_one_read_keeps_the_order(between: bytes) -> None:
    client = Client()
    create_topic(client)
    sent = [publish(b'{"data":%d}' % number, request_id=number) for number in (1, 2, 3, 4)]
    client.ws.received(b"".join([*sent[:2], frame(TEXT, between), *sent[2:]]))
    finish(client)
    seqs = [(number, seqs[0]) for number, seqs in outcome(client) if isinstance(seqs, tuple) and number != "between"]
    more = client.app.services.engine.topic("t").head - 4
    assert seqs == [(1, 1), (2, 2), (3, 3 + more), (4, 4 + more)]
    assert [number for number, _ in outcome(client)].count("between") == 1


def test_subscription_between_publishes_gets_each_record_once() -> None:
    client = Client()
    create_topic(client)
    subscribe = frame(TEXT, b'{"op":"subscribe","topic":"t"}')
    client.ws.received(publish(b'{"data":1}') + subscribe + publish(b'{"data":2}', request_id=2))
    for _ in range(10):
        client.turn()
    records = [
        record["data"] for answer in client.answers() if answer["op"] == "record" for record in answer["records"]
    ]
    assert records == [1, 2]


def test_publishes_of_two_connections_in_one_turn_keep_their_seqs() -> None:
    client = Client()
    create_topic(client)
    other = WebSocket(client.app.services, Response(101), client.app.quotas.open_stream(ANYONE))
    sink = RecordingSink()
    other.opened(sink)
    client.ws.received(publish(b'{"data":1}', request_id=1) + publish(b'{"data":2}', request_id=2))
    other.received(publish(b'{"data":3}', request_id=3) + publish(b'{"data":4}', request_id=4))
    client.ws.received(publish(b'{"data":5}', request_id=5) + publish(b'{"data":6}', request_id=6))
    client.turn()
    assert outcome(client) == [(1, (1, 1)), (2, (2, 2)), (5, (5, 5)), (6, (6, 6))]
    acks = [json.loads(text) for text in texts_of(b"".join(sink.written))]
    assert [(ack["request_id"], ack["first_seq"]) for ack in acks] == [(3, 3), (4, 4)]


def test_connection_that_ends_before_the_acks_leaves_what_it_published() -> None:
    client = Client()
    create_topic(client)
    client.ws.received(publish(b'{"data":1}') * 50)
    client.ws.closed()
    client.turn()
    assert client.app.services.engine.topic("t").head == 50
    assert not client.sink.written


def test_close_behind_publishes_does_not_lose_them() -> None:
    client = Client()
    create_topic(client)
    client.ws.received(publish(b'{"data":1}') * 3 + frame(CLOSE & 0x0F, (1000).to_bytes(2, "big")))
    client.turn()
    assert client.app.services.engine.topic("t").head == 3


def test_acks_fill_a_connection_that_does_not_read_once() -> None:
    client = Client()
    create_topic(client)
    client.sink.takes = 1
    client.ws.received(publish(b'{"data":1}') * (3 * FRAMES_PER_TURN))
    client.turn()
    head = client.app.services.engine.topic("t").head
    while client.loop.soon:
        client.turn()
    assert client.sink.held
    assert head <= client.app.services.engine.topic("t").head <= 2 * FRAMES_PER_TURN
    client.sink.takes = 1 << 60
    client.ws.drained()
    finish(client)
    client.turn()
    assert [answer["last_seq"] for answer in client.answers()] == list(range(1, 3 * FRAMES_PER_TURN + 1))


def test_publishes_wait_at_most_for_the_limit_of_acks() -> None:
    client = Client()
    create_topic(client)
    client.ws.commands.unacked = MAX_UNACKED - 3
    client.ws.received(publish(b'{"data":1}') * 10)
    assert client.sink.held
    assert client.app.services.engine.topic("t").next_seq == 4
    client.ws.commands.unacked = 3
    finish(client)
    client.turn()
    assert client.app.services.engine.topic("t").head == 10


def test_token_with_a_node_binds_every_publish_of_a_read() -> None:
    client = Client()
    create_topic(client)
    client.ws.slot.caller = Caller("token", Rights(node="u1"))
    wrong = frame(TEXT, b'{"op":"publish","topic":"t","node":"u2","records":[{"data":1}],"request_id":9}')
    client.ws.received(publish(b'{"data":1}') + wrong + publish(b'{"data":2}', request_id=2))
    client.turn()
    assert outcome(client) == [(9, "forbidden"), (1, (1, 1)), (2, (2, 2))]


def test_schema_is_checked_for_every_publish_of_a_read() -> None:
    client = Client()
    create_topic(client, schema={"type": "integer"})
    client.ws.received(
        b"".join(publish(b'{"data":%b}' % data, request_id=at) for at, data in enumerate((b"1", b'"x"', b"2")))
    )
    client.turn()
    assert outcome(client) == [(1, "schema_violation"), (0, (1, 1)), (2, (2, 2))]


def played(messages: list[bytes], *, at_once: int) -> Any:
    """Send the messages, so many in each read. Return the sorted answers, and what is stored."""
    client = Client(max_record_bytes=4096, max_body_bytes=1 << 20, max_meta_bytes=1024)
    create_topic(client)
    for low in range(0, len(messages), at_once):
        client.ws.received(b"".join(frame(TEXT, text) for text in messages[low : low + at_once]))
        finish(client)
    answers = [json.dumps({**answer, "performance": None}, sort_keys=True) for answer in client.answers()]
    engine = client.app.services.engine
    stored = [b"".join(read(engine, name, limit=1000).body()) for name in ("t", "u") if name in engine.topics]
    return sorted(answers), stored


@pytest.mark.parametrize("seed", range(40))
def test_publishes_of_one_read_and_of_many_have_the_same_outcome(seed: int) -> None:
    """Send random messages in one read and one by one. Records, acks and errors must be the same."""
    chance = Random(seed)
    records = [b'{"data":1}', b'{"data":"\xc3\xa4"}', b'{"data":{"a":[1]},"tag":"x"}', b'{"tag":"x","data":null}']
    odd = [
        b'{"data":1,"meta":{"a":1}}', b'{"data":1,"node":"n"}', b'{"data":1,"colour":2}', b'{"data":\n1}', b'{"data":}',
        b'{"data":1,"tag":"%b"}' % (b"x" * 257), b'{"data":"\\ud800"}', b'{"tag":"x"}', b'{"data":1},{"data":2}', b"",
    ]  # fmt: skip
    beside = [
        b"", b"", b"", b',"return_seqs":false', b',"node":"n"', b',"create":true', b',"idempotency_key":"k"',
        b',"config":{"ttl_ms":1}', b',"colour":1', b',"request_id":"%"', b',"request_id":1',
    ]  # fmt: skip
    oddness = chance.choice((0, 0, 0.02, 0.2))

    def message() -> bytes:
        is_odd = chance.random() < oddness
        if is_odd and chance.random() < 0.3:
            whole = [
                b'{"op":"ping"}',
                b"",
                b"{",
                b"}",
                b"1\n2",
                b'{"op":"publish"}',
                b"[]",
                b"null",
                b'{"op":"commit"}',
            ]
            return chance.choice(whole)
        found = chance.choice(odd if is_odd else records)
        while chance.random() < 0.2:
            found += b"," + chance.choice(records)
        topic = b"u" if is_odd and chance.random() < 0.3 else b"t"
        more = chance.choice(beside) if is_odd else chance.choice((b"", b"", b',"return_seqs":false'))
        number = b"" if b"request_id" in more else b',"request_id":%d' % chance.randrange(1 << 70)
        return b'{"op":"publish","topic":"%b","records":[%b]%b%b}' % (topic, found, number, more)

    messages = [message() for _ in range(chance.choice((2, 3, 10, 100)))]
    assert played(messages, at_once=1) == played(messages, at_once=len(messages))


TWO = b'{"op":"publish","topic":"t","records":[{"data":1}]}\n{"op":"publish","topic":"t","records":[{"data":2}]}'
HALVES = [b'{"op":"publish","topic":"t",', b'"records":[{"data":1}]}']


@pytest.mark.parametrize("odd", [[TWO, b""], [b"", TWO], [*HALVES, b" "], [*HALVES, TWO]])
def test_lines_of_messages_do_not_become_messages(odd: list[bytes]) -> None:
    whole = TWO.partition(b"\n")[0]
    messages = [whole, whole, *odd, whole]
    assert played(messages, at_once=1) == played(messages, at_once=len(messages))


def test_acks_are_what_an_encoder_renders() -> None:
    commands = [
        Publish(topic="t", records=[NewRecord(Raw(b"1"))] * n, request_id=request_id, return_seqs=seqs)
        for n, request_id, seqs in (
            (1, 1, True), (1, 2, True), (2, 3, True), (1, "%d", True), (1, None, True), (1, 4, False),
            (1, -(1 << 80), True), (1, 5, True),
        )
    ]  # fmt: skip
    at, times = Appended(None, 10, 18, 99, created=True), PublishTimes(0.125, 3.0)  # type: ignore[arg-type]
    texts = ack_texts(commands, at, times, None)
    firsts = [10, 11, 12, 14, 15, 16, 17, 18]
    for command, text, first in zip(commands, texts, firsts, strict=True):
        last = first + len(command.records) - 1
        assert text == msgspec.json.encode(
            PublishAck(
                "t", first, last, 99 if last == 18 else last, True, False, times,
                list(range(first, last + 1)) if command.return_seqs else UNSET,
                UNSET if command.request_id is None else command.request_id,
            )
        )  # fmt: skip


def test_publishes_of_one_read_are_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    create_topic(client)
    decoded: list[bytes] = []
    decode = SocketInput._decode
    monkeypatch.setattr(SocketInput, "_decode", lambda self, text: decoded.append(text) or decode(self, text))
    client.ws.received(publish(b'{"data":1}') * 50)
    client.turn()
    assert [answer["last_seq"] for answer in client.answers()] == list(range(1, 51))
    assert len(decoded) == 1
