"""A row of the table: its header, its questions, and the answers of a run.

A row is declared once, beside the function that measures it; the report, the picture and the exit code all read
that declaration. A row asks one or more questions; each gets one figure and is held against its own bar and goal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plan import Plan

BUSY_ENOUGH = 0.85  # below this share of its core, a server was held up by its load generator or by strangers


@dataclass(frozen=True)
class Limit:
    """A bound on a figure: `at_least(0.45)` or `at_most(60)`."""

    value: float
    upper: bool  # True when smaller is better

    def holds(self, figure: float) -> bool:
        return figure <= self.value if self.upper else figure >= self.value

    def headroom(self, figure: float) -> float:
        """Return how many times better than the bound a value is: 1 meets it exactly, less than 1 misses it."""
        if self.upper:
            return self.value / figure if figure > 0 else 100.0
        return figure / self.value

    def __str__(self) -> str:
        return f"{'≤' if self.upper else '≥'} {self.value:g}"


def at_least(value: float) -> Limit:
    return Limit(value, upper=False)


def at_most(value: float) -> Limit:
    return Limit(value, upper=True)


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One question of a row. `bar` must hold now, `goal` is the aim; a bound of None is printed but not judged."""

    key: str
    unit: str = "×"
    bar: Limit | None = None
    goal: Limit | None = None
    cpu_bound: bool = True  # False where a side may rightly wait, for the disk say


@dataclass(frozen=True, kw_only=True)
class Side:
    """The results of one contender: every round in order, and the processor time of its process."""

    name: str
    unit: str
    rounds: tuple[float, ...]
    median: float
    busy: float | None = None  # share of one core that the server used, median over the rounds
    per_cpu_s: float | None = None  # what it did for each second of its own processor time: holds in a crowd, too
    p50_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The answer to one question. `value` is None if it could not be measured; `note` then says why."""

    key: str
    value: float | None
    per_cpu_s: float | None = None  # the same ratio for equal processor time, where both sides were watched
    note: str = ""
    missing: bool = False  # True when a program to compare with is not installed
    crowded: bool = False  # True when other processes alone could explain a figure past its bar


@dataclass
class Outcome:
    """All measurements of one row."""

    readings: list[Reading] = field(default_factory=list)
    sides: list[Side] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Row:
    """The header of a row and the function that measures it."""

    id: str
    title: str
    peer: str
    asks: tuple[Ask, ...]
    measure: Callable[[Plan], Outcome]
    needs: tuple[str, ...] = ("wrk",)  # programs without which nothing can be measured; a missing peer is no such thing
    time_limit_s: int = 150
