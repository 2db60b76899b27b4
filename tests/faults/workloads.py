"""The operations that are interrupted at every file call, and the state they start from."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

from tests.faults.ledger import Client
from topics.model.topic import ArchiveConfig
from topics.storage.segments.cold import waiting

Step = Callable[[Client], None]


def _advance(client: Client) -> None:
    client.server.clock.advance(ms=5_000)
    for name in list(client.server.engine.topics):
        with suppress(OSError):  # a read that fails expires nothing; a server answers it with an error
            waiting(lambda name=name: client.server.engine.expire_and_get(name, touch=False))


def _one_turn(client: Client) -> None:
    client.append("f", 1, flush=False)
    client.append("d", 2, flush=False)
    client.append("f", 1, tag="t", flush=True)


def _one_turn_in_steps(client: Client) -> None:
    client.append("d", 2, flush=False)
    client.append("f", 2, in_steps=True, flush=False)
    client.append("f", 1, flush=False)
    client.append("e", 2, in_steps=True, flush=True)


def _recreate(client: Client) -> None:
    if client.ledger.current("f") is not None:
        client.drop("f")
    client.append("f", 2, durability="fsync")


def _if_present(name: str, step: Step) -> Step:
    """Return the step, skipped if the topic does not exist."""
    return lambda client: step(client) if client.server.engine.find(name) else None


def _slow_syncs(client: Client) -> None:
    client.syncs.slow = True


def _pending_together(client: Client) -> None:
    """Let requests of one topic arrive one after the other while the sync of the first is pending."""
    client.syncs.slow = True
    client.append("f", 1, tag="t", key=f"k{client._number}", durability="fsync")
    client.delete("f", tag="t")
    client.append("f", 2)
    client.append("d", 1)
    client.server.tick()


def _expire_while_pending(client: Client) -> None:
    """Let a record expire, and an archive hold end, while a write to the topic is pending."""
    client.syncs.slow = True
    client.append("h", 1)
    client.archive("h", behind=1)
    _advance(client)
    client.append("h", 1)


def _jump(client: Client, ms: int) -> None:
    client.server.clock.set(ms=client.server.clock.now_ms() + ms)


STEPS: dict[str, Step] = {
    "create_fsync": lambda client: client.put("nf", durability="fsync"),
    "create_disk": lambda client: client.put("nd", durability="disk"),
    "create_memory": lambda client: client.put("nm", durability="memory"),
    "create_ephemeral": lambda client: client.put("ne", durability="ephemeral"),
    "append_creates": lambda client: client.append("nf", 2, tag="t", durability="fsync"),
    "append_creates_disk": lambda client: client.append("nd", 2, durability="disk"),
    "append_fsync": lambda client: client.append("f", 1, tag="t", durability="fsync"),
    "append_fsync_batch": lambda client: client.append("f", 4, key=f"k{client._number}", durability="fsync"),
    "append_disk": lambda client: client.append("d", 1, tag="t"),
    "append_disk_batch": lambda client: client.append("d", 4, key=f"k{client._number}"),
    "append_memory": lambda client: client.append("m", 2, durability="memory"),
    "append_ephemeral": lambda client: client.append("e", 2, durability="ephemeral"),
    "append_large": lambda client: client.append("f", 1, size=2_500, durability="fsync"),  # the log rotates
    "append_large_disk": lambda client: client.append("d", 1, size=2_500),
    "append_in_steps": lambda client: client.append("f", 4, tag="t", key=f"k{client._number}", in_steps=True),
    "append_in_steps_disk": lambda client: client.append("d", 3, size=900, in_steps=True),  # the log rotates
    "append_in_steps_creates": lambda client: client.append("ns", 2, in_steps=True, durability="fsync"),
    "one_turn": _one_turn,
    "one_turn_in_steps": _one_turn_in_steps,
    "delete_tag": _if_present("f", lambda client: client.delete("f", tag="t")),
    "delete_before": _if_present("f", lambda client: client.delete("f", before_seq=4)),
    "delete_disk": _if_present("d", lambda client: client.delete("d", tag="t")),
    "cap": lambda client: client.put("f", cap_records=2, durability="fsync"),
    "ttl": lambda client: client.put("d", ttl_ms=4_000),
    "schema": lambda client: client.put("f", schema={"$comment": str(client._number)}, durability="fsync"),
    "to_ephemeral": lambda client: client.put("f", durability="ephemeral"),
    "to_disk": lambda client: client.put("f", durability="disk"),
    "to_fsync": lambda client: client.put("f", durability="fsync"),
    "rise": lambda client: client.put("e", durability="fsync"),
    "delete_ephemeral": lambda client: client.delete("e", before_seq=2),
    "drop": _if_present("f", lambda client: client.drop("f")),
    "recreate": _recreate,
    "append_held": lambda client: client.append("h", 2),
    "archive": _if_present("f", lambda client: client.archive("f", behind=1)),
    "archive_disk": _if_present("d", lambda client: client.archive("d")),
    "archive_held": lambda client: client.archive("h", behind=1),
    "cap_held": lambda client: client.put("h", cap_records=3, discard="reject"),
    "checkpoint": lambda client: client.checkpoint(),
    "begin_checkpoint": lambda client: client.checkpoint(hold_after=2),
    "end_checkpoint": lambda client: client.server.steps.release(),
    "tick": lambda client: client.server.tick(),
    "advance": _advance,
    "slow_syncs": _slow_syncs,  # until the end of the workload, or until `syncs`
    "syncs": lambda client: client.syncs.release(),
    "pending_together": _pending_together,
    "expire_while_pending": _expire_while_pending,
    "clock_forward": lambda client: _jump(client, 3_600_000),
    "clock_back": lambda client: _jump(client, -600_000),
    "clock_before_1970": lambda client: client.server.clock.set(ms=-5_000),
}  # fmt: skip


def setup(client: Client) -> None:
    """Create topics of every class with sealed segments, open segments, deletes, a snapshot and a log after it."""
    client.put("f", durability="fsync")
    client.put("d", durability="disk")
    client.put("m", durability="memory")
    client.put("e", durability="ephemeral")
    client.put("h", durability="fsync", ttl_ms=4_000, archive=ArchiveConfig(hold=True))
    client.append("f", 2, tag="t", key="k")
    client.append("h", 3)
    client.append("f", 3)
    client.append("d", 4, tag="t")
    client.append("e", 2)
    client.checkpoint()
    client.append("e", 2, tag="t")
    client.delete("e", before_seq=2)
    client.append("m", 1)
    client.delete("f", tag="t")
    client.append("d", 1)
    client.append("f", 1)


def workloads(length: int) -> Iterator[tuple[str, ...]]:
    return itertools.product(STEPS, repeat=length)


def some(length: int, count: int, seed: int) -> list[tuple[str, ...]]:
    rng = Random(seed)
    names = list(STEPS)
    return [tuple(rng.choice(names) for _ in range(length)) for _ in range(count)]


def while_pending(count: int, seed: int) -> list[tuple[str, ...]]:
    """Return workloads whose requests arrive while syncs are pending, for some of them until the very end."""
    found: list[tuple[str, ...]] = [("slow_syncs", *names) for names in some(3, count, seed)]
    return [names if at % 2 else (*names[:3], "syncs", *names[3:]) for at, names in enumerate(found)]


def play(client: Client, names: tuple[str, ...]) -> None:
    """Play the steps, then finish what is pending."""
    for name in names:
        STEPS[name](client)
    client.syncs.release()
