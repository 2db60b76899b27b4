"""w21: latencies of one write at a time at the 99th percentile, beside those of a bare loop in the same run.

One client writes, and waits for the effect of each write before the next: the answer that says it is synced, the copy
at the destination of a router, or the delivery to a watcher. The floor does the same with nothing behind it
(`relay.py`), so its tail is that of the machine: the disk, the scheduler, and other processes.
"""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import resp
from api import Api
from fanout import open_streams
from load import Load
from payload import batch, post
from peers import running, start_relay, start_topics
from plan import Plan
from row import Ask, Outcome, Reading, Row, Side, at_most
from turns import Contender, take_turns

WATCHED_PER_S = 500
MOST_BYTES = 1 << 16
VISIBLE = b'"$seq":'
_now_ns = time.perf_counter_ns

Write = Callable[[], int]  # makes one write, and returns how long its effect took in nanoseconds
Open = Callable[[int, ExitStack], Write]  # opens the connections to a port, and closes them with the stack


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One of the latencies: its bar, and how it is measured on both sides."""

    name: str
    bar_ms: float
    topics: Open
    floor: Open
    per_s: int = 0  # writes per second; 0 for one after the other


def _ask(link: socket.socket, request: bytes) -> bytes:
    """Send a request and return its answer, which is small and arrives in one piece."""
    link.sendall(request)
    return _answer(link)


def _answer(link: socket.socket) -> bytes:
    answer = link.recv(MOST_BYTES)
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"a request was refused: {answer[:200]!r}")
    return answer


def _answered(port: int, stack: ExitStack, *, path: str, requests: int = 1) -> Write:
    """Time the answers to requests, one after the other."""
    link, request = stack.enter_context(resp.connect(port)), post(path, batch(1))

    def write() -> int:
        began_ns = _now_ns()
        for _ in range(requests):
            _ask(link, request)
        return _now_ns() - began_ns

    return write


def _forwarded(port: int, stack: ExitStack) -> Write:
    """Time a write to the source together with the reads of the destination, up to the one that has the copy."""
    link = stack.enter_context(resp.connect(port))
    request = post("/v0/topics/source?return_seqs=false", batch(1))
    seq = Api(port).count("copies")

    def write() -> int:
        nonlocal seq
        read = post("/v0/topics/copies/diff", b'{"from_seq":%d,"limit":1}' % seq)
        seq += 1
        began_ns = _now_ns()
        _ask(link, request)
        while VISIBLE not in _ask(link, read):
            pass
        return _now_ns() - began_ns

    return write


def _watched(port: int, stack: ExitStack) -> Write:
    [watcher] = open_streams(port, "watched", 1)
    stack.enter_context(watcher)
    return _delivered(stack.enter_context(resp.connect(port)), watcher, "/v0/topics/watched?return_seqs=false")


def _relayed(port: int, stack: ExitStack) -> Write:
    watcher = stack.enter_context(resp.connect(port))
    watcher.sendall(b"GET /watch HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    _answer(watcher)
    return _delivered(stack.enter_context(resp.connect(port)), watcher, "/")


def _delivered(writer: socket.socket, watcher: socket.socket, path: str) -> Write:
    """Time a write until it arrives at the watcher."""
    request = post(path, batch(1))

    def write() -> int:
        began_ns = _now_ns()
        writer.sendall(request)
        if not watcher.recv(MOST_BYTES):
            raise RuntimeError("the watcher was cut off")
        took_ns = _now_ns() - began_ns
        _answer(writer)
        return took_ns

    return write


KINDS = (
    Kind(
        name="fsync",
        bar_ms=0.5,
        topics=partial(_answered, path="/v0/topics/synced?return_seqs=false"),
        floor=partial(_answered, path="/sync"),
    ),
    Kind(name="router", bar_ms=0.6, topics=_forwarded, floor=partial(_answered, path="/", requests=2)),
    Kind(name="watcher", bar_ms=1.0, topics=_watched, floor=_relayed, per_s=WATCHED_PER_S),
)


def _round(port: int, open_links: Open, *, per_s: int, seconds: float) -> Load:
    """Write for some seconds, and return the percentiles."""
    took_ns: list[int] = []
    with ExitStack() as stack:
        write = open_links(port, stack)
        gc.disable()  # a collection of this process would be a latency of the server
        stack.callback(gc.enable)
        begun_ns = _now_ns()
        ends_ns = begun_ns + int(seconds * 1e9)
        while _now_ns() < ends_ns:
            if per_s and (left_ns := begun_ns + len(took_ns) * 1_000_000_000 // per_s - _now_ns()) > 0:
                time.sleep(left_ns / 1e9)
            took_ns.append(write())
    took_ns.sort()
    return Load(per_s=len(took_ns) / seconds, p50_ms=_percentile(took_ns, 50), p99_ms=_percentile(took_ns, 99))


def _percentile(ordered_ns: list[int], percent: int) -> float:
    return ordered_ns[min(len(ordered_ns) * percent // 100, len(ordered_ns) - 1)] / 1e6


def measure(plan: Plan) -> Outcome:
    with ExitStack() as stack:
        data_dir = plan.fresh_dir("tails")
        ours = stack.enter_context(running(start_topics(plan, data_dir)))
        floor = stack.enter_context(running(start_relay(plan, plan.fresh_dir("relay") / "file")))
        api = Api(ours.port)
        api.create("synced", durability="fsync")
        api.create("watched", durability="disk")
        api.create("source", durability="disk")
        api.call("PUT", "/v0/routers/r", {"source": "source", "dest": "copies"})

        def contenders(kind: Kind) -> list[Contender]:
            return [
                Contender(
                    name=f"{name}, {kind.name}",
                    unit="writes/s",
                    run=partial(_round, port, links, per_s=kind.per_s, seconds=plan.scale.round_s),
                )
                for name, port, links in (("topics", ours.port, kind.topics), ("floor", floor.port, kind.floor))
            ]

        sides = take_turns([one for kind in KINDS for one in contenders(kind)], rounds=plan.scale.rounds)
    readings = [reading for at, kind in enumerate(KINDS) for reading in _readings(kind, *sides[2 * at : 2 * at + 2])]
    return Outcome(readings, sides)


def _readings(kind: Kind, ours: Side, floor: Side) -> list[Reading]:
    assert ours.p50_ms
    assert ours.p99_ms
    assert floor.p99_ms
    note = f"p50 {ours.p50_ms:.2f} ms; floor p50 {floor.p50_ms:.2f} ms, p99 {floor.p99_ms:.2f} ms"
    return [
        Reading(key=f"{kind.name}, p99", value=ours.p99_ms, note=note, crowded=floor.p99_ms > kind.bar_ms / 2),
        Reading(key=f"{kind.name}, of the floor", value=ours.p99_ms / floor.p99_ms),
    ]


ROW = Row(
    id="w21",
    title="one write at a time until it is synced, at a router's destination, or at a watcher",
    peer="a bare loop that syncs, answers and relays",
    asks=tuple(
        ask
        for kind in KINDS
        for ask in (
            Ask(key=f"{kind.name}, p99", unit="ms", bar=at_most(kind.bar_ms), cpu_bound=False),
            Ask(key=f"{kind.name}, of the floor", cpu_bound=False),
        )
    ),
    measure=measure,
    needs=(),
)
