"""Stop workers on SIGINT and SIGTERM. A program that handles these signals itself keeps them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM)

Stop = Callable[[], object]


class _StopHandler:
    """Handles one signal for all workers of the process. `before` is the handler that was there before."""

    def __init__(self, before: Any) -> None:
        self.before = before
        self.stops: list[Stop] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        stops = list(self.stops)
        for stop in stops:
            stop()
        if stops and _is_default(self.before):
            return  # the program ends when its workers have
        if callable(self.before):
            self.before(number, frame)
        elif self.before is signal.SIG_DFL:  # another handler has put this one back after the last worker
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def on_stop_signals(stop: Stop, handle: bool | None) -> Callable[[], None]:
    """Call `stop` on SIGINT and SIGTERM. Return a function that ends this and restores the handlers.

    None handles a signal if the program has left it at its default, and does nothing outside of the main thread. True
    handles both, then calls the handlers of the program, and raises `ValueError` outside of the main thread.
    """
    if handle is False or (handle is None and threading.current_thread() is not threading.main_thread()):
        return lambda: None
    joined: list[tuple[int, _StopHandler]] = []
    for number in NUMBERS:
        before = signal.getsignal(number)
        if before is None or not (handle or isinstance(before, _StopHandler) or _is_default(before)):
            continue  # None is a handler of a library in C: it can be neither called nor restored
        handler = before if isinstance(before, _StopHandler) else _StopHandler(before)
        if handler is not before:
            signal.signal(number, handler)
        handler.stops.append(stop)
        joined.append((number, handler))

    def leave() -> None:
        for number, handler in joined:
            handler.stops.remove(stop)
            is_set = signal.getsignal(number) is handler  # the program may have set another one since
            if is_set and not handler.stops:
                signal.signal(number, handler.before)

    return leave


def _is_default(handler: Any) -> bool:
    """Return whether Python or `asyncio.run` has set a handler, and not the program."""
    if isinstance(handler, partial):
        import asyncio  # a sync program may not need it otherwise

        return isinstance(getattr(handler.func, "__self__", None), asyncio.Runner)
    return handler is signal.SIG_DFL or handler is signal.default_int_handler
