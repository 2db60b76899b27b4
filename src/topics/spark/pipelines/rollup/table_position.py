"""The position of a rollup as numbers, for the facts of its table. Pure: no Spark, no files.

    declaration               the digest of the declaration
    epoch, done, generation   how far the source topic is processed
    watermark                 ms
    open/<slot>/start         an open window: ms
    open/<slot>/first         first seq of its records; 0: the slot is free

A fact can be changed but never removed, so the slot of a closed window is used again. There are as many slots as
windows were ever open at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topics.spark.pipelines.rollup.declaration import DIGEST_DIGITS
from topics.spark.pipelines.rollup.windows import Open


def number_of(digest: str) -> int:
    return int(digest, 16)


def digest_of(number: int) -> str:
    return f"{number:0{DIGEST_DIGITS}x}"


def open_windows(position: Mapping[str, int], *, window_ms: int) -> dict[int, Open]:
    """Return the open windows by slot."""
    found = {}
    for name, first in position.items():
        kind, _, rest = name.partition("/")
        slot, _, what = rest.partition("/")
        if kind == "open" and what == "first" and first:
            start_ms = position[f"open/{slot}/start"]
            found[int(slot)] = Open(start_ms, start_ms + window_ms, first)
    return found


def place_windows(known: Mapping[int, Open], windows: Iterable[Open]) -> tuple[dict[int, Open], dict[str, int]]:
    """Return the windows by slot, and the numbers of the slots that change. A window keeps its slot."""
    slot_of = {one.start_ms: slot for slot, one in known.items()}
    wanted = {one.start_ms: one for one in windows}
    placed = {slot_of[start]: one for start, one in wanted.items() if start in slot_of}
    new = [one for start, one in wanted.items() if start not in slot_of]
    free = (slot for slot in range(len(known) + len(new) + max(known, default=0) + 1) if slot not in placed)
    placed.update(zip(free, new, strict=False))
    changed: dict[str, int] = {}
    for slot, one in placed.items():
        if known.get(slot) != one:
            changed |= {f"open/{slot}/start": one.start_ms, f"open/{slot}/first": one.low}
    changed |= {f"open/{slot}/first": 0 for slot in known if slot not in placed}
    return placed, changed
