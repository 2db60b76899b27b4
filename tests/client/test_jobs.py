"""Loops over jobs and workers: leases, acks, retries, hooks, time limits, and an orderly end."""

import asyncio
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.client.conftest import until_extended
from tests.conftest import ServerProcess
from topics.client import AsyncJob, AsyncTopics, NewRecord, TopicsError
from topics.model.queue import Progress, Reason

pytestmark = pytest.mark.anyio
LIMIT_S = 20


@pytest.fixture
async def queue(topics: AsyncTopics, name: str) -> str:
    await topics.put_topic(name, type="queue")
    await topics.append_many(name, [NewRecord(data=number) for number in range(3)])
    return name


def open_loop(topics: AsyncTopics, form: str, queue: str, **options: Any) -> AsyncIterator[AsyncJob]:
    if form == "claimed":
        return topics.jobs(queue, **options)
    return topics.pushed_jobs(queue, **options)


forms = pytest.mark.parametrize("form", ["claimed", "pushed"])


@forms
async def test_loop_acks_each_job_when_it_asks_for_the_next(topics: AsyncTopics, queue: str, form: str) -> None:
    seen = []
    async with asyncio.timeout(LIMIT_S):
        async for job in open_loop(topics, form, queue):
            seen.append(job.data)
            if len(seen) == 3:
                topics.stop()
    assert seen == [0, 1, 2]
    assert (await topics.topic(queue)).count == 0


@forms
async def test_job_whose_body_raises_is_given_back(topics: AsyncTopics, queue: str, form: str) -> None:
    async def fail() -> None:
        async for _ in open_loop(topics, form, queue, retry_delay_ms=lambda deliveries: 100):
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await fail()
    deliveries = {}
    async with asyncio.timeout(LIMIT_S):
        async for job in open_loop(topics, form, queue):
            deliveries[job.data] = job.deliveries
            if len(deliveries) == 3:
                topics.stop()
    assert deliveries[0] == 2
    assert (await topics.topic(queue)).count == 0


async def test_body_that_acks_or_nacks_itself_is_not_corrected(topics: AsyncTopics, queue: str) -> None:
    seen = []
    async with asyncio.timeout(LIMIT_S):
        async for job in topics.jobs(queue):
            seen.append((job.data, job.deliveries))
            if job.data == 0 and job.deliveries == 1:
                assert await job.nack()
            else:
                assert await job.ack()
                assert not await job.ack()
            if len(seen) == 4:
                topics.stop()
    assert sorted(seen) == [(0, 1), (0, 2), (1, 1), (2, 1)]


@forms
async def test_lease_is_extended_while_the_body_runs(topics: AsyncTopics, queue: str, form: str) -> None:
    deliveries = []
    async with asyncio.timeout(LIMIT_S):
        async for job in open_loop(topics, form, queue, lease_ms=4500):
            deliveries.append(job.deliveries)
            if job.data == 0:
                await until_extended(topics, job)
            if len(deliveries) == 3:
                topics.stop()
    assert deliveries == [1, 1, 1]


@forms
async def test_progress_of_a_job_is_listed(topics: AsyncTopics, queue: str, form: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        async for job in open_loop(topics, form, queue):
            before = job.deadline
            assert await job.progress(0.4, "page 4 of 10")
            [listed] = [one async for one in topics.list_jobs(queue, state="in_flight")]
            assert (listed.progress, listed.deadline) == (Progress(0.4, "page 4 of 10"), before)
            await topics.delete(queue, seqs=[job.seq])
            assert not await job.progress(0.5)
            assert job.is_cancelled
            topics.stop()


async def test_progress_that_no_server_takes_fails_no_job(topics: AsyncTopics, queue: str, name: str) -> None:
    [job] = await topics.claim(queue, node="w")
    async with AsyncTopics("http://127.0.0.1:1") as nowhere:
        job._client = nowhere
        assert await job.progress(0.4)
        job._client = topics
        with pytest.raises(TopicsError, match=r"progress\.share"):
            await job.progress(40)


@forms
async def test_loop_survives_a_server_that_is_away(
    topics: AsyncTopics, queue: str, form: str, server: ServerProcess
) -> None:
    server.process.send_signal(signal.SIGSTOP)
    async with AsyncTopics(server.url, timeout_s=0.2, retries=0) as impatient:
        loop = open_loop(impatient, form, queue)
        first = asyncio.ensure_future(anext(loop))
        await asyncio.sleep(0.5)
        server.process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(LIMIT_S):
            job = await first
            assert await job.ack()
            await loop.aclose()  # type: ignore[attr-defined]


async def test_hooks_see_starts_results_and_errors(
    topics: AsyncTopics, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, int]] = []
    failures: list[Reason] = []

    def done(job: AsyncJob, seconds: float) -> None:
        assert 0 <= seconds < LIMIT_S
        seen.append(("done", job.data))
        if len([what for what, _ in seen if what == "done"]) == 3:
            topics.stop()
        raise RuntimeError("a hook that fails does not fail the job")

    @topics.worker(
        queue, on_start=lambda job: seen.append(("start", job.data)), on_done=done,
        on_error=lambda job, error: seen.append((str(error), job.data)), retry_delay_ms=lambda deliveries: 0,
    )  # fmt: skip
    async def work(job: AsyncJob) -> None:
        if job.data == 1 and job.deliveries == 1:
            raise ValueError("bad")
        failures.extend(job.reasons)

    with caplog.at_level(logging.CRITICAL, "topics.client.worker"):
        await asyncio.wait_for(topics.run(), LIMIT_S)
    assert sorted(seen) == sorted(
        [("start", 0), ("start", 1), ("start", 2), ("start", 1), ("done", 0), ("done", 1), ("done", 2), ("bad", 1)]
    )
    assert (await topics.topic(queue)).count == 0
    [failure] = failures
    assert (failure.reason, failure.delivery) == ("ValueError: bad", 1)
    assert failure.error is not None
    assert (failure.error.type, failure.error.message) == ("ValueError", "bad")
    assert 'raise ValueError("bad")' in (failure.error.stack or "")
    assert "call_within" not in (failure.error.stack or ""), "the frames of the client say nothing"


