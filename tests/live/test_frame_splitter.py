"""The splitter of WebSocket input: whatever it does by itself, `wsproto` would have done too."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto import events
from wsproto.connection import Connection, ConnectionType

from topics.server.push.websocket.input import FrameSplitter

TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 0x1, 0x2, 0x0, 0x8, 0x9, 0xA
FIN = 0x80


def frame(first: int, payload: bytes = b"", *, key: bytes = b"\x01\xfe\x77\x33", masked: bool = True) -> bytes:
    size = len(payload)
    flag = 0x80 if masked else 0
    if size < 126:
        head = bytes((first, flag | size))
    elif size < 1 << 16:
        head = bytes((first, flag | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((first, flag | 127)) + size.to_bytes(8, "big")
    if not masked:
        return head + payload
    return head + key + bytes(byte ^ key[at % 4] for at, byte in enumerate(payload))


def overlong(payload: bytes) -> bytes:
    """Return a text message whose length takes more bytes than it needs, which is an error."""
    return bytes((FIN | TEXT, 0x80 | 126)) + len(payload).to_bytes(2, "big") + bytes(4) + payload


texts = st.one_of(
    st.binary(max_size=40), st.text(max_size=40).map(str.encode), st.just(b"x" * 125), st.just(b"x" * 126)
)
frames = st.one_of(
    texts.map(lambda text: frame(FIN | TEXT, text)),
    st.integers(126, 300).map(lambda size: frame(FIN | TEXT, b"y" * size)),
    st.just(frame(FIN | TEXT, b"z" * 70_000)),
    texts.map(lambda text: frame(TEXT, text)),
    st.tuples(st.sampled_from((CONTINUATION, FIN | CONTINUATION)), texts).map(lambda pair: frame(*pair)),
    st.sampled_from((PING, PONG)).map(lambda code: frame(FIN | code, b"ping")),
    st.just(frame(FIN | BINARY, b"\x00\xff")),
    st.just(frame(FIN | CLOSE, (1000).to_bytes(2, "big"))),
    st.just(frame(PING, b"a fragment of a control frame")),
    st.just(frame(FIN | 0x40 | TEXT, b"compressed")),
    st.just(frame(FIN | 0x3, b"reserved")),
    st.just(frame(FIN | TEXT, b"not masked", masked=False)),
    st.just(frame(FIN | TEXT, "ü".encode()[:1])),
    st.just(overlong(b"short")),
    st.just(frame(FIN | PING, b"x" * 126)),
)


def seen(event: events.Event) -> list[Any]:
    if isinstance(event, events.TextMessage):
        return ["text", event.data.encode(), event.message_finished]
    if isinstance(event, events.BytesMessage):
        return ["binary", bytes(event.data), event.message_finished]
    if isinstance(event, events.CloseConnection):
        return ["close", event.code, True]
    return [type(event).__name__, bytes(getattr(event, "payload", b"")), True]


def joined(found: list[list[Any]]) -> list[list[Any]]:
    """Join the pieces of a message, which depend on where the input was cut, and end after a close.

    A message that does not come to its end is left out: how much of it is reported depends on the cuts, too.
    """
    whole: list[list[Any]] = []
    for one in found:
        if whole and one[0] == whole[-1][0] and not whole[-1][2]:
            whole[-1] = [one[0], whole[-1][1] + one[1], one[2]]
        else:
            whole.append(one)
        if one[0] == "close":
            break
    return [one for one in whole if one[2]]


def by_wsproto(data: bytes) -> list[list[Any]]:
    ws = Connection(ConnectionType.SERVER)
    ws.receive_data(data)
    return joined([seen(event) for event in ws.events()])


def by_splitter(data: bytes, cuts: list[int], piece_bytes: int, most: int) -> list[list[Any]]:
    ws, splitter, found, waiting = Connection(ConnectionType.SERVER), FrameSplitter(), [], b""
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        waiting += data[begin:end]
        at = 0
        while True:
            texts = splitter.texts(waiting, at, at + piece_bytes, most)
            assert len(texts) <= most
            found += [["text", text, True] for text, _ in texts]
            if texts:
                at = texts[-1][1]
                continue
            after = splitter.skip(waiting, at, piece_bytes)
            if after == at:
                break
            ws.receive_data(waiting[at:after])
            for event in ws.events():
                found.append(seen(event))
                if isinstance(event, events.CloseConnection):
                    return joined(found)
            at = after
        waiting = waiting[at:]
    return joined(found)


@given(st.lists(frames, max_size=8), st.integers(0, 1 << 30), st.sampled_from((7, 1024, 1 << 16)))
def test_splitter_and_wsproto_find_the_same_messages(sent: list[bytes], seed: int, piece_bytes: int):
    data = b"".join(sent)
    chance = random.Random(seed)
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(6)))
    most = chance.choice((1, 2, 64))
    assert by_splitter(data, cuts, piece_bytes, most) == by_wsproto(data)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535])
def test_short_text_does_not_need_wsproto(size: int):
    whole = frame(FIN | TEXT, b"x" * size)
    splitter = FrameSplitter()
    cut = whole[:-1] if size else whole[:5]
    assert splitter.texts(cut, 0, 1 << 16, 64) == []
    assert splitter.skip(cut, 0, 1 << 16) == 0
    assert splitter.texts(whole + b"\x81", 0, 1 << 16, 64) == [(b"x" * size, len(whole))]


def test_texts_of_one_read_are_found_together():
    sent = [b"x" * size for size in (0, 1, 125, 126, 3000, 7)]
    data = b"".join(frame(FIN | TEXT, text) for text in sent)
    splitter = FrameSplitter()
    assert [text for text, _ in splitter.texts(data, 0, len(data), 64)] == sent
    assert [text for text, _ in splitter.texts(data, 0, len(data), 2)] == sent[:2]
    assert [text for text, _ in splitter.texts(data, 0, 14, 64)] == sent[:3]  # the third begins at byte 13
    assert splitter.texts(data + frame(FIN | PING, b"")[:1], 0, 1 << 16, 64)[-1] == (b"x" * 7, len(data))


def test_texts_end_before_one_that_is_not_utf8():
    good, bad = frame(FIN | TEXT, "ä".encode()), frame(FIN | TEXT, b"\xff")
    splitter = FrameSplitter()
    assert splitter.texts(good + bad + good, 0, 1 << 16, 64) == [("ä".encode(), len(good))]
    assert splitter.skip(good + bad + good, len(good), 1 << 16) == len(good + bad)


def test_text_between_fragments_goes_to_wsproto():
    splitter = FrameSplitter()
    data = frame(TEXT, b"a") + frame(FIN | TEXT, b"b")
    at = splitter.skip(data, 0, 1 << 16)
    assert splitter.texts(data, at, 1 << 16, 64) == []
    assert splitter.skip(data, at, 1 << 16) == len(data)
