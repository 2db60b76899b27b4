"""Waiting and running side by side for the async client. `_sync/tools.py` has the same names for threads."""

from __future__ import annotations

import asyncio
import inspect
from asyncio import Event as Event
from asyncio import Future as Future
from asyncio import sleep as sleep
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from topics.client import stop_signals

T = TypeVar("T")


async def wait_for(event: Event, seconds: float) -> bool:
    """Wait until the event is set; return False if that takes longer."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


async def result_of(value: T | Awaitable[T]) -> T:
    """Return a value, or what it is a promise of, such as the call of a function that may be a coroutine function."""
    if inspect.isawaitable(value):
        return await value
    return value


async def call_within(seconds: float | None, function: Callable[[Any], Any], argument: Any) -> Any:
    """Call a function of the user's. Raise `TimeoutError` if it takes longer than `seconds`."""
    return await asyncio.wait_for(result_of(function(argument)), seconds)


async def wait_until_done(future: Future[Any]) -> None:
    await asyncio.wait([future])


class Group:
    """Coroutines that run side by side. The first failure of a `spawn`ed one is raised by `join`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    def spawn(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        task = asyncio.get_running_loop().create_task(function(*arguments))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and self._failure is None:
            self._failure = task.exception()

    async def join(self) -> None:
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._failure is not None:
            raise self._failure


def on_stop_signals(stop: Callable[[], None], handle: bool | None) -> Callable[[], None]:
    """Call `stop` in this loop on SIGINT and SIGTERM, as `stop_signals.on_stop_signals` does."""
    loop = asyncio.get_running_loop()
    return stop_signals.on_stop_signals(lambda: loop.call_soon_threadsafe(stop), handle)