async def test_worker_learns_that_its_job_was_cancelled(topics: AsyncTopics, queue: str) -> None:
    cancelled = []

    @topics.worker(queue, concurrency=3, lease_ms=300)
    async def work(job: AsyncJob) -> None:
        await topics.delete(queue, seqs=[job.seq])
        while not job.is_cancelled:
            await asyncio.sleep(0.01)
        cancelled.append(job.data)
        if len(cancelled) == 3:
            topics.stop()

    await asyncio.wait_for(topics.run(), LIMIT_S)
    assert sorted(cancelled) == [0, 1, 2]


async def test_new_queue_has_safe_defaults_and_the_answer_warns(topics: AsyncTopics, name: str) -> None:
    made = await topics.put_topic(name, type="queue", max_deliveries=2)
    assert (made.config.discard, made.config.leases_durable) == ("reject", True)
    assert made.warnings == [
        "max_deliveries has no effect without dead_letter: failed jobs are delivered again without end"
    ]
    plain = await topics.put_topic(f"{name}.plain", type="queue", defaults="contract", retry={"min_ms": 5}, paused=True)
    assert (plain.config.discard, plain.config.leases_durable, plain.config.paused) == ("old", False, True)
    assert plain.config.retry is not None
    assert (plain.config.retry.min_ms, plain.config.retry.factor) == (5, 2.0)


@pytest.mark.parametrize("message", ["ä" * 10_000, "\ud800", ""])
async def test_reason_of_any_exception_is_taken(topics: AsyncTopics, queue: str, message: str) -> None:
    [job] = await topics.claim(queue, node="w")
    assert await job.nack(retry=True, error=ValueError(message))
    [listed] = [job async for job in topics.list_jobs(queue, state="delayed")]
    assert listed.reasons[0].reason.startswith("ValueError")


@pytest.mark.parametrize(
    ("form", "number"),
    [
        ("async worker", signal.SIGTERM),
        ("async loop", signal.SIGINT),
        ("sync worker", signal.SIGINT),
        ("sync loop", signal.SIGTERM),
        pytest.param("async worker", signal.SIGINT, marks=pytest.mark.torture),
        pytest.param("async loop", signal.SIGTERM, marks=pytest.mark.torture),
        pytest.param("sync worker", signal.SIGTERM, marks=pytest.mark.torture),
        pytest.param("sync loop", signal.SIGINT, marks=pytest.mark.torture),
    ],
)
async def test_signal_lets_running_jobs_finish(
    topics: AsyncTopics, queue: str, form: str, number: signal.Signals, server: ServerProcess
) -> None:
    program = PROGRAMS[form].format(url=server.url, queue=queue)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        assert await process.stdout.readline() == b"started\n"
        process.send_signal(number)
        out, err = await process.communicate()
    assert (process.returncode, out, err) == (0, b"finished\nended\n", b"")
    assert (await topics.topic(queue)).count == 2


ASYNC = """
import asyncio
from topics.client import AsyncTopics

async def one(job):
    print("started", flush=True)
    await asyncio.sleep(0.5)
    print("finished", flush=True)

async def main():
    async with AsyncTopics("{url}") as topics:
{body}
    print("ended")

asyncio.run(main())
"""
SYNC = """
import time
from topics.client import Topics

def one(job):
    print("started", flush=True)
    time.sleep(0.5)
    print("finished", flush=True)

with Topics("{url}") as topics:
{body}
print("ended")
"""
PROGRAMS = {
    "async worker": ASYNC.replace("{body}", '        topics.worker("{queue}")(one)\n        await topics.run()'),
    "async loop": ASYNC.replace(
        "{body}", '        async for job in topics.jobs("{queue}"):\n            await one(job)'
    ),
    "sync worker": SYNC.replace("{body}", '    topics.worker("{queue}")(one)\n    topics.run()'),
    "sync loop": SYNC.replace("{body}", '    for job in topics.jobs("{queue}"):\n        one(job)'),
}


async def test_jobs_have_keys_and_are_unique(topics: AsyncTopics, name: str) -> None:
    await topics.put_topic(name, type="queue", max_in_flight_per_key=1, rate={"per_s": 1000, "burst": 50})
    first = await topics.append(name, 1, record_key="a", unique={"key": "u", "for": 60_000})
    second = await topics.append(name, 1, unique={"key": "u"})
    assert (first.deduped, second.seq, second.deduped) == (False, first.seq, True)
    async with topics.writer(name) as writer:
        await writer.append(2, record_key="a")
    await topics.append_many(name, [{"data": 3, "key": "b"}])
    assert [(job.data, job.key) for job in await topics.claim(name, node="w", max=9)] == [(1, "a"), (3, "b")]
    assert [record.key for record in (await topics.diff(name)).records] == ["a", "a", "b"]
    state = await topics.topic(name)
    assert state.queue is not None
    assert state.queue.blocked == 1
    assert state.config.rate is not None
    assert state.config.rate.burst == 50
