"""Workers and loops over jobs end on SIGINT and SIGTERM, and leave these signals to a program that handles them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import ServerProcess
from topics.client import AsyncTopics, Topics, _async, _sync

pytestmark = pytest.mark.anyio
WAIT_S = 30
NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Begin with the handlers of a new process, and put back those of pytest."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def short_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers that wait for a job notice soon that they were stopped."""
    for module in (_async.work, _sync.work):
        monkeypatch.setattr(module, "CLAIM_WAIT_MS", 50)


class Program:
    """A program that handles signals itself."""

    def __init__(self, *numbers: int) -> None:
        self.got: list[int] = []
        for number in numbers:
            signal.signal(number, self.handle)

    def handle(self, number: int, frame: object) -> None:
        self.got.append(number)


async def work(topics: AsyncTopics, name: str, **options: Any) -> asyncio.Task[None]:
    """Start a worker of the queue, and return when it has done a job."""
    await topics.put_topic(name, type="queue")
    await topics.append(name, 1)
    done = asyncio.Event()
    topics.worker(name)(lambda job: done.set())
    task = asyncio.create_task(topics.run(**options))
    await asyncio.wait_for(done.wait(), WAIT_S)
    return task


@pytest.mark.parametrize("number", NUMBERS)
async def test_run_ends_on_a_signal_that_the_program_left_alone(topics: AsyncTopics, name: str, number: int) -> None:
    before = signal.getsignal(number)
    task = await work(topics, name)
    signal.raise_signal(number)
    await asyncio.wait_for(task, WAIT_S)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", NUMBERS)
async def test_run_leaves_signals_to_a_program_that_handles_them(topics: AsyncTopics, name: str, number: int) -> None:
    program = Program(*NUMBERS)
    task = await work(topics, name)
    assert signal.getsignal(number) == program.handle
    signal.raise_signal(number)
    assert program.got == [number]
    await topics.append(name, 2)
    while (await topics.topic(name)).count:  # the worker still works
        await asyncio.sleep(0.01)
    topics.stop()
    await asyncio.wait_for(task, WAIT_S)
    assert signal.getsignal(number) == program.handle


async def test_run_leaves_a_handler_of_the_loop_and_an_ignored_signal(topics: AsyncTopics, name: str) -> None:
    got = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, got.set)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    task = await work(topics, name)
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(got.wait(), WAIT_S)
    signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    topics.stop()
    await asyncio.wait_for(task, WAIT_S)


async def test_run_with_signals_ends_and_calls_the_handler_before_it(topics: AsyncTopics, name: str) -> None:
    program = Program(signal.SIGTERM)
    task = await work(topics, name, handle_signals=True)
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(task, WAIT_S)
    assert program.got == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == program.handle


async def test_run_with_signals_calls_a_handler_of_the_loop(topics: AsyncTopics, name: str) -> None:
    got = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, got.set)
    task = await work(topics, name, handle_signals=True)
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(task, got.wait()), WAIT_S)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


async def test_run_without_signals_leaves_handlers_alone(topics: AsyncTopics, name: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    task = await work(topics, name, handle_signals=False)
    assert signal.getsignal(signal.SIGTERM) is before
    topics.stop()
    await asyncio.wait_for(task, WAIT_S)


async def test_one_signal_ends_all_workers_and_loops(server: ServerProcess, name: str) -> None:
    async def loop_over(jobs: Any, begun: asyncio.Event) -> None:
        async for _ in jobs:
            begun.set()

    async with AsyncTopics(server.url) as one, AsyncTopics(server.url) as other:
        tasks = [await work(one, name), await work(other, f"{name}-2")]
        for open_jobs in (one.jobs, one.pushed_jobs):
            queue, begun = f"{name}-{open_jobs.__name__}", asyncio.Event()
            await one.put_topic(queue, type="queue")
            await one.append(queue, 1)
            tasks.append(asyncio.create_task(loop_over(open_jobs(queue), begun)))
            await asyncio.wait_for(begun.wait(), WAIT_S)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_handler_that_the_program_sets_later_is_kept(topics: AsyncTopics, name: str) -> None:
    task = await work(topics, name)
    program = Program(signal.SIGTERM)
    topics.stop()
    await asyncio.wait_for(task, WAIT_S)
    assert signal.getsignal(signal.SIGTERM) == program.handle


async def test_signal_repeated_by_a_web_server_ends_the_worker(topics: AsyncTopics, name: str) -> None:
    """A server that took the signal after the worker restores the handler of the worker and repeats the signal."""
    task = await work(topics, name)
    ours = signal.getsignal(signal.SIGTERM)
    program = Program(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    assert (program.got, task.done()) == ([signal.SIGTERM], False)
    signal.signal(signal.SIGTERM, ours)
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(task, WAIT_S)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_handler_without_workers_does_what_the_one_before_does() -> None:
    program = """if True:
        import signal
        from topics.client import stop_signals
        leave = stop_signals.on_stop_signals(lambda: None, None)
        kept = {number: signal.signal(number, signal.SIG_IGN) for number in stop_signals.NUMBERS}
        leave()
        for number, handler in kept.items():
            signal.signal(number, handler)
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            print("interrupted")
        signal.raise_signal(signal.SIGTERM)
        print("still here")
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "interrupted\n", "")


def send_signal(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def run_worker(topics: Topics, name: str, **options: Any) -> None:
    topics.worker(name)(send_signal)
    topics.run(**options)


def run_loop(topics: Topics, name: str, **options: Any) -> None:
    for job in topics.jobs(name, **options):
        send_signal(job)


@pytest.mark.parametrize("run", [run_worker, run_loop])
def test_sync_client_does_the_same(server: ServerProcess, name: str, run: Callable[..., None]) -> None:
    with Topics(server.url) as topics:
        topics.put_topic(name, type="queue")
        topics.append(name, 1)
        run(topics, name)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert topics.topic(name).count == 0, "the job was finished"
    with Topics(server.url) as topics:
        program = Program(signal.SIGTERM)
        topics.append(name, 2)
        run(topics, name, handle_signals=True)
        assert program.got == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) == program.handle


def test_client_in_a_thread_takes_no_signals_and_refuses_if_asked(server: ServerProcess, name: str) -> None:
    def run_in_a_thread() -> None:
        with Topics(server.url) as topics:
            topics.put_topic(name, type="queue")
            topics.append(name, 1)
            topics.worker(name)(lambda job: topics.stop())
            topics.run()
            seen.append(signal.getsignal(signal.SIGTERM))
            try:
                topics.run(handle_signals=True)
            except ValueError as error:
                seen.append(str(error))

    seen: list[object] = []
    thread = threading.Thread(target=run_in_a_thread)
    thread.start()
    thread.join(WAIT_S)
    assert seen == [signal.SIG_DFL, "signal only works in main thread of the main interpreter"]
