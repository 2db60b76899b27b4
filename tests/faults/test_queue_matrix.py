"""Steps of queues with a crash or a failing call at every file call.

`make test` plays all single steps and a few longer workloads, `make torture` a seeded sample of triples for each kind
of queue, and `TORTURE=all make torture` all triples.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from random import Random

import pytest

from tests.conftest import Counts
from tests.faults.filming import FilmedDisk, Moment
from tests.faults.queue_ledger import QueueLedger, Shop
from tests.sampling import SEED, parts
from tests.simulated.clock import SimClock
from tests.simulated.disk import FOREVER, MUTATING, SimDisk
from tests.simulated.harness import SimServer
from tests.simulated.inode import CrashMode
from topics.engine.write.commit import Halted

MODES: tuple[CrashMode, ...] = ("keep", "lose", "tear", "reorder", "zero")
QUEUES: dict[str, tuple[str, bool]] = {
    "sure": ("fsync", True),
    "plain": ("fsync", False),
    "quick": ("disk", True),
    "light": ("disk", False),
}
Step = Callable[[Shop, str], None]


def _time_out(shop: Shop, name: str) -> None:
    """Let all leases expire, then claim: jobs delivered too often move to the dead-letter topic."""
    shop.server.clock.advance(ms=1_001)
    shop.claim(name, "b", 4)


def _claim_and_ack(shop: Shop, name: str) -> None:
    shop.claim(name, "a", 2)
    shop.ack(name, "a", 2)


def _checkpoint(shop: Shop) -> None:
    shop.server.steps.release()
    shop.server.checkpoint()


def _slow(shop: Shop) -> None:
    shop.syncs.slow = True


def play(shop: Shop, name: str, steps: tuple[str, ...]) -> None:
    """Play the steps, then finish what is pending."""
    for step in steps:
        STEPS[step](shop, name)
    shop.syncs.release()


STEPS: dict[str, Step] = {
    "write": lambda shop, name: shop.write(name, 2),
    "write_later": lambda shop, name: shop.write(name, delay_ms=400, priority=3),
    "write_keyed": lambda shop, name: shop.write(name, 2, key="k"),
    "write_unique": lambda shop, name: shop.write(name, unique=True),
    "claim": lambda shop, name: shop.claim(name, "a", 2),
    "ack": lambda shop, name: shop.ack(name, "a"),
    "ack_all": lambda shop, name: shop.ack(name, "a", 9),
    "claim_and_ack": _claim_and_ack,
    "delete": lambda shop, name: shop.delete(name, held=False),
    "delete_held": lambda shop, name: shop.delete(name, held=True),
    "claim_all": lambda shop, name: shop.claim(name, "c", 9),
    "nack": lambda shop, name: shop.nack(name, "a", 2),
    "nack_delayed": lambda shop, name: shop.nack(name, "a", 2, delay_ms=300),
    "extend": lambda shop, name: shop.extend(name, "a", 2),
    "limit": lambda shop, name: shop.limit(name),
    "pause": lambda shop, name: shop.pause(name, paused=True),
    "resume": lambda shop, name: shop.pause(name, paused=False),
    "time_out": _time_out,
    "slow_syncs": lambda shop, _: _slow(shop),  # until the end of the steps, or until `syncs`
    "syncs": lambda shop, _: shop.syncs.release(),
    "checkpoint": lambda shop, _: _checkpoint(shop),
    "begin_checkpoint": lambda shop, _: shop.server.begin_checkpoint(topics=0) and None,
    "end_checkpoint": lambda shop, _: shop.server.steps.release(),
}


def setup(shop: Shop, name: str) -> None:
    """Write jobs in every state before and after a snapshot: done, leased once and twice, delayed, ready."""
    durability, leases_durable = QUEUES[name]
    shop.open(name, durability=durability, leases_durable=leases_durable)
    shop.write(name, 5)
    shop.write(name, delay_ms=60_000)
    shop.write(name, 3, key="k")
    shop.write(name, unique=True)
    shop.claim(name, "a", 2)
    shop.ack(name, "a")
    shop.nack(name, "a")
    shop.claim(name, "a")  # the same job again: its next delivery would be one too many
    shop.claim(name, "a")
    shop.server.checkpoint()
    shop.nack(name, "a", delay_ms=200)
    shop.write(name, 2)
    shop.claim(name, "a", 2)


def film(name: str, steps: tuple[str, ...]) -> list[Moment[QueueLedger]]:
    disk: FilmedDisk[QueueLedger] = FilmedDisk(seed=SEED)
    shop = Shop.on(disk)
    server = shop.server
    setup(shop, name)
    disk.film(shop.ledger, server.clock)
    play(shop, name, steps)
    disk.moments.append(Moment("after the end", disk.clone(), server.clock.now_ms(), shop.ledger.copy()))
    return disk.moments


def survive(moment: Moment[QueueLedger], mode: CrashMode, *, thorough: bool) -> None:
    """Crash, then check that the restart keeps every promise, a second start shows the same, and all jobs finish."""
    after = SimServer(moment.disk, clock=SimClock(moment.ms)).crash(mode)
    moment.ledger.check(after, mode)
    if thorough:
        found = after.view()
        again = after.crash("keep")
        moment.ledger.check(again, mode)
        assert again.view() == found, "a second start finds something else"
        moment.ledger.drain(again)


def sweep(
    workloads: Iterable[tuple[str, tuple[str, ...]]],
    modes: Callable[[int], Iterable[CrashMode]],
    *,
    thorough_every: int,
) -> int:
    points = 0
    for name, steps in workloads:
        for at, moment in enumerate(film(name, steps)):
            for mode in modes(at):
                points += 1
                try:
                    survive(moment, mode, thorough=points % thorough_every == 0)
                except BaseException as error:
                    error.add_note(f"seed {SEED}, queue {name}, steps {steps}, {moment.what}, then {mode}")
                    raise
    return points


@pytest.mark.parametrize("modes", [1, pytest.param(len(MODES), marks=pytest.mark.torture)])
def test_every_step_of_a_job_survives_every_crash(modes: int, counts: Counts) -> None:
    """Crash at every call. The short form tries two of the kinds of crash at each, another pair at the next."""
    steps = ((name, (step,)) for name in QUEUES for step in STEPS)
    points = sweep(steps, lambda at: [MODES[(at + n) % len(MODES)] for n in range(modes)], thorough_every=3)
    counts(f"in single steps of queues (seed {SEED})", crash_points=points)


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.torture)])
def test_steps_between_two_slices_of_a_checkpoint_survive_every_crash(every: int, counts: Counts) -> None:
    steps = [step for step in STEPS if "checkpoint" not in step][::every]
    cut = ((name, ("begin_checkpoint", step, "end_checkpoint")) for name in QUEUES for step in steps)
    points = sweep(cut, lambda at: [MODES[at % len(MODES)]], thorough_every=3)
    counts(f"in checkpoints in slices (seed {SEED})", crash_points=points)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("quick", ("time_out", "time_out", "claim", "claim_and_ack", "write_later", "nack")),  # a lease without its job
        (
            "plain",
            ("ack", "nack_delayed", "checkpoint", "write_later", "time_out", "nack"),
        ),  # a dead letter without its topic
    ],
)
def test_log_with_holes_loses_no_job_and_invents_no_lease(name: str, steps: tuple[str, ...]) -> None:
    sweep([(name, steps)], lambda at: ["reorder", "zero"], thorough_every=5)


def test_some_longer_workloads_of_queues_survive_every_crash(counts: Counts) -> None:
    rng = Random(SEED)
    workloads = [(rng.choice(list(QUEUES)), tuple(rng.choices(list(STEPS), k=4))) for _ in range(15)]
    points = sweep(workloads, lambda at: [MODES[at % 5]], thorough_every=5)
    counts(f"in longer workloads of queues (seed {SEED})", crash_points=points)


@pytest.mark.parametrize("name", QUEUES)
@pytest.mark.parametrize(
    "steps",
    [
        ("slow_syncs", "delete", "claim_all"),
        ("slow_syncs", "claim_all", "delete"),
        ("slow_syncs", "delete_held", "ack"),
        ("slow_syncs", "ack", "delete_held"),
        ("nack", "slow_syncs", "delete", "time_out"),  # the claim would move the job to the dead letters
        ("slow_syncs", "claim_all", "time_out", "syncs", "ack_all"),  # leases expire before their claim is answered
    ],
)
def test_requests_that_meet_while_syncs_are_pending_agree(name: str, steps: tuple[str, ...]) -> None:
    """Each job ends once: acked, deleted, or in the dead letters. A killed process changes nothing about it."""
    sweep([(name, steps)], lambda at: ["keep", MODES[at % 5]], thorough_every=3)


TRIPLES = parts(STEPS, 3, rounds=5)  # for each queue 90 of 5,832


@pytest.mark.torture
@pytest.mark.parametrize("part", TRIPLES)
@pytest.mark.parametrize("name", QUEUES)
def test_triples_of_steps_survive_every_crash(name: str, part: str, counts: Counts) -> None:
    triples = [(name, steps) for steps in TRIPLES[part]]
    points = sweep(triples, lambda at: [MODES[at % 5], MODES[(at + 2) % 5]], thorough_every=7)
    counts(f"in triples of steps of {name}, {part} (seed {SEED})", triples=len(triples), crash_points=points)


# --- failing calls


# After a checkpoint that failed, two files of the log may be unsynced. If only the later one is on
# the disk, there is a gap between them.
JUDGED_AS = {"keep": "keep", "lose": "lose", "tear": "reorder"}


def fails(name: str, steps: tuple[str, ...], at: int, error: int, times: int, *, short: bool) -> bool:
    """Play steps with one failing call. Return whether that call changes something."""
    shop = Shop.on(SimDisk(seed=SEED))
    server = shop.server
    setup(shop, name)
    disk, ledger = server.disk, shop.ledger
    disk.fail(at=at, error=error, times=times, short=short)
    halted = False
    try:
        play(shop, name, steps)
    except Halted:
        halted = True
    if disk.calls[at].op not in MUTATING:
        return False
    disk.heal()
    if not halted:
        ledger.check(server, "none")
    mode = MODES[at % 3]
    ledger.check(server.next(disk.clone().crash(mode)), JUDGED_AS[mode])
    if halted:
        disk = disk.crash("keep")
        server = server.next(disk)
        shop.restart(server)
        ledger.check(server, "keep")
    server.tick()
    server.tick()
    assert server.wal.read_only is None
    ledger.check(server, "keep" if halted else "none")
    shop.write(name)
    shop.claim(name, "c")
    shop.ack(name, "c")
    mode = MODES[(at // 3) % 3]
    after = server.next(disk.clone().crash(mode))
    ledger.check(after, JUDGED_AS[mode])
    ledger.drain(after)
    return True


FAILURES = [(error, times) for error in (errno.EIO, errno.ENOSPC) for times in (1, FOREVER)]


def sweep_failing(
    workloads: Iterable[tuple[str, tuple[str, ...]]], *, failures: int = len(FAILURES), every: int = 1
) -> int:
    """Fail every call of the workloads, or every second one, in `failures` ways each.

    The next call fails in the ways that follow.
    """
    points = 0
    for which, (name, steps) in enumerate(workloads, SEED):
        shop = Shop.on(SimDisk(seed=SEED))
        server = shop.server
        setup(shop, name)
        before = len(server.disk.calls)
        play(shop, name, steps)
        calls = [call.number for call in server.disk.calls[before:] if call.op in MUTATING]
        for at in calls[which % every :: every]:
            for number in range(at, at + failures):
                error, times = FAILURES[number % len(FAILURES)]
                try:
                    points += fails(name, steps, at, error, times, short=bool(number % 3 % 2))
                except BaseException as failure:
                    failure.add_note(f"seed {SEED}, queue {name}, steps {steps}, call {at}: {error}, {times} times")
                    raise
    return points


@pytest.mark.parametrize(("failures", "every"), [(1, 2), pytest.param(len(FAILURES), 1, marks=pytest.mark.torture)])
def test_every_step_of_a_job_is_refused_or_done_when_a_call_fails(failures: int, every: int, counts: Counts) -> None:
    points = sweep_failing(((name, (step,)) for name in QUEUES for step in STEPS), failures=failures, every=every)
    counts(f"in single steps of queues (seed {SEED})", failing_calls=points)


FAILING_TRIPLES = parts(STEPS, 3, rounds=2, seed=SEED + 1)  # for each queue 36 of 5,832


@pytest.mark.torture
@pytest.mark.parametrize("part", FAILING_TRIPLES)
@pytest.mark.parametrize("name", QUEUES)
def test_triples_of_steps_are_refused_or_done_when_a_call_fails(name: str, part: str, counts: Counts) -> None:
    triples = [(name, steps) for steps in FAILING_TRIPLES[part]]
    points = sweep_failing(triples)
    counts(f"in triples of steps of {name}, {part} (seed {SEED})", triples=len(triples), failing_calls=points)
