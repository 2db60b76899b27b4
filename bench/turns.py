"""Run contenders in turns, one round each, so that a slow minute of the machine affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from load import Load
from peers import cpu_s
from row import BUSY_ENOUGH, Reading, Side

CROWDED = 0.6  # the share of its core


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One side of a comparison. `run` runs one round; `pid` is the server whose processor time is measured."""

    name: str
    unit: str
    run: Callable[[], Load | float]
    pid: Callable[[], int] | None = None
    before: Callable[[], object] | None = None  # makes ready for a round and is not part of it
    times: float = 1  # how many units one request stands for


@dataclass(frozen=True, kw_only=True)
class _Round:
    value: float
    busy: float | None
    load: Load | None


def take_turns(contenders: Sequence[Contender], *, rounds: int) -> list[Side]:
    """Run rounds of every contender in turn. Return their medians, in the order of the contenders."""
    done: dict[str, list[_Round]] = {contender.name: [] for contender in contenders}
    for _ in range(rounds):
        for contender in contenders:
            done[contender.name].append(_one_round(contender))
    return [_sum_up(contender, done[contender.name]) for contender in contenders]


def _one_round(contender: Contender) -> _Round:
    if contender.before:
        contender.before()
    pid = contender.pid() if contender.pid else None
    cpu_before, started = cpu_s(pid) if pid else 0.0, time.perf_counter()
    result = contender.run()
    elapsed = time.perf_counter() - started
    busy = (cpu_s(pid) - cpu_before) / elapsed if pid else None
    if isinstance(result, Load):
        return _Round(value=result.per_s * contender.times, busy=busy, load=result)
    return _Round(value=result * contender.times, busy=busy, load=None)


def _sum_up(contender: Contender, rounds: list[_Round]) -> Side:
    loads = [each.load for each in rounds if each.load]
    shares = [each.busy for each in rounds if each.busy is not None]
    return Side(
        name=contender.name,
        unit=contender.unit,
        rounds=tuple(each.value for each in rounds),
        median=median(each.value for each in rounds),
        busy=median(shares) if shares else None,
        per_cpu_s=median(each.value / each.busy for each in rounds if each.busy) if all(shares or [0]) else None,
        p50_ms=median(load.p50_ms for load in loads) if loads else None,
        p99_ms=median(load.p99_ms for load in loads) if loads else None,
    )


def ratio(key: str, ours: Side, other: Side | None, note: str = "") -> Reading:
    """Return the ratio of our median to theirs; a reading without a value if the other contender is missing."""
    if other is None:
        return Reading(key=key, value=None, missing=True, note=note)
    per_cpu_s = ours.per_cpu_s / other.per_cpu_s if ours.per_cpu_s and other.per_cpu_s else None
    notes = [note, f"{per_cpu_s:.2f} × per cpu-second" if per_cpu_s else "", held_up(ours), held_up(other)]
    text = "; ".join(filter(None, notes))
    return Reading(key=key, value=ours.median / other.median, per_cpu_s=per_cpu_s, note=text)


def held_up(side: Side) -> str:
    """Return a note if the server had clearly less than its core, else an empty string."""
    return f"{side.name} held up, {side.busy:.0%} busy" if side.busy is not None and side.busy < BUSY_ENOUGH else ""


def is_crowded(*sides: Side) -> bool:
    """Return whether a server had so little of its core that other processes emptied its caches: it then needs more
    processor time for the same work."""
    return any(side.busy is not None and side.busy < CROWDED for side in sides)


def cpu_us(side: Side) -> float:
    """Return the processor time of the server per unit of work."""
    assert side.per_cpu_s, "the contender has a server"
    return 1e6 / side.per_cpu_s


def slowdown(key: str, base: Side, others: Sequence[Side]) -> Reading:
    """Return how many times slower than `base` the slowest contender is. Each round is compared with its neighbour,
    because the load of the machine affects both."""

    def against_base(side: Side) -> float:
        return median(mine / theirs for mine, theirs in zip(base.rounds, side.rounds, strict=True))

    slowest = max(others, key=against_base)
    medians = ratio(key, base, slowest, note=f"slowest: {slowest.name}")
    return replace(medians, value=against_base(slowest))
