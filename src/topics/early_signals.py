"""Signals of commands: before and after the event loop of a server, and while a command runs. Imports little."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
hangups = 0  # SIGHUPs so far: files may have changed after the start has read them


def handle() -> None:
    """Count SIGHUP instead of ending the process, and let SIGINT and SIGTERM end it as they end a running server."""
    signal.signal(signal.SIGHUP, _count)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)


def ignore() -> None:
    """Ignore all of them: the exit status is known. An ending interpreter removes handlers, and keeps this."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _count(number: int, frame: FrameType | None) -> None:
    global hangups
    hangups += 1


def _end(number: int, frame: FrameType | None) -> None:
    ignore()
    sys.exit(0)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM within the block. Only the main thread can: elsewhere, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
