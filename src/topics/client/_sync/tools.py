"""Waiting and running side by side for the sync client: threads, under the names of `_async/tools.py`."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future as Future
from concurrent.futures import wait
from threading import Event as Event
from time import sleep as sleep
from typing import Any, TypeVar, cast

from topics.client.stop_signals import on_stop_signals as on_stop_signals

T = TypeVar("T")


def wait_for(event: Event, seconds: float) -> bool:
    """Wait until the event is set; return False if that takes longer."""
    return event.wait(seconds)


def result_of(value: T | Awaitable[T]) -> T:
    """Return a value: there are no promises here."""
    return cast("T", value)


def call_within(seconds: float | None, function: Callable[[Any], Any], argument: Any) -> Any:
    """Call a function of the user's. Raise `TimeoutError` if it takes longer than `seconds`; it runs on, unheeded."""
    if seconds is None:
        return function(argument)
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(argument))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(seconds)


def wait_until_done(future: Future[Any]) -> None:
    wait([future])


class Group:
    """Threads that run side by side. The first failure of a `spawn`ed function is raised by `join`."""

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()
        self._failure: BaseException | None = None

    def spawn(self, function: Callable[..., None], *arguments: Any) -> None:
        def run() -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self._failure = self._failure or error
            finally:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, daemon=True)
        self._threads.add(thread)
        thread.start()

    def join(self) -> None:
        for thread in list(self._threads):
            thread.join()
        if self._failure is not None:
            raise self._failure
