"""Progress of a pipeline on standard error: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TextIO


class Progress:
    """Shows nothing: a Python caller has the report."""

    def step(self, text: str) -> None:
        """Start a step."""

    def show(self, done: int, total: int | None = None, *, unit: str = "records") -> None:
        """Show how much of the step is done. May be called often."""

    def beat(self, seconds: float) -> None:
        """Show that the step has run for `seconds`. Called about once a second, from another thread."""

    def warn(self, text: str) -> None:
        """Show a warning."""

    def close(self) -> None:
        """Clear what is drawn."""


class ProgressLines(Progress):
    """One line per step, and one every ten seconds of a long step: for logs and with `--json`."""

    EVERY_S = 10.0

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._text, self._printed_s = "", 0.0
        self._counts = ""

    def step(self, text: str) -> None:
        self._text, self._printed_s = text, time.monotonic()
        self._counts = ""
        _print(f"topics: {text}", self._out)

    def show(self, done: int, total: int | None = None, *, unit: str = "records") -> None:
        self._counts = f"{done:,} of {total:,} {unit}, " if total else f"{done:,} {unit}, "

    def beat(self, seconds: float) -> None:
        now = time.monotonic()
        if min(now - self._printed_s, seconds) >= self.EVERY_S:
            self._printed_s = now
            _print(f"topics: {self._text}: {self._counts}{seconds:.0f} s so far", self._out)

    def warn(self, text: str) -> None:
        _print(f"topics: warning: {text}", self._out)


class ProgressBar(Progress):
    """The running step and its figures on one line of a terminal, redrawn in place."""

    WIDTH = 24
    EVERY_S = 0.1

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._text = self._shown = ""
        self._began = self._drawn = 0.0

    def step(self, text: str) -> None:
        self._text, self._began = text, time.monotonic()
        self._draw_new(text)

    def show(self, done: int, total: int | None = None, *, unit: str = "records") -> None:
        if time.monotonic() - self._drawn < self.EVERY_S:
            return
        rate = f"{done / max(time.monotonic() - self._began, 0.001):,.0f}/s"
        if not total:
            return self._draw_new(f"{self._text}  {done:,} {unit}, {rate}")
        share = min(done / total, 1.0)
        filled = round(share * self.WIDTH)
        bar = "#" * filled + "." * (self.WIDTH - filled)
        self._draw_new(f"{self._text}  [{bar}] {share:4.0%}  {done:,} of {total:,} {unit}, {rate}")

    def beat(self, seconds: float) -> None:
        self._draw(f"{self._shown}  {seconds:.0f} s")

    def warn(self, text: str) -> None:
        self.close()
        _print(f"topics: warning: {text}", self._out)

    def close(self) -> None:
        if self._drawn:
            self._draw("")
            self._drawn = 0.0

    def _draw_new(self, text: str) -> None:
        self._shown = text
        self._draw(text)

    def _draw(self, text: str) -> None:
        self._drawn = time.monotonic()
        with suppress(OSError):
            print(f"\r\x1b[K{text}", end="", file=self._out, flush=True)


def progress_for(*, quiet: bool = False, out: TextIO | None = None) -> Progress:
    """Return a bar for a terminal, lines for anything else."""
    stream = out or sys.stderr
    return ProgressBar(stream) if stream.isatty() and not quiet else ProgressLines(stream)


def _print(text: str, out: TextIO) -> None:
    with suppress(OSError):
        print(text, file=out, flush=True)
