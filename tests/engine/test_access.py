"""Stored keys and revocations: their changes survive a crash at every file call, or have not happened."""

from __future__ import annotations

import pytest

from tests.engine.harness import FakeLog, open_engine
from tests.faults.filming import FilmedDisk, Moment
from tests.sampling import SEED
from tests.schedules.driving import restarted
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from tests.simulated.inode import CrashMode
from topics.keys import Rights
from topics.model.access import Revocation, StoredKey
from topics.storage.log import frame

MODES: tuple[CrashMode, ...] = ("keep", "lose", "tear", "reorder", "zero")
BEGIN = 1_800_000_000_000


def key(name: str, secret: bytes = b"\x01" * 32) -> StoredKey:
    rights = Rights(scopes=("read",), names=("orders",))
    digests = ((secret, None),)
    return StoredKey(
        name=name, rights=rights, digests=digests, created_ms=BEGIN, expires_ms=None, note="", by="key1"
    )  # fmt: skip


def revoked(name: str, until_ms: int) -> Revocation:
    return Revocation(name=name, before_ms=BEGIN, until_ms=until_ms)


def test_answered_change_of_a_key_survives_a_crash_at_every_file_call():
    disk: FilmedDisk[list[str]] = FilmedDisk(seed=SEED)
    server = SimServer.start(disk, clock=SimClock(BEGIN))
    access, answered = server.engine.access, list[str]()
    disk.film(answered, server.clock)
    for step, row in enumerate((key("a"), key("a", b"\x02" * 32), revoked("all>", BEGIN + 9), None)):
        name = "a" if row is None else row.name
        server.done(access.put(name, row))
        answered.append(str(step))
        if step == 1:
            server.checkpoint()
    disk.moments.append(Moment("after the end", disk.clone(), server.clock.now_ms(), list(answered)))
    states = [{}, {"a": key("a")}, {"a": key("a", b"\x02" * 32)}]
    states.append(states[2] | {"all>": revoked("all>", BEGIN + 9)})
    states.append({"all>": revoked("all>", BEGIN + 9)})
    for moment in disk.moments:
        for mode in MODES:
            after = restarted(SimServer(moment.disk.clone(), clock=SimClock(moment.ms)), mode=mode)
            found = after.engine.state.access.by_name
            done = len(moment.ledger)
            assert found in states[done : done + 2], (moment, mode)


def test_damaged_beginning_of_the_last_change_is_reported_as_damage():
    """Not taken for an unfinished write, although the change is about no topic: a key would work again."""
    server = SimServer.start(SimDisk(seed=SEED), clock=SimClock(BEGIN))
    server.append("f", '"one"', durability="fsync")
    server.done(server.engine.access.put("a", key("a")))
    at = server.wal.tail
    server.done(server.engine.access.put("a", None))
    for damaged_bytes in range(frame.BODY_AT, server.wal.tail - at - frame.OVERHEAD_BYTES + frame.BODY_AT):
        disk = server.disk.clone().crash("keep")
        [path] = [path for path in disk.files() if path.endswith(".wal")]
        disk.open(path, write=True).pwrite(bytes(damaged_bytes), at)
        after = server.next(disk)
        assert after.recovered is not None
        assert len(after.recovered.damage) == 1, damaged_bytes


def test_revocation_is_forgotten_once_its_tokens_have_expired():
    clock = SimClock(ms=BEGIN)
    engine = open_engine(clock=clock)
    engine.access.put("all>", revoked("all>", BEGIN + 1000))
    engine.flush()
    clock.advance(ms=1001)
    assert engine.access.find("all>") is not None, "forgetting needs no entry of its own"
    engine.access.put("a", key("a"))
    engine.flush()
    assert engine.access.find("all>") is None


def test_two_changes_of_one_turn_see_each_other():
    engine = open_engine(log=FakeLog())
    first = engine.access.put("a", key("a"))
    assert engine.access.find("a") == key("a")
    assert first.done


@pytest.mark.parametrize("name", ["a", "all>"])
def test_refused_change_is_undone(name: str):
    engine = open_engine(log=FakeLog())
    ticket = engine.access.put(name, None)
    engine.commits.sync()
    assert ticket.done
    assert engine.access.find(name) is None
