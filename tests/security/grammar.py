"""A grammar of bad input: JSON values, requests, WebSocket commands and frames. One seed makes the same inputs again.

`Grammar` makes values that a type does not expect. What it makes is mostly well-formed in one layer and wrong in the
next: frames that carry broken JSON, JSON of the wrong shape, fields of the wrong type, names beyond the prefix.
"""

import base64
import gzip
import json
import random
import zlib
from collections.abc import Callable
from typing import Any, get_args
from urllib.parse import quote

import msgspec

from topics.model.watch import Command
from topics.server.api.route import Route
from topics.server.api.route_table import ROUTES

NAMES = (
    "in.plain", "in.queue", "in.dead", "in.new", "out.plain", "out.queue", "in.*", "*", "", ".", "..", "in.\u0000",
    "in/a",
    "in.é", "%2e%2e", "in.a>b", "a" * 255, "a" * 256, "in.plain\n", "-in", "__proto__", "null", "in.\ud83d",
)  # fmt: skip
LASTING = ("in.plain", "in.queue", "in.dead", "out.plain", "out.queue")  # what most requests are about stays there
TEXTS = (
    *NAMES, "x", "true", "1", "-1", "\r\nx: y", "\u2028", "\ufeff", "\U0001f600", "ä" * 300, '"', "\\", "{}", "[tag]",
    "x*", "eyJhZnRlciI6ImEifQ", "eyJhIjpbW1tb", "W1tbW1tb", "wid_AAAAAAAAAAAAAAAAAAAAAA", "lease_1", "lease_zz", "Eq",
    "Glob",
)  # fmt: skip
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    255,
    1000,
    2**31,
    2**32,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    10**30,
    0.5,
    -0.0,
    1e308,
    1e-9,
)
BROKEN = (
    b"", b"{", b"[", b"}", b"{]", b'{"a"', b'{"a":', b'{"a":}', b"nul", b"NaN", b"-", b"1.", b"1e", b"01", b'"\x01"',
    b"'x'", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf{}", b"{} {}", b"\x00", b'"\\ud800"', b'"\\u12"', b"[" * 2000,
    b'{"a":' * 1500, b"1" * 5000, b"1e99999", b"-0", b'{"op":"ping","op":"publish"}',
)  # fmt: skip
MEDIA = (
    "application/json",
    "text/event-stream",
    "*/*",
    "text/html",
    "image/*",
    "application/vnd.apache.arrow.stream",
    "q",
    ";;,",
)
FIELDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("accept", MEDIA),
    ("content-type", ("application/json", "application/json; charset=utf-16", "text/plain", "", "application/json;")),
    ("content-encoding", ("gzip", "identity", "br", "gzip, gzip")),
    ("accept-encoding", ("gzip", "gzip;q=0", "*;q=x", "identity;q=0, *;q=0")),
    ("idempotency-key", ("k", "", "é", "k" * 400)),
    ("last-event-id", ("", "e30", "W1tbW1s", "bnVsbA", "x" * 3000)),
    ("authorization", ("Bearer wrong", "Basic x", "Bearer", "")),
    ("origin", ("http://[", "null", "https://evil.example")),
    ("sec-fetch-site", ("cross-site", "none", "?")),
    ("host", ("[", "127.0.0.1:99999", "a b", "")),
    ("expect", ("100-continue", "x")),
    ("upgrade", ("websocket", "h2c", "")),
    ("connection", ("close", "upgrade", "keep-alive, upgrade", ",")),
    ("sec-websocket-version", ("13", "8", "x")),
    ("sec-websocket-key", ("dGhlIHNhbXBsZSBub25jZQ==", "x", "")),
    ("sec-websocket-extensions", ("permessage-deflate; client_max_window_bits=x", ";;", "a,b;c=")),
    ("range", ("bytes=0-1",)),
)  # fmt: skip
CURSORS = tuple(
    base64.urlsafe_b64encode(text).decode()
    for text in (
        b'{"after":"in."}',
        b'{"x":' + b"[" * 3000,
        b'{"after":"a","x":' + b"[" * 1500 + b"]" * 1500 + b"}",
        b"\xff",
    )
)
WAITS = ("wait_ms", "heartbeat_ms", "claim_jitter_ms")  # fields that make an answer late: never long here
_UPGRADE = ("upgrade", "sec-websocket-version", "sec-websocket-key")
CLIENT_MASK = b"\x37\xfa\x21\x3d"


