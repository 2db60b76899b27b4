"""`topics top`: one live screen of a server."""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from topics.cli.command import Args, Call, Command, add
from topics.cli.connect.server import get
from topics.cli.monitoring import top_screen
from topics.cli.monitoring.top_screen import Overview, Sample, TopicRow, overview, rows
from topics.cli.output.failures import EXIT_DONE
from topics.cli.output.units import parse_duration, parse_positive
from topics.cli.tree import Subparsers
from topics.client.call import Request
from topics.errors import TopicsError

FIRST_INTERVAL_S = 0.5


def register(subparsers: Subparsers) -> None:
    add(subparsers, TOP)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--every", metavar="DURATION", type=parse_duration, default=1000, help="time between two looks [1s]"
    )
    parser.add_argument("--sort", choices=top_screen.SORTS, default="rate", help="order of the topics [rate]")
    parser.add_argument("--filter", metavar="TEXT", default="", help="only topics whose name contains this")
    parser.add_argument("-n", "--count", metavar="N", type=parse_positive, help="stop after N looks")


def _request(args: Args) -> Request:
    return get("/v0/metrics")


def _look(call: Call) -> Sample:
    metrics = call.server.json(_request(call.args))
    return Sample(at_s=time.monotonic(), metrics=metrics, lags=call.server.lags())


def _run(call: Call) -> int:
    before = _look(call)
    return _run_live(call, before) if call.screen.is_human else _run_lines(call, before)


def _run_lines(call: Call, before: Sample) -> int:
    """Print a line of JSON for each look."""
    left = call.args.count
    while left is None or left > 0:
        time.sleep(call.args.every / 1000)
        now = _look(call)
        found = rows(before, now)
        shown = top_screen.sort_rows(found, call.args.sort, call.args.filter)
        call.screen.json({**asdict(overview(before, now, found)), "by_topic": [asdict(row) for row in shown]})
        call.screen.flush()
        before = now
        left = None if left is None else left - 1
    return EXIT_DONE


def _run_live(call: Call, before: Sample) -> int:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stdout)
    view = View(call)
    if call.args.count is not None:
        return _run_counted(call, view, console, before)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        wait_s = min(FIRST_INTERVAL_S, call.args.every / 1000)
        while not view.ended:
            deadline = time.monotonic() + wait_s
            while (left_s := deadline - time.monotonic()) > 0 and not view.ended:
                if view.press(pressed(left_s)) and view.known:
                    live.update(view.draw(console.size.height), refresh=True)
            wait_s = call.args.every / 1000
            before = view.look(before)
            live.update(view.draw(console.size.height), refresh=True)
    return EXIT_DONE


def _run_counted(call: Call, view: View, console: Any, before: Sample) -> int:
    """Print some looks one below the other, and leave them on the terminal."""
    for _ in range(call.args.count):
        time.sleep(call.args.every / 1000)
        before = view.look(before)
        console.print(view.draw(console.size.height))
    return EXIT_DONE


class View:
    """What the screen shows now: the last look, the order, and the filter."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._order, self._filter, self._typing = call.args.sort, call.args.filter, False
        self._total: Overview | None = None
        self._rows: list[TopicRow] = []
        self._problem = ""
        self.ended = False

    @property
    def known(self) -> bool:
        return self._total is not None

    def look(self, before: Sample) -> Sample:
        """Look at the server. If it does not answer, keep the last look and show why."""
        try:
            now = _look(self._call)
        except TopicsError as error:
            self._problem = str(error)
            return before
        self._problem = ""
        self._rows = rows(before, now)
        self._total = overview(before, now, self._rows)
        return now

    def draw(self, height: int) -> Any:
        if self._total is None:
            return self._problem
        return top_screen.draw(
            self._total, self._rows, url=self._call.server.target.url, order=self._order, needle=self._filter,
            typing=self._typing, height=height, problem=self._problem,
        )  # fmt: skip

    def press(self, keys: str) -> bool:
        """Handle keys. Return whether the screen must be drawn again."""
        for key in keys:
            if self._typing:
                self._type(key)
            elif key in ("q", "\x03", "\x04"):
                self.ended = True
            elif key == "s":
                at = top_screen.SORTS.index(self._order)
                self._order = top_screen.SORTS[(at + 1) % len(top_screen.SORTS)]
            elif key == "/":
                self._typing = True
        return bool(keys)

    def _type(self, key: str) -> None:
        if key in ("\r", "\n"):
            self._typing = False
        elif key == "\x1b":
            self._filter, self._typing = "", False
        elif key in ("\x7f", "\b"):
            self._filter = self._filter[:-1]
        elif key.isprintable():
            self._filter += key


@contextmanager
def _keys() -> Iterator[Any]:
    """Yield a function that waits for keys for some seconds and returns them; without a terminal, it only waits."""
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        yield _no_keys
        return
    import termios
    import tty

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def pressed(seconds: float) -> str:
        ready = select.select([descriptor], [], [], seconds)[0]
        return os.read(descriptor, 64).decode(errors="replace") if ready else ""

    try:
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _no_keys(seconds: float) -> str:
    time.sleep(seconds)
    return ""


TOP = Command(
    name="top",
    help="watch a server: rates, heads, lag, jobs, losses, memory, connections, log latency",
    arguments=_arguments,
    request=_request,
    run=_run,
    details="Keys: q quits, s sorts, / filters. In a pipe, each look is a line of JSON.",
    examples="  topics top\n  topics top --sort lag --filter orders\n  topics top --count 1 | jq .rate\n",
)
