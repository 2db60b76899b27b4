"""Progress of a long command."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TextIO

from topics.cli.output.units import size


class Meter:
    """Progress on standard error: a bar on a terminal, otherwise a line every few seconds."""

    WIDTH = 30
    LINE_EVERY_S = 5.0
    BAR_EVERY_S = 0.1

    def __init__(self, verb: str, out: TextIO | None = None) -> None:
        self._verb = verb
        self._out = out or sys.stderr
        self._bar = self._out.isatty()
        self._last = time.monotonic()
        self._drawn = False

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._drawn and self._bar:
            with suppress(OSError):
                print("\r\x1b[K", end="", file=self._out, flush=True)

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < (self.BAR_EVERY_S if self._bar else self.LINE_EVERY_S):
            return
        self._last, self._drawn = now, True
        share = min(done / total, 1.0) if total else 1.0
        text = f"{self._verb} {size(done)} of {size(max(done, total))}"
        if self._bar:
            filled = round(share * self.WIDTH)
            bar = "#" * filled + "." * (self.WIDTH - filled)
            print(f"\r\x1b[K[{bar}] {share:4.0%}  {text}", end="", file=self._out, flush=True)
        else:
            print(f"{text} ({share:.0%})", file=self._out, flush=True)