class Grammar:
    """One stream of inputs."""

    def __init__(self, seed: int) -> None:
        self.rolls = random.Random(seed)

    # --- JSON

    def value(self, depth: int = 0) -> Any:
        rolls = self.rolls
        kind = rolls.randrange(9 if depth < 3 else 6)
        if kind == 0:
            return rolls.choice((None, True, False))
        if kind <= 2:
            return rolls.choice(NUMBERS)
        if kind <= 5:
            return rolls.choice(TEXTS)
        if kind == 6:
            return [self.value(depth + 1) for _ in range(rolls.randrange(4))]
        if kind == 7:
            return {rolls.choice(TEXTS): self.value(depth + 1) for _ in range(rolls.randrange(4))}
        return rolls.choice((["tag", "Glob", "x*"], ["tag", "Eq", "x"], [{"data": 1}], {"in.plain": {}}, [1, 2, 2**64]))

    def body(self, kind: Any) -> dict[str, Any]:
        """An object with fields of a request type: some plausible, some of any other type, some missing or unknown."""
        found = {}
        for field in msgspec.structs.fields(kind):
            if field.required or self.rolls.random() < 0.35:
                found[field.encode_name] = self._field(field.encode_name)
        if self.rolls.random() < 0.2:
            found[self.rolls.choice(TEXTS)] = self.value()
        if found and self.rolls.random() < 0.1:
            del found[self.rolls.choice(list(found))]
        return found

    def _field(self, name: str) -> Any:
        rolls = self.rolls
        if name in WAITS:
            return rolls.choice((0, 1, -1, "1", None))
        if rolls.random() < 0.12:
            return self.value()
        plausible: dict[str, Callable[[], Any]] = {
            "records": lambda: [self._record() for _ in range(rolls.randrange(3))],
            "topics": lambda: {rolls.choice(NAMES): self._options() for _ in range(rolls.randrange(1, 4))},
            "config": lambda: {"type": rolls.choice(("queue", "log", "x")), "dead_letter": rolls.choice(NAMES)},
            "seqs": lambda: [rolls.choice(NUMBERS) for _ in range(rolls.randrange(4))],
            "lease_ids": lambda: [rolls.choice(TEXTS) for _ in range(rolls.randrange(4))],
            "type": lambda: rolls.choice(("queue", "log")),
            "durability": lambda: rolls.choice(("ephemeral", "memory", "disk", "fsync")),
            "match": lambda: rolls.choice((["tag", "Glob", "x*"], "x", ["tag", "Glob", "x"])),
            "filter": lambda: rolls.choice((["tag", "Eq", "x"], "x", [])),
            "cursor": lambda: rolls.choice(CURSORS),
            "archive": lambda: {"hold": True},
        }
        if name in plausible:
            return plausible[name]()
        if name in ("topic", "source", "dest", "dead_letter", "node"):
            return self._name(0.85)
        if name.startswith(
            ("include_", "dry_", "create", "allow_", "preserve_", "disable_", "return_", "tail", "lenient")
        ):
            return rolls.random() < 0.5
        return rolls.choice(NUMBERS[:14])

    def _name(self, plausible: float) -> str:
        return self.rolls.choice(NAMES[:6] if self.rolls.random() < plausible else TEXTS)

    def _record(self) -> Any:
        fields = ("data", "tag", "node", "meta", "priority", "delay_ms", "deliver_at")
        return {field: self.value() for field in fields if field == "data" or self.rolls.random() < 0.2}

    def _options(self) -> Any:
        fields = ("from_seq", "tail", "filter", "epoch")
        return {field: self.value() for field in fields if self.rolls.random() < 0.2}

    def text(self, value: Any) -> bytes:
        """A value as JSON, now and then damaged."""
        rolls = self.rolls
        text = json.dumps(value, ensure_ascii=rolls.random() < 0.8).encode("utf-8", "surrogatepass")
        roll = rolls.random()
        if roll < 0.05:
            return rolls.choice(BROKEN)
        if roll < 0.1 and text:
            return text[: rolls.randrange(len(text))]
        if roll < 0.15 and text:
            at = rolls.randrange(len(text))
            return text[:at] + rolls.choice(BROKEN) + text[at + 1 :]
        return text

    # --- HTTP

    def request(self, *, key: str | None, routes: list[Route] | None = None) -> bytes:
        """A request in valid framing, to a route that is no stream: it must be answered."""
        rolls = self.rolls
        route = rolls.choice(routes or _ANSWERING)
        fields = {"host": "127.0.0.1"}
        if key is not None:
            fields["authorization"] = f"Bearer {key}"
        body = b"" if route.body is None else self.text(self.body(route.body))
        if body:
            fields["content-type"] = "application/json"
        for _ in range(rolls.choice((0, 0, 0, 1, 2))):
            name, values = rolls.choice(FIELDS)
            if name not in ("upgrade", "connection", "expect", "host"):
                fields[name] = rolls.choice(values)
        if fields.get("content-encoding") == "gzip":
            body = rolls.choice((body, gzip.compress(body), gzip.compress(body)[:-3], gzip.compress(body) * 3))
        if body or rolls.random() < 0.1:
            fields["content-length"] = str(len(body))
        method = (
            route.method if rolls.random() < 0.95 else rolls.choice(("GET", "PUT", "POST", "DELETE", "OPTIONS", "X"))
        )
        lines = [f"{method} {self._path(route)} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body

    def _path(self, route: Route) -> str:
        rolls = self.rolls
        path = route.path
        for part in ("{topic}", "{router}", "{schedule}", "{wid}"):
            name = self._name(0.85)
            if route.method == "DELETE" and name in LASTING:
                name = "in.new"
            elif route in _OF_QUEUES and rolls.random() < 0.7:
                name = "in.queue"
            path = path.replace(part, quote(name.encode("utf-8", "surrogatepass"), safe="") or "%00")
        if rolls.random() < (0.4 if route.query else 0.1):
            names = [*(row.name for row in route.query if row.name not in WAITS), "token", "x", ""]
            pairs = []
            for _ in range(rolls.randrange(1, 4)):
                value = rolls.choice((*TEXTS, *CURSORS, *CURSORS, "true", "0", "%", "%zz", "+", "9" * 23))
                raw = value.encode("utf-8", "surrogatepass")
                pairs.append(f"{rolls.choice(names)}={value if value[:1] == '%' else quote(raw)}")
            path += "?" + "&".join(pairs)
        return path

    def raw_request(self, *, key: str | None) -> bytes:
        """Bytes that may be no request at all."""
        rolls = self.rolls
        data = bytearray(self.request(key=key, routes=ROUTES))
        if rolls.random() < 0.5:
            name, values = rolls.choice(FIELDS)
            line = f"{name}: {rolls.choice(values)}\r\n".encode("latin-1", "replace")
            data[data.index(b"\r\n") + 2 : data.index(b"\r\n") + 2] = line
        for _ in range(rolls.choice((0, 0, 1, 2, 3))):
            at, size = rolls.randrange(len(data)), rolls.randrange(1, 9)
            action = rolls.randrange(4)
            if action == 0:
                data[at] = rolls.randrange(256)
            elif action == 1:
                del data[at : at + size]
            elif action == 2:
                data[at:at] = data[at : at + size]
            else:
                data[at:at] = rolls.choice(
                    (b"\r\n", b"\n", b"\0", b" ", b":", b"%00", b"..", b"transfer-encoding: chunked\r\n")
                )
            if not data:
                return b"\r\n"
        return bytes(data)

    # --- WebSocket

    def handshake(self, *, key: str | None) -> bytes:
        """A request for a WebSocket, with fields that may be wrong."""
        fields = {"host": "127.0.0.1"} | {name: values[0] for name, values in FIELDS if name in _UPGRADE}
        fields["connection"] = "upgrade"
        if key is not None:
            fields["authorization"] = f"Bearer {key}"
        for name, values in self.rolls.sample(FIELDS, self.rolls.randrange(3)):
            fields[name] = self.rolls.choice(values)
        lines = ["GET /v0/ws HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n"

    def command(self) -> bytes:
        """The text of one command."""
        rolls = self.rolls
        kind = rolls.choice(get_args(Command))
        body = self.body(kind)
        body["op"] = kind.__struct_config__.tag if rolls.random() < 0.95 else rolls.choice(TEXTS)
        if rolls.random() < 0.3:
            body["request_id"] = self.value()
        return self.text(body)

    def frames(self, most: int) -> tuple[list[bytes], bool]:
        """Frames for one connection, and whether the server can find the end of the last one.

        Frames that end a connection come last.
        """
        found: list[bytes] = []
        while len(found) < most:
            roll = self.rolls.random()
            if roll < 0.97:
                found.append(self._message(roll))
                if not _is_utf8(found[-1]):
                    return found, True
            elif roll < 0.99:
                return [*found, self._fatal()], True
            else:
                return [*found, self._unfinished()], False
        return found, True

    def _message(self, roll: float) -> bytes:
        if roll < 0.9:
            return frame(0x1, self.command())
        if roll < 0.94:  # in fragments, with a control frame between
            text = self.command()
            cut = self.rolls.randrange(len(text) + 1)
            return frame(0x1, text[:cut], fin=False) + frame(0x9, b"p") + frame(0x0, text[cut:])
        return frame(self.rolls.choice((0x9, 0xA)), self.rolls.randbytes(self.rolls.randrange(126)))

    def _fatal(self) -> bytes:
        """A frame that no client may send here, or a close."""
        rolls = self.rolls
        packer = zlib.compressobj(wbits=-15)
        packed = packer.compress(self.command()) + packer.flush(zlib.Z_SYNC_FLUSH)
        reason = rolls.choice(
            (b"", b"\x03", b"\x03\xe8", b"\x03\xe8bye", b"\0\0", b"\x03\xed", b"\xff\xff", b"\x03\xe8\xff")
        )
        return rolls.choice(
            (
                frame(0x2, rolls.randbytes(20)),
                frame(0x1, packed[:-4], rsv=4),
                frame(0x1, packed, rsv=4),
                frame(0x1, rolls.randbytes(30), rsv=4),
                frame(0x8, reason),
                frame(rolls.choice((0x3, 0x7, 0xB, 0xF)), b"x"),
                frame(0x1, self.command(), rsv=rolls.choice((1, 2, 3, 7))),
                frame(0x1, self.command(), masked=False),
                frame(0x9, b"x" * 126),
                frame(rolls.choice((0x0, 0x9, 0x8)), b"x", fin=False),
            )
        )

    def _unfinished(self) -> bytes:
        """A frame whose length is not the shortest form, not what follows, or more than anything may have."""
        eight = b"\xff" + b"\0" * 7
        length = self.rolls.choice(
            (b"\xfe\0\x05", eight + b"\x05", b"\xff" * 9, b"\xfe\xff\xff", b"\xff\x7f" + b"\0" * 7)
        )
        return b"\x81" + length + CLIENT_MASK + self.rolls.randbytes(5)


def _is_utf8(data: bytes) -> bool:
    """Whether a masked frame of less than 126 bytes, or more, carries text that a server may accept."""
    at = 6 if data[1] & 0x7F < 126 else 8 if data[1] & 0x7F == 126 else 14
    if data[0] & 0x0F != 0x1 or not data[0] & 0x80:
        return True
    text = bytes(byte ^ CLIENT_MASK[n % 4] for n, byte in enumerate(data[at:]))
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def frame(opcode: int, payload: bytes, *, fin: bool = True, rsv: int = 0, masked: bool = True) -> bytes:
    size = len(payload)
    mask_bit = 0x80 if masked else 0
    if size < 126:
        length = bytes([mask_bit | size])
    elif size < 1 << 16:
        length = bytes([mask_bit | 126]) + size.to_bytes(2, "big")
    else:
        length = bytes([mask_bit | 127]) + size.to_bytes(8, "big")
    body = CLIENT_MASK + bytes(byte ^ CLIENT_MASK[at % 4] for at, byte in enumerate(payload)) if masked else payload
    return bytes([(0x80 if fin else 0) | rsv << 4 | opcode]) + length + body


_OF_QUEUES = [
    route
    for route in ROUTES
    if route.path.endswith(("/claim", "/ack", "/nack", "/extend", "/jobs", "/redrive", "/work"))
]
_ANSWERING = [route for route in ROUTES if not route.stream and not route.path.endswith("/scan")]
