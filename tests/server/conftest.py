from collections.abc import Callable, Iterator

import pytest

from tests.server.harness import FakeApp, Harness
from topics.server.http.http_limits import HttpLimits
from topics.server.http.messages import App

Serve = Callable[..., Harness]


@pytest.fixture
def app() -> FakeApp:
    return FakeApp()


@pytest.fixture
def serve(app: FakeApp) -> Iterator[Serve]:
    """Return a function that starts a server with limits. The servers stop after the test."""
    running: list[Harness] = []

    def start(instead: App | None = None, **limits: int) -> Harness:
        harness = Harness(instead or app, HttpLimits(**limits))
        running.append(harness)
        return harness

    yield start
    for harness in running:
        harness.stop()


@pytest.fixture
def server(serve: Serve) -> Harness:
    return serve()
