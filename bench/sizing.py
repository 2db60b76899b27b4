"""Memory and disk of a real server per record, topic, connection, watcher, consumer and lease, for docs/sizing.md.

python bench/sizing.py             prints the table
python bench/sizing.py --write     writes it into docs/sizing.md
python bench/sizing.py --only lease
python bench/sizing.py --topics 1000000 --write      a server with so many topics, as in row w25; the other table stays

For each line, a new server is warmed up and measured; then it gets many of one thing and is measured again, at rest.
Memory is the growth of the resident set, and the part of it that no file backs. Disk is the growth of the data
directory, measured after a clean stop, which writes a checkpoint.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from api import Api
from fanout import open_streams
from fill import send_all
from payload import PAYLOAD_BYTES, appends, post, put, tagged_appends
from peers import disk_bytes, memory_at_rest, running, start_topics
from plan import DEFAULT, HERE, Plan, choose_cores
from report import describe_machine
from rows.many import CHANGED, PAGE_SIZE, RECORDS, Masses, look_at

PAGE = HERE.parent / "docs" / "sizing.md"
BEGIN, END = "<!-- sizes: written by bench/sizing.py -->", "<!-- end of sizes -->"
MANY_BEGIN, MANY_END = "<!-- many topics: written by bench/sizing.py -->", "<!-- end of many topics -->"
CHECKPOINT_S = 4.0
KIB = b"x" * 1000
SOCKET_KEY = "dGhlIHNhbXBsZSBub25jZQ=="

Held = list[socket.socket]  # connections that must stay open until the measurement


@dataclass(frozen=True, kw_only=True)
class Thing:
    """One line of the table: how many to make, how, and whether they are on disk."""

    name: str
    count: int
    make: Callable[[Api, int], Held]
    on_disk: bool = True
    data_dir: bool = True
    sealed: bool = False  # measure after a checkpoint has moved the records into segment files


@dataclass(frozen=True, kw_only=True)
class Size:
    """Bytes for one of a thing; `disk` is None if it is not stored."""

    thing: Thing
    resident: float
    anonymous: float
    disk: float | None


# --- what is made


def _records(api: Api, count: int) -> Held:
    send_all(api.port, appends("t", count, per_request=1000))
    return []


def _records_with_tags(api: Api, count: int) -> Held:
    send_all(api.port, tagged_appends("t", count, per_request=1000, distinct=True))
    return []


def _large_records(api: Api, count: int) -> Held:
    body = b'{"records":[%b]}' % b",".join([b'{"data":"%b"}' % KIB] * 128)
    send_all(api.port, iter([post("/v0/topics/t?return_seqs=false", body)] * (count // 128)))
    return []


def _topics(api: Api, count: int) -> Held:
    send_all(api.port, (put(f"/v0/topics/topic-{n}", b"{}") for n in range(count)))
    return []


def _written_topics(api: Api, count: int) -> Held:
    body = b'{"records":[{"data":1}]}'
    send_all(api.port, (post(f"/v0/topics/topic-{n}", body) for n in range(count)))
    return []


def _consumers(api: Api, count: int) -> Held:
    for topic in range(count // 500):
        api.create(f"topic-{topic}")
    paths = (f"/v0/topics/topic-{n // 500}/consumers/consumer-{n % 500}" for n in range(count))
    send_all(api.port, (put(path, b'{"seq":0}') for path in paths))
    return []


def _routers(api: Api, count: int) -> Held:
    for n in range(count):
        api.call("PUT", f"/v0/routers/router-{n}", {"source": "t", "dest": f"copy-{n}"})
    return []


def _keys(api: Api, count: int) -> Held:
    body = b'{"records":[{"data":1}],"idempotency_key":"%08d-0000-4000-8000-000000000000"}'
    send_all(api.port, (post("/v0/topics/t?return_seqs=false", body % n) for n in range(count)))
    return []


def _jobs(api: Api, count: int) -> Held:
    api.create("q", type="queue", lease_ms=3_600_000)
    send_all(api.port, appends("q", count, per_request=1000))
    return []


def _leases(api: Api, count: int) -> Held:
    claim = post("/v0/topics/q/claim", b'{"node":"worker-1","max":1000}')
    send_all(api.port, iter([claim] * (count // 1000)), connections=1, window=1)
    return []


def _connections(api: Api, count: int) -> Held:
    request = b"GET /v0/health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    return [_asked(api.port, request, b"}\n") for _ in range(count)]


def _polls(api: Api, count: int) -> Held:
    request = post("/v0/topics/t/diff", b'{"from_seq":2000,"wait_ms":30000}')
    return [_asked(api.port, request, None) for _ in range(count)]


def _watchers(api: Api, count: int) -> Held:
    return open_streams(api.port, "t", count)


def _sockets(api: Api, count: int) -> Held:
    head = (
        "GET /v0/ws HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        f"sec-websocket-version: 13\r\nsec-websocket-key: {SOCKET_KEY}\r\n\r\n"
    )
    command = json.dumps({"op": "subscribe", "topic": "t", "tail": True}).encode()
    frame = bytes([0x81, 0x80 | len(command)]) + b"\0\0\0\0" + command  # a mask of zeros leaves the bytes as they are
    links = []
    for _ in range(count):
        link = _asked(api.port, head.encode(), b"\r\n\r\n")
        link.sendall(frame)
        _read_until(link, b"caught_up")
        links.append(link)
    return links


def _asked(port: int, request: bytes, end: bytes | None) -> socket.socket:
    """Return a connection that has sent a request, and has read the answer up to `end`."""
    link = socket.create_connection(("127.0.0.1", port), timeout=30)
    link.sendall(request)
    if end is not None:
        _read_until(link, end)
    return link


def _read_until(link: socket.socket, end: bytes) -> None:
    got = b""
    while end not in got:
        part = link.recv(1 << 16)
        if not part:
            raise RuntimeError(f"the server closed a connection: {got[:200]!r}")
        got += part


SMALL = f"record of {PAYLOAD_BYTES} bytes (data and tag)"
THINGS = (
    Thing(name=f"{SMALL}, in a segment", count=262_144, make=_records, sealed=True),
    Thing(name=f"{SMALL}, before its checkpoint", count=262_144, make=_records),
    Thing(name=f"{SMALL}, without a data directory", count=262_144, make=_records, on_disk=False, data_dir=False),
    Thing(name=f"{SMALL}, each with its own tag, in a segment", count=262_144, make=_records_with_tags, sealed=True),
    Thing(name="record of 1,000 bytes, in a segment", count=131_072, make=_large_records, sealed=True),
    Thing(name="topic without records", count=5_000, make=_topics),
    Thing(name="topic with one record", count=5_000, make=_written_topics),
    Thing(name="named consumer", count=10_000, make=_consumers),
    Thing(name="router, with its destination topic", count=1_000, make=_routers),
    Thing(name="idempotency key (36 characters), with its record", count=50_000, make=_keys),
    Thing(name="unclaimed job of 53 bytes", count=100_000, make=_jobs),
    Thing(name="lease", count=100_000, make=_leases, on_disk=False),
    Thing(name="idle connection", count=1_000, make=_connections, on_disk=False),
    Thing(name="waiting `diff` (long poll), with its connection", count=1_000, make=_polls, on_disk=False),
    Thing(name="event stream of one topic, with its connection", count=1_000, make=_watchers, on_disk=False),
    Thing(name="WebSocket with one subscription", count=1_000, make=_sockets, on_disk=False),
)  # fmt: skip


# --- how it is measured


def measure(plan: Plan, thing: Thing) -> Size:
    """Return the size of one of the things. The server of each measurement is a new one."""
    directory = plan.fresh_dir("data") if thing.data_dir else None
    settings = {"TOPICS_CHECKPOINT_INTERVAL_MS": "500"} if thing.sealed else {}
    with running(start_topics(plan, directory, TOPICS_MAX_SSE_CONNECTIONS_PER_KEY="0", **settings)) as server:
        api = Api(server.port)
        _warm_up(api)
        if thing.make is _leases:
            _jobs(api, thing.count)
        before = memory_at_rest(server.pid)
        held = thing.make(api, thing.count)
        if thing.sealed:
            time.sleep(CHECKPOINT_S)
        after = memory_at_rest(server.pid)
        for link in held:
            link.close()
        server.stop()
    disk = (disk_bytes(directory) - _empty_disk_bytes(plan)) / thing.count if thing.on_disk and directory else None
    resident, anonymous = ((now - then) / thing.count for now, then in zip(after, before, strict=True))
    return Size(thing=thing, resident=resident, anonymous=anonymous, disk=disk)


def _warm_up(api: Api) -> None:
    """Send some traffic of every kind, so that code and buffers which any traffic brings in are not counted."""
    send_all(api.port, appends("t", 2_000, per_request=100))
    api.create("warm", type="queue")
    send_all(api.port, appends("warm", 100, per_request=10))
    api.call("POST", "/v0/topics/warm/claim", {"node": "w", "max": 10})
    api.call("PUT", "/v0/topics/warm/consumers/c", {"seq": 0})
    for link in (*_watchers(api, 8), *_sockets(api, 8), *_connections(api, 8)):
        link.close()


def _empty_disk_bytes(plan: Plan) -> int:
    """Return the space of a directory that has only the warm-up."""
    directory = plan.fresh_dir("empty")
    with running(start_topics(plan, directory)) as server:
        _warm_up(Api(server.port))
        server.stop()
    return disk_bytes(directory)


# --- how it is shown


def table(sizes: list[Size], machine: dict[str, str]) -> str:
    """Return the measured sizes as Markdown."""
    lines = ["", "| one more | memory | of it not backed by a file | disk |", "|---|---|---|---|"]
    for size in sizes:
        disk = "-" if size.disk is None else _bytes(size.disk)
        lines.append(f"| {size.thing.name} | {_bytes(size.resident)} | {_bytes(size.anonymous)} | {disk} |")
    return "\n".join([*lines, *_measured_on(machine)])


def table_of_many(one: Masses, machine: dict[str, str]) -> str:
    """Return what a server with many topics takes as Markdown."""
    rows = {
        "memory of a topic after a start": _bytes(one.idle_bytes),
        "memory of a topic after its appends": _bytes(one.filled_bytes),
        "disk of a topic": _bytes(one.disk_bytes),
        "start after a clean stop": f"{median(one.stopped_s):.1f} s",
        "start after a kill": f"{one.killed_s:.1f} s",
        f"checkpoint after {CHANGED:,} of them have changed": f"{median(one.checkpoint_s):.2f} s",
        "longest hold of all requests during checkpoints": f"{one.holds_ms['checkpoint']:.1f} ms",
        f"page of {PAGE_SIZE:,} of a list": f"{median(one.page_s) * 1000:.0f} ms",
        "scrape of `/v0/metrics`": f"{median(one.scrape_s) * 1000:.0f} ms",
    }
    head = f"with {one.topics:,} topics of {RECORDS} records of {PAYLOAD_BYTES} bytes"
    lines = ["", f"| {head} | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    return "\n".join([*lines, *_measured_on(machine)])


def _measured_on(machine: dict[str, str]) -> list[str]:
    shown = ("date", "cpu", "kernel", "python", "data on", "commit")
    described = "; ".join(f"{name}: {machine[name]}" for name in shown)
    return ["", f"Measured by `bench/sizing.py`. {described}.", "", ""]


def _bytes(size: float) -> str:
    if abs(size) < 1:
        return "0"
    return f"{size:,.0f} B" if size < 10_000 else f"{size / 1024:,.1f} KiB"


def page_with(page: str, text: str, begin: str, end: str) -> str:
    """Return the page with the text between two marks."""
    before, _, rest = page.partition(begin)
    return before + begin + "\n" + text + end + rest.partition(end)[2]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only lines whose name contains this text")
    parser.add_argument("--topics", type=int, default=0, help="measure a server with so many topics instead")
    parser.add_argument("--write", action="store_true", help="write the table into docs/sizing.md")
    parser.add_argument("--dir", default=None, help="where data directories go (a real disk, not tmpfs)")
    arguments = parser.parse_args(argv)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    with tempfile.TemporaryDirectory(prefix="topics-sizing-", dir=arguments.dir, ignore_cleanup_errors=True) as path:
        core, _ = choose_cores()
        command = (sys.executable, "-m", "topics", "serve", "--port", "0")
        plan = Plan(scale=DEFAULT, work_dir=Path(path), server_command=command, server_core=core, load_core=None)
        marks, sizes = (BEGIN, END), list[Size]()
        if arguments.topics:
            marks = MANY_BEGIN, MANY_END
            text = table_of_many(look_at(plan, arguments.topics), describe_machine(plan.work_dir))
            print(text)
        else:
            for thing in THINGS:
                if arguments.only in thing.name:
                    sizes.append(measure(plan, thing))
                    print(table(sizes[-1:], describe_machine(plan.work_dir)).splitlines()[3], flush=True)
            text = table(sizes, describe_machine(plan.work_dir))
    if arguments.write:
        PAGE.write_text(page_with(PAGE.read_text(), text, *marks))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
