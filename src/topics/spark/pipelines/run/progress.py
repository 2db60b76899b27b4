"""Progress of a pipeline on standard error: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TextIO


class Progress:
    """Shows the steps of a job; nothing without `out`, because a Python caller has the report.

    A terminal shows the running step and its figures on one line, redrawn in place. A log gets one line per step, and
    one every ten seconds of a long step.
    """

    BAR_EVERY_S = 0.1
    LINE_EVERY_S = 10.0
    WIDTH = 24

    def __init__(self, out: TextIO | None = None, *, is_bar: bool = False) -> None:
        self._out = out
        self.is_bar = is_bar
        self._text = self._counts = self._shown = ""
        self._began_s = self._printed_s = 0.0

    def step(self, text: str) -> None:
        self._text, self._counts, self._began_s = text, "", time.monotonic()
        self._shown = text
        self._draw(text)

    def show(self, done: int, total: int | None = None, *, unit: str = "records") -> None:
        """Show how much of the step is done. May be called often."""
        self._counts = f"{done:,} of {total:,} {unit}, " if total else f"{done:,} {unit}, "
        now_s = time.monotonic()
        if not self.is_bar or now_s - self._printed_s < self.BAR_EVERY_S:
            return
        bar = ""
        if total:
            share = min(done / total, 1.0)
            bar = f"[{'#' * round(share * self.WIDTH):.<{self.WIDTH}}] {share:4.0%}  "
        self._shown = f"{self._text}  {bar}{self._counts}{done / max(now_s - self._began_s, 0.001):,.0f}/s"
        self._draw(self._shown)

    def beat(self, seconds: float) -> None:
        """Show that the step has run for `seconds`. Called about once a second, from another thread."""
        if self.is_bar:
            self._draw(f"{self._shown}  {seconds:.0f} s")
        elif min(time.monotonic() - self._printed_s, seconds) >= self.LINE_EVERY_S:
            self._draw(f"{self._text}: {self._counts}{seconds:.0f} s so far")

    def warn(self, text: str) -> None:
        self.close()
        self._print(f"topics: warning: {text}\n")

    def close(self) -> None:
        """Clear what is drawn."""
        if self.is_bar and self._printed_s:
            self._draw("")
            self._printed_s = 0.0

    def _draw(self, text: str) -> None:
        self._printed_s = time.monotonic()
        self._print(f"\r\x1b[K{text}" if self.is_bar else f"topics: {text}\n")

    def _print(self, text: str) -> None:
        if self._out is not None:
            with suppress(OSError):
                print(text, end="", file=self._out, flush=True)


def progress_for(*, quiet: bool = False, out: TextIO | None = None) -> Progress:
    """Return a bar for a terminal, lines for anything else."""
    stream = out or sys.stderr
    return Progress(stream, is_bar=stream.isatty() and not quiet)
