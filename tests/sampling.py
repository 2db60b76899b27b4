"""How much the long tests cover: a seeded sample, or everything.

`make torture` takes about an hour of one core: of the largest products it plays a sample, and of random histories a few
thousand. `TORTURE=all make torture` plays all of them, which takes about 15 hours; it can be interrupted and resumed.
`TOPICS_FAULT_SEED=8 make torture` plays another sample with other crashes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from random import Random

EVERYTHING = os.environ.get("TORTURE") == "all"
SEED = int(os.environ.get("TOPICS_FAULT_SEED", "7"))
Workload = tuple[str, ...]


def amount(sample: int, everything: int) -> int:
    """Return how many random examples a long test plays."""
    return everything if EVERYTHING else sample


def parts(names: Iterable[str], length: int, *, rounds: int, seed: int = SEED) -> dict[str, list[Workload]]:
    """Return workloads of `length` names, in parts that one test each plays.

    A part of the sample is a round: in each position of its workloads every name occurs once. A part of everything is
    all workloads that begin with the same names and differ in the last.
    """
    names = list(names)
    if EVERYTHING:
        starts = itertools.product(names, repeat=length - 1)
        return {"-".join(start): [(*start, last) for last in names] for start in starts}
    rng = Random(seed)
    return {
        f"round{number}": list(zip(*(rng.sample(names, len(names)) for _ in range(length)), strict=True))
        for number in range(rounds)
    }
