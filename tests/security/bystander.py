"""A client in a process of its own: appends one record every 10 ms and measures how long each append takes.

    python tests/security/bystander.py PORT

Prints `ready` once appends work, runs until its standard input closes, then prints all latencies in ms as JSON. It
sends when an append is due, whether or not the one before was answered: a stall of a second delays a hundred appends.
A latency counts from the moment the append was due.
"""

import json
import select
import socket
import sys
import time
from collections import deque

EVERY_S = 0.010
WARM_UP = 50
BODY = b'{"records":[{"data":1}]}'
REQUEST = (
    b"POST /v0/topics/bystander?return_seqs=false HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


def main(port: int) -> None:
    server = socket.create_connection(("127.0.0.1", port), timeout=120)
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(WARM_UP):
        server.sendall(REQUEST)
        while not take_answers(server):
            pass
    print("ready", flush=True)
    latencies_ms: list[float] = []
    due: deque[float] = deque()
    running, next_due = True, time.perf_counter() + EVERY_S
    while running or due:
        wait_s = max(0.0, next_due - time.perf_counter()) if running else None
        ready = select.select([server, sys.stdin] if running else [server], [], [], wait_s)[0]
        if server in ready:
            for _ in range(take_answers(server)):
                latencies_ms.append(round((time.perf_counter() - due.popleft()) * 1000, 3))
        running = running and sys.stdin not in ready
        if running and time.perf_counter() >= next_due:
            server.sendall(REQUEST)
            due.append(next_due)
            next_due += EVERY_S
    print(json.dumps(latencies_ms), flush=True)


def take_answers(server: socket.socket) -> int:
    """How many answers one read brings; they are short enough to come whole."""
    got = server.recv(65_536)
    good = got.count(b"HTTP/1.1 200 ") + got.count(b"HTTP/1.1 201 ")
    assert got.endswith(b"}\n"), got
    assert good == got.count(b"HTTP/1.1 "), got
    return good


if __name__ == "__main__":
    main(int(sys.argv[1]))
