"""Routers into topics that are too small: every crash, every failing call.

A chain of topics, one of them smaller than some records, and a queue that rejects. Whatever is interrupted or refused,
no reader finds another record under a seq that it has seen, and a restart looks like the server before.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from tests.engine.harness import waiting
from tests.routers.random_history import Film, check_unchanged, drain, looks, restarted
from tests.simulated.clock import SimClock
from tests.simulated.disk import FOREVER, MUTATING, SimDisk
from tests.simulated.harness import SimServer, TopicView
from tests.simulated.inode import CrashMode
from topics.engine.queue.verbs import Want
from topics.engine.state.topic import leases_of
from topics.engine.write.commit import Halted
from topics.errors import TopicsError
from topics.model.router import RouterRequest

SEED = int(os.environ.get("TOPICS_FAULT_SEED", "7"))
MODES: list[CrashMode] = ["keep", "lose", "tear", "reorder", "zero"]
LARGE = f'"{"x" * 300}"'


def route(server: SimServer, source: str, dest: str) -> None:
    server.done(server.engine.routers.put(f"{source}{dest}", RouterRequest(source=source, dest=dest, from_seq=0)))


def claim(server: SimServer) -> None:
    topic = server.engine.queues.get("q")
    _, ticket = waiting(lambda: server.engine.queues.claim(topic, [Want(node="w", max=2, lease_ms=1_000)]))
    if ticket is not None:
        server.done(ticket)


def ack(server: SimServer) -> None:
    topic = server.engine.queues.get("q")
    seqs = sorted(leases_of(topic).leases)
    if seqs:
        server.done(waiting(lambda: server.engine.queues.ack(topic, "w", seqs, None)))


def forward(server: SimServer) -> None:
    drain(server)


STEPS: list[Callable[[SimServer], object]] = [
    lambda server: server.put("a", durability="fsync"),
    lambda server: server.put("b", durability="fsync", cap_bytes=200),
    lambda server: server.put("c", durability="fsync"),
    lambda server: server.put(
        "q", durability="fsync", type="queue", cap_records=2, cap_bytes=300, discard="reject", leases_durable=True
    ),
    lambda server: route(server, "a", "b"),
    lambda server: route(server, "b", "c"),
    lambda server: route(server, "a", "q"),
    lambda server: server.append("a", "1", LARGE, tag="x"),
    lambda server: server.append("a", "2", "3"),
    forward,
    claim,
    lambda server: server.delete("a", before_seq=3),  # takes what the queue could never hold
    forward,
    ack,
    forward,
    lambda server: server.append("b", '"direct"'),
    lambda server: server.checkpoint(),
    lambda server: server.append("a", LARGE, "4", tag="x"),
    forward,
    lambda server: server.put("b", durability="fsync", cap_bytes=60),
    lambda server: server.append("a", "5", '"5 more"'),
    forward,
    lambda server: server.put("q", durability="fsync", cap_records=0, cap_bytes=1_000, discard="old"),
    claim,
    forward,
    lambda server: server.append("c", '"end"'),
    forward,
]


def play(server: SimServer, then: Callable[[], None] = lambda: None) -> None:
    """All steps; what is refused is left out."""
    for step in STEPS:
        try:
            step(server)
        except (TopicsError, OSError):  # a server answers an OSError with `internal`
            pass
        then()


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.torture)])
@pytest.mark.parametrize("mode", MODES)
def test_records_of_a_capped_topic_keep_their_seqs_after_any_crash(mode: CrashMode, every: int) -> None:
    disk = Film(seed=SEED)
    server = SimServer.start(disk)
    seen: dict[str, TopicView] = {}
    moments: list[tuple[SimDisk, dict[str, TopicView]]] = []
    disk.on_call = lambda copy: moments.append((copy, seen))

    def look() -> None:
        nonlocal seen
        seen = looks(server)
        moments.append((disk.clone(), seen))

    play(server, look)
    disk.on_call = None
    assert looks(server)["b"].losses, "nothing was too large"
    for at in range(MODES.index(mode) % every, len(moments), every):
        moment, before = moments[at]
        try:
            after = SimServer(moment, clock=SimClock(server.clock.now_ms())).crash(mode)
            check_unchanged({**looks(after), **before}, after)
            drain(after)
            check_unchanged({**looks(after), **before}, after)
            found = looks(after)
            assert looks(restarted(after)) == found
            if mode in ("keep", "lose", "tear"):
                reasons = {run[2] for view in found.values() for run in view.losses}
                assert reasons <= {"evicted", "source_trim"}
        except BaseException as error:
            error.add_note(f"seed {SEED}, moment {at} of {len(moments)}, {mode}")
            raise


def fails(at: int, error: int, times: int, *, short: bool) -> None:
    server = SimServer.start(SimDisk(seed=SEED))
    server.disk.fail(at=at, error=error, times=times, short=short)
    try:
        play(server)
    except Halted:
        server.disk.heal()
        server = server.crash("keep")
    server.disk.heal()
    check_unchanged(looks(server), restarted(server))
    server.tick()
    server.tick()
    assert server.wal.read_only is None
    play(server)
    drain(server)
    assert looks(restarted(server)) == looks(server)
    assert {run[2] for view in looks(server).values() for run in view.losses} <= {"evicted", "source_trim"}


@pytest.mark.torture
def test_routers_into_small_topics_lose_nothing_unreported_when_a_call_fails() -> None:
    server = SimServer.start(SimDisk(seed=SEED))
    before = len(server.disk.calls)
    play(server)
    for call in server.disk.calls[before:]:
        if call.op not in MUTATING:
            continue
        for number, error in enumerate((errno.EIO, errno.ENOSPC)):
            for times in (1, FOREVER):
                try:
                    fails(call.number, error, times, short=bool((call.number + number) % 2))
                except BaseException as failure:
                    failure.add_note(f"seed {SEED}, call {call.number} {call.op}: {error}, {times} times")
                    raise
