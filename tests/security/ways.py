"""Every way in which clients can make a server hold bytes for them.

A way takes a `Hoard` and goes on until the server has refused a few times. What it has opened stays open until the
hoard is closed.
"""

from __future__ import annotations

import gzip
import json
import socket

from tests.security.fairness import CONTINUATION, TEXT, frame
from tests.security.hoard import (
    BIG,
    CAPPED,
    KEYED,
    MIB,
    QUEUE,
    QUIET,
    REFUSALS,
    UNIT_BYTES,
    Connection,
    Hoard,
    Way,
    poll,
    request,
    send,
)
from topics.server.limits.budget import CONNECTION_BYTES

KEYS_AT_ONCE, KEY = 500, b"k" * 230
PIPELINED = 64  # requests of one connection that the server begins before it has answered the first

# --- requests that do not come to their end


def unfinished_bodies(hoard: Hoard) -> None:
    head = f"POST /v0/topics/{BIG} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    for n in range(hoard.most):
        connection = hoard.connect()
        if n % 2:
            connection.send(head.encode() + b"content-length: %d\r\n\r\n" % UNIT_BYTES)
            connection.send_patiently(b" " * (UNIT_BYTES - 100))
        else:
            connection.send(head.encode() + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % UNIT_BYTES)
            connection.send_patiently(b" " * (UNIT_BYTES - 100))
        hoard.count_answered()
        if hoard.enough:
            return


def unfinished_heads(hoard: Hoard) -> None:
    """As many connections as the budget allows, each with a head that does not come to its end; and some more."""
    allowed = hoard.budget_bytes // (4 * CONNECTION_BYTES)
    for n in range(allowed + 20):
        connection = hoard.connect()
        connection.send(b"GET /v0/topics/" + b"x" * 30_000)
        if n >= allowed - 20 and connection.answered(0.2):
            hoard.refusals += connection.was_refused()
        if hoard.enough:
            break
    for connection in hoard.connections[:10]:  # room for the requests that ask how the server is
        connection.sock.close()
    hoard.connections = hoard.connections[10:]


def packed_bodies(hoard: Hoard) -> None:
    """Bodies that grow a thousandfold, behind as many unanswered requests as a connection may have."""
    packed = gzip.compress(b'{"records":[{"data":1}]}' + b" " * UNIT_BYTES)
    write = request("POST", f"/v0/topics/{CAPPED}", packed, fields=("content-encoding: gzip",))
    head = send(hoard.port, "GET", f"/v0/topics/{QUIET}")[1]["head_seq"]
    for _ in range(hoard.most):
        hoard.connect().send(poll(QUIET, head) * PIPELINED + write)
    hoard.wait_until_full()
    for connection in hoard.connections:
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    send(hoard.port, "POST", f"/v0/topics/{QUIET}", {"records": [{"data": 1}]})
    for connection in hoard.connections:
        while not hoard.enough and connection.got.count(b'"performance"') <= PIPELINED:
            connection.got += connection.sock.recv(1 << 16)
        if b" 429 " in connection.got:
            assert b'"limit":"memory_budget_bytes"' in connection.got
            hoard.refusals += 1


def pipelined_requests(hoard: Hoard) -> None:
    """Hundreds of small requests behind unanswered ones. Holds little: there are no refusals."""
    head = send(hoard.port, "GET", f"/v0/topics/{QUIET}")[1]["head_seq"]
    for _ in range(200):
        hoard.connect().send(poll(QUIET, head) * PIPELINED + b"GET /healthz HTTP/1.1\r\nhost: [::1]\r\n\r\n" * 400)
    hoard.refusals = REFUSALS


def long_polls(hoard: Hoard) -> None:
    """Polls with large bodies, all woken by one write."""
    head = send(hoard.port, "GET", f"/v0/topics/{BIG}")[1]["head_seq"]
    for n in range(hoard.most):
        hoard.connect().send(poll(BIG, head, padding=50_000 * (n % 2)))
    status, answer = send(hoard.port, "POST", f"/v0/topics/{BIG}", {"records": [{"data": "x" * 900_000}] * 9})
    assert status == 200, answer
    hoard.count_answered(0.5)


# --- answers that no client reads


def unread_answers(hoard: Hoard) -> None:
    fields: tuple[str, ...]
    for n in range(hoard.most):
        fields = ("accept-encoding: gzip",) if n % 4 == 3 else ()
        hoard.ask(
            "POST", f"/v0/topics/{BIG}/diff", {"max_batch_bytes": UNIT_BYTES, "include_tags": n % 2 == 1}, fields=fields
        )
        if hoard.enough:
            return


def unread_pipelined_answers(hoard: Hoard) -> None:
    read = request("POST", f"/v0/topics/{BIG}/diff", {"max_batch_bytes": UNIT_BYTES})
    for _ in range(hoard.most):
        connection = hoard.connect()
        connection.send(read * 20)
        hoard.refusals += connection.was_refused()
        if hoard.enough:
            return


