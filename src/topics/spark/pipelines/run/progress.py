"""What a person sees while a pipeline runs, on standard error."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Protocol, TextIO


class Progress(Protocol):
    def step(self, text: str) -> None:
        """A part of the work begins."""

    def show(self, done: int, total: int | None = None, *, unit: str = "records") -> None:
        """How far the step has come. May be called often."""

    def beat(self, seconds: float) -> None:
        """The step is still at work, for so long by now. Called every second or so, from another thread."""

    def warn(self, text: str) -> None:
        """Something that the person should know whatever else is shown."""

    def close(self) -> None: ...


class Silent:
    """For callers from Python, who have the report."""

    def step(self, text: str) -> None: ...
    def show(self, done: int, total: int | None = None, *, unit: str = "records") -> None: ...
    def beat(self, seconds: float) -> None: ...
    def warn(self, text: str) -> None: ...
    def close(self) -> None: ...


class Lines:
    """One line a step, and one every ten seconds of a long one: for logs, and beside `--json`."""

    EVERY_S = 10.0

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._text, self._said = "", 0.0

    def step(self, text: str) -> None:
        self._text, self._said = text, time.monotonic()
        _print(f"topics: {text}", self._out)

    def show(self, done: int, total: int | None = None, *, unit: str = "records") -> None: ...

    def beat(self, seconds: float) -> None:
        now = time.monotonic()
        if min(now - self._said, seconds) >= self.EVERY_S:
            self._said = now
            _print(f"topics: {self._text}: {seconds:.0f} s so far", self._out)

    def warn(self, text: str) -> None:
        _print(f"topics: warning: {text}", self._out)

    def close(self) -> None: ...


class Bar:
    """On a terminal: the step that runs, with its figures, on a line that redraws itself."""

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
    """A bar where somebody looks at it, lines everywhere else."""
    stream = out or sys.stderr
    return Bar(stream) if stream.isatty() and not quiet else Lines(stream)


def _print(text: str, out: TextIO) -> None:
    with suppress(OSError):
        print(text, file=out, flush=True)
