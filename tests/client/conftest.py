"""A server that the tests of the clients share, an async client of it, and a name for each test."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from tests.conftest import ServerProcess
from topics.client import AsyncJob, AsyncTopics

_numbers = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("client"), {})
    yield running
    running.stop()


@pytest.fixture
def name() -> str:
    """A topic that no other test uses."""
    return f"t{next(_numbers)}"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def topics(server: ServerProcess) -> AsyncIterator[AsyncTopics]:
    """An async client of the server."""
    async with AsyncTopics(server.url) as client:
        yield client


async def until_extended(topics: AsyncTopics, job: AsyncJob) -> None:
    """Wait until the server has a later deadline for a job than the one that it was claimed with."""
    claimed_until = job.deadline
    while True:
        async for listed in topics.list_jobs(job.topic, state="in_flight"):
            if listed.seq == job.seq and (listed.deadline or 0) > claimed_until:
                return
        await asyncio.sleep(0.02)