def unread_claims(hoard: Hoard) -> None:
    for n in range(hoard.most):
        hoard.ask("POST", f"/v0/topics/{QUEUE}/claim", {"node": f"w{n}", "max": 1000, "lease_ms": 100})
        if hoard.enough:
            return


def unread_work(hoard: Hoard) -> None:
    def ask(n: int) -> None:
        path = f"/v0/topics/{QUEUE}/work?node=s{n}&max=1000&lease_ms=100"
        hoard.ask("GET", path, fields=("accept: text/event-stream",)).answered(0.2)

    for n in range(hoard.most):
        ask(n)
        if hoard.enough:
            return
    hoard.wait_until_full()  # on a busy machine the jobs come later than the streams
    for n in range(REFUSALS):
        ask(hoard.most + n)


def unread_scans(hoard: Hoard) -> None:
    for n in range(hoard.most * 4):
        accept = ("application/x-ndjson", "application/vnd.topics.segments")[n % 2]
        hoard.ask("POST", f"/v0/topics/{BIG}/scan", {}, fields=(f"accept: {accept}",))
        if hoard.enough:
            return


def unread_streams(hoard: Hoard) -> None:
    body = {"topics": {BIG: {}, CAPPED: {}}, "max_batch_bytes": UNIT_BYTES, "limit": 1000}
    for _ in range(hoard.most):
        made = Connection(hoard.port)
        made.send(request("POST", "/v0/watch", body))
        if made.was_refused():
            hoard.refusals += 1
        else:
            answer = made.got.partition(b"\r\n\r\n")[2]
            while b"}}" not in answer or not answer.rstrip().endswith(b"}"):
                answer += made.sock.recv(4096)
            url = json.loads(answer)["stream_url"]
            hoard.ask("GET", url, fields=("accept: text/event-stream",)).answered(0.2)
        made.sock.close()
        if hoard.enough:
            return


UPGRADE = (
    "connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13",
    "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
)  # fmt: skip


def unread_sockets(hoard: Hoard) -> None:
    command = {"op": "subscribe", "topic": BIG, "max_batch_bytes": UNIT_BYTES, "limit": 1000}
    for _ in range(hoard.most):
        connection = hoard.ask("GET", "/v0/ws", fields=UPGRADE)
        connection.send(frame(TEXT, json.dumps(command).encode()))
        connection.answered(0.2)
        if hoard.enough:
            return


# --- what WebSockets send, and what is kept between requests


def unfinished_messages(hoard: Hoard) -> None:
    piece = frame(CONTINUATION, b" " * MIB, fin=False)
    for _ in range(hoard.most):
        connection = hoard.ask("GET", "/v0/ws", fields=UPGRADE)
        if hoard.enough:
            return
        connection.send(frame(TEXT, b" ", fin=False))
        connection.send_patiently(piece * 8)
        for other in hoard.connections:
            if b"throttled" not in other.got and b" 101 " in other.got[:20] and other.answered():
                other.got += other.sock.recv(4096)
                if b"throttled" in other.got:
                    hoard.refusals += 1
        if hoard.enough:
            return


def sessions(hoard: Hoard) -> None:
    names = [f"node-{n:03}-" + "x" * 100 for n in range(256)]
    body = {"topics": {BIG: {"filter": "x" * min(hoard.budget_bytes // 400, 16_000)}}, "node": names}
    connection = hoard.connect()
    for _ in range(11_000):  # the server takes 10,000
        connection.send(request("POST", "/v0/watch", body))
        connection.got = b""
        if connection.was_refused():
            hoard.refusals += 1
            connection = hoard.connect()
            if hoard.enough:
                return
            continue
        rest = connection.got.partition(b"\r\n\r\n")[2]
        size = int(connection.got.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(rest) < size:
            rest += connection.sock.recv(4096)


def idempotency_keys(hoard: Hoard) -> None:
    """Keys of half a kilobyte each, to a topic that keeps few records."""
    connection = hoard.connect()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    for n in range(hoard.budget_bytes // 512 // KEYS_AT_ONCE + 1):
        batch = [
            request(
                "POST", f"/v0/topics/{KEYED}", b'{"records":[{"data":1}],"idempotency_key":"%d-%d-%b"}' % (n, m, KEY)
            )
            for m in range(KEYS_AT_ONCE)
        ]
        connection.send(b"".join(batch))
        answers, got = 0, b""
        while answers < KEYS_AT_ONCE:
            more = connection.sock.recv(1 << 20)
            assert more, got[-500:]
            answers += (got[-20:] + more).count(b'"performance"') - got[-20:].count(b'"performance"')
            got += more
        if b" 429 " in got:
            assert b'"limit":"memory_budget_bytes"' in got
            hoard.refusals = REFUSALS
            return


WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (
        unfinished_bodies, unfinished_heads, packed_bodies, pipelined_requests, long_polls, unread_answers,
        unread_pipelined_answers, unread_claims, unread_work, unread_scans, unread_streams, unread_sockets,
        unfinished_messages, sessions, idempotency_keys,
    )
}  # fmt: skip
